"""``hf-lwal report``: tables and pictures of what ``hf-lwal compare`` wrote."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ..errors import CommandError
from ..flags import argument, option


@dataclass(frozen=True)
class ReportOptions:
    """Turn results of `hf-lwal compare` into tables (Markdown, CSV, LaTeX) and test curves (PNG, SVG)."""

    results: str = argument("file of results, one JSON line per training")
    output: str = option("report", "folder for the tables and pictures")
    curves: bool = option(True, "draw test curves, which needs matplotlib")


def run(options: ReportOptions) -> int:
    """Write the report; returns the exit code."""
    from ..benchmark.report import csv_text, latex, markdown
    from ..benchmark.results import read_lines, read_plan
    from ..benchmark.summary import tables

    source, folder = Path(options.results).expanduser(), Path(options.output).expanduser()
    if folder.exists() and not folder.is_dir():
        raise CommandError(f"--output must be a folder, but {options.output!r} is a file.")
    plan = read_plan(source)
    found = tables(read_lines(source) if source.exists() or not plan else [], plan)
    if not found:
        raise CommandError(f"{options.results!r} holds no results: run `hf-lwal compare` with --output first.")
    folder.mkdir(parents=True, exist_ok=True)
    pictures = {}
    if options.curves:
        from ..benchmark.figures import draw_curves, file_name
        from ..plots import require_matplotlib

        try:
            require_matplotlib()
        except ImportError as error:
            raise CommandError(f"{error} Or leave the pictures out with --no-curves.") from error
        pictures = {table.setting: f"{file_name(table)}.png" for table in found if draw_curves(table, folder)}
    for name, text in (("results.md", markdown(found, pictures)), ("results.csv", csv_text(found))):
        write_text(folder / name, text)
    write_text(folder / "results.tex", latex(found))
    print(f"Written to {folder}: results.md, results.csv, results.tex and {len(pictures)} pictures of curves.")
    return 0


def write_text(path: Path, text: str) -> None:
    """Write a text file in one piece."""
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
