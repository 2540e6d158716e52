"""Rows in blocks: no matrix of all rows by all labels, nor of all rows by all features in float64, is ever made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

BLOCK = 2**22
"""Numbers of the largest matrix that is made at a time. What fits into one block is computed as a whole."""
PART_OF_A_BLOCK = 2**20
"""Distances of a part of the rows, where all are more than a block: temporaries of this size stay in the caches."""
LEAST_ROWS = 64
"""Rows of such a part, if a block holds them: with fewer, most of the time goes into centring all label vectors."""
MOST_DISTANCES = 2**24
"""Distances that say enough: where rows times labels are more, so many random rows stand for all of them."""


class Distances(Protocol):
    """Distances (N, C) of rows to label vectors, computed in blocks of rows when they are asked for."""

    @property
    def shape(self) -> tuple[int, int]:
        """N and C."""
        ...

    @property
    def known(self) -> Tensor:
        """(N,) bool: the rows that have distances; all others are infinite throughout."""
        ...

    def __mul__(self, factor: float) -> Distances:
        """The distances where everything is larger by a factor."""
        ...

    def blocks(self, rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Row ids (b,) and their distances (b, C), until all of ``rows`` (n,) int64 that have any are through."""
        ...


def blocks(rows: Tensor, width: int, most: int | None = None) -> tuple[Tensor, ...]:
    """Row ids (n,) in parts such that as many rows of ``width`` numbers fit into a block.

    Args:
        rows: (n,) int64.
        width: numbers per row.
        most: rows per part.
    """
    size = max(BLOCK // max(width, 1), 1)
    return torch.split(rows, size if most is None else min(size, most))


def blocks_of(distances: Tensor | Distances, rows: Tensor, most: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
    """Row ids (b,) and their distances (b, C), block by block; see `Distances.blocks`.

    Args:
        distances: (N, C).
        rows: (n,) int64.
        most: rows per block of a tensor.
    """
    if not isinstance(distances, Tensor):
        yield from distances.blocks(rows)
        return
    for block in blocks(rows, distances.shape[1], most):
        yield block, distances[block]


def known_rows(distances: Tensor | Distances) -> Tensor:
    """(N,) bool: rows with a finite distance."""
    return distances.isfinite().any(dim=1) if isinstance(distances, Tensor) else distances.known


def fits_a_block(shape: Sequence[int]) -> bool:
    """Whether a matrix (N, C) is no larger than a block."""
    return shape[0] * shape[1] <= BLOCK


def rows_at_a_time(shape: Sequence[int]) -> int:
    """Rows of N whose distances to C labels are computed together: all, if they fit into a block, else a part."""
    if fits_a_block(shape):
        return max(shape[0], 1)
    width = max(shape[1], 1)
    return max(PART_OF_A_BLOCK // width, min(BLOCK // width, LEAST_ROWS), 1)


def some_of(rows: Tensor, num_labels: int) -> Tensor:
    """Rows (n,) int64, or as many random ones as have `MOST_DISTANCES` to all labels, in their order.

    The choice is the same every time, and the caller's random stream stays as it is.
    """
    most = max(MOST_DISTANCES // max(num_labels, 1), 1)
    if len(rows) <= most:
        return rows
    chosen = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))[:most].sort().values
    return rows[chosen.to(rows.device)]


def all_finite(values: Tensor) -> bool:
    """Whether no number of a matrix (N, H) is NaN or infinite."""
    return all(bool(part.isfinite().all()) for part in torch.split(values, max(BLOCK // max(values.shape[1], 1), 1)))
