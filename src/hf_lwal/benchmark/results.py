"""The file of results: one JSON line per training, appended in one write, so that a kill loses one line at most."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..errors import CommandError


def append_line(path: Path, record: Mapping[str, Any]) -> None:
    """Append one line; the system writes it behind all others, whichever process they came from.

    Args:
        path: file, made where it does not exist.
        record: what JSON can hold.
    """
    line = (json.dumps(record) + "\n").encode()
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        written = os.write(file, line)
        if written != len(line):
            raise CommandError(f"The disk took only {written} of {len(line)} bytes of a line of {path}: make room.")
    finally:
        os.close(file)


def drop_torn_line(path: Path) -> None:
    """Cut off a last line without an end, which a killed process or a full disk left."""
    if not path.exists():
        return
    with path.open("rb+") as file:
        content = file.read()
        if content and not content.endswith(b"\n"):
            file.truncate(content.rfind(b"\n") + 1)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read all whole lines of a file of results; a last line without an end is left out.

    Raises:
        CommandError: a line in the middle is not JSON.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise CommandError(f"{str(path)!r} could not be read: {error.strerror}.") from error
    records = []
    for number, line in enumerate(lines[:-1], start=1):
        try:
            record = json.loads(line)
            record["key"], record["settings"]
        except (ValueError, TypeError, KeyError) as error:
            raise CommandError(f"Line {number} of {str(path)!r} is not a result of `hf-lwal compare`.") from error
        records.append(record)
    return records


def finished_keys(records: Iterable[Mapping[str, Any]], structure: bool = False) -> set[str]:
    """Keys of the cells that need not run again; those that failed do.

    Args:
        records: lines of a file of results.
        structure: only lines that hold a measure of the label vectors count.
    """
    return {record["key"] for record in records if "error" not in record and ("structure" in record or not structure)}


def plan_path(results: Path) -> Path:
    """The file beside the results that says which cells were asked for."""
    return results.with_suffix(".plan.json")


def write_plan(results: Path, cells: Mapping[str, Mapping[str, Any]]) -> None:
    """Add cells to the plan beside the results, in one piece.

    Args:
        results: file of results.
        cells: key → settings.
    """
    path = plan_path(results)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(json.dumps({**read_plan(results), **cells}, indent=1) + "\n", encoding="utf-8")
    os.replace(temporary, path)


def read_plan(results: Path) -> dict[str, Any]:
    """Key → settings of all cells that were ever asked for; empty where there is no plan."""
    path = plan_path(results)
    if not path.exists():
        return {}
    plan: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return plan
