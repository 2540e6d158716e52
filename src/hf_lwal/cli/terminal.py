"""The streams and signals of a command: any encoding is written to, bars only where somebody watches them."""

from __future__ import annotations

import _thread
import codecs
import io
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partialmethod
from types import FrameType
from typing import Any

from ..errors import Terminated

ESCAPES = "hf_lwal.escapes"
"""Name of the error handler `escaped` among Python's."""


_TO_THE_END = ExitStack()
"""What holds as long as the process."""
RAISED: dict[int, type[KeyboardInterrupt]] = {signal.SIGTERM: Terminated, signal.SIGINT: KeyboardInterrupt}
LATER = 0.5
"""Seconds after which it is looked whether the exception of a signal was lost."""
NOISE = {
    "bitsandbytes.backends.cpu.ops": "Failed to load CPU gemm_4bit_forward",
    "transformers.trainer_utils": "mtime may not be reliable",
}
"""Logger → beginning of a message about its insides that no user can do anything about."""


def escaped(error: UnicodeError) -> tuple[str | bytes, int]:
    r"""Error handler: what an encoding lacks becomes ``\uXXXX``, which JSON reads back as the same character.

    >>> _ = codecs.register_error("escapes-of-the-example", escaped)
    >>> "é 😀".encode("ascii", "escapes-of-the-example")
    b'\\u00e9 \\ud83d\\ude00'
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[place : place + 2].hex()}" for place in range(0, len(units), 2)), error.end


def prepare_terminal() -> None:
    """Make the process of a command ready: every character can be written, and nothing is shown that is only noise.

    Progress bars are for people: without a terminal they fill files with half lines.
    """
    codecs.register_error(ESCAPES, escaped)
    for stream in (sys.stdout, sys.stderr):
        # Another handler than these was chosen by the user.
        if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape", "backslashreplace"):
            stream.reconfigure(errors=ESCAPES)
    for name in NOISE:
        logging.getLogger(name).addFilter(_is_no_noise)
    if not _watched() and "TQDM_DISABLE" not in os.environ:
        _TO_THE_END.enter_context(without_bars())


@contextmanager
def without_bars() -> Iterator[None]:
    """No progress bar is shown."""
    name, before = "TQDM_DISABLE", os.environ.get("TQDM_DISABLE")
    os.environ[name] = "1"  # read once, when tqdm is imported
    bar: Any = getattr(sys.modules.get("tqdm.std"), "tqdm", None)  # it may have been imported before
    usual = None if bar is None else bar.__init__
    if bar is not None:
        bar.__init__ = partialmethod(usual, disable=True)
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before
        if bar is not None:
            bar.__init__ = usual


def _is_no_noise(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith(NOISE[record.name])


def _watched() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # no standard error, or a closed one
        return False


@contextmanager
def termination_as_interrupt() -> Iterator[None]:
    """Turn SIGTERM into an exception, so that temporary files are removed and the last words are said.

    Python drops what is raised while an object is deleted, and some libraries catch everything. Where a moment later
    nothing is on its way out, the exception of SIGTERM or Ctrl-C is raised again.
    """
    watches: list[threading.Timer] = []
    looked_after: set[int] = set()
    over = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        watched = number in looked_after
        looked_after.discard(number)
        if watched and over.is_set():
            return
        watches.append(threading.Timer(LATER, look_after, (number,)))
        watches[-1].daemon = True
        watches[-1].start()
        if not (watched and _on_the_way_out(sys.exc_info()[1])):
            raise RAISED[number]

    def look_after(number: int) -> None:
        looked_after.add(number)
        _thread.interrupt_main(signal.Signals(number))

    before = {}
    if threading.current_thread() is threading.main_thread():  # somebody else's handler stays
        usual = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
        before = {number: found for number, found in usual.items() if signal.getsignal(number) == found}
    for number in before:
        signal.signal(number, end)
    try:
        yield
    finally:
        over.set()
        for watch in watches:
            watch.cancel()
            watch.join()  # what it has sent by now arrives before the handlers go
        for number, handler in before.items():
            signal.signal(number, handler)


def _on_the_way_out(error: BaseException | None) -> bool:
    """Whether what is being handled, while files are cleaned up, is or comes from the end of the command."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None
