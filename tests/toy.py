"""Toy data on which a working method must reach 100 %, and a tokenizer, all built in code."""

from __future__ import annotations

import numpy as np
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

PAD, UNK, CLS, SEP = range(4)
SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
MAX_LABELS = 40
"""Words 4…43 are keywords, one per class; the rest of the vocabulary is filler that tells nothing."""
VOCAB_SIZE = 64
IMAGE_SIZE = 16
AUDIO_LENGTH = 400


def word_tokenizer() -> PreTrainedTokenizerFast:
    """One token per word: ``key7`` is the keyword of class 7, ``word3`` a filler; adds [CLS] and [SEP]."""
    words = [f"key{i}" for i in range(MAX_LABELS)]
    words += [f"word{i}" for i in range(VOCAB_SIZE - MAX_LABELS - len(SPECIAL_TOKENS))]
    vocabulary = {word: i for i, word in enumerate([*SPECIAL_TOKENS, *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", CLS), ("[SEP]", SEP)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_input_names=["input_ids", "attention_mask"],
        model_max_length=32,
    )


def balanced_labels(num_labels: int, rows: int, generator: np.random.Generator) -> np.ndarray:
    """Shuffled labels (rows,) in which every class is as frequent as possible."""
    return generator.permutation(np.arange(rows) % num_labels)


def separable_text(num_labels: int, rows: int, seed: int = 0, length: int = 12) -> Dataset:
    """Sentences with two occurrences of their class's keyword among 2…6 fillers, padded on the right to ``length``."""
    if num_labels > MAX_LABELS:
        raise ValueError(f"num_labels must be at most {MAX_LABELS}, got {num_labels}")
    generator = np.random.default_rng(seed)
    labels = balanced_labels(num_labels, rows, generator)
    first_filler = len(SPECIAL_TOKENS) + MAX_LABELS
    input_ids = np.full((rows, length), PAD)
    for row, label in enumerate(labels):
        fillers = generator.integers(first_filler, VOCAB_SIZE, size=generator.integers(2, length - 5))
        words = generator.permutation([*fillers, *[len(SPECIAL_TOKENS) + label] * 2])
        input_ids[row, : len(words) + 2] = [CLS, *words, SEP]
    return Dataset.from_dict(
        {
            "input_ids": input_ids.tolist(),
            "attention_mask": (input_ids != PAD).astype(int).tolist(),
            "labels": labels.tolist(),
        }
    )


def separable_images(num_labels: int, rows: int, seed: int = 0, noise: float = 0.3) -> Dataset:
    """Images (3, IMAGE_SIZE, IMAGE_SIZE): a coarse pattern per class plus noise; the same patterns for every seed."""
    block = np.ones((1, 1, IMAGE_SIZE // 4, IMAGE_SIZE // 4))
    patterns = np.kron(np.random.default_rng(1_000).standard_normal((num_labels, 3, 4, 4)), block)
    generator = np.random.default_rng(seed)
    labels = balanced_labels(num_labels, rows, generator)
    images = patterns[labels] + noise * generator.standard_normal((rows, 3, IMAGE_SIZE, IMAGE_SIZE))
    return Dataset.from_dict({"pixel_values": images.astype(np.float32).tolist(), "labels": labels.tolist()})


def separable_audio(num_labels: int, rows: int, seed: int = 0, noise: float = 0.1) -> Dataset:
    """Waves (AUDIO_LENGTH,) of unit amplitude with random phase plus noise; the pitch is the class."""
    generator = np.random.default_rng(seed)
    labels = balanced_labels(num_labels, rows, generator)
    cycles = 4.0 * 1.6 ** labels[:, None]  # (rows, 1) per record; 1.6^C * 4 must stay below AUDIO_LENGTH / 2
    phase = generator.uniform(0.0, 2.0 * np.pi, size=(rows, 1))
    waves = np.sin(2.0 * np.pi * cycles * np.arange(AUDIO_LENGTH) / AUDIO_LENGTH + phase)  # (rows, AUDIO_LENGTH)
    waves += noise * generator.standard_normal(waves.shape)
    return Dataset.from_dict({"input_values": waves.astype(np.float32).tolist(), "labels": labels.tolist()})
