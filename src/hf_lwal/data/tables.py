"""Read a table of any kind, whether it stands alone or in a folder, and lines of text."""

from __future__ import annotations

import bz2
import csv
import gzip
import json
import logging
import lzma
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import CommandError
from .separated import read_separated

if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger(__name__)
Tell = Callable[[str], None]
"""Takes a note: what was read otherwise than one might think, without a full stop."""

COMPRESSED: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.decompress,
    ".bz2": bz2.decompress,
    ".xz": lzma.decompress,
}
NUMBER = "hf_lwal_number"
"""Column with the numbers of the rows in their file, where some were left out."""
SEPARATORS = {".csv": ",", ".tsv": "\t"}
FILES = (*SEPARATORS, ".json", ".jsonl", ".ndjson", ".parquet")
"""Endings of tables; all but parquet may be compressed."""


def quoting(texts: Iterable[Any]) -> int:
    r"""How to quote a table of csv that is about to be written.

    A carriage return alone is left bare by Python before 3.13, and is then read as the end of a row.

    >>> quoting(["a", 1]) == csv.QUOTE_MINIMAL, quoting(["a\rb"]) == csv.QUOTE_ALL
    (True, True)
    """
    bare = any(isinstance(text, str) and "\r" in text for text in texts)
    return csv.QUOTE_ALL if bare else csv.QUOTE_MINIMAL


def log_note(note: str) -> None:
    """Where notes go when nobody collects them."""
    logger.warning("%s.", note)


def left_out(count: int, split: str, what: str) -> str:
    """The note on rows that lack something.

    >>> left_out(1, "train", "input"), left_out(1200, "test", "a label")
    ("1 row of split 'train' without input is left out", "1,200 rows of split 'test' without a label are left out")
    """
    rows, verb = ("row", "is") if count == 1 else ("rows", "are")
    return f"{count:,} {rows} of split {split!r} without {what} {verb} left out"


def number_of(rows: Dataset, place: int) -> int:
    """The number of a row in its file, from 1 and without the header, also behind rows that were left out."""
    return rows[place][NUMBER] if NUMBER in rows.column_names else place + 1


def first_line(error: BaseException) -> str:
    """The first line of an error's message."""
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)


def ending(path: str | Path) -> str:
    """Ending of a file's name in lower case, without that of its compression.

    >>> ending("rows.CSV.gz")
    '.csv'
    """
    path = Path(path)
    return (Path(path.stem) if path.suffix.lower() in COMPRESSED else path).suffix.lower()


def read_table(path: Path, tell: Tell = log_note) -> Dataset:
    """Read all rows of a table.

    Cells of csv and tsv are strings, whole numbers or decimal numbers, by the whole column, and only an empty cell is
    missing. Rows are never lost without a note.

    Args:
        path: a file whose name ends in one of ``FILES``.
        tell: takes notes.
    """
    import datasets

    kind = ending(path)
    if kind not in FILES:
        raise CommandError(f"{str(path)!r} is not a data file; its name must end in {', '.join(FILES)}.")
    if path.stat().st_size == 0:
        raise CommandError(f"{str(path)!r} is empty.")
    try:
        if kind == ".parquet":
            return datasets.load_dataset("parquet", data_files={"train": str(path)})["train"]
        text = read_text(path)
        if not text.strip():
            raise CommandError(f"{str(path)!r} is empty.")
        if kind in SEPARATORS:
            columns: Mapping[str, Sequence[Any]] = read_separated(text, SEPARATORS[kind], str(path), tell)
        else:
            columns = _columns(_json(text, kind == ".json"))
        return datasets.Dataset.from_dict({name: _uniform(values) for name, values in columns.items()})
    except (OSError, ValueError, TypeError, OverflowError, RecursionError, datasets.exceptions.DatasetsError) as error:
        reason = first_line(error.__cause__ or error)
        raise CommandError(f"{str(path)!r} could not be read as {kind[1:]}: {reason}") from error


