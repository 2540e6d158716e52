"""What a training took, apart from its start pass and its evaluations: the one reading of a trainer's log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Times(NamedTuple):
    """Seconds of the parts of a training; None where the log does not tell.

    Attributes:
        training: from the first step to the last, without start pass and evaluations.
        start: start pass.
        evaluation: evaluations before the training ended, with the class means that they refresh first.
        whole: everything together.
        start_samples: rows of the start pass.
    """

    training: float | None
    start: float | None
    evaluation: float
    whole: float | None
    start_samples: int | None


def running_times(log: Sequence[Mapping[str, Any]]) -> Times:
    """Read the times of the last training.

    Args:
        log: ``state.log_history`` of a trainer.

    >>> log = [{"start_seconds": 1.0, "start_samples": 8}, {"eval_refresh_seconds": 0.5}, {"eval_runtime": 2.0}]
    >>> running_times([*log, {"train_runtime": 10.0}, {"eval_runtime": 3.0}])
    Times(training=6.5, start=1.0, evaluation=2.5, whole=10.0, start_samples=8)
    """
    ends = [place for place, entry in enumerate(log) if "train_runtime" in entry]
    inside = log[: ends[-1]] if ends else log
    evaluation = sum(entry.get("eval_runtime", 0.0) + entry.get("eval_refresh_seconds", 0.0) for entry in inside)
    begin: Mapping[str, Any] = next((entry for entry in log if "start_seconds" in entry), {})
    start, whole = begin.get("start_seconds"), log[ends[-1]]["train_runtime"] if ends else None
    rest = None if whole is None else max(whole - evaluation - (start or 0.0), 0.0)
    rows = int(begin["start_samples"]) if "start_samples" in begin else None
    return Times(rest, start, evaluation, whole, rows)
