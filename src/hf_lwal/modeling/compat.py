"""What differs between the releases of torch and transformers that this package runs with, all of it in one place.

Each comment says from which release on there is nothing left to bridge.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import AutoConfig, PreTrainedConfig, configuration_utils

_SPEC = getattr(configuration_utils, "SubConfigSpec", None)  # transformers 5.20
is_exporting: Callable[[], bool] = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)  # torch 2.7


def class_attributes_for(part: str) -> dict[str, Any]:
    """Class attributes that tell transformers of a configuration within another, of any model type.

    Args:
        part: attribute that holds it.
    """
    if _SPEC is None:
        return {"sub_configs": {part: AutoConfig}}
    return {"sub_configs_defaults": {part: _SPEC(AutoConfig, model_type="bert")}}


def as_config(saved: Any) -> Any:
    """The configuration within another, where transformers leaves it the dictionary that was saved."""
    if _SPEC is not None or isinstance(saved, PreTrainedConfig):
        return saved
    fields = {} if saved is None else dict(saved)
    return AutoConfig.for_model(fields.pop("model_type", "bert"), **fields)
