"""The paper's equations as pure tensor functions: one function per equation, no state, no Python loop over classes.

Source: Yu & Verma, "Improving Model Training via Self-learned Label Representations" (2022), arXiv:2209.04528.
Checked against the authors' implementation (see ``tests/test_oracle.py``).

Shape letters: B rows in the batch, C labels, D embedding dimension. A label of -100 (``IGNORE_INDEX``) leaves its row
out of every result. Low-precision inputs are reduced in float32; float64 inputs stay float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .row_blocks import Distances, blocks, blocks_of, known_rows, some_of

IGNORE_INDEX = -100
LEAST_SCATTER = 1e-10
"""Share of the square sum below which differences between rows are rounding noise."""
CALIBRATION_BLOCK = 1024
"""Rows whose distances are looked at together when the scale is calibrated, or fewer where there are many labels."""
SQUARED_DISTANCE_FLOOR = 1e-12
"""Squared distances are floored here before the square root, whose gradient is infinite at zero."""


def at_least_float32(tensor: Tensor) -> Tensor:
    """Return ``tensor`` in float32, or unchanged when it is already float32 or float64."""
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()


def class_ids(labels: Any, num_labels: int | None = None) -> Tensor:
    """Labels of a batch as class ids, whatever a data set or a loop gave them as.

    Args:
        labels: (B,) or (B, 1) of any integer type, bool, or floating point that holds whole numbers; a tensor, an
            array or a list.
        num_labels: C; when given, labels outside 0…C-1 and -100 are refused where that needs no wait for a device.

    Returns:
        (B,) int64.

    Raises:
        ValueError: something other than one class id per row.

    >>> class_ids(torch.tensor([[2.0], [-100.0]]))
    tensor([   2, -100])
    """
    ids = labels if isinstance(labels, Tensor) else torch.as_tensor(labels)
    if ids.ndim == 2 and ids.shape[1] == 1:
        ids = ids.squeeze(1)  # (B,)
    whole = not ids.is_floating_point() or bool((ids == ids.round()).all())
    if ids.ndim != 1 or not whole:
        raise ValueError(unusable_labels(f"{ids.dtype} of shape {tuple(ids.shape)}"))
    ids = ids.long()
    if num_labels is not None and ids.device.type == "cpu" and not torch.compiler.is_compiling():
        bad = ((ids != IGNORE_INDEX) & ((ids < 0) | (ids >= num_labels))).nonzero()
        if len(bad):
            raise ValueError(out_of_range(int(ids[bad[0, 0]]), f"row {int(bad[0, 0])} of a batch", num_labels))
    return ids


def out_of_range(label: int, where: str, num_labels: int) -> str:
    """Sentence for a label id outside the model's."""
    return (
        f"Label {label} in {where} is outside 0…{num_labels - 1}: build the model with num_labels={label + 1} or "
        f"correct the data; rows without a label use {IGNORE_INDEX}."
        if label >= 0
        else f"Label {label} in {where} is outside 0…{num_labels - 1}: rows without a label use {IGNORE_INDEX}, or "
        "remove the label column of a test set."
    )


def unusable_labels(what: str) -> str:
    """Sentence for labels that are not one class id per row."""
    return (
        f"Labels must be one class id (int) or name (str) per row, but they are {what}: regression, several labels "
        "per row and mixed-up labels are not supported."
    )


