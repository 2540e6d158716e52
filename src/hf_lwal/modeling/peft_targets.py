"""What PEFT looks up in a configuration: sizes, and by the model's type the layers that an adapter changes."""

from __future__ import annotations

import sys

SIZES = (
    *("hidden_size", "n_embd", "d_model", "num_hidden_layers", "num_layers", "n_layer"),
    *("num_attention_heads", "n_head", "num_heads", "encoder_attention_heads", "num_key_value_heads", "head_dim"),
)
"""Entries of an encoder's configuration by which PEFT shapes prompts and prefixes."""


def offer_targets(model_type: str, encoder_type: str) -> None:
    """Let PEFT, where it is in use, choose the layers that it would choose in the encoder alone.

    Its tables know types only, and the layers of a model with a label table are those of its encoder. PEFT asks for
    the configuration's dictionary right before it looks them up, which is when this is called.

    Args:
        model_type: of the configuration around the encoder's.
        encoder_type: type of the encoder.
    """
    tables = vars(sys.modules["peft.utils.constants"]) if "peft.utils.constants" in sys.modules else {}
    for name, table in tables.items():
        if not name.startswith("TRANSFORMERS_MODELS_TO_") or not name.endswith("_MODULES_MAPPING"):
            continue
        table.pop(model_type, None)
        if encoder_type in table:
            table[model_type] = table[encoder_type]
