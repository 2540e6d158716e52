"""The start of the head: a projection in which classes lie apart, of a size that suits the learning rate.

Label vectors are class means seen through the head, so a random head throws away what the backbone already knows: on
sentence embeddings it costs the nearest class mean three points before the first step. Constants here were measured;
``docs/choosing-a-default.md`` has the tables.
"""

from __future__ import annotations

import logging
import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from .class_moments import Moments, moments
from .distances import DistancesInParts, Part
from .distributed import broadcast_
from .functional import IGNORE_INDEX, SQUARED_DISTANCE_FLOOR, has_scatter
from .heads import is_plain_linear
from .row_blocks import Distances, blocks_of, known_rows, some_of

logger = logging.getLogger(__name__)

LEAST_SHRINKAGE = 0.3
"""Share of the identity in the within-class covariance that is always kept."""
FOLDS = 4
"""Parts of the start rows for the scale: each is measured through a projection made from the others."""
REFERENCE = (2e-5, 0.003)
"""At this learning rate the entries of the head start with this root mean square; it grows as the rate to the 1.5."""
LARGEST_RELATIVE_STEP = 0.01
"""No Adam step may move the entries by more than this share of their root mean square."""
STEPS_APART = 100.0
"""Adam steps that a row of the offset takes at least from the centre of the label vectors to one of them."""
LEAST_DISTANCE = 100.0 * SQUARED_DISTANCE_FLOOR**0.5
"""Mean distance to class means that the start leaves at least: smaller ones drown in the floor of distances."""


def shrinkage(rows: int, num_labels: int, num_features: int) -> float:
    """Share of the identity in the covariance: 1 without rows to spare, `LEAST_SHRINKAGE` from three rows per feature.

    Args:
        rows: start rows.
        num_labels: classes among them; each costs a degree of freedom.
        num_features: H.
    """
    spare = ((rows - num_labels) / num_features - 1.0) / 2.0
    return 1.0 - (1.0 - LEAST_SHRINKAGE) * min(max(spare, 0.0), 1.0)


@torch.no_grad()
def class_mean_projection(
    features: Tensor, labels: Tensor, num_labels: int, embedding_dim: int, whiten: bool = True
) -> tuple[Tensor, Tensor]:
    """Linear map to D dimensions that keeps the differences between class means.

    With ``whiten``, features are first divided by the square root of their shrunken within-class covariance: the
    nearest class mean is then that of linear discriminant analysis (Fisher 1936; shrinkage as Friedman 1989).

    Args:
        features: (N, H) input of the head.
        labels: (N,) int64; rows with -100 are left out.
        num_labels: C.
        embedding_dim: D.
        whiten: False for plain orthonormal rows.

    Returns:
        Weight (D, H) and bias (D,), float64; the mean of the class means maps to 0. Where D > H no distance changes.
    """
    share = _share(features, labels, whiten)
    found = moments(features, labels, num_labels, _labelled(labels), covariance=share < 1.0)
    if share < 1.0 and found.differ and not found.scatter:
        logger.warning(
            "The start rows of each label are all alike, so their scatter tells nothing: the head starts as a plain "
            "projection onto the class means. Look for repeated rows and for features that are constant."
        )
    return _projection(found, embedding_dim, share)


