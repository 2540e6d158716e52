"""Accuracy and macro-F1, reported where the user gives no metrics of their own."""

from __future__ import annotations

import numpy as np
from transformers import EvalPrediction

from ..functional import IGNORE_INDEX


def accuracy_and_f1(prediction: EvalPrediction) -> dict[str, float]:
    """Accuracy and macro-F1, the metrics reported without ``compute_metrics``.

    Args:
        prediction: logits (N, C), or a list of batches of them, and labels (N,); -100 rows are left out.
    """
    logits, labels = prediction.predictions, prediction.label_ids
    if isinstance(logits, (list, tuple)):
        logits = np.concatenate(logits) if logits[0].ndim == 2 and logits[0].shape[0] != len(labels) else logits[0]
    if isinstance(labels, (list, tuple)):
        labels = np.concatenate(labels)
    kept = labels != IGNORE_INDEX
    predicted, labels = logits.argmax(axis=-1)[kept], labels[kept]
    num_labels = logits.shape[-1]
    hits = np.bincount(labels[predicted == labels], minlength=num_labels)
    totals = np.bincount(labels, minlength=num_labels) + np.bincount(predicted, minlength=num_labels)
    present = totals > 0
    return {
        "accuracy": float((predicted == labels).mean()) if len(labels) else 0.0,
        "f1_macro": float((2 * hits[present] / totals[present]).mean()) if present.any() else 0.0,
    }
