"""Every stock classifier of transformers, tiny: configs shrunk by attribute name, for tests and benchmarks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from toy import PAD, SEP, VOCAB_SIZE
from transformers import PreTrainedConfig
from transformers.models.auto import configuration_auto, modeling_auto

NUM_LABELS = 3

MAPPINGS: dict[str, Any] = {
    "text": modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    "image": modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
    "audio": modeling_auto.MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES,
}
"""Task -> model type -> name of a stock class, or of several of which the first is the default."""

TIMM_BACKBONES: dict[str, dict[str, Any]] = {
    "resnet50": {"layers": (1, 1, 1, 1), "channels": (8, 16, 16, 32)},
    "densenet121": {"growth_rate": 8, "block_config": (1, 1, 1, 1)},
    "efficientnet_b0": {},
    "convnext_atto": {"depths": (1, 1, 1, 1), "dims": (8, 16, 16, 32)},
    "dpn48b": {},  # its head is a convolution
    "vit_tiny_patch16_224": {"img_size": 32},
    "mobilenetv3_small_050": {},
}
"""Name -> what timm builds it with."""

EXCLUDED = {
    "shieldgemma2": "has no class head: it reads two words off a language model, for two labels",
    "layoutlmv2": "needs detectron2, an extension that is compiled for one version of PyTorch",
    "dinat": "needs natten, an extension that is compiled for one version of PyTorch",
}
"""Model type -> why it is not tried."""


def _sizes(value: int, names: str) -> dict[str, int]:
    return dict.fromkeys(names.split(), value)


SIZES: dict[str, Any] = {
    **_sizes(1, "num_hidden_groups n_shared_experts depth n_group topk_group num_decoder_layers mamba_dt_rank"),
    **_sizes(1, "num_self_attends_per_block first_k_dense_replace num_key_value_heads num_kv_heads"),
    **_sizes(2, "num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers num_adapter_layers"),
    **_sizes(2, "num_attention_heads n_head n_heads num_heads encoder_attention_heads decoder_attention_heads"),
    **_sizes(2, "num_local_experts n_routed_experts num_experts num_experts_per_tok moe_topk max_window_layers"),
    **_sizes(2, "mask_time_length"),
    **_sizes(2, "num_cross_attention_heads num_self_attention_heads linear_num_key_heads linear_num_value_heads"),
    **_sizes(4, "num_conv_pos_embedding_groups num_conv_pos_embeddings num_latents num_landmarks block_size"),
    **_sizes(8, "attention_window"),
    **_sizes(8, "sliding_window patch_size num_hash kv_lora_rank q_lora_rank mamba_d_state window_size num_mel_bins"),
    **_sizes(8, "codevector_dim proj_codevector_dim num_codevectors_per_group embed_dim index_topk"),
    **_sizes(16, "head_dim v_head_dim qk_nope_head_dim qk_rope_head_dim d_kv d_head attention_head_size"),
    **_sizes(16, "query_pre_attn_scalar linear_key_head_dim linear_value_head_dim index_head_dim chunk_size"),
    **_sizes(16, "classifier_proj_size entity_emb_size segment_means_seq_len shape_embed_dim"),
    **_sizes(32, "hidden_size d_model n_embd dim embedding_size emb_dim input_embedding_size output_embedding_size"),
    **_sizes(32, "word_embed_proj_dim pooler_output_size pooler_hidden_size output_hidden_size d_latents"),
    **_sizes(32, "intermediate_size moe_intermediate_size shared_expert_intermediate_size ffn_dim d_ff d_inner dff"),
    **_sizes(32, "hidden_dim ffn_hidden_size encoder_ffn_dim decoder_ffn_dim feed_forward_size"),
    **_sizes(32, "cross_attention_hidden_size projection_dim projection_size out_hidden_size image_size max_length"),
    **_sizes(32, "true_hidden_size intra_bottleneck_size pronunciation_embed_dim decoder_hidden_size"),
    **_sizes(64, "max_position_embeddings n_positions max_seq_len max_2d_position_embeddings num_hash_buckets"),
    **_sizes(64, "entity_vocab_size pronunciation_vocab_size shape_vocab_size"),
    "initializer_range": 0.1,  # 0.02 is meant for hundreds of units; with a few, nothing comes through
    **_sizes(32, "max_source_positions"),
    **_sizes(VOCAB_SIZE, "vocab_size"),
    **_sizes(PAD, "pad_token_id pad_index"),
    **_sizes(1, "decoder_start_token_id mask_token_id image_token_id image_token_index video_token_id"),
    **_sizes(1, "vision_start_token_id vision_end_token_id boi_token_index eoi_token_index boi_token_id eoi_token_id"),
    **_sizes(2, "bos_token_id cls_token_id"),
    **_sizes(SEP, "eos_token_id sep_token_id eod_token_id forced_eos_token_id"),
}
"""Attribute name -> its value in a tiny model; names that a configuration lacks, or has as a list, are left out."""

_SPREAD = {"initializer_range": 0.5}  # many narrow layers, whose BatchNorm has too little to amplify
_STAGES = {"depths": [1, 1, 1, 1], "hidden_sizes": [16, 16, 32, 32]}
_WINDOWS = {"embed_dim": 16, "depths": [1, 1], "num_heads": [1, 2], "patch_size": 4, "window_size": 4}
_WAVES = {"conv_dim": [16, 16], "conv_kernel": [8, 4], "conv_stride": [4, 4], "num_feat_extract_layers": 2}
_ROPE = {"rope_type": "default", "rope_theta": 10_000.0}

EXCEPTIONS: dict[str, dict[str, Any]] = {
    # text
    "cohere_compass_text": {
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {
            kind: {**_ROPE, "mrope_section": [4, 2, 2]} for kind in ("sliding_attention", "full_attention")
        },
    },
    **{name: {"num_key_value_heads": 2} for name in ("axk1", "axk2", "deepseek_v2", "deepseek_v3", "minicpm3")},
    "mistral4": {"num_key_value_heads": 2, "head_dim": 32},
    "diffllama": {"num_key_value_heads": 2},
    "esmc": {"num_key_value_heads": 2},
    "funnel": {"block_sizes": [1, 1]},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "gptj": {"rotary_dim": 8},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "markuplm": {"max_depth": 4},
    "layoutlmv3": {"coordinate_size": 6, "shape_size": 4},
    "lilt": {"hidden_size": 24},
    "nystromformer": {"segment_means_seq_len": 4},
    "qwen3_5": {"text_config.layer_types": ["linear_attention", "full_attention"]},
    "qwen3_5_text": {"layer_types": ["linear_attention", "full_attention"]},
    "qwen3_next": {"layer_types": ["linear_attention", "full_attention"]},
    "reformer": {
        "attn_layers": ["local", "lsh"],
        "axial_pos_embds": False,
        "local_attn_chunk_length": 4,
        "lsh_attn_chunk_length": 4,
        "num_buckets": 2,
        "hash_seed": 0,  # else every forward pass hashes anew, and no two agree
    },
    "t5": {"decoder_start_token_id": PAD},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"num_hidden_layers": 5, "attn_layer_period": 2, "attn_layer_offset": 1},
    "zamba2": {"layers_block_type": ["linear_attention", "hybrid"], "n_mamba_heads": 4, "mamba_headdim": 16},
    # image
    "bit": {**_STAGES, "num_groups": 4},
    "convnext": {**_STAGES, "patch_size": 4},
    "convnextv2": {**_STAGES, "patch_size": 4},
    "cvt": {"embed_dim": [16, 16, 32], "depth": [1, 2, 3], "num_heads": [1, 2, 2]},
    "donut-swin": _WINDOWS,
    "efficientnet": {"width_coefficient": 0.125, "depth_coefficient": 0.1, "hidden_dim": 160, **_SPREAD},
    "focalnet": {"depths": [1, 1], "hidden_sizes": [16, 32], "focal_levels": [2, 2], "focal_windows": [3, 3]},
    "hgnet_v2": {
        "stem_channels": [3, 8, 8],
        "stage_in_channels": [8, 16, 16, 32],
        "stage_mid_channels": [8, 8, 8, 8],
        "stage_out_channels": [16, 16, 32, 32],
        "stage_num_blocks": [1, 1, 1, 1],
        "stage_numb_of_layers": [1, 1, 1, 1],
        **_STAGES,
    },
    "hiera": {"image_size": [64, 64], "embed_dim": 8, "depths": [1, 1, 1, 1]},
    "levit": {
        "image_size": 64,
        "patch_size": 16,
        "hidden_sizes": [16, 32, 32],
        "num_attention_heads": [1, 2, 2],
        "depths": [1, 1, 1],
    },
    "mobilenet_v1": {"depth_multiplier": 0.1, **_SPREAD},
    "mobilenet_v2": {"depth_multiplier": 0.1, **_SPREAD},
    "mobilevit": {"hidden_sizes": [16, 16, 32], "neck_hidden_sizes": [8, 8, 8, 8, 8, 8, 32], "patch_size": 2},
    "mobilevitv2": {
        "image_size": 64,
        "patch_size": 2,
        "base_attn_unit_dims": [8, 8, 8],
        "n_attn_blocks": [1, 1, 1],
        "width_multiplier": 0.1,
        **_SPREAD,
    },
    "PerceiverForImageClassificationFourier": {"num_cross_attention_heads": 1},
    "PerceiverForImageClassificationConvProcessing": {"num_cross_attention_heads": 1},
    "poolformer": _STAGES,
    "pp_lcnet": {
        "block_configs": [[[3, 8, 8, 1, False]], *([[3, 8, 8, 2, False]] for _ in range(3)), [[5, 8, 16, 2, True]]],
        "stem_channels": 8,
        "class_expand": 32,
    },
    "pvt": {**_STAGES, "num_attention_heads": [1, 2, 2, 2]},
    "pvt_v2": {**_STAGES, "num_attention_heads": [1, 2, 2, 2]},
    "regnet": {**_STAGES, "embedding_size": 8, "groups_width": 8},
    "resnet": _STAGES,
    "segformer": {**_STAGES, "num_attention_heads": [1, 2, 2, 2]},
    "swiftformer": {"depths": [1, 1, 1, 1], "embed_dims": [8, 16, 16, 32]},
    "swin": _WINDOWS,
    "swinv2": {**_WINDOWS, "pretrained_window_sizes": [0, 0]},
    "textnet": {"hidden_sizes": [8, 8, 8, 16, 32], "stem_out_channels": 8, "image_size": [32, 32]},
    # audio
    "data2vec-audio": _WAVES,
    "hubert": _WAVES,
    "sew": _WAVES,
    "sew-d": _WAVES,
    "unispeech": _WAVES,
    "unispeech-sat": _WAVES,
    "wav2vec2": _WAVES,
    "wav2vec2-conformer": _WAVES,
    "wavlm": _WAVES,
    "whisper": {"max_source_positions": 50},
}
"""Model type or class name -> what names do not tell; a dot leads into a part of the configuration."""


class Architecture(NamedTuple):
    """A stock class, and what to call it in a table."""

    task: str
    model_type: str
    class_name: str
    backbone: str | None = None

    @property
    def name(self) -> str:
        """Unique name."""
        return f"{self.task}/{self.model_type}/{self.backbone or self.class_name}"


def architectures() -> Iterator[Architecture]:
    """All stock classes of the three mappings, and the timm backbones."""
    for task, mapping in MAPPINGS.items():
        for model_type, names in mapping.items():
            for name in [names] if isinstance(names, str) else names:
                if model_type == "timm_wrapper":
                    yield from (Architecture(task, model_type, name, backbone) for backbone in TIMM_BACKBONES)
                else:
                    yield Architecture(task, model_type, name)


def tiny(architecture: Architecture) -> PreTrainedConfig:
    """The smallest configuration of an architecture that is still it, for `NUM_LABELS` labels."""
    config_class: Any = configuration_auto.CONFIG_MAPPING[architecture.model_type]
    if architecture.backbone is not None:
        arguments = TIMM_BACKBONES[architecture.backbone]
        return config_class(architecture=architecture.backbone, model_args=arguments, num_labels=NUM_LABELS)
    exceptions = dict(EXCEPTIONS.get(architecture.model_type, {}))
    exceptions |= EXCEPTIONS.get(architecture.class_name, {})
    config = _shrunk(config_class(), exceptions)
    config.num_labels = NUM_LABELS
    if not isinstance(MAPPINGS[architecture.task][architecture.model_type], str):
        config.architectures = [architecture.class_name]
    return config


def _shrunk(config: PreTrainedConfig, exceptions: dict[str, Any]) -> PreTrainedConfig:
    """Build the configuration anew from small values, so that what it derives from them is derived again."""
    values: dict[str, Any] = {}
    for name, value in vars(config).items():
        if isinstance(value, PreTrainedConfig):
            inner = {key.partition(".")[2]: v for key, v in exceptions.items() if key.startswith(f"{name}.")}
            values[name] = _shrunk(value, inner).to_dict()
        elif name in SIZES and type(value) in (int, float, type(None)):
            values[name] = SIZES[name]
    values |= {key: value for key, value in exceptions.items() if "." not in key}
    return type(config)(**values)
