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

from ..metrics.running_time import running_times
from ..modeling.heads import find_head
from ..modeling.modeling_lwal import LwALPreTrainedModel
from ..objectives.stock import stock_task
from ..settings.applying import apply_config
from ..settings.training_args import LwALTrainingArguments
from ..training.trainer import LwALTrainer
from .comparison import embedded_model_path
from .datasets import load_data
from .frozen_regression import RegressionStart
from .grid import OPTIMIZERS, Cell, batch_rows
from .methods import OWN_FIELDS
from .models import build_model, model_rows, model_spec
from .peers import run_peer
from .rows import Rows
from .structure import structure_of

EVALUATION_ROWS = 256
"""Rows per batch when measuring."""


class CellTrainer(LwALTrainer):
    """`LwALTrainer` that keeps its curve, and can let the head learn faster than the rest.

    Args:
        head_rate: multiple of the learning rate for the head.
        on_accuracy: called with the step and the accuracy of every evaluation.
        **keywords: those of `LwALTrainer`.
    """

    def __init__(
        self, head_rate: float = 1.0, on_accuracy: Callable[[int, float], None] | None = None, **keywords: Any
    ) -> None:
        super().__init__(**keywords)
        self.head_rate = head_rate
        self.on_accuracy = on_accuracy
        self.curve: list[tuple[int, float]] = []
        self.f1_macro = math.nan

    def create_optimizer(self, model: torch.nn.Module | None = None) -> torch.optim.Optimizer:
        """The optimizer, with the head's parameters in groups of their own where they have a rate of their own."""
        optimizer = super().create_optimizer(model)
        if self.head_rate != 1.0:
            head = {id(parameter) for parameter in head_of(self.core_model).parameters()}
            for group in list(optimizer.param_groups):
                own = [parameter for parameter in group["params"] if id(parameter) in head]
                if own:
                    group["params"] = [parameter for parameter in group["params"] if id(parameter) not in head]
                    optimizer.add_param_group({**group, "params": own, "lr": self.head_rate * self.args.learning_rate})
        return optimizer

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Evaluate, and note the accuracy; work of the steps before, which is no evaluation's, is waited for first."""
        synchronize()
        numbers: dict[str, float] = super().evaluate(*args, **kwargs)
        self.curve.append((self.state.global_step, numbers["eval_accuracy"]))
        self.f1_macro = numbers["eval_f1_macro"]
        if self.on_accuracy is not None:
            self.on_accuracy(self.state.global_step, numbers["eval_accuracy"])
        return numbers


def head_of(model: PreTrainedModel) -> torch.nn.Module:
    """The last linear layer of a stock classifier or of an LwAL model's encoder."""
    if isinstance(model, LwALPreTrainedModel):
        return model.encoder.get_submodule(str(model.config.head_name))
    head = find_head(model.config, stock_task(model))
    if head is None:
        raise ValueError(f"{type(model).__name__} has no single linear head, so head_rate has nothing to act on.")
    return model.get_submodule(head.name)


def synchronize() -> None:
    """Wait until the accelerator, if any, has done what it was given."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()


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
    facts: Mapping[str, float]
    if "peer" in cell.method:
        curve, f1_macro, times, facts = run_peer(cell, data_root, on_accuracy)
    else:
        limits = (cell.train_rows, cell.test_rows, cell.from_config, *cell.draw)
        rows = model_rows(cell.model, cell.dataset, data_root, *limits)
        model = build_model(cell.model, rows, data.names, cell.seed, cell.from_config)
        with tempfile.TemporaryDirectory() as folder:
            trainer = build_trainer(cell, model, rows, size, folder, on_accuracy)
            trainer.train()
            times = running_times(trainer.state.log_history)
            if trainer.curve[-1][0] != trainer.state.global_step:
                trainer.evaluate()
        curve, f1_macro, facts = trainer.curve, trainer.f1_macro, strength_of(trainer.state.log_history)
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
) -> CellTrainer:
    """Build the trainer of a cell.

    Args:
        cell: its settings.
        model: a fresh stock classifier.
        rows: what it reads.
        size: rows per optimizer step.
        folder: an empty folder, which stays empty.
        on_accuracy: called with the step and the accuracy of every evaluation.
    """
    own = {name: value for name, value in cell.method.items() if name in OWN_FIELDS}
    arguments = training_arguments(cell, len(rows.train), size, folder)
    trainer = CellTrainer(
        head_rate=float(own.get("head_rate", 1.0)),
        objective=RegressionStart() if own.get("head_start") == "regression" else None,
        on_accuracy=on_accuracy,
        model=model,
        args=arguments,
        train_dataset=rows.train,
        eval_dataset=rows.test,
        data_collator=rows.collator,
    )
    trainer.remove_callback(PrinterCallback)
    if "embedding_dim" in own:
        apply_config(trainer.model, {}, own["embedding_dim"])
    return trainer


def training_arguments(cell: Cell, train_rows: int, size: int, folder: str) -> LwALTrainingArguments:
    """Arguments of a cell.

    Args:
        cell: its settings.
        train_rows: rows to learn from.
        size: rows per optimizer step.
        folder: the trainer's folder.
    """
    per_epoch = math.ceil(train_rows / size)
    steps = cell.steps or int(cell.epochs or 1) * per_epoch
    fields = {name: value for name, value in cell.method.items() if name not in (*OWN_FIELDS, "name")}
    chosen: Mapping[str, Any] = {
        "max_steps": steps,
        "per_device_train_batch_size": size,
        "per_device_eval_batch_size": EVALUATION_ROWS,
        "learning_rate": cell.learning_rate,
        "eval_strategy": "steps",
        "eval_steps": math.ceil(steps / (cell.evaluations or int(cell.epochs or 1))),
        "eval_on_start": True,
        "save_strategy": "no",
        "logging_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "remove_unused_columns": False,
        "dataloader_pin_memory": torch.accelerator.is_available(),  # PyTorch warns about it on a CPU alone
        "seed": cell.seed,
        "data_seed": cell.seed,
        **OPTIMIZERS[cell.optimizer],
        **_static_model(fields),
        **fields,
    }
    return LwALTrainingArguments(folder, **chosen)


def _static_model(fields: Mapping[str, Any]) -> dict[str, Any]:
    """MiniLM, which a package carries, where a method needs a text model for class names and names none."""
    wanted = "static_label" in (fields.get("label_method"), str(fields.get("lwal_preset")).removeprefix("paper:"))
    return {"label_static_model": embedded_model_path()} if wanted else {}
