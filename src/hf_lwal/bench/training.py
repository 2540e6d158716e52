"""One cell of a grid: train with `LwALTrainer`, and say what came of it."""

from __future__ import annotations

import math
import os
import platform
import tempfile
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PrinterCallback

from ..settings.applying import apply_config
from ..settings.training_args import LwALTrainingArguments
from .comparison import embedded_model_path
from .datasets import load_data
from .grid import OPTIMIZERS, Cell, batch_rows
from .models import build_model, model_rows, model_spec
from .peers import run_peer
from .rows import Rows
from .structure import structure_of
from .trainers import ComparisonTrainer, comparison_arguments, comparison_trainer


def run_cell(
    cell: Cell,
    data_root: str | None,
    on_accuracy: Callable[[int, float], None] | None = None,
    vectors_folder: Path | None = None,
) -> dict[str, Any]:
    """Train one cell; nothing is written but label vectors, if asked for.

    Args:
        cell: its settings.
        data_root: folder with one folder per data set, or None.
        on_accuracy: called with the step and the accuracy of every evaluation.
        vectors_folder: where to keep the label vectors; None neither keeps nor measures them.

    Returns:
        What its line in the file of results holds besides key and settings; accuracies in 0…1.
    """
    data = load_data(cell.dataset, data_root, cell.train_rows, cell.test_rows, *cell.draw)
    size = batch_rows(cell.batch_size, len(data.names))
    structure = {}
    facts: dict[str, float]
    if "peer" in cell.method:
        curve, f1_macro, times, facts = run_peer(cell, data_root, on_accuracy)
    else:
        limits = (cell.train_rows, cell.test_rows, cell.from_config, *cell.draw)
        rows = model_rows(cell.model, cell.dataset, data_root, *limits)
        model = build_model(cell.model, rows, data.names, cell.seed, cell.from_config)
        with tempfile.TemporaryDirectory() as folder:
            trainer = build_trainer(cell, model, rows, size, folder, on_accuracy)
            times = trainer.train_to_end()
        curve, f1_macro, facts = trainer.curve, trainer.f1_macro, strength_of(trainer.state.log_history)
        if trainer.calibration_error is not None:
            facts["calibration_error"] = round(trainer.calibration_error, 6)
        if vectors_folder is not None:
            structure = {"structure": structure_of(cell, trainer, rows, data, data_root, vectors_folder)}
    spec = model_spec(cell.model)
    return {
        "curve": [[step, round(accuracy, 6)] for step, accuracy in curve],
        "f1_macro": round(f1_macro, 6),
        "seconds": {
            "training": 0.0 if cell.method.get("learning_rate") == 0.0 else round(times.training or 0.0, 3),
            "with_evaluation": round(times.whole or 0.0, 3),
            "start": round(times.start or 0.0, 3),
        },
        "start_samples": times.start_samples or 0,
        "rows": {"train": len(data.train), "test": len(data.test)},
        "labels": len(data.names),
        "batch_rows": size,
        "weights": "pretrained" if spec.pretrained and not cell.from_config else "random",
        "versions": {name: version(name) for name in ("torch", "transformers")} | {"hf_lwal": own_version()},
        "machine": machine(),
        **facts,
        **structure,
    }


def strength_of(log: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The ``strength`` that cross-validation chose for a start as a regression; nothing for other starts."""
    found = [entry["start_strength"] for entry in log if "start_strength" in entry]
    return {"strength": found[0]} if found else {}


def own_version() -> str:
    """This library's version."""
    from .. import __version__

    return __version__


def machine() -> dict[str, Any]:
    """Processor or GPU and cores, and nothing that would tell whose machine it is."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {"device": gpu or platform.machine(), "cores": os.cpu_count(), "threads": torch.get_num_threads()}


def build_trainer(
    cell: Cell,
    model: PreTrainedModel,
    rows: Rows,
    size: int,
    folder: str,
    on_accuracy: Callable[[int, float], None] | None = None,
) -> ComparisonTrainer:
    """Build the trainer of a cell, which takes ``size`` samples per step and leaves the folder empty."""
    trainer = comparison_trainer(
        model,
        training_arguments(cell, len(rows.train), size, folder),
        cell.method,
        on_accuracy=on_accuracy,
        train_dataset=rows.train,
        eval_dataset=rows.test,
        data_collator=rows.collator,
    )
    trainer.remove_callback(PrinterCallback)
    if "embedding_dim" in cell.method:
        apply_config(trainer.model, {}, cell.method["embedding_dim"])
    return trainer


def training_arguments(cell: Cell, train_rows: int, size: int, folder: str) -> LwALTrainingArguments:
    """Training arguments of a cell with ``size`` samples per step."""
    epochs = int(cell.epochs or 1)
    steps = cell.steps or epochs * math.ceil(train_rows / size)
    more = dict(OPTIMIZERS[cell.optimizer])
    if "static_label" in (cell.method.get("label_method"), str(cell.method.get("lwal_preset")).removeprefix("paper:")):
        more["label_static_model"] = embedded_model_path()  # it needs a text model for the names of the labels
    return comparison_arguments(
        folder,
        cell.method,
        steps=steps,
        batch_size=size,
        learning_rate=cell.learning_rate,
        evaluations=cell.evaluations or epochs,
        seed=cell.seed,
        disable_tqdm=True,
        remove_unused_columns=False,
        **more,
    )
