"""What ``hf-lwal predict`` and ``hf-lwal fold --inputs`` read: texts, pictures or sounds, from words and files."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..data.columns import ID_COLUMNS, LABEL_COLUMNS, TEXT_COLUMNS, named, pair_columns
from ..data.media import (
    WORDS,
    cell_name,
    kind_of,
    kind_of_names,
    media_files,
    reader_of,
    resolve_path,
    undecoded,
    with_media,
)
from ..data.tables import FILES, Tell, decoded, ending, lines_of, read_table, read_text
from ..errors import CommandError, harmless
from .verbosity import note

if TYPE_CHECKING:
    from datasets import Dataset

STANDARD_INPUT = "-"
ID = re.compile(r"^(g|u|uu)id$|[a-z0-9](Id|ID)$|(?i:[ _-]id)$")
"""Names of columns with ids, besides ``id``."""
CHUNK = 1 << 16
"""Bytes of standard input that are read at a time, at most."""
MEDIA_COLUMNS = ("image", "audio", "file_name", "file", "path", "img", "picture", "sound")


def say(what: str) -> None:
    """Print beside the answers, not among them, what has none."""
    print(harmless(f"Note: {what}."), file=sys.stderr)


def remark(what: str) -> None:
    """Print beside the answers how something was read, unless nobody wants to know."""
    note(f"Note: {what}.", file=sys.stderr)


@dataclass(frozen=True)
class Input:
    """One thing to classify.

    Attributes:
        shown: what is printed beside its answer.
        value: text, pair of texts, or where the picture or sound is; None where there is nothing to classify.
        place: where it stands, for messages.
        id: its id in the table, if there is one.
    """

    shown: str
    value: Any
    place: str
    id: Any = None


@dataclass(frozen=True)
class Wanted:
    """Columns that the user named."""

    text: str | None = None
    pair: str | None = None
    id: str | None = None


Group = list[Input]
"""Inputs that are there at the same time."""


def read_groups(words: Sequence[str], kind: str, wanted: Wanted, tell: Tell, file: bool = False) -> Iterator[Group]:
    """What `read_inputs` reads, a group at a time: lines of standard input as they come, all else as a whole."""
    return chain.from_iterable(
        [  # a list: what cannot be read is said before anything is classified
            _from_standard_input(kind) if word == STANDARD_INPUT else [read_inputs([word], kind, wanted, tell, file)]
            for word in words
        ]
    )


def read_inputs(words: Sequence[str], kind: str, wanted: Wanted, tell: Tell, file: bool = False) -> list[Input]:
    """Read everything that words on the command line name.

    Args:
        words: texts; paths of files, which are read wherever they exist; folders.
        kind: what the model classifies: "text", "image" or "audio".
        wanted: columns of tables.
        tell: takes notes.
        file: the words can only be paths.
    """
    read = _texts if kind == "text" else _files
    return [entry for word in words for entry in read(word, kind, wanted, tell, file)]


def _texts(word: str, kind: str, wanted: Wanted, tell: Tell, file: bool) -> list[Input]:
    """A word itself, or the texts of the file that it names."""
    path = Path(word).expanduser()
    if not word.strip() and not file:  # an empty path would be the folder that one is in
        return [Input(word, None, repr(word))]
    if not _exists(path):
        if file:
            raise CommandError(f"There is no file {word!r}.")
        if ending(path) in (*FILES, ".txt") and len(word.split()) == 1:
            raise CommandError(
                f"There is no file {word!r}. (To classify the word itself: echo {word!r} | hf-lwal predict MODEL -)"
            )
        return [Input(_checked(word), word, repr(word))]
    if path.is_dir():
        raise CommandError(f"{word!r} is a folder; name the files in it whose texts are to be classified.")
    if (medium := kind_of_names([word])) is not None:
        one, many = WORDS[medium]
        raise CommandError(f"{word!r} is a {one}, and this model classifies texts: name a model of {many}.")
    if not file:
        tell(f"{word} is a file: what it holds is classified, not its name")
    if ending(path) in FILES:
        return _rows(path, kind, wanted, tell)
    return _lines(read_text(path), word)


def _files(word: str, kind: str, wanted: Wanted, tell: Tell, file: bool) -> list[Input]:
    """A picture or sound, those of a folder, or those that a list or a table names."""
    path = Path(word).expanduser()
    if path.is_dir():
        found = media_files(path, kind)
        if not found:
            raise CommandError(f"The folder {word!r} holds no {WORDS[kind][1]}.")
        return [Input(str(entry), str(entry), str(entry)) for entry in found]
    if not _exists(path):
        raise CommandError(f"There is no file {word!r}; this model classifies {kind} files.")
    if ending(path) in FILES:
        return _rows(path, kind, wanted, tell)
    if path.suffix.lower() == ".txt":
        return _listed(read_text(path), word, path.parent)
    return [Input(word, str(path), word)]


def _exists(path: Path) -> bool:
    """Whether there is such a file or folder; a long text is not even a name."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _checked(word: str) -> str:
    try:
        word.encode()
    except UnicodeEncodeError as error:
        raise CommandError(f"{word!a} is not in UTF-8, which the shell should give; read it from a file.") from error
    return word


def _from_standard_input(kind: str) -> Iterator[Group]:
    """Texts, or paths of pictures or sounds, one per line."""
    for group in _streamed(_standard_input(), "standard input"):
        yield group if kind == "text" else [_located(entry, Path()) for entry in group]


