"""Presets: named settings of the label table. A literal dict; add a line to add a preset."""

from __future__ import annotations

from typing import Any

DEFAULT: dict[str, Any] = {
    "preset": "default",
    "refresh_every": 1,
    "warmup_steps": 0,
    "repel_weight": 0.0,
    "memory": 50,
    "offset": True,
    "reanchor": True,
    "follow_drift": None,
    "learn_scale": True,
    "initial_labels": "class_means",
    "initial_head": "auto",
}
PAPER: dict[str, Any] = {
    "preset": "paper",
    "refresh_every": 1,
    "warmup_steps": 0,
    "repel_weight": 0.0,
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
STATIC: dict[str, Any] = {
    **PAPER,
    "preset": "default",
    "refresh_every": 0,
    "initial_labels": "class_means",
}
"""The table of fixed label vectors: nothing moves them."""
PRESETS: dict[str, dict[str, Any]] = {
    "default": {"label_method": "lwal", **DEFAULT},
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


def preset(name: str) -> dict[str, Any]:
    """Settings of the preset ``name``.

    Raises:
        ValueError: unknown name; the message lists the known ones.
    """
    if name not in PRESETS:
        raise ValueError(f"Unknown lwal_preset {name!r}: choose one of {', '.join(sorted(PRESETS))}.")
    return dict(PRESETS[name])
