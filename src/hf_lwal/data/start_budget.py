"""How many rows the start pass reads, in which batches, and which of those a rank reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from datasets import Dataset

from ..modeling.functional import IGNORE_INDEX

FORWARD_ROWS = 3
"""Rows that are only read forward for the work of one that is trained on: the backward pass costs twice as much."""
SHARE_OF_TRAINING = 0.1
"""Of the work of the planned training that the start may take; ``docs/choosing-a-default.md`` has the table."""


def rows_per_class_within(labels: np.ndarray, rows: int) -> int:
    """Rows per class, the same for all, that are as many as possible and no more than ``rows`` in all; perhaps 0.

    Args:
        labels: (N,) ids or names; -100 is not a class.
        rows: at most so many.
    """
    if labels.dtype.kind not in "OUS":
        labels = labels[labels != IGNORE_INDEX]
    left = np.sort(np.unique(labels, return_counts=True)[1])  # rows of the classes, the rarest first
    for index, count in enumerate(left):
        others = len(left) - index
        if count * others > rows:
            return rows // others
        rows -= int(count)
    return int(left.max(initial=0))


def batches_by_length(dataset: Any, indices: Sequence[int], size: int) -> list[list[int]]:
    """Positions in ``indices`` in batches of rows of about the same length, so that little is padded.

    Args:
        dataset: rows with other columns than ``input_ids``, or of one's own making, stay in their order.
        indices: rows of the data set.
        size: rows per batch.
    """
    order = list(range(len(indices)))
    if isinstance(dataset, Dataset) and "input_ids" in dataset.column_names:
        lengths = [len(row) for row in dataset.select(indices).with_format(None)["input_ids"]]
        order.sort(key=lengths.__getitem__)
    return [order[start : start + size] for start in range(0, len(order), size)]
