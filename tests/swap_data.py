"""Rows and model folders for test_swap and its scripts, as transformers' example scripts find them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from tiny_models import tiny_config
from toy import IMAGE_SIZE, separable_images, separable_text, word_tokenizer
from transformers import AutoModel, ViTImageProcessor, set_seed

NAMES = ("ape", "bee", "cat", "dog", "eel")
STRING_LABELS = {
    "id2label": {str(index): name for index, name in enumerate(NAMES)},
    "label2id": {name: str(index) for index, name in enumerate(NAMES)},
}
"""Ids as the image scripts pass them."""


def backbone(modality: str, folder: Path) -> Path:
    """Save a pretrained model without a classifier's head, and its tokenizer or image processor.

    Args:
        modality: "text", "image", or "sentences": a text encoder that says how it is pooled.
        folder: where to.
    """
    set_seed(0)
    AutoModel.from_config(tiny_config("vit" if modality == "image" else "bert")).save_pretrained(folder)
    if modality == "sentences":
        parts = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
        modules = [{"type": f"sentence_transformers.models.{kind}", "path": path} for kind, path in parts.items()]
        (folder / "modules.json").write_text(json.dumps(modules))
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "mean"}))
    size = {"height": IMAGE_SIZE, "width": IMAGE_SIZE}
    processor = ViTImageProcessor(size=size) if modality == "image" else word_tokenizer()
    processor.save_pretrained(folder)
    return folder


def rows_for(modality: str, rows: int, seed: int, raw: bool = True) -> Dataset:
    """Rows with a column "label".

    Args:
        modality: "text" or "image".
        rows: how many.
        seed: of the rows.
        raw: with the column that a model does not take: the sentence beside its tokens, or the image, of which the
            pixels are made on access.
    """
    if modality == "text":
        data = separable_text(len(NAMES), rows, seed).rename_column("labels", "label")
        return data.add_column("sentence", ["as it was"] * rows) if raw else data
    data = separable_images(len(NAMES), rows, seed).rename_column("labels", "label")
    if raw:
        data = data.rename_column("pixel_values", "image")
        data.set_transform(_with_pixels)
    return data


def _with_pixels(rows: dict[str, Any]) -> dict[str, Any]:
    return {**rows, "pixel_values": rows["image"]}


def collate_images(examples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Batch of the rows that `rows_for` makes of images."""
    pixel_values = torch.tensor(np.array([example["pixel_values"] for example in examples], np.float32))
    return {"pixel_values": pixel_values, "labels": torch.tensor([example["label"] for example in examples])}
