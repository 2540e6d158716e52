"""Label smoothing: a share of the target is spread evenly over all labels.

Szegedy, Vanhoucke, Ioffe, Shlens & Wojna, "Rethinking the Inception Architecture for Computer Vision", CVPR 2016,
section 7, https://arxiv.org/abs/1512.00567.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from torch import Tensor

from ..modeling.functional import cross_entropy
from .base import LossContext, ObjectiveLoss
from .stock import StockObjective


class LabelSmoothing(StockObjective):
    """Cross-entropy against ``(1 - epsilon) * one_hot + epsilon / C``.

    Args:
        epsilon: share of the target that is spread; a ``label_smoothing_factor`` above 0 in the training arguments
            replaces it, so that smoothing is never applied twice.
    """

    citation: ClassVar[str] = "Szegedy et al., CVPR 2016, arXiv:1512.00567"

    def __init__(self, epsilon: float = 0.1) -> None:
        super().__init__()
        self.epsilon = epsilon

    def loss(self, outputs: Any, labels: Tensor, context: LossContext) -> ObjectiveLoss:
        """Mean smoothed cross-entropy over the rows of the whole step."""
        smoothed = replace(context, label_smoothing=context.label_smoothing or self.epsilon)
        return ObjectiveLoss(smoothed.classification_loss(outputs, labels, labels), {})


def label_smoothing_loss(logits: Tensor, labels: Tensor, epsilon: float = 0.1) -> Tensor:
    """Smoothed cross-entropy of every row: ``-(1 - epsilon) log p_y - epsilon / C * sum_c log p_c``.

    Args:
        logits: (B, C) floating point.
        labels: (B,) int64; -100 rows give 0.
        epsilon: share of the target that is spread over all C labels, the true one included.

    Returns:
        (B,) in at least float32.
    """
    return cross_entropy(logits, labels, label_smoothing=epsilon, reduction="none")
