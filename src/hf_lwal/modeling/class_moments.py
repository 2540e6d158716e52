"""Class means and the scatter around them, in float64 whatever the features are in, without a copy of them all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from .functional import IGNORE_INDEX, LEAST_SCATTER, centroids
from .row_blocks import blocks


class Moments(NamedTuple):
    """Of some rows, in float64.

    Attributes:
        means: (C, H) class means, zero without rows.
        counts: (C,) rows per class.
        covariance: (H, H) within classes; None where it was not asked for.
        within: square sum of the differences of rows from the mean of their class.
        spread: square sum of their differences from the mean of all rows.
        size: square sum of the rows.
    """

    means: Tensor
    counts: Tensor
    covariance: Tensor | None
    within: float
    spread: float
    size: float

    @property
    def differ(self) -> bool:
        """Whether rows differ by more than rounding."""
        return self.spread > LEAST_SCATTER * self.size

    @property
    def scatter(self) -> bool:
        """Whether rows of a class differ by more than the rounding of how far all rows do."""
        return self.within > LEAST_SCATTER * self.spread


def class_means(features: Tensor, labels: Tensor, num_labels: int) -> tuple[Tensor, Tensor]:
    """Class means (C, H) float64, zero without rows, and rows per class (C,).

    Args:
        features: (N, H).
        labels: (N,) int64; rows with -100 are left out.
        num_labels: C.
    """
    sums, counts = _class_sums(features, labels, num_labels, (labels != IGNORE_INDEX).nonzero()[:, 0])
    return centroids(sums, counts), counts


def moments(features: Tensor, labels: Tensor, num_labels: int, rows: Tensor, covariance: bool = False) -> Moments:
    """What `Moments` says of some rows.

    Args:
        features: (N, H).
        labels: (N,) int64, in 0…C-1 for these rows.
        num_labels: C.
        rows: (n,) int64, at least one.
        covariance: that within classes, too, which takes n * H * H multiplications.
    """
    width = features.shape[1]
    sums, counts = _class_sums(features, labels, num_labels, rows)
    means, mean = centroids(sums, counts), sums.sum(dim=0) / len(rows)
    products = _zeros(features, width, width) if covariance else None
    within = spread = size = 0.0
    for block, values in in_float64(features, rows):
        residuals = values - means[labels[block]]
        if products is not None:
            products += residuals.T @ residuals
        within += float(residuals.square().sum())
        spread += float((values - mean).square().sum())
        size += float(values.square().sum())
    return Moments(means, counts, None if products is None else products / len(rows), within, spread, size)


def _class_sums(features: Tensor, labels: Tensor, num_labels: int, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Sums (C, H) and counts (C,) as `functional.class_sums`, of which every block would make new ones."""
    sums, counts = _zeros(features, num_labels, features.shape[1]), _zeros(features, num_labels)
    for block, values in in_float64(features, rows):
        sums.index_add_(0, labels[block], values)
        counts.index_add_(0, labels[block], values.new_ones(len(block)))
    return sums, counts


def in_float64(features: Tensor, rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Row ids (b,) and their features (b, H) float64, block by block."""
    for block in blocks(rows, features.shape[1]):
        yield block, features[block].double()


def _zeros(features: Tensor, *shape: int) -> Tensor:
    return torch.zeros(*shape, dtype=torch.float64, device=features.device)
