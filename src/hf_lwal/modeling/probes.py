"""Random inputs of the shape that a classifier takes, to compare two models without any data at hand."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .core import LabelTableModel

Batch = dict[str, Any]

TEXT_LENGTH = 16
MOST_TOKENS = 10_000
RANDOM_ROWS, LEAST_ROWS = 1_000, 64
MOST_VALUES = 4_000_000
"""Numbers in all random rows together: of large pictures and long sounds there are fewer rows than of texts."""
MOST_LOGITS = 1_000_000
"""Logits of all random rows together: of 1,000 labels there are as many rows as of ten."""
IMAGE_SIZE = 224
"""Side of an image for architectures that take any size."""
WAVE_LENGTH = 4_000
SPECIAL_TOKENS = ("pad", "bos", "eos", "cls", "sep", "mask", "unk", "decoder_start")


def random_batches(model: LabelTableModel, rows: int, batch_size: int = 8, seed: int = 0) -> list[Batch]:
    """Random token ids, pixels, waves or spectrograms from a generator of their own.

    Args:
        model: its task and its encoder's configuration say what the inputs are.
        rows: number of rows; the last batch may be smaller.
        batch_size: rows per batch; 1 for a text model without a padding token.
        seed: of the generator.

    Returns:
        Batches on the CPU, with floating-point inputs in float32.
    """
    generator = torch.Generator().manual_seed(seed)
    config = model.encoder.config
    make = MAKERS[model.main_input_name if model.task == "audio" else model.task]
    if model.main_input_name == "input_ids":  # some image models read pixels as tokens
        make = MAKERS["text"]
        batch_size = 1 if getattr(config.get_text_config(), "pad_token_id", None) is None else batch_size
    return [make(config, min(batch_size, rows - start), generator) for start in range(0, rows, batch_size)]


def many_random_batches(model: LabelTableModel) -> list[Batch]:
    """1,000 random rows, or fewer where they would take minutes: large inputs, very many labels, texts one by one."""
    first = random_batches(model, 2)[0]
    values = max(value[0].numel() for value in first.values())
    alone = len(next(iter(first.values()))) == 1
    most = min(MOST_VALUES // values, MOST_LOGITS // model.config.num_labels)
    rows = LEAST_ROWS if alone else min(RANDOM_ROWS, max(LEAST_ROWS, most))
    return random_batches(model, rows, max(8, rows // 32))


def _texts(config: Any, rows: int, generator: torch.Generator) -> Batch:
    """Sentences of different lengths that end in the token that encoder-decoder models look for."""
    config = config.get_text_config()
    special = [getattr(config, f"{name}_token_id", None) for name in SPECIAL_TOKENS]
    special += [token for tokens in special if isinstance(tokens, list) for token in tokens]
    largest = min(getattr(config, "vocab_size", MOST_TOKENS), MOST_TOKENS)  # models of characters have no such number
    ordinary = torch.tensor([token for token in range(largest) if token not in special])
    positions = getattr(config, "max_position_embeddings", None) or -1  # -1 where a text may have any length
    longest = min(TEXT_LENGTH, positions - 2) if positions > 2 else TEXT_LENGTH
    ids = ordinary[torch.randint(len(ordinary), (rows, longest), generator=generator)]  # (rows, longest)
    pad, end = getattr(config, "pad_token_id", None), getattr(config, "eos_token_id", None)
    least = longest if pad is None else longest // 2
    lengths = torch.randint(least, longest + 1, (rows, 1), generator=generator)
    lengths[0] = longest
    place = torch.arange(longest)
    mask = place < lengths  # (rows, longest)
    if isinstance(end, int):
        ids[place == lengths - 1] = end
    return {"input_ids": ids.masked_fill(~mask, pad or 0), "attention_mask": mask.long()}


def _images(config: Any, rows: int, generator: torch.Generator) -> Batch:
    part = getattr(config, "vision_config", config)
    size = getattr(part, "image_size", None) or IMAGE_SIZE
    height, width = (size, size) if isinstance(size, int) else tuple(size)[-2:]
    channels = getattr(part, "num_channels", None) or 3
    return {"pixel_values": torch.randn(rows, channels, height, width, generator=generator)}


def _waves(config: Any, rows: int, generator: torch.Generator) -> Batch:
    if hasattr(config, "num_mel_bins"):  # models of spectrograms that use the same name
        return {"input_values": torch.randn(rows, config.max_length, config.num_mel_bins, generator=generator)}
    return {"input_values": torch.randn(rows, WAVE_LENGTH, generator=generator)}


def _spectrograms(config: Any, rows: int, generator: torch.Generator) -> Batch:
    if hasattr(config, "max_source_positions") and hasattr(config, "num_mel_bins"):
        shape = (rows, config.num_mel_bins, 2 * config.max_source_positions)  # as Whisper pads and cuts every sound
    else:
        shape = (rows, TEXT_LENGTH, config.feature_projection_input_dim)
    return {"input_features": torch.randn(shape, generator=generator)}


MAKERS: dict[str, Callable[[Any, int, torch.Generator], Batch]] = {
    "text": _texts,
    "image": _images,
    "input_values": _waves,
    "input_features": _spectrograms,
}


def on_device(batch: Batch, model: LabelTableModel) -> Batch:
    """A batch without labels and what model or encoder do not take, on the model's device and in its dtype."""
    known = set(inspect.signature(type(model).forward).parameters) - {"labels"}
    return {
        name: _moved(value, model)
        for name, value in batch.items()
        if name in known and value is not None and model._encoder_takes(name)
    }


def _moved(value: Any, model: LabelTableModel) -> Any:
    if not isinstance(value, Tensor):
        return value
    return value.to(model.device, model.encoder.dtype if value.is_floating_point() else value.dtype)
