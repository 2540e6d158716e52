"""Presets: named settings of the label table. A literal dict; add a line to add a preset."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

PAPER: dict[str, Any] = {
    "preset": "paper",
    "memory": 0,
    "offset": False,
    "reanchor": False,
    "follow_drift": 0.0,
    "learn_scale": False,
    "space": "embeddings",
    "initial_labels": "one_hot",
    "initial_label_norm": 1.0,
    "initial_head": "random",
}
"""What the paper's label table has otherwise than `LabelSettings` by default."""
STATIC: dict[str, Any] = {
    **PAPER,
    "preset": "default",
    "refresh_every": 0,
    "initial_labels": "class_means",
}
"""The table of fixed label vectors: nothing moves them."""
PRESETS: dict[str, dict[str, Any]] = {
    "default": {"label_method": "lwal"},
    "paper:std": {"label_method": "one_hot"},
    "paper:static_label": {"label_method": "static_label"},
    "paper:lwr2k": {"label_method": "lwr", "lwr_every": 2},
    "paper:lwr3k": {"label_method": "lwr", "lwr_every": 3},
    "paper:lwr5k": {"label_method": "lwr", "lwr_every": 5},
    "paper:label_embed": {"label_method": "label_embed"},
    "paper:lwal": {"label_method": "lwal", "embedding_dim": "1x", **PAPER},
    "paper:lwal10": {"label_method": "lwal", "embedding_dim": "10x", **PAPER},
    "paper:lwal10+rpl": {"label_method": "lwal", "embedding_dim": "10x", **PAPER, "repel_weight": 10.0},
}
PRESETS["paper"] = PRESETS["paper:lwal"]
"""Name → what it sets, over the defaults of `LabelSettings` where it trains a label table."""


def preset(name: str) -> dict[str, Any]:
    """Settings of the preset ``name``.

    Raises:
        ValueError: unknown name; the message lists the known ones.
    """
    if name not in PRESETS:
        raise ValueError(f"Unknown lwal_preset {name!r}: choose one of {', '.join(sorted(PRESETS))}.")
    return {**(defaults() if PRESETS[name]["label_method"] == "lwal" else {}), **PRESETS[name]}


def defaults() -> dict[str, Any]:
    """Names and defaults of `LabelSettings`."""
    from ..modeling.algorithm import LabelSettings  # imports PyTorch, which names of presets do not need

    return {entry.name: entry.default for entry in fields(LabelSettings)}
