"""Eq. (2) and (3) for many labels: the cross-entropy of negative distances without a matrix of all of them.

Distances are computed for a block of labels at a time, once for the log of the sum of exponentials and once more for
the gradient, so that beside embeddings and label vectors one block is in memory instead of several (B, C) matrices.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .functional import IGNORE_INDEX, SQUARED_DISTANCE_FLOOR, at_least_float32

BLOCK = 2**20
"""Distances in memory at a time: 4 MiB, which the caches of a processor hold."""
LEAST_LOGITS = 2**20
"""From this many logits of a batch on the blocks are sooner done than the matrix (``benchmarks/loss_layer.py``)."""


def blockwise_cross_entropy(
    embeddings: Tensor,
    label_vectors: Tensor,
    scale: Tensor,
    labels: Tensor,
    *,
    usable: Tensor | None = None,
    margin: float = 0.0,
    label_smoothing: float = 0.0,
    class_weights: Tensor | None = None,
    shift: Tensor | None = None,
    block: int = BLOCK,
) -> Tensor:
    """What `cross_entropy` with ``reduction="none"`` returns for the logits that `LabelTable.forward` computes.

    Args:
        embeddings: (B, D).
        label_vectors: (C, D).
        scale: (1,) s of the logits ``-s * distance``.
        labels: (B,) int64; -100 rows have no loss.
        usable: (C,) bool; logits of the others lie ``margin`` below the smallest of the row, without a gradient.
        margin: see there.
        label_smoothing: share of the target spread evenly over all labels.
        class_weights: (C,) weight per class.
        shift: (C,) added to the logits, to those of labels that are not usable too; without a gradient.
        block: distances in memory at a time.

    Returns:
        (B,) losses in at least float32, differentiable once in embeddings, label vectors and scale.
    """
    columns = max(block // max(len(embeddings), 1), 1)
    embeddings, label_vectors = at_least_float32(embeddings), at_least_float32(label_vectors)
    weights, shift = (None if part is None else part.to(embeddings) for part in (class_weights, shift))
    settings = (usable, margin, label_smoothing, weights, shift, columns)
    losses: Tensor = _Loss.apply(embeddings, label_vectors, scale, labels, *settings)
    return losses


class _Blocks:
    """Distances of a batch to the label vectors, block by block."""

    def __init__(self, embeddings: Tensor, label_vectors: Tensor, usable: Tensor | None, own: Tensor) -> None:
        if usable is None:
            self.centre = label_vectors.mean(dim=0)
        else:  # what stands in the place of other label vectors may lie far away, and would cost digits
            share = usable.to(label_vectors) / usable.sum()
            self.centre = share @ label_vectors
        self.rows, self.own = embeddings - self.centre, own
        self.squares = self.rows.square().sum(dim=1, keepdim=True)  # (B, 1)
        self.own_differences = embeddings - label_vectors[own]  # (B, D)
        own_squares = self.own_differences.square().sum(dim=1)
        self.own_distances = own_squares.clamp(min=SQUARED_DISTANCE_FLOOR).sqrt()  # (B,)

    def columns(self, label_vectors: Tensor) -> Tensor:
        """Label vectors (c, D) of a block, centred."""
        return label_vectors - self.centre

    def distances(self, columns: Tensor, start: int) -> Tensor:
        """(B, c) to centred label vectors, the first of which is label ``start``; own ones from the difference."""
        squared = torch.addmm(columns.square().sum(dim=1), self.rows, columns.T, alpha=-2.0).add_(self.squares)
        found = squared.clamp_min_(SQUARED_DISTANCE_FLOOR).sqrt_()
        return self.with_own(found, start, self.own_distances)

    def with_own(self, found: Tensor, start: int, values: Tensor | float) -> Tensor:
        """``found`` (B, c) with other values (B,) in the places of the rows' own labels, in place."""
        place = (self.own - start).unsqueeze(1)
        within = (place >= 0) & (place < found.shape[1])
        place = place.clamp(0, found.shape[1] - 1)
        own = values.unsqueeze(1) if isinstance(values, Tensor) else found.new_full((), values)
        return found.scatter_(1, place, torch.where(within, own, found.gather(1, place)))


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        embeddings: Tensor,
        label_vectors: Tensor,
        scale: Tensor,
        labels: Tensor,
        usable: Tensor | None,
        margin: float,
        smoothing: float,
        weights: Tensor | None,
        shift: Tensor | None,
        columns: int,
    ) -> Tensor:
        num_labels, own = len(label_vectors), labels.clamp(min=0)
        with torch.autocast(embeddings.device.type, enabled=False):
            blocks = _Blocks(embeddings, label_vectors, usable, own)
            total = torch.full_like(blocks.own_distances, -torch.inf)  # log of the sum of exponentials
            least = torch.full_like(total, torch.inf)
            summed = torch.zeros_like(total)
            for start in range(0, num_labels, columns):
                part = slice(start, start + columns)
                logits = blocks.distances(blocks.columns(label_vectors[part]), start).mul_(-scale)  # (B, c)
                if usable is not None:
                    least = torch.minimum(least, logits.masked_fill(~usable[part], torch.inf).amin(dim=1))
                if shift is not None:
                    logits += shift[part]
                if smoothing:
                    spread = logits if usable is None else logits * usable[part]
                    summed += spread.sum(dim=1) if weights is None else spread @ weights[part]
                if usable is not None:
                    logits.masked_fill_(~usable[part], -torch.inf)
                total = torch.logaddexp(total, logits.logsumexp(dim=1))
        own_logits = -scale * blocks.own_distances
        if usable is not None:
            floor = least - margin
            number = (~usable).sum().to(total).log() if shift is None else shift[~usable].logsumexp(dim=0)
            total = torch.logaddexp(total, number + floor)
            own_logits = torch.where(usable[own], own_logits, floor)
            if smoothing:
                share = (~usable).to(total) if weights is None else ~usable * weights
                summed += floor * share.sum()
                if shift is not None:
                    summed += torch.dot(share, shift)
        if shift is not None:
            own_logits = own_logits + shift[own]
        hard, soft = _shares(smoothing, weights, own, num_labels)
        losses = hard * (total - own_logits)
        if smoothing:
            mass = float(num_labels) if weights is None else weights.sum()
            losses = losses + soft * (mass * total - summed)
        ctx.save_for_backward(embeddings, label_vectors, scale, labels, usable, weights, shift, total)
        ctx.smoothing, ctx.columns = smoothing, columns
        return torch.where(labels == IGNORE_INDEX, 0.0, losses)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        embeddings, label_vectors, scale, labels, usable, weights, shift, total = ctx.saved_tensors
        num_labels, own = len(label_vectors), labels.clamp(min=0)
        gradient = torch.where(labels == IGNORE_INDEX, 0.0, gradient)
        hard, soft = _shares(ctx.smoothing, weights, own, num_labels)
        mass = float(num_labels) if weights is None else weights.sum()
        of_total = (gradient * (hard + soft * mass)).unsqueeze(1)  # (B, 1)
        with torch.autocast(embeddings.device.type, enabled=False):
            blocks = _Blocks(embeddings, label_vectors, usable, own)
            to_rows, to_vectors = torch.zeros_like(embeddings), torch.empty_like(label_vectors)
            to_scale = torch.zeros_like(scale)
            for start in range(0, num_labels, ctx.columns):
                part = slice(start, start + ctx.columns)
                columns = blocks.columns(label_vectors[part])
                distances = blocks.distances(columns, start)
                # The gradient of the logits, but for what is due to a row's own label.
                pull = torch.mul(distances, -scale).sub_(total.unsqueeze(1))  # (B, c)
                pull = (pull if shift is None else pull.add_(shift[part])).exp_().mul_(of_total)
                if ctx.smoothing:
                    pull -= (gradient * soft).unsqueeze(1) * (1.0 if weights is None else weights[part])
                if usable is not None:
                    pull.masked_fill_(~usable[part], 0.0)
                to_scale -= torch.dot(pull.flatten(), distances.flatten())
                distances.masked_fill_(distances <= SQUARED_DISTANCE_FLOOR**0.5, torch.inf)
                pull = blocks.with_own(pull.div_(distances), start, 0.0).mul_(-scale)
                to_rows.addmm_(pull, columns, alpha=-1.0)
                to_rows.addcmul_(pull.sum(dim=1, keepdim=True), blocks.rows)
                torch.mm(pull.T, blocks.rows, out=to_vectors[part])
                torch.sub(pull.sum(dim=0).unsqueeze(1) * columns, to_vectors[part], out=to_vectors[part])
        far = blocks.own_distances
        own_logits = -scale * far if shift is None else shift[own] - scale * far
        own_pull = of_total[:, 0] * (own_logits - total).exp() - gradient * hard
        if ctx.smoothing:
            own_pull -= gradient * soft * (1.0 if weights is None else weights[own])
        if usable is not None:
            own_pull = torch.where(usable[own], own_pull, 0.0)
            hard = usable[own].to(far) * hard
        to_scale += torch.dot(gradient * hard, far)
        own_pull = torch.where(far > SQUARED_DISTANCE_FLOOR**0.5, -scale * own_pull / far, 0.0)
        moved = own_pull.unsqueeze(1) * blocks.own_differences  # (B, D)
        return to_rows + moved, to_vectors.index_add_(0, own, moved, alpha=-1.0), to_scale, *(None,) * 7


def _shares(smoothing: float, weights: Tensor | None, own: Tensor, num_labels: int) -> tuple[Tensor | float, float]:
    """Weight of a row's own label in its target, and of all others times their weights."""
    hard = 1.0 - smoothing
    return hard if weights is None else hard * weights[own], smoothing / num_labels
