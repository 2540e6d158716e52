"""Labels of any make as ids 0…C−1 with names, numbered alike in every split."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import CommandError
from .tables import NUMBER, Tell, left_out, log_note, number_of

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

UNLABELLED = "-100"
"""What transformers calls a row without label; no class."""
_WHOLE = re.compile(r"[+-]?\d+")
_SHOWN = 5
_RARE, _FREQUENT = 2, 5
"""A misspelt label has so many rows at most, and the right one so many times as many."""
_FEWEST_LETTERS, _MOST_LETTERS, _MOST_SPELT = 5, 100, 20_000
"""Shorter names are one letter apart by nature; among more labels or letters nobody looks."""
_NO_LABEL = (
    "Column {!r} holds no label in the training split: every cell is empty. Choose another with --label-column."
)


def encode_labels(splits: DatasetDict, column: str, tell: Tell = log_note) -> DatasetDict:
    """Return the splits with the label column renamed to "label" and made a ``ClassLabel`` with one order of names.

    A ``ClassLabel`` keeps the training split's order; strings and whole numbers get the names of the training split,
    numbers in the order of numbers and words in that of words. Rows without a label (missing, blank or −100) are left
    out and said so; a split that has no label at all stays, with labels −1.

    Args:
        splits: with the column in every split.
        column: of the labels. Another column called "label" is kept under another name.
        tell: takes notes.
    """
    from datasets import ClassLabel, DatasetDict

    own = splits["train"].features[column]
    if all(isinstance(own, ClassLabel) and rows.features[column] == own for rows in splits.values()):
        encoded = {name: _as_label(rows, column) for name, rows in splits.items()}
        numbers = {name: rows["label"][:] for name, rows in encoded.items()}
    else:
        names = {name: _names(rows, column) for name, rows in splits.items()}
        order = list(own.names) if isinstance(own, ClassLabel) else in_order(names["train"])
        id_of = {name: number for number, name in enumerate(order)}
        if not order:
            raise CommandError(_NO_LABEL.format(column))
        for split, values in names.items():
            _check_known(values, id_of, split)
        numbers = {split: [id_of.get(str(value), -1) for value in values] for split, values in names.items()}
        feature = ClassLabel(names=order)
        encoded = {name: _as_label(rows, column, numbers[name], feature) for name, rows in splits.items()}
        _tell_near(order, column, tell)
        _tell_misspelt(Counter(value for value in names["train"] if value is not None), column, tell)
    kept = {name: _labelled(rows, numbers[name], name, column, tell) for name, rows in encoded.items()}
    return DatasetDict(
        {name: rows.remove_columns(NUMBER) if NUMBER in rows.column_names else rows for name, rows in kept.items()}
    )


def _labelled(rows: Dataset, labels: Sequence[int | None], split: str, column: str, tell: Tell) -> Dataset:
    """Leave out rows without a label, unless they are all of a split that is not for training."""
    kept = [number for number, label in enumerate(labels) if label is not None and label >= 0]
    if len(kept) == len(labels) or (not kept and split != "train"):
        return rows
    if not kept:
        raise CommandError(_NO_LABEL.format(column))
    first = number_of(rows, next(place for place, label in enumerate(labels) if label is None or label < 0))
    count = len(labels) - len(kept)
    tell(f"{left_out(count, split, 'a label')}{': ' if count == 1 else ', the first is '}row {first}")
    return rows.select(kept)


def _as_label(rows: Dataset, column: str, values: list[int] | None = None, feature: Any = None) -> Dataset:
    """Rows whose label column is called "label", at its place, with new values if there are some."""
    if column != "label" and "label" in rows.column_names:
        rows = rows.rename_column("label", other_label(rows.column_names))
    place = ["label" if name == column else name for name in rows.column_names]
    if values is None:
        return rows if column == "label" else rows.rename_column(column, "label")
    return rows.remove_columns(column).add_column("label", values, feature=feature).select_columns(place)


def other_label(columns: Sequence[str]) -> str:
    """A free name for a column called "label" where another holds the labels.

    >>> other_label(["text", "label", "label_text"])
    'label_of_data'
    """
    name = "label_of_data"
    while name in columns:
        name += "_"
    return name


def _names(rows: Dataset, column: str) -> list[str | None]:
    """The name of every row's label; None without one."""
    from datasets import ClassLabel, Value

    feature = rows.features[column]
    values: list[Any] = rows[column][:]
    if isinstance(feature, ClassLabel):
        return [None if value is None or value < 0 else feature.int2str(value) for value in values]
    usable = isinstance(feature, Value) and not str(feature.dtype).startswith(("float", "double", "decimal"))
    if not usable and not _whole_floats(values):
        raise CommandError(
            f"Column {column!r} has the type {feature}, but one class per row is needed: a ClassLabel, strings or "
            "whole numbers. Choose another column with --label-column."
        )
    return [_name(value) for value in values]


