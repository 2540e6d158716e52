"""The optimizer that a user built on the model he handed over, once layers of that model have been replaced."""

from __future__ import annotations

import logging
from typing import Any

from torch import nn

from ..modeling.modeling_lwal import LwALPreTrainedModel
from ..modeling.peft_support import core_model

logger = logging.getLogger(__name__)

Names = dict[nn.Parameter, str]


def parameter_names(model: nn.Module) -> Names:
    """Every parameter of ``model`` and its name."""
    return {parameter: name for name, parameter in model.named_parameters()}


def carry_over(optimizer: Any, before: Names, model: nn.Module) -> None:
    """Give the parameters that replaced others the parameter group of those; changes ``optimizer`` in place.

    Groups, their options and all other parameters with their state stay, and so do schedulers that drive them. A new
    head joins the group of the old one, weight to weight and bias to bias; what has no counterpart, such as the label
    table, joins the group of the old head's biases, which are mostly those without weight decay.

    Args:
        optimizer: any optimizer with ``param_groups``.
        before: parameters that the model had when the optimizer was built.
        model: the model as it is now.

    Raises:
        ValueError: the optimizer would not train the model.
    """
    now = parameter_names(model)
    homes: dict[str, list[nn.Parameter]] = {}
    for group in optimizer.param_groups:
        gone = [parameter for parameter in group["params"] if parameter in before and parameter not in now]
        homes |= {before[parameter]: group["params"] for parameter in gone}
        for parameter in gone:
            optimizer.state.pop(parameter, None)
        if gone:  # in place: some optimizers keep this very list
            group["params"][:] = [parameter for parameter in group["params"] if parameter not in set(gone)]
    held = _held(optimizer)
    for parameter, name in now.items():
        if homes and parameter.requires_grad and parameter not in before and parameter not in held:
            homes[_counterpart(name, homes)].append(parameter)
    _check(optimizer, before, now, model)


def _counterpart(name: str, gone: dict[str, Any]) -> str:
    """Which of the parameters that are gone stood where ``name`` stands, or else came closest."""
    for old in gone:
        if f".{name}".endswith(f".{old}") or f".{old}".endswith(f".{name}"):
            return old
    alike = [old for old in gone if old.endswith("bias") == name.endswith("bias")]
    return (alike or list(gone))[-1]


def _held(optimizer: Any) -> set[nn.Parameter]:
    return {parameter for group in optimizer.param_groups for parameter in group["params"]}


def _check(optimizer: Any, before: Names, now: Names, model: nn.Module) -> None:
    held, kind = _held(optimizer), type(getattr(optimizer, "optimizer", optimizer)).__name__
    if any(parameter in before and parameter not in now for parameter in held) or not held & set(now):
        raise ValueError(
            f"The {kind} in optimizers=(…) would not train the model, whose layers were replaced after it was built: "
            "build it on trainer.model and set trainer.optimizer, or pass optimizer_cls_and_kwargs=(class, options)."
        )
    core = core_model(model)
    table = set(core.label_table.parameters()) if isinstance(core, LwALPreTrainedModel) else set()
    left_out = [
        name
        for parameter, name in now.items()
        if parameter.requires_grad and parameter not in held and (parameter not in before or parameter in table)
    ]
    if left_out:
        logger.warning(
            "%s does not hold %s%s, which therefore stay as they start: build it on a model with a label table "
            "(AutoModelForLwALClassification) to train them.",
            kind,
            ", ".join(left_out[:3]),
            ", …" if len(left_out) > 3 else "",
        )
