"""Where commands write: checked before the long work, and said in a sentence where it fails."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import CommandError, DiskError, disk_fault

LONGEST_NAME = 120
"""Characters of a place that an error shows."""


def check_output_folder(name: str, flag: str = "--output") -> Path:
    """The folder that a command will write into.

    Raises:
        CommandError: it is a file, or nothing can be written there.
    """
    folder = _named(name, flag)
    place = _nearest(folder)
    if not place.is_dir():
        what = "it" if place == folder.absolute() else repr(str(place))
        raise CommandError(f"{flag} must be a folder, but {name!r} cannot be one: {what} is a file.")
    _check_writable(place, name, flag)
    return folder


def check_output_file(name: str, flag: str = "--output") -> Path:
    """The file that a command will write.

    Raises:
        CommandError: it is a folder, a device or a pipe, or nothing can be written there.
    """
    file = _named(name, flag)
    if file.is_dir():
        raise CommandError(f"{flag} must be a file, but {name!r} is a folder: name a file in it.")
    if file.exists() and not file.is_file():
        raise CommandError(f"{flag} must be a file that can be read again, but {name!r} is a device or a pipe.")
    place = _nearest(file.parent)
    if not place.is_dir():
        raise CommandError(f"{flag}: {name!r} cannot be written, since {str(place)!r} is a file and no folder.")
    _check_writable(place, name, flag)
    _check_writable(_nearest(file), name, flag)
    return file


def _named(name: str, flag: str) -> Path:
    """The path that a name means.

    Raises:
        CommandError: no file can be called so, or a link in it leads nowhere.
    """
    try:
        path = Path(name).expanduser()
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        dead = next((place for place in (path, *path.parents) if place.is_symlink() and not place.exists()), None)
        if dead is not None:
            raise CommandError(
                f"{flag}: {name!r} cannot be written, since {str(dead)!r} is a link to {os.readlink(dead)!r}, which "
                "does not exist: make that, or name another place."
            ) from None
    except (OSError, RuntimeError, ValueError) as error:  # too long, links in a circle; an unknown ~user; a zero byte
        why = getattr(error, "strerror", None) or " ".join(str(error).split()).rstrip(".")
        raise CommandError(f"{flag}: {shortened(name)!r} is no name that can be written to ({why}).") from error
    return path


def shortened(name: str) -> str:
    """A name with its middle left out where it is very long."""
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME // 2]}…{name[-LONGEST_NAME // 2 :]}"


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
        DiskError: something inside could not be written.
    """
    try:
        yield
    except Exception as error:
        if (why := disk_fault(error)) is None:
            raise
        raise DiskError(
            f"{shortened(os.fspath(place))!r} could not be written ({why}): make room there, or name another place."
        ) from error
