"""Rows that can be learned from: with an input, of the kind that was found, that can be read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..errors import CommandError
from .columns import Columns, is_text
from .media import kind_of, readable, refuse_lost_files
from .tables import NUMBER, Tell, left_out, log_note

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict


def usable(
    splits: DatasetDict, columns: Columns, tell: Tell = log_note, second: str | None = None, named: bool = False
) -> DatasetDict:
    """Leave out splits without the columns, and rows whose input is missing or cannot be read; numbers become texts.

    Where rows may be left out, a column `NUMBER` says what the others were counted as in the file; `encode_labels`
    needs it for its own notes, and takes it away.

    Args:
        splits: the data set.
        columns: input and label.
        tell: takes notes on what is left out.
        second: column with the second text of a pair.
        named: the user named the input column, so that names of files in it may be meant as texts.
    """
    from datasets import DatasetDict, Value

    inputs = [columns.input, *([second] if second else [])]
    if "label" in inputs:
        raise CommandError("The column 'label' cannot be an input while another holds the labels: rename it.")
    if columns.kind == "text":
        for column in inputs:
            feature = splits["train"].features[column]
            if not is_text(feature):
                raise CommandError(f"Column {column!r} is of type {feature}, but texts or images are needed.")
            if not named:
                refuse_lost_files(splits["train"], column)
    kept = {}
    for name, rows in splits.items():
        missing = [column for column in (*inputs, columns.label) if column not in rows.column_names]
        if missing:
            tell(f"split {name!r} is left out: it has no column {missing[0]!r}")
            continue
        differing = [column for column in inputs if kind_of(rows.features[column]) != columns.kind]
        if differing:
            raise CommandError(
                f"Column {differing[0]!r} holds {columns.kind} in the training split, but "
                f"{kind_of(rows.features[differing[0]])} in split {name!r}: are its files where it says?"
            )
        if columns.kind == "text":
            for column in inputs:  # texts that are all numbers in this split
                rows = rows if is_text(rows.features[column]) else rows.cast_column(column, Value("string"))
        empty = np.zeros(len(rows), dtype=bool)
        for column in inputs:
            empty |= _missing(rows, column)
        if columns.kind != "text" or empty.any():
            rows = rows.add_column(NUMBER, list(range(1, len(rows) + 1)))
        if empty.any():
            tell(left_out(int(empty.sum()), name, "input"))
            rows = rows.select(np.flatnonzero(~empty))
        kept[name] = readable(rows, columns.input, name, tell)
    return DatasetDict(kept)


def _missing(rows: Dataset, column: str) -> np.ndarray:
    """Which rows have nothing in a column, (N,) bool; white space alone is nothing."""
    if kind_of(rows.features[column]) != "text":  # batch by batch: the files need not fit into memory together
        batches = rows.select_columns(column).with_format("arrow").iter(1000)
        return np.concatenate([np.zeros(0, dtype=bool), *(batch.column(0).is_null().to_numpy() for batch in batches)])
    plain = rows[column][:]
    return np.array([value is None or (isinstance(value, str) and not value.strip()) for value in plain], dtype=bool)
