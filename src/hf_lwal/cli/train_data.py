"""What ``hf-lwal train`` learns from: splits, columns, label names, and rows ready for the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..bench.comparison import attach_images, tokenize
from ..data.columns import Columns, find_columns, pair_columns
from ..data.label_names import encode_labels
from ..data.media import undecoded
from ..data.selection import rank_in_class
from ..data.sources import load_splits
from ..data.usable import usable
from ..errors import CommandError
from ..modeling.sounds import read_sound

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict, Features
    from torch import nn

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
    notes: list[str] = []
    splits = load_splits(data, notes.append)
    for name, path in (("validation", validation_data), ("test", test_data)):
        if path is not None:
            splits[name] = _called(_only_split(path, notes), name)
    columns, second = choose_columns(splits["train"].features, text_column, pair_column, label_column)
    splits = usable(splits, columns, notes.append, second, named=text_column is not None)
    splits = encode_labels(splits, columns.label, notes.append)
    splits = _labelled(splits, notes)
    names = splits["train"].features["label"].names
    if len(names) < 2:
        raise CommandError(f"Column {columns.label!r} has only one label, {names[0]!r}: nothing to tell apart.")
    if test_share > 0.0 and "test" not in splits:
        splits["train"], splits["test"] = _set_apart(splits["train"], "test", test_share, seed, notes)
    train, validation = _with_validation(splits, validation_share, seed, notes)
    return Rows(train, validation, splits.get("test"), names, columns, second, tuple(notes))


def _only_split(path: str, notes: list[str]) -> Dataset:
    """The rows of a file or folder that has one split."""
    splits = load_splits(path, notes.append)
    if len(splits) > 1:
        raise CommandError(f"{path!r} has the splits {', '.join(map(str, splits))}, but one was expected here.")
    return splits["train"]


def choose_columns(
    features: Features, text_column: str | None, pair_column: str | None, label_column: str | None
) -> tuple[Columns, str | None]:
    """Choose input, label and, for sentence pairs, the second text."""
    if pair_column is not None and pair_column not in features:
        raise CommandError(f"--pair-column: there is no column {pair_column!r}; there are {', '.join(features)}.")
    if text_column is None and pair_column is None:
        text_column, pair_column = pair_columns(features) or (None, None)
    columns = find_columns(features, text_column, label_column)
    if columns.kind != "text" and pair_column is not None:
        raise CommandError(f"--pair-column: the input column {columns.input!r} holds {columns.kind}, without pairs.")
    return columns, pair_column


def _labelled(splits: DatasetDict, notes: list[str]) -> DatasetDict:
    """Leave out splits whose labels are withheld (-1 or missing), as in the test sets of GLUE."""
    for name in list(splits):
        labels = splits[name].unique("label")
        if name != "train" and (not labels or any(label is None or label < 0 for label in labels)):
            notes.append(f"split {name!r} is left out: none of its rows has a label")
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
    return np.sort(order[rank_in_class(ids[order]) < wanted[ids[order]]]).tolist()


def fit_tokenizer(model: nn.Module, processing_class: Any, max_length: int | None) -> None:
    """Let a tokenizer state how many tokens the model can read, so that what is saved cuts texts there.

    Args:
        model: the one that will be trained.
        processing_class: its tokenizer; of images and sounds there is nothing to state.
        max_length: tokens that training reads, which is stated where the tokenizer knew no limit.
    """
    from transformers.tokenization_utils_base import LARGE_INTEGER

    from ..modeling.inference import max_length_of

    stated = getattr(processing_class, "model_max_length", None)
    if stated is None:
        return
    known = max_length_of(model, processing_class)
    if stated >= LARGE_INTEGER:
        known = min(max_length or LONGEST, known or LONGEST)
    processing_class.model_max_length = min(stated, known or stated)


def prepare_rows(
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
    if data.columns.kind == "audio":
        return _attach_sounds(rows, data.columns.input, processing_class)
    limit = min(processing_class.model_max_length, max_length or LONGEST)
    return tokenize(rows, data.columns.input, processing_class, limit, data.second, by_length)


def _attach_sounds(rows: Dataset, column: str, extractor: Any) -> Dataset:
    """Rows whose sounds become what the model reads, at its sampling rate, when they are read."""

    def encode(batch: Mapping[str, list[Any]]) -> dict[str, Any]:
        waves = [read_sound(sound, extractor.sampling_rate) for sound in batch[column]]
        inputs = extractor(waves, sampling_rate=extractor.sampling_rate)
        return {**{name: list(values) for name, values in inputs.items()}, "label": batch["label"]}

    return undecoded(rows, column).with_transform(encode)
