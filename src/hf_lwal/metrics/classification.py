"""Accuracy and macro-F1, reported where the user gives no metrics of their own, and the calibration beside them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from transformers import EvalPrediction

from ..modeling.functional import IGNORE_INDEX
from .calibration import BinSums, Reliability


def accuracy_and_f1(prediction: EvalPrediction) -> dict[str, float]:
    """Accuracy and macro-F1, the metrics reported without ``compute_metrics``.

    Args:
        prediction: logits (N, C), or a list of batches of them, and labels (N,); -100 rows are left out. Of a tuple
            of predictions the first are the logits; predictions (N,) are taken as ids of labels.
    """
    return AccuracyAndF1()(prediction)


class AccuracyAndF1:
    """`accuracy_and_f1`, which can also be given a batch at a time, as with ``batch_eval_metrics``.

    Args:
        calibration: report ``calibration_error`` too, as `expected_calibration_error`, where there are logits.

    Attributes:
        temperature: what the logits were divided by; if not 1, ``calibration_error_before`` is reported, too.
        reliability: of the last result, by "before" and "after" calibration, or by "" where the temperature is 1.
    """

    def __init__(self, calibration: bool = False) -> None:
        self.calibration, self.temperature = calibration, 1.0
        self.reliability: dict[str, Reliability] = {}
        self.reset()

    def reset(self) -> None:
        """Forget the batches given so far."""
        self._counts = np.zeros((3, 0), dtype=np.int64)  # hits, rows with the label, rows predicted to have it
        self._bins: dict[str, BinSums] = {}

    def __call__(self, prediction: EvalPrediction, compute_result: bool = True) -> dict[str, float]:
        """Add rows; with ``compute_result``, measure all since the last result."""
        logits, labels = _with_labels(prediction)
        predicted, num_labels = _ids(logits, labels)
        if self.calibration and logits.ndim == 2:
            self._add_confidence(logits, predicted == labels)
        size = max(num_labels, self._counts.shape[1])
        added = [np.bincount(ids, minlength=size) for ids in (labels[predicted == labels], labels, predicted)]
        self._counts = np.pad(self._counts, ((0, 0), (0, size - self._counts.shape[1]))) + np.stack(added)
        if not compute_result:
            return {}
        hits, rows, guesses = self._counts
        present = rows + guesses > 0
        f1 = 2 * hits[present] / (rows + guesses)[present]
        self.reliability = {name: bins.reliability() for name, bins in self._bins.items()}
        self.reset()
        errors = {
            "calibration_error_before" if name == "before" else "calibration_error": found.error
            for name, found in self.reliability.items()
            if found.counts.sum()
        }
        return {
            "accuracy": float(hits.sum() / rows.sum()) if rows.sum() else 0.0,
            "f1_macro": float(f1.mean()) if len(f1) else 0.0,
            **errors,
        }

    def _add_confidence(self, logits: np.ndarray, right: np.ndarray) -> None:
        below = np.subtract(logits, logits.max(axis=1, keepdims=True), dtype=np.float32)
        factors = {"": 1.0} if self.temperature == 1.0 else {"after": 1.0, "before": self.temperature}
        for name, factor in factors.items():
            confidence = 1.0 / np.exp(factor * below).sum(axis=1, dtype=np.float64)  # of the likeliest label
            self._bins.setdefault(name, BinSums()).add(confidence, right)


def _with_labels(prediction: EvalPrediction) -> tuple[np.ndarray, np.ndarray]:
    """Logits or predicted ids, and true ids, of the rows with a label."""
    logits, labels = (
        np.concatenate([_first(batch) for batch in values]) if isinstance(values, list) else _first(values)
        for values in (prediction.predictions, prediction.label_ids)
    )
    kept = labels != IGNORE_INDEX
    return (logits, labels) if bool(kept.all()) else (logits[kept], labels[kept])


def _ids(logits: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, int]:
    """Ids predicted (N,), and how many labels there are."""
    if logits.ndim > 1:
        return logits.argmax(axis=-1), logits.shape[-1]
    return logits, int(max(logits.max(initial=-1), labels.max(initial=-1))) + 1


def _first(values: Any) -> np.ndarray:
    values = values[0] if isinstance(values, (list, tuple)) else values
    return (
        values.float().cpu().numpy()
        if isinstance(values, torch.Tensor) and values.is_floating_point()
        else (np.asarray(values.cpu() if isinstance(values, torch.Tensor) else values))
    )
