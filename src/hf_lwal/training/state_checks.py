"""Whether the states in a checkpoint are those that were saved, and such that a training can go on from them."""

from __future__ import annotations

import json
import math
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerState

from ..modeling.files import write_text_atomically
from ..modeling.stored_files import checksum_of_file

CHECKSUMS = "checksums.json"
_STATES = ("*.safetensors", "*.pt", "*.pth", "*.bin")
_NEVER_READ = ("training_args.bin",)
_MOMENTS = {"step", "exp_avg", "exp_avg_sq"}
_WHOLE, _NUMBER = (int,), (int, float)
_AT_LEAST: dict[str, tuple[tuple[type, ...], float]] = {
    "global_step": (_WHOLE, 0),
    "max_steps": (_WHOLE, -1),
    "num_train_epochs": (_WHOLE, 0),
    "num_input_tokens_seen": (_WHOLE, 0),
    "train_batch_size": (_WHOLE, 1),
    "best_global_step": (_WHOLE, 0),
    "best_metric": (_NUMBER, -math.inf),
    **dict.fromkeys(("epoch", "total_flos", "logging_steps", "eval_steps", "save_steps"), (_NUMBER, 0)),
}
"""Entry of ``trainer_state.json`` → its types and its least value; all may be null but the first."""


def write_checksums(folder: str | os.PathLike[str], step: int) -> None:
    """Write beside the states of a training how to tell them from others.

    Args:
        folder: the checkpoint.
        step: optimizer steps that the training had done.
    """
    files = {path.name: checksum_of_file(path) for path in _states(Path(folder))}
    write_text_atomically(Path(folder, CHECKSUMS), json.dumps({"global_step": step, "files": files}, indent=2) + "\n")


def _states(folder: Path) -> list[Path]:
    return sorted(
        path for pattern in _STATES for path in folder.glob(pattern) if path.is_file() and path.name not in _NEVER_READ
    )


def changed_state(folder: Path, recorded: Any, state: dict[str, Any]) -> str | None:
    """Which state is not the one that was saved, as half a sentence; None where all are.

    Args:
        folder: the checkpoint.
        recorded: content of its `CHECKSUMS`; None where there is none, as in checkpoints of earlier versions.
        state: content of its ``trainer_state.json``.
    """
    if not isinstance(recorded, dict) or not isinstance(recorded.get("files"), dict):
        return None
    if recorded.get("global_step") != state["global_step"]:
        return (
            f"its states are those of step {recorded.get('global_step')}, and its trainer_state.json is that of step "
            f"{state['global_step']}"
        )
    for path in _states(folder):
        if recorded["files"].get(path.name, None) not in (None, checksum_of_file(path)):
            return f"{path.name} is not the one that was saved there"
    return None


def state_fault(state: Any) -> str | None:
    """What is wrong in the content of a ``trainer_state.json``, in a few words; None where nothing is."""
    if not isinstance(state, dict) or not isinstance(state.get("global_step"), int):
        return "it has no global_step"
    if unknown := sorted(state.keys() - {entry.name for entry in fields(TrainerState)}):
        return f"transformers does not know its {unknown[0]!r}"
    history = state.get("log_history")
    if not isinstance(history, list) or not all(isinstance(entry, dict) for entry in history):
        return "its log_history is no list of entries"
    if not isinstance(state.get("stateful_callbacks") or {}, dict):
        return "its stateful_callbacks are none"
    for name, (kinds, least) in _AT_LEAST.items():
        value: Any = state.get(name)
        if value is not None and (type(value) not in kinds or value < least):
            return f"its {name} is {str(value)[:40]!r}"
    return None


def check_states(optimizer: Any, scheduler: Any) -> None:
    """Raise ValueError where loaded states hold what no optimizer or schedule writes, on which a step would fail.

    Args:
        optimizer: with the state of a checkpoint; those of other kinds than torch's are not looked into.
        scheduler: the same of the learning rate.
    """
    for group in getattr(optimizer, "param_groups", ()):
        for name, value in group.items():
            if isinstance(value, float) and math.isnan(value):
                raise ValueError(f"the {name} of the optimizer is {value}")
        known: dict[bool, set[str]] = {
            True: set(),
            False: set(),
        }  # some keep other moments of vectors than of matrices
        states = {parameter: optimizer.state.get(parameter) or {} for parameter in group["params"]}
        for parameter, state in states.items():
            known[parameter.dim() > 1] |= _MOMENTS & state.keys()
        for parameter, state in states.items():
            if state and (missing := known[parameter.dim() > 1] - state.keys()):
                raise ValueError(f"{min(missing)} of a weight of the shape {tuple(parameter.shape)} is missing")
            for name, value in state.items():
                _check_moment(name, value, parameter)
    if isinstance(scheduler, torch.optim.lr_scheduler.LRScheduler) or hasattr(scheduler, "scheduler"):
        schedule = getattr(scheduler, "scheduler", scheduler)
        rates = [getattr(schedule, name, None) for name in ("_last_lr", "base_lrs")]
        numbers = [getattr(schedule, name, 0) for name in ("last_epoch", "_step_count")]
        if not all(isinstance(number, int) and number >= 0 for number in numbers):
            raise ValueError(f"the schedule has done {numbers[0]!r} steps")
        if any(rate is not None and not _are_rates(rate) for rate in rates):
            raise ValueError(f"the rates of the schedule are {rates}")


def _are_rates(rates: Any) -> bool:
    known = (int, float, Tensor)
    return isinstance(rates, list) and all(
        type(rate) is not bool and isinstance(rate, known) and 0 <= float(rate) < math.inf for rate in rates
    )


def _check_moment(name: str, value: Any, parameter: Tensor) -> None:
    moments = name.startswith("exp_avg") and not name.startswith(("exp_avg_sq_row", "exp_avg_sq_col"))
    if moments and (not isinstance(value, Tensor) or value.shape != parameter.shape):
        found = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"{name} of a weight of the shape {tuple(parameter.shape)} is {found}")
    if isinstance(value, Tensor) and value.is_floating_point() and not bool(value.isfinite().all()):
        raise ValueError(f"{name} of a weight of the shape {tuple(parameter.shape)} is not finite")
    if name == "step" and not (isinstance(value, (int, float, Tensor)) and float(value) >= 0):
        raise ValueError(f"a weight has done {value} steps")
    if name.startswith("exp_avg_sq") and type(value) is Tensor and bool((value < 0).any()):
        raise ValueError(f"{name} of a weight of the shape {tuple(parameter.shape)} is negative")
