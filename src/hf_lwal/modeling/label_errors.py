"""Wrong labels found before training: how likely each row's label is, from what it looks like to the other rows.

Every row is measured by classifiers that were made without it (held_out_logits.py). A given label is then taken for
the true one, seen through noise: row i of class k has the given label y with probability ``T[k, y]``. Both the noise
and the scale of the logits are estimated from the rows themselves by expectation and maximisation (Dawid & Skene 1979,
with one annotator), so that a class that is often taken for one certain other is told from labels given at random, and
nobody has to say how many labels are wrong. Not in the paper; ``benchmarks/label_errors.py`` measures it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from .class_moments import moments
from .functional import IGNORE_INDEX
from .held_out_logits import Blocks, left_out_logits, principal, regression_logits

CANDIDATES = 16
"""Labels besides its own that a row may have: the nearest. The others count in the normaliser, at their mean."""
PRIOR_ROWS = 100.0
"""The error rate over all classes counts as much as this many rows of a class."""
CONCENTRATIONS = (3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
"""Rows as which even confusion among all classes counts, to choose from: noise that is alike everywhere wants many."""
LARGEST_RATE = 0.95
"""Of wrong labels in a class."""
FIRST_RATE = 0.1
"""Of wrong labels, where the estimation starts from labels given at random."""
ROUNDS = 40
"""Of the estimation at most."""
ENOUGH = 2e-4
"""Mean change of the rows' probabilities at which it ends."""
ROWS_FOR_SCALE = 3000
"""Among which the scale of the logits is chosen."""
LARGEST_WORK = 5e9
"""Rows times labels times features beyond which no regression is fitted: about a minute on a CPU core."""


class LabelErrors(NamedTuple):
    """What is known of the labels of N rows, in the order of the rows.

    Attributes:
        margins: (N,) float32, logarithm of the odds that the given label is right; below 0 another one is likelier.
            NaN where nothing can be said: rows with -100, rows whose label no other row has, features that are not
            finite.
        likelier: (N,) int64, the likeliest label besides the given one; -100 where nothing can be said.
        share: of the labels that can be judged, how many are wrong by estimate, 0…1.
        suspicious: (N,) bool, so many rows as that are, those with the smallest margins.
    """

    margins: Tensor
    likelier: Tensor
    share: float
    suspicious: Tensor

    @property
    def wrong(self) -> Tensor:
        """(N,) float32 probability that the given label is wrong; 0 where nothing can be said."""
        return torch.sigmoid(-self.margins).nan_to_num(nan=0.0)

    @property
    def order(self) -> Tensor:
        """(n,) rows that can be judged, the most suspicious first."""
        known = (~self.margins.isnan()).nonzero()[:, 0]
        return known[self.margins[known].argsort(stable=True)]


@torch.no_grad()
def label_errors(features: Tensor, labels: Tensor, num_labels: int) -> LabelErrors:
    """Judge the label of every row by the features of the others.

    Labels that only one row has are left out, also as what other rows may be.

    Args:
        features: (N, H).
        labels: (N,) int64, 0…C-1; rows with -100 are left out.
        num_labels: C.
    """
    margins = torch.full_like(labels, math.nan, dtype=torch.float32)
    likelier = torch.full_like(labels, IGNORE_INDEX)
    usable = _usable(features, labels, num_labels).nonzero()[:, 0]
    classes, ids = torch.unique(labels[usable], return_inverse=True)
    share = 0.0
    if len(classes) > 1 and moments(features, torch.zeros_like(labels), 1, usable).differ:
        noise = _noise_of(principal(features[usable]), ids, len(classes))
        margins[usable], likelier[usable] = noise.margins.float(), classes[noise.likelier]
        share = float(torch.sigmoid(-noise.margins).mean())
    found = LabelErrors(margins, likelier, share, torch.zeros_like(labels, dtype=torch.bool))
    found.suspicious[found.order[: round(share * len(usable))]] = True
    return found


