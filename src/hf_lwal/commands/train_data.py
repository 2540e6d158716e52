"""What ``hf-lwal train`` learns from: splits, columns, label names, and rows ready for the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..comparison import attach_images
from ..data.sources import Columns, encode_labels, find_columns, load_splits
from ..errors import CommandError

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict, Features

PAIRS = (
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("text1", "text2"),
    ("text_a", "text_b"),
)
"""Columns that usual data sets of sentence pairs have; GLUE's among them."""

VALIDATION_SPLITS = ("validation", "valid", "dev", "validation_matched")
LONGEST = 512
"""Tokens of a text without ``--max-length``; fewer where the tokenizer knows a smaller limit."""


@dataclass(frozen=True)
class Rows:
    """A data set as it is trained on: labels are ids in the column "label"."""

    train: Dataset
    validation: Dataset
    test: Dataset | None
    names: list[str]
    columns: Columns
    second: str | None
    notes: tuple[str, ...]


def load_rows(
    data: str,
    *,
    validation_data: str | None = None,
    test_data: str | None = None,
    text_column: str | None = None,
    pair_column: str | None = None,
    label_column: str | None = None,
    validation_share: float = 0.1,
    test_share: float = 0.0,
    seed: int = 0,
) -> Rows:
    """Load a data set and decide which rows train, which choose the checkpoint and which measure.

    Args:
        data: embedded name, file, folder or Hub name.
        validation_data: file or folder whose rows choose the checkpoint, instead of a split of ``data``.
        test_data: file or folder whose rows measure at the end, instead of a split of ``data``.
        text_column: column with the text or image, or None to find it.
        pair_column: column with the second text of a pair, or None to find it.
        label_column: column with the label, or None to find it.
        validation_share: part of the training rows that choose the checkpoint where there is no validation split.
        test_share: part of the training rows that measure where there is no test split; 0 for none.
        seed: chooses those rows.
    """
    splits = load_splits(data)
    for name, path in (("validation", validation_data), ("test", test_data)):
        if path is not None:
            splits[name] = _called(_only_split(path), name)
    columns, second = choose_columns(splits["train"].features, text_column, pair_column, label_column)
    notes: list[str] = []
    splits = _usable(splits, [columns.input, *([second] if second else [])], columns, notes)
    splits = encode_labels(splits, columns.label)
    splits = _labelled(splits, notes)
    names = splits["train"].features["label"].names
    if len(names) < 2:
        raise CommandError(f"Column {columns.label!r} has only one label, {names[0]!r}: nothing to tell apart.")
    if test_share > 0.0 and "test" not in splits:
        splits["train"], splits["test"] = _set_apart(splits["train"], "test", test_share, seed, notes)
    train, validation = _with_validation(splits, validation_share, seed, notes)
    return Rows(train, validation, splits.get("test"), names, columns, second, tuple(notes))


def _only_split(path: str) -> Dataset:
    """The rows of a file or folder that has one split."""
    splits = load_splits(path)
    if len(splits) > 1:
        raise CommandError(f"{path!r} has the splits {', '.join(map(str, splits))}, but one was expected here.")
    return splits["train"]


def choose_columns(
    features: Features, text_column: str | None, pair_column: str | None, label_column: str | None
) -> tuple[Columns, str | None]:
    """Choose input, label and, for sentence pairs, the second text.

    Args:
        features: columns of the training split.
        text_column: the input column, if it is known.
        pair_column: the second text's column, if it is known.
        label_column: the label column, if it is known.
    """
    if pair_column is not None and pair_column not in features:
        raise CommandError(f"--pair-column: there is no column {pair_column!r}; there are {', '.join(features)}.")
    if text_column is None and pair_column is None:
        pair = next((pair for pair in PAIRS if all(column in features for column in pair)), None)
        text_column, pair_column = pair or (None, None)
    columns = find_columns(features, text_column, label_column)
    if columns.kind == "image" and pair_column is not None:
        raise CommandError(f"--pair-column: the input column {columns.input!r} holds images, which come without pair.")
    for column in (columns.input, pair_column) if columns.kind == "text" else ():
        if column is not None and "string" not in str(getattr(features[column], "dtype", "")):
            raise CommandError(f"Column {column!r} is of type {features[column]}, but texts or images are needed.")
    return columns, pair_column


def _usable(splits: DatasetDict, inputs: Sequence[str], columns: Columns, notes: list[str]) -> DatasetDict:
    """Leave out splits without the columns, and rows without input."""
    from datasets import DatasetDict

    kept = {}
    for name, rows in splits.items():
        missing = [column for column in (*inputs, columns.label) if column not in rows.column_names]
        if missing:
            notes.append(f"split {name!r} is left out: it has no column {missing[0]!r}")
            continue
        empty = np.zeros(len(rows), dtype=bool)
        for column in inputs:
            empty |= rows.data.column(column).is_null().to_numpy()
        if empty.any():
            notes.append(f"{empty.sum():,} rows of split {name!r} without input are left out")
            rows = rows.select(np.flatnonzero(~empty))
        kept[name] = rows
    return _same_labels(DatasetDict(kept), columns.label)


