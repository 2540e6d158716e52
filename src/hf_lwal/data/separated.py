"""Read comma- and tab-separated values without losing a row to a stray quotation mark."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ..errors import CommandError

Record = tuple[int, list[str]]
"""Number of the line where a record begins, and its cells."""

_WHOLE = re.compile(r"-?(?:0|[1-9]\d{0,17})")
_DECIMAL = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_LEADING_ZERO = re.compile(r"[+-]?0\d")


def read_separated(text: str, separator: str, name: str, tell: Callable[[str], None]) -> dict[str, list[Any]]:
    """Columns of a table with a header; an empty cell is None.

    A quotation mark that opens no quoted cell is text. Rows that quotation marks would swallow are read one per line.

    Args:
        text: the whole file.
        separator: between cells, as its ending says; another one is used where the header has only that.
        name: of the file, for messages.
        tell: takes notes.
    """
    first = text.lstrip().split("\n", 1)[0]
    if separator not in first:
        found = [other for other in (",", "\t", ";", "|") if other in first]
        if len(found) == 1:
            separator = found[0]
            tell(f"{name}: its cells are separated by {separator!r}")
    with _no_limit_of_cells():
        records = [
            record
            for record in _records(text, separator, name, tell)
            if "".join(record[1]).strip() or len(record[1]) > 1
        ]
    (_, names), *rows = records if len(records[0][1]) > 1 else _with_blank_lines(text, records)
    header = _header(names, name, tell)
    again = [record for record in rows if [cell.strip() for cell in record[1]] == [cell.strip() for cell in names]]
    if again:
        tell(f"{name}: the header stands again in line {again[0][0]}: {len(again)} such rows are left out")
        rows = [record for record in rows if record not in again]
    if not rows:
        raise CommandError(f"{name!r} has a header, {', '.join(header)}, and no rows below it.")
    cells = [_fitted(record, header, separator, name) for record in rows]
    short = [line for line, record in rows if len(record) < len(header)]
    if short:
        tell(f"{name}: {len(short)} rows have fewer cells than the header, the first in line {short[0]}")
    return {column: _typed([row[place] for row in cells]) for place, column in enumerate(header)}


@contextmanager
def _no_limit_of_cells() -> Iterator[None]:
    """Let cells be longer than the csv module's 131,072 characters."""
    before = csv.field_size_limit(2**31 - 1)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _records(text: str, separator: str, name: str, tell: Callable[[str], None]) -> list[Record]:
    """The reading that loses no row, tried from the usual to the unusual."""
    if '"' not in text:
        return _parsed(text, separator, quoting=csv.QUOTE_NONE) or []
    usual = _parsed(text, separator)
    if usual and _fit(usual) and not _swallowed(usual, text, separator):
        return usual
    plain = _parsed(text, separator, quoting=csv.QUOTE_NONE)
    if plain and _fit(plain) and len(plain[0][1]) > 1:
        tell(f"{name}: quotation marks are read as text, since they do not enclose cells, as in line {_mark(text)}")
        return plain
    escaped = _parsed(text, separator, escapechar="\\", doublequote=False) if '\\"' in text else None
    if escaped and _fit(escaped):
        return escaped
    single = _line_by_line(text, separator)
    if single:
        tell(f"{name}: quotation marks that do not enclose a cell are read as text; every line is one row")
        return single
    if usual:
        lost = _swallowed(usual, text, separator)
        if lost:
            tell(f"{name}: the cell that begins in line {lost} holds whole lines; if they are rows, mend its quotes")
        return usual
    raise CommandError(
        f"{name!r}: the quotation marks in line {_unclosed(text, separator)} do not enclose a cell. Double a "
        'quotation mark inside a quoted cell ("") and close every quoted cell.'
    )