@torch.no_grad()
def held_out_distances(
    features: Tensor, labels: Tensor, num_labels: int, embedding_dim: int, whiten: bool = True, names: int = 0
) -> Tensor | DistancesInParts:
    """Distances of rows to class means, each through a projection that was made without the row: cross-fitting.

    With few rows for many features, the projection finds directions in which just these rows lie apart. Distances
    through it make the classes look far better separated than they are, and the scale that suits them is too steep
    for new rows.

    Args:
        features: (N, H) input of the head.
        labels: (N,) int64.
        num_labels: C.
        embedding_dim: D.
        whiten: as for `class_mean_projection`.
        names: the last so many rows are never held out.

    Returns:
        (N, C) float64; infinite for a class without other rows, for rows with -100, and for those never held out.
        What computes them, where they are more than a block.
    """
    share = _share(features, labels, whiten)
    fold, labelled, parts = fold_of(labels, names), labels != IGNORE_INDEX, []
    for number in range(FOLDS):
        rest, held_out = _labelled(labels, fold != number), labelled & (fold == number)
        if not len(rest) or not bool(held_out.any()):
            continue
        found = moments(features, labels, num_labels, rest, covariance=share < 1.0)
        weight, bias = _projection(found, embedding_dim, share)
        vectors = found.means @ weight.T + bias
        parts.append(Part(held_out, partial(_through, weight=weight, bias=bias), vectors, found.counts > 0))
    return DistancesInParts(features, num_labels, parts, labels).stored_if_few()


def _labelled(labels: Tensor, among: Tensor | None = None) -> Tensor:
    """(n,) ids of the rows with a label, among those of a mask (N,)."""
    return (labels != IGNORE_INDEX if among is None else among & (labels != IGNORE_INDEX)).nonzero()[:, 0]


def _through(values: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return values.double() @ weight.T + bias


def _share(features: Tensor, labels: Tensor, whiten: bool) -> float:
    counts = labels[labels != IGNORE_INDEX].bincount()
    return shrinkage(int(counts.sum()), int((counts > 0).sum()), features.shape[1]) if whiten else 1.0


def fold_of(labels: Tensor, names: int = 0) -> Tensor:
    """(N,) 0…`FOLDS` - 1, the part of each row; -1 for the last ``names`` rows, which are held out of nothing."""
    fold = _rank_in_class(labels) % FOLDS
    fold[len(fold) - names :] = -1
    return fold


def _rank_in_class(labels: Tensor) -> Tensor:
    """(N,) 0 for the first row of each label, 1 for the second, and so on."""
    order = labels.argsort(stable=True)
    counts = (labels - IGNORE_INDEX).bincount()
    first = (counts.cumsum(0) - counts)[labels[order] - IGNORE_INDEX]  # where each label begins in that order
    return torch.empty_like(labels).scatter(0, order, torch.arange(len(labels), device=labels.device) - first)


def _projection(found: Moments, embedding_dim: int, share: float) -> tuple[Tensor, Tensor]:
    """Weight (D, H) and bias (D,)."""
    means = found.means[found.counts > 0]
    centre = means.mean(dim=0)
    scaling = _inverse_root(found.covariance, share if found.scatter else 1.0, means)  # (H, H)
    weight = _orthonormal_rows((means - centre) @ scaling, embedding_dim) @ scaling
    return weight, -weight @ centre


def _inverse_root(covariance: Tensor | None, share: float, means: Tensor) -> Tensor:
    identity = torch.eye(means.shape[1], dtype=means.dtype, device=means.device)
    if covariance is None or share >= 1.0:
        return identity
    level = covariance.trace() / len(covariance)
    values, vectors = torch.linalg.eigh((1.0 - share) * covariance + share * level * identity)
    return (vectors * values.clamp(min=torch.finfo(values.dtype).tiny).rsqrt()) @ vectors.T


def _orthonormal_rows(between: Tensor, embedding_dim: int) -> Tensor:
    """(D, H) whose rows span the differences between class means first; with D > H, orthonormal columns."""
    width = between.shape[1]
    generator = torch.Generator().manual_seed(0)  # the caller's random stream stays as it is

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=between.dtype, generator=generator).to(between.device)

    if embedding_dim > width:
        columns: Tensor = torch.linalg.qr(noise(embedding_dim, width)).Q
        return columns
    directions = torch.linalg.svd(between, full_matrices=False).Vh[:embedding_dim]  # (<= D, H), widest apart first
    rows: Tensor = torch.linalg.qr(torch.cat([directions, noise(embedding_dim, width)]).T).Q.T[:embedding_dim]
    return rows


