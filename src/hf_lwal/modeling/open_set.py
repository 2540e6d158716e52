"""Open-set rejection: saying "none of these" to an input that lies outside every class.

Two distances tell how far an input is from a class: the cosine distance of its features from the class mean, in units
of the class's radius, a quantile of that distance over its rows; and the squared distance of its embedding from the
label vector, in units of the same quantile over all rows. Their sum is the better of either on classes that were held
out (``benchmarks/open_set.py``): the features keep what the head has learned to ignore, the head ignores what tells no
class from another. The rejection score of an input is the least sum over the classes, in units of the quantile of the
sums: up to 1 it lies inside some class.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .compat import is_exporting
from .core import LabelTableModel
from .distributed import all_reduce_sum
from .functional import (
    cosine_distances,
    own_cosine_distances,
    pairwise_distances,
)
from .heads import active_copy
from .inference import evaluated
from .label_snapshot import changing_labels, labels_of_now
from .label_table import LabelTable
from .labelled_inputs import labelled_values, of_all_ranks
from .row_blocks import BLOCK

SHRINKAGE = 10.0
"""The quantile over all classes counts as much as this many rows of a class: a quantile of few rows says little."""
LEAST_RADIUS = 1e-6
"""A radius of 0 means "not measured"."""


def class_quantiles(values: Tensor, labels: Tensor, num_labels: int, quantile: float) -> tuple[Tensor, Tensor]:
    """Quantile of the values of each class, interpolated linearly as ``torch.quantile`` does.

    Args:
        values: (N,) floating point.
        labels: (N,) int64 in 0…C-1.
        num_labels: C.
        quantile: between 0 and 1.

    Returns:
        Quantiles (C,), 0 for classes without rows, and rows per class (C,) int64.
    """
    order = values.argsort()
    values = values[order[labels[order].argsort(stable=True)]]  # (N,) by class, ascending within it
    counts = torch.bincount(labels, minlength=num_labels)  # (C,)
    last = (counts - 1).clamp(min=0)
    place = quantile * last.to(values.dtype)  # (C,) within the class
    low = place.floor().long()
    starts = (counts.cumsum(0) - counts).clamp(max=len(values) - 1)  # (C,) an empty last class starts past the end
    below, above = values[starts + low], values[starts + torch.minimum(low + 1, last)]
    return torch.where(counts > 0, below + (place - low) * (above - below), 0.0), counts


def class_radii(
    distances: Tensor, labels: Tensor, num_labels: int, quantile: float = 0.95, shrinkage: float = SHRINKAGE
) -> Tensor:
    """Radius of each class: its quantile of the distances, shrunk to the quantile over all rows where rows are few.

    ``r_c = (n_c q_c + k q) / (n_c + k)`` with n_c rows, k = ``shrinkage``; a class without rows gets q.

    Args:
        distances: (N,) from each row to the mean of its class.
        labels: (N,) int64 in 0…C-1.
        num_labels: C.
        quantile: share of the rows that a radius covers.
        shrinkage: k.

    Returns:
        (C,) all above 0.

    Raises:
        ValueError: no rows, or a quantile outside 0…1.
    """
    if not 0.0 < quantile <= 1.0:
        raise ValueError(f"quantile is {quantile}, but it must be above 0 and at most 1, usually 0.95.")
    if len(distances) == 0:
        raise ValueError("Radii need rows with a label, but there are none.")
    own, counts = class_quantiles(distances, labels, num_labels, quantile)
    pooled, _ = class_quantiles(distances, torch.zeros_like(labels), 1, quantile)  # (1,)
    return ((counts * own + shrinkage * pooled) / (counts + shrinkage)).clamp(min=LEAST_RADIUS)


def rejection_scores(
    distances: Tensor, radii: Tensor, squares: Tensor | None = None, edges: Tensor | None = None
) -> Tensor:
    """How far outside every class rows lie, (B,): above 1 outside of all.

    Args:
        distances: (B, C) cosine distances to class means.
        radii: (C,) above 0.
        squares: (B, C) squared distances to label vectors, less what the labels' bias takes off.
        edges: (2,) the unit of the squares, and that of the sums; without them the first distances count alone.

    Returns:
        The least over the classes.
    """
    found = distances / radii
    if squares is not None and edges is not None:
        found = (found + squares.clamp(min=0.0) / edges[0]) / edges[1]
    return found.amin(dim=1)


class RejectionScores(nn.Module):
    """`OpenSet.rejection_scores` of a model in its state of now, on its own: from features (B, H) to scores (B,).

    Args:
        model: with radii; left as it is.

    Raises:
        ValueError: the radii were never measured, or training has gone on since.
    """

    means: Tensor
    radii: Tensor
    label_vectors: Tensor
    distance_bias: Tensor
    edges: Tensor

    def __init__(self, model: LabelTableModel) -> None:
        super().__init__()
        model.bring_labels_up_to_date()
        table = model.label_table
        _refuse_without_radii(table)
        # A class that is never predicted takes no row in.
        known = table.seen if table.mask_unseen and bool(table.seen.any()) else torch.ones_like(table.seen)
        self.register_buffer("means", F.normalize(table.class_features[known], dim=1))
        self.register_buffer("radii", table.rejection_radii[known])
        self.register_buffer("label_vectors", table.label_vectors[known])
        self.register_buffer("distance_bias", table.distance_bias[known])
        self.register_buffer("edges", table.rejection_edges.clone())
        self.head = None if model.head is None else active_copy(model.head_module)
        # In tables of hf-lwal 0.1 the edges were never measured.
        self.adds_squares = bool((table.rejection_edges > 0).all())

    def forward(self, features: Tensor) -> Tensor:
        """(B,) float32 scores of features, or of embeddings in the embeddings space, (B, N)."""
        found, embeddings = [], self._embeddings(features) if self.adds_squares else None
        number = len(self.radii)
        size = number if is_exporting() else max(BLOCK // max(len(features), 1), 1)
        for start in range(0, number, size):
            part = slice(start, start + size)
            squares = None
            if embeddings is not None:
                squares = pairwise_distances(embeddings, self.label_vectors[part]).square() - self.distance_bias[part]
            distances = cosine_distances(features, self.means[part])
            found.append(rejection_scores(distances, self.radii[part], squares, self.edges))
        return found[0] if len(found) == 1 else torch.stack(found).amin(dim=0)

    def _embeddings(self, features: Tensor) -> Tensor:
        head: Any = self.head
        if head is None:
            return features.float()
        return head(features.to(next(head.parameters()).dtype)).to(self.label_vectors.device, torch.float32)


def _refuse_without_radii(table: LabelTable) -> None:
    if not bool((table.rejection_radii > 0).all()):
        raise ValueError(
            "The radii of the labels are not known, or training has gone on since they were measured: call "
            "model.fit_rejection(dataloader) first."
        )


class OpenSet:
    """Rejection of inputs of no known class; `LwALPreTrainedModel` inherits it.

    The radii are a buffer of the label table, saved with it and shown in ``label_table.json``. Training moves rows and
    class means, and so forgets the radii: measure them after it.
    """

    # Type checkers do not let a mixin's self be the class that inherits it, hence Any.

    def fit_rejection(
        self: Any,
        inputs: Iterable[dict[str, Any]] | Sequence[Any],
        processing_class: Any = None,
        labels: Sequence[int | str] | None = None,
        *,
        quantile: float = 0.95,
        batch_size: int = 32,
        progress: bool = True,
    ) -> Tensor:
        """Measure the radius of every label, from rows with their labels, in evaluation mode.

        Rows that the model was trained on lie closer to their class mean than new ones: where there are rows kept
        back, use those, or more new rows of known classes are rejected than ``1 - quantile``.

        With several processes all of them must call this, each with all rows in the same order or each with its own
        part of them, as accelerate deals out the batches of a data loader: all get the radii that one process would.

        Args:
            inputs: batches (dicts with "labels"), as of a data loader; or, with ``processing_class`` and ``labels``,
                a list of texts, images or sounds.
            processing_class: tokenizer, image processor or feature extractor.
            labels: id or name of each input.
            quantile: share of a class's rows that its radius covers.
            batch_size: inputs per forward pass, where these are not batches yet.
            progress: show a progress bar.

        Returns:
            The radii (C,) float32.

        Raises:
            ValueError: no rows, a label that is not the model's, no class means, or a quantile outside 0…1.
        """
        self.bring_labels_up_to_date()
        table = self.label_table
        if not bool(table.seen.any()):
            raise ValueError(
                "The label table has no class means yet: train the model or call initialize_labels first."
            )
        values, ids = labelled_values(
            self, self.start_values, inputs, processing_class, labels, batch_size, progress, "Radii"
        )
        own = torch.stack(
            [own_cosine_distances(values, table.class_features, ids), table.own_squares(values, ids, self.head)], dim=1
        )  # (N, 2)
        of_all, labels_of_all, shared = of_all_ranks(own, ids)
        table.measure_scatter(values, ids, self.head, Tensor.clone if shared else all_reduce_sum)
        ids, (angles, squares) = labels_of_all, of_all.unbind(dim=1)
        radii, unit = class_radii(angles, ids, table.num_labels, quantile), _quantile(squares, quantile)
        with changing_labels():
            table.rejection_radii.copy_(radii)
            table.rejection_edges[0] = unit
            table.rejection_edges[1] = _quantile(angles / table.rejection_radii[ids] + squares / unit, quantile)
        return table.rejection_radii.clone()

    def rejection_scores(self: Any, values: Tensor) -> Tensor:
        """How far outside every class inputs lie, from features and embeddings; see the module.

        Args:
            values: (B, N) what class means are taken of, as from `start_values`, on the model's device.

        Returns:
            (B,) float32; up to 1 is inside some class.

        Raises:
            ValueError: the radii were never measured, or training has gone on since.
        """
        scores: Tensor = RejectionScores(self)(values)
        return scores

    @torch.no_grad()
    def predict_with_rejection(
        self: Any,
        inputs: Sequence[Any],
        processing_class: Any,
        reject: str = "unknown",
        *,
        threshold: float = 1.0,
        batch_size: int = 32,
    ) -> list[dict[str, Any]]:
        """The label of each input, or ``reject`` for one that lies outside every class.

        Args:
            inputs: list of texts, images or sounds.
            processing_class: tokenizer, image processor or feature extractor.
            reject: what to call inputs of no known class; not a label's name.
            threshold: rejection scores above it are rejected; a larger one rejects less.
            batch_size: inputs per forward pass.

        Returns:
            Per input ``{"label": name or reject, "score": probability of the likeliest label, "nearest": its name,
            "rejection_score": how far outside every class}``.

        Raises:
            ValueError: ``reject`` is a label's name, or the radii are not known.
        """
        with changing_labels():
            table, names = labels_of_now(self)
            if reject in names.values():
                raise ValueError(f"reject is {reject!r}, which is a label of the model: choose another word.")
            scores = RejectionScores(self)
        answers = []
        for batch in evaluated(self, inputs, processing_class, batch_size):
            output = self(**batch, label_table=table)
            rejection = scores(self.values(output.embeddings, output.features))
            best = output.logits.softmax(dim=1).max(dim=1)
            for score, index, far in zip(*(x.tolist() for x in (*best, rejection)), strict=True):
                label = reject if far > threshold else names[index]
                answers.append({"label": label, "score": score, "nearest": names[index], "rejection_score": far})
        return answers


def _quantile(values: Tensor, quantile: float) -> Tensor:
    """() over all rows, of any number; at least `LEAST_RADIUS`."""
    found, _ = class_quantiles(values, torch.zeros_like(values, dtype=torch.int64), 1, quantile)
    return found[0].clamp(min=LEAST_RADIUS)
