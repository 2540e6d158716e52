"""``hf-lwal hierarchy``: what the label vectors of a model say about its labels, as pictures and numbers."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..data.tables import quoting
from ..errors import CommandError, harmless
from ..modeling.files import staged, write_text_atomically
from .hierarchy_inputs import HierarchyOptions, Labels, read_labels
from .writing import writing

MOST_COMPARED = 5000
"""Labels that are compared with a reference, which needs several matrices of all pairs."""


@dataclass(frozen=True)
class Reference:
    """What label distances are compared with.

    Attributes:
        distances: (C, C), NaN for labels it does not know.
        groups: which colours the labels.
        facts: for the JSON file.
    """

    distances: NDArray[np.float64]
    groups: list[str | None]
    facts: dict[str, Any]


def run(options: HierarchyOptions) -> int:
    """Read, compare, draw and write; returns the exit code."""
    options.check()
    from ..hierarchy.tree import label_distances, neighbourhood
    from ..hierarchy.wordnet import WordNetMissingError
    from ..plots import require_matplotlib

    try:
        require_matplotlib()
        labels = read_labels(options)
        reference = find_reference(options, labels)
        nearest = neighbourhood(labels.vectors, options.top_k, options.metric).of(labels.names)
        measures = {} if reference is None else measure(label_distances(labels.vectors, options.metric), reference)
        with writing(options.output), staged(Path(options.output).expanduser()) as folder:
            pictures = draw(options, folder, labels, labels.groups if reference is None else reference.groups)
            _write_tables(folder, options, labels, nearest, {**measures, **(reference.facts if reference else {})})
    except (ImportError, ValueError, WordNetMissingError) as error:
        raise CommandError(str(error)) from error
    for line in summary(labels, nearest, measures, reference):
        print(harmless(" ".join(line.splitlines())))
    print(f"Written to {options.output}: {', '.join([*pictures, 'nearest_labels.csv', 'hierarchy.json'])}")
    return 0


def find_reference(options: HierarchyOptions, labels: Labels) -> Reference | None:
    """Distances in WordNet or between groups, where they were asked for."""
    from ..hierarchy.tree import cluster_names, group_distances, reference_clusters

    if options.reference is None:
        return None
    if len(labels.names) > MOST_COMPARED:
        raise CommandError(
            f"--reference compares all pairs of labels, of up to {MOST_COMPARED:,}, but there are "
            f"{len(labels.names):,}: leave it out, or give a CSV file with some of them."
        )
    if options.reference == "groups":
        if labels.groups is None:
            raise CommandError(
                "--reference groups needs groups: a column `group` in the CSV file, or --dataset with --group-column."
            )
        return Reference(group_distances(labels.groups), labels.groups, {"reference": "groups"})
    from ..hierarchy.wordnet import senses_of, wordnet_distances

    distances, synsets = wordnet_distances(labels.names, options.wordnet, senses_of(options.senses))
    facts = {"reference": "wordnet", "synsets": dict(zip(labels.names, synsets, strict=True))}
    if sum(synset is not None for synset in synsets) < 3:
        raise CommandError(
            "WordNet knows fewer than 3 of the labels as nouns: give synset names for them in a JSON file with "
            "--senses, or compare with groups."
        )
    return Reference(distances, cluster_names(reference_clusters(distances), labels.names), facts)


def measure(distances: NDArray[np.float64], reference: Reference) -> dict[str, float]:
    """Structure correlation and, for a reference with more than two levels, disparity of the maps."""
    from ..metrics import largest_correlation, mds_disparity, structure_correlation

    measures = {
        "structure_correlation": structure_correlation(distances, reference.distances),
        "largest_correlation": largest_correlation(reference.distances),
    }
    if reference.facts["reference"] == "wordnet":  # groups are a single step: their map would be arbitrary
        measures["mds_disparity"] = mds_disparity(distances, reference.distances)
    return measures


def draw(options: HierarchyOptions, folder: Path, labels: Labels, groups: list[str | None] | None) -> list[str]:
    """Write the three pictures; returns their file names."""
    from ..plots import plot_dendrogram, plot_label_distances, plot_label_map

    files = [f"{name}.{options.format}" for name in ("dendrogram", "distances", "map")]
    plot_dendrogram(labels.vectors, labels.names, folder / files[0], groups, options.metric)
    plot_label_distances(labels.vectors, labels.names, folder / files[1], options.metric)
    plot_label_map(labels.vectors, labels.names, folder / files[2], groups, options.metric)
    return files


def _write_tables(
    folder: Path,
    options: HierarchyOptions,
    labels: Labels,
    nearest: list[list[tuple[str, float]]],
    facts: dict[str, Any],
) -> None:
    """Write the nearest labels as CSV, and everything as JSON."""
    rows = [
        (name, rank, other, f"{far:.6g}")
        for name, others in zip(labels.names, nearest, strict=True)
        for rank, (other, far) in enumerate(others, start=1)
    ]
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n", quoting=quoting(labels.names))  # type: ignore[arg-type]
    writer.writerows([("label", "rank", "nearest", "distance"), *rows])
    write_text_atomically(folder / "nearest_labels.csv", table.getvalue())
    record = {
        "model": options.model,
        "label_vectors": labels.source,
        "metric": options.metric,
        "labels_without_vector": list(labels.missing),
        **{key: None if isinstance(value, float) and math.isnan(value) else value for key, value in facts.items()},
        "groups": None if labels.groups is None else dict(zip(labels.names, labels.groups, strict=True)),
        "nearest": {name: dict(others) for name, others in zip(labels.names, nearest, strict=True)},
    }
    write_text_atomically(folder / "hierarchy.json", json.dumps(record, indent=2, ensure_ascii=False) + "\n")


def summary(
    labels: Labels, nearest: list[list[tuple[str, float]]], measures: dict[str, float], reference: Reference | None
) -> list[str]:
    """What to print: how many labels, the closest pairs, the measures, and what was left out."""
    lines = [f"{len(labels.names)} labels of {labels.vectors.shape[1]} dimensions ({labels.source})"]
    if labels.missing:
        lines.append(f"Left out, since they have no vector: {_shortened(labels.missing)}")
    pairs = {frozenset((name, others[0][0])): others[0][1] for name, others in zip(labels.names, nearest, strict=True)}
    closest = sorted(pairs.items(), key=lambda pair: (pair[1], sorted(pair[0])))[:5]
    lines.append("Closest: " + "; ".join(f"{' – '.join(sorted(pair))} ({far:.3g})" for pair, far in closest))
    if reference is not None:
        unknown = [name for name, row in zip(labels.names, reference.distances, strict=True) if np.isnan(row).all()]
        if unknown:
            lines.append(f"Not compared, since the reference does not know them: {_shortened(unknown)}")
        lines.append(
            f"Structure correlation: {measures['structure_correlation']:.3f} (0 by chance; at most "
            f"{measures['largest_correlation']:.3f}, since the reference has equal distances)"
        )
    if "mds_disparity" in measures:
        lines.append(f"MDS disparity: {measures['mds_disparity']:.3f} (0 for the same map, 1 for unrelated ones)")
    return lines


def _shortened(names: Any, most: int = 10) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
