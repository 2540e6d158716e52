"""The toy data and configs that other tests lean on: learnable, alike for every model, free of shortcuts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from toy import AUDIO_LENGTH, IMAGE_SIZE, SPECIAL_TOKENS, separable_audio, separable_images, separable_text
from transformers import (
    AutoModelForAudioClassification,
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
)

TEXT = ["bert", "distilbert", "roberta", "deberta_v2", "modernbert", "llama"]
IMAGE = ["vit", "convnext", "resnet"]


def _stock_model_and_data(config: PreTrainedConfig, name: str, rows: int, seed: int) -> tuple[Any, Dataset]:
    if name in TEXT:
        return AutoModelForSequenceClassification.from_config(config), separable_text(4, rows, seed)
    if name in IMAGE:
        return AutoModelForImageClassification.from_config(config), separable_images(4, rows, seed)
    return AutoModelForAudioClassification.from_config(config), separable_audio(4, rows, seed)


@pytest.mark.parametrize("name", [*TEXT, *IMAGE, "wav2vec2"])
def test_stock_model_learns_the_toy_data(tiny_config: Callable[..., PreTrainedConfig], name: str) -> None:
    """A toy task beyond the tiny stock model: every "LwAL learns" test on it would fail, or be tuned, for nothing."""
    torch.manual_seed(0)
    model, train = _stock_model_and_data(tiny_config(name, num_labels=4), name, rows=64, seed=0)
    assert sum(p.numel() for p in model.parameters()) < 60_000
    batch = {key: torch.as_tensor(values[:]) for key, values in train.to_dict().items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    model.train()
    for _ in range(40):
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    _, test = _stock_model_and_data(tiny_config(name, num_labels=4), name, rows=64, seed=1)
    batch = {key: torch.as_tensor(values[:]) for key, values in test.to_dict().items()}
    labels = batch.pop("labels")
    with torch.no_grad():
        accuracy = (model.eval()(**batch).logits.argmax(dim=1) == labels).float().mean()
    assert accuracy > 0.95


def test_only_the_class_pattern_tells_the_class() -> None:
    """Labels readable from the row order, the length or the padding: a broken model would pass as a working one."""
    text = separable_text(4, 200, seed=3)
    labels = np.array(text["labels"])
    assert (np.bincount(labels) == 50).all()
    assert not (labels == np.arange(200) % 4).all()
    lengths = np.array(text["attention_mask"]).sum(axis=1)
    assert len(np.unique(lengths)) > 3
    assert np.ptp([lengths[labels == c].mean() for c in range(4)]) < 1.0
    keywords = np.array(text["input_ids"])
    assert all((len(SPECIAL_TOKENS) + label == row).sum() == 2 for row, label in zip(keywords, labels, strict=True))


def test_seed_changes_the_rows_but_not_the_classes() -> None:
    """Train and test sets that are the same rows, or that differ in what a class is."""
    for build, column, shape in (
        (separable_images, "pixel_values", (3, IMAGE_SIZE, IMAGE_SIZE)),
        (separable_audio, "input_values", (AUDIO_LENGTH,)),
    ):
        first, second = build(3, 60, seed=0), build(3, 60, seed=1)
        first_rows, second_rows = np.array(first[column]), np.array(second[column])
        assert first_rows.shape == (60, *shape)
        assert not np.allclose(first_rows, second_rows)
        # The power spectrum is the same within a class whatever the phase and the seed.
        spectra = [np.abs(np.fft.rfft(rows.reshape(60, -1))) for rows in (first_rows, second_rows)]
        first_labels, second_labels = np.array(first["labels"]), np.array(second["labels"])
        means = np.stack([spectra[0][first_labels == c].mean(axis=0) for c in range(3)])
        nearest = ((spectra[1][:, None] - means[None]) ** 2).sum(axis=2).argmin(axis=1)
        assert (nearest == second_labels).mean() > 0.95


def test_tokenizer_reads_back_the_toy_sentences(tokenizer: PreTrainedTokenizerFast) -> None:
    """A pipeline fed with words that the model never saw in training, as unknown tokens."""
    rows = separable_text(5, 20)
    ids = [
        [token for token, kept in zip(row, mask, strict=True) if kept]
        for row, mask in zip(rows["input_ids"], rows["attention_mask"], strict=True)
    ]
    assert tokenizer(tokenizer.batch_decode(ids, skip_special_tokens=True))["input_ids"] == ids
