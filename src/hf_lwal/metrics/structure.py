"""How much the distances between labels resemble a reference, such as distances in WordNet.

The two measures of label structure in the paper (https://arxiv.org/abs/2209.04528): the rank
correlation of a class's distances to all others, and how well two maps of the labels lie on top of each other.
"""

from __future__ import annotations

from inspect import signature
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

MAP_SEED = 123
"""Seed of the maps that the paper compares."""


def class_correlations(label_distances: ArrayLike, reference_distances: ArrayLike) -> NDArray[np.float64]:
    """Kendall's tau-b between each class's distances to the other classes and the reference's, ties corrected.

    Args:
        label_distances: (C, C), as ``hierarchy.label_distances`` returns them. A row of NaN stands for a class
            without label vector.
        reference_distances: (C, C). A row of NaN stands for a class that the reference does not know.

    Returns:
        (C,) float64 in -1…1. Classes with a NaN row on either side are left out: their own entry is NaN, and the rows
        of the others do not count them. A class whose reference distances are all equal gives nothing to compare with:
        NaN. One whose label distances are all equal, as between the corners of a one-hot code, orders nothing: 0.
    """
    label, reference, kept = _compared(label_distances, reference_distances)
    from scipy.stats import kendalltau

    correlations = np.full(len(kept), np.nan)
    for row, place in enumerate(np.flatnonzero(kept)):
        others = np.arange(len(label)) != row
        own, wanted = label[row, others], reference[row, others]  # (K - 1,)
        if np.ptp(wanted) > 0:
            correlations[place] = kendalltau(wanted, own).statistic if np.ptp(own) > 0 else 0.0
    return correlations


def structure_correlation(label_distances: ArrayLike, reference_distances: ArrayLike) -> float:
    """Mean over classes of `class_correlations`, the paper's structure score.

    Checked against the tau-b of every class that the reference implementation's arithmetic gives for CIFAR-10,
    Fashion-MNIST and AwA2.

    Args:
        label_distances: (C, C), NaN rows for classes without label vector.
        reference_distances: (C, C), NaN rows for classes without reference.

    Returns:
        A number in -1…1: 1 where every class orders the others as the reference does, about 0 by chance. NaN where no
        class has a defined correlation.

    >>> places = np.array([0.0, 1.0, 3.0, 7.0])
    >>> distances = np.abs(places[:, None] - places)
    >>> structure_correlation(distances, 10 * distances**2)
    1.0
    """
    correlations = class_correlations(label_distances, reference_distances)
    defined = correlations[~np.isnan(correlations)]
    return float(defined.mean()) if len(defined) else float("nan")


def largest_correlation(reference_distances: ArrayLike) -> float:
    """The structure correlation of label distances that agree with the reference wherever it tells two classes apart.

    Label distances of a trained model have no ties, reference distances many: then tau-b stays below 1 however good
    the agreement, far below for a reference of groups, which has two distances only.

    Args:
        reference_distances: (C, C), NaN rows for classes without reference.

    >>> round(largest_correlation([[0, 0, 1, 1], [0, 0, 1, 1], [1, 1, 0, 0], [1, 1, 0, 0]]), 3)
    0.816
    """
    reference = _square("reference_distances", reference_distances)
    # Equal distances get ranks in the order of the classes; missing ones come last and stay missing.
    ranks = np.argsort(np.argsort(reference, axis=1, kind="stable"), axis=1).astype(np.float64)  # (C, C)
    return structure_correlation(np.where(np.isnan(reference), np.nan, ranks), reference)


def map_positions(distances: ArrayLike, seed: int = MAP_SEED) -> NDArray[np.float64]:
    """Places in the plane whose distances come closest to the given ones: metric MDS, the best of four random starts.

    Args:
        distances: (C, C) symmetric and finite.
        seed: of the starts; the same seed gives the same map.

    Returns:
        (C, 2) float64.
    """
    try:
        from sklearn.manifold import MDS
    except ImportError as error:
        raise ImportError('Maps need scikit-learn, which is not installed: pip install "hf-lwal[plots]".') from error
    takes_init = "init" in signature(MDS).parameters  # scikit-learn 1.8 renamed an argument and added this one
    given = {"metric": "precomputed", "init": "random"} if takes_init else {"dissimilarity": "precomputed"}
    scaling = MDS(2, n_init=4, eps=1e-6, random_state=seed, **given)
    positions: NDArray[np.float64] = scaling.fit_transform(np.asarray(distances, dtype=np.float64))
    return positions


def mds_disparity(label_distances: ArrayLike, reference_distances: ArrayLike, seed: int = MAP_SEED) -> float:
    """Misfit of two maps of the labels after shifting, scaling and turning one onto the other (Procrustes).

    Both matrices become maps by `map_positions` with the same seed, as in the paper; each map is centred and scaled to
    a unit sum of squares, and the disparity is the sum of squared distances that remains. A map has an arbitrary
    start, so small differences between two disparities say little.

    Args:
        label_distances: (C, C) symmetric, NaN rows for classes without label vector.
        reference_distances: (C, C) symmetric, NaN rows for classes without reference; both kinds are left out.
        seed: of the maps.

    Returns:
        A number in 0…1; 0 where one map is the other, shifted, scaled, turned or mirrored.
    """
    label, reference, _ = _compared(label_distances, reference_distances)
    from scipy.spatial import procrustes

    for name, matrix in (("label_distances", label), ("reference_distances", reference)):
        if not matrix.any():
            raise ValueError(f"All labels lie on one point, of which there is no map: {name} are 0 throughout.")
    *_, disparity = procrustes(map_positions(reference, seed), map_positions(label, seed))
    return float(disparity)


def _compared(
    label_distances: ArrayLike, reference_distances: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
    """Both matrices (K, K) with the K classes that both know, and which of the C classes those are."""
    label, reference = _square("label_distances", label_distances), _square("reference_distances", reference_distances)
    if label.shape != reference.shape:
        raise ValueError(
            f"label_distances and reference_distances must cover the same classes in the same order, but have the "
            f"shapes {label.shape} and {reference.shape}."
        )
    kept = ~(_is_missing(label) | _is_missing(reference))  # (C,)
    if kept.sum() < 3:
        raise ValueError(
            f"A structure needs at least 3 classes with a label vector and a reference, but there are {kept.sum()}."
        )
    label, reference = label[np.ix_(kept, kept)], reference[np.ix_(kept, kept)]  # (K, K)
    for name, matrix in (("label_distances", label), ("reference_distances", reference)):
        if not np.isfinite(matrix).all():
            raise ValueError(f"{name} must be finite, apart from whole rows of NaN for classes to leave out.")
    return label, reference, kept


def _square(name: str, matrix: Any) -> NDArray[np.float64]:
    values = np.asarray(matrix, dtype=np.float64)
    if values.ndim != 2 or values.shape[0] != values.shape[1]:
        raise ValueError(f"{name} must have the shape (C, C), got {values.shape}.")
    return values


def _is_missing(matrix: NDArray[np.float64]) -> NDArray[np.bool_]:
    """(C,) whether all distances of a class to others are NaN, whatever the diagonal holds."""
    others = matrix.copy()
    np.fill_diagonal(others, np.nan)
    return np.asarray(np.isnan(others).all(axis=1))
