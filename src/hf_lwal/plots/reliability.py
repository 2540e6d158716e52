"""Whether probabilities say how often they are right, as a picture."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..metrics import Reliability
from .curves import CYCLE, DASHES, MARKERS
from .figures import GREY, new_figure, save_figure

SMALLEST, LARGEST = 6.0, 120.0
"""Square points of a bin's marker: of an empty one, and what one with all rows has more."""


def plot_reliability(curves: Mapping[str, Reliability], path: str | os.PathLike[str], title: str = "") -> Path:
    """Draw accuracy over confidence (a reliability diagram), and below it how many rows have that confidence.

    On the dotted diagonal probabilities say how often they are right; below it they are too sure. The larger a point
    the more rows it stands for: small ones are chance.

    Args:
        curves: name to what `metrics.reliability_curve` found; the legend says its calibration error.
        path: file to write.
        title: heading, optional.
    """
    curves = {name: found for name, found in curves.items() if found.counts.sum()}
    if not curves:
        raise ValueError("curves is empty: there are no rows to draw.")
    figure, whole = new_figure(5.5, 6.0)
    whole.remove()
    axes, shares = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    axes.plot([0.0, 1.0], [0.0, 1.0], ":", color=GREY, linewidth=1.5)
    for place, (name, found) in enumerate(curves.items()):
        style: dict[str, Any] = {"color": CYCLE[place % len(CYCLE)], "linestyle": DASHES[place % len(DASHES)]}
        filled, share = found.counts > 0, found.counts / found.counts.sum()
        points = found.confidence[filled], found.accuracy[filled]
        label = f"{name}: error {100.0 * found.error:.1f} %"
        marker = MARKERS[place % len(MARKERS)]
        axes.plot(*points, marker=marker, markersize=2, linewidth=1.0, alpha=0.7, label=label, **style)
        sizes = SMALLEST + LARGEST * np.sqrt(share[filled])
        axes.scatter(*points, s=sizes, color=style["color"], marker=marker, zorder=3)
        shares.stairs(100.0 * share, np.linspace(0.0, 1.0, len(share) + 1), linewidth=1.5, **style)
    axes.set(ylabel="share that is right", title=title, xlim=(0.0, 1.02), ylim=(-0.02, 1.03))
    figure.legend(loc="outside lower center", fontsize=9, handlelength=4, markerscale=3)
    shares.set(xlabel="probability of the likeliest label", ylabel="rows, %")
    for part in (axes, shares):
        part.grid(alpha=0.3)
    return save_figure(figure, path)
