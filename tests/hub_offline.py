"""A client scenario without a network."""

from __future__ import annotations

from typing import Any

from hub_scenarios import TEXTS, Scene, digest, failure, load
from transformers import pipeline

from hf_lwal import AutoModelForLwALClassification


def from_the_cache(s: Scene) -> dict[str, Any]:
    """Without a network, from what an earlier process pulled."""
    model = load("alice/toy-text")
    named = pipeline("text-classification", model="alice/toy-text")
    return {
        "digest": digest(model),
        "ours": digest(AutoModelForLwALClassification.from_pretrained("alice/toy-text")),
        "labels": [answer["label"] for answer in named(TEXTS)],
        "expected": [row[0]["label"] for row in s.model.predict(TEXTS, s.tokenizer)],
        "pooling": AutoModelForLwALClassification.from_pretrained("alice/encoder", num_labels=5).config.pooling,
        "absent": failure(lambda: load("alice/never-pulled")),
    }


SCENARIOS = [from_the_cache]
