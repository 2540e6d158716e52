"""Settings of ``hf-lwal train`` that cannot work, refused before data and model are loaded.

transformers refuses many of them only when training starts, evaluates or chooses a checkpoint. The ranges are written
down here; what depends on installed packages, such as optimizers and reporters, is tried on a model of one weight.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from typing import TYPE_CHECKING, Any, cast

from ..errors import CommandError, reason
from .flags import spellings

if TYPE_CHECKING:
    from ..settings.training_args import LwALTrainingArguments

Range = tuple[float, float, str]
ABOVE_0: Range = (math.nextafter(0.0, 1.0), math.inf, "above 0")
FROM_0: Range = (0, math.inf, "0 or more")
FROM_1: Range = (1, math.inf, "at least 1")
SHARE: Range = (0, 1, "between 0 and 1")
BELOW_1: Range = (0, math.nextafter(1.0, 0.0), "at least 0 and below 1")
SEED: Range = (0, 2**32 - 1, f"a whole number from 0 to {2**32 - 1}")
RANGES: dict[str, Range] = {
    "per_device_train_batch_size": FROM_1,
    "per_device_eval_batch_size": FROM_1,
    "gradient_accumulation_steps": FROM_1,
    "eval_accumulation_steps": FROM_1,
    "num_train_epochs": ABOVE_0,
    "max_steps": FROM_1,
    "learning_rate": ABOVE_0,
    "weight_decay": FROM_0,
    "warmup_steps": FROM_0,
    "max_grad_norm": FROM_0,
    "adam_beta1": BELOW_1,
    "adam_beta2": BELOW_1,
    "adam_epsilon": FROM_0,
    "label_smoothing_factor": SHARE,
    "neftune_noise_alpha": FROM_0,
    "eval_steps": ABOVE_0,
    "save_steps": ABOVE_0,
    "logging_steps": ABOVE_0,
    "eval_delay": FROM_0,
    "dataloader_num_workers": FROM_0,
    "dataloader_prefetch_factor": FROM_1,
    "ddp_timeout": ABOVE_0,
    "seed": SEED,
    "data_seed": SEED,
}
"""Training argument → smallest and largest value that works, and how to say so."""

MEASURED = ("accuracy", "f1_macro", "loss")
"""What an evaluation of this command measures."""
NEEDED = ("do_train", "do_eval")
"""Switches of transformers' example scripts that make no difference here."""


def check_given(given: Mapping[str, Any]) -> None:
    """Raise for a flag whose value no training could have, alone or beside the others."""
    for name, (least, most, meaning) in RANGES.items():
        value = given.get(name)
        if value is not None and not (name == "max_steps" and value == -1) and not least <= value <= most:
            raise CommandError(f"{flag(name)} must be {meaning}, got {value}.")
        if isinstance(value, float) and math.isinf(value):
            raise CommandError(f"{flag(name)} must be a finite number, got {value}.")
    metric = given.get("metric_for_best_model")
    if metric is not None and metric.removeprefix("eval_") not in MEASURED:
        raise CommandError(
            f"--metric-for-best-model is {metric!r}, but {', '.join(MEASURED)} are measured: choose one of them."
        )
    if given.get("prediction_loss_only"):
        raise CommandError(
            "--prediction-loss-only leaves no accuracy to report and to choose the checkpoint by: leave it out."
        )
    if given.get("label_names") not in (None, ["labels"]):
        raise CommandError(
            f"--label-names {' '.join(given['label_names'])}: the models here read their labels as 'labels'; leave it "
            "out. The column of the data is named with --label-column."
        )
    for name, value in given.items():
        if isinstance(value, str) and value.lstrip().startswith("{"):
            _check_json(name, value)
    options = given.get("optim_args")
    if options and not all("=" in part for part in options.split(",")):
        raise CommandError(f"--optim-args must be pairs such as rank=4,scale=0.25, got {options!r}.")
    for name in NEEDED:
        if given.get(name) is False:
            raise CommandError(f"{flag(name)} false: this command always trains and measures; leave it out.")
    _check_rhythm(given)


def _check_json(name: str, value: str) -> None:
    try:
        json.loads(value)
    except (ValueError, RecursionError) as error:
        raise CommandError(f"{flag(name)} is {value!r}, which is not JSON: {error}.") from error


def _check_rhythm(given: Mapping[str, Any]) -> None:
    """Raise where a best checkpoint is wanted and nothing measures which one that is."""
    wanted = {"save_strategy": "best", "load_best_model_at_end": True}
    for name, value in wanted.items():
        if given.get(name) == value and given.get("eval_strategy") == "no":
            raise CommandError(
                f"{flag(name)} {str(value).lower()} needs evaluations, but --eval-strategy is no: choose epoch or "
                "steps there."
            )