def finite_rows(values: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Leave rows that hold NaN or infinity out of all that follows: zeros, with the label -100.

    Args:
        values: (B, N).
        labels: (B,) int64.
    """
    finite = values.isfinite().all(dim=1)  # (B,)
    return torch.where(finite.unsqueeze(1), values, 0.0), torch.where(finite, labels, IGNORE_INDEX)


def without_names(labels: Tensor, names: int) -> Tensor:
    """Labels (N,) int64 with -100 for the last ``names`` rows, unless there are no others."""
    if names == 0 or not bool((labels[: len(labels) - names] != IGNORE_INDEX).any()):
        return labels
    return torch.cat([labels[: len(labels) - names], torch.full_like(labels[len(labels) - names :], IGNORE_INDEX)])


def class_sums(embeddings: Tensor, labels: Tensor, num_labels: int) -> tuple[Tensor, Tensor]:
    """Sum the embeddings of each class: the numerator and denominator of Eq. (1), the class centroid.

    Args:
        embeddings: (B, D) floating point; half precision is summed in float32.
        labels: (B,) int64 in 0…C-1, or -100 for rows to leave out.
        num_labels: C.

    Returns:
        Sums (C, D) and counts (C,), both floating point. Differentiable in ``embeddings``.

    >>> class_sums(torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([0, 2, 0]), 3)
    (tensor([[5.],
            [0.],
            [2.]]), tensor([2., 0., 1.]))
    """
    embeddings = at_least_float32(embeddings)
    # Ignored rows land in an extra row that is cut off: masking them out instead would need their number on the host.
    rows = torch.where(labels == IGNORE_INDEX, num_labels, labels)
    sums = embeddings.new_zeros(num_labels + 1, embeddings.shape[-1]).index_add(0, rows, embeddings)  # (C + 1, D)
    counts = embeddings.new_zeros(num_labels + 1).index_add(0, rows, embeddings.new_ones(rows.shape))  # (C + 1,)
    return sums[:num_labels], counts[:num_labels]


def centroids(sums: Tensor, counts: Tensor) -> Tensor:
    """Divide class sums by their counts: Eq. (1), the class centroid; zeros for a class without rows.

    Args:
        sums: (C, D) from `class_sums`.
        counts: (C,).
    """
    return sums / counts.clamp(min=1.0).unsqueeze(1)


def refreshed_label_vectors(
    means: Tensor, counts: Tensor, sums: Tensor, batch_counts: Tensor, memory: float
) -> Tensor:
    """Merge new class sums into the class means: Algorithm 1, the label update.

    Each class mean becomes ``(rho * mean + sum) / (rho + batch_count)`` with ``rho = min(count, memory)``; with
    ``memory = 0`` it is the batch centroid of Eq. (1), which is what the paper uses. Classes without a row in the
    batch keep their mean bit for bit.

    Args:
        means: (C, N) class means so far, of embeddings or of features.
        counts: (C,) number of rows seen so far per class.
        sums: (C, N) class sums of the new rows.
        batch_counts: (C,) number of new rows per class.
        memory: M, the largest weight in rows that the old mean keeps; 0 forgets it.

    Returns:
        (C, N) refreshed means, differentiable in ``means`` and ``sums``.
    """
    kept = counts.to(sums.dtype).clamp(max=memory).unsqueeze(-1)  # (C, 1)
    added = batch_counts.to(sums.dtype).unsqueeze(-1)  # (C, 1)
    old = torch.where(kept > 0, kept * means, 0.0)  # a forgotten mean must not count, not even as NaN
    merged = (old + sums) / (kept + added).clamp(min=1.0)
    return torch.where(added > 0, merged, means)


def common_drift(means: Tensor, sums: Tensor, batch_counts: Tensor) -> Tensor:
    """How far the new rows lie from the means of their own classes, on average over all rows.

    What classes have in common: when a step moves the features of every row by the same vector, this is that vector,
    whatever classes the rows are of. Not in the paper.

    Args:
        means: (C, N) class means so far; those of classes that have none must have no rows either.
        sums: (C, N) class sums of the new rows.
        batch_counts: (C,) number of new rows per class.

    Returns:
        (N,), zero without rows.
    """
    rows = batch_counts.to(sums.dtype).unsqueeze(-1)  # (C, 1)
    return (sums - rows * means).sum(dim=0) / rows.sum().clamp(min=1.0)


ENOUGH_ROWS = 16
"""From so many rows on a class mean is taken for exact: what it errs by is a sixteenth of how rows scatter."""


def bias_of_few_rows(within: float, counts: Tensor) -> Tensor:
    """By how much the squared distance to the mean of few rows is too large on average, more than to that of enough.

    A row at x of a class with mean m lies ``|x - m|^2 + within / n`` from the mean of n other rows, on average: the
    fewer they are, the farther the class seems to be from everything, its own rows included. Not in the paper.

    Args:
        within: mean square distance of rows from the mean of their class, the trace of the covariance within classes.
        counts: (C,) rows behind each mean, at least 1.

    Returns:
        (C,) float32; 0 from `ENOUGH_ROWS` rows on.
    """
    return within * (1.0 / counts.float() - 1.0 / ENOUGH_ROWS).clamp(min=0.0)


def pairwise_distances(embeddings: Tensor, label_vectors: Tensor, labels: Tensor | None = None) -> Tensor:
    """Euclidean distance of every embedding to every label vector: the norm in Eq. (2).

    Both sides are centred on the mean label vector before the square is expanded, since the plain expansion
    ``|z|^2 - 2 z.y + |y|^2`` loses all digits when the embeddings share an offset.

    Args:
        embeddings: (B, D).
        label_vectors: (C, D).
        labels: (B,) int64, optional. When given, the distance to a row's own label vector is recomputed from the
            difference: the expansion leaves only rounding noise there for a class with a single row.

    Returns:
        (B, C) distances in at least float32, never below ``1e-6``, so that the gradient is finite everywhere.
    """
    embeddings, label_vectors = at_least_float32(embeddings), at_least_float32(label_vectors)
    centre = label_vectors.detach().mean(dim=0)  # distances do not depend on the centre, so no gradient is lost
    rows, columns = embeddings - centre, label_vectors - centre  # (B, D), (C, D)
    with torch.autocast(rows.device.type, enabled=False):  # a bfloat16 product leaves nothing of close distances
        squared = rows @ columns.T  # (B, C)
    squared = squared.mul_(-2.0).add_(rows.square().sum(dim=1, keepdim=True)).add_(columns.square().sum(dim=1))
    if labels is not None:
        own = labels.clamp(min=0)
        own_squared = (embeddings - label_vectors[own]).square().sum(dim=1, keepdim=True)  # (B, 1)
        squared = squared.scatter_(1, own.unsqueeze(1), own_squared)
    return squared.clamp(min=SQUARED_DISTANCE_FLOOR).sqrt()


def distances_of_differences(embeddings: Tensor, label_vectors: Tensor) -> Tensor:
    """What `pairwise_distances` returns, in one kernel instead of a dozen: sooner for few label vectors on a CPU.

    No square is expanded, so no digits are lost and nothing has to be centred; without the matrix product the time
    grows with B * C * D, and there is no second derivative.

    Args:
        embeddings: (B, D) float32 or float64.
        label_vectors: (C, D) of the same type.

    Returns:
        (B, C) distances, never below ``1e-6``.
    """
    distances = torch.cdist(embeddings, label_vectors, compute_mode="donot_use_mm_for_euclid_dist")  # (B, C)
    return distances.clamp(min=SQUARED_DISTANCE_FLOOR**0.5)


def cosine_distances(values: Tensor, means: Tensor) -> Tensor:
    """One minus the cosine of the angle between every row and every mean: half the squared angle where that is small.

    Args:
        values: (B, N).
        means: (C, N).

    Returns:
        (B, C) in at least float32, between 0 and 2; 1 where one side is zero.
    """
    rows, columns = (F.normalize(at_least_float32(side), dim=1) for side in (values, means))
    with torch.autocast(rows.device.type, enabled=False):
        return (1.0 - rows @ columns.T).clamp(min=0.0)  # (B, C)


def own_cosine_distances(values: Tensor, means: Tensor, labels: Tensor) -> Tensor:
    """What `cosine_distances` says of each row and the mean of its own class, without the other classes.

    Args:
        values: (B, N).
        means: (C, N).
        labels: (B,) int64 in 0…C-1.

    Returns:
        (B,) in at least float32.
    """
    means = F.normalize(at_least_float32(means), dim=1)
    found = [
        (F.normalize(at_least_float32(values[block]), dim=1) * means[labels[block]]).sum(dim=1)
        for block in blocks(torch.arange(len(labels), device=labels.device), values.shape[1])
    ]
    return (1.0 - torch.cat(found)).clamp(min=0.0)


def pull_loss(
    distances: Tensor,
    labels: Tensor,
    scale: Tensor | float = 1.0,
    *,
    label_smoothing: float = 0.0,
    class_weights: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Eq. (2) and (3) in one, from distances: `cross_entropy` of ``softmax(-scale * distances)``.

    Args:
        distances: (B, C).
        labels: (B,) int64; -100 rows are left out.
        scale: s > 0; the paper uses 1.
        label_smoothing: share of the target spread evenly over all labels.
        class_weights: (C,) optional weight per class.
        reduction: "mean" over the rows with a label, "sum" or "none".

    Returns:
        Scalar, or (B,) with ``reduction="none"``. Zero, not NaN, when no row has a label.
    """
    return cross_entropy(-scale * at_least_float32(distances), labels, label_smoothing, class_weights, reduction)


def cross_entropy(
    logits: Tensor,
    labels: Tensor,
    label_smoothing: float = 0.0,
    class_weights: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Pull loss, Eq. (3): cross-entropy in at least float32, 0 instead of NaN on a batch without labels.

    Args:
        logits: (B, C).
        labels: (B,) int64; -100 rows are left out.
        label_smoothing: share of the target spread evenly over all labels.
        class_weights: (C,) optional weight per class.
        reduction: "mean" (weighted as in PyTorch), "sum" or "none".
    """
    logits = at_least_float32(logits)
    weight = None if class_weights is None else class_weights.to(logits)
    rows = F.cross_entropy(logits, labels, weight=weight, reduction="none", label_smoothing=label_smoothing)  # (B,)
    if reduction == "none":
        return rows
    if reduction == "sum":
        return rows.sum()
    valid = labels != IGNORE_INDEX
    row_weights = valid.to(logits) if weight is None else weight[labels.clamp(min=0)] * valid
    return rows.sum() / row_weights.sum().clamp(min=torch.finfo(logits.dtype).tiny)


def direction_sums(embeddings: Tensor, labels: Tensor, num_labels: int) -> tuple[Tensor, Tensor]:
    """Class sums of the embeddings' unit vectors, all that `repel_from_sums` needs and what ranks add up.

    Args:
        embeddings: (B, D).
        labels: (B,) int64; -100 rows are left out.
        num_labels: C.

    Returns:
        Sums (C, D) and counts (C,).
    """
    return class_sums(F.normalize(at_least_float32(embeddings), dim=1, eps=1e-12), labels, num_labels)


def repel_from_sums(sums: Tensor, counts: Tensor) -> Tensor:
    """Mean cosine similarity over all pairs of rows of different classes, from the class sums of unit vectors.

    ``(|sum_i u_i|^2 - sum_c |sum_{i in c} u_i|^2) / B^2`` equals the masked B x B mean in O(C D).

    Args:
        sums: (C, D) from `direction_sums`.
        counts: (C,) rows per class; their sum is B.
    """
    between = sums.sum(dim=0).square().sum() - sums.square().sum()
    return between / counts.sum().clamp(min=1.0).square()


def repel_loss(
    embeddings: Tensor,
    labels: Tensor,
    num_labels: int,
    sum_over_ranks: Callable[[Tensor], Tensor] = lambda sums: sums,
) -> Tensor:
    """Repel loss, Eq. (4): mean over the B x B pairs of the cosine similarity of rows of different classes.

    The paper writes a sum over pairs; its weight of 10 belongs to the mean, which the authors' code computes.

    Args:
        embeddings: (B, D).
        labels: (B,) int64; -100 rows are left out, of B as well.
        num_labels: C.
        sum_over_ranks: makes the pairs those of the rows of all ranks, and the loss equal on all of them.

    Returns:
        Scalar in [-1, 1].
    """
    sums, counts = direction_sums(embeddings, labels, num_labels)
    return repel_from_sums(sum_over_ranks(sums), sum_over_ranks(counts))


def leave_one_out(distances: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
    """Replace each row's distance to its own class mean by the distance to the mean of the *other* rows.

    Removing row i from the mean of n rows stretches its own distance by exactly n / (n - 1).

    Args:
        distances: (B, C) distances to class means that include the rows themselves.
        labels: (B,) int64 in 0…C-1.
        counts: (C,) rows per class; at least 2 for every class in ``labels``.
    """
    rows = counts.to(distances.dtype)[labels]  # (B,)
    stretch = torch.ones_like(distances).scatter(1, labels.unsqueeze(1), (rows / (rows - 1.0)).unsqueeze(1))
    return distances * stretch


def has_scatter(residuals: Tensor, spread: Tensor) -> bool:
    """Whether residuals (N, H) of rows are more than the rounding of their spread (N, H)."""
    return float(residuals.square().sum()) > LEAST_SCATTER * float(spread.square().sum())


def calibrated_scale(
    distances: Tensor | Distances,
    labels: Tensor,
    counts: Tensor,
    power: int = 1,
    held_out: Tensor | Distances | None = None,
    smoothed: bool = False,
) -> float:
    """Scale s of the logits ``-s * d`` with the least cross-entropy on rows held out, from a geometric grid.

    Fresh heads put all distances near 0.2, where a softmax with s = 1 is flat and the gradient wrecks the backbone.

    Where rows times labels exceed `row_blocks.MOST_DISTANCES`, so many random rows stand for all.

    Args:
        distances: (B, C) of rows to the class means computed from these very rows, or what computes them in blocks;
            infinite ones do not count for the mean.
        labels: (B,) int64; -100 rows are left out.
        counts: (C,) rows per class among ``labels``; rows of classes with a single row are left out.
        power: logits are ``-s * d^power``; 2 for a linear classifier.
        held_out: (B, C) distances of the same rows that stand for new ones; rows that are infinite throughout were
            not held out and are left out; default: `leave_one_out`.
        smoothed: count one wrong answer among N + 2 (Laplace's rule of succession) for N rows: where all are right,
            the steepest scale would be best, and training, which has dropout, starts with a large loss.

    Returns:
        The best of ``2^(k/2) / mean d^power`` for k = -2…19; ``1 / mean d^power`` when every class has one row; 1
        where no row lies apart from any class mean, or no row has a label.
    """
    counts = counts.to(labels.device)
    seen, rows = counts > 0, (labels != IGNORE_INDEX).nonzero().squeeze(1)
    if not len(rows):
        return 1.0
    total, number = 0.0, 0
    for _, found in blocks_of(distances, some_of(rows, len(counts)), CALIBRATION_BLOCK):
        found = found[:, seen].double().pow(power)
        apart = found.isposinf()
        total += float(found.masked_fill_(apart, 0.0).sum())
        number += found.numel() - int(apart.sum())
    mean = total / number if number else math.inf
    if mean <= (2.0 * SQUARED_DISTANCE_FLOOR**0.5) ** power:
        return 1.0
    grid = [2.0 ** (k / 2) / mean for k in range(-2, 20)]
    usable = rows[counts[labels[rows]] > 1]
    if held_out is not None:
        usable = usable[known_rows(held_out)[usable]]
    usable = some_of(usable, len(counts))
    losses = torch.zeros(len(grid), dtype=torch.float64)
    for block, new in blocks_of(distances if held_out is None else held_out, usable, CALIBRATION_BLOCK):
        own = labels[block]
        new = leave_one_out(new.double(), own, counts) if held_out is None else new.double()
        new = new.pow(power).masked_fill_(~seen, torch.inf)  # a class without a mean is no candidate
        losses += torch.stack([F.cross_entropy(-scale * new, own, reduction="sum").cpu() for scale in grid])
        if smoothed:
            losses += torch.stack([_other_classes(-scale * new, own).cpu() for scale in grid]) / (len(usable) + 1)
    if not len(usable) or not bool(losses.isfinite().any()):
        return 1.0 / mean
    return grid[int(losses.nan_to_num(nan=torch.inf).argmin())]


def _other_classes(logits: Tensor, labels: Tensor) -> Tensor:
    """Sum over rows of the mean cross-entropy with a class that is not their own and that is a candidate."""
    candidates = logits.isfinite().scatter(1, labels.unsqueeze(1), value=False)
    losses = logits.log_softmax(dim=1).neg_().masked_fill_(~candidates, 0.0).sum(dim=1)
    return (losses / candidates.sum(dim=1).clamp(min=1)).sum()
