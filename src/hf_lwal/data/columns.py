"""Which column of a data set to read, and which holds the labels: by name and type, or as the user says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import CommandError
from .media import Kind, kind_of

if TYPE_CHECKING:
    from datasets import Features

TEXT_COLUMNS = (
    *("text", "sentence", "utterance", "question", "content"),
    *("review", "review_text", "tweet", "message", "comment", "body", "document", "description", "query", "input"),
)
LABEL_COLUMNS = (
    *("label", "labels", "intent", "class"),
    *("label_text", "category", "sentiment", "target", "topic", "emotion", "tag"),
)
PAIRS = (
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("text1", "text2"),
    ("text_a", "text_b"),
)
"""Columns that usual data sets of sentence pairs have; GLUE's among them."""
ID_COLUMNS = ("id", "idx", "index", "guid", "uid", "uuid", "row", "row_id", "unnamed: 0")


@dataclass(frozen=True)
class Columns:
    """Which columns to learn from."""

    input: str
    label: str
    kind: Kind


def find_columns(features: Features, input_column: str | None = None, label_column: str | None = None) -> Columns:
    """Choose the input and the label column by name and type, unless they are given.

    Args:
        features: the data set's columns.
        input_column: the text, image or audio column, if it is known.
        label_column: the label column, if it is known.
    """
    for flag, column in (("--text-column", input_column), ("--label-column", label_column)):
        if column is not None and column not in features:
            raise CommandError(f"{flag}: there is no column {column!r}; the data set has {', '.join(features)}.")
    label = label_column or _label_column(features, input_column)
    chosen = input_column or input_column_of(features, label)
    if label is None and chosen is not None:
        label = _only_other(features, chosen)
    if label is None or chosen is None:
        raise CommandError(_question(features, chosen is None, label is None))
    if label == chosen:
        raise CommandError(f"Column {label!r} cannot be the input and the label; there are {', '.join(features)}.")
    return Columns(chosen, label, kind_of(features[chosen]))


def _question(features: Features, no_input: bool, no_label: bool) -> str:
    """Ask for everything that is missing at once."""
    has = f"there are {', '.join(features)}."
    if no_input and no_label:
        return (
            f"Which columns hold the text and the labels? Name them with --text-column and --label-column; {has} (The "
            "first line of a table is its header.)"
        )
    if no_input:
        return f"Which column holds the text? Name it with --text-column; {has}"
    return f"Which column holds the labels? Name it with --label-column; {has}"


def named(features: Sequence[str] | Features, names: Sequence[str]) -> str | None:
    """The first of some names that is a column, in small or capital letters."""
    by_name = {column.lower().strip(): column for column in reversed(list(features))}
    by_name |= {column: column for column in features}
    return next((by_name[name] for name in names if name in by_name), None)


def _label_column(features: Features, taken: str | None) -> str | None:
    """The column with a usual name, or else the only ClassLabel."""
    from datasets import ClassLabel

    rest = [column for column in features if column != taken]
    typed = [column for column in rest if isinstance(features[column], ClassLabel)]
    return named(rest, LABEL_COLUMNS[:4]) or (typed[0] if len(typed) == 1 else None) or named(rest, LABEL_COLUMNS)


def input_column_of(features: Features, label: str | None = None) -> str | None:
    """The first image or audio column, or else a text column with a usual name, or else the only text column."""
    rest = [column for column in features if column != label]
    for kind in ("image", "audio"):
        media = [column for column in rest if kind_of(features[column]) == kind]
        if media:
            return media[0]
    texts = [column for column in rest if is_text(features[column])]
    others = [column for column in texts if column.lower() not in ID_COLUMNS]
    return named(texts, TEXT_COLUMNS) or (others[0] if len(others) == 1 and label is not None else None)


def is_text(feature: object) -> bool:
    """Whether a column holds strings."""
    from datasets import Value

    return isinstance(feature, Value) and "string" in feature.dtype


def _only_other(features: Features, chosen: str) -> str | None:
    """The one column besides the input and columns that number the rows."""
    rest = [column for column in features if column != chosen and column.lower() not in ID_COLUMNS]
    return rest[0] if len(rest) == 1 else None


def pair_columns(columns: Sequence[str] | Features) -> tuple[str, str] | None:
    """The two columns of sentence pairs, if their names are usual ones."""
    found = ((named(columns, (first,)), named(columns, (second,))) for first, second in PAIRS)
    return next(((first, second) for first, second in found if first and second), None)
