"""Learning with retrospection: distil from what the model itself said about each row some epochs ago.

Deng & Zhang, "Learning with Retrospection", AAAI 2021, https://arxiv.org/abs/2012.13098, section 3.
"""

from __future__ import annotations

import logging
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ..modeling.distributed import all_reduce_sum, is_distributed
from ..modeling.functional import IGNORE_INDEX, at_least_float32, cross_entropy
from .base import LossContext, ObjectiveLoss
from .stock import StockObjective

logger = logging.getLogger(__name__)

LARGEST = 6e4
"""Logits are recorded in float16, which holds no more than 65504."""
MERGED_ROWS = 65536
"""Rows whose records the ranks add up at a time."""


class LearningWithRetrospection(StockObjective):
    """Cross-entropy for k epochs; then also the divergence from the logits of the last recording epoch.

    Epochs count from 1, and those divisible by k record. In epoch e > k of E the loss is
    ``(1 - b) * CE + b * tau^2 * KL(softmax(recorded / tau) || softmax(z / tau))``, b = ``beta * k * floor(e/k) / E``.
    Rows without a record, and evaluation, use the cross-entropy alone.

    Args:
        every: k, epochs between recordings.
        beta: weight of the retrospection at the end of training.
        temperature: tau.
    """

    citation: ClassVar[str] = "Deng & Zhang, AAAI 2021, arXiv:2012.13098"
    needs_sample_ids: ClassVar[bool] = True
    records: Tensor
    recorded: Tensor
    new: Tensor

    def __init__(self, every: int = 5, beta: float = 0.9, temperature: float = 5.0) -> None:
        super().__init__()
        self.every = every
        self.beta = beta
        self.temperature = temperature
        self._unmerged = False
        self._checked = False
        self._make_room(0, 0)

    def allocate(self, rows: int, num_labels: int) -> None:
        """Make room for the logits (N, C) float16 of all training rows."""
        if tuple(self.records.shape) != (rows, num_labels):
            self._make_room(rows, num_labels)

    def begin(self, model: Any) -> dict[str, float]:
        """Forget the records of an earlier training, and say how much memory they take."""
        rows, num_labels = self.records.shape
        self._make_room(rows, num_labels)
        self._checked = False
        mebibytes = rows * num_labels * 2 / 2**20
        logger.info("lwr keeps the logits of %d rows × %d labels as float16: %.1f MiB.", rows, num_labels, mebibytes)
        return {"lwr_memory_mib": round(mebibytes, 3)}

    def loss(self, outputs: Any, labels: Tensor, context: LossContext) -> ObjectiveLoss:
        """Loss against the records, then record where the epoch is to be recorded."""
        loss = context.classification_loss(outputs, labels, labels)
        if not context.training:
            return ObjectiveLoss(loss, {})
        if context.sample_ids is None:
            raise ValueError("lwr needs to know which row is which: train it with LwALTrainer's own data loader.")
        self._check_epochs(context.epochs)
        logits, ids, epoch = outputs["logits"], context.sample_ids, int(context.epoch) + 1
        terms = {}
        if epoch > self.every:
            weight = retrospection_weight(epoch, self.every, context.epochs, self.beta)
            rows = retrospection_divergence(logits, self.records[ids], labels, self.temperature)
            alone = cross_entropy(logits, labels, context.label_smoothing, context.class_weights, "none")
            rows = torch.where(self.recorded[ids], rows, alone)
            retrospection = context.mean(rows, labels)
            loss = (1.0 - weight) * loss + weight * retrospection
            terms["retrospection_loss"] = retrospection.detach()
        if epoch % self.every == 0:
            self._record(ids, logits.detach())
        return ObjectiveLoss(loss, terms)

    def _check_epochs(self, epochs: int) -> None:
        """Say once that a training is over before its first retrospection: it would be one-hot training, unsaid."""
        if not self._checked and epochs <= self.every:
            logger.warning(
                "lwr looks back from epoch %d on, and this training ends with epoch %d: it is cross-entropy alone. "
                "Train for more epochs, or record more often (label_lwr_every).",
                self.every + 1,
                epochs,
            )
        self._checked = True

    @torch.no_grad()
    def merge_ranks(self) -> None:
        """Give every rank the records of all; a row that several ranks have seen gets the mean of their logits."""
        if self._unmerged and is_distributed():
            for start in range(0, len(self.records), MERGED_ROWS):
                part = slice(start, start + MERGED_ROWS)
                new = self.new[part]  # (n,)
                sums = all_reduce_sum(torch.where(new.unsqueeze(1), self.records[part].float(), 0.0))  # (n, C)
                ranks = all_reduce_sum(new.float())  # (n,)
                means = (sums / ranks.clamp(min=1.0).unsqueeze(1)).half()
                self.records[part] = torch.where(ranks.unsqueeze(1) > 0, means, self.records[part])
                self.recorded[part] |= ranks > 0
        self.new.zero_()
        self._unmerged = False

    def _record(self, ids: Tensor, logits: Tensor) -> None:
        """Keep the logits (B, C) of the rows ``ids`` (B,); NaN and infinity must not stay for k epochs."""
        finite = logits.isfinite().all(dim=1)  # (B,)
        kept = torch.where(finite.unsqueeze(1), logits.clamp(-LARGEST, LARGEST).half(), self.records[ids])
        self.records[ids] = kept
        self.recorded[ids] = self.recorded[ids] | finite
        self.new[ids] = self.new[ids] | finite
        self._unmerged = True

    def _make_room(self, rows: int, num_labels: int) -> None:
        device = self.records.device if "records" in self._buffers else None
        self.register_buffer("records", torch.zeros(rows, num_labels, dtype=torch.float16, device=device))
        self.register_buffer("recorded", torch.zeros(rows, dtype=torch.bool, device=device))
        # Rows that this rank has recorded and the others have not heard of.
        self.register_buffer("new", torch.zeros(rows, dtype=torch.bool, device=device), persistent=False)
        self._unmerged = False


def retrospection_weight(epoch: int, every: int, epochs: int, beta: float = 0.9) -> float:
    """Weight of the retrospection: ``beta * k * floor(e / k) / E``.

    Args:
        epoch: e, the epoch under way, from 1.
        every: k.
        epochs: E, epochs of the whole training.
        beta: weight that is reached in an epoch E divisible by k.

    >>> [round(retrospection_weight(epoch, 2, 6), 2) for epoch in (2, 3, 4, 5, 6)]
    [0.3, 0.3, 0.6, 0.6, 0.9]
    """
    return beta * every * (epoch // every) / epochs


def retrospection_divergence(logits: Tensor, recorded: Tensor, labels: Tensor, temperature: float = 5.0) -> Tensor:
    """``tau^2 * KL(softmax(recorded / tau) || softmax(logits / tau))`` of every row.

    Args:
        logits: (B, C) floating point.
        recorded: (B, C) logits of the same rows, any floating-point dtype.
        labels: (B,) int64; -100 rows give 0.
        temperature: tau > 0.

    Returns:
        (B,) in at least float32; gradient flows into ``logits`` only.
    """
    logits = at_least_float32(logits)
    log_q = (recorded.detach().to(logits.dtype) / temperature).log_softmax(dim=1)  # (B, C)
    log_p = (logits / temperature).log_softmax(dim=1)  # (B, C)
    rows = F.kl_div(log_p, log_q, reduction="none", log_target=True).sum(dim=1)  # (B,)
    return torch.where(labels == IGNORE_INDEX, 0.0, temperature**2 * rows)
