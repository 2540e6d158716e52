"""DeepSpeed's ZeRO: its optimizer steps copies of the weights, which stage 3 also takes apart."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from ..modeling.modeling_lwal import LwALPreTrainedModel


@contextmanager
def written_to_copies(*modules: nn.Module) -> Iterator[None]:
    """Weights that are written within stay so: DeepSpeed's next step would put back what its copies hold.

    Args:
        *modules: whose trained parameters may be written; whole, as from `parts_of_start`.
    """
    from deepspeed.utils import safe_set_full_fp32_param

    yield
    for parameter in (part for module in modules for part in module.parameters() if part.requires_grad):
        safe_set_full_fp32_param(parameter, parameter.detach().float())


def parts_of_start(model: Any) -> list[nn.Module]:
    """Modules whose weights a start from data may write; what stage 3 has taken apart, it leaves as it is.

    Args:
        model: without DeepSpeed's engine around it.
    """
    parts = [model]
    if isinstance(model, LwALPreTrainedModel):
        parts = [model.label_table] if model.config.head_name is None else [model.head_module, model.label_table]
    return [part for part in parts if not _is_apart(part)]


def check_whole(model: Any) -> None:
    """Raise ValueError where stage 3 takes the label table apart, whose vectors are needed between forwards.

    Args:
        model: without DeepSpeed's engine around it.
    """
    if isinstance(model, LwALPreTrainedModel) and _is_apart(model.label_table):
        raise ValueError(
            "DeepSpeed's stage 3 takes the parameters of the label table apart, which are needed between forwards: "
            "train with stage 2, or with lwal_offset=False and lwal_learn_scale=False, so that the table has none."
        )


def _is_apart(module: nn.Module) -> bool:
    return any(hasattr(parameter, "ds_id") for parameter in module.parameters())
