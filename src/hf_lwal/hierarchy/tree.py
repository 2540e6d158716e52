"""What the label vectors say about the labels: distances between them, nearest neighbours, and a hierarchy.

Classes whose rows get similar embeddings get label vectors that lie close together, so that the distances between the
rows of the label table are a learned picture of how the classes relate. Pure functions of numbers; nothing is plotted
here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

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


Rows = slice | NDArray[np.int64]
Between = Callable[[Rows], Matrix]
"""Numbers of R rows → (R, C) their distances to all rows."""


def _euclidean(matrix: Matrix) -> Between:
    """Centred before the square is expanded, which loses all digits on an offset."""
    centred = matrix - matrix.mean(axis=0)
    squares = np.square(centred).sum(axis=1)  # (C,)

    def between(rows: Rows) -> Matrix:
        squared: Matrix = centred[rows] @ centred.T  # (R, C); in place from here, since there may be very many
        squared *= -2.0
        squared += squares[rows][:, None]
        squared += squares
        return np.sqrt(np.maximum(squared, 0.0, out=squared), out=squared)

    return between


def _cosine(matrix: Matrix) -> Between:
    """One minus the cosine of the angle; zeros are at distance 1 from every other."""
    unit = matrix / np.maximum(np.linalg.norm(matrix, axis=1, keepdims=True), 1e-12)

    def between(rows: Rows) -> Matrix:
        cosines: Matrix = unit[rows] @ unit.T  # (R, C)
        return np.maximum(np.subtract(1.0, cosines, out=cosines), 0.0, out=cosines)

    return between


METRICS: dict[str, Callable[[Matrix], Between]] = {"euclidean": _euclidean, "cosine": _cosine}
BLOCK = 2**21
"""Distances in memory at a time where not all of them are needed at once: 16 MiB."""
MOST_PAIRWISE = 20_000
"""Labels of which all distances are computed at once, which takes 3.2 GB then, and copies of it."""


def label_distances(label_vectors: MatrixLike, metric: str = "euclidean", allow_missing: bool = False) -> Matrix:
    """Compute the distance between every two labels.

    Args:
        label_vectors: (C, D) tensor or array.
        metric: "euclidean", what the model itself compares with, or "cosine".
        allow_missing: rows of NaN throughout stand for labels without a vector, and have distances of NaN.

    Returns:
        (C, C) float64, exactly symmetric with a zero diagonal: memory grows with the square of C.

    Raises:
        ValueError: more than `MOST_PAIRWISE` labels.

    >>> label_distances([[0.0, 0.0], [3.0, 4.0]]).tolist()
    [[0.0, 5.0], [5.0, 0.0]]
    """
    prepared = _metric(metric)
    matrix = as_matrix(label_vectors, allow_missing)
    if len(matrix) > MOST_PAIRWISE:
        raise ValueError(
            f"The distances between all of {len(matrix):,} labels would take {8e-9 * len(matrix) ** 2:,.0f} GB, and "
            f"are computed of up to {MOST_PAIRWISE:,}: give fewer rows, or find the nearest labels with "
            "hierarchy.neighbourhood."
        )
    present = ~np.isnan(matrix).all(axis=1)  # (C,)
    between = prepared(matrix[present])(slice(None))
    between = between + between.T
    between /= 2.0
    np.fill_diagonal(between, 0.0)
    if present.all():
        return between
    distances = np.full((len(matrix), len(matrix)), np.nan)
    distances[np.ix_(present, present)] = between
    return distances


def _metric(name: str) -> Callable[[Matrix], Between]:
    if name not in METRICS:
        raise ValueError(f"metric must be one of {', '.join(METRICS)}, got {name!r}.")
    return METRICS[name]


class Neighbourhood(NamedTuple):
    """What distances between labels say without all of them in memory.

    Attributes:
        nearest: (C, k) int64, each label's nearest others, nearest first; (R, k) where only R labels were asked for.
        distances: (C, k) float64, how far they are.
        mean: distance between two labels, over all pairs that were looked at.
    """

    nearest: NDArray[np.int64]
    distances: Matrix
    mean: float

    def of(self, names: Sequence[str]) -> list[list[tuple[str, float]]]:
        """For each label its neighbours by name, with their distances."""
        return [
            [(names[other], float(far)) for other, far in zip(*row, strict=True)]
            for row in zip(self.nearest.tolist(), self.distances.tolist(), strict=True)
        ]

    def closest(self, amount: int) -> list[tuple[int, int, float]]:
        """The pairs of labels that lie closest together, with their distance; k of them where not all are known."""
        pairs = {
            (min(label, other), max(label, other)): far
            for label, row in enumerate(zip(self.nearest.tolist(), self.distances.tolist(), strict=True))
            for other, far in zip(*row, strict=True)
        }
        ordered = sorted(pairs.items(), key=lambda pair: (pair[1], pair[0]))
        count, kept = self.nearest.shape
        known = amount if kept == count - 1 else min(amount, kept)
        return [(*pair, far) for pair, far in ordered[:known]]


def neighbourhood(
    label_vectors: MatrixLike, top_k: int = 3, metric: str = "euclidean", of: Sequence[int] | None = None
) -> Neighbourhood:
    """Find each label's nearest others block by block: memory grows with C, not with its square, but time does.

    Args:
        label_vectors: (C, D) tensor or array, all finite.
        top_k: how many neighbours; all others when there are fewer.
        metric: see `label_distances`.
        of: ids of the labels whose neighbours are asked for; default: all. Of very many labels a few take no time.

    >>> neighbourhood([[0.0], [1.0], [5.0]], top_k=1).nearest.tolist()
    [[1], [0], [1]]
    """
    matrix = as_matrix(label_vectors)
    count, total = len(matrix), 0.0
    between = _metric(metric)(matrix)
    asked = np.arange(count) if of is None else np.asarray(of, dtype=np.int64)  # (R,)
    kept = min(top_k, count - 1)
    nearest, distances = np.zeros((len(asked), kept), dtype=np.int64), np.zeros((len(asked), kept))
    step = max(BLOCK // max(count, 1), 1)
    for start in range(0, len(asked), step):
        own = asked[start : start + step]
        block = between(own)  # (rows, C)
        rows = np.arange(len(own))
        block[rows, own] = 0.0
        total += float(block.sum())
        block[rows, own] = np.inf  # a label is not its own neighbour, even beside a duplicate at distance 0
        if kept < count - 1:
            chosen = np.sort(np.argpartition(block, kept, axis=1)[:, :kept], axis=1)  # (R, k), by number
        else:
            chosen = np.stack([np.delete(np.arange(count), label) for label in own])
        far = np.take_along_axis(block, chosen, axis=1)
        order = np.argsort(far, axis=1, kind="stable")  # equals in the order of their numbers
        nearest[start : start + step] = np.take_along_axis(chosen, order, axis=1)
        distances[start : start + step] = np.take_along_axis(far, order, axis=1)
    return Neighbourhood(nearest, distances, total / max(len(asked) * (count - 1), 1))


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
        of how far two labels of this one are apart (root mean square over all pairs).
    """
    matrices = [(step, as_matrix(vectors)) for step, vectors in snapshots]
    drift = []
    for (_, before), (step, after) in pairwise(matrices):
        if before.shape != after.shape:
            raise ValueError(f"Snapshots must have one shape, got {before.shape} and then {after.shape}.")
        unit = np.sqrt(2.0 * after.var(axis=0, ddof=1).sum())  # of all pairs, without looking at each
        way: Matrix = np.linalg.norm(after - before, axis=1) / max(unit, 1e-12)  # (C,)
        drift.append((step, way))
    return drift
