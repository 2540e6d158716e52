"""What a model says to examples, and to the sample rows of its card."""

from __future__ import annotations

import io
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from .facts import CardFacts, Sample
from .media import read_wav

logger = logging.getLogger(__name__)


def answers(model: Any, inputs: list[Any], processing_class: Any) -> list[tuple[str, float]]:
    """Likeliest label and its probability for each input; nothing where the model cannot be asked, as a stock one."""
    if not inputs or processing_class is None or not hasattr(model, "predict"):
        return []
    return [(best[0]["label"], float(best[0]["score"])) for best in model.predict(inputs, processing_class)]


def with_answers(facts: CardFacts, model: Any, processing_class: Any, files: Mapping[str, bytes]) -> CardFacts:
    """Facts with answers to samples, those of the evaluation where there are any, unless there are other examples.

    Args:
        facts: with its samples.
        model: the model of the card.
        processing_class: its tokenizer or feature extractor.
        files: name to content of the samples' files.
    """
    if facts.examples:
        return facts
    samples: list[Sample] = next((split.samples for split in reversed(facts.splits.values()) if split.samples), [])
    inputs = [sample.input for sample in samples if sample.input]
    try:
        found = answers(
            model, [_read(name, files[name]) if name in files else name for name in inputs], processing_class
        )
    except Exception:  # nobody asked for the answers: a push must not end because a tokenizer rejects its own text
        logger.debug("The model could not be asked about the sample rows of its card.", exc_info=True)
        return facts
    return replace(facts, examples=[(name, *answer) for name, answer in zip(inputs, found, strict=False)])


def _read(name: str, content: bytes) -> Any:
    """A saved picture or sound as a processing class takes it."""
    if name.endswith(".wav"):
        return read_wav(content).wave
    from PIL import Image

    return Image.open(io.BytesIO(content))
