"""Whether probabilities say how often they are right: expected calibration error and reliability diagram."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..modeling.functional import IGNORE_INDEX

BINS = 15
"""Of equal width, as in Guo et al. (2017)."""


class Reliability(NamedTuple):
    """Rows sorted into bins by the probability of their likeliest label, the confidence.

    Attributes:
        counts: (M,) rows per bin.
        confidence: (M,) mean confidence of the rows of a bin; NaN in empty bins.
        accuracy: (M,) share of them whose likeliest label is right; NaN in empty bins.
    """

    counts: NDArray[np.int64]
    confidence: NDArray[np.float64]
    accuracy: NDArray[np.float64]

    @property
    def error(self) -> float:
        """Mean over rows of the gap between accuracy and confidence of their bin; NaN without rows."""
        if not self.counts.sum():
            return float("nan")
        gaps = np.abs(np.nan_to_num(self.accuracy) - np.nan_to_num(self.confidence))
        return float(gaps @ self.counts / self.counts.sum())


class BinSums:
    """What `Reliability` is made of, as sums, to which rows can be added.

    Args:
        bins: M; bin m holds confidences above (m - 1) / M and up to m / M, the first one 0, too.
    """

    def __init__(self, bins: int = BINS) -> None:
        self.sums = np.zeros((3, bins))  # rows, confidence, right ones

    def add(self, confidence: NDArray[Any], right: NDArray[np.bool_]) -> None:
        """Add rows.

        Args:
            confidence: (N,) in 0…1.
            right: (N,) whether the likeliest label is the row's own.
        """
        bins = self.sums.shape[1]
        places = np.searchsorted(np.linspace(0.0, 1.0, bins + 1)[1:-1], confidence, side="left")
        for row, weights in zip(self.sums, (None, confidence, right), strict=True):
            row += np.bincount(places, weights, minlength=bins)

    def reliability(self) -> Reliability:
        """Means of the bins."""
        counts = self.sums[0].round().astype(np.int64)
        with np.errstate(invalid="ignore", divide="ignore"):
            return Reliability(counts, *(self.sums[1:] / self.sums[0]))


def reliability_curve(probabilities: ArrayLike, labels: ArrayLike, bins: int = BINS) -> Reliability:
    """Accuracy against confidence: the points of a reliability diagram.

    Args:
        probabilities: (N, C), each row the probabilities of the labels.
        labels: (N,) ids; rows with -100 are left out.
        bins: of equal width over 0…1.

    Raises:
        ValueError: no probabilities, not one label per row, or no bin.
    """
    shares, ids = np.asarray(probabilities, dtype=np.float64), np.asarray(labels)
    if bins < 1:
        raise ValueError(f"bins is {bins}, but there must be at least 1, usually {BINS}.")
    if shares.ndim != 2 or ids.shape != shares.shape[:1]:
        raise ValueError(
            f"probabilities must have the shape (N, C) and labels (N,), but they have {shares.shape} and {ids.shape}."
        )
    kept = ids != IGNORE_INDEX
    shares, ids = shares[kept], ids[kept]
    wrong = ~((shares >= 0.0) & (shares <= 1.0 + 1e-6))
    if bool(wrong.any()):
        raise ValueError(
            f"probabilities must lie in 0…1, but they hold {shares[wrong][0]:g}: give the softmax of logits."
        )
    found = BinSums(bins)
    if len(ids):
        found.add(np.minimum(shares.max(axis=1), 1.0), shares.argmax(axis=1) == ids)
    return found.reliability()


def expected_calibration_error(probabilities: ArrayLike, labels: ArrayLike, bins: int = BINS) -> float:
    """Mean gap between how sure the likeliest label is and how often it is right.

    Guo et al., "On Calibration of Modern Neural Networks" (ICML 2017), after Naeini et al. (2015).

    Args:
        probabilities: (N, C), each row the probabilities of the labels.
        labels: (N,) ids; rows with -100 are left out.
        bins: of equal width over 0…1; few rows in many bins look less calibrated than they are.

    Returns:
        0…1, 0 where in every bin as many rows are right as their mean probability says. NaN without rows.

    >>> round(expected_calibration_error([[0.8, 0.2], [0.2, 0.8], [0.75, 0.25], [0.8, 0.2]], [0, 1, 0, 1]), 6)
    0.0375
    """
    return reliability_curve(probabilities, labels, bins).error
