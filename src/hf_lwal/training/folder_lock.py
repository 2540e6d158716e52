"""One training per output folder: of two that write to it, the weights of one stay beside the state of the other.

The operating system holds the lock, so one of a process that was killed is free again.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

LOCK_FILE = "_training.lock"
"""Its name in the output folder; uploads leave out names that start so."""


class FolderLock:
    """The right to write into a folder, of one process; the same process may take it several times.

    Args:
        folder: the output folder; made where it does not exist.
        name: of the file that stands for what is written there.
    """

    def __init__(self, folder: str | os.PathLike[str], name: str = LOCK_FILE) -> None:
        self.path = Path(folder, name).absolute()
        self._lock: FileLock | None = None
        self._made_folder = False

    def take(self) -> bool:
        """Whether no other process has it. A folder that cannot be written to has nothing to protect."""
        self._made_folder = not self.path.parent.exists()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError:  # whoever writes there says so
            return True
        if not os.access(self.path if self.path.exists() else self.path.parent, os.W_OK):
            return True
        lock = FileLock(self.path, timeout=0, is_singleton=True, thread_local=False)
        try:
            lock.acquire()
        except Timeout:
            return False
        except (OSError, NotImplementedError):  # a full disk, or a file system without locks
            return True
        self._lock = lock
        return True

    def release(self) -> None:
        """Give it back; the file goes with the last of its holders, and so does a folder that was made for nothing."""
        lock, self._lock = self._lock, None
        if lock is None:
            return
        if lock.lock_counter == 1:
            with suppress(OSError):  # Windows deletes no open file
                self.path.unlink(missing_ok=True)  # while it is held: who waits sees that the file it opened is gone
            with suppress(OSError):  # something was written there
                if self._made_folder:
                    self.path.parent.rmdir()
        lock.release()


def in_use(folder: str | os.PathLike[str]) -> str:
    """Sentence for a folder that another process trains into."""
    return (
        f"Another training is writing to {os.fspath(folder)}: the two would overwrite each other's checkpoints. Wait "
        "for its end, or give this one another output_dir."
    )