def _same_labels(splits: DatasetDict, column: str) -> DatasetDict:
    """Turn labels back into names where splits number them differently, as image folders of unlike labels do."""
    from datasets import ClassLabel

    features = [rows.features[column] for rows in splits.values()]
    if all(feature == features[0] for feature in features):
        return splits
    for name, rows in splits.items():
        feature = rows.features[column]
        if isinstance(feature, ClassLabel):
            names = [None if label is None else feature.int2str(label) for label in rows[column]]
            splits[name] = rows.remove_columns(column).add_column(column, names)
    return splits


def _labelled(splits: DatasetDict, notes: list[str]) -> DatasetDict:
    """Leave out splits whose labels are withheld (-1 or missing), as in the test sets of GLUE."""
    for name in list(splits):
        labels = splits[name].unique("label")
        if name != "train" and (not labels or any(label is None or label < 0 for label in labels)):
            notes.append(f"split {name!r} is left out: not all of its rows have a label")
            del splits[name]
    return splits


def _with_validation(splits: DatasetDict, share: float, seed: int, notes: list[str]) -> tuple[Dataset, Dataset]:
    """Training and validation rows; without a validation split a share of every class is set apart."""
    train = splits["train"]
    for name in VALIDATION_SPLITS:
        if name in splits:
            return train, splits[name]
    return _set_apart(train, "validation", share, seed, notes)


def _set_apart(train: Dataset, name: str, share: float, seed: int, notes: list[str]) -> tuple[Dataset, Dataset]:
    """The training rows without a share of every class, and that share as a split of its own."""
    chosen = validation_indices(train["label"][:], share, seed)
    if not chosen:
        raise CommandError(
            f"There is no {name} split, and none can be made: every label has a single row ({len(train)} rows). "
            f"Give one with --{name}-data."
        )
    rest = np.setdiff1d(np.arange(len(train)), chosen)
    notes.append(
        f"no {name} split: {len(chosen):,} of {len(train):,} training rows are set apart as one, "
        f"{100 * share:g} % of every label"
    )
    return train.select(rest), _called(train.select(chosen), name)


def _called(rows: Dataset, split: str) -> Dataset:
    """Give rows the name of the split they are used as: the model card says what was measured on what."""
    from datasets import NamedSplit

    rows._split = NamedSplit(split)
    return rows


def validation_indices(labels: Sequence[int], share: float, seed: int) -> list[int]:
    """Choose a share of every class, at least one row, and leave at least one.

    Args:
        labels: class id of each row.
        share: between 0 and 1.
        seed: the same seed chooses the same rows.

    Returns:
        Sorted row numbers; a class with a single row has none among them.

    >>> validation_indices([0] * 8 + [1] * 4 + [2], 0.25, seed=0)
    [2, 7, 10]
    """
    ids = np.asarray(labels)
    counts = np.bincount(ids)
    wanted = np.where(counts > 1, np.clip(np.rint(share * counts), 1, np.maximum(counts - 1, 1)), 0)
    order = np.random.default_rng(seed).permutation(len(ids))
    order = order[np.argsort(ids[order], kind="stable")]  # by class, random within a class
    place = np.arange(len(ids)) - np.repeat(np.cumsum(counts) - counts, counts)
    return sorted(int(row) for row in order[place < wanted[ids[order]]])


def ready(
    rows: Dataset, data: Rows, processing_class: Any, max_length: int | None, by_length: bool = False
) -> Dataset:
    """Rows as the model takes them: token ids, or pixel values made when a row is read.

    Args:
        rows: a split of ``data``.
        data: the whole, for its columns.
        processing_class: tokenizer or image processor.
        max_length: tokens beyond this number are cut off; None for the tokenizer's limit, at most ``LONGEST``.
        by_length: sort texts by length, which saves padding: evaluations take half the time.
    """
    if data.columns.kind == "image":
        return attach_images(rows, data.columns.input, processing_class, 0)
    limit = min(processing_class.model_max_length, max_length or LONGEST)
    texts = [data.columns.input, *([data.second] if data.second else [])]

    def encode(batch: Mapping[str, list[str]]) -> Any:
        return processing_class(*(batch[column] for column in texts), truncation=True, max_length=limit)

    other = [name for name in rows.column_names if name != "label"]
    tokens = rows.map(encode, batched=True, remove_columns=other, desc="Tokenizing")
    if not by_length:
        return tokens
    lengths = [len(ids) for ids in tokens["input_ids"]]
    return tokens.select(sorted(range(len(tokens)), key=lengths.__getitem__))
