"""What happens over training: accuracy per method, and how far label vectors move."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from ..metrics import steps_to_accuracy
from .figures import GREY, drawn_name, drawn_text, new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CYCLE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe and Ito's colours, which people who see no red or no green tell apart, without yellow and black."""
DASHES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<")
REFERENCE = {"color": "black", "linestyle": (0, (4, 2)), "linewidth": 2.0, "marker": "o", "zorder": 3}
"""On top, and with gaps, in which a line below it shows."""
LEAST_PERCENT = 10.0
"""Height of a picture of percentages at least: a row more or less of a small data set must not fill it."""
LEGEND_INSIDE = 4
"""Methods that fit into a legend among the curves; more get theirs at the side."""


def plot_learning_curves(
    curves: Mapping[str, Sequence[tuple[float, float]]],
    path: str | os.PathLike[str],
    xlabel: str = "optimizer steps",
    ylabel: str = "accuracy (%)",
    title: str = "",
    reference: str | None = None,
    spread: Mapping[str, Sequence[float]] | None = None,
) -> Path:
    """Draw one line per method; with a reference, where each method reaches that one's best value.

    Args:
        curves: for each method the points (step, value).
        path: file to write.
        xlabel: name of the steps' axis.
        ylabel: name of the values' axis.
        title: heading, optional.
        reference: one of the methods, drawn in black over the others. A dotted line marks its best value, a ring the
            first point of each method that reaches it (figure 2 of the paper).
        spread: for some methods the standard deviation at each of their points, drawn as a band.
    """
    if not curves:
        raise ValueError("curves is empty: there is nothing to draw.")
    if reference is not None and not curves.get(reference):
        raise ValueError(f"reference must be one of the curves with points, {', '.join(curves)}, got {reference!r}.")
    outside = len(curves) > LEGEND_INSIDE
    figure, axes = new_figure(9.5 if outside else 7.0, 4.5)
    colours = _draw_lines(axes, curves, spread or {}, reference)
    note = _leave_out_untrained(axes, curves)
    if "%" in ylabel:
        _least_height(axes)
    _whole_steps(axes)
    if reference is not None:
        _mark_target(axes, curves, reference, colours)
    axes.set(xlabel="\n".join(filter(None, [xlabel, note])), ylabel=ylabel, title=title)
    axes.grid(alpha=0.3)
    if outside:
        figure.legend(loc="outside right center", fontsize=8, handlelength=4)
    else:
        axes.legend(handlelength=4)
    return save_figure(figure, path)


def _draw_lines(
    axes: Axes,
    curves: Mapping[str, Sequence[tuple[float, float]]],
    spread: Mapping[str, Sequence[float]],
    reference: str | None,
) -> dict[str, Any]:
    """Draw lines and bands; returns the colour of each method."""
    colours = {}
    styles = _styles()
    for name, points in curves.items():
        steps, values = np.asarray(points, dtype=np.float64).reshape(-1, 2).T
        style = REFERENCE if name == reference else next(styles)
        (line,) = axes.plot(steps, values, markersize=4, markeredgewidth=0.0, label=drawn_text(name), **style)
        colours[name] = line.get_color()
        if name in spread:
            deviation = np.asarray(spread[name], dtype=np.float64)
            axes.fill_between(steps, values - deviation, values + deviation, color=line.get_color(), alpha=0.15, lw=0)
    return colours