def _usable(features: Tensor, labels: Tensor, num_labels: int) -> Tensor:
    """(N,) bool: rows with finite features, and a label that another such row has, too."""
    known = (labels != IGNORE_INDEX) & features.isfinite().all(dim=1)
    counts = torch.bincount(labels[known], minlength=num_labels)
    return known & (counts[labels.clamp(min=0)] > 1)


class Noise(NamedTuple):
    """What was estimated of rows: their margins (N,) and likelier labels (N,), as `LabelErrors` has them.

    Attributes:
        margins: float64.
        likelier: int64.
        likelihood: mean log-probability of the given labels, of rows that were held out.
    """

    margins: Tensor
    likelier: Tensor
    likelihood: float


def _noise_of(rows: Tensor, ids: Tensor, num_labels: int) -> Noise:
    """From centred rows (N, H) of labels (N,) that all have two of them: by the classifier that explains them best."""
    found = _estimated(_nearest(left_out_logits(rows, ids, num_labels), ids, num_labels), ids, num_labels)
    if len(rows) * num_labels * rows.shape[1] > LARGEST_WORK:
        return found
    weights = torch.sigmoid(found.margins).float()  # a regression learns wrong labels, too, where it can
    fitted = _nearest(regression_logits(rows, ids, weights, num_labels), ids, num_labels)
    return max(found, _estimated(fitted, ids, num_labels), key=lambda noise: noise.likelihood)


class Nearest(NamedTuple):
    """Logits of rows for the labels that they may have.

    Attributes:
        logits: (N, K) float64, first that of the given label.
        ids: (N, K) int64, which labels these are.
        others: (N,) float64 mean logit of all others.
        number: of those others.
    """

    logits: Tensor
    ids: Tensor
    others: Tensor
    number: int

    def log_probabilities(self, scale: float, every: int = 1) -> Tensor:
        """(N, K) at a scale of the logits, of every so many rows."""
        logits, others = scale * self.logits[::every], scale * self.others[::every]
        if not self.number:
            return logits.log_softmax(dim=1)
        rest = others.unsqueeze(1) + math.log(self.number)
        return logits - torch.cat([logits, rest], dim=1).logsumexp(dim=1, keepdim=True)


def _nearest(found: Blocks, labels: Tensor, num_labels: int) -> Nearest:
    """The given label and the likeliest others of each row."""
    most = min(CANDIDATES, num_labels - 1)
    logits = torch.zeros(len(labels), most + 1, dtype=torch.float64, device=labels.device)
    ids = labels.unsqueeze(1).repeat(1, most + 1)
    others = torch.zeros(len(labels), dtype=torch.float64, device=labels.device)
    number = num_labels - 1 - most
    for block, values in found:
        own = labels[block].unsqueeze(1)
        given = values.gather(1, own)
        best = values.scatter(1, own, -torch.inf).topk(most)
        logits[block] = torch.cat([given, best.values], dim=1).double()
        ids[block, 1:] = best.indices
        if number:
            rest = values.double().sum(dim=1) - logits[block].sum(dim=1)
            others[block] = rest / number
    return Nearest(logits, ids, others, number)


