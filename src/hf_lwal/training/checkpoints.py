"""Which checkpoint a training can resume from: the newest one that was written to its end, of the same labels."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from ..modeling.hub_code import CODE_FOLDER
from ..modeling.stored_files import tensors_of
from .state_checks import CHECKSUMS, changed_state, state_fault

logger = logging.getLogger(__name__)

STATE_FILE = "trainer_state.json"
"""The file that transformers' Trainer writes last."""

_NAME = re.compile(r"checkpoint-(\d+)")
_READ_AS_JSON = (STATE_FILE, "config.json", "adapter_config.json")
_FILES = (".bin", ".json", ".pt", ".pth", ".safetensors")
_WEIGHTS = re.compile(r"(adapter_|pytorch_)?model.*\.(safetensors|bin)")
_TABLE = [
    f"classifier.{name}"
    for name in ("label_vectors", "class_features", "pending_sums", "counts", "step", "log_scale_bias", "offset_bias")
]
_GENERIC = re.compile(r"LABEL_\d+")
"""What transformers calls labels that nobody named."""


def checkpoint_to_resume(wanted: str | os.PathLike[str] | bool | None, output_dir: str, processes: int) -> str | None:
    """Folder for ``Trainer.train(resume_from_checkpoint=...)``, or None to start anew.

    Args:
        wanted: what the user passed: a folder, True for the newest complete checkpoint, or None or False.
        output_dir: where True looks.
        processes: how many processes train now; another number than before is a warning, since the rows are then
            dealt out differently.

    Raises:
        ValueError: the folder is incomplete, or there is no complete one.
    """
    if not wanted:
        return None
    if wanted is True:
        chosen = last_complete_checkpoint(output_dir)
        if chosen is None:
            raise ValueError(
                f"{output_dir} has no complete checkpoint to resume from: leave resume_from_checkpoint out to start "
                "anew."
            )
    else:
        chosen, fault = os.fspath(wanted), what_is_missing(Path(wanted))
        if fault is not None:
            raise ValueError(
                f"{chosen} cannot be resumed from, because {fault}: pass resume_from_checkpoint=True for the newest "
                "complete checkpoint."
            )
    _say_what_starts_anew(Path(chosen))
    before = _processes(Path(chosen))
    if before not in (None, processes):
        logger.warning(
            "%s was written by %d processes, but %d train now: the label table carries over, but rows and dropout "
            "fall differently, so the run is not the one that was interrupted.",
            chosen,
            before,
            processes,
        )
    return chosen


def _say_what_starts_anew(checkpoint: Path) -> None:
    """Warn where a checkpoint lacks a state that transformers then quietly starts anew."""
    names = {path.name for path in checkpoint.glob("*")}
    states = {
        "optimizer": any("optimizer" in name or name.startswith("global_step") for name in names),
        "learning rate schedule": "scheduler.pt" in names or any(name.startswith("global_step") for name in names),
        "random generators": any(name.startswith("rng_state") for name in names),
    }
    missing = [title for title, there in states.items() if not there]
    if missing:
        logger.warning(
            "%s does not hold the state of the %s, which starts anew: the run is not the one that was interrupted. "
            "Resume from a checkpoint that is whole to continue that one.",
            checkpoint,
            " and the ".join(missing),
        )


def labels_of_checkpoint(checkpoint: str | os.PathLike[str]) -> list[str] | None:
    """Names of the labels that a checkpoint was trained on, by their ids; None where no file of it says so."""
    config = _json(Path(checkpoint, "config.json"))
    names = config.get("id2label") if isinstance(config, dict) else None
    if isinstance(names, dict) and all(str(index).isdecimal() for index in names):
        return [str(names[index]) for index in sorted(names, key=int)]
    table = _json(Path(checkpoint, "label_table.json"))  # an adapter has no configuration of the model
    rows = table.get("labels") if isinstance(table, dict) else None
    if isinstance(rows, list) and all(isinstance(row, dict) and "name" in row for row in rows):
        return [str(row["name"]) for row in rows]
    return None


