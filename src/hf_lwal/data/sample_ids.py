"""Stable ids of training rows: row i of a map-style data set carries i, however it is shuffled or dealt out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

SAMPLE_ID = "lwal_sample_id"
"""Key of a batch under which the ids (B,) int64 travel; the trainer takes it out before the model's forward."""


ROW_WEIGHT = "lwal_row_weight"
"""Key of a batch under which what rows count (B,) float32 travels; the trainer takes it out, too."""


class RowWeights:
    """What each row of a training set counts; shared by all who read it, since it is known only when training begins.

    Attributes:
        values: (N,) float32 on the CPU, 0…1; None while all count the same.
    """

    values: torch.Tensor | None = None

    def kept(self, rows: int) -> Sequence[int]:
        """The rows that count for the most part."""
        return range(rows) if self.values is None else (self.values >= 0.5).nonzero()[:, 0].tolist()


class NumberedRow(NamedTuple):
    """A row and its id; no dict, so that nothing removes the id as an unused column."""

    row: Any
    sample_id: int


class NumberedRows(torch.utils.data.Dataset[NumberedRow]):
    """A map-style data set whose rows carry their index.

    Args:
        dataset: anything with ``__len__`` and ``__getitem__``.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        """Rows of the data set."""
        return len(self.dataset)

    def __getitem__(self, index: int) -> NumberedRow:
        """Row ``index`` with its id."""
        return NumberedRow(self.dataset[index], int(index))

    def __getitems__(self, indices: Sequence[int]) -> list[NumberedRow]:
        """Rows fetched at once, as data loaders do where the data set can: transforms then see whole batches."""
        fetch = getattr(self.dataset, "__getitems__", None)
        rows = [self.dataset[index] for index in indices] if fetch is None else fetch(indices)
        return [NumberedRow(row, int(index)) for row, index in zip(rows, indices, strict=True)]


class NumberedCollator:
    """Wraps a data collator: takes the ids off the rows before it and puts them into the batch after it.

    Args:
        collator: the data collator to wrap.
    """

    def __init__(self, collator: Callable[[Any], Any]) -> None:
        self.collator = collator

    def __call__(self, features: Sequence[NumberedRow]) -> Any:
        """Collate the rows; the batch gets `SAMPLE_ID` (B,) int64."""
        batch = self.collator([feature.row for feature in features])
        batch[SAMPLE_ID] = torch.tensor([feature.sample_id for feature in features])
        return batch
