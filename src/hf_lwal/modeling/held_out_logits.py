"""What rows look like to classifiers that were made without them: by leave-one-out, and by cross-fitting."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from .functional import SQUARED_DISTANCE_FLOOR, centroids, class_sums, pairwise_distances
from .head_start import FOLDS, fold_of
from .row_blocks import blocks, rows_at_a_time

Blocks = Iterator[tuple[Tensor, Tensor]]
"""Row ids (b,) and their logits (b, C), until all rows are through."""

IDENTITY = 0.5
"""Share of the identity in the covariance within classes: wrong labels blur it, so more than for a clean start."""
COMPONENTS = 384
"""Principal components of the features that are looked at, at most: the rest of wider ones is noise."""
OF_REGRESSION = 192
"""Those of them that the regression reads: it takes half the time, and tells errors as well."""
ROWS_FOR_DIRECTIONS = 4000
"""Rows that the components are found from, where there are more."""
ITERATIONS = 14
"""Of L-BFGS, which starts at the class means: more of them begin to learn the wrong labels."""
DECAY = 0.3
"""Weight of half the squares of the regression's weights, for rows of root mean square length 1, over all rows."""
STEEPEST = 14
"""Half powers of 2 that are tried as the scale of the class means at which the regression starts."""


def principal(features: Tensor) -> Tensor:
    """Rows (N, at most `COMPONENTS`) float32 around 0, of root mean square length 1: the widest directions first.

    No distance changes where all directions are kept. Features are expected to differ.
    """
    rows = features.float()
    rows = rows - rows.mean(dim=0)
    some = rows[:: max(len(rows) // ROWS_FOR_DIRECTIONS, 1)]
    directions = torch.linalg.eigh(some.T @ some).eigenvectors.flip(1)[:, :COMPONENTS]  # (H, <= COMPONENTS)
    rows = rows @ directions
    return rows / rows.square().sum(dim=1).mean().sqrt()


def left_out_logits(rows: Tensor, labels: Tensor, num_labels: int) -> Blocks:
    """Negative distances of rows to whitened class means, each row measured as if it had never been there.

    Leaving row i with residual r out of its class of n rows moves that mean by r / (n - 1) and takes n / (n - 1) r r'
    out of the scatter, whose inverse follows by Sherman and Morrison: one fit serves all rows. The divisor of the
    covariance, and the level to which it is shrunk, stay those of all rows.

    Args:
        rows: (N, H) from `principal`.
        labels: (N,) int64, 0…C-1, each with at least two rows.
        num_labels: C.
    """
    sums, counts = class_sums(rows, labels, num_labels)
    means = centroids(sums, counts)  # (C, H)
    scatter = torch.zeros(rows.shape[1], rows.shape[1], device=rows.device)
    every = torch.arange(len(rows), device=rows.device)
    for block in blocks(every, rows.shape[1]):
        residuals = rows[block] - means[labels[block]]
        scatter += residuals.T @ residuals
    whitening = _whitening(scatter / len(rows))  # (H, H)
    columns = means @ whitening.T  # (C, H)
    stretch = counts / (counts - 1.0)  # (C,)
    for block in torch.split(every, rows_at_a_time((len(rows), num_labels))):
        own = labels[block]
        inputs = rows[block] @ whitening.T  # (b, H)
        residuals = inputs - columns[own]
        length = residuals.square().sum(dim=1)  # (b,)
        removed = (1.0 - IDENTITY) * stretch[own] / len(rows)
        gain = removed / (1.0 - removed * length).clamp(min=1e-6)  # of Sherman and Morrison
        along = (residuals * inputs).sum(dim=1, keepdim=True) - residuals @ columns.T  # (b, C)
        squared = pairwise_distances(inputs, columns).square() + gain.unsqueeze(1) * along.square()
        own_squared = stretch[own].square() * (length + gain * length.square())
        squared.scatter_(1, own.unsqueeze(1), own_squared.unsqueeze(1))
        yield block, -squared.clamp(min=SQUARED_DISTANCE_FLOOR).sqrt()


def _whitening(covariance: Tensor) -> Tensor:
    """(H, H) that makes the shrunken covariance the identity; the identity where there is no scatter."""
    identity = torch.eye(len(covariance), device=covariance.device)
    level = float(covariance.diagonal().mean())
    if level <= SQUARED_DISTANCE_FLOOR:
        return identity
    factor = torch.linalg.cholesky((1.0 - IDENTITY) * covariance + IDENTITY * level * identity)
    whitening: Tensor = torch.linalg.solve_triangular(factor, identity, upper=False)
    return whitening


def regression_logits(rows: Tensor, labels: Tensor, weights: Tensor, num_labels: int) -> Blocks:
    """Log-probabilities of rows under logistic regressions on the other parts of the rows: cross-fitting.

    Args:
        rows: (N, H) from `principal`.
        labels: (N,) int64, 0…C-1, each with at least two rows.
        weights: (N,) of each row in the fit, such as the probability that its label is right.
        num_labels: C.
    """
    inputs, fold = rows[:, :OF_REGRESSION].contiguous(), fold_of(labels)
    for number in range(FOLDS):
        rest, held_out = (fold != number).nonzero()[:, 0], (fold == number).nonzero()[:, 0]
        if not len(held_out):
            continue
        weight, bias = _regression(inputs[rest], labels[rest], weights[rest], num_labels)
        for block in torch.split(held_out, rows_at_a_time((len(rows), num_labels))):
            yield block, (inputs[block] @ weight.T + bias).log_softmax(dim=1)


@torch.enable_grad()
def _regression(inputs: Tensor, labels: Tensor, weights: Tensor, num_labels: int) -> tuple[Tensor, Tensor]:
    """Weight (C, H) and bias (C,) of a logistic regression that stops early."""
    sums, counts = class_sums(inputs * weights.unsqueeze(1), labels, num_labels)
    counts = counts.new_zeros(num_labels).index_add(0, labels, weights)
    means = sums / counts.clamp(min=1e-6).unsqueeze(1)  # (C, H)
    lengths = means.square().sum(dim=1)
    size = rows_at_a_time((len(inputs), num_labels))  # whose logits, and what their gradient needs, exist at once
    total = weights.sum()

    def losses(weight: Tensor, bias: Tensor, every: int = 1) -> Iterator[Tensor]:
        """Parts of the mean loss."""
        parts = (torch.split(part[::every], size) for part in (inputs, labels, weights))
        for some, own, share in zip(*parts, strict=True):
            rows = F.cross_entropy(some @ weight.T + bias, own, reduction="none")
            yield (rows * share).sum() / total

    with torch.no_grad():
        scales = [2.0 ** (power / 2) for power in range(STEEPEST)]
        scale = min(scales, key=lambda s: float(sum(losses(s * means, -0.5 * s * lengths, every=10))))
    weight = (scale * means).requires_grad_()
    bias = (-0.5 * scale * lengths).requires_grad_()
    optimizer = torch.optim.LBFGS(
        [weight, bias], max_iter=ITERATIONS, max_eval=ITERATIONS + 3, history_size=8, line_search_fn="strong_wolfe"
    )

    def evaluate() -> Tensor:
        optimizer.zero_grad()
        loss = 0.5 * DECAY * weight.square().sum() / len(inputs)
        loss.backward()
        loss = loss.detach()
        for part in losses(weight, bias):
            part.backward()  # type: ignore[no-untyped-call]
            loss += part.detach()
        return loss

    optimizer.step(evaluate)  # type: ignore[no-untyped-call]
    return weight.detach(), bias.detach()