def _whole_floats(values: Sequence[Any]) -> bool:
    """Whether a column of floats holds whole numbers, as a column of numbers with gaps does."""
    present = [value for value in values if value is not None and value == value]  # NaN is a gap too
    return all(isinstance(value, float) and value.is_integer() for value in present)


def _name(value: Any) -> str | None:
    """Name of a label; None where there is none."""
    if isinstance(value, float):
        value = None if value != value else int(value)
    name = "" if value is None else str(value)
    return name if name.strip() and name != UNLABELLED else None


def in_order(names: Iterable[str | None]) -> list[str]:
    """Distinct names, whole numbers in the order of numbers, before words.

    >>> in_order(["10", "b", "2", "-1", None, "a", "2"])
    ['-1', '2', '10', 'a', 'b']
    """
    return sorted({name for name in names if name is not None}, key=_place)


def _place(name: str) -> tuple[bool, int, str]:
    whole = _WHOLE.fullmatch(name) is not None
    return not whole, int(name) if whole else 0, name


def _check_known(values: Iterable[str | None], known: dict[str, int], split: str) -> None:
    """Raise for labels outside the training split's; a −1 that is none of them is a withheld label."""
    unknown = in_order(set(values) - {*known, None, "-1"})
    if unknown:
        more = " …" if len(unknown) > _SHOWN else ""
        raise CommandError(
            f"Split {split!r} has labels that the training split lacks: {', '.join(unknown[:_SHOWN])}{more}. Those of "
            f"the training split are {', '.join(list(known)[:_SHOWN])}{' …' if len(known) > _SHOWN else ''}."
        )


def _tell_near(names: Sequence[str], column: str, tell: Tell) -> None:
    """Say which labels differ by white space, capitals, the spelling of Unicode or leading zeros alone."""
    alike: defaultdict[str, list[str]] = defaultdict(list)
    for name in names:
        plain = " ".join(unicodedata.normalize("NFKC", name).casefold().split())
        alike[str(int(plain)) if _WHOLE.fullmatch(plain) else plain].append(name)
    groups = [group for group in alike.values() if len(group) > 1]
    if groups:
        shown = "; ".join(" and ".join(map(ascii, group)) for group in groups[:_SHOWN])
        tell(f"column {column!r} has labels that look alike and count as different: {shown}")


def _tell_misspelt(counts: Mapping[str, int], column: str, tell: Tell) -> None:
    """Say which labels of a row or two are spelt like a frequent one but for one letter: a class of its own each."""
    if len(counts) > _MOST_SPELT:
        return
    near: defaultdict[str, list[str]] = defaultdict(list)
    for name in counts:
        if _FEWEST_LETTERS <= len(name) <= _MOST_LETTERS:
            for place in range(len(name)):  # a wrong, missing or swapped letter: both are alike without one
                near[name[:place] + name[place + 1 :]].append(name)
            near[name].append(name)
    found: dict[str, str] = {}
    for group in near.values():
        usual = max(group, key=counts.__getitem__)
        for name in group:
            rare = counts[name] <= _RARE and counts[usual] >= _FREQUENT * counts[name]
            if rare and _digits(name) == _digits(usual) and counts[usual] > counts.get(found.get(name, ""), 0):
                found[name] = usual
    if found:
        shown = "; ".join(
            f"{name!a} ({counts[name]} {'row' if counts[name] == 1 else 'rows'}) for {usual!a} ({counts[usual]:,})"
            for name, usual in list(found.items())[:_SHOWN]
        )
        tell(f"column {column!r} has labels that may be misspelt, and count as different: {shown}")


def _digits(name: str) -> str:
    """What tells `route_1` from `route_2`, which no misspelling does."""
    return "".join(char for char in name if char.isdecimal())