def _parsed(text: str, separator: str, **dialect: Any) -> list[Record] | None:
    """All records, or None where the quotation marks are not those of the dialect."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True, **dialect)
    found, line = [], 1
    try:
        for record in reader:
            found.append((line, record))
            line = reader.line_num + 1
    except csv.Error:
        return None
    return found


def _fit(records: Sequence[Record]) -> bool:
    """Whether every record has as many cells as the header."""
    width = next((len(record) for _, record in records if record), 0)
    return all(len(record) in (0, width) for _, record in records)


def _physical(text: str) -> list[str]:
    return list(io.StringIO(text, newline=""))


def _swallowed(records: Sequence[Record], text: str, separator: str) -> int | None:
    """Line of the first record of several lines each of which would be a whole row."""
    width = next((len(record) for _, record in records if record), 0)
    if width < 2:
        return None
    lines = _physical(text)
    ends = [*(line for line, _ in records[1:]), len(lines) + 1]
    for (start, _), end in zip(records, ends, strict=True):
        own = lines[start - 1 : end - 1]
        if len(own) > 1 and all(line.count(separator) == width - 1 for line in own):
            return start
    return None


def _line_by_line(text: str, separator: str) -> list[Record] | None:
    """Every line as one record, with quotes where they enclose cells and as text where not; None where none fits."""
    found: list[Record] = []
    width = 0
    for number, line in enumerate(_physical(text), start=1):
        readings = (_parsed(line, separator), _parsed(line, separator, quoting=csv.QUOTE_NONE))
        cells = [reading[0][1] for reading in readings if reading]
        fitting = next((cell for cell in cells if len(cell) in (0, width or len(cell))), None)
        if fitting is None:
            return None
        width = width or len(fitting)
        found.append((number, fitting))
    return found


def _mark(text: str) -> int:
    """Line of the first quotation mark."""
    return text.count("\n", 0, text.index('"')) + 1


def _unclosed(text: str, separator: str) -> int:
    """Line at which the quotation marks stop making sense."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    line = 1
    try:
        for _ in reader:
            line = reader.line_num + 1
    except csv.Error:
        return line
    return line


def _with_blank_lines(text: str, records: list[Record]) -> list[Record]:
    """Records of a single column, where a blank line is a row whose cell is missing."""
    known = dict(records)
    multiple = len(_physical(text)) > records[-1][0] and any("\n" in record[0] for _, record in records)
    if multiple:
        return records
    return [(line, known.get(line, [""])) for line in range(records[0][0], records[-1][0] + 1)]


def _header(names: Sequence[str], file: str, tell: Callable[[str], None]) -> list[str]:
    """Names of columns without white space around them; a second one of the same name gets a number."""
    found: list[str] = []
    for place, name in enumerate(names):
        plain = name.strip() or f"Unnamed: {place}"
        unique, number = plain, 0
        while unique in found:
            number += 1
            unique = f"{plain}.{number}"
        if unique != plain:
            tell(f"{file}: a second column is called {plain!r}; it is read as {unique!r}")
        found.append(unique)
    return found


def _fitted(record: Record, header: Sequence[str], separator: str, name: str) -> list[str | None]:
    """Cells of a row, as many as the header has."""
    line, cells = record
    if any(cell for cell in cells[len(header) :]):
        raise CommandError(
            f"{name!r}: line {line} has {len(cells)} cells, but the header has {len(header)} ({', '.join(header)}). "
            f"Put cells that hold {separator!r} in quotation marks."
        )
    return [*(cell or None for cell in cells[: len(header)]), *([None] * (len(header) - len(cells)))]


def _typed(values: list[str | None]) -> list[Any]:
    """Numbers where every cell of the column is one; numbers with leading zeros are names."""
    present = [value for value in values if value is not None]
    if present and all(_WHOLE.fullmatch(value) for value in present):
        return [None if value is None else int(value) for value in values]
    if present and all(_DECIMAL.fullmatch(value) and not _LEADING_ZERO.match(value) for value in present):
        return [None if value is None else float(value) for value in values]
    return values