def check_full_batches(arguments: LwALTrainingArguments, training: int, validation: int) -> None:
    """Raise where all rows of a split are left out, since they fill no batch.

    Args:
        arguments: of the training.
        training: number of its rows.
        validation: number of rows that it is measured on.
    """
    sizes = {"training": (training, arguments.train_batch_size), "validation": (validation, arguments.eval_batch_size)}
    for split, (rows, size) in sizes.items():
        if arguments.dataloader_drop_last and rows < size:
            raise CommandError(
                f"--dataloader-drop-last leaves out what does not fill a batch of {size}, and so all {rows} {split} "
                "rows: leave it out, or take smaller batches."
            )


def flag(name: str) -> str:
    """The flag of a field, as help shows it.

    >>> flag("max_steps")
    '--max-steps'
    """
    return spellings(name)[0]


def rehearse(arguments: LwALTrainingArguments) -> None:
    """Build reporters, optimizer, schedule and loaders for a model of one weight, as a training would.

    Raises:
        CommandError: one of them cannot be built; the message is that of the library which refused.
    """
    import torch
    from transformers import Trainer
    from transformers.utils import is_liger_kernel_available, logging

    from ..objectives import build_objective

    if arguments.use_liger_kernel and not is_liger_kernel_available():
        raise CommandError("--use-liger-kernel needs a package that is not installed: pip install liger-kernel")
    _check_compilation(arguments.torch_compile_mode)
    settings = arguments.resolve_lwal()
    build_objective(settings)
    if settings.label_method == "static_label" and settings.static_model is None:
        raise CommandError(
            "static_label needs --label-static-model: the folder or Hub name of a text model that embeds the names of "
            "the labels."
        )
    if arguments.deepspeed or arguments.fsdp:  # these take the whole model apart
        return
    trial, rows = copy(arguments), cast("Any", [{"x": 0.0}])
    state, verbosity = torch.random.get_rng_state(), logging.get_verbosity()
    logging.set_verbosity_error()  # the real one says it again
    try:
        with tempfile.TemporaryDirectory() as folder:
            for name, value in {"output_dir": folder, **_NOT_REHEARSED}.items():
                setattr(trial, name, value)
            trial.optim_target_modules = "all-linear" if arguments.optim_target_modules else None
            with _about(f"--report-to {' '.join(arguments.report_to)}" if arguments.report_to else "The settings"):
                trainer = Trainer(torch.nn.Linear(1, 1), trial, train_dataset=rows, eval_dataset=rows)
            with _about("The data loader's settings"):
                trainer.get_train_dataloader()
            options = f" with --optim-args {arguments.optim_args}" if arguments.optim_args else ""
            with _about(f"--optim {trial.optim.value}{options}"):
                trainer.create_optimizer()
            with _about(f"--lr-scheduler-type {arguments.lr_scheduler_type.value} with {_keywords(arguments)}"):
                trainer.create_scheduler(100, trainer.optimizer)
    finally:
        logging.set_verbosity(verbosity)
        torch.random.set_rng_state(state)


_NOT_REHEARSED = {
    "push_to_hub": False,
    "use_liger_kernel": False,
    "torch_compile": False,
    "label_smoothing_factor": 0.0,
    "load_best_model_at_end": False,
    "batch_eval_metrics": False,
    "remove_unused_columns": False,
    "train_sampling_strategy": "random",
}
"""Training arguments that need the real model or rows, or that reach out of this process."""


def _check_compilation(mode: str | None) -> None:
    """Raise for a way to compile that torch does not know, which shows at the first step."""
    if mode is not None:
        from torch._inductor import list_mode_options

        if mode not in (known := ["default", *list_mode_options()]):
            raise CommandError(f"--torch-compile-mode is {mode!r}: choose one of {', '.join(dict.fromkeys(known))}.")


def _keywords(arguments: LwALTrainingArguments) -> str:
    given = arguments.lr_scheduler_kwargs
    if isinstance(given, str):
        raise CommandError(f"--lr-scheduler-kwargs is {given!r}, but it must be JSON such as '{{\"power\": 2.0}}'.")
    return f"--lr-scheduler-kwargs '{json.dumps(given)}'" if given else "no --lr-scheduler-kwargs"


@contextmanager
def _about(what: str) -> Iterator[None]:
    """Turn what a library raises into a sentence that names the flags."""
    try:
        yield
    except (ImportError, RuntimeError, TypeError, ValueError, ArithmeticError, OSError) as error:
        raise CommandError(f"{what}: {reason(error).rstrip('.')}.") from error
