"""Train a tiny model and keep everything that two trainings can be compared by; for tests and benchmarks."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from datasets import Dataset
from tiny_models import tiny_config
from torch import Tensor, nn
from toy import separable_images, separable_text
from transformers import (
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
    PreTrainedModel,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    set_seed,
)

from hf_lwal import AutoModelForLwALClassification, LwALTrainer, LwALTrainingArguments

LABELS = 5
WORLD_SIZE = int(os.environ.get("WORLD_SIZE", "1"))
"""Processes of this run, as torchrun tells them."""
IMAGE_MODELS = ("vit", "convnext", "resnet")
WIDE = {"initializer_range": 0.2}
"""Spread of the weights at which the features of these models tell classes apart; with less, the calibrated scale is
so steep that a training amplifies the rounding of its first step."""
OVERRIDES: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("bert", "distilbert", "roberta", "vit"), WIDE),
    "convnext": {**WIDE, "layer_scale_init_value": 1.0},
}
"""Changes to the tiny configs."""
METHODS: dict[str, dict[str, Any]] = {
    "default": {},
    "paper": {"lwal_preset": "paper"},
    "paper, exact accumulation": {"lwal_preset": "paper", "lwal_exact_accumulation": True},
    "paper, repel 10": {"lwal_preset": "paper:lwal10+rpl"},
    "one_hot": {"label_method": "one_hot"},
    "one_hot from class means": {"label_method": "one_hot", "lwal_init": "class_means"},
}
"""Name -> training arguments."""


class Trajectory(NamedTuple):
    """What a training left behind.

    Attributes:
        tensors: name -> tensor: "loss" (steps,); "gradient" of the first step, as one vector since some of its parts
            are zero but for rounding (biases of attention keys, the head's bias); "logits" (N, C) of test rows;
            "weight ...", all of the state dict at the end, the label table included.
        checksums: of the label table after the start pass and at every save; one-hot trainings have none.
        moved: largest change of a weight, to see that anything was trained.
    """

    tensors: dict[str, Tensor]
    checksums: dict[str, str]
    moved: float


class Witness(TrainerCallback):
    """Notes the gradient of the first step, and the label table after the start pass and at every save."""

    def __init__(self) -> None:
        self.gradient: Tensor | None = None
        self.checksums: dict[str, str] = {}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Runs after the start pass when it was added to the trainer last."""
        self._note("start", kwargs["model"])

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Keep the gradient that the first optimizer step uses, equal on all ranks."""
        if self.gradient is None:
            gradients = [part.grad for part in kwargs["model"].parameters() if part.grad is not None]
            self.gradient = torch.cat([gradient.flatten() for gradient in gradients])

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """On every rank, though rank 0 alone writes the files."""
        self._note(f"step {state.global_step}", kwargs["model"])

    def _note(self, when: str, model: nn.Module) -> None:
        if hasattr(model, "label_table"):
            self.checksums[when] = checksum(model.label_table.state_dict())


def checksum(tensors: dict[str, Tensor]) -> str:
    """SHA-256 of all bits."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode() + tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def build(name: str, method: str = "default", **overrides: Any) -> PreTrainedModel:
    """A tiny model for one of `METHODS`, the same at every call.

    What a fresh model has at zero is random here, as in a trained one: a bias that is all rounding says nothing.
    """
    set_seed(0)
    config = tiny_config(name, num_labels=LABELS, **{**OVERRIDES.get(name, {}), **overrides})
    if not METHODS[method].get("label_method"):
        model = AutoModelForLwALClassification.from_config(config)
        randomise_zeros(model.encoder)
        return model
    stock = AutoModelForImageClassification if name in IMAGE_MODELS else AutoModelForSequenceClassification
    model = stock.from_config(config)
    randomise_zeros(model)
    return model


@torch.no_grad()
def randomise_zeros(model: nn.Module) -> None:
    """Give every parameter that is zero everywhere a spread of 0.1."""
    for parameter in model.parameters():
        if not parameter.any():
            parameter.normal_(std=0.1)


def rows_for(name: str, rows: int, seed: int = 0) -> Dataset:
    """Rows for a model, hard enough that the start from class means leaves something to learn.

    Every seventh row has no label, so that equal micro-batches weigh unequally; three of ten labels are random.
    """
    image = name in IMAGE_MODELS
    data = separable_images(LABELS, rows, seed, noise=4.0) if image else separable_text(LABELS, rows, seed)
    generator = np.random.default_rng(seed)
    wrong, random = generator.random(rows) < 0.3, generator.integers(LABELS, size=rows)
    labels = np.where(wrong, random, data["labels"])
    labels[6::7] = -100
    return data.remove_columns("labels").add_column("labels", labels.tolist())


def arguments(folder: Path, method: str = "default", **options: Any) -> LwALTrainingArguments:
    """Quiet training on the CPU with a constant learning rate; ``options`` are training arguments."""
    defaults = {
        "use_cpu": True,
        "report_to": "none",
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        "save_strategy": "no",
        "logging_steps": 1,
        "optim": "sgd",
        "learning_rate": 0.05,
        "lr_scheduler_type": "constant",
        "per_device_eval_batch_size": 16,
        "seed": 0,
    }
    return LwALTrainingArguments(str(folder), **{**defaults, **METHODS[method], **options})


def train(
    model: PreTrainedModel,
    args: TrainingArguments,
    train_dataset: Any,
    test: Dataset,
    checkpoint: str | None = None,
    trainer_class: type[Trainer] = LwALTrainer,
) -> tuple[Trainer, Trajectory]:
    """Train and keep the trajectory.

    Args:
        model: trained in place.
        args: as from `arguments`.
        train_dataset: any training set.
        test: rows whose logits are kept; a `datasets.Dataset`.
        checkpoint: resume from this folder.
        trainer_class: whose ``train`` to use.
    """
    before = {name: part.detach().clone() for name, part in model.named_parameters()}
    trainer = trainer_class(model, args, train_dataset=train_dataset, eval_dataset=test)
    trainer.remove_callback(PrinterCallback)
    witness = Witness()
    trainer.add_callback(witness)
    trainer.train(resume_from_checkpoint=checkpoint)
    core = trainer.accelerator.unwrap_model(trainer.model)
    after = {name: part.detach() for name, part in core.named_parameters()}
    # A head that was rebuilt for the method has no predecessor to compare with.
    known = [name for name in after if name in before and before[name].shape == after[name].shape]
    losses = [log["loss"] for log in trainer.state.log_history if "loss" in log]
    tensors = {
        "loss": torch.tensor(losses, dtype=torch.float64),
        "gradient": witness.gradient,
        "logits": logits_of(core, test),
        **{f"weight {name}": part.detach().clone() for name, part in core.state_dict().items()},
    }
    moved = max(float((after[name] - before[name]).abs().max()) for name in known)
    return trainer, Trajectory(tensors, witness.checksums, moved)


@torch.no_grad()
def logits_of(model: PreTrainedModel, rows: Dataset) -> Tensor:
    """(N, C) logits in evaluation mode; the model is left in its mode."""
    was_training = model.training
    inputs = {name: value for name, value in rows.with_format("torch")[:].items() if name != "labels"}
    logits = model.eval()(**inputs).logits
    model.train(was_training)
    return logits


def differences(reference: dict[str, Tensor], other: dict[str, Tensor]) -> dict[str, float]:
    """``max|a - b| / max(max|a|, 1e-3)`` of every tensor; NaN where there is a NaN.

    Raises:
        ValueError: the two do not hold the same tensors.
    """
    if reference.keys() != other.keys():
        raise ValueError(f"Only one side has {sorted(reference.keys() ^ other.keys())}.")
    return {name: relative_difference(tensor, other[name]) for name, tensor in reference.items()}


def relative_difference(reference: Tensor, other: Tensor) -> float:
    """``max|a - b| / max(max|a|, 1e-3)``; 0 exactly when all values are equal."""
    if reference.shape != other.shape:
        raise ValueError(f"Shapes differ: {tuple(reference.shape)} and {tuple(other.shape)}.")
    a, b = reference.double(), other.double()
    largest = float(a.abs().max()) if a.numel() else 0.0
    return float((a - b).abs().max()) / max(largest, 1e-3) if a.numel() else 0.0
