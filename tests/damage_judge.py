"""What loading a damaged checkpoint ended in: one sentence, the same model, or what must not be."""

from __future__ import annotations

import logging
import re
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from mutations import Damage

GIBIBYTE = 2**30
SECONDS = 10


class TooLong(BaseException):
    """A case took longer than `SECONDS`."""


@contextmanager
def bounded() -> Iterator[None]:
    """At most a gibibyte of memory more than now, and `SECONDS` of computing, on a busy machine, too."""

    def stop(signal_number: int, frame: FrameType | None) -> None:
        raise TooLong

    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before, hard = resource.getrlimit(resource.RLIMIT_AS)
    handler = signal.signal(signal.SIGPROF, stop)
    resource.setrlimit(resource.RLIMIT_AS, (size + GIBIBYTE, hard))
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, handler)
        resource.setrlimit(resource.RLIMIT_AS, (before, hard))


def verdict(
    load: Callable[[Path], Any],
    answers: Callable[[Any], torch.Tensor],
    folder: Path,
    right: torch.Tensor,
    damage: Damage,
    records: list[logging.LogRecord],
) -> str:
    """ "sentence", "same", "said" (a warning), "asked" (a setting with another value), or "BAD: why".

    Args:
        load: a way to load the folder.
        answers: logits (B, C) of the loaded model on a fixed batch.
        folder: with the damaged checkpoint.
        right: what the undamaged one answers.
        damage: what was done to the checkpoint.
        records: of the log, filled while loading.
    """
    try:
        with bounded():
            model = load(folder)
            found = answers(model)
    except TooLong:
        return "BAD: too long"
    except MemoryError as error:
        return f"BAD: memory {place_of(error)}"
    except (ValueError, OSError) as error:
        return sentence(error, folder, damage)
    except Exception as error:
        return f"BAD: {type(error).__name__} {place_of(error)}: {error}"
    if not bool(found.isfinite().all()):
        return "BAD: logits are not finite"
    if found.shape == right.shape and torch.allclose(found, right, rtol=1e-4, atol=1e-4):
        return "same"
    if [record for record in records if record.levelno >= logging.WARNING]:
        return "said"
    return "asked" if damage.says else "BAD: other answers in silence"


def sentence(error: Exception, folder: Path, damage: Damage) -> str:
    """Whether an error is one sentence that names a file of the checkpoint or the setting that is another."""
    text, place = str(error), place_of(error)
    if "\n" in text.strip():
        return f"BAD: several lines {place}: {text}"
    if len(text) > 1000:
        return f"BAD: long {place}: {text[:300]}"
    named = any(all(word in text for word in name.split("_")[:2]) for name in damage.settings)
    if not named and not re.search(r"\w+\.(json|safetensors|bin)|" + re.escape(folder.name), text):
        return f"BAD: names no file {place}: {text}"
    return "sentence"


def place_of(error: BaseException) -> str:
    """File and line in which an error was raised, to tell causes apart."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return "" if traceback is None else f"{Path(traceback.tb_frame.f_code.co_filename).name}:{traceback.tb_lineno}"