def _standard_input() -> Iterator[bytes]:
    """What is there, whenever something is, whatever encoding the terminal states."""
    source: Any = getattr(sys.stdin, "buffer", None)
    if source is None:  # somebody has put a stream of texts in its place
        yield sys.stdin.read().encode()
        return
    while content := source.read1(CHUNK):
        yield content


def _streamed(chunks: Iterator[bytes], name: str) -> Iterator[Group]:
    """One text per line, as soon as the line has ended; what is not UTF-8 has to be there as a whole."""
    rest, number, in_lines = b"", 0, None
    for chunk in chunks:
        rest += chunk
        if in_lines is None and len(rest) > 1:
            in_lines = rest[:2] not in (b"\xff\xfe", b"\xfe\xff") and b"\0" not in rest
        if in_lines and b"\n" in rest:
            ended, _, rest = rest.rpartition(b"\n")
            group = _lines(decoded(ended + b"\n", name, first=number + 1), name, number)
            number += len(group)
            yield group
    last = rest + b"\n" if rest and number else rest  # a text without any line feed may have other ends of lines
    yield _lines(decoded(last, name, first=number + 1), name, number)


def _lines(text: str, name: str, before: int = 0) -> Group:
    """One text per line, after so many others."""
    return [
        Input(line, line if line.strip() else None, f"line {number} of {name}")
        for number, line in enumerate(lines_of(text), start=before + 1)
    ]


def _listed(text: str, name: str, folder: Path) -> Group:
    """One path per line, relative to a folder."""
    return [_located(entry, folder) for entry in _lines(text, name)]


def _located(entry: Input, folder: Path) -> Input:
    """An input that is a path, seen from the current folder."""
    return entry if entry.value is None else replace(entry, value=resolve_path(entry.value, folder))


def _rows(path: Path, kind: str, wanted: Wanted, tell: Tell) -> list[Input]:
    """The rows of a table."""
    rows = with_media(read_table(path, tell), path.parent)
    for flag, name in (("--text-column", wanted.text), ("--pair-column", wanted.pair), ("--id-column", wanted.id)):
        if name is not None and name not in rows.column_names:
            raise CommandError(f"{flag}: there is no column {name!r}; the file has {', '.join(rows.column_names)}.")
    first, second = wanted.text, wanted.pair
    if kind == "text" and first is None and second is None:
        first, second = pair_columns(rows.column_names) or (None, None)
    first = first or _column(rows, kind, str(path))
    held = kind_of(rows.features[first])
    if held not in ("text", kind):
        raise CommandError(f"Column {first!r} of {str(path)!r} holds {held}, but this model classifies {kind}.")
    id_column = wanted.id or _id_column(rows.column_names)
    ids = rows[id_column][:] if id_column is not None else [None] * len(rows)
    values = _cells(rows, first, kind, path)
    others = None if second is None else _cells(rows, second, kind, path)
    found = []
    for number, value in enumerate(values):
        place = f"row {number + 1} of {path}"
        if others is None:
            shown = value if isinstance(value, str) else cell_name(value) or ("" if value is None else place)
            found.append(Input(shown, value, place, ids[number]))
        else:
            pair = (value, others[number])
            whole = None if None in pair else {"text": pair[0], "text_pair": pair[1]}
            found.append(Input(" | ".join(text or "" for text in pair), whole, place, ids[number]))
    return found


def _id_column(names: Sequence[str]) -> str | None:
    """The column called id, or the only one whose name says that it is one."""
    likely = [name for name in names if ID.search(name)]
    return named(names, ("id",)) or (likely[0] if len(likely) == 1 else None)


def _column(rows: Dataset, kind: str, file: str) -> str:
    """The column to classify: by its type, by a usual name, or the only one besides ids and labels."""
    media = [name for name in rows.column_names if kind_of(rows.features[name]) == kind != "text"]
    known = named(rows.column_names, TEXT_COLUMNS if kind == "text" else MEDIA_COLUMNS)
    rest = [name for name in rows.column_names if name.lower() not in (*ID_COLUMNS, *LABEL_COLUMNS)]
    only = rest if len(rest) == 1 else rows.column_names if len(rows.column_names) == 1 else []
    for candidates in (media, [known] if known else [], only):
        if candidates:
            return candidates[0]
    raise CommandError(
        f"Which column of {file!r} holds the {kind}? Name it with --text-column: {', '.join(rows.column_names)}."
    )


def _cells(rows: Dataset, column: str, kind: str, path: Path) -> list[Any]:
    """Values of a column, None where there is nothing: texts, or where pictures and sounds are."""
    from datasets import Value

    feature = rows.features[column]
    if kind_of(feature) == "text" and not isinstance(feature, Value) and not hasattr(feature, "int2str"):
        raise CommandError(f"Column {column!r} of {str(path)!r} is of type {feature}, but texts are needed.")
    values: list[Any] = undecoded(rows, column)[column][:]
    if kind_of(feature) != "text":
        return values
    texts = [None if value is None or not str(value).strip() else str(value) for value in values]
    return texts if kind == "text" else [None if text is None else resolve_path(text, path.parent) for text in texts]


def loader(kind: str, processor: Any) -> Callable[[Any], Any]:
    """What turns the value of an input into what the model's pipeline takes."""
    return (lambda value: value) if kind == "text" else reader_of(kind, getattr(processor, "sampling_rate", 0))
