"""Distances between all labels at a glance: as a heat map, and as places on a map."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..hierarchy.tree import Matrix, as_matrix, label_distances, leaf_order, linkage
from ..metrics import map_positions
from .figures import (
    GREY,
    INCHES_PER_LABEL,
    LABEL_FONT_SIZE,
    Groups,
    add_group_legend,
    check_names,
    drawn_labels,
    drawn_name,
    evenly_spaced,
    group_colours,
    metric_name,
    new_figure,
    room_beyond,
    save_figure,
    sorted_groups,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ..hierarchy.tree import MatrixLike

FEW_LABELS = 30
"""With no more labels than these, a map has room for larger names."""
MOST_ROWS = 200
"""Names along a heat map, which is then 33 inches wide; of more labels, every second or third is named."""
LEAST_LINE = 8.0
"""Dots between a name and its point from which on a line joins them."""
LINES: dict[str, Any] = {"colors": GREY, "linewidths": 0.4, "alpha": 0.7}
MOST_ON_MAP = 150
"""Labels on a map; with more of them the names would hide each other, and to place them takes minutes."""


def plot_label_distances(
    label_vectors: MatrixLike,
    names: Sequence[str],
    path: str | os.PathLike[str],
    metric: str = "euclidean",
    title: str = "",
) -> Path:
    """Draw the distances between labels as a heat map, rows in the order of the hierarchy: blocks are groups.

    Args:
        label_vectors: (C, D) tensor or array.
        names: the C label names.
        path: file to write.
        metric: distance between label vectors, see ``hierarchy.label_distances``.
        title: heading, optional.
    """
    vectors = as_matrix(label_vectors)
    check_names("names", names, len(vectors))
    kept, title = drawn_labels(len(vectors), title)
    distances = label_distances(vectors[kept], metric)
    order = leaf_order(linkage(distances))
    named = evenly_spaced(len(kept), MOST_ROWS)
    shown = [drawn_name(names[kept[order[place]]]) for place in named]
    side = 3.0 + INCHES_PER_LABEL * len(named) + room_beyond(shown, usual=1.5)
    figure, axes = new_figure(side + 1.0, side)
    ordered = distances[np.ix_(order, order)].astype(np.float32)
    np.fill_diagonal(ordered, np.nan)  # every label's 0 to itself would leave the others a part of the colours
    image = axes.imshow(ordered, cmap="viridis", interpolation="nearest")
    axes.set_xticks(named, shown, fontsize=LABEL_FONT_SIZE, rotation=90)
    axes.set_yticks(named, shown, fontsize=LABEL_FONT_SIZE)
    axes.set_title(title)
    width = INCHES_PER_LABEL * len(named) + 1.0  # about that of the map, so that the bar is as thick beside any
    bar = axes.inset_axes((1.0 + 0.2 / width, 0.2, 0.25 / width, 0.6))
    figure.colorbar(image, cax=bar, label=f"{metric_name(metric)} distance")
    return save_figure(figure, path)


def plot_label_map(
    label_vectors: MatrixLike,
    names: Sequence[str],
    path: str | os.PathLike[str],
    groups: Groups | None = None,
    metric: str = "euclidean",
    title: str = "",
) -> Path:
    """Draw the labels in the plane, as far apart as their distances allow (metric MDS).

    Names are moved off each other; a thin line leads from a name that moved to its point.

    Args:
        label_vectors: (C, D) tensor or array.
        names: the C label names.
        path: file to write.
        groups: for each label the group it belongs to, which colours its point and name.
        metric: distance between label vectors, see ``hierarchy.label_distances``.
        title: heading, optional.
    """
    vectors = as_matrix(label_vectors)
    check_names("names", names, len(vectors))
    colours: list[Any] = [GREY] * len(names)
    if groups is not None:
        check_names("groups", groups, len(vectors))
        of_group = group_colours(sorted_groups(groups))
        colours = [of_group[group] for group in groups]
    kept, title = drawn_labels(len(vectors), title, MOST_ON_MAP)
    names, colours = [drawn_name(names[label]) for label in kept], [colours[label] for label in kept]
    places = map_positions(label_distances(vectors[kept], metric))  # (C, 2)
    side = 4.5 + 0.9 * np.sqrt(len(names))
    figure, axes = new_figure(side, side)
    axes.scatter(places[:, 0], places[:, 1], c=colours, s=14)
    axes.set(title=title, xticks=[], yticks=[], aspect="equal")
    axes.margins(0.1)
    axes.spines[:].set_visible(False)  # names may cross the edge
    axes.set_xlabel(f"map of {metric_name(metric)} distances; axes have no meaning of their own", fontsize=8)
    if groups is not None:
        add_group_legend(figure, groups)
    figure.draw_without_rendering()  # fixes the size of the axes, which the names are laid out in
    figure.set_layout_engine("none")
    _place_names(axes, places, names, colours)
    return save_figure(figure, path, tight=True)  # a long name may stick out of the page


def _place_names(axes: Axes, places: Matrix, names: Sequence[str], colours: Sequence[Any]) -> None:
    """Write each name beside its point without covering other names and points."""
    try:
        from adjustText import adjust_text
    except ImportError as error:
        raise ImportError('Maps need adjustText, which is not installed: pip install "hf-lwal[plots]".') from error
    from matplotlib.collections import LineCollection

    size = LABEL_FONT_SIZE if len(names) > FEW_LABELS else LABEL_FONT_SIZE + 2
    beside = 0.008 * np.ptp(axes.get_xlim())
    texts = [
        axes.text(x + beside, y, name, fontsize=size, color=colour, va="center")
        for (x, y), name, colour in zip(places, names, colours, strict=True)
    ]
    adjust_text(
        texts,
        *places.T,
        target_x=places[:, 0],
        target_y=places[:, 1],
        ax=axes,
        expand=(1.03, 1.15),
        iter_lim=25,  # without a number of steps it stops after a second: another map on a slower machine
        prevent_crossings=False,  # quadratic in Python, and lines this short cross nothing
        ensure_inside_axes=False,  # else names at the edge are pushed onto each other
    )
    boxes = np.array([text.get_window_extent().get_points() for text in texts])  # (C, 2, 2) corners x, y
    shifts = heights_apart(boxes)
    boxes[:, :, 1] += shifts[:, None]
    to_data = axes.transData.inverted()
    for text, shift in zip(texts, shifts, strict=True):
        x, y = axes.transData.transform(text.get_position())
        text.set_position(tuple(to_data.transform((x, y + shift))))
    points = axes.transData.transform(places)
    ends = np.clip(points, boxes[:, 0], boxes[:, 1])
    lines = np.stack([points, ends], axis=1)[np.linalg.norm(points - ends, axis=1) > LEAST_LINE]
    joining = LineCollection(list(to_data.transform(lines.reshape(-1, 2)).reshape(-1, 2, 2)), **LINES)
    axes.add_collection(joining, autolim=False)  # else the axes move under the names


def heights_apart(boxes: NDArray[np.float64]) -> NDArray[np.float64]:
    """By how much to move boxes up, or down, so that no two of them cover each other.

    Where labels are clustered tightly, adjustText leaves names on top of each other: it stops after some steps.

    Args:
        boxes: (C, 2, 2) lower left and upper right corners.

    Returns:
        (C,) the mean of pushing up, from the lowest box, and of pushing down, from the highest: in either, and so in
        their mean, every box is as far above the next lower one beside it as it has to be.
    """
    (left, low), (right, high) = boxes[:, 0].T, boxes[:, 1].T
    beside = np.minimum(right[:, None], right) > np.maximum(left[:, None], left)  # (C, C)
    middle = (low + high) / 2
    apart = np.where(beside, (high - low)[:, None] / 2 + (high - low) / 2, -np.inf)  # (C, C)
    order = np.argsort(middle, kind="stable")
    up, down = middle.copy(), middle.copy()
    for place, box in enumerate(order):
        below = order[:place]
        up[box] = max(up[box], (up[below] + apart[box, below]).max(initial=-np.inf))
    for place, box in enumerate(order[::-1]):
        above = order[::-1][:place]
        down[box] = min(down[box], (down[above] - apart[box, above]).min(initial=np.inf))
    return (up + down) / 2 - middle
