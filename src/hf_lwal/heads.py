"""The last linear layer of a stock classifier: finding it, and running the classifier as if it were the identity."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import (
    AutoModelForAudioClassification,
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
    PreTrainedConfig,
    PreTrainedModel,
)

logger = logging.getLogger(__name__)

STOCK_CLASSES: dict[str, Any] = {
    "text": AutoModelForSequenceClassification,
    "image": AutoModelForImageClassification,
    "audio": AutoModelForAudioClassification,
}


class Head(NamedTuple):
    """Where a stock classifier's last linear layer is, and how wide its input is."""

    name: str
    in_features: int


def find_head(config: PreTrainedConfig, task: str) -> Head | None:
    """Find the one linear layer whose size follows ``num_labels``, by building the class twice without memory.

    Args:
        config: configuration of the stock classifier; not modified.
        task: "text", "image" or "audio".

    Returns:
        The head, or None when no module, several, or something other than ``nn.Linear`` depends on ``num_labels``.
    """
    first, second = (_shapes(config, task, num_labels) for num_labels in (5, 7))
    changed = {name.rpartition(".")[0] for name in first if first[name] != second.get(name)}
    if len(changed) != 1:
        return None
    name = changed.pop()
    module = _skeleton(config, task, 5).get_submodule(name)
    return Head(name, module.in_features) if type(module) is nn.Linear else None


def _shapes(config: PreTrainedConfig, task: str, num_labels: int) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in _skeleton(config, task, num_labels).state_dict().items()}


def _skeleton(config: PreTrainedConfig, task: str, num_labels: int) -> PreTrainedModel:
    config = copy.deepcopy(config)
    config.num_labels = num_labels
    with torch.device("meta"):
        return STOCK_CLASSES[task].from_config(config)


@contextmanager
def features_for_logits(encoder: nn.Module, head_name: str) -> Iterator[nn.Module]:
    """Run ``encoder`` with its head as the identity, so that what it calls logits are the pooled features.

    The encoder's own pooling then yields (B, H) for every architecture, decoders included. The outermost module of
    that name is replaced (an adapter's wrapper as well), on the instance only, so that replicas of a module on
    several devices do not see each other, and restored afterwards.
    """
    head = encoder.get_submodule(head_name)
    replaced = head.__dict__.get("forward")
    head.forward = _identity
    try:
        yield head
    finally:
        if replaced is None:
            del head.forward
        else:
            head.forward = replaced


def _identity(inputs: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return inputs


def replace_head(encoder: PreTrainedModel, head: Head, outputs: int) -> None:
    """Give ``encoder`` a fresh last layer with ``outputs`` outputs, initialised as the architecture does it.

    It lies on the device and has the dtype of the old one.

    Args:
        encoder: stock classifier, changed in place together with its configuration.
        head: from `find_head`.
        outputs: new number of outputs.
    """
    old: Any = encoder.get_submodule(head.name)
    new: Any = nn.Linear(head.in_features, outputs, bias=old.bias is not None, device=old.weight.device)
    with torch.no_grad():
        encoder._init_weights(new)
    new = new.to(old.weight.dtype)
    new._is_hf_initialized = True
    parent, _, leaf = head.name.rpartition(".")
    setattr(encoder.get_submodule(parent), leaf, new)
    encoder.config.num_labels = outputs
    if hasattr(encoder, "num_labels"):
        encoder.num_labels = outputs
