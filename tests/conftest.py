"""Shared set-up: offline, no telemetry, few threads, and tiny models built from a config alone."""

from __future__ import annotations

import os

# Before transformers, datasets or huggingface_hub are imported: they read these once.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ["DO_NOT_TRACK"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hypothesis import settings
from toy import IMAGE_SIZE, VOCAB_SIZE, word_tokenizer
from transformers import PreTrainedConfig, PreTrainedTokenizerFast

torch.set_num_threads(1)  # tiny tensors gain nothing from a second, and lose much when another process is busy

# The same examples at every run and place: a red test is a changed library, not a new draw.
settings.register_profile("hf_lwal", deadline=None, derandomize=True, database=None, max_examples=40)
settings.load_profile("hf_lwal")

_TOKENS = {"vocab_size": VOCAB_SIZE, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
# A stock initial spread of 0.02 is meant for 768 units; with 32 the activations would be near zero and learn slowly.
_SPREAD = {"initializer_range": 0.1}
_TRANSFORMER = {
    **_SPREAD,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
}
_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_BERT = {**_TOKENS, **_TRANSFORMER, **_NO_DROPOUT, "max_position_embeddings": 40}

TINY_CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertConfig", _BERT),
    "distilbert": (
        "DistilBertConfig",
        {
            **_TOKENS,
            **_SPREAD,
            "dim": 32,
            "n_layers": 2,
            "n_heads": 2,
            "hidden_dim": 48,
            "max_position_embeddings": 40,
            "dropout": 0.0,
            "attention_dropout": 0.0,
            "seq_classif_dropout": 0.0,
        },
    ),
    "roberta": ("RobertaConfig", _BERT),
    "deberta_v2": (
        "DebertaV2Config",
        {
            **_BERT,
            "relative_attention": True,
            "pos_att_type": ["p2c", "c2p"],
            "pooler_hidden_size": 32,
            "pooler_dropout": 0.0,
        },
    ),
    "modernbert": (
        "ModernBertConfig",
        {**_TOKENS, **_TRANSFORMER, "cls_token_id": 2, "sep_token_id": 3, "max_position_embeddings": 40},
    ),
    "llama": ("LlamaConfig", {**_TOKENS, **_TRANSFORMER, "num_key_value_heads": 1, "max_position_embeddings": 40}),
    "vit": ("ViTConfig", {**_TRANSFORMER, **_NO_DROPOUT, "image_size": IMAGE_SIZE, "patch_size": 4}),
    "convnext": (
        "ConvNextConfig",
        {"num_stages": 2, "hidden_sizes": [16, 32], "depths": [1, 1], "patch_size": 2, "image_size": IMAGE_SIZE},
    ),
    "resnet": (  # the one with BatchNorm
        "ResNetConfig",
        {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1], "layer_type": "basic"},
    ),
    "wav2vec2": (
        "Wav2Vec2Config",
        {
            **_TRANSFORMER,
            "conv_dim": [16, 16],
            "conv_kernel": [8, 4],
            "conv_stride": [4, 4],
            "num_feat_extract_layers": 2,
            "num_conv_pos_embeddings": 8,
            "num_conv_pos_embedding_groups": 2,
            "classifier_proj_size": 16,
            "mask_time_prob": 0.0,
            "layerdrop": 0.0,
            "hidden_dropout": 0.0,
            "activation_dropout": 0.0,
            "attention_dropout": 0.0,
            "feat_proj_dropout": 0.0,
        },
    ),
}
"""Name -> config class and settings. No dropout, so that two runs or two batch splits can be compared."""


@pytest.fixture(scope="session")
def tiny_config() -> Callable[..., PreTrainedConfig]:
    """``tiny_config(name, **overrides)``: a fresh stock config of one of `TINY_CONFIGS`."""

    def build(name: str, **overrides: Any) -> PreTrainedConfig:
        class_name, values = TINY_CONFIGS[name]
        return getattr(transformers, class_name)(**{**values, **overrides})

    return build


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