def _styles() -> Iterator[dict[str, Any]]:
    """How lines are drawn: no two of 48 alike, and none told from another by colour alone.

    Neighbours differ in their dashes, too: where one lies on another, that one shows in the gaps.
    """
    for number in itertools.count():
        yield {
            "color": CYCLE[number % len(CYCLE)],
            "linestyle": DASHES[(number + number // len(CYCLE)) % len(DASHES)],
            "marker": MARKERS[(number + number // 24) % len(MARKERS)],
        }


def _whole_steps(axes: Axes) -> None:
    """There is no half step."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _leave_out_untrained(axes: Axes, curves: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """Cut off first points that lie so far below all others that they would take more than half of the picture.

    An untrained model's accuracy says little, and what methods differ in would be a few pixels high.

    Returns:
        A sentence for readers; empty where nothing was cut off.
    """
    trained = [value for points in curves.values() for _, value in list(points)[1:]]
    if not trained:
        return ""
    low, high = min(trained), max(trained)
    lowest = min(points[0][1] for points in curves.values() if points)
    if not low - lowest > high - low > 0.0:
        return ""
    axes.set_ylim(low - 0.05 * (high - low), high + 0.1 * (high - low))
    return f"(cut below: before the first step the lowest is at {lowest:.3g})"


def _least_height(axes: Axes) -> None:
    """Show at least `LEAST_PERCENT`, around what is drawn and as far as there are percentages."""
    low, high = axes.get_ylim()
    highest = max(100.0, float(axes.dataLim.y1)) + 0.05 * LEAST_PERCENT
    high = min(high, highest)
    missing = LEAST_PERCENT - (high - low)
    if missing > 0.0:
        above = min(missing / 2, highest - high)
        axes.set_ylim(low - (missing - above), high + above)


def _mark_target(
    axes: Axes, curves: Mapping[str, Sequence[tuple[float, float]]], reference: str, colours: Mapping[str, Any]
) -> None:
    """Draw the reference's best value, and where each method first reaches it."""
    target = max(value for _, value in curves[reference])
    axes.axhline(
        target, color=GREY, linestyle=":", linewidth=1.0, label=drawn_text(f"best of {reference}: {target:.1f}")
    )
    bottom = axes.get_ylim()[0]
    at = Counter[float]()
    for name, points in curves.items():
        reached = steps_to_accuracy(points, target)
        if reached is None:
            continue
        value = next(value for step, value in points if step == reached)
        axes.plot([reached, reached], [bottom, value], ":", color=colours[name], linewidth=1.0)
        size = max(15 - 4 * at[reached], 7)  # rings around one another where several arrive together
        axes.plot(reached, value, "o", color=colours[name], markersize=size, fillstyle="none", markeredgewidth=1.5)
        at[reached] += 1
    axes.set_ylim(bottom=bottom)


def logged_drift(log_history: Iterable[Mapping[str, Any]]) -> list[tuple[float, float]]:
    """The points (step, drift) that ``LwALTrainer`` logged: ``logged_drift(trainer.state.log_history)``."""
    return [(float(entry["step"]), float(entry["label_drift"])) for entry in log_history if "label_drift" in entry]


def plot_label_drift(
    drift: Sequence[tuple[float, ArrayLike]], path: str | os.PathLike[str], title: str = "", top: Sequence[str] = ()
) -> Path:
    """Draw how far label vectors move between one snapshot and the next.

    Args:
        drift: points (step, drift) from `logged_drift`; or (step, drift of each label (C,)) from
            ``hierarchy.label_drift``, of which the mean and the range between the 10th and 90th percentile are drawn.
        path: file to write.
        title: heading, optional.
        top: names of the C labels, when the three that move most shall be named.
    """
    if not drift:
        raise ValueError("drift is empty: log at least once, or give two snapshots of the label vectors.")
    steps = np.asarray([step for step, _ in drift], dtype=np.float64)  # (T,)
    values = np.stack([np.atleast_1d(np.asarray(moved, dtype=np.float64)) for _, moved in drift])  # (T, 1 or C)
    figure, axes = new_figure(7.0, 4.0)
    styles = _styles()
    mean = next(styles)
    axes.plot(steps, 100.0 * values.mean(axis=1), **mean, markersize=3, linewidth=2.0, label="mean")
    if values.shape[1] > 1:
        low, high = 100.0 * np.percentile(values, (10, 90), axis=1)
        band = "10th to 90th percentile of the labels"
        axes.fill_between(steps, low, high, color=mean["color"], alpha=0.2, lw=0, label=band)
        for label in np.argsort(-values.sum(axis=0), kind="stable")[: 3 if len(top) else 0]:
            own = {**next(styles), "linestyle": "--"}
            axes.plot(
                steps, 100.0 * values[:, label], **own, markersize=3, linewidth=1.0, label=drawn_name(top[label])
            )
        figure.legend(loc="outside lower center", ncols=2, fontsize=8, handlelength=4)
    axes.set(xlabel="optimizer steps", ylabel="moved (% of the distance\nbetween two labels)", title=title)
    axes.set_ylim(bottom=0.0)
    _whole_steps(axes)
    axes.grid(alpha=0.3)
    return save_figure(figure, path)
