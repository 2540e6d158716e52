"""Shared set-up: offline, no telemetry, few threads, and tiny models built from a config alone.

What takes long to import waits for the first test: the process that only deals tests out to others has none.
"""

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
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerFast

# The same examples at every run and place: a red test is a changed library, not a new draw.
settings.register_profile("hf_lwal", deadline=None, derandomize=True, database=None, max_examples=40)
settings.load_profile("hf_lwal")


@pytest.fixture(scope="session", autouse=True)
def libraries() -> None:
    """Import them, with one thread: tiny tensors gain nothing from a second, and lose when another process is busy."""
    import torch

    torch.set_num_threads(1)
    importlib.import_module("hf_lwal.training.trainer")


@pytest.fixture(scope="module", autouse=True)
def short_garbage_collections(libraries: None) -> None:
    """Trainers and many libraries collect garbage again and again, each time through all that imports have made."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def tiny_config() -> Callable[..., PreTrainedConfig]:
    """``tiny_config(name, **overrides)``: a fresh stock config of one of `tiny_models.TINY_CONFIGS`."""
    import tiny_models

    return tiny_models.tiny_config


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    """The toy word-level tokenizer; do not change it in a test."""
    from toy import word_tokenizer

    return word_tokenizer()


@pytest.fixture(scope="session")
def tokenizer_dir(tokenizer: PreTrainedTokenizerFast, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the toy tokenizer's files."""
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save_pretrained(folder)
    return folder
