"""Files that are written whole or not at all: the one way in which this package replaces a file."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """An empty file in the same folder to write into; it takes the name at the end, or is deleted after an error.

    Of a link the file that it leads to is replaced. Who may read it is for the old file to say, or for the umask.
    """
    path = Path(os.path.realpath(path))
    temporary = _beside(path)
    try:
        temporary.touch(exist_ok=False)
        yield temporary
        if path.exists():
            shutil.copymode(path, temporary)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _beside(path: Path) -> Path:
    """A new hidden name beside a path; short, since names have a limit that the path may have reached."""
    return path.with_name(f".{path.name[:40]}.{secrets.token_hex(4)}")


def write_text_atomically(path: Path, text: str) -> None:
    """Write UTF-8: a reader never sees half a file, and after an error the file is what it was.

    Half a character, which UTF-8 has no place for, is written as JSON writes it.
    """
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")


@contextmanager
def staged(folder: Path) -> Iterator[Path]:
    """A folder for files that go into ``folder`` together: all of them at the end, none after an error.

    Args:
        folder: made, with its parents, where it does not exist; one that exists stays the same one, which may be a
            link or a mounted disk, with all else that is in it.
    """
    folder = Path(os.path.realpath(folder))
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    fresh = folder in missing
    temporary = _beside(folder if fresh else folder / folder.name)
    try:
        temporary.parent.mkdir(parents=True, exist_ok=True)
        temporary.mkdir()
        yield temporary
        if fresh:
            os.replace(temporary, folder)
        else:
            for path in sorted(temporary.rglob("*")):
                place = folder / path.relative_to(temporary)
                if path.is_dir():
                    place.mkdir(exist_ok=True)
                else:
                    os.replace(path, place)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        with suppress(OSError):  # someone else has put something there
            for place in missing:
                if place.exists():
                    place.rmdir()
        raise
    shutil.rmtree(temporary, ignore_errors=True)
