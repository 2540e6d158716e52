"""What ``hf-lwal predict`` and ``hf-lwal fold --inputs`` read: texts, pictures or sounds, from words and files."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..data.columns import ID_COLUMNS, LABEL_COLUMNS, TEXT_COLUMNS, named, pair_columns
from ..data.media import WORDS, cell_name, kind_of, media_files, reader_of, resolve_path, undecoded, with_media
from ..data.tables import FILES, Tell, decoded, ending, lines_of, read_table, read_text
from ..errors import CommandError, harmless

if TYPE_CHECKING:
    from datasets import Dataset

STANDARD_INPUT = "-"
MEDIA_COLUMNS = ("image", "audio", "file_name", "file", "path", "img", "picture", "sound")


def say(note: str) -> None:
    """Print a note beside the answers, not among them."""
    print(harmless(f"Note: {note}."), file=sys.stderr)


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


def read_inputs(words: Sequence[str], kind: str, wanted: Wanted, tell: Tell, file: bool = False) -> list[Input]:
    """Read everything that words on the command line name.

    Args:
        words: texts; paths of files, which are read wherever they exist; folders; - for standard input.
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
    if word == STANDARD_INPUT:
        return _lines(decoded(_standard_input(), "standard input"), "standard input")
    if not word.strip() and not file:  # an empty path would be the folder that one is in
        return [Input(word, None, repr(word))]
    if not _exists(path):
        if file:
            raise CommandError(f"There is no file {word!r}.")
        return [Input(_checked(word), word, repr(word))]
    if path.is_dir():
        raise CommandError(f"{word!r} is a folder; name the files in it whose texts are to be classified.")
    if not file:
        tell(f"{word} is a file: what it holds is classified, not its name")
    if ending(path) in FILES:
        return _rows(path, kind, wanted, tell)
    return _lines(read_text(path), word)


def _files(word: str, kind: str, wanted: Wanted, tell: Tell, file: bool) -> list[Input]:
    """A picture or sound, those of a folder, or those that a list or a table names."""
    path = Path(word).expanduser()
    if word != STANDARD_INPUT and path.is_dir():
        found = media_files(path, kind)
        if not found:
            raise CommandError(f"The folder {word!r} holds no {WORDS[kind][1]}.")
        return [Input(str(entry), str(entry), str(entry)) for entry in found]
    if word == STANDARD_INPUT:
        return _listed(decoded(_standard_input(), "standard input"), "standard input", Path())
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


def _standard_input() -> bytes:
    """All of it, whatever encoding the terminal states."""
    source: Any = getattr(sys.stdin, "buffer", sys.stdin)
    content: str | bytes = source.read()
    return content.encode() if isinstance(content, str) else content


def _lines(text: str, name: str) -> list[Input]:
    """One text per line."""
    return [
        Input(line, line if line.strip() else None, f"line {number} of {name}")
        for number, line in enumerate(lines_of(text), start=1)
    ]


def _listed(text: str, name: str, folder: Path) -> list[Input]:
    """One path per line, relative to a folder or to the current one."""
    return [
        Input(entry.shown, None if entry.value is None else resolve_path(entry.value, folder), entry.place)
        for entry in _lines(text, name)
    ]


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
    id_column = wanted.id or named(rows.column_names, ("id",))
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
