"""Measures of classifiers and label tables, as functions and as modules for ``evaluate.load(path(name))``."""

from .calibration import Reliability, expected_calibration_error, reliability_curve
from .classification import AccuracyAndF1, accuracy_and_f1
from .curves import MeanAndSd, auac, mean_and_sd, percent_reduced, steps_to_accuracy
from .modules import path
from .structure import (
    class_correlations,
    largest_correlation,
    map_positions,
    mds_disparity,
    structure_correlation,
)

__all__ = [
    "AccuracyAndF1",
    "MeanAndSd",
    "Reliability",
    "accuracy_and_f1",
    "auac",
    "class_correlations",
    "expected_calibration_error",
    "largest_correlation",
    "map_positions",
    "mds_disparity",
    "mean_and_sd",
    "path",
    "percent_reduced",
    "reliability_curve",
    "steps_to_accuracy",
    "structure_correlation",
]
