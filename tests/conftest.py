"""Shared set-up: offline, no telemetry, few threads, and tiny models built from a config alone."""

from __future__ import annotations

import gc
import os

# Before transformers, datasets or huggingface_hub are imported: they read these once.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ["DO_NOT_TRACK"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import importlib
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny_models
import torch
from hypothesis import settings
from toy import word_tokenizer
from transformers import PreTrainedConfig, PreTrainedTokenizerFast

importlib.import_module("hf_lwal.training.trainer")

torch.set_num_threads(1)  # tiny tensors gain nothing from a second, and lose much when another process is busy

# The same examples at every run and place: a red test is a changed library, not a new draw.
settings.register_profile("hf_lwal", deadline=None, derandomize=True, database=None, max_examples=40)
settings.load_profile("hf_lwal")


@pytest.fixture(scope="module", autouse=True)
def short_garbage_collections() -> None:
    """Trainers and many libraries collect garbage again and again, each time through all that imports have made."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def tiny_config() -> Callable[..., PreTrainedConfig]:
    """``tiny_config(name, **overrides)``: a fresh stock config of one of `tiny_models.TINY_CONFIGS`."""
    return tiny_models.tiny_config


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    """The toy word-level tokenizer; do not change it in a test."""
    return word_tokenizer()


@pytest.fixture(scope="session")
def tokenizer_dir(tokenizer: PreTrainedTokenizerFast, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the toy tokenizer's files."""
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save_pretrained(folder)
    return folder
