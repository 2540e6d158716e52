"""Rows with labels as people give them, in batches or as raw inputs with names or ids, to measure something on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .core import LabelTableModel
from .distributed import rows_of_ranks
from .functional import IGNORE_INDEX, class_ids, finite_rows
from .inference import as_list, prepare
from .start import collect


def labelled_values(
    model: Any,
    values_of: Callable[[dict[str, Any]], Tensor],
    inputs: Iterable[dict[str, Any]] | Sequence[Any],
    processing_class: Any,
    labels: Sequence[int | str] | None,
    batch_size: int,
    progress: bool,
    description: str,
) -> tuple[Tensor, Tensor]:
    """What a model gives for rows with a label, in evaluation mode, and their labels (N,) int64.

    Args:
        model: whose labels they are.
        values_of: maps a batch without its labels to (B, N).
        inputs: batches with "labels", or raw inputs with ``processing_class`` and ``labels``.
        processing_class: tokenizer, image processor or feature extractor.
        labels: id or name of each raw input.
        batch_size: raw inputs per forward pass.
        progress: show a progress bar.
        description: of the progress bar.

    Raises:
        ValueError: no rows, or a label that is not the model's.
    """
    batches: Any = inputs
    if processing_class is not None:
        listed, ids = as_list(inputs, model.task), label_ids(model, labels)
        batches = LabelledBatches(model, listed, processing_class, ids, batch_size)
    values, ids = collect(model, values_of, batches, model.device, progress, description)[:2]
    values, ids = finite_rows(values, class_ids(ids))
    number = model.label_table.num_labels
    wrong = ids[(ids != IGNORE_INDEX) & ((ids < 0) | (ids >= number))]
    if len(wrong):
        raise ValueError(f"A row has label {int(wrong[0])}, but the model's labels are 0…{number - 1}.")
    return values[ids != IGNORE_INDEX], ids[ids != IGNORE_INDEX]


class AllRows(NamedTuple):
    """Of all ranks: values (N, …), labels (N,), and whether each rank was given all of them."""

    values: Tensor
    labels: Tensor
    shared: bool


def of_all_ranks(values: Tensor, labels: Tensor) -> AllRows:
    """The rows of all ranks, once where each rank was given all of them: parts of the data would differ in values."""
    parts, ids = rows_of_ranks(values), rows_of_ranks(labels)
    alike = all(torch.equal(part, ids[0]) for part in ids)
    if alike and all(torch.allclose(part, parts[0], rtol=1e-3, atol=1e-5, equal_nan=True) for part in parts):
        return AllRows(parts[0], ids[0], True)
    return AllRows(torch.cat(parts), torch.cat(ids), False)


class LabelledBatches:
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


def label_ids(model: LabelTableModel, labels: Sequence[int | str] | None) -> Tensor:
    """(N,) int64 ids of labels that may be names."""
    label2id = {name: index for index, name in model.config.label_names.items()}
    given: list[Any] = [] if labels is None else list(labels)
    unknown = [label for label in given if isinstance(label, str) and label not in label2id]
    if unknown:
        raise ValueError(f"There is no label {unknown[0]!r} in the model.")
    if None in given:
        raise ValueError(f"The label of row {given.index(None)} is None: leave such rows out, or use {IGNORE_INDEX}.")
    return class_ids(np.asarray([label2id[label] if isinstance(label, str) else label for label in given]))
