"""Maximum-entropy regularisation (confidence penalty): reward predictions that stay uncertain.

Pereyra, Tucker, Chorowski, Kaiser & Hinton, "Regularizing Neural Networks by Penalizing Confident Output
Distributions", ICLR 2017 workshop, https://arxiv.org/abs/1701.06548, section 3.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from ..modeling.functional import IGNORE_INDEX, at_least_float32
from .base import LossContext, ObjectiveLoss
from .stock import StockObjective


class MaxEntropy(StockObjective):
    """Cross-entropy minus ``beta`` times the entropy of the predicted probabilities.

    Args:
        beta: weight of the entropy; the paper's best for images.
    """

    citation: ClassVar[str] = "Pereyra et al., ICLR 2017 workshop, arXiv:1701.06548"

    def __init__(self, beta: float = 0.1) -> None:
        super().__init__()
        self.beta = beta

    def loss(self, outputs: Any, labels: Tensor, context: LossContext) -> ObjectiveLoss:
        """``CE - beta * H(p)``, both averaged over the rows of the whole step."""
        entropy = context.mean(row_entropies(outputs["logits"], labels), labels)
        loss = context.classification_loss(outputs, labels, labels) - self.beta * entropy
        return ObjectiveLoss(loss, {"entropy": entropy.detach()})


def row_entropies(logits: Tensor, labels: Tensor) -> Tensor:
    """Entropy of ``p = softmax(logits)`` in every row: ``-sum_c p_c log p_c``.

    Args:
        logits: (B, C) floating point.
        labels: (B,) int64; -100 rows give 0.

    Returns:
        (B,) in at least float32, between 0 and ``log C``.
    """
    log_p = at_least_float32(logits).log_softmax(dim=1)  # (B, C)
    entropies = -(log_p.exp() * log_p).sum(dim=1)  # (B,)
    return torch.where(labels == IGNORE_INDEX, 0.0, entropies)
