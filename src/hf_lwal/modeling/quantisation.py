"""Quantised loading: the encoder's head keeps its precision, as transformers keeps that of a stock classifier's."""

from __future__ import annotations

import copy
from typing import Any

from transformers.quantizers.auto import AutoQuantizationConfig

SKIP_LISTS = ("modules_to_not_convert", "llm_int8_skip_modules", "skip_modules")
"""What the quantisation configurations of transformers call the layers that they leave alone."""


def sparing(quantization: Any, layer: str | None) -> Any:
    """Return a copy of a quantisation that leaves a layer alone.

    By itself transformers leaves the last layer alone, the one that decides. Here that would be the label table, which
    is never quantised; but the head before it makes the label vectors out of class means, and must be able to learn.

    Args:
        quantization: what ``from_pretrained`` takes as ``quantization_config``, a dict included; None for none.
        layer: name of the layer; None leaves the choice to transformers.
    """
    if quantization is None or layer is None:
        return quantization
    if isinstance(quantization, dict):
        quantization = AutoQuantizationConfig.from_dict(quantization)
    quantization = copy.deepcopy(quantization)
    for name in SKIP_LISTS:
        if hasattr(quantization, name):
            setattr(quantization, name, [*(getattr(quantization, name) or []), layer])
    return quantization
