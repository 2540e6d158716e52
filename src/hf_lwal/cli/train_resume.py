"""Whether the checkpoint that ``hf-lwal train --resume`` finds belongs to the job at hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import CommandError

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedModel

    from .train_data import Rows

LABEL_TABLE = "encoder_config"
"""Setting that only the configuration of a model with label vectors has."""
REMEDY = "Start anew with --overwrite, or choose another --output-dir."


def in_order_of_checkpoint(rows: Rows, checkpoint: str) -> Rows:
    """Rows whose labels are numbered as in the checkpoint.

    Raises:
        CommandError: its labels are others, so what it learned is not about these.
    """
    names = checkpoint_names(checkpoint)
    if names is None or names == rows.names:
        return rows
    new, gone = (sorted(set(a) - set(b)) for a, b in ((rows.names, names), (names, rows.names)))
    if new or gone:
        parts = [
            f"{title} {', '.join(map(repr, part[:5]))}" for title, part in (("new:", new), ("gone:", gone)) if part
        ]
        raise CommandError(
            f"--resume: {checkpoint} was trained on {len(names)} labels and the data has {len(rows.names)}, not the "
            f"same ones ({'; '.join(parts)}). {REMEDY}"
        )
    place_of = {name: index for index, name in enumerate(names)}
    place = [place_of[name] for name in rows.names]
    test = None if rows.test is None else _renumbered(rows.test, place, names)
    train, validation = (_renumbered(split, place, names) for split in (rows.train, rows.validation))
    return replace(rows, train=train, validation=validation, test=test, names=names)


def _renumbered(rows: Dataset, place: list[int], names: list[str]) -> Dataset:
    from datasets import ClassLabel

    ids = [place[label] for label in rows["label"]]
    return rows.remove_columns("label").add_column("label", ids, feature=ClassLabel(names=names))


def checkpoint_names(checkpoint: str) -> list[str] | None:
    """Label names of a checkpoint in the order of their ids; None where it does not say, as adapters do not."""
    labels = _json(Path(checkpoint) / "config.json").get("id2label")
    return [labels[key] for key in sorted(labels, key=int)] if isinstance(labels, dict) else None


def check_same_model(checkpoint: str, model: PreTrainedModel) -> None:
    """Raise where the checkpoint holds another kind of model, or weights of another shape."""
    configs = [_json(Path(checkpoint) / "config.json"), model.config.to_dict()]
    if configs[0] and len({LABEL_TABLE in config for config in configs}) == 2:
        kinds_of_head = ["label vectors" if LABEL_TABLE in config else "a plain classifier" for config in configs]
        raise CommandError(
            f"--resume: {checkpoint} holds {kinds_of_head[0]} and this training is of {kinds_of_head[1]}: "
            f"--label-method differs. {REMEDY}"
        )
    kinds = [_kind(config) for config in configs]
    if None not in kinds and kinds[0] != kinds[1]:
        raise CommandError(f"--resume: {checkpoint} holds a model of type {kinds[0]}, --model is {kinds[1]}. {REMEDY}")
    wanted = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    for name, shape in _shapes(Path(checkpoint)).items():
        if name in wanted and wanted[name] != shape:
            raise CommandError(
                f"--resume: {name} of {checkpoint} has the shape {_times(shape)}, but with these settings it has "
                f"{_times(wanted[name])}; --model, --embedding-dim or --label-method differ from what it was trained "
                f"with. Give the same again, or start anew with --overwrite."
            )


def _kind(config: dict[str, Any]) -> str | None:
    return (config.get("encoder_config") or config).get("model_type")


def _times(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape)) or "of a number"


def _shapes(checkpoint: Path) -> dict[str, tuple[int, ...]]:
    """Shapes of the weights in a checkpoint's safetensors files, from their headers."""
    from ..modeling.stored_files import tensors_of

    shapes: dict[str, tuple[int, ...]] = {}
    for path in checkpoint.glob("model*.safetensors"):
        shapes |= tensors_of(path)
    return shapes


def logging_steps_of(checkpoint: str) -> int | None:
    """Steps between log entries of the training that wrote a checkpoint."""
    from ..training.checkpoints import STATE_FILE

    steps = _json(Path(checkpoint) / STATE_FILE).get("logging_steps")
    return steps if isinstance(steps, int) and steps > 0 else None


def _json(path: Path) -> dict[str, Any]:
    """What a JSON file of a checkpoint holds; nothing where there is none. Their wholeness was looked at before."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
