"""The fitted start: shrinkage, head and offset fitted to the cached features of the start rows, in seconds.

Class means of a few rows say less than a regression on the same rows does. Before the first step, therefore, the loss
of the label table itself is minimised over head and offset with the features held fixed: a linear probe in the form of
label vectors. What is chosen, the share of the identity in the whitening, the scale, and whether to fit at all, is
chosen on rows held out. Not in the paper; ``benchmarks/start_probe.py`` measures it beside a logistic regression.
"""

from __future__ import annotations

import logging
import time
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .functional import IGNORE_INDEX, calibrated_scale, centroids, class_sums, pairwise_distances
from .head_start import FOLDS, _orthonormal_rows, fold_of, shrinkage

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
            -100, for those of folds that were not measured, and for classes without other rows.
        share: of the identity in the whitening.
        accuracy: of the nearest label vector on rows held out, 0…1.
    """

    weight: Tensor
    bias: Tensor
    offset: Tensor
    held_out: Tensor
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

    def distances(self, features: Tensor, labels: Tensor | None = None) -> Tensor:
        """(N, C) distances of features (N, H) to the label vectors."""
        vectors = (self.means - self.centre) @ self.head.T + self.offset
        return pairwise_distances((features - self.centre) @ self.head.T, vectors, labels)


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
    rows = features[labelled].double()
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
    accuracy = float((held_out.argmin(dim=1) == ids)[folds.measured(held_out)].double().mean())
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
    columns = held_out.new_full((len(ids), num_labels), torch.inf).index_copy(1, classes, held_out)
    distances = held_out.new_full((len(labels), num_labels), torch.inf)
    distances[labelled] = columns
    return FittedStart(probe.head, -probe.head @ probe.centre, offset, distances, share, accuracy)


def _unfit(rows: Tensor, ids: Tensor, num_labels: int, embedding_dim: int) -> str | None:
    """Why these rows cannot be fitted, or None."""
    if num_labels < 2 or len(rows) < FOLDS:
        return f"there are {len(rows)} rows of {num_labels} classes"
    if not bool(rows.isfinite().all()):
        return "some features are not finite"
    if int(ids.bincount().max()) < 2:
        return "no class has a second row to hold out"
    work = len(rows) * _work_of_a_row(rows.shape[1], num_labels, embedding_dim)
    return f"{len(rows)} rows of {num_labels} classes would take too long" if work > LARGEST_WORK else None


def prompt_rows(num_features: int, num_labels: int, embedding_dim: int) -> int:
    """Rows that are fitted within seconds."""
    return int(PROMPT_WORK / _work_of_a_row(num_features, num_labels, embedding_dim))


def _work_of_a_row(num_features: int, num_labels: int, embedding_dim: int) -> int:
    return embedding_dim * (num_features + 2 * num_labels)


class Folds:
    """The start rows in parts, each of which is new to what is made from the others.

    Args:
        rows: (N, H) float64.
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
        self._spectra: dict[int, tuple[Tensor, Tensor]] = {}
        self._found: dict[tuple[int, float, float | None, float], Tensor] = {}

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
    ) -> Tensor:
        """Distances (N, C) of the rows of the first ``folds`` parts to label vectors made without their part.

        Args:
            share: of the identity in the whitening.
            scale: at which to fit; None for the class means as they are.
            decay: weight decay of the fit.
            folds: how many parts; rows of the others stay at infinity, as do classes without other rows.
        """
        distances = self.rows.new_full((len(self.ids), self.num_labels), torch.inf)
        for number in range(folds):
            if not bool((self.fold == number).any()):
                continue
            key = (number, share, scale, decay)
            if key not in self._found:
                self._found[key] = self._distances_of_fold(*key)
            distances[self.fold == number] = self._found[key]
        return distances

    def _distances_of_fold(self, number: int, share: float, scale: float | None, decay: float) -> Tensor:
        """Distances (n, C) of the n rows of a fold; arguments as of `held_out`."""
        held_out, rest = self.fold == number, self.fold != number
        probe = self.started(rest, share, number) if scale is None else self.fit(rest, share, scale, decay, number)
        seen = self.ids[rest].bincount(minlength=self.num_labels) > 0
        return probe.distances(self.rows[held_out]).masked_fill(~seen, torch.inf)

    def measured(self, distances: Tensor) -> Tensor:
        """(N,) bool: rows that are held out in ``distances`` and whose class has others."""
        return self.usable & distances.isfinite().any(dim=1)

    def scale(self, distances: Tensor) -> float:
        """Scale with the least loss on rows held out."""
        rows = self.measured(distances)
        found = distances[rows]
        finite = found.masked_fill(found.isinf(), float(found[found.isfinite()].mean()))
        return calibrated_scale(finite, self.ids[rows], self.counts, held_out=found, smoothed=True)

    def loss(self, distances: Tensor) -> float:
        """Cross-entropy on rows held out, at the scale that suits it best."""
        rows = self.measured(distances)
        return float(F.cross_entropy(-self.scale(distances) * distances[rows], self.ids[rows]))

    def started(self, rest: Tensor, share: float, number: int) -> Probe:
        """The start at the class means of the rows ``rest`` (N,) bool, which fold ``number`` (-1: none) is new to."""
        scaling, centre, means = self._whitened(rest, share, number)
        head = _orthonormal_rows((means - centre) @ scaling, self.embedding_dim) @ scaling
        return Probe(head, centre, means, head.new_zeros(self.num_labels, self.embedding_dim))

    def fit(self, rest: Tensor, share: float, scale: float, decay: float, number: int = -1) -> Probe:
        """The start that is fitted to the rows ``rest`` at a scale of the logits; other arguments as above."""
        scaling, centre, means = self._whitened(rest, share, number)
        head = _orthonormal_rows((means - centre) @ scaling, self.embedding_dim)  # (D, H), of whitened features
        inputs, centroids = (self.rows[rest] - centre) @ scaling, (means - centre) @ scaling
        size = float(inputs.square().sum(dim=1).mean().sqrt().clamp(min=torch.finfo(inputs.dtype).tiny))
        change, offset = fit(
            inputs / size, self.ids[rest], centroids / size, head, scale * size, decay, learn_offset=self.learn_offset
        )
        return Probe((head + change) @ scaling, centre, means, offset * size)

    def _whitened(self, rest: Tensor, share: float, number: int) -> tuple[Tensor, Tensor, Tensor]:
        """Scaling (H, H), centre (H,) and class means (C, H) of some rows; classes without rows are at the centre."""
        sums, counts = class_sums(self.rows[rest], self.ids[rest], self.num_labels)
        seen = counts > 0
        means = centroids(sums, counts)
        centre = means[seen].mean(dim=0)
        means = torch.where(seen.unsqueeze(1), means, centre)
        width = self.rows.shape[1]
        if share >= 1.0:
            return torch.eye(width, dtype=means.dtype, device=means.device), centre, means
        if number not in self._spectra:  # one decomposition serves every share
            residuals = self.rows[rest] - means[self.ids[rest]]
            self._spectra[number] = torch.linalg.eigh(residuals.T @ residuals / len(residuals))
        values, vectors = self._spectra[number]
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

    def evaluate() -> Tensor:
        optimizer.zero_grad()
        now = first + change
        distances = pairwise_distances(rows @ now.T, means @ now.T + offset, ids)
        loss = F.cross_entropy(-scale * distances, ids) + pull * sum(part.square().sum() for part in learned)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    with torch.enable_grad(), torch.autocast(first.device.type, enabled=False):
        optimizer.step(evaluate)  # type: ignore[no-untyped-call]
    found = change.detach().to(head), offset.detach().to(head)
    if not all(bool(part.isfinite().all()) for part in found):
        return torch.zeros_like(found[0]), torch.zeros_like(found[1])
    return found
