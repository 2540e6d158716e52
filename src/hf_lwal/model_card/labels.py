"""What a card says about the label table, from a model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ..hierarchy.tree import neighbourhood
from .facts import LabelFacts

ROWS = 12
PAIRS = 5
NEIGHBOURS = 3
SETTINGS = (
    "preset",
    "space",
    "refresh_every",
    "warmup_steps",
    "memory",
    "offset",
    "reanchor",
    "follow_drift",
    "learn_scale",
    "repel_weight",
    "initial_labels",
    "initial_head",
)


def label_facts(model: Any) -> LabelFacts:
    """Facts about the label table of an LwAL model.

    Args:
        model: an `LwALPreTrainedModel`; its ``label_vectors`` are taken as they are.
    """
    table, config = model.label_table, model.config
    names = list(config.label_names.values())
    vectors, counts = table.label_vectors.detach().float().cpu(), table.counts.tolist()
    seen = [index for index, count in enumerate(counts) if count > 0]
    known = seen or list(range(len(names)))  # fixed label vectors count no rows
    facts = LabelFacts(
        total=len(names),
        embedding_dim=vectors.shape[1],
        scale=table.scale.item(),
        unseen=[name for name, count in zip(names, counts, strict=True) if count == 0] if seen else [],
        settings={name: getattr(config, name) for name in SETTINGS},
    )
    if len(known) < 2 or not bool(vectors[known].isfinite().all()):
        return facts
    return _with_distances(facts, vectors[known].numpy(), [names[i] for i in known], [counts[i] for i in known])


def _with_distances(facts: LabelFacts, vectors: Any, names: list[str], counts: list[int]) -> LabelFacts:
    found = neighbourhood(vectors, max(NEIGHBOURS, PAIRS))
    nearest = found.of(names)
    excerpt = np.unique(np.linspace(0, len(names) - 1, min(ROWS, len(names))).round().astype(int)).tolist()
    return replace(
        facts,
        mean_distance=found.mean,
        rows=[(names[i], counts[i], nearest[i][:NEIGHBOURS]) for i in excerpt],
        closest=[(names[one], names[other], far) for one, other, far in found.closest(PAIRS)],
    )
