"""Test curves of a table's methods, each at its best learning rate, against the tuned reference."""

from __future__ import annotations

import hashlib
import re
import statistics
from collections.abc import Sequence
from pathlib import Path

from ..plots import plot_learning_curves
from ..plots.figures import drawn_text
from .methods import REFERENCE
from .summary import Run, Table

LONGEST = 200
"""Characters of a picture's name, of which file systems take 255 with its ending."""


def draw_curves(table: Table, folder: Path) -> list[Path]:
    """Draw the mean curves over seeds with their standard deviation, as PNG and SVG.

    Returns:
        The files; none where nothing ran.
    """
    entries = [entry for entry in map(table.tuned, table.methods) if entry.runs]
    if not entries:
        return []
    names = {entry.method: f"{entry.method} (lr {entry.learning_rate:g})" for entry in entries}
    curves = {names[entry.method]: mean_curve(entry.runs) for entry in entries}
    bands = {names[entry.method]: spread_of(entry.runs) for entry in entries if len(entry.runs) > 1}
    name = file_name(table)
    return [
        plot_learning_curves(
            curves,
            folder / f"{name}.{ending}",
            ylabel="test accuracy (%)",
            title=drawn_text(str(table.setting)),
            reference=names.get(REFERENCE),
            spread=bands,
        )
        for ending in ("png", "svg")
    ]


def file_name(table: Table) -> str:
    """A file name that tells the settings apart.

    It is the setting's text with everything but letters and digits as underscores.
    """
    setting = table.setting
    rows = "".join(f" {size}" for size in (setting.train_rows, setting.test_rows) if size is not None)
    source = "" if setting.source == "data root" else f" {setting.source}"
    evaluations = "" if setting.evaluations is None else f" {setting.evaluations} evaluations"
    name = re.sub(r"[^A-Za-z0-9]+", "_", f"curves {setting}{source}{rows}{evaluations}")
    return name if len(name) <= LONGEST else f"{name[:LONGEST]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def mean_curve(runs: Sequence[Run]) -> list[tuple[float, float]]:
    """Mean over seeds, evaluation by evaluation."""
    return [
        (statistics.fmean(x for x, _ in points), statistics.fmean(accuracy for _, accuracy in points))
        for points in zip(*(run.curve for run in runs), strict=True)
    ]


def spread_of(runs: Sequence[Run]) -> list[float]:
    """Standard deviation over seeds, evaluation by evaluation."""
    return [
        statistics.stdev([accuracy for _, accuracy in points])
        for points in zip(*(run.curve for run in runs), strict=True)
    ]
