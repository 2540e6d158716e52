"""Labels of a data set: where they are, whether they are valid, and which rows to start from."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor

from ..modeling.functional import IGNORE_INDEX, class_ids, out_of_range, unusable_labels
from .selection import rank_in_class

LABEL_COLUMNS = ("labels", "label", "label_ids")


def label_column(dataset: Any) -> np.ndarray | None:
    """Labels of a map-style data set as an array, without running its transforms.

    Args:
        dataset: a `datasets.Dataset`; anything else has no column that can be read at once.

    Returns:
        (N,) array, or None.
    """
    if not isinstance(dataset, Dataset):
        return None
    for name in LABEL_COLUMNS:
        if name in dataset.column_names:
            return _as_ids(dataset.with_format(None, columns=[name])[name][:])
    return None


def _as_ids(labels: Sequence[Any]) -> np.ndarray:
    """Labels as an array: whole numbers of any type and lists of one as (N,) int64, anything else as it is."""
    try:
        array = np.asarray(labels)
    except ValueError:  # lists of several lengths
        array = np.empty(len(labels), dtype=object)
        array[:] = labels
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    whole = array.dtype.kind in "iub" or (array.dtype.kind == "f" and bool((array == np.round(array)).all()))
    return array.astype(np.int64) if whole else array


def check_labels(labels: np.ndarray, names: Mapping[int, str]) -> None:
    """Raise ValueError unless every label is one of the model's: an id in 0…C-1, -100, or a name.

    Args:
        labels: (N,) of a data set, in its order.
        names: id to name of the model.
    """
    if labels.dtype.kind in "OUS":
        _check_names(labels.tolist(), names)
        return
    if labels.ndim != 1 or labels.dtype.kind not in "iub":
        raise ValueError(unusable_labels(f"{labels.dtype} of shape {labels.shape}"))
    bad = np.flatnonzero((labels != IGNORE_INDEX) & ((labels < 0) | (labels >= len(names))))
    if bad.size:  # the highest tells how many labels there are; a negative one is no label whatever their number
        row = bad[labels[bad].argmin() if (labels[bad] < 0).any() else labels[bad].argmax()]
        raise ValueError(out_of_range(int(labels[row]), f"row {row}", len(names)))


def check_numbering(dataset: Any, names: Mapping[int, str]) -> None:
    """Raise ValueError where a data set gives a name that the model knows another id than the model does.

    Args:
        dataset: looked into if it is a `datasets.Dataset` whose label column is a ``ClassLabel``.
        names: id to name of the model.
    """
    features = dataset.features if isinstance(dataset, Dataset) else {}
    column = next((name for name in LABEL_COLUMNS if name in features), None)
    own = getattr(features[column], "names", None) if column else None
    ids = {name: index for index, name in names.items()}
    for index, name in enumerate(own or ()):
        if ids.get(name, index) != index:
            raise ValueError(
                f"Label {name!r} has id {index} in the data and {ids[name]} in the model, so rows would be learned "
                "under wrong names: use dataset.align_labels_with_mapping(model.config.label2id, "
                f"{column!r}), or model.align(dataset.features[{column!r}])."
            )


def _check_names(labels: Sequence[Any], names: Mapping[int, str]) -> None:
    known = set(names.values())
    numbers = all(label is None or isinstance(label, int | float) for label in labels)
    for row, label in enumerate(labels):
        if label is None:
            raise ValueError(without_label(f"row {row}"))
        if isinstance(label, list | np.ndarray):
            raise ValueError(unusable_labels(f"lists such as {list(label)} in row {row}"))
        if not numbers and label not in known:
            raise ValueError(unknown_name(label, f"row {row}", names))


def without_label(where: str) -> str:
    """Sentence for a row whose label is missing."""
    return (
        f"There is no label (None) in {where}: leave such rows out, or give them {IGNORE_INDEX}, which is not learned."
    )


def unknown_name(label: Any, where: str, names: Mapping[int, str]) -> str:
    """Sentence for a label name that the model does not know."""
    known = ", ".join(map(repr, list(names.values())[:10])) + (", …" if len(names) > 10 else "")
    return (
        f"Label {label!r} in {where} is not in the model's label2id, which knows {known}: build the model with "
        "id2label and label2id of this data set."
    )


class CheckedCollator:
    """Wraps a data collator: turns label names into ids before it, checks the ids after it, on the CPU.

    Args:
        collator: the data collator to wrap.
        names: id to name of the model; a plain mapping, since data loader workers receive a copy of it.
    """

    def __init__(self, collator: Callable[[Any], Any], names: Mapping[int, str]) -> None:
        self.collator = collator
        self.names = names

    @property
    def names(self) -> Mapping[int, str]:
        """Id to name of the model; to be set anew where it changes."""
        return self._names

    @names.setter
    def names(self, names: Mapping[int, str]) -> None:
        self._names = names
        self._ids = {name: index for index, name in names.items()}  # once, and not for every row

    def __call__(self, features: Sequence[Any]) -> Any:
        """Collate ``features``; ValueError names the label and the row of the batch that does not fit."""
        batch = self.collator([self._with_ids(feature, row) for row, feature in enumerate(features)])
        if isinstance(batch, MutableMapping) and isinstance(batch.get("labels"), Tensor):
            batch["labels"] = class_ids(batch["labels"], len(self.names))
        return batch

    def __getattr__(self, name: str) -> Any:
        # The trainer looks for the tokenizer of the collator it was given.
        if name in ("collator", "_names", "_ids"):
            raise AttributeError(name)
        return getattr(self.collator, name)

    def _with_ids(self, feature: Any, row: int) -> Any:
        if not isinstance(feature, Mapping):
            return feature
        for column in LABEL_COLUMNS:
            if column in feature:
                label = feature[column]
                if column != "label_ids" and isinstance(label, list | tuple) and len(label) == 1:
                    label = label[0]
                return {**feature, column: self._id_of(label, row)}
        return feature

    def _id_of(self, label: Any, row: int) -> Any:
        if label is None:
            raise ValueError(without_label(f"row {row} of a batch"))
        if isinstance(label, str):
            if label not in self._ids:
                raise ValueError(unknown_name(label, f"row {row} of a batch", self.names))
            return self._ids[label]
        return label.item() if isinstance(label, np.generic) else label  # collators take a NumPy scalar for a float


def rows_per_class(labels: np.ndarray, per_class: int, seed: int) -> list[int]:
    """Up to ``per_class`` random rows of every class, in the order of the data set.

    Where that is the order of the labels, as in a folder of pictures per label, they are shuffled: BatchNorm takes
    its statistics from batches, which must not be of one label.

    Args:
        labels: (N,) ids or names; -100 is not a class.
        per_class: rows per class.
        seed: of its own generator, so that nobody else's stream moves.
    """
    order = np.random.default_rng(seed).permutation(len(labels))
    if labels.dtype.kind not in "OUS":
        order = order[labels[order] != IGNORE_INDEX]
    chosen = np.sort(order[rank_in_class(labels[order]) < per_class])
    if bool((labels[chosen[:-1]] <= labels[chosen[1:]]).all()):
        chosen = np.random.default_rng(seed).permutation(chosen)
    return chosen.tolist()


def balanced_weights(labels: np.ndarray, num_labels: int) -> Tensor:
    """Class weights (C,) float32 inverse to the class counts, with mean 1 over the rows.

    Args:
        labels: (N,) int ids; -100 counts for nothing.
        num_labels: C; classes without rows get weight 1.
    """
    counts = np.bincount(labels[labels != IGNORE_INDEX], minlength=num_labels)
    weights = np.where(counts > 0, counts.sum() / (max((counts > 0).sum(), 1) * np.maximum(counts, 1)), 1.0)
    return torch.tensor(weights, dtype=torch.float32)


def log_frequencies(labels: np.ndarray, num_labels: int) -> Tensor:
    """Logarithm (C,) float32 of the share of each class among the rows.

    Args:
        labels: (N,) int ids; -100 counts for nothing.
        num_labels: C; classes without rows count as if they had one, since their logarithm must be finite.
    """
    counts = np.maximum(np.bincount(labels[labels != IGNORE_INDEX], minlength=num_labels), 1)
    return torch.tensor(np.log(counts / counts.sum()), dtype=torch.float32)


def ids_of(labels: np.ndarray, names: Mapping[int, str]) -> np.ndarray:
    """Label ids (N,) of a checked label column that may hold names."""
    if labels.dtype.kind not in "OUS":
        return labels.astype(np.int64)
    ids = {name: index for index, name in names.items()}
    return np.asarray([ids[label] for label in labels.tolist()], dtype=np.int64)


def first_rows(dataset: Iterable[Any], per_class: int, num_labels: int) -> list[Any]:
    """Up to ``per_class`` rows per class among the first ``max(50 C, 2000)`` rows of a stream."""
    return list(_balanced(itertools.islice(iter(dataset), scan_limit(num_labels)), per_class, num_labels))


def scanned_rows(dataset: Any, per_class: int, num_labels: int, seed: int) -> list[int]:
    """Indices of up to ``per_class`` rows per class, found by reading at most ``max(50 C, 2000)`` random rows."""
    order = np.random.default_rng(seed).permutation(len(dataset))[: scan_limit(num_labels)].tolist()
    rows = ({"index": index, "row": dataset[index]} for index in order)
    chosen = _balanced(rows, per_class, num_labels, of=lambda entry: entry["row"])
    return sorted(entry["index"] for entry in chosen)


def scan_limit(num_labels: int) -> int:
    """How many rows a start pass reads at most where labels cannot be read at once."""
    return max(50 * num_labels, 2000)


def _balanced(
    rows: Iterable[Any], per_class: int, num_labels: int, of: Callable[[Any], Any] = lambda row: row
) -> Iterator[Any]:
    """Rows until every class has ``per_class``; rows without a readable label count as one class."""
    taken: dict[Any, int] = {}
    for row in rows:
        label = _label_of(of(row))
        if label == IGNORE_INDEX or taken.get(label, 0) >= per_class * (num_labels if label is None else 1):
            continue
        taken[label] = taken.get(label, 0) + 1
        yield row
        if sum(taken.values()) >= per_class * num_labels:
            return


def _label_of(row: Any) -> Any:
    if not isinstance(row, Mapping):
        return None
    label: Any = next((row[name] for name in LABEL_COLUMNS if name in row), None)
    if isinstance(label, list | tuple):
        label = label[0] if len(label) == 1 else None
    return label.item() if hasattr(label, "item") else label
