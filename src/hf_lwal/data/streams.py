"""A stream whose first rows are read before the training, and which gives them to the training all the same."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Iterator
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from .labels import first_rows


class KeptStream(IterableDataset[Any]):
    """A data set that can only be iterated, perhaps once: generators, cursors, queues.

    Args:
        stream: the user's data set; all else that is asked of this object is asked of it.
    """

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self._read: deque[Any] = deque()
        self._rest: Iterator[Any] | None = None
        self._first: list[Any] | None = None

    def first(self, per_class: int, num_labels: int) -> list[Any]:
        """Up to ``per_class`` rows per class of the first ones, which the next iteration still yields.

        The stream is read for that once: a second time would take rows from the training.
        """
        if self._first is None:
            self._rest = iter(self.stream)
            self._first = first_rows(self._remembering(self._rest), per_class, num_labels)
        return first_rows(self._first, per_class, num_labels)

    def __iter__(self) -> Iterator[Any]:
        """All rows: those that were read, and then the rest of that very iteration."""
        read, rest = self._read, self._rest
        self._read, self._rest = deque(), None
        if rest is None:
            rest = iter(self.stream)
        elif get_worker_info() is not None:
            # A worker's share of a stream that can be read anew is for the stream to say, in a new iteration.
            rest = iter(self.stream)
            first = list(zip([None], rest, strict=False))
            known = {_bytes(row) for row in read}
            if first and _bytes(first[0][1]) in known:
                read.clear()
            read.extend(row for _, row in first)
        while read:
            yield read.popleft()
        yield from rest

    def __len__(self) -> int:
        """Rows, where the stream knows; TypeError where not."""
        return len(self.stream)

    def __getattr__(self, name: str) -> Any:
        if name == "stream":
            raise AttributeError(name)
        return getattr(self.stream, name)

    def __getstate__(self) -> dict[str, Any]:
        # An iteration under way cannot be sent to a worker that does not share this process's memory.
        return {"stream": self.stream, "_read": deque(), "_rest": None, "_first": self._first}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def _remembering(self, rows: Iterator[Any]) -> Iterator[Any]:
        for row in rows:
            self._read.append(row)
            yield row


def _bytes(row: Any) -> bytes:
    return pickle.dumps(row)
