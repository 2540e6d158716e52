"""``hf-lwal report``: tables and pictures of what ``hf-lwal compare`` wrote."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..errors import CommandError
from ..modeling.files import staged, write_text_atomically
from .flags import argument, option
from .writing import check_output_folder, writing


@dataclass(frozen=True)
class ReportOptions:
    """Turn results of `hf-lwal compare` into tables (Markdown, CSV, LaTeX) and test curves (PNG, SVG)."""

    results: str = argument("file of results, one JSON line per training")
    output: str = option("report", "folder for the tables and pictures")
    curves: bool = option(True, "draw test curves, which needs matplotlib")


def run(options: ReportOptions) -> int:
    """Write the report; returns the exit code."""
    from ..bench.figures import draw_curves, file_name
    from ..bench.report import csv_text, latex, markdown
    from ..bench.results import read_lines, read_plan
    from ..bench.summary import tables

    source, folder = Path(options.results).expanduser(), check_output_folder(options.output)
    plan = read_plan(source)
    found = tables(read_lines(source) if source.exists() or not plan else [], plan)
    if not found:
        raise CommandError(f"{options.results!r} holds no results: run `hf-lwal compare` with --output first.")
    pictures = {}
    if options.curves:
        from ..plots import require_matplotlib

        try:
            require_matplotlib()
        except ImportError as error:
            raise CommandError(f"{error} Or leave the pictures out with --no-curves.") from error
    with writing(folder), staged(folder) as new:
        if options.curves:
            pictures = {table.setting: f"{file_name(table)}.png" for table in found if draw_curves(table, new)}
        texts = {"results.md": markdown(found, pictures), "results.csv": csv_text(found), "results.tex": latex(found)}
        for name, text in texts.items():
            write_text_atomically(new / name, text)
    curves = "1 picture of curves" if len(pictures) == 1 else f"{len(pictures):,} pictures of curves"
    print(f"Written to {folder}: results.md, results.csv, results.tex and {curves}.")
    return 0
