"""Accuracy and macro-F1, reported where the user gives no metrics of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from transformers import EvalPrediction

from ..modeling.functional import IGNORE_INDEX


def accuracy_and_f1(prediction: EvalPrediction) -> dict[str, float]:
    """Accuracy and macro-F1, the metrics reported without ``compute_metrics``.

    Args:
        prediction: logits (N, C), or a list of batches of them, and labels (N,); -100 rows are left out. Of a tuple
            of predictions the first are the logits; predictions (N,) are taken as ids of labels.
    """
    return AccuracyAndF1()(prediction)


class AccuracyAndF1:
    """`accuracy_and_f1`, which can also be given a batch at a time, as with ``batch_eval_metrics``."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget the batches given so far."""
        self._counts = np.zeros((3, 0), dtype=np.int64)  # hits, rows with the label, rows predicted to have it

    def __call__(self, prediction: EvalPrediction, compute_result: bool = True) -> dict[str, float]:
        """Add rows; with ``compute_result``, measure all since the last result."""
        predicted, labels, num_labels = _ids(prediction)
        size = max(num_labels, self._counts.shape[1])
        added = [np.bincount(ids, minlength=size) for ids in (labels[predicted == labels], labels, predicted)]
        self._counts = np.pad(self._counts, ((0, 0), (0, size - self._counts.shape[1]))) + np.stack(added)
        if not compute_result:
            return {}
        hits, rows, guesses = self._counts
        present = rows + guesses > 0
        f1 = 2 * hits[present] / (rows + guesses)[present]
        self.reset()
        return {
            "accuracy": float(hits.sum() / rows.sum()) if rows.sum() else 0.0,
            "f1_macro": float(f1.mean()) if len(f1) else 0.0,
        }


def _ids(prediction: EvalPrediction) -> tuple[np.ndarray, np.ndarray, int]:
    """Ids predicted and true ids of the rows with a label, and how many labels there are."""
    logits, labels = (
        np.concatenate([_first(batch) for batch in values]) if isinstance(values, list) else _first(values)
        for values in (prediction.predictions, prediction.label_ids)
    )
    kept = labels != IGNORE_INDEX
    predicted = (logits if logits.ndim == 1 else logits.argmax(axis=-1))[kept]
    labels = labels[kept]
    largest = int(max(predicted.max(initial=-1), labels.max(initial=-1))) + 1
    return predicted, labels, largest if logits.ndim == 1 else logits.shape[-1]


def _first(values: Any) -> np.ndarray:
    values = values[0] if isinstance(values, (list, tuple)) else values
    return (
        values.float().cpu().numpy()
        if isinstance(values, torch.Tensor) and values.is_floating_point()
        else (np.asarray(values.cpu() if isinstance(values, torch.Tensor) else values))
    )
