"""The cheapest control: a logistic regression on frozen features, in seconds, and as the start of a fine-tuning."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..data.selection import stratified_indices
from ..modeling.functional import IGNORE_INDEX
from ..modeling.head_start import write_linear
from ..modeling.start import StartSamples
from ..objectives.one_hot import OneHot
from ..objectives.stock import stock_head

INVERSE_STRENGTHS = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
"""scikit-learn's ``C`` for centred features of root mean square length 1, to choose from by cross-validation."""
FOLDS = 4
LARGEST_VALIDATION = 2000
"""Rows, of every class its share, among which the strength is chosen where there are more: a fit of all takes long."""


class Regression(NamedTuple):
    """A multinomial logistic regression.

    Attributes:
        weight: (C, H) float32; 0 for classes without rows.
        bias: (C,) float32; the smallest for classes without rows.
        strength: the chosen ``C``.
        seconds: what choosing and fitting took.
    """

    weight: Tensor
    bias: Tensor
    strength: float
    seconds: float

    def accuracy(self, features: Tensor, labels: Tensor) -> float:
        """Share of features (N, H) whose label (N,) it finds."""
        return float(((features.float() @ self.weight.T + self.bias).argmax(dim=1) == labels).double().mean())


def fit_regression(
    features: Tensor,
    labels: Tensor,
    num_labels: int,
    strengths: Iterable[float] = INVERSE_STRENGTHS,
    balanced: bool = False,
) -> Regression:
    """Fit a logistic regression whose strength of regularisation has the best accuracy in cross-validation.

    Args:
        features: (N, H).
        labels: (N,) int64; rows with -100 are left out.
        num_labels: C.
        strengths: to choose from; where no class has a row to spare, the middle one is taken.
        balanced: weigh rows so that every class counts as much, and choose by the mean accuracy of the classes.
    """
    started = time.perf_counter()
    kept = labels != IGNORE_INDEX
    rows, ids = features[kept].double().cpu(), labels[kept].cpu().numpy()
    centre = rows.mean(dim=0)
    size = float((rows - centre).square().sum(dim=1).mean().sqrt()) or 1.0
    scaled = ((rows - centre) / size).numpy()

    with warnings.catch_warnings():
        # scikit-learn takes one row per class for numbers to predict, and says so.
        warnings.filterwarnings("ignore", "The number of unique classes is greater", UserWarning)
        fitted, best = _best_fit(scaled, ids, list(strengths), balanced)
    weight, bias = _of_all_classes(fitted, num_labels)
    weight = weight / size
    return Regression(weight.float(), (bias - weight @ centre).float(), best, time.perf_counter() - started)


def _best_fit(rows: np.ndarray, ids: np.ndarray, grid: Sequence[float], balanced: bool) -> tuple[Any, float]:
    """scikit-learn's regression with the strength that cross-validation prefers, and that strength."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_score

    def model(strength: float) -> Any:
        return LogisticRegression(C=strength, max_iter=1000, class_weight="balanced" if balanced else None)

    least = int(np.unique(ids, return_counts=True)[1].min())
    best = grid[len(grid) // 2]
    if least > 1 and len(grid) > 1:
        places = stratified_indices(ids.tolist(), max(LARGEST_VALIDATION, 2 * len(np.unique(ids))), seed=0)
        some, names = rows[places], ids[places]
        folds = StratifiedKFold(min(FOLDS, int(np.unique(names, return_counts=True)[1].min())))
        score = "balanced_accuracy" if balanced else "accuracy"
        found = {
            strength: cross_val_score(model(strength), some, names, cv=folds, scoring=score).mean()
            for strength in grid
        }
        best = max(found, key=found.__getitem__)
    return model(best).fit(rows, ids), best


def _of_all_classes(fitted: Any, num_labels: int) -> tuple[Tensor, Tensor]:
    """Weight (C, H) and bias (C,) float64; scikit-learn has one row for two classes, and none for absent ones."""
    rows, shifts = torch.as_tensor(fitted.coef_), torch.as_tensor(fitted.intercept_)
    if len(fitted.classes_) == 2:
        rows, shifts = torch.cat([-rows / 2, rows / 2]), torch.cat([-shifts / 2, shifts / 2])
    places = torch.as_tensor(fitted.classes_)
    weight = rows.new_zeros(num_labels, rows.shape[1]).index_copy(0, places, rows)
    return weight, shifts.new_full((num_labels,), float(shifts.min())).index_copy(0, places, shifts)


class RegressionStart(OneHot):
    """One-hot labels from a head that starts as a logistic regression: LP-FT (Kumar et al., ICLR 2022)."""

    counts_label_names = False
    citation = "Kumar et al., Fine-Tuning can Distort Pretrained Features (ICLR 2022), arXiv:2202.10054"

    def __init__(self) -> None:
        super().__init__(init="class_means")  # that is, with a start pass

    def start(
        self, model: PreTrainedModel, samples: StartSamples, learning_rate: float | None = None
    ) -> dict[str, float]:
        """Overwrite the head by the regression on the start rows."""
        found = fit_regression(*samples[:2], model.config.num_labels)
        write_linear(model.get_submodule(stock_head(model).name), found.weight, found.bias)
        return {"start_strength": found.strength}
