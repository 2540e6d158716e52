"""``label_table.json``: the label table for people to read. The numbers that count are in the safetensors file."""

from __future__ import annotations

import json
import logging
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .files import write_text_atomically
from .stored_files import changed_files, checksums, read_json

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger(__name__)

FILE_NAME = "label_table.json"
SCHEMA_VERSION = 1
NEIGHBOURS = 5
MOST_WITH_NEIGHBOURS = 4000
"""Of more labels the nearest are not listed: to find them takes time that grows with the square of their number."""
BLOCK = 2**21
"""Distances in memory at a time: 8 MiB."""


def label_table_facts(
    label_vectors: Tensor, counts: Tensor, names: dict[int, str], radii: Tensor | None = None
) -> dict[str, Any]:
    """Describe a label table: per label its name, id, number of training rows and nearest labels.

    The nearest are those of tables of up to `MOST_WITH_NEIGHBOURS` labels; in larger ones every list is empty.

    Args:
        label_vectors: (C, D).
        counts: (C,) int64.
        names: id to name.
        radii: (C,) how far rows of a class usually are from its mean, in cosine distance; 0 where that is not known.
    """
    amount = min(NEIGHBOURS, len(names) - 1) if len(names) <= MOST_WITH_NEIGHBOURS else 0
    others_of, far_of = _nearest(label_vectors, amount)
    known = [None] * len(names) if radii is None else [radius or None for radius in radii.tolist()]
    rows = zip(others_of, far_of, counts.tolist(), known, strict=True)
    labels = [
        {
            "id": index,
            "name": names[index],
            "count": count,
            "radius": _rounded(radius),
            "nearest": [
                {"name": names[other], "distance": _rounded(distance)}
                for other, distance in zip(others, far, strict=True)
            ],
        }
        for index, (others, far, count, radius) in enumerate(rows)
    ]
    return {"schema_version": SCHEMA_VERSION, "embedding_dim": label_vectors.shape[1], "labels": labels}


def _nearest(label_vectors: Tensor, amount: int) -> tuple[list[list[int]], list[list[float]]]:
    """For each label the ids of its nearest others, and their distances; (C, C) never exists as a whole."""
    from .functional import pairwise_distances  # what the rest of this file does needs no torch

    ids: list[list[int]] = []
    distances: list[list[float]] = []
    if not amount:
        return [[]] * len(label_vectors), [[]] * len(label_vectors)
    rows = max(BLOCK // len(label_vectors), 1)
    for start in range(0, len(label_vectors), rows):
        block = pairwise_distances(label_vectors[start : start + rows], label_vectors)  # (rows, C)
        block[:, start : start + rows].fill_diagonal_(float("inf"))  # a label is not its own neighbour
        nearest = block.topk(amount, largest=False)
        ids += nearest.indices.tolist()
        distances += nearest.values.tolist()
    return ids, distances


def _rounded(number: float | None) -> float | None:
    """JSON knows no infinity and no NaN."""
    return round(number, 4) if number is not None and math.isfinite(number) else None


def write_label_table_file(
    directory: str | os.PathLike[str],
    label_vectors: Tensor,
    counts: Tensor,
    names: dict[int, str],
    radii: Tensor | None = None,
) -> None:
    """Write ``label_table.json`` into ``directory``, whole or not at all; arguments as in `label_table_facts`."""
    facts = label_table_facts(label_vectors.float().cpu(), counts.cpu(), names, None if radii is None else radii.cpu())
    facts = {"schema_version": facts.pop("schema_version"), "checksums": checksums(directory), **facts}
    write_text_atomically(Path(directory) / FILE_NAME, _as_text(facts) + "\n")


def _as_text(facts: dict[str, Any]) -> str:
    """JSON with one value per line; of very many labels one label per line, without loops of Python."""
    encoder = json.JSONEncoder(ensure_ascii=False)
    if len(facts["labels"]) <= MOST_WITH_NEIGHBOURS:
        return json.dumps(facts, indent=2, ensure_ascii=False)
    labels = ",\n".join(map(encoder.encode, facts["labels"]))
    return encoder.encode(facts | {"labels": []}).removesuffix("]}") + f"\n{labels}\n]}}"


def check_label_table_file(directory: str | os.PathLike[str], counts: Tensor, names: dict[int, str]) -> None:
    """Warn once when a local ``label_table.json`` does not describe the loaded table, which wins."""
    path = Path(directory) / FILE_NAME
    if not path.exists():
        return
    recorded = None
    try:
        content = read_json(path)
        described = [(entry["id"], entry["name"], entry["count"]) for entry in content["labels"]]
        recorded = content.get("checksums")
    except (OSError, KeyError, TypeError):
        described = None
    if described != [(index, names[index], count) for index, count in enumerate(counts.tolist())]:
        logger.warning(
            "%s does not describe the label table in the weights file; the weights count, and the next "
            "save_pretrained rewrites it.",
            path,
        )
    elif changed := changed_files(directory, recorded):
        logger.warning(
            "%s in %s is no longer what was saved with this label table, so predictions may be others than they were "
            "then: where nobody changed it on purpose, copy or download the model again. The next save_pretrained "
            "takes it as it is.",
            " and ".join(changed),
            directory,
        )
