"""The file of results: one JSON line per training, appended in one write, so that a kill loses one line at most."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from ..errors import CommandError, DiskError
from ..modeling.files import write_text_atomically
from .grid import OLD_MODELS, Cell, key_of

logger = logging.getLogger(__name__)

BEGIN = b'{"key": '
"""How every line begins, a torn one too."""
MEASURED = frozenset(("curve", "f1_macro", "seconds", "start_samples", "rows", "batch_rows", "machine"))
"""What the line of a finished training holds besides key and settings; lines of some versions hold more."""


def append_line(path: Path, record: Mapping[str, Any]) -> None:
    """Append one line; the system writes it behind all others, whichever process they came from."""
    line = (json.dumps(record) + "\n").encode()
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        written = os.write(file, line)
        if written != len(line):
            end = os.lseek(file, 0, os.SEEK_CUR)
            if os.fstat(file).st_size == end:  # half a line in the middle of the file would make it unreadable
                os.ftruncate(file, end - written)
            raise DiskError(f"The disk took only {written} of {len(line)} bytes of a line of {path}: make room.")
    finally:
        os.close(file)


def drop_torn_line(path: Path) -> None:
    """Cut off a last line that a killed process or a full disk left unfinished; a whole one without end gets its end.

    Raises:
        CommandError: as `read_lines`; a file that is no file of results stays as it is.
    """
    if not path.exists():
        return
    read_lines(path)
    with path.open("rb+") as file:
        content = file.read()
        if content and not content.endswith(b"\n"):
            start = content.rfind(b"\n") + 1
            if _record(content[start:]):
                file.write(b"\n")
            else:
                file.truncate(start)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read all whole lines of a file of results; a last line that is torn is left out.

    Raises:
        CommandError: the file cannot be read, or a line is no result.
    """
    try:
        *lines, last = path.read_bytes().split(b"\n")
    except OSError as error:
        raise CommandError(f"{str(path)!r} could not be read: {error.strerror}.") from error
    records = [*map(_record, lines), _record(last)]
    if records[-1] is None and (not last or BEGIN.startswith(last[: len(BEGIN)])):
        records.pop()
    if None in records:
        raise CommandError(
            f"Line {records.index(None) + 1} of {str(path)!r} is not a result of `hf-lwal compare`: delete that line, "
            "or name another file."
        )
    return [_with_names_of_today(record) for record in records if record is not None]


def _with_names_of_today(record: dict[str, Any]) -> dict[str, Any]:
    """A line whose model is called as it is today: a name may mean another model than when it was measured."""
    settings = _today(record["settings"])
    return record if settings is record["settings"] else {**record, "settings": settings, "key": key_of(settings)}


def _today(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Settings of a cell whose model is called as it is today; the same object where nothing changes."""
    model = settings["model"]
    return {**settings, "model": OLD_MODELS[model]} if model in OLD_MODELS else settings


def _record(line: bytes) -> dict[str, Any] | None:
    """What a line holds; None unless it is a result, or the error of a training that failed."""
    try:
        record: dict[str, Any] = json.loads(line.decode("utf-8", "replace"))
        measured = "error" in record or (set(record) >= MEASURED and len(record["curve"]) > 1)
        whole = measured and isinstance(record["key"], str) and _are_settings(record["settings"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return record if whole else None


def _are_settings(value: Any) -> bool:
    """Whether a value says all that a cell is made of."""
    names = {entry.name for entry in fields(Cell) if entry.default is MISSING}  # others came later
    return isinstance(value, dict) and names <= set(value) and isinstance(value["method"], dict)


def finished_keys(records: Iterable[Mapping[str, Any]], structure: bool = False) -> set[str]:
    """Keys of the cells that need not run again; those that failed do.

    Args:
        records: lines of a file of results.
        structure: only lines that hold a measure of the label vectors count, and those of methods that have none.
    """

    def counts(record: Mapping[str, Any]) -> bool:
        return "error" not in record and (
            not structure or "structure" in record or "peer" in record["settings"]["method"]
        )

    return {record["key"] for record in records if counts(record)}


def plan_path(results: Path) -> Path:
    """The file beside the results that says which cells were asked for."""
    return results.with_suffix(".plan.json")


def write_plan(results: Path, cells: Mapping[str, Mapping[str, Any]]) -> None:
    """Add cells to the plan beside the results, in one piece."""
    write_text_atomically(plan_path(results), json.dumps({**read_plan(results), **cells}, indent=1) + "\n")


def read_plan(results: Path) -> dict[str, Any]:
    """Key → settings of all cells that were ever asked for; empty where there is no plan."""
    path = plan_path(results)
    if not path.exists():
        return {}
    try:
        plan = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        plan = None
    if isinstance(plan, dict) and all(map(_are_settings, plan.values())):
        today = {key: _today(settings) for key, settings in plan.items()}
        return {key if found is plan[key] else key_of(found): found for key, found in today.items()}
    logger.warning(
        "%s cannot be read, so it is not known what was planned: tables count the trainings in %s only, and the next "
        "`hf-lwal compare` writes the plan anew.",
        path,
        results.name,
    )
    return {}
