"""What each setting of a saved configuration may be: checked before anything is computed or built from it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch

from .algorithm import UPDATES
from .building import ConfigurationError, shown
from .tasks import TASKS

INITIAL_HEADS = ("auto", "whitened", "class_means", "probe", "random")
MOST_DIMENSIONS = 2**20
MOST_STEPS = 2**63 - 1
MOST_UNNAMED = 2**22
"""Labels that are given names for want of others: those take half a gigabyte."""
MOST_LAYERS = 10_000
"""No architecture has more; a list with one entry per layer is built before the weights can say how many there are."""


class Rule(NamedTuple):
    """What a setting may be.

    Attributes:
        types: of the value; True and False are no numbers.
        what: the value in words.
        least: smallest number.
        most: largest number.
        or_none: whether None is a value.
        choices: all values there are; nothing else then counts.
        beyond: what is wrong with a number outside, in place of ``what``.
    """

    types: tuple[type, ...] = (str,)
    what: str = "a text"
    least: float = -math.inf
    most: float = math.inf
    or_none: bool = False
    choices: tuple[str, ...] = ()
    beyond: str = ""

    def fault(self, name: str, value: Any) -> str | None:
        """What is wrong with a value, as a sentence; None where nothing is."""
        if value is None and self.or_none:
            return None
        if self.choices:
            known = isinstance(value, (str, torch.dtype)) and str(value).removeprefix("torch.") in self.choices
            return None if known else f"Unknown {name} {shown(value)}: choose one of {', '.join(self.choices)}."
        if not isinstance(value, self.types) or (isinstance(value, bool) and bool not in self.types):
            return f"{name} is {shown(value)}, but it must be {self.what}."
        if isinstance(value, (list, tuple)) and not all(isinstance(entry, str) for entry in value):
            return f"{name} is {shown(value)}, but it must be {self.what}."
        if isinstance(value, (int, float)) and not self.least <= value <= self.most:  # NaN neither
            return f"{name} is {shown(value)}, but {self.beyond or f'it must be {self.what}'}."
        return None


FLAG = Rule((bool,), "true or false")
STEPS = Rule((int,), "a whole number", 0, MOST_STEPS, beyond=f"it cannot be negative or above {MOST_STEPS}")
DTYPES = tuple(sorted(name for name, kind in vars(torch).items() if getattr(kind, "is_floating_point", None) is True))
COMMON_RULES: dict[str, Rule] = {
    "architectures": Rule((list, tuple), "a list of names", or_none=True),
    "dtype": Rule(choices=DTYPES, or_none=True),
    "output_hidden_states": FLAG._replace(or_none=True),
    "return_dict": FLAG._replace(or_none=True),
}
"""Setting that all configurations have → what it may be; transformers looks at those of an architecture alone."""
RULES: dict[str, Rule] = {
    "lwal_version": Rule((int,), "a whole number from 1", 1),
    "task": Rule(choices=tuple(TASKS)),
    "space": Rule(choices=("features", "embeddings")),
    "preset": Rule(choices=tuple(UPDATES)),
    "initial_labels": Rule(choices=("class_means", "one_hot")),
    "initial_head": Rule(choices=INITIAL_HEADS),
    "embedding_dim": Rule(
        (int,),
        "a whole number",
        2,
        MOST_DIMENSIONS,
        beyond=f"label vectors need at least 2 dimensions, and have at most {MOST_DIMENSIONS}: leave it out for the "
        "default, min(hidden_size, max(128, num_labels))",
    ),
    "head_name": Rule(what="the name of a layer of the encoder", or_none=True),
    "memory": STEPS,
    "refresh_every": STEPS,
    "warmup_steps": STEPS,
    "repel_weight": Rule((int, float), "a number", 0, 1e30, beyond="it cannot be negative or infinite"),
    "initial_label_norm": Rule((int, float), "a number above 0", 1e-30, 1e15),
    "initial_num_labels": Rule((int,), "a whole number from 1", 1, MOST_STEPS, or_none=True),
    "follow_drift": Rule((int, float), "a share, from 0 to 1", 0, 1, True, beyond="it is a share, from 0 to 1"),
    **dict.fromkeys(("close_classes", "push_code", "offset", "reanchor", "learn_scale"), FLAG),
    **COMMON_RULES,
}
"""Setting of `LwALConfig` → what it may be."""
POOLED_RULES: dict[str, Rule] = {
    "pooling": Rule(what="the name of a pooling"),
    "normalize": FLAG,
    "classifier_dropout": Rule((int, float), "a share, from 0 to 1", 0, 1, or_none=True),
    **COMMON_RULES,
}
"""The same of `LwALPooledConfig`."""
NUM_LABELS = Rule(
    (int,), f"a whole number up to {MOST_UNNAMED:,}: give the names of the labels, id2label, for more", 0, MOST_UNNAMED
)
PART_RULES: dict[str, Rule] = {
    "num_labels": NUM_LABELS._replace(or_none=True),
    "chunk_size_feed_forward": Rule((int,), "a whole number from 0", 0, MOST_DIMENSIONS, or_none=True),
    **dict.fromkeys(("output_attentions", "is_encoder_decoder", "tie_word_embeddings"), FLAG._replace(or_none=True)),
    **COMMON_RULES,
}
"""The same of a configuration inside another, where it has them."""


def check_settings(config: Any, rules: Mapping[str, Rule]) -> None:
    """Raise ValueError with the setting, its value and what it may be, for the first that is something else."""
    for name, rule in rules.items():
        fault = rule.fault(name, getattr(config, name))
        if fault is not None:
            raise ConfigurationError(fault)


def check_part(name: str, content: Any) -> None:
    """Raise ValueError for a stored configuration inside another that holds no settings, or numbers that are none.

    Args:
        name: what the other calls it.
        content: as it was read.
    """
    if not isinstance(content, Mapping):
        raise ConfigurationError(
            f"{name} is {shown(content)}, but it must hold the settings of a model: copy config.json anew from where "
            "the model comes from."
        )
    for inner in (content, content.get("base_config")):
        known = inner if isinstance(inner, Mapping) else {}
        for key in PART_RULES.keys() & known.keys():
            if (fault := PART_RULES[key].fault(key, known[key])) is not None:
                raise ConfigurationError(f"{fault} It stands in {name}.")
    for place, value in _numbers(name, content):
        if isinstance(value, int) and place.endswith(("layer", "layers", "depth", "depths")) and value > MOST_LAYERS:
            raise ConfigurationError(f"{place} is {shown(value)}, but no model has more than {MOST_LAYERS:,} layers.")
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigurationError(f"{place} is {value}, but it must be a finite number.")
        if place.endswith(("eps", "epsilon", "theta")) and value < 0:
            raise ConfigurationError(f"{place} is {value}, but it cannot be negative.")


def _numbers(place: str, value: Any) -> Iterator[tuple[str, int | float]]:
    """All numbers inside a value, and where they are; of lists without infinite ones, which are limits."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _numbers(f"{place}.{key}", inner)
    elif isinstance(value, (list, tuple)):
        yield from ((place, inner) for inner in value if isinstance(inner, int) or inner != inner)
    elif isinstance(value, (int, float)):
        yield place, value
