"""Find out what a classification data set holds: its splits, the column to read, the label column, label names.

Shared by the commands. Every mistake that a user can make here ends in a ``CommandError``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..errors import CommandError
from . import EMBEDDED, load_embedded

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict, Features

TEXT_COLUMNS = ("text", "sentence", "utterance", "question", "content")
LABEL_COLUMNS = ("label", "labels", "intent", "class")
EVALUATION_SPLITS = ("test", "validation", "valid", "dev")
# Only an empty cell is missing: a label called "None" or a text "n/a" is what it says.
_CSV = {"keep_default_na": False, "na_values": [""]}
FILES: dict[str, tuple[str, dict[str, Any]]] = {
    ".csv": ("csv", _CSV),
    ".tsv": ("csv", {**_CSV, "sep": "\t"}),
    ".json": ("json", {}),
    ".jsonl": ("json", {}),
    ".parquet": ("parquet", {}),
}
"""Ending of a data file → builder of the datasets library with its keywords."""


@dataclass(frozen=True)
class Columns:
    """Which columns to learn from."""

    input: str
    label: str
    kind: Literal["text", "image"]


def load_splits(name: str) -> DatasetDict:
    """Load the splits of an embedded data set, of a local file or folder, or of a data set on the Hub.

    Args:
        name: a key of ``EMBEDDED``, a data file (its rows are the split "train"), a folder of data files or of one
            folder of images per label, or a Hub id, with a configuration after a colon if it needs one.
    """
    if name in EMBEDDED:
        return load_embedded(name)
    import datasets

    if Path(name).expanduser().is_file():
        return _load_file(Path(name).expanduser())
    if Path(name).expanduser().exists():
        path, configuration = str(Path(name).expanduser()), None
    else:
        path, _, configuration = name.partition(":")
    try:
        loaded = datasets.load_dataset(path, configuration or None)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise CommandError(
            f"Data set {name!r} is neither embedded ({', '.join(EMBEDDED)}) nor a folder with data files, and loading "
            f"it from the Hub failed: {_first_line(error)}"
        ) from error
    if "train" not in loaded:
        raise CommandError(f"Data set {name!r} has no split called 'train', only {', '.join(map(str, loaded))}.")
    return loaded


def _load_file(path: Path) -> DatasetDict:
    """Load the rows of one data file as the split "train"."""
    import datasets

    if path.suffix.lower() not in FILES:
        raise CommandError(f"{str(path)!r} is not a data file; its name must end in {', '.join(FILES)}.")
    builder, keywords = FILES[path.suffix.lower()]
    if path.stat().st_size == 0:
        raise CommandError(f"{str(path)!r} is empty.")
    try:
        return datasets.load_dataset(builder, data_files={"train": str(path)}, **keywords)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        reason = _first_line(error.__cause__ or error)
        raise CommandError(f"{str(path)!r} could not be read as {builder}: {reason}") from error


def _first_line(error: BaseException) -> str:
    """Return the first line of an error's message."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def find_columns(features: Features, input_column: str | None = None, label_column: str | None = None) -> Columns:
    """Choose the input and the label column by name and type, unless they are given.

    Args:
        features: the data set's columns.
        input_column: the text or image column, if it is known.
        label_column: the label column, if it is known.
    """
    label = label_column or _guess_label_column(features)
    chosen = input_column or _guess_input_column(features, label)
    for flag, column in (("--text-column", chosen), ("--label-column", label)):
        if column not in features:
            raise CommandError(f"{flag}: there is no column {column!r}; the data set has {', '.join(features)}.")
    return Columns(chosen, label, "image" if _is_image(features, chosen) else "text")


def _is_image(features: Features, column: str) -> bool:
    """Whether a column holds images."""
    from datasets import Image

    return isinstance(features[column], Image)


def _guess_label_column(features: Features) -> str:
    """Return the column with a usual name, or else the only ClassLabel."""
    from datasets import ClassLabel

    known: list[str] = [column for column in LABEL_COLUMNS if column in features]
    typed: list[str] = [column for column, feature in features.items() if isinstance(feature, ClassLabel)]
    if known:
        return known[0]
    if len(typed) == 1:
        return typed[0]
    raise CommandError(f"Which column holds the labels? Name it with --label-column; there are {', '.join(features)}.")


