"""Which samples of every class are taken, in a random order of their own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def rank_in_class(labels: NDArray[np.generic]) -> NDArray[np.int64]:
    """How many samples of the same class come before each one.

    Args:
        labels: (N,) ids or names.

    >>> rank_in_class(np.array([7, 7, 3, 7, 3])).tolist()
    [0, 1, 0, 2, 1]
    """
    by_class = np.argsort(labels, kind="stable")
    _, first, counts = np.unique(labels[by_class], return_index=True, return_counts=True)
    rank = np.empty(len(labels), dtype=np.int64)
    rank[by_class] = np.arange(len(labels)) - np.repeat(first, counts)
    return rank


def stratified_indices(labels: Sequence[int], size: int, seed: int) -> list[int]:
    """Choose rows so that every class has its share, a difference of one row apart.

    Args:
        labels: the class of each row.
        size: how many rows to choose; all of them when there are fewer.
        seed: the same seed chooses the same rows.

    Returns:
        Sorted row numbers.

    >>> stratified_indices([0, 0, 0, 0, 1, 1, 1, 1], 4, seed=0)
    [2, 3, 4, 6]
    """
    order = np.random.default_rng(seed).permutation(len(labels))
    # Small ranks first takes from all classes in turn.
    turn = rank_in_class(np.asarray(labels)[order])
    return np.sort(order[np.argsort(turn, kind="stable")[:size]]).tolist()
