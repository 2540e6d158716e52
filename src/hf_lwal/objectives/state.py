"""What an objective learns or remembers, in a file beside a checkpoint's other files; no pickle."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from ..modeling.distributed import all_reduce_sum, is_distributed, world_size
from ..modeling.files import replacing
from .base import Objective

STATE_FILE = "objective.safetensors"


def save_objective(objective: Objective, folder: str | os.PathLike[str]) -> None:
    """Write parameters and buffers, if there are any, to ``objective.safetensors``: the whole file or nothing."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in objective.state_dict().items()}
    if not tensors:
        return
    target = Path(folder, STATE_FILE)
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target) as unfinished:
        save_file(tensors, unfinished, metadata={"objective": type(objective).__name__})


def has_state(folder: str | os.PathLike[str]) -> bool:
    """Whether `save_objective` wrote anything to this folder."""
    return Path(folder, STATE_FILE).exists()


def load_objective(objective: Objective, folder: str | os.PathLike[str]) -> None:
    """Load what `save_objective` wrote into an objective of the same shapes.

    Raises:
        ValueError: the file is missing, or is that of another method, model or data set.
    """
    expected = {name: tuple(tensor.shape) for name, tensor in objective.state_dict().items()}
    if not expected:
        return
    name, file = type(objective).__name__, Path(folder, STATE_FILE)
    if not file.exists():
        raise ValueError(
            f"{folder} has no {STATE_FILE}, without which {name} cannot go on where it stopped: resume from a "
            "checkpoint that was written with the same label_method."
        )
    tensors: dict[str, Tensor] = load_file(file)
    found = {key: tuple(tensor.shape) for key, tensor in tensors.items()}
    if found != expected:
        raise ValueError(
            f"{file} holds {found}, but {name} needs {expected}: resume with the label_method, labels and training "
            "set that it was written with."
        )
    objective.load_state_dict(tensors)


@torch.no_grad()
def average_gradients(objective: Objective) -> None:
    """Average the gradients of an objective's own parameters over ranks, as data parallelism does for the model."""
    if not is_distributed():
        return
    for parameter in objective.parameters():
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        parameter.grad = all_reduce_sum(gradient) / world_size()