def check_labels_of_checkpoint(checkpoint: str | os.PathLike[str], names: Mapping[int, str] | Iterable[str]) -> None:
    """Raise unless a checkpoint was trained on these labels, under the same ids.

    Names that transformers made up (``LABEL_0``) tell nothing, so there the number of labels decides.

    Args:
        checkpoint: its folder.
        names: id to name of the labels that training goes on with, or the names by their ids.

    Raises:
        ValueError: other labels, or the same ones in another order.
    """
    before = labels_of_checkpoint(checkpoint)
    now = [names[index] for index in sorted(names)] if isinstance(names, Mapping) else list(names)
    if before is None or before == now:
        return
    if len(before) == len(now) and any(all(map(_GENERIC.fullmatch, some)) for some in (before, now)):
        return
    if sorted(before) == sorted(now):
        index = next(index for index, name in enumerate(before) if name != now[index])
        raise ValueError(
            f"{os.fspath(checkpoint)} numbers the labels otherwise: {index} is {before[index]!r} there and "
            f"{now[index]!r} here, so its label vectors would get wrong names. Number them as the checkpoint does, "
            "with id2label of its config.json for the model and "
            "dataset.align_labels_with_mapping(model.config.label2id, 'label') for the data."
        )
    new, gone = ([name for name in some if name not in others] for some, others in ((now, before), (before, now)))
    parts = [f"{title} {_listed(part)}" for title, part in (("new:", new), ("gone:", gone)) if part]
    raise ValueError(
        f"{os.fspath(checkpoint)} was trained on {len(before)} labels, not on these {len(now)} "
        f"({'; '.join(parts)}): leave resume_from_checkpoint out and use another output_dir to start anew, or load "
        "the checkpoint, change its labels with add_label, remove_label or rename_label, and train that model."
    )


def check_weights_of_checkpoint(checkpoint: str | os.PathLike[str], weights: Mapping[str, Tensor]) -> None:
    """Raise unless the weights in a checkpoint have the model's shapes, and its label table is whole.

    Args:
        checkpoint: its folder; adapters, shards by rank and files of torch are not looked into.
        weights: state of the model that training goes on with.

    Raises:
        ValueError: a weight of another shape, a tensor of the label table that is missing, or a label table for a
            model that has none.
    """
    found: dict[str, tuple[int, ...]] = {}
    for path in sorted(Path(checkpoint).glob("model*.safetensors")):
        found |= tensors_of(path)
    for name, shape in found.items():
        if name in weights and tuple(weights[name].shape) != shape:
            raise ValueError(
                f"{name} has the shape {list(shape)} in {os.fspath(checkpoint)} and {list(weights[name].shape)} in "
                "this model: build the model as it was then (its number of labels, embedding_dim and settings are in "
                "the checkpoint's config.json), or start anew in another output_dir."
            )
    if "classifier.label_vectors" not in weights:
        if "classifier.label_vectors" in found:
            raise ValueError(
                f"{os.fspath(checkpoint)} holds a model with a label table, but the model of this training has none: "
                "train with label_method='lwal', or start anew in another output_dir."
            )
        return
    if not found:
        return
    missing = sorted(name for name in _TABLE if name in weights and name not in found)
    if missing:
        raise ValueError(
            f"{os.fspath(checkpoint)} lacks {', '.join(missing)}, without which the label table is not the one that "
            "was trained: resume from another checkpoint, or start anew in another output_dir."
        )


def _listed(names: list[str]) -> str:
    return ", ".join(map(repr, names[:5])) + (", …" if len(names) > 5 else "")


