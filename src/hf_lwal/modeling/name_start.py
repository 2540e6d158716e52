"""Label names as a start: what the encoder makes of a label's name counts as one more sample of its class.

With few samples per class the name says as much as a sample does, and without any it is all there is. Not in the
paper; ``benchmarks/label_names.py`` measures it.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Container, Mapping
from typing import Any

import torch
from torch import Tensor

from .class_moments import class_means
from .functional import IGNORE_INDEX
from .inference import max_length_of
from .row_blocks import blocks, some_of
from .start import StartSamples, collect

logger = logging.getLogger(__name__)

ENOUGH_SAMPLES = 16
"""From so many samples of a class on, its name adds nothing that can be measured, and is not read."""
DEVIATIONS = 3.0
"""Standard deviations above what chance and what shuffled names predict, from which on names are believed."""
SETTINGS = ("auto", "off")
GENERIC = re.compile(r"\W*(label|class|category|target|cls|id|c|l)?[\W_]*\d*[\W_]*", re.IGNORECASE)

LabelNames = str | Mapping[str, str]


def check_label_names(value: Any) -> str | dict[str, str]:
    """The setting ``lwal_label_names``: "auto", "off", or texts by label name, also as JSON.

    Raises:
        ValueError: anything else.
    """
    if value is None:
        return "auto"
    if value is False or value == "False":
        return "off"  # which YAML reads as false
    found = value
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            found = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"lwal_label_names is no valid JSON ({error}): {value!r}.") from None
    if isinstance(found, str) and found in SETTINGS:
        return found
    if not isinstance(found, Mapping) or not found:
        raise ValueError(
            f"lwal_label_names is {value!r}, but it must be {', '.join(SETTINGS)} or a mapping from label names to "
            'descriptions, as {"card_arrival": "when a new card comes"}.'
        )
    for name, text in found.items():
        if not isinstance(name, str) or not isinstance(text, str) or not text.strip():
            raise ValueError(
                f"lwal_label_names describes {name!r} by {text!r}, but both must be texts that are not empty."
            )
    return dict(found)


def check_descriptions(setting: LabelNames, names: Mapping[int, str], task: str | None) -> None:
    """Raise ValueError where descriptions are for labels that do not exist, or for a model that reads no texts."""
    if isinstance(setting, str):
        return
    if task != "text":
        raise ValueError(
            f"lwal_label_names describes {len(setting)} labels by texts, but this is {_kind(task)} model, which "
            "cannot read them: leave it out."
        )
    if unknown := sorted(set(setting) - set(names.values())):
        known = ", ".join(map(repr, list(names.values())[:10])) + (", …" if len(names) > 10 else "")
        raise ValueError(
            f"lwal_label_names describes {', '.join(map(repr, unknown[:10]))}, but the model has no such label; "
            f"its labels are {known}."
        )


def _kind(task: str | None) -> str:
    return "no text" if task is None else f"an {task}"


def in_words(name: str) -> str:
    """A label's name as a text.

    >>> in_words("card_arrival"), in_words("cardArrival"), in_words("comp.graphics"), in_words("Sci/Tech")
    ('card arrival', 'card arrival', 'comp graphics', 'Sci Tech')
    """
    words = re.sub(r"[_\s]+", " ", name).strip()
    if "_" in name and words.isupper():
        words = words.lower()
    words = re.sub(r"(?<=[^\W\d_])[-./:|+]+(?=[^\W\d_])", " ", words)
    parts = re.split(r"(?<=[a-z]{2})(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z]{2})", words)
    if len(parts) > 1:
        words = " ".join(part if part.isupper() else part.lower() for part in parts)
    return words


def is_generic(name: str) -> bool:
    """Whether a name is a number or a placeholder such as LABEL_0, which tells nothing of its class."""
    return GENERIC.fullmatch(name) is not None


def name_texts(setting: LabelNames, names: Mapping[int, str]) -> dict[int, str]:
    """What to read for each label, by id: its description, else its name in words; nothing for generic names."""
    given = {} if isinstance(setting, str) else setting
    return {
        index: given.get(name, in_words(name))
        for index, name in names.items()
        if name in given or not is_generic(name)
    }


def choose_names(samples: StartSamples, setting: LabelNames, names: Mapping[int, str]) -> dict[int, str]:
    """Texts by id of the labels with fewer samples than `ENOUGH_SAMPLES`; all of them, where the names are tested.

    Returns:
        Nothing where no label needs its name, or where names tell nothing; the latter is said in the log.
    """
    if setting == "off":
        return {}
    counts = samples.labels[samples.labels != IGNORE_INDEX].bincount(minlength=len(names))
    if int(counts.min()) >= ENOUGH_SAMPLES:
        if not isinstance(setting, str):
            logger.info(
                "The descriptions of the labels are not counted: every class has %d samples or more.", ENOUGH_SAMPLES
            )
        return {}
    texts = name_texts(setting, names)
    if not texts:
        logger.info("Label names such as %r tell nothing of their classes, so they do not count.", names[0])
    return texts


def name_batches(
    texts: Mapping[int, str],
    tokenizer: Any,
    max_length: int | None,
    size: int = 32,
    columns: Container[str] | None = None,
) -> list[dict[str, Any]]:
    """Texts by id as batches for the start pass, with the ids as labels.

    Args:
        texts: at least one.
        tokenizer: without a token for padding, every batch is one text.
        max_length: tokens beyond are cut off.
        size: texts per batch.
        columns: the inputs that the model takes; None for all that the tokenizer makes.
    """
    ids = sorted(texts, key=lambda index: len(texts[index]))
    size = size if tokenizer.pad_token is not None else 1
    batches = []
    for start in range(0, len(ids), size):
        part = ids[start : start + size]
        inputs = tokenizer(
            [texts[index] for index in part],
            padding=size > 1,
            truncation=max_length is not None,
            max_length=max_length,
            return_tensors="pt",
        )
        kept = {name: value for name, value in inputs.items() if columns is None or name in columns}
        batches.append({**kept, "labels": torch.tensor(part)})
    return batches


def with_names(
    samples: StartSamples, named: StartSamples, setting: LabelNames, names: Mapping[int, str]
) -> StartSamples:
    """The start samples, with the name of each class that has few of them as one more, if names are to be believed.

    Args:
        samples: from the start pass.
        named: values (C', H) of names in the same space, their labels the ids they belong to.
        setting: descriptions count in any case; "auto" asks whether names predict the samples.
        names: of all labels, by id.
    """
    rows = samples.labels != IGNORE_INDEX
    counts = samples.labels[rows].bincount(minlength=len(names))
    few = (named.labels != IGNORE_INDEX) & (counts[named.labels.clamp(min=0)] < ENOUGH_SAMPLES)
    if not bool(few.any()):
        return samples
    right, chance, believed = agreement(samples.values[rows], samples.labels[rows], named)
    found = f"the nearest name is right for {100 * right:.1f} % of the samples (by chance {100 * chance:.1f} %)"
    if not believed and isinstance(setting, str):
        logger.info("Label names do not count as samples, since they are no better than chance: %s.", found)
        return samples
    alone = [names[index] for index in sorted(named.labels[few].tolist()) if not counts[index]]
    if not believed:
        logger.warning("The descriptions of the labels seem to be no better than chance: %s.", found)
    logger.info(
        "The names of %d labels count as one more sample each: %s.%s",
        int(few.sum()),
        found,
        f" Of {len(alone)} there is nothing else: {', '.join(alone[:20])}{', …' if len(alone) > 20 else ''}."
        if alone
        else "",
    )
    values = torch.cat([samples.values, named.values[few].to(samples.values)])
    labels = torch.cat([samples.labels, named.labels[few].to(samples.labels)])
    return StartSamples(values, labels, samples.seconds + named.seconds, int(few.sum()))


def agreement(values: Tensor, labels: Tensor, named: StartSamples) -> tuple[float, float, bool]:
    """Share of samples whose nearest name is theirs, the share by chance, and whether the former is believed.

    Samples of a class lie together, so that a name which is nearest to them by accident is so for all: the names must
    do better than shuffled ones, too. The mean and variance over all permutations are those of Hoeffding (1951), A
    combinatorial central limit theorem. With C names perfect ones lie C - 1 deviations above the mean.

    Args:
        values: (N, H).
        labels: (N,) int64; classes without a name are left out.
        named: values (C', H) and labels (C',) of names; those of classes without samples are left out.
    """
    kept = torch.isin(named.labels, labels) & (named.labels != IGNORE_INDEX)
    ids, order = named.labels[kept].sort()
    names, classes = named.values[kept][order].double(), len(ids)
    if classes < 2:
        return 0.0, 1.0, False
    named_rows = torch.isin(labels, ids)
    truth = torch.searchsorted(ids, labels).where(named_rows, IGNORE_INDEX)  # (N,) place among the names
    centre = class_means(values, truth, classes)[0].mean(dim=0)  # names may lie together, apart from the samples
    names, rows = names - names.mean(dim=0), some_of(named_rows.nonzero()[:, 0], classes)
    nearest = torch.cat(
        [torch.cdist(values[block].double() - centre, names).argmin(dim=1) for block in blocks(rows, classes)]
    )
    truth, number = truth[rows], len(rows)
    right, expected = float((truth == nearest).sum()), number / classes
    # Square sum of the table of truth by nearest name without the means of its rows and columns: most cells are 0.
    cells = torch.unique(truth * classes + nearest, return_counts=True)[1].double()
    sides = [side.bincount(minlength=classes).double() for side in (truth, nearest)]
    centred = cells.square().sum() - sum(side.square().sum() for side in sides) / classes + expected**2
    of_permutations = (float(centred.clamp(min=0.0)) / (classes - 1)) ** 0.5
    of_rows = (expected * (1.0 - 1.0 / classes)) ** 0.5
    least = min(DEVIATIONS, 0.7 * (classes - 1))
    believed = right > expected + DEVIATIONS * of_rows and right > expected + least * of_permutations
    return right / number, 1.0 / classes, believed


MOST_NAMES = 200
"""Names that say enough of whether names tell anything."""


def some_of_names(ids: list[int]) -> list[int]:
    """All ids, or as many of them as say enough, evenly spread."""
    return ids[:: -(-len(ids) // MOST_NAMES)] if ids else ids


class NameStart:
    """Starts of a label table from names of labels; `LwALPreTrainedModel` inherits them."""

    # Type checkers do not let a mixin's self be the class that inherits it, hence Any.

    def initialize_labels_from_names(
        self: Any, processing_class: Any, descriptions: Mapping[str, str] | None = None, batch_size: int = 32
    ) -> None:
        """Start without any data: what the encoder makes of the name of each label is its class mean (zero-shot).

        Args:
            processing_class: tokenizer.
            descriptions: texts by label name, to read in place of some names or all.
            batch_size: names per forward pass.

        Raises:
            ValueError: not a text model, a description of a label that does not exist, or a name such as LABEL_0.
        """
        names = self.config.label_names
        setting = check_label_names(descriptions or "auto")
        self._refuse_names_of_labels()
        check_descriptions(setting, names, self.task)
        texts = name_texts(setting, names)
        if missing := [name for index, name in names.items() if index not in texts]:
            raise ValueError(
                f"The names {', '.join(map(repr, missing[:10]))}{', …' if len(missing) > 10 else ''} tell nothing of "
                "their labels: give id2label when the model is loaded, or descriptions of these labels."
            )
        self.start_from(self._named(texts, processing_class, batch_size))

    def names_tell_labels(self: Any, processing_class: Any) -> bool:
        """Whether the names of labels are nearest to their own class means far more often than by chance.

        Args:
            processing_class: tokenizer.
        """
        table = self.label_table
        key = (self.optimizer_step, getattr(processing_class, "name_or_path", None))
        if self._names_told is None or self._names_told[0] != key:
            seen = table.seen.nonzero()[:, 0]
            texts = name_texts("auto", self.config.label_names)
            some = [index for index in seen.tolist() if index in texts]
            some = some_of_names(some)
            believed = False
            if len(some) > 1:
                named = self._named({index: texts[index] for index in some}, processing_class)
                ids = torch.tensor(some, device=table.class_features.device)
                believed = agreement(table.class_features[ids], ids, named)[2]
            self._names_told = key, believed
        return bool(self._names_told[1])

    _names_told: tuple[Any, bool] | None = None

    def _refuse_names_of_labels(self: Any) -> None:
        """Raise ValueError where the names of labels are none of the model's inputs."""
        if self.task != "text":
            raise ValueError(
                f"This is an {self.task} model, which cannot read the names of labels: start from examples instead."
            )

    def _named(self: Any, texts: Mapping[int, str], tokenizer: Any, batch_size: int = 32) -> StartSamples:
        """What names or descriptions by id are for the start pass."""
        batches = name_batches(texts, tokenizer, max_length_of(self, tokenizer), batch_size)
        found: StartSamples = collect(self, self.start_values, batches, self.device, progress=False)
        return found

    def label_names_to_count(self: Any, setting: Any, processing_class: Any) -> LabelNames:
        """The setting ``lwal_label_names`` as it holds for this model and what there is to read names with.

        Raises:
            ValueError: an unknown value, or descriptions that the model does not know or cannot read.
        """
        setting = check_label_names(setting)
        check_descriptions(setting, self.config.label_names, self.task)
        if processing_class is None and not isinstance(setting, str):
            raise ValueError("Descriptions of labels need a tokenizer to read them: give it as processing_class.")
        return "off" if processing_class is None or self.task != "text" else setting

    def with_label_names(self: Any, samples: StartSamples, setting: LabelNames, processing_class: Any) -> StartSamples:
        """Start samples with names of labels as more of them; see `with_names`."""
        names = self.config.label_names
        texts = choose_names(samples, setting, names)
        return with_names(samples, self._named(texts, processing_class), setting, names) if texts else samples