def _guess_input_column(features: Features, label: str) -> str:
    """Return the first image column, or else a text column with a usual name, or else the only text column."""
    from datasets import Value

    images = [column for column in features if _is_image(features, column)]
    strings = (Value("string"), Value("large_string"))  # the second is what CSV files give
    texts = [column for column, feature in features.items() if feature in strings and column != label]
    known = [column for column in TEXT_COLUMNS if column in texts]
    for candidates in (images, known, texts if len(texts) == 1 else []):
        if candidates:
            return candidates[0]
    raise CommandError(f"Which column holds the text? Name it with --text-column; there are {', '.join(features)}.")


def encode_labels(splits: DatasetDict, column: str) -> DatasetDict:
    """Return the splits with the label column renamed to "label" and made a ``ClassLabel`` with one order of names.

    Strings and whole numbers get the sorted names of the training split; a column that is a ``ClassLabel`` stays.
    """
    from datasets import ClassLabel, Value

    feature = splits["train"].features[column]
    if not isinstance(feature, (ClassLabel, Value)) or "float" in str(feature.dtype):
        raise CommandError(
            f"Column {column!r} has the type {feature}, but one class per row is needed: a ClassLabel, strings or "
            "whole numbers. Choose another column with --label-column."
        )
    if not isinstance(feature, ClassLabel):
        splits = splits.cast_column(column, Value("string"))
        names = sorted(name for name in splits["train"].unique(column) if name is not None)
        for split in splits:
            _check_known(splits[split].unique(column), names, split)
        splits = splits.cast_column(column, ClassLabel(names=names))
    splits = splits if column == "label" else splits.rename_column(column, "label")
    if not _is_labelled(splits["train"]):
        raise CommandError(f"Column {column!r} of the training split has rows without a label; leave them out first.")
    return splits


def _check_known(values: Sequence[str | None], names: Sequence[str], split: str) -> None:
    """Raise for labels outside the training split's."""
    unknown = sorted(str(value) for value in set(values) - {*names, None})
    if unknown:
        raise CommandError(f"Split {split!r} has labels that the training split lacks: {', '.join(unknown[:5])}.")


def evaluation_split(splits: DatasetDict) -> Dataset:
    """Return the split to measure on: the test split, or a validation split if the test labels are withheld (-1)."""
    for name in EVALUATION_SPLITS:
        if name in splits and _is_labelled(splits[name]):
            return splits[name]
    raise CommandError(
        f"The data set has no labelled split to measure on: it needs one called {' or '.join(EVALUATION_SPLITS)}, "
        f"and has {', '.join(map(str, splits))}."
    )


def _is_labelled(dataset: Dataset) -> bool:
    """Whether every row has a label; withheld labels are -1 or missing."""
    return len(dataset) > 0 and all(label is not None and label >= 0 for label in dataset.unique("label"))


def stratified_indices(labels: Sequence[int], size: int, seed: int) -> list[int]:
    """Choose rows so that every class has its share, a difference of one row apart.

    Args:
        labels: the class of each row.
        size: how many rows to choose; all of them when there are fewer.
        seed: the same seed chooses the same rows.

    Returns:
        Sorted row numbers.

    >>> stratified_indices([0, 0, 0, 0, 1, 1, 1, 1], 4, seed=0)
    [2, 3, 4, 6]
    """
    shuffled = np.random.default_rng(seed).permutation(len(labels))
    classes = np.asarray(labels)[shuffled]
    # The n-th row of its class in the shuffled order: taking small numbers first takes from all classes in turn.
    by_class = np.argsort(classes, kind="stable")
    _, first, counts = np.unique(classes[by_class], return_index=True, return_counts=True)
    turn = np.empty(len(labels), dtype=np.int64)
    turn[by_class] = np.arange(len(labels)) - np.repeat(first, counts)
    return sorted(int(row) for row in shuffled[np.argsort(turn, kind="stable")[:size]])


def label_groups(dataset: Dataset) -> list[str] | None:
    """Return for each label the group it belongs to, if another ClassLabel column groups the labels (a hierarchy).

    Args:
        dataset: rows with a "label" column and perhaps with a coarser one, such as a domain.

    Returns:
        C names of groups, or None when no column gives every label exactly one.
    """
    from datasets import ClassLabel

    num_labels = dataset.features["label"].num_classes
    for column, feature in dataset.features.items():
        if column != "label" and isinstance(feature, ClassLabel):
            pairs = set(zip(dataset["label"], dataset[column], strict=True))
            group = dict(pairs)
            if len(pairs) == len(group) == num_labels > feature.num_classes:
                return [feature.int2str(group[label]) for label in range(num_labels)]
    return None
