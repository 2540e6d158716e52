"""Rows whose label is probably wrong, as a method of the model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from .functional import IGNORE_INDEX, class_ids
from .inference import as_list
from .label_errors import LabelErrors, label_errors
from .labelled_inputs import LabelledBatches, label_ids, of_all_ranks
from .start import collect_any


class LabelAudit:
    """Finding of wrong labels; `LwALPreTrainedModel` inherits it."""

    # Type checkers do not let a mixin's self be the class that inherits it, hence Any.

    def suspicious_labels(
        self: Any,
        inputs: Iterable[dict[str, Any]] | Sequence[Any],
        processing_class: Any = None,
        labels: Sequence[int | str] | None = None,
        *,
        batch_size: int = 32,
        progress: bool = True,
    ) -> list[dict[str, Any]]:
        """How far to trust each given label, by what the row looks like to all others; the least trusted rows first.

        Nothing of the model changes. It needs no training: its features are taken as they are. After a training on
        these labels they fit the wrong ones, too, which then are harder to find.

        With several processes all of them must call this, each with all rows in the same order or each with its own
        part of them, which then are numbered one rank after the other: all get the list that one process would.

        Args:
            inputs: batches (dicts with "labels"), as of a data loader that does not shuffle; or, with
                ``processing_class`` and ``labels``, a list of texts, images or sounds.
            processing_class: tokenizer, image processor or feature extractor.
            labels: id or name of each input; -100 leaves one out.
            batch_size: inputs per forward pass, where these are not batches yet.
            progress: show a progress bar.

        Returns:
            For each row with a label ``{"row": its number from 0, "label": name, "likelier": name of the likeliest
            other label, "margin": logarithm of the odds that the label is right, "wrong": probability that it is not,
            "suspicious": whether it is among the estimated number of wrong ones}``. Where nothing can be said, since
            no other row has the label or features are not finite, ``likelier`` is None and ``margin`` NaN; such rows
            come last.

        Raises:
            ValueError: no rows, or a label that is not the model's.
        """
        batches: Any = inputs
        if processing_class is not None:
            batches = LabelledBatches(
                self, as_list(inputs, self.task), processing_class, label_ids(self, labels), batch_size
            )
        samples = collect_any(self, features_of(self), batches, self.device, progress, "Labels", False)
        values, ids, _ = of_all_ranks(samples.values, class_ids(samples.labels))
        number = self.config.num_labels
        wrong = ids[(ids != IGNORE_INDEX) & ((ids < 0) | (ids >= number))]
        if len(wrong):
            raise ValueError(f"A row has label {int(wrong[0])}, but the labels are 0…{number - 1}.")
        return as_records(label_errors(values, ids, number), ids, self.config.label_names)


def features_of(model: Any) -> Callable[[dict[str, Any]], Tensor]:
    """What rows are compared by: the input of the head, which says most before a training; else the embeddings."""

    def values(inputs: dict[str, Any]) -> Tensor:
        embeddings, features, _ = model._embed(inputs)
        found: Tensor = embeddings if features is None else features
        return found

    return values


def as_records(found: LabelErrors, labels: Tensor, names: dict[int, str]) -> list[dict[str, Any]]:
    """One dict per row with a label, the most suspicious first; see `LabelAudit.suspicious_labels`."""
    unjudged = (found.margins.isnan() & (labels != IGNORE_INDEX)).nonzero()[:, 0]
    order = torch.cat([found.order, unjudged])
    columns = (order, labels, found.likelier, found.margins, found.wrong, found.suspicious)
    listed = [order.tolist(), *(column[order].tolist() for column in columns[1:])]
    return [
        {
            "row": row,
            "label": names[label],
            "likelier": names.get(likelier),
            "margin": margin,
            "wrong": math.nan if math.isnan(margin) else wrong,
            "suspicious": suspicious,
        }
        for row, label, likelier, margin, wrong, suspicious in zip(*listed, strict=True)
    ]
