"""Measures of classifiers and label tables."""

from .classification import accuracy_and_f1

__all__ = ["accuracy_and_f1"]
