"""Teacher-free regularisation: distil from a virtual teacher that is right with probability 0.99.

Yuan, Tay, Li, Wang & Feng, "Revisiting Knowledge Distillation via Label Smoothing Regularization", CVPR 2020,
https://arxiv.org/abs/1909.11723, section 5.2 (Tf-KD_reg), with the temperature and weights of the authors' code.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from ..modeling.functional import IGNORE_INDEX, at_least_float32
from .base import LossContext, ObjectiveLoss
from .stock import StockObjective


class TeacherFree(StockObjective):
    """``(1 - alpha) * CE + alpha * KL(teacher || p)``.

    Args:
        alpha: weight of the virtual teacher.
        temperature: T that softens the teacher; the student is not softened.
    """

    citation: ClassVar[str] = "Yuan et al., CVPR 2020, arXiv:1909.11723"

    def __init__(self, alpha: float = 0.1, temperature: float = 20.0) -> None:
        super().__init__()
        self.alpha = alpha
        self.temperature = temperature

    def loss(self, outputs: Any, labels: Tensor, context: LossContext) -> ObjectiveLoss:
        """Weighted sum of cross-entropy and divergence, both averaged over the rows of the whole step."""
        divergence = context.mean(virtual_teacher_divergence(outputs["logits"], labels, self.temperature), labels)
        loss = (1.0 - self.alpha) * context.classification_loss(outputs, labels, labels) + self.alpha * divergence
        return ObjectiveLoss(loss, {"teacher_loss": divergence.detach()})


def virtual_teacher_divergence(
    logits: Tensor, labels: Tensor, temperature: float = 20.0, correct: float = 0.99
) -> Tensor:
    """``KL(u || softmax(logits))`` of every row with ``u = softmax(v / T)``.

    v is ``correct`` at the row's label and ``(1 - correct) / (C - 1)`` elsewhere.

    Args:
        logits: (B, C) floating point, C at least 2.
        labels: (B,) int64; -100 rows give 0.
        temperature: T > 0.
        correct: the teacher's probability of the label before softening.

    Returns:
        (B,) in at least float32.
    """
    log_p = at_least_float32(logits).log_softmax(dim=1)  # (B, C)
    others = torch.full_like(log_p, (1.0 - correct) / (log_p.shape[1] - 1))
    teacher = others.scatter(1, labels.clamp(min=0).unsqueeze(1), correct)  # (B, C)
    log_u = (teacher / temperature).log_softmax(dim=1)
    divergence = (log_u.exp() * (log_u - log_p)).sum(dim=1)  # (B,)
    return torch.where(labels == IGNORE_INDEX, 0.0, divergence)
