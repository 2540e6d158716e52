"""The hierarchy of the labels as a tree."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..hierarchy.tree import Matrix, as_matrix, label_distances, leaf_order, linkage
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
    from ..hierarchy.tree import MatrixLike

MOST_NAMES = 600
"""Beside a tree of 90 inches; of more labels, every second or third is named."""


def tree_segments(merges: Matrix, order: Sequence[int]) -> list[list[tuple[float, float]]]:
    """Lay out a tree whose leaf ``order[i]`` sits at height i: four points (distance, position) for each merge.

    Done here in a loop over the merges, since SciPy's own drawing recurses once per level and fails on deep trees.

    Args:
        merges: (C - 1, 4) as ``hierarchy.linkage`` returns them.
        order: the C leaves by their places.
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


def plot_dendrogram(
    label_vectors: MatrixLike,
    names: Sequence[str],
    path: str | os.PathLike[str],
    groups: Groups | None = None,
    metric: str = "euclidean",
    title: str = "",
) -> Path:
    """Draw the hierarchy of the labels (average linkage): the further right two branches meet, the less alike.

    From top to bottom in the order of the heat map's rows.

    Args:
        label_vectors: (C, D) tensor or array.
        names: the C label names.
        path: file to write.
        groups: for each label the group it belongs to, which colours its name: a known grouping, or the clusters of a
            reference (``hierarchy.reference_clusters``, figure 3 of the paper). Shows whether groups form branches.
        metric: distance between label vectors, see ``hierarchy.label_distances``.
        title: heading, optional.
    """
    vectors = as_matrix(label_vectors)
    check_names("names", names, len(vectors))
    if groups is not None:
        check_names("groups", groups, len(vectors))
    kept, title = drawn_labels(len(vectors), title)
    names = [drawn_name(names[label]) for label in kept]
    distances = label_distances(vectors[kept], metric)
    merges = linkage(distances)
    order = leaf_order(merges)
    width = 8.0 + room_beyond(names, usual=3.0)
    figure, axes = new_figure(width, 1.5 + INCHES_PER_LABEL * min(len(names), MOST_NAMES))
    from matplotlib.collections import LineCollection

    axes.add_collection(LineCollection(tree_segments(merges, order), colors=GREY, linewidths=0.8))
    axes.set(xlim=(0.0, 1.02 * max(merges[-1, 2], 1e-12)), ylim=(len(names) - 0.3, -0.7), title=title)
    axes.set_xlabel(f"{metric_name(metric)} distance between label vectors")
    named = evenly_spaced(len(names), MOST_NAMES)
    axes.set_yticks(named, [names[order[place]] for place in named], fontsize=LABEL_FONT_SIZE)
    axes.spines[["top", "left", "right"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    if groups is not None:
        colours = group_colours(sorted_groups(groups))
        for tick, place in zip(axes.get_yticklabels(), named, strict=True):
            tick.set_color(colours[groups[kept[order[place]]]])
        add_group_legend(figure, groups)
    return save_figure(figure, path)
