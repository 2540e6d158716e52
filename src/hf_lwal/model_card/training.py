"""What a card says about the training: curve, times, settings, rows; from logs, arguments and data sets."""

from __future__ import annotations

import json
import os
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import numpy as np
from transformers import TrainingArguments

from ..data.labels import label_column
from ..metrics.running_time import running_times
from ..modeling.functional import IGNORE_INDEX
from .facts import SplitFacts
from .samples import pixels_of, seconds_of

STATE_FILE = "trainer_state.json"
NO_MEASURES = ("runtime", "samples_per_second", "steps_per_second", "refresh_seconds", "model_preparation_time")
SHAPE_THE_WEIGHTS = (
    *("learning_rate", "per_device_train_batch_size", "gradient_accumulation_steps", "num_train_epochs"),
    *("max_steps", "lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps", "weight_decay"),
    *("optim", "optim_args", "adam_beta1", "adam_beta2", "adam_epsilon", "max_grad_norm", "label_smoothing_factor"),
    *("neftune_noise_alpha", "train_sampling_strategy", "dataloader_drop_last", "bf16", "fp16", "tf32"),
    *("gradient_checkpointing", "torch_compile", "load_best_model_at_end", "metric_for_best_model"),
    *("greater_is_better", "seed", "data_seed"),
)
"""Arguments of transformers that a card names. A list of these and no others: the rest are paths, tokens and logs."""

STATISTICS_ROWS = 1000


def history_of(log: list[dict[str, Any]], best_step: int | None = None) -> list[dict[str, float]]:
    """Measurements in the order of the steps, one entry per step.

    Args:
        log: ``state.log_history`` of a trainer.
        best_step: step whose weights were loaded again at the end, which measurements after the training belong to.

    >>> history_of([{"loss": 2.0, "step": 5}, {"eval_accuracy": 0.5, "eval_runtime": 1.0, "epoch": 1, "step": 5}])
    [{'step': 5, 'epoch': 1.0, 'train_loss': 2.0, 'accuracy': 0.5}]
    """
    found: dict[int, dict[str, float]] = {}
    train_loss, loaded_step = None, None
    for entry in log:
        train_loss = entry.get("loss", train_loss)
        loaded_step = best_step if "train_runtime" in entry else loaded_step
        measured = _measures(entry, "eval_")
        if not measured or "step" not in entry:
            continue
        if loaded_step is not None:
            found.setdefault(loaded_step, {"step": loaded_step}).update(measured)
            continue
        at_step = found.setdefault(int(entry["step"]), {"step": int(entry["step"])})
        at_step |= {"epoch": float(entry["epoch"])} if entry.get("epoch") is not None else {}
        at_step |= {"train_loss": float(train_loss)} if train_loss is not None else {}
        at_step |= measured
    return [found[step] for step in sorted(found)]


def test_of(log: list[dict[str, Any]]) -> dict[str, float]:
    """Metrics of the last measurement with ``metric_key_prefix="test"``."""
    measured = [found for entry in log if (found := _measures(entry, "test_"))]
    return measured[-1] if measured else {}


def _measures(entry: dict[str, Any], prefix: str) -> dict[str, float]:
    return {
        name.removeprefix(prefix): float(value)
        for name, value in entry.items()
        if name.startswith(prefix) and not name.endswith(NO_MEASURES) and isinstance(value, (int, float))
    }


def times_of(log: list[dict[str, Any]]) -> dict[str, float | int | None]:
    """Rows and seconds of the start pass, seconds of training and of the evaluations in it; None where not logged."""
    times = running_times(log)
    return {
        "start_rows": times.start_samples,
        "start_seconds": times.start,
        "train_seconds": None if times.training is None else round(times.training, 1),
        "evaluation_seconds": round(times.evaluation, 1) or None,
    }


def settings_of(args: Any) -> tuple[dict[str, Any], list[str]]:
    """Arguments that shape the weights, and the names of those that differ from their default.

    Args:
        args: training arguments of any class; fields that transformers does not have are the label method's.
    """
    of_transformers = {entry.name for entry in fields(TrainingArguments)}
    settings: dict[str, Any] = {}
    changed = []
    for entry in fields(args):
        value = getattr(args, entry.name)
        ours = entry.name.startswith(("lwal_", "label_")) and entry.name not in of_transformers
        known = (ours and entry.name != "lwal_card_samples") or entry.name in SHAPE_THE_WEIGHTS
        if not known or value is None or _is_path(value) or _follows(entry.name, args):
            continue
        value = getattr(value, "value", value)
        default = entry.default_factory() if entry.default_factory is not MISSING else entry.default
        default = getattr(default, "value", default)
        settings[entry.name] = value if isinstance(value, (bool, int, float, str)) else str(value)
        if value != default and not (value is False and default is None):
            changed.append(entry.name)
    return settings, changed


def _is_path(value: Any) -> bool:
    return isinstance(value, str) and (os.path.exists(value) or os.path.isabs(value) or value.startswith("~"))


def _follows(name: str, args: Any) -> bool:
    """Whether a field was filled from others after construction, so that its value says nothing new."""
    filled = name in ("metric_for_best_model", "greater_is_better") and not args.load_best_model_at_end
    return filled or (name == "num_train_epochs" and args.max_steps > 0)


def split_facts(dataset: Any, processing_class: Any = None) -> SplitFacts | None:
    """Facts about a data set, or None without one or with several; its samples are left out.

    Args:
        dataset: anything that a trainer takes.
        processing_class: a feature extractor knows how fast waves are.
    """
    if dataset is None or isinstance(dataset, dict):
        return None
    rows = len(dataset) if hasattr(dataset, "__len__") else None
    labels = label_column(dataset)
    split = getattr(dataset, "split", None)
    return SplitFacts(
        rows=rows,
        columns=list(getattr(dataset, "column_names", None) or []),
        types={name: type_name(feature) for name, feature in (getattr(dataset, "features", None) or {}).items()},
        per_label=_per_label(labels) if labels is not None else None,
        tokens=_tokens(dataset),
        pixels=pixels_of(dataset),
        seconds=seconds_of(dataset, getattr(processing_class, "sampling_rate", None)),
        split=str(split) if split is not None else None,
    )


def type_name(feature: Any) -> str:
    """What a column of a `datasets.Dataset` holds, in a word or two."""
    kind = type(feature).__name__.lower()
    if hasattr(feature, "feature"):
        return f"{kind} of {type_name(feature.feature)}"
    return str(feature.dtype) if kind == "value" else kind


def _per_label(labels: Any) -> tuple[int, float, int] | None:
    values = [label for label in labels if label is not None and label != IGNORE_INDEX]
    if not values:
        return None
    counts = np.unique(np.asarray(values), return_counts=True)[1]
    return int(counts.min()), float(np.median(counts)), int(counts.max())


def _tokens(dataset: Any) -> tuple[int, float, int] | None:
    if "input_ids" not in (getattr(dataset, "column_names", None) or []) or not hasattr(dataset, "select"):
        return None
    lengths = [len(ids) for ids in dataset.select(range(min(len(dataset), STATISTICS_ROWS)))["input_ids"]]
    return (min(lengths), float(np.mean(lengths)), max(lengths)) if lengths else None


def read_state(folder: Path) -> dict[str, Any] | None:
    """Step and log of the training from a trainer's ``trainer_state.json``; None without one that can be read."""
    try:
        state = json.loads((folder / STATE_FILE).read_text(encoding="utf-8"))
        return {"global_step": int(state["global_step"]), "log_history": list(state["log_history"])}
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
