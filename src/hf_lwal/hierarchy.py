"""What the label vectors say about the labels: distances between them, nearest neighbours, and a hierarchy.

Classes whose rows get similar embeddings get label vectors that lie close together, so that the distances between the
rows of the label table are a learned picture of how the classes relate. Pure functions of numbers; nothing is plotted
here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

    MatrixLike = Tensor | NDArray[Any] | Sequence[Sequence[float]]

Matrix = NDArray[np.float64]
LINKAGE_METHODS = ("average", "complete", "single", "weighted")
"""The linkage methods that are defined for any distance; ``ward`` and the centroid methods need raw coordinates."""


def as_matrix(label_vectors: MatrixLike, allow_missing: bool = False) -> Matrix:
    """Return label vectors as a float64 array, from a tensor on any device and of any dtype, an array or lists.

    Args:
        label_vectors: (C, D), all finite.
        allow_missing: rows of NaN throughout are fine too.
    """
    if hasattr(label_vectors, "detach"):
        label_vectors = label_vectors.detach().cpu().double().numpy()
    matrix = np.asarray(label_vectors, dtype=np.float64)
    if matrix.ndim != 2:
        raise ValueError(f"label_vectors must have the shape (C, D), got {matrix.shape}.")
    fine = np.isfinite(matrix).all(axis=1) | (np.isnan(matrix).all(axis=1) & allow_missing)  # (C,)
    if not fine.all():
        rows = np.flatnonzero(~fine)
        raise ValueError(f"label_vectors must be finite, but rows {rows[:5].tolist()} hold NaN or infinity.")
    return matrix


def _euclidean(matrix: Matrix) -> Matrix:
    """(C, D) to (C, C): centred before the square is expanded, which would lose all digits on a common offset."""
    centred = matrix - matrix.mean(axis=0)
    squares = np.square(centred).sum(axis=1)  # (C,)
    squared: Matrix = squares[:, None] - 2.0 * (centred @ centred.T) + squares  # (C, C)
    return np.sqrt(np.maximum(squared, 0.0))


def _cosine(matrix: Matrix) -> Matrix:
    """(C, D) to (C, C): one minus the cosine of the angle; a row of zeros is at distance 1 from every other."""
    directions = matrix / np.maximum(np.linalg.norm(matrix, axis=1, keepdims=True), 1e-12)
    distances: Matrix = np.maximum(1.0 - directions @ directions.T, 0.0)
    return distances


METRICS: dict[str, Callable[[Matrix], Matrix]] = {"euclidean": _euclidean, "cosine": _cosine}


def label_distances(label_vectors: MatrixLike, metric: str = "euclidean", allow_missing: bool = False) -> Matrix:
    """Compute the distance between every two labels.

    Args:
        label_vectors: (C, D) tensor or array.
        metric: "euclidean", what the model itself compares with, or "cosine".
        allow_missing: rows of NaN throughout stand for labels without a vector, and have distances of NaN.

    Returns:
        (C, C) float64, exactly symmetric with a zero diagonal.

    >>> label_distances([[0.0, 0.0], [3.0, 4.0]]).tolist()
    [[0.0, 5.0], [5.0, 0.0]]
    """
    if metric not in METRICS:
        raise ValueError(f"metric must be one of {', '.join(METRICS)}, got {metric!r}.")
    matrix = as_matrix(label_vectors, allow_missing)
    present = ~np.isnan(matrix).all(axis=1)  # (C,)
    between = METRICS[metric](matrix[present])
    between = (between + between.T) / 2.0
    np.fill_diagonal(between, 0.0)
    distances = np.full((len(matrix), len(matrix)), np.nan)
    distances[np.ix_(present, present)] = between
    return distances


def group_distances(groups: Sequence[str | None]) -> Matrix:
    """Distances of a hierarchy with one level: 0 between labels of one group, 1 between groups.

    Args:
        groups: for each of the C labels its group, None for a label that belongs nowhere.

    Returns:
        (C, C) float64; NaN in the rows and columns of labels without group.

    >>> group_distances(["animal", "animal", "tool"])[0].tolist()
    [0.0, 0.0, 1.0]
    """
    numbers = {group: float(number) for number, group in enumerate(dict.fromkeys(groups))}
    codes = np.asarray([np.nan if group is None else numbers[group] for group in groups])  # (C,)
    difference = codes[:, None] - codes  # (C, C)
    apart: Matrix = np.where(np.isnan(difference), np.nan, np.sign(np.abs(difference)))
    return apart


def reference_clusters(distances: NDArray[Any], threshold: float = 0.7) -> list[int | None]:
    """Cut the average-linkage tree of a reference into clusters, as the paper colours its dendrograms.

    Args:
        distances: (C, C) symmetric reference distances; rows of NaN for labels without reference.
        threshold: branches that meet below this share of the tree's height are one cluster.

    Returns:
        For each label the number of its cluster, in the order of their first labels; None for a label that is alone
        or has no reference.

    >>> reference_clusters(label_distances([[0.0], [1.0], [10.0], [11.0], [30.0]]))
    [0, 0, 0, 0, None]
    """
    distances = np.asarray(distances, dtype=np.float64)
    known = np.flatnonzero(~np.isnan(distances).all(axis=1) & np.isfinite(np.diag(distances)))
    if len(known) < 2:
        return [None] * len(distances)
    from scipy.cluster.hierarchy import fcluster

    merges = linkage(distances[np.ix_(known, known)])
    below = np.nextafter(threshold * merges[-1, 2], -np.inf)  # a branch at the threshold itself stays whole
    flat = fcluster(merges, max(below, 0.0), criterion="distance")
    sizes = Counter(flat.tolist())
    numbers: dict[int, int] = {}
    clusters: list[int | None] = [None] * len(distances)
    for label, cluster in zip(known.tolist(), flat.tolist(), strict=True):
        if sizes[cluster] > 1:
            clusters[label] = numbers.setdefault(cluster, len(numbers))
    return clusters


def linkage(distances: NDArray[Any], method: str = "average") -> Matrix:
    """Merge the closest labels step by step into a tree (agglomerative clustering).

    Args:
        distances: (C, C) symmetric, as ``label_distances`` returns them.
        method: how far two groups of labels are apart; "average" is the mean over their pairs (UPGMA).

    Returns:
        (C - 1, 4) float64 in SciPy's format: the two merged nodes, their distance, the number of leaves.

    >>> linkage(label_distances([[0.0], [1.0], [5.0]]))[:, 2].tolist()
    [1.0, 4.5]
    """
    if method not in LINKAGE_METHODS:
        raise ValueError(f"method must be one of {', '.join(LINKAGE_METHODS)}, got {method!r}.")
    distances = np.asarray(distances, dtype=np.float64)
    if distances.ndim != 2 or distances.shape[0] != distances.shape[1]:
        raise ValueError(f"distances must have the shape (C, C), got {distances.shape}.")
    if len(distances) < 2:
        raise ValueError("A hierarchy needs at least 2 labels, got 1.")
    from scipy.cluster.hierarchy import linkage as scipy_linkage
    from scipy.spatial.distance import squareform

    merges: Matrix = scipy_linkage(squareform(distances, checks=False), method=method)
    return merges


def leaf_order(merges: Matrix) -> list[int]:
    """Return the labels in the order in which the tree shows them: close ones next to each other.

    >>> leaf_order(linkage(label_distances([[0.0], [5.0], [1.0]])))
    [1, 0, 2]
    """
    from scipy.cluster.hierarchy import leaves_list

    return [int(leaf) for leaf in leaves_list(merges)]


def nearest_labels(distances: NDArray[Any], names: Sequence[str], top_k: int = 3) -> list[list[tuple[str, float]]]:
    """List each label's nearest other labels.

    Args:
        distances: (C, C), as ``label_distances`` returns them.
        names: the C label names.
        top_k: how many neighbours to list; all others when there are fewer.

    Returns:
        For each of the C labels, in order, its neighbours with their distances, nearest first.

    >>> nearest_labels(label_distances([[0.0], [1.0], [5.0]]), ["a", "b", "c"], top_k=1)
    [[('b', 1.0)], [('a', 1.0)], [('b', 4.0)]]
    """
    distances = np.asarray(distances, dtype=np.float64)
    expected = (len(names), len(names))
    if distances.shape != expected:
        raise ValueError(f"distances must have the shape {expected} for {len(names)} names, got {distances.shape}.")
    others = distances.copy()
    np.fill_diagonal(others, np.inf)  # a label is not its own neighbour, even beside a duplicate at distance 0
    order = np.argsort(others, axis=1, kind="stable")[:, : min(top_k, len(names) - 1)]  # (C, k)
    return [
        [(names[other], float(distances[row, other])) for other in neighbours] for row, neighbours in enumerate(order)
    ]


def cluster_names(clusters: Sequence[int | None], names: Sequence[str], most: int = 3) -> list[str | None]:
    """Call each cluster by its first labels, for a legend.

    Args:
        clusters: for each of the C labels the number of its cluster, or None.
        names: the C label names.
        most: labels to list of each cluster.

    >>> cluster_names([0, 0, None], ["cat", "dog", "car"])
    ['cat, dog', 'cat, dog', None]
    """
    members: dict[int, list[str]] = {}
    for cluster, name in zip(clusters, names, strict=True):
        if cluster is not None:
            members.setdefault(cluster, []).append(name)
    called = {
        cluster: ", ".join(labels[:most]) + (f" +{len(labels) - most}" if len(labels) > most else "")
        for cluster, labels in members.items()
    }
    return [None if cluster is None else called[cluster] for cluster in clusters]


def label_drift(snapshots: Sequence[tuple[float, MatrixLike]]) -> list[tuple[float, Matrix]]:
    """How far each label moved between one snapshot of the label vectors and the next.

    The trainer logs the mean of the same number as ``label_drift``.

    Args:
        snapshots: points (step, (C, D) label vectors), such as those of a training's checkpoints.

    Returns:
        For each snapshot after the first its step, and (C,) the way of each label from the snapshot before, as a share
        of the mean distance between two labels of this one.
    """
    matrices = [(step, as_matrix(vectors)) for step, vectors in snapshots]
    drift = []
    for (_, before), (step, after) in pairwise(matrices):
        if before.shape != after.shape:
            raise ValueError(f"Snapshots must have one shape, got {before.shape} and then {after.shape}.")
        unit = label_distances(after).sum() / (len(after) * (len(after) - 1))
        way: Matrix = np.linalg.norm(after - before, axis=1) / max(unit, 1e-12)  # (C,)
        drift.append((step, way))
    return drift
