"""Columns of pictures and sounds: paths in tables, and files that cannot be read."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..errors import CommandError
from ..modeling.pictures import NO_PILLOW, read_picture
from ..modeling.sounds import read_sound
from .tables import Tell, log_note, number_of

if TYPE_CHECKING:
    from datasets import Dataset

Kind = Literal["text", "image", "audio"]
ENDINGS: dict[str, tuple[str, ...]] = {
    "image": (
        *(".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm"),
        *(".pnm", ".tga", ".ico", ".jp2", ".avif", ".heic", ".heif"),
    ),
    "audio": (".wav", ".mp3", ".flac", ".ogg", ".oga", ".opus", ".m4a", ".aac", ".aif", ".aiff", ".wma"),
}
"""Kind of input → endings of its files."""
WORDS = {"image": ("picture", "pictures"), "audio": ("sound", "sounds")}
"""Kind of input → what its files are called in messages."""
SHOWN = 5
"""Names of files in a note."""
CHECK_RATE = 16_000
"""Samples per second at which a sound is read to learn whether it can be."""


def media_files(folder: Path, kind: str) -> list[Path]:
    """The pictures or sounds below a folder in the order of their names, without hidden ones."""
    return [path for path in visible_files(folder) if path.suffix.lower() in ENDINGS[kind]]


def visible_files(folder: Path) -> list[Path]:
    """All files below a folder in the order of their names, but for those that systems hide or make."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.is_file() and not any(part.startswith((".", "__")) for part in path.relative_to(folder).parts)
    )


def kind_of_names(values: Sequence[Any]) -> Literal["image", "audio"] | None:
    """What a column of strings names, if every cell that is not missing names a picture, or a sound."""
    endings = {os.path.splitext(str(value).strip())[1].lower() for value in values if value is not None}
    kinds: tuple[Literal["image"], Literal["audio"]] = ("image", "audio")
    return next((kind for kind in kinds if endings and endings <= set(ENDINGS[kind])), None)


def files_as_rows(column: str, paths: Sequence[str | None], kind: str) -> Dataset:
    """Rows of one column with what paths lead to.

    Args:
        column: its name.
        paths: absolute ones.
        kind: "image" or "audio".
    """
    import pyarrow
    from datasets import Audio, Dataset, DatasetInfo, Features, Image

    if kind == "image" and find_spec("PIL") is None:
        raise CommandError(f"Column {column!r}: {NO_PILLOW}.")
    # As the datasets library stores them; its own conversion would need torchcodec, even for paths.
    stored = pyarrow.struct({"bytes": pyarrow.binary(), "path": pyarrow.string()})
    cells = pyarrow.array([None if path is None else {"bytes": None, "path": path} for path in paths], stored)
    features = Features({column: Image() if kind == "image" else Audio(decode=False)})
    return Dataset(pyarrow.table({column: cells}), info=DatasetInfo(features=features))


def with_media(rows: Dataset, folder: Path) -> Dataset:
    """Rows whose columns of paths, to files that exist, hold the pictures or sounds themselves.

    Args:
        rows: of a table.
        folder: the table's; paths are relative to it, or else to the current folder.
    """
    from datasets import concatenate_datasets

    for column, feature in rows.features.items():
        if "string" not in str(getattr(feature, "dtype", "")):
            continue
        values = rows[column][:]
        kind = kind_of_names(values)
        if kind is None:
            continue
        paths = [None if value is None else resolve_path(value, folder) for value in values]
        if not any(path is not None and os.path.isfile(path) for path in paths):
            continue
        place = rows.column_names
        files = files_as_rows(column, paths, kind)
        rows = concatenate_datasets([rows.remove_columns(column), files], axis=1).select_columns(place)
    return rows


def refuse_lost_files(rows: Dataset, column: str) -> None:
    """Raise for texts that all name pictures or sounds, none of which is there: a model would learn file names."""
    names = rows[column][:]
    kind = kind_of_names(names)
    if kind is not None:
        first = next(name for name in names if name is not None)
        raise CommandError(
            f"Column {column!r} holds names of {WORDS[kind][1]}, such as {first!r}, but there are no such files beside"
            " the table or in the current folder. If the names themselves are the texts, say so with --text-column."
        )


def resolve_path(name: str, folder: Path) -> str:
    """The path of a file that is named relative to a folder, or else to the current folder."""
    path = Path(name.strip()).expanduser()
    beside = folder / path
    return str(path.absolute() if not beside.exists() and path.exists() else beside)


def kind_of(feature: Any) -> Kind:
    """What a column holds."""
    from datasets import Audio, Image

    return "image" if isinstance(feature, Image) else "audio" if isinstance(feature, Audio) else "text"


def undecoded(rows: Dataset, column: str) -> Dataset:
    """Rows whose pictures or sounds come as the datasets library stores them, ``{"bytes", "path"}``."""
    feature = rows.features[column]
    return rows if kind_of(feature) == "text" else rows.cast_column(column, type(feature)(decode=False))


def reader_of(kind: str, sampling_rate: int = CHECK_RATE) -> Callable[[Any], Any]:
    """What reads a picture or a sound from a path or from what the datasets library stores.

    Args:
        kind: "image" or "audio".
        sampling_rate: of the sounds.
    """
    return read_picture if kind == "image" else lambda source: read_sound(source, sampling_rate)


def readable(rows: Dataset, column: str, split: str, tell: Tell = log_note) -> Dataset:
    """Leave out rows whose picture or sound cannot be read to its end, and name them.

    Args:
        rows: a split.
        column: with pictures, sounds, or texts, which all can be read.
        split: its name.
        tell: takes the note.
    """
    kind = kind_of(rows.features[column])
    if kind == "text" or not len(rows):
        return rows
    cells = undecoded(rows.select_columns(column), column)
    numbers = rows.remove_columns(column)

    def fault(number: int) -> str | None:
        cell = cells[number][column]
        try:
            if kind == "image":
                read_picture(cell, fast=True)
            else:
                read_sound(cell, CHECK_RATE)
        except ValueError as error:
            return f"{cell_name(cell) or f'row {number_of(numbers, number)}'} ({error})"
        return None

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        try:
            faults = list(pool.map(fault, range(len(cells)), chunksize=64))
        except ImportError as error:
            raise CommandError(f"Column {column!r}: {error}.") from error
    found = [text for text in faults if text is not None]
    one, several = WORDS[kind]
    if len(found) == len(faults):
        raise CommandError(f"None of the {len(found):,} {several} of split {split!r} can be read: {found[0]}.")
    if found:
        count = f"1 {one}" if len(found) == 1 else f"{len(found):,} {several}"
        names = ", ".join(found[:SHOWN]) + (" …" if len(found) > SHOWN else "")
        tell(f"{count} of split {split!r} cannot be read and {'is' if len(found) == 1 else 'are'} left out: {names}")
        rows = rows.select(np.flatnonzero([text is None for text in faults]))
    return rows


def cell_name(cell: Any) -> str | None:
    """The path of a picture or sound that the datasets library stores."""
    return cell.get("path") if isinstance(cell, dict) else None