def suited_size(weight: Tensor, learning_rate: float | None) -> float:
    """Factor for weight and bias such that a step of Adam moves the head at the pace that was best at that rate.

    Logits do not change, since their scale is calibrated afterwards; but Adam moves every entry by about the learning
    rate, so the smaller the entries, the faster the head and the label vectors move against the backbone.

    Args:
        weight: (D, H).
        learning_rate: peak learning rate of the head; None, for optimizers that do not normalise, changes nothing.

    Returns:
        At most 1.
    """
    size = float(weight.square().mean().sqrt())
    if not learning_rate or size == 0.0 or not math.isfinite(size):
        return 1.0
    rate, wanted = REFERENCE
    wanted *= (learning_rate / rate) ** 1.5
    return min(1.0, max(wanted, learning_rate / LARGEST_RELATIVE_STEP) / size)


def visible_size(size: float, held_out: Tensor | Distances) -> float:
    """``size``, or the larger one that keeps distances above `LEAST_DISTANCE`: features may be very small.

    Args:
        size: factor for weight and bias of the head, from `suited_size`.
        held_out: (N, C) distances through the head as it is before that.
    """
    total, number = 0.0, 0
    for _, found in blocks_of(held_out, some_of(known_rows(held_out).nonzero()[:, 0], held_out.shape[1])):
        known = found[found.isfinite()]
        total, number = total + float(known.sum()), number + len(known)
    typical = total / max(number, 1)
    if typical <= 2.0 * SQUARED_DISTANCE_FLOOR**0.5:  # nothing lies apart, at any size
        return size
    return max(size, LEAST_DISTANCE / typical)


LARGEST_GROWTH = 1e6
"""Of the head for the sake of the offset: beyond it the learning rate is no use in any case, and weights overflow."""


def size_for_offset(size: float, label_vectors: Tensor, learning_rate: float | None) -> float:
    """``size``, or the larger one at which a step of Adam moves the offset little against how far labels lie apart.

    A step moves each of the D entries of a row of the offset by up to the learning rate, together
    ``learning_rate * sqrt(D)``. Where label vectors lie closer together than that, one step loses the labels. So they
    lie at least ``STEPS_APART * learning_rate * sqrt(D)`` from their centre; the scale, calibrated afterwards, makes
    up for it in the logits.

    Args:
        size: factor for weight and bias of the head, from `suited_size` or `visible_size`.
        label_vectors: (C', D) of the classes that have rows, through the head as it is before that.
        learning_rate: peak learning rate of the offset; None changes nothing.
    """
    away = label_vectors - label_vectors.mean(dim=0)
    apart = float(away.norm(dim=1).mean())
    if not learning_rate or not math.isfinite(apart) or not has_scatter(away, label_vectors):
        return size
    wanted = STEPS_APART * learning_rate * label_vectors.shape[1] ** 0.5 / apart
    return max(size, min(wanted, LARGEST_GROWTH * size))


def can_start(layer: Any) -> bool:
    """Whether the layer is a plain linear one whose weights may be written: no adapter around it, not quantised."""
    if not is_plain_linear(layer) or not layer.weight.is_floating_point() or not layer.weight.requires_grad:
        return False
    return layer.weight.shape == (layer.out_features, layer.in_features)  # not so where FSDP flattens weights


@torch.no_grad()
def write_linear(layer: nn.Module, weight: Tensor, bias: Tensor) -> None:
    """Write weight (D, H) and bias (D,) into a linear layer, sharded or not, the same on every rank."""
    for name, value in (("weight", weight), ("bias", bias)):
        target = getattr(layer, name)
        if target is None:  # distances do not depend on a common shift
            continue
        value = value.to(device=target.device, dtype=target.dtype).contiguous()
        broadcast_(value)
        if isinstance(target, DTensor):  # its own part may lie on the CPU, beside a mesh of GPUs
            value = distribute_tensor(value, target.device_mesh, target.placements).to_local()
            target = target.to_local()
        target.copy_(value)
