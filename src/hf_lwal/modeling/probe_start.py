"""The fitted start: shrinkage, head and offset fitted to the cached features of the start rows, in seconds.

Class means of a few rows say less than a regression on the same rows does. Before the first step, therefore, the loss
of the label table itself is minimised over head and offset with the features held fixed: a linear probe in the form of
label vectors. What is chosen, the share of the identity in the whitening, the scale, and whether to fit at all, is
chosen on rows held out. Not in the paper; ``benchmarks/start_probe.py`` measures it beside a logistic regression.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .class_moments import Moments, in_float64, moments
from .distances import DistancesInParts, Part
from .functional import IGNORE_INDEX, calibrated_scale, pairwise_distances
from .head_start import FOLDS, _orthonormal_rows, fold_of, shrinkage
from .row_blocks import Distances, blocks_of, known_rows, rows_at_a_time

logger = logging.getLogger(__name__)

SHARES = (0.03, 0.1, 0.3, 1.0)
"""Shares of the identity in the within-class covariance to choose from, where classes have `FOLDS` rows on average."""
WEIGHT_DECAYS = (1e-3, 1e-2, 1e-1, 1.0)
"""Of what is fitted, in units of the logits, to choose from: clean labels want the first, wrong ones more."""
ITERATIONS = 15
"""Of L-BFGS; as many in the folds as at the end, since stopping early is a part of the regularisation."""
WIDEST = 1024
"""With more features than this a covariance takes long to decompose: the share follows the rule of `head_start`."""
LARGEST_WORK = 5e9
"""Multiplications per evaluation of the loss beyond which nothing is fitted: about a minute in all on a CPU core."""
PROMPT_WORK = 1.6e9
"""Multiplications per evaluation of the loss up to which a budget may ask for rows: the fit stays within seconds."""
ROWS_OF_ALL_FOLDS = 4000
"""With more rows than this, those of one fold say enough: the others would cost seconds for another digit."""


class FittedStart(NamedTuple):
    """What was fitted.

    Attributes:
        weight: (D, H) float64 of the head.
        bias: (D,) float64 of the head.
        offset: (C, D) float64, added to the class means seen through the head.
        held_out: (N, C) float64 distances of the rows to label vectors fitted without them; infinite for rows with
            -100, for those of folds that were not measured, and for classes without other rows. What computes them,
            where they are more than a block.
        share: of the identity in the whitening.
        accuracy: of the nearest label vector on rows held out, 0…1.
    """

    weight: Tensor
    bias: Tensor
    offset: Tensor
    held_out: Tensor | DistancesInParts
    share: float
    accuracy: float


class Probe(NamedTuple):
    """Label vectors on fixed features: embeddings are ``(h - centre) @ head.T``, label vectors theirs plus offset.

    Attributes:
        head: (D, H).
        centre: (H,).
        means: (C, H) class means.
        offset: (C, D).
    """

    head: Tensor
    centre: Tensor
    means: Tensor
    offset: Tensor

    def embed(self, features: Tensor) -> Tensor:
        """(N, D) embeddings of features (N, H)."""
        return (features.double() - self.centre) @ self.head.T

    @property
    def label_vectors(self) -> Tensor:
        """(C, D)."""
        return (self.means - self.centre) @ self.head.T + self.offset


def fit_start(
    features: Tensor, labels: Tensor, num_labels: int, embedding_dim: int, learn_offset: bool = True, names: int = 0
) -> FittedStart | None:
    """Fit head and offset to start rows, where that predicts rows held out better than the class means do.

    Args:
        features: (N, H) input of the head.
        labels: (N,) int64; rows with -100 are left out.
        num_labels: C; classes without rows keep offset 0.
        embedding_dim: D.
        learn_offset: False fits the head alone.
        names: the last so many rows are fitted, but never held out.

    Returns:
        What was fitted; None, with a line in the log, where the rows do not allow it or it does not help.
    """
    started = time.perf_counter()
    labelled = labels != IGNORE_INDEX
    classes, ids = torch.unique(labels[labelled], return_inverse=True)
    rows = features if len(ids) == len(labels) else features[labelled]
    if (reason := _unfit(rows, ids, len(classes), embedding_dim)) is not None:
        logger.info("The start is not fitted, since %s: it stays at the class means.", reason)
        return None
    named = int(labelled[len(labelled) - names :].sum())
    folds = Folds(rows, ids, len(classes), embedding_dim, learn_offset, named)
    share, decay = folds.best()
    parts = FOLDS if len(ids) <= ROWS_OF_ALL_FOLDS else 1
    scale = folds.scale(folds.held_out(share, folds=parts))
    held_out = folds.held_out(share, scale, decay, parts)
    losses = {"class means": folds.loss(folds.held_out(folds.rule, folds=parts)), "fitted": folds.loss(held_out)}
    if not losses["fitted"] < losses["class means"]:
        logger.info(
            "The start is not fitted, since its loss on rows held out is %.3f, that of the class means %.3f.",
            losses["fitted"],
            losses["class means"],
        )
        return None
    probe = folds.fit(torch.ones_like(ids, dtype=torch.bool), share, scale, decay)
    accuracy = folds.accuracy(held_out)
    logger.info(
        "Start fitted to %d rows in %.1f s (share %.2g of the identity, weight decay %g): accuracy on rows "
        "held out %.1f %%, loss %.3f "
        "(class means %.3f).",
        len(ids),
        time.perf_counter() - started,
        share,
        decay,
        100.0 * accuracy,
        losses["fitted"],
        losses["class means"],
    )
    offset = probe.offset.new_zeros(num_labels, embedding_dim).index_copy(0, classes, probe.offset)
    distances = _of_all(folds.parts(share, scale, decay, parts), features, labelled, classes, num_labels)
    return FittedStart(probe.head, -probe.head @ probe.centre, offset, distances, share, accuracy)


def _of_all(
    parts: Sequence[Part], features: Tensor, labelled: Tensor, classes: Tensor, num_labels: int
) -> Tensor | DistancesInParts:
    """Distances (N, C) of all rows to all labels, from parts of the labelled rows, which know only `classes`."""

    def spread(part: Part) -> Part:
        rows = torch.zeros_like(labelled).masked_scatter(labelled, part.rows)
        vectors = part.label_vectors.new_zeros(num_labels, part.label_vectors.shape[1])
        seen = part.seen.new_zeros(num_labels).index_copy(0, classes, part.seen)
        return Part(rows, part.embed, vectors.index_copy(0, classes, part.label_vectors), seen)

    return DistancesInParts(features, num_labels, [spread(part) for part in parts]).stored_if_few()


def _unfit(rows: Tensor, ids: Tensor, num_labels: int, embedding_dim: int) -> str | None:
    """Why these rows cannot be fitted, or None."""
    if num_labels < 2 or len(rows) < FOLDS:
        return f"there are {len(rows)} rows of {num_labels} classes"
    if len(rows) * _work_of_a_row(rows.shape[1], num_labels, embedding_dim) > LARGEST_WORK:
        return f"{len(rows)} rows of {num_labels} classes would take too long"
    if not bool(rows.isfinite().all()):
        return "some features are not finite"
    return "no class has a second row to hold out" if int(ids.bincount().max()) < 2 else None


def prompt_rows(num_features: int, num_labels: int, embedding_dim: int) -> int:
    """Rows that are fitted within seconds."""
    return int(PROMPT_WORK / _work_of_a_row(num_features, num_labels, embedding_dim))


def _work_of_a_row(num_features: int, num_labels: int, embedding_dim: int) -> int:
    return embedding_dim * (num_features + 2 * num_labels)


class Folds:
    """The start rows in parts, each of which is new to what is made from the others.

    Args:
        rows: (N, H).
        ids: (N,) int64, 0…C-1, each with a row.
        num_labels: C.
        embedding_dim: D.
        learn_offset: as for `fit_start`.
        names: the last so many rows are never held out.
    """

    def __init__(
        self, rows: Tensor, ids: Tensor, num_labels: int, embedding_dim: int, learn_offset: bool, names: int = 0
    ) -> None:
        self.rows, self.ids, self.num_labels, self.embedding_dim = rows, ids, num_labels, embedding_dim
        self.learn_offset = learn_offset
        self.fold = fold_of(ids, names)  # (N,)
        self.counts = ids.bincount()
        self.usable = self.counts[ids] > 1
        self.rule = shrinkage(len(rows), num_labels, rows.shape[1])
        enough = len(rows) - names >= FOLDS * num_labels and rows.shape[1] <= WIDEST
        self.shares = SHARES if enough else (self.rule,)
        self._moments: dict[int, tuple[Moments, tuple[Tensor, Tensor] | None]] = {}
        self._found: dict[tuple[int, float, float | None, float], Part] = {}

    def best(self) -> tuple[float, float]:
        """Share and weight decay whose fit has the least loss on the first fold, one after the other."""
        scales = {share: self.scale(self.held_out(share, folds=1)) for share in self.shares}

        def loss(share: float, decay: float) -> float:
            return self.loss(self.held_out(share, scales[share], decay, folds=1))

        losses = {(share, WEIGHT_DECAYS[0]): loss(share, WEIGHT_DECAYS[0]) for share in self.shares}
        share, _ = min(losses, key=losses.__getitem__)
        losses |= {(share, decay): loss(share, decay) for decay in WEIGHT_DECAYS[1:]}
        return min(losses, key=losses.__getitem__)

    def held_out(
        self, share: float, scale: float | None = None, decay: float = WEIGHT_DECAYS[0], folds: int = FOLDS
    ) -> Tensor | DistancesInParts:
        """Distances (N, C) of the rows of the first ``folds`` parts to label vectors made without their part.

        Args:
            share: of the identity in the whitening.
            scale: at which to fit; None for the class means as they are.
            decay: weight decay of the fit.
            folds: how many parts; rows of the others stay at infinity, as do classes without other rows.
        """
        parts = self.parts(share, scale, decay, folds)
        return DistancesInParts(self.rows, self.num_labels, parts).stored_if_few()

    def parts(self, share: float, scale: float | None, decay: float, folds: int) -> list[Part]:
        """The parts of the rows, and what each is measured through; arguments as of `held_out`."""
        numbers = [number for number in range(folds) if bool((self.fold == number).any())]
        for key in ((number, share, scale, decay) for number in numbers):
            if key not in self._found:
                self._found[key] = self._part(*key)
        return [self._found[number, share, scale, decay] for number in numbers]

    def _part(self, number: int, share: float, scale: float | None, decay: float) -> Part:
        held_out, rest = self.fold == number, self.fold != number
        probe = self.started(rest, share, number) if scale is None else self.fit(rest, share, scale, decay, number)
        seen = self.ids[rest].bincount(minlength=self.num_labels) > 0
        return Part(held_out, probe.embed, probe.label_vectors, seen)

    def measured(self, distances: Tensor | Distances) -> Tensor:
        """(N,) bool: rows that are held out in ``distances`` and whose class has others."""
        return self.usable & known_rows(distances)

    def scale(self, distances: Tensor | Distances) -> float:
        """Scale with the least loss on rows held out."""
        labels = self.ids.where(self.measured(distances), IGNORE_INDEX)
        return calibrated_scale(distances, labels, self.counts, held_out=distances, smoothed=True)

    def loss(self, distances: Tensor | Distances) -> float:
        """Cross-entropy on rows held out, at the scale that suits it best."""
        rows, scale = self.measured(distances).nonzero()[:, 0], self.scale(distances)
        found = blocks_of(distances, rows)
        total = sum(float(F.cross_entropy(-scale * part, self.ids[block], reduction="sum")) for block, part in found)
        return total / len(rows)

    def accuracy(self, distances: Tensor | Distances) -> float:
        """Share of the rows held out whose own label vector is the nearest."""
        rows = self.measured(distances).nonzero()[:, 0]
        found = blocks_of(distances, rows)
        return sum(int((part.argmin(dim=1) == self.ids[block]).sum()) for block, part in found) / len(rows)

    def started(self, rest: Tensor, share: float, number: int) -> Probe:
        """The start at the class means of the rows ``rest`` (N,) bool, which fold ``number`` (-1: none) is new to."""
        scaling, centre, means = self._whitened(rest, share, number)
        head = _orthonormal_rows((means - centre) @ scaling, self.embedding_dim) @ scaling
        return Probe(head, centre, means, head.new_zeros(self.num_labels, self.embedding_dim))

    def fit(self, rest: Tensor, share: float, scale: float, decay: float, number: int = -1) -> Probe:
        """The start that is fitted to the rows ``rest`` at a scale of the logits; other arguments as above."""
        scaling, centre, means = self._whitened(rest, share, number)
        head = _orthonormal_rows((means - centre) @ scaling, self.embedding_dim)  # (D, H), of whitened features
        centroids, rows = (means - centre) @ scaling, rest.nonzero()[:, 0]
        inputs = torch.cat([(values - centre) @ scaling for _, values in in_float64(self.rows, rows)])
        size = float(inputs.square().sum(dim=1).mean().sqrt().clamp(min=torch.finfo(inputs.dtype).tiny))
        change, offset = fit(
            inputs / size, self.ids[rest], centroids / size, head, scale * size, decay, learn_offset=self.learn_offset
        )
        return Probe((head + change) @ scaling, centre, means, offset * size)

    def _whitened(self, rest: Tensor, share: float, number: int) -> tuple[Tensor, Tensor, Tensor]:
        """Scaling (H, H), centre (H,) and class means (C, H) of some rows; classes without rows are at the centre."""
        if number not in self._moments:  # one decomposition serves every share
            narrow = min(self.shares) < 1.0
            found = moments(self.rows, self.ids, self.num_labels, rest.nonzero()[:, 0], covariance=narrow)
            spectrum = None if found.covariance is None else torch.linalg.eigh(found.covariance)
            self._moments[number] = found, spectrum
        found, spectrum = self._moments[number]
        seen = found.counts > 0
        centre = found.means[seen].mean(dim=0)
        means = torch.where(seen.unsqueeze(1), found.means, centre)
        if spectrum is None or share >= 1.0:
            return torch.eye(self.rows.shape[1], dtype=means.dtype, device=means.device), centre, means
        values, vectors = spectrum
        level = values.mean().clamp(min=torch.finfo(values.dtype).tiny)
        shrunken = (1.0 - share) * values / level + share
        return (vectors * shrunken.clamp(min=share).rsqrt()) @ vectors.T, centre, means


def fit(
    inputs: Tensor,
    ids: Tensor,
    centroids: Tensor,
    head: Tensor,
    scale: float,
    decay: float = WEIGHT_DECAYS[0],
    *,
    learn_offset: bool = True,
) -> tuple[Tensor, Tensor]:
    """Minimise the cross-entropy of negative distances over a change of the head and an offset, by L-BFGS.

    Args:
        inputs: (N, H), of root mean square length 1.
        ids: (N,) int64.
        centroids: (C, H) class means of the inputs.
        head: (D, H) to start from, and towards which weight decay pulls.
        scale: of the logits, held fixed.
        decay: weight of the squares of what is fitted, in units of the logits.
        learn_offset: False fits the head alone.

    Returns:
        Change of the head (D, H) and offset (C, D), in the dtype of ``head``; found in float32.
    """
    rows, means, first = inputs.float(), centroids.float(), head.float()
    change = torch.zeros_like(first, requires_grad=True)
    offset = torch.zeros(len(means), len(first), device=first.device, requires_grad=learn_offset)
    learned = [change, offset] if learn_offset else [change]
    optimizer = torch.optim.LBFGS(learned, max_iter=ITERATIONS, history_size=10, line_search_fn="strong_wolfe")
    pull = decay * scale**2 / len(rows)
    size = rows_at_a_time((len(rows), len(means)))  # whose distances, and what their gradient needs, exist at once

    def evaluate() -> Tensor:
        optimizer.zero_grad()
        total = torch.zeros((), device=first.device)
        for number, (block, own) in enumerate(zip(torch.split(rows, size), torch.split(ids, size), strict=True)):
            now = first + change
            distances = pairwise_distances(block @ now.T, means @ now.T + offset, own)
            loss = F.cross_entropy(-scale * distances, own, reduction="sum") / len(rows)
            if number == 0:
                loss = loss + pull * sum(part.square().sum() for part in learned)
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        return total

    with torch.enable_grad(), torch.autocast(first.device.type, enabled=False):
        optimizer.step(evaluate)  # type: ignore[no-untyped-call]
    found = change.detach().to(head), offset.detach().to(head)
    if not all(bool(part.isfinite().all()) for part in found):
        return torch.zeros_like(found[0]), torch.zeros_like(found[1])
    return found
