"""Pictures of a training run and of its label vectors: learning curves, a dendrogram, a heat map of distances.

Every function writes one PNG file. Figures are built without pyplot: no global state and no window system.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .hierarchy import Matrix, label_distances, leaf_order, linkage

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from .hierarchy import MatrixLike

INCHES_PER_LABEL = 0.15
"""Room for one label name at font size 7: 150 labels stay readable."""
LABEL_FONT_SIZE = 7
TREE_COLOUR = "#666666"


def require_matplotlib() -> None:
    """Fail with the install command when matplotlib is missing; commands call this before their long work."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ImportError('Plots need matplotlib, which is not installed: pip install "hf-lwal[plots]".') from error


def new_figure(width: float, height: float) -> tuple[Figure, Axes]:
    """Return a figure of the given size in inches with one set of axes."""
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.add_subplot()


def save_figure(figure: Figure, path: str | os.PathLike[str]) -> Path:
    """Write a figure as PNG: to a temporary name first, so that a crash never leaves half a picture."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".tmp")
    os.close(descriptor)
    try:
        figure.savefig(temporary, format="png", dpi=150)
        os.chmod(temporary, 0o644)  # mkstemp makes files that only their owner can read
        os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)
    return path


def plot_learning_curves(
    curves: Mapping[str, Sequence[tuple[float, float]]],
    path: str | os.PathLike[str],
    xlabel: str = "optimizer steps",
    ylabel: str = "accuracy (%)",
    title: str = "",
) -> Path:
    """Draw one line per method.

    Args:
        curves: for each method the points (step, value).
        path: PNG file to write.
        xlabel: name of the steps' axis.
        ylabel: name of the values' axis.
        title: heading, optional.
    """
    if not curves:
        raise ValueError("curves is empty: there is nothing to draw.")
    figure, axes = new_figure(7.0, 4.5)
    for name, points in curves.items():
        steps, values = zip(*points, strict=True) if points else ((), ())
        axes.plot(steps, values, marker="o", markersize=3, label=name)
    axes.set(xlabel=xlabel, ylabel=ylabel, title=title)
    axes.grid(alpha=0.3)
    axes.legend()
    return save_figure(figure, path)


def group_colours(groups: Sequence[str]) -> dict[str, Any]:
    """Give every group its own colour: a qualitative map for up to 10 groups, evenly spaced hues for more."""
    require_matplotlib()
    from matplotlib import colormaps

    names = list(dict.fromkeys(groups))
    spaced = colormaps["hsv"](np.linspace(0.0, 0.9, max(len(names), 1)))
    colours = colormaps["tab10"].colors if len(names) <= 10 else spaced  # type: ignore[attr-defined]
    return dict(zip(names, colours, strict=False))


def tree_segments(merges: Matrix, order: Sequence[int]) -> list[list[tuple[float, float]]]:
    """Lay out a tree whose leaf ``order[i]`` sits at height i: four points (distance, position) for each merge.

    Done here in a loop over the merges, since SciPy's own drawing recurses once per level and fails on deep trees.

    Args:
        merges: (C - 1, 4) as ``hierarchy.linkage`` returns them.
        order: the C leaves from bottom to top.
    """
    position = {leaf: float(place) for place, leaf in enumerate(order)}
    distance = dict.fromkeys(order, 0.0)
    segments = []
    for node, (left, right, height, _) in enumerate(merges, start=len(order)):
        left, right, height = int(left), int(right), float(height)
        corners = [(distance[left], left), (height, left), (height, right), (distance[right], right)]
        segments.append([(x, position[child]) for x, child in corners])
        position[node] = (position[left] + position[right]) / 2.0
        distance[node] = height
    return segments


def _check_names(what: str, names: Sequence[str], num_labels: int) -> None:
    """Raise unless there is one name per label."""
    if len(names) != num_labels:
        raise ValueError(f"{what} must have one entry per label vector: expected {num_labels}, got {len(names)}.")


def _colour_names(axes: Axes, names_groups: Sequence[str]) -> None:
    """Colour the label names by group and explain the colours in a legend."""
    from matplotlib.patches import Patch

    colours = group_colours(sorted(set(names_groups)))
    for tick, group in zip(axes.get_yticklabels(), names_groups, strict=True):
        tick.set_color(colours[group])
    patches = [Patch(color=colour, label=group) for group, colour in colours.items()]
    axes.figure.legend(handles=patches, loc="outside lower center", ncols=min(5, len(patches)), fontsize=8)


def plot_dendrogram(
    label_vectors: MatrixLike,
    names: Sequence[str],
    path: str | os.PathLike[str],
    groups: Sequence[str] | None = None,
    metric: str = "euclidean",
    title: str = "",
) -> Path:
    """Draw the hierarchy of the labels (average linkage): the further right two branches meet, the less alike.

    Args:
        label_vectors: (C, D) tensor or array.
        names: the C label names.
        path: PNG file to write.
        groups: for each label the group it belongs to, which colours its name; shows whether groups form branches.
        metric: distance between label vectors, see ``hierarchy.label_distances``.
        title: heading, optional.
    """
    distances = label_distances(label_vectors, metric)
    _check_names("names", names, len(distances))
    merges = linkage(distances)
    order = leaf_order(merges)
    figure, axes = new_figure(8.0, 1.5 + INCHES_PER_LABEL * len(names))
    from matplotlib.collections import LineCollection

    axes.add_collection(LineCollection(tree_segments(merges, order), colors=TREE_COLOUR, linewidths=0.8))
    axes.set(xlim=(0.0, 1.02 * max(merges[-1, 2], 1e-12)), ylim=(-0.7, len(names) - 0.3), title=title)
    axes.set_xlabel(f"{metric} distance between label vectors")
    axes.set_yticks(range(len(names)), [names[leaf] for leaf in order], fontsize=LABEL_FONT_SIZE)
    axes.spines[["top", "left", "right"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    if groups is not None:
        _check_names("groups", groups, len(distances))
        _colour_names(axes, [groups[leaf] for leaf in order])
    return save_figure(figure, path)


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
        path: PNG file to write.
        metric: distance between label vectors, see ``hierarchy.label_distances``.
        title: heading, optional.
    """
    distances = label_distances(label_vectors, metric)
    _check_names("names", names, len(distances))
    order = leaf_order(linkage(distances))
    side = 3.0 + INCHES_PER_LABEL * len(names)
    figure, axes = new_figure(side + 1.0, side)
    image = axes.imshow(distances[np.ix_(order, order)], cmap="viridis")
    ordered = [names[leaf] for leaf in order]
    axes.set_xticks(range(len(names)), ordered, fontsize=LABEL_FONT_SIZE, rotation=90)
    axes.set_yticks(range(len(names)), ordered, fontsize=LABEL_FONT_SIZE)
    axes.set_title(title)
    figure.colorbar(image, ax=axes, shrink=0.6, label=f"{metric} distance")
    return save_figure(figure, path)
