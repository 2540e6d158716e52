"""Open-set rejection: saying "none of these" to an input that lies outside every class.

Each label has a radius, a quantile of the cosine distances from rows of its class to its class mean. The rejection
score of an input is its least distance in units of radius, ``min_c (1 - cos(h, mean_c)) / r_c``: up to 1 it lies
inside some class. Distances to label vectors tell less (``benchmarks/open_set.py``): cross-entropy asks of them only
that the right one is the nearest, and trained rows overshoot them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .core import LabelTableModel
from .distributed import rows_of_ranks
from .functional import IGNORE_INDEX, class_ids, cosine_distances, finite_rows, own_cosine_distances
from .inference import as_list, evaluated, prepare
from .row_blocks import blocks
from .start import collect

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


def rejection_scores(distances: Tensor, radii: Tensor) -> Tensor:
    """Least distance in units of radius, (B,): above 1 a row lies outside every class.

    Args:
        distances: (B, C).
        radii: (C,) above 0.
    """
    return (distances / radii).amin(dim=1)


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
        batches: Any = inputs
        if processing_class is not None:
            batches = _LabelledBatches(
                self, as_list(inputs, self.task), processing_class, _ids(self, labels), batch_size
            )
        self.bring_labels_up_to_date()
        table = self.label_table
        if not bool(table.seen.any()):
            raise ValueError(
                "The label table has no class means yet: train the model or call initialize_labels first."
            )
        values, ids = collect(self, self.start_values, batches, self.device, progress, "Radii")[:2]
        values, ids = finite_rows(values, class_ids(ids))
        wrong = ids[(ids != IGNORE_INDEX) & ((ids < 0) | (ids >= table.num_labels))]
        if len(wrong):
            raise ValueError(f"A row has label {int(wrong[0])}, but the model's labels are 0…{table.num_labels - 1}.")
        values, ids = values[ids != IGNORE_INDEX], ids[ids != IGNORE_INDEX]
        own = own_cosine_distances(values, table.class_features, ids)  # (N,)
        own, ids = _of_all_ranks(own, ids)
        table.rejection_radii.copy_(class_radii(own, ids, table.num_labels, quantile))
        return table.rejection_radii.clone()

    def rejection_scores(self: Any, values: Tensor) -> Tensor:
        """How far outside every class inputs lie: ``min_c (1 - cos(h, mean_c)) / r_c``.

        Args:
            values: (B, N) what class means are taken of, as from `start_values`, on the model's device.

        Returns:
            (B,) float32; up to 1 is inside some class.

        Raises:
            ValueError: the radii were never measured, or training has gone on since.
        """
        table = self.label_table
        self.bring_labels_up_to_date()
        if not bool((table.rejection_radii > 0).all()):
            raise ValueError(
                "The radii of the labels are not known, or training has gone on since they were measured: call "
                "model.fit_rejection(dataloader) first."
            )
        # A class that is never predicted takes no row in.
        ignored = ~table.seen if table.mask_unseen and bool(table.seen.any()) else torch.zeros_like(table.seen)
        found = []
        for labels in blocks(torch.arange(table.num_labels, device=ignored.device), len(values)):
            distances = cosine_distances(values, table.class_features[labels])  # (B, c)
            distances = distances.masked_fill(ignored[labels], torch.inf)
            found.append(rejection_scores(distances, table.rejection_radii[labels]))
        return torch.stack(found).amin(dim=0)

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
            "rejection_score": least distance in units of radius}``.

        Raises:
            ValueError: ``reject`` is a label's name, or the radii are not known.
        """
        names = self.config.label_names
        if reject in names.values():
            raise ValueError(f"reject is {reject!r}, which is a label of the model: choose another word.")
        answers = []
        for batch in evaluated(self, inputs, processing_class, batch_size):
            output = self(**batch)
            rejection = self.rejection_scores(self.values(output.embeddings, output.features))
            best = output.logits.softmax(dim=1).max(dim=1)
            for score, index, far in zip(*(x.tolist() for x in (*best, rejection)), strict=True):
                label = reject if far > threshold else names[index]
                answers.append({"label": label, "score": score, "nearest": names[index], "rejection_score": far})
        return answers


def _of_all_ranks(values: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Values and labels of the rows of all ranks, once where each rank was given all of them."""
    parts, ids = rows_of_ranks(values), rows_of_ranks(labels)
    alike = all(torch.equal(part, ids[0]) for part in ids)  # parts of the data would differ in their values
    if alike and all(torch.allclose(part, parts[0], rtol=1e-3, atol=1e-5, equal_nan=True) for part in parts):
        return parts[0], ids[0]
    return torch.cat(parts), torch.cat(ids)


class _LabelledBatches:
    """Batches of raw inputs with labels, prepared as they are read; can be read twice."""

    def __init__(
        self, model: LabelTableModel, inputs: list[Any], processing_class: Any, labels: Tensor, size: int
    ) -> None:
        if len(labels) != len(inputs):
            raise ValueError(f"There are {len(inputs)} inputs, but {len(labels)} labels: give one label per input.")
        self.model, self.inputs, self.processing_class = model, inputs, processing_class
        self.labels, self.size = labels, size

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for start in range(0, len(self.inputs), self.size):
            part = slice(start, start + self.size)
            yield {**prepare(self.model, self.inputs[part], self.processing_class), "labels": self.labels[part]}


def _ids(model: LabelTableModel, labels: Sequence[int | str] | None) -> Tensor:
    """(N,) int64 ids of labels that may be names."""
    label2id = {name: index for index, name in model.config.label_names.items()}
    given: list[Any] = [] if labels is None else list(labels)
    unknown = [label for label in given if isinstance(label, str) and label not in label2id]
    if unknown:
        raise ValueError(f"There is no label {unknown[0]!r} in the model.")
    if None in given:
        raise ValueError(f"The label of row {given.index(None)} is None: leave such rows out, or use {IGNORE_INDEX}.")
    return class_ids(np.asarray([label2id[label] if isinstance(label, str) else label for label in given]))
