"""Distances of many rows to many label vectors, of which never more than a block exists."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .functional import pairwise_distances
from .row_blocks import Distances, fits_a_block, rows_at_a_time


class Part(NamedTuple):
    """Rows with what their distances are measured through.

    Attributes:
        rows: (N,) bool, the rows of this part.
        embed: maps rows (b, H) to embeddings (b, D).
        label_vectors: (C, D).
        seen: (C,) bool; distances to other labels are infinite.
    """

    rows: Tensor
    embed: Callable[[Tensor], Tensor]
    label_vectors: Tensor
    seen: Tensor


def with_heights(distances: Tensor | Distances, heights: Tensor) -> Tensor | Distances:
    """Distances (N, C) to labels that lie so high, (C,), above the embeddings; see `LabelTable.raised`."""
    if isinstance(distances, Tensor):
        return torch.hypot(distances, heights.to(distances))
    return RaisedDistances(distances, heights)


class RaisedDistances:
    """What `with_heights` says, computed when it is asked for; see `row_blocks.Distances`.

    Args:
        distances: without the heights.
        heights: (C,).
    """

    def __init__(self, distances: Distances, heights: Tensor) -> None:
        self.distances, self.heights = distances, heights

    def __mul__(self, factor: float) -> RaisedDistances:
        """The distances where everything is larger by a factor."""
        return RaisedDistances(self.distances * factor, self.heights * factor)

    @property
    def shape(self) -> tuple[int, int]:
        """N and C."""
        return self.distances.shape

    @property
    def known(self) -> Tensor:
        """(N,) bool: rows of some part."""
        return self.distances.known

    def blocks(self, rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Row ids (b,) and their distances (b, C), block by block."""
        for block, found in self.distances.blocks(rows):
            yield block, torch.hypot(found, self.heights.to(found))


class DistancesInParts:
    """Distances (N, C) of rows to label vectors, each row's through its own part; see `row_blocks.Distances`.

    Args:
        values: (N, H).
        num_labels: C.
        parts: which share no row.
        labels: (N,) int64, for the exact distance to the own label vector; see `functional.pairwise_distances`.
        size: factor of all distances.
    """

    def __init__(
        self, values: Tensor, num_labels: int, parts: Sequence[Part], labels: Tensor | None = None, size: float = 1.0
    ) -> None:
        self.values, self.num_labels, self.parts, self.labels, self.size = values, num_labels, parts, labels, size

    def __mul__(self, factor: float) -> DistancesInParts:
        """The distances where everything is larger by a factor."""
        return DistancesInParts(self.values, self.num_labels, self.parts, self.labels, factor * self.size)

    @property
    def shape(self) -> tuple[int, int]:
        """N and C."""
        return len(self.values), self.num_labels

    @property
    def known(self) -> Tensor:
        """(N,) bool: rows of some part."""
        found = torch.zeros(len(self.values), dtype=torch.bool, device=self.values.device)
        for part in self.parts:
            found |= part.rows
        return found

    def blocks(self, rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Row ids (b,) and their distances (b, C), part by part."""
        for part in self.parts:
            for block in torch.split(rows[part.rows[rows]], rows_at_a_time(self.shape)):
                labels = None if self.labels is None else self.labels[block]
                found = pairwise_distances(part.embed(self.values[block]), part.label_vectors, labels)
                yield block, found.masked_fill_(~part.seen, torch.inf).mul_(self.size)

    def stored_if_few(self) -> Tensor | DistancesInParts:
        """A tensor (N, C), infinite for rows of no part, where that is no larger than a block."""
        if not fits_a_block(self.shape):
            return self
        rows = torch.arange(len(self.values), device=self.values.device)
        found = list(self.blocks(rows))
        dtype = found[0][1].dtype if found else torch.float64
        stored = torch.full(self.shape, torch.inf, dtype=dtype, device=self.values.device)
        for block, distances in found:
            stored[block] = distances
        return stored
