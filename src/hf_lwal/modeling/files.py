"""Files that are written whole or not at all: the one way in which this package replaces a file."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """An empty file in the same folder to write into; it takes the name at the end, or is deleted after an error."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o644)  # mkstemp makes files that only their owner can read
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_text_atomically(path: Path, text: str) -> None:
    """Write UTF-8: a reader never sees half a file, and after an error the file is what it was."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextmanager
def staged(folder: Path) -> Iterator[Path]:
    """A folder for files that go into ``folder`` together: all of them at the end, none after an error.

    Args:
        folder: made, with its parents, where it does not exist; one that exists stays the same one, which may be a
            link or a mounted disk, with all else that is in it.
    """
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    fresh, temporary = folder in missing, None
    (folder.parent if fresh else folder).mkdir(parents=True, exist_ok=True)
    try:
        temporary = Path(tempfile.mkdtemp(dir=folder.parent if fresh else folder, prefix=f".{folder.name}."))
        yield temporary
        if fresh:
            temporary.chmod(0o755)
            os.replace(temporary, folder)
        else:
            for path in sorted(temporary.iterdir()):
                os.replace(path, folder / path.name)
    except BaseException:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
        with suppress(OSError):  # someone else has put something there
            for place in missing:
                if place.exists():
                    place.rmdir()
        raise
    shutil.rmtree(temporary, ignore_errors=True)
