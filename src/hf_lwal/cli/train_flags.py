"""The training flags of ``hf-lwal train``: those of `LwALTrainingArguments`, in groups, with defaults of our own."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import CommandError, reason
from .flags import add_aliases, spellings

if TYPE_CHECKING:
    from ..settings.training_args import LwALTrainingArguments
    from .flags import Parser

DEFAULTS: dict[str, Any] = {
    "num_train_epochs": 3.0,
    "per_device_train_batch_size": 32,
    "per_device_eval_batch_size": 64,
    "learning_rate": 1e-4,
    "eval_strategy": "epoch",
    "save_strategy": "epoch",
    "save_total_limit": 2,  # the best and the last: with 1, transformers deletes the last at the end
    "logging_steps": 0.05,  # of the whole training
}
"""Where the command's defaults are not those of transformers."""

FROM_SCRATCH: dict[str, Any] = {"learning_rate": 1e-3}
"""What a model without pretrained weights needs instead."""

MAIN_FLAGS = (
    "output_dir",
    "num_train_epochs",
    "max_steps",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "learning_rate",
    "warmup_steps",
    "weight_decay",
    "eval_strategy",
    "eval_steps",
    "bf16",
    "torch_compile",
    "seed",
    "report_to",
    "push_to_hub",
    "hub_model_id",
)
"""Shown by ``--help``; ``--help-all`` shows the others too."""

STEPS_BETWEEN = 500
"""Optimizer steps between evaluations or saves where ``steps`` is asked for without a number, as in transformers."""


def add_training_flags(parser: Parser) -> None:
    """Add all flags of `LwALTrainingArguments`; only those that are given get a value."""
    from transformers import HfArgumentParser

    from ..settings.training_args import LwALTrainingArguments

    parser.usage = "hf-lwal train DATA|settings.yaml [--model MODEL] [flags]"
    groups = (
        parser.add_argument_group("adaptive labels"),
        parser.add_argument_group(
            "training", "The most used; --help-all lists all of transformers' TrainingArguments."
        ),
        parser.add_argument_group("training, all other flags"),
    )
    hidden = {}
    for action in HfArgumentParser(LwALTrainingArguments, add_help=False)._actions:
        text = _help(action)
        action.default = argparse.SUPPRESS  # so that a flag that was not given leaves no trace
        place = 0 if action.dest.startswith(("label_", "lwal_")) and action.dest not in _STOCK else 2
        place = 1 if action.dest in MAIN_FLAGS else place
        if action.dest == "report_to":  # a list or a word, which HfArgumentParser takes for a word
            action.nargs = "+"
        action.help = text if place < 2 else argparse.SUPPRESS
        if place == 2:
            hidden[action] = text
        groups[place]._add_action(action)
    add_aliases(parser)
    parser.add_argument(
        *spellings("help_all"),
        action=_HelpAll,
        nargs=0,
        default=argparse.SUPPRESS,
        hidden=hidden,
        help="show all flags and exit",
    )


_STOCK = ("label_names", "label_smoothing_factor")
"""Flags of transformers that begin like ours."""


def _help(action: argparse.Action) -> str:
    """Help text with the default of the command."""
    text = " ".join((action.help or "").split())
    default = DEFAULTS.get(action.dest, action.default)
    if action.dest.startswith(("label_", "lwal_")) or default in (None, False, "", -1) or "--no" in str(action):
        return text
    return f"{text} (default: {getattr(default, 'value', default)})"


class _HelpAll(argparse.Action):
    """``--help-all``: help with the flags that ``--help`` hides."""

    def __init__(self, *args: Any, hidden: Mapping[argparse.Action, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.hidden = hidden

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        """Show them, print, and end the program."""
        for action, text in self.hidden.items():
            action.help = text
        parser.print_help()
        parser.exit()


def training_values(given: Mapping[str, Any], from_scratch: bool) -> dict[str, Any]:
    """Values for `LwALTrainingArguments`: the given ones, our defaults, and what follows from both.

    Saving follows the rhythm of evaluation and the other way round, so that the best checkpoint can be loaded at the
    end; where the two differ on purpose, it is not.

    Args:
        given: the flags that were given, by field name.
        from_scratch: whether the model has no pretrained weights.

    >>> values = training_values({"eval_steps": 50}, from_scratch=False)
    >>> [values[key] for key in ("eval_strategy", "save_strategy", "save_steps", "load_best_model_at_end")]
    ['steps', 'steps', 50, True]
    """
    values = {**DEFAULTS, **(FROM_SCRATCH if from_scratch else {}), **given}
    rhythm = {kind: _rhythm(kind, given) for kind in ("eval", "save")}
    for kind, other in (("eval", "save"), ("save", "eval")):
        chosen = rhythm[kind] or rhythm[other]
        if chosen is None or (rhythm[kind] is None and chosen[0] not in ("steps", "epoch")):
            continue
        values[f"{kind}_strategy"], values[f"{kind}_steps"] = chosen
    if "load_best_model_at_end" not in given:
        values["load_best_model_at_end"] = _in_step(values)
    if values["save_strategy"] == "best":
        values.setdefault("metric_for_best_model", "accuracy")  # which transformers does not do for this strategy
    return values


def _rhythm(kind: str, given: Mapping[str, Any]) -> tuple[str, float] | None:
    """Strategy and steps that the flags ask for; None when they say nothing."""
    strategy, steps = given.get(f"{kind}_strategy"), given.get(f"{kind}_steps")
    if strategy is None and steps is None:
        return None
    return (strategy or "steps", steps or STEPS_BETWEEN)


def _in_step(values: Mapping[str, Any]) -> bool:
    """Whether every save comes with an evaluation, so that there is a best checkpoint."""
    strategy = values["eval_strategy"]
    if values["save_strategy"] == "best":
        return bool(strategy != "no")
    if strategy == "no" or values["save_strategy"] != strategy:
        return False
    return strategy != "steps" or values["save_steps"] % values["eval_steps"] == 0


def build_arguments(values: Mapping[str, Any]) -> LwALTrainingArguments:
    """Return the training arguments; a value that transformers or this library refuses is a ``CommandError``."""
    from ..settings.training_args import LwALTrainingArguments

    if values.get("label_static_model"):
        values = {**values, "label_static_model": os.path.expanduser(values["label_static_model"])}
    try:
        arguments = LwALTrainingArguments(**values)
        arguments.resolve_lwal()
    except (ValueError, TypeError, ImportError, OSError) as error:
        raise CommandError(reason(error)) from error
    return arguments
