"""How much a command says: ``--quiet`` leaves its results and errors, ``--verbose`` adds what libraries log."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from ..errors import harmless
from .terminal import without_bars

LIBRARIES = ("transformers", "datasets")
"""Libraries with a verbosity of their own."""
logger = logging.getLogger("hf_lwal")


def add_verbosity(parser: ArgumentParser) -> None:
    """Give a command the two flags."""
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--quiet", action="store_true", help="results and errors only: no progress, notes or warnings")
    either.add_argument("--verbose", action="store_true", help="show what the libraries log of their work, too")


def note(*lines: str, file: TextIO | None = None) -> None:
    """Print lines that are neither results nor errors, from the first process only, unless nobody wants them."""
    if os.environ.get("RANK", "0") == "0" and logger.isEnabledFor(logging.WARNING):
        print(*map(harmless, lines), sep="\n", file=file, flush=True)


@contextmanager
def verbosity(quiet: bool, verbose: bool) -> Iterator[None]:
    """Say as much as was asked for, until the end of the command."""
    if quiet:
        with _silence():
            yield
    elif verbose:
        with _everything():
            yield
    else:
        yield


@contextmanager
def _silence() -> Iterator[None]:
    before = logging.root.manager.disable
    logging.disable(max(before, logging.WARNING))
    try:
        with warnings.catch_warnings(), without_bars():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


@contextmanager
def _everything() -> Iterator[None]:
    shown, level = logging.StreamHandler(sys.stderr), logger.level
    shown.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    logger.addHandler(shown)
    logger.setLevel(logging.INFO)
    loaded = {name: found for name in LIBRARIES if (found := sys.modules.get(f"{name}.utils.logging")) is not None}
    levels = {name: found.get_verbosity() for name, found in loaded.items()}
    variables = {f"{name.upper()}_VERBOSITY": "info" for name in LIBRARIES}  # read when a library is imported
    before = {name: os.environ.get(name) for name in variables}
    os.environ |= variables
    for found in loaded.values():
        found.set_verbosity_info()
    try:
        yield
    finally:
        logger.removeHandler(shown)
        logger.setLevel(level)
        for variable, value in before.items():
            del os.environ[variable]
            if value is not None:
                os.environ[variable] = value
        for name, found in loaded.items():
            found.set_verbosity(levels[name])