def read_text(path: Path) -> str:
    """The text of a file in UTF-8, or in UTF-16 with its mark."""
    content = path.read_bytes()
    if path.suffix.lower() in COMPRESSED:
        try:
            content = COMPRESSED[path.suffix.lower()](content)
        except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError) as error:
            raise CommandError(f"{str(path)!r} could not be decompressed: {first_line(error)}") from error
    return decoded(content, str(path))


def decoded(content: bytes, name: str, first: int = 1) -> str:
    """Bytes in UTF-8 or in UTF-16 with its mark as text, without the mark.

    Args:
        content: bytes of whole lines.
        name: where they are from, for messages.
        first: number of the first line.
    """
    encoding = "utf-8-sig" if first == 1 else "utf-8"  # a mark stands at the beginning of all
    if first == 1 and content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        encoding = "utf-16"
    if encoding != "utf-16" and content[:200].count(0) * 4 > len(content[:200]):  # every second byte, or more of them
        raise CommandError(
            f"{name!r} is not a text file in UTF-8: it holds null bytes, as UTF-16 does. Save it as UTF-8."
        )
    if content[:4] == b"\xff\xfe\x00\x00":  # begins as UTF-16 does
        encoding = "utf-32"
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + first
        raise CommandError(
            f"{name!r} is not a text file in UTF-8: line {line} has the byte 0x{content[error.start]:02x}. Save it as "
            "UTF-8, for example with `iconv -f latin1 -t utf-8`."
        ) from error


def lines_of(text: str) -> list[str]:
    r"""Lines of a text, ended by line feeds alone: other separators of Unicode stand inside texts.

    >>> lines_of("one\u2028still one\r\n\ntwo\n")
    ['one\u2028still one', '', 'two']
    """
    lines = text.split("\n") if "\n" in text else text.split("\r")
    lines = [line.removesuffix("\r") for line in lines]
    return lines if lines[-1] else lines[:-1]


TOO_DEEP = "lists or objects are nested too deeply"


def _json(text: str, whole: bool) -> Any:
    """What a JSON file holds; one object per line where it is not one value."""
    if whole:
        try:
            return json.loads(text, parse_constant=_constant)
        except RecursionError:
            raise ValueError(TOO_DEEP) from None
        except json.JSONDecodeError as error:
            if "\n" not in text.strip() or "Extra data" not in error.msg:
                raise
    rows = []
    for number, line in enumerate(lines_of(text), start=1):
        if line.strip():
            try:
                rows.append(json.loads(line, parse_constant=_constant))
            except json.JSONDecodeError as error:
                raise ValueError(f"line {number}: {error.msg}") from None
            except RecursionError:
                raise ValueError(f"line {number}: {TOO_DEEP}") from None
    return rows


def _constant(name: str) -> float | None:
    """NaN, which Python writes for what is missing, as missing."""
    return None if name == "NaN" else float(name)


def _columns(value: Any) -> dict[str, list[Any]]:
    """Columns of a list of rows, of a mapping of columns, or of the one list that an object holds."""
    if isinstance(value, Mapping):
        parts = list(value.values())
        lists = [part for part in parts if isinstance(part, list)]
        if lists and len(lists) == len(parts) and len({len(part) for part in parts}) == 1:
            if len(parts) > 1 or not _are_rows(parts[0]):
                return dict(value)
        elif parts and all(isinstance(part, Mapping) for part in parts) and len({tuple(part) for part in parts}) == 1:
            return {name: list(cells.values()) for name, cells in value.items()}  # as pandas writes it
        if len(lists) == 1 and _are_rows(lists[0]):
            return _columns(lists[0])
        return _columns([value])
    if not isinstance(value, list) or not _are_rows(value):
        raise ValueError('it must hold one object per row, such as {"text": …, "label": …}')
    names = dict.fromkeys(name for row in value for name in row)
    return {name: [row.get(name) for row in value] for name in names}


def _are_rows(value: list[Any]) -> bool:
    return bool(value) and all(isinstance(row, Mapping) for row in value)


def _uniform(values: Sequence[Any]) -> Sequence[Any]:
    """Scalars of unlike types as strings, which no column can hold otherwise."""
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) < 2 or kinds == {int, float} or not kinds <= {str, int, float, bool}:
        return values
    return [None if value is None else str(value) for value in values]
