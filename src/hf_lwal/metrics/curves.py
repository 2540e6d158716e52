"""How fast and how well a training got where it is: measures of accuracy curves, and their spread over seeds.

The measures of the paper's result tables (https://arxiv.org/abs/2209.04528).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple


class MeanAndSd(NamedTuple):
    """Mean and sample standard deviation over seeds; ``sd`` is None for a single seed."""

    mean: float
    sd: float | None


def auac(accuracies: Sequence[float]) -> float:
    """Area under the accuracy curve: the plain mean of the accuracies at equally spaced evaluations, as in the paper.

    Args:
        accuracies: one per evaluation (the paper: per epoch), in any unit; the result has the same.

    >>> auac([0.25, 0.5, 0.75])
    0.5
    """
    if not accuracies:
        raise ValueError("accuracies is empty: give one accuracy per evaluation.")
    return statistics.fmean(accuracies)


def steps_to_accuracy(curve: Sequence[tuple[float, float]], target: float) -> float | None:
    """Find where an accuracy curve first reaches a target; nothing is interpolated between evaluations.

    Args:
        curve: points (x, accuracy), x being epochs, steps or seconds; an accuracy of NaN reaches nothing.
        target: accuracy to reach, in the curve's unit.

    Returns:
        The smallest x with accuracy >= target; None where it is never reached.

    >>> steps_to_accuracy([(1, 0.4), (2, 0.7), (3, 0.6)], 0.5)
    2.0
    """
    return min((float(x) for x, accuracy in curve if accuracy >= target), default=None)


def percent_reduced(reference: float | None, own: float | None) -> float | None:
    """Share of the reference's epochs, steps or seconds that was saved: ``100 (reference - own) / reference``.

    Args:
        reference: what the reference method needed to reach its best accuracy; above 0.
        own: what this method needed to reach the same accuracy, from `steps_to_accuracy`.

    Returns:
        Percent, negative where this method was slower; None where either never got there, or where the reference got
        there at 0, of which nothing can be saved.

    >>> percent_reduced(20, 5)
    75.0
    """
    if any(value is not None and value < 0 for value in (reference, own)):
        raise ValueError(f"Epochs, steps and seconds cannot be negative: got reference {reference} and own {own}.")
    if not reference or own is None:
        return None
    return 100.0 * (reference - own) / reference


def mean_and_sd(values: Sequence[float]) -> MeanAndSd:
    """Mean and sample standard deviation (n - 1) over seeds.

    Args:
        values: one per seed.

    >>> mean_and_sd([1.0, 3.0, 5.0])
    MeanAndSd(mean=3.0, sd=2.0)
    """
    if not values:
        raise ValueError("values is empty: give one value per seed.")
    if len(values) == 1:
        return MeanAndSd(float(values[0]), None)
    finite = all(map(math.isfinite, values))  # statistics fails on NaN with an error that says nothing
    return MeanAndSd(statistics.fmean(values), statistics.stdev(map(float, values)) if finite else math.nan)
