"""Tiny stock configs with random weights, for tests and benchmarks: no download, no pytest."""

from __future__ import annotations

from typing import Any

import transformers
from toy import IMAGE_SIZE, VOCAB_SIZE
from transformers import PreTrainedConfig

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


def tiny_config(name: str, **overrides: Any) -> PreTrainedConfig:
    """A fresh stock config of one of `TINY_CONFIGS`."""
    class_name, values = TINY_CONFIGS[name]
    return getattr(transformers, class_name)(**{**values, **overrides})
