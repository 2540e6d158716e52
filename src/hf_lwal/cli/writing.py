"""Where commands write: checked before the long work, and said in a sentence where it fails."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import CommandError


def check_output_folder(name: str, flag: str = "--output") -> Path:
    """The folder that a command will write into.

    Raises:
        CommandError: it is a file, or nothing can be written there.
    """
    folder = Path(name).expanduser()
    place = _nearest(folder)
    if not place.is_dir():
        what = "it" if place == folder else repr(str(place))
        raise CommandError(f"{flag} must be a folder, but {name!r} cannot be one: {what} is a file.")
    _check_writable(place, name, flag)
    return folder


def check_output_file(name: str, flag: str = "--output") -> Path:
    """The file that a command will write.

    Raises:
        CommandError: it is a folder, a device or a pipe, or nothing can be written there.
    """
    file = Path(name).expanduser()
    if file.is_dir():
        raise CommandError(f"{flag} must be a file, but {name!r} is a folder: name a file in it.")
    if file.exists() and not file.is_file():
        raise CommandError(f"{flag} must be a file that can be read again, but {name!r} is a device or a pipe.")
    check_output_folder(str(file.parent), flag)
    _check_writable(_nearest(file), name, flag)
    return file


def _nearest(path: Path) -> Path:
    """The path itself, or the first of its parents that exists."""
    path = path.absolute()
    return next(place for place in (path, *path.parents) if os.path.lexists(place))


def _check_writable(place: Path, name: str, flag: str) -> None:
    if not os.access(place, os.W_OK):
        raise CommandError(f"{flag}: {name!r} cannot be written, since {str(place)!r} is read-only for you.")


@contextmanager
def writing(place: str | os.PathLike[str]) -> Iterator[None]:
    """Turn what a full disk or a folder without permission raises into a sentence.

    Raises:
        CommandError: something inside could not be written.
    """
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__
        raise CommandError(
            f"{os.fspath(place)!r} could not be written ({reason}): make room there, or name another place."
        ) from error