def last_complete_checkpoint(output_dir: str | os.PathLike[str]) -> str | None:
    """The newest ``checkpoint-<step>`` in ``output_dir`` that was written to its end, or None.

    A process that is killed while it saves leaves a checkpoint that transformers' ``get_last_checkpoint`` picks and
    then fails on, or half of which it silently ignores. Each one that is passed over is named in the log.
    """
    found = [(int(match[1]), path) for path in Path(output_dir).glob("*") if (match := _NAME.fullmatch(path.name))]
    for _, path in sorted(found, reverse=True):
        fault = what_is_missing(path)
        if fault is None:
            return str(path)
        logger.warning("Skipped %s, because %s: its writing was cut off.", path, fault)
    return None


def what_is_missing(checkpoint: Path) -> str | None:
    """What is wrong with a checkpoint folder, as half a sentence; None when it is complete.

    Of large files only the ends are read. Optimizer and random state may both be absent (``save_only_model``).
    """
    names = {path.name for path in checkpoint.glob("*")}
    if STATE_FILE not in names:
        return f"{STATE_FILE} is missing"
    for path in sorted(checkpoint.rglob("*")):
        if path.is_file() and _is_cut_off(path):
            return f"{path.name} is cut off or damaged"
        if path.is_dir() and path.suffix in _FILES:
            return f"{path.name} is a folder"
    state = _json(checkpoint / STATE_FILE)
    if (fault := state_fault(state)) is not None:
        return f"{STATE_FILE} holds no state of a training ({fault})"
    missing = sorted(shard for path in checkpoint.glob("*.index.json") for shard in _shards(path) - names)
    if missing:
        return f"{missing[0]} is missing"
    if not any(_WEIGHTS.fullmatch(name) or (checkpoint / name).is_dir() for name in names - {CODE_FOLDER}):
        return "the weights are missing"
    has_optimizer = any("optimizer" in name or name.startswith("global_step") for name in names)
    if not has_optimizer and any(name.startswith("rng_state") for name in names):
        return "the state of the optimizer is missing"
    return changed_state(checkpoint, _json(checkpoint / CHECKSUMS), state)


def forget_state_file(checkpoint: str | os.PathLike[str]) -> None:
    """Mark a checkpoint that is about to be written over as incomplete: it would be half old and half new."""
    for name in (STATE_FILE, CHECKSUMS):
        Path(checkpoint, name).unlink(missing_ok=True)


def remove_half(checkpoint: str | os.PathLike[str]) -> None:
    """Delete a checkpoint whose writing failed, unless it was whole by then."""
    if not Path(checkpoint, STATE_FILE).exists():
        shutil.rmtree(checkpoint, ignore_errors=True)


def what_is_left(output_dir: str | os.PathLike[str]) -> str:
    """Sentence that says from which checkpoint a training that ended early can go on."""
    last = last_complete_checkpoint(output_dir)
    if last is None:
        return f"No checkpoint in {os.fspath(output_dir)} is complete, so there is none to resume from."
    return f"The last complete checkpoint is {last}: resume_from_checkpoint=True continues from it."


def _is_cut_off(path: Path) -> bool:
    if path.suffix == ".safetensors":
        try:
            tensors_of(path)
        except OSError:
            return True
        return False
    if path.suffix in (".pt", ".pth"):
        return not zipfile.is_zipfile(path)  # torch.save writes a zip archive, whose directory is at its end
    return (path.name in _READ_AS_JSON or path.name.endswith(".index.json")) and not isinstance(_json(path), dict)


def _shards(index: Path) -> set[str]:
    """Names of the files that a weight index lists."""
    shards = _json(index).get("weight_map")
    return set(map(str, shards.values())) if isinstance(shards, dict) else {f"the weight_map of {index.name}"}


def _json(path: Path) -> Any:
    """What a JSON file holds; None where it holds none, or is not there."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, FileNotFoundError, RecursionError):
        return None


def _processes(checkpoint: Path) -> int | None:
    """How many processes wrote a checkpoint, from its random states; None when it has none."""
    if (checkpoint / "rng_state.pth").exists():
        return 1
    return len(list(checkpoint.glob("rng_state_*.pth"))) or None