def _estimated(nearest: Nearest, labels: Tensor, num_labels: int) -> Noise:
    """The likelier of two estimates: from labels given at random, and from the confusion that meets the eye."""
    pairs, places = torch.unique(
        nearest.ids * num_labels + labels.unsqueeze(1), return_inverse=True
    )  # those that occur
    confusion = Confusion(pairs // num_labels, pairs % num_labels, places, num_labels)
    seen = torch.zeros_like(nearest.logits).scatter(1, nearest.logits.argmax(dim=1, keepdim=True), 1.0)
    starts = confusion.even(FIRST_RATE), confusion.log_noise(seen)
    return max((_converged(nearest, confusion, start) for start in starts), key=lambda noise: noise.likelihood)


def _converged(nearest: Nearest, confusion: Confusion, log_noise: Tensor) -> Noise:
    scale, last = _best_scale(nearest, log_noise), None
    for number in range(1, ROUNDS + 1):
        joint = nearest.log_probabilities(scale) + log_noise  # (N, K)
        true = joint.softmax(dim=1)
        if last is not None and number > 6 and float((true[:, 0] - last).abs().mean()) < ENOUGH:
            break
        last, log_noise = true[:, 0], confusion.log_noise(true)
        if number % 4 == 0:
            scale = _best_scale(nearest, log_noise)
    margins = joint[:, 0] - joint[:, 1:].logsumexp(dim=1)
    best = joint[:, 1:].argmax(dim=1, keepdim=True) + 1
    return Noise(margins, nearest.ids.gather(1, best)[:, 0], float(joint.logsumexp(dim=1).mean()))


def _best_scale(nearest: Nearest, log_noise: Tensor) -> float:
    """The scale at which the given labels are likeliest, from a geometric grid and then from a finer one around it."""
    every = max(len(nearest.logits) // ROWS_FOR_SCALE, 1)
    size = float(nearest.logits.abs().mean()) or 1.0

    def likelihood(scale: float) -> float:
        return float((nearest.log_probabilities(scale, every) + log_noise[::every]).logsumexp(dim=1).mean())

    coarse = max((2.0 ** (power / 2) / size for power in range(-4, 22)), key=likelihood)
    return max((coarse * 2.0 ** (power / 16) for power in range(-7, 8)), key=likelihood)


class Confusion(NamedTuple):
    """How labels are given: ``T[k, y]`` for the pairs of a true and a given label that occur among candidates.

    Attributes:
        true: (P,) int64 true label of each pair.
        given: (P,) int64 given label.
        places: (N, K) int64, which pair a candidate of a row is.
        num_labels: C.
    """

    true: Tensor
    given: Tensor
    places: Tensor
    num_labels: int

    def even(self, rate: float) -> Tensor:
        """(N, K) logarithms of T where a share of the labels was given at random."""
        pairs = torch.where(self.true == self.given, 1.0 - rate, rate / (self.num_labels - 1)).double()
        return pairs.log()[self.places]

    def log_noise(self, probabilities: Tensor) -> Tensor:
        """(N, K) logarithms of T from the probabilities (N, K) that candidates are the true label.

        The rate of errors of a class is drawn to that of all; where its errors go, to all classes evenly, as strongly
        as makes the errors likeliest.
        """
        counts = probabilities.new_zeros(len(self.true))
        counts = counts.index_add(0, self.places.flatten(), probabilities.flatten())  # (P,)
        wrong = self.true != self.given
        errors, rows = (
            counts.new_zeros(self.num_labels).index_add(0, self.true, part) for part in (counts * wrong, counts)
        )
        rate = errors.sum() / rows.sum()
        rates = ((errors + PRIOR_ROWS * rate) / (rows + PRIOR_ROWS)).clamp(1e-9, LARGEST_RATE)  # (C,)
        evidence = [_log_evidence(counts[wrong], errors, strength, self.num_labels) for strength in CONCENTRATIONS]
        strength = CONCENTRATIONS[int(torch.stack(evidence).argmax())]
        shares = (counts + strength / (self.num_labels - 1)) / (errors + strength)[self.true]
        pairs = torch.where(wrong, rates[self.true] * shares, 1.0 - rates[self.true])
        return pairs.log()[self.places]


def _log_evidence(counts: Tensor, totals: Tensor, strength: float, num_labels: int) -> Tensor:
    """Logarithm of the probability of counts of errors under a Dirichlet prior, without what does not depend on it.

    Args:
        counts: (P,) of pairs of labels.
        totals: (C,) of true labels.
        strength: counts as which the prior counts, evenly.
        num_labels: C.
    """
    whole, part = (totals.new_tensor(value) for value in (strength, strength / (num_labels - 1)))
    of_totals = torch.lgamma(whole) - torch.lgamma(totals + whole)
    return of_totals.sum() + (torch.lgamma(counts + part) - torch.lgamma(part)).sum()
