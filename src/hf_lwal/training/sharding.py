"""Sharding with ``torch.distributed.fsdp.fully_shard``: which parts of a model to shard, and which not."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor

from ..modeling.distributed import all_reduce_sum, broadcast_, world_size
from ..modeling.modeling_lwal import LwALPreTrainedModel
from ..modeling.peft_support import core_model

Wanted = Callable[[nn.Module], bool]


def fsdp_units(model: LwALPreTrainedModel, wanted: Wanted | None = None) -> list[nn.Module]:
    """Modules to call ``fully_shard`` on before the model itself, in order, those within others first.

    The encoder's repeated blocks, and its head: label vectors are the class means seen through the head, also outside
    the model's forward, and a module that is its own unit gathers its weights whenever it is called.

    Args:
        model: not yet sharded.
        wanted: tells which modules beside the head; None for those that the encoder says must not be split.
    """
    names = set(model._no_split_modules or ())
    inner = [module for module in model.encoder.modules() if module is not model.encoder]
    blocks = [module for module in inner if (wanted(module) if wanted else type(module).__name__ in names)]
    if model.config.head_name is None:
        return blocks[::-1]
    return [*(block for block in blocks[::-1] if block is not model.head_module), model.head_module]


def shard(model: LwALPreTrainedModel, wanted: Wanted | None = None, **options: Any) -> LwALPreTrainedModel:
    """Shard a model in place with ``fully_shard``, the label table's own parameters excepted.

    Those are small, float32 beside a model in any dtype, and needed whole on every rank; their gradients are averaged
    over ranks as they arise.

    Args:
        model: equal on all ranks, its label table on its device.
        wanted: see `fsdp_units`.
        **options: for ``fully_shard``: ``mesh``, ``mp_policy``, …

    Returns:
        The same model.

    Raises:
        ImportError: PyTorch before 2.7, which cannot leave parameters out.
    """
    if "ignored_params" not in inspect.signature(fully_shard).parameters:
        raise ImportError("Sharding a model with a label table needs PyTorch 2.7: install torch>=2.7.")
    whole = list(model.label_table.parameters())
    for unit in fsdp_units(model, wanted):
        fully_shard(unit, **options)
    fully_shard(model, ignored_params=set(whole), **options)
    for method in ("embed", "start_values"):  # exact accumulation and start pass call them beside the forward
        register_fsdp_forward_method(model, method)
    # Otherwise at the first forward: a head that was called before it would take itself for the whole model.
    model._get_fsdp_state()._lazy_init()
    for parameter in whole:
        # On the gradient of one backward pass, not on what has been accumulated: accumulated parts are averaged once.
        parameter.register_hook(_averaged)  # type: ignore[no-untyped-call]
    return model


def _averaged(gradient: Tensor) -> Tensor:
    return all_reduce_sum(gradient.contiguous()) / world_size()


def is_sharded(model: nn.Module) -> bool:
    """Whether ``fully_shard`` has been called on a model."""
    return any(isinstance(parameter, DTensor) for parameter in model.parameters())


def step_one_by_one(groups: list[dict[str, Any]]) -> None:
    """Let an optimizer step each parameter by itself in groups of sharded and whole ones, which PyTorch cannot batch.

    Args:
        groups: the optimizer's ``param_groups``, changed in place.
    """
    for group in groups:
        if len({isinstance(parameter, DTensor) for parameter in group["params"]}) > 1:
            group.update({name: False for name in ("foreach", "fused") if name in group})


def shard_with(accelerator: Any, model: nn.Module) -> None:
    """Shard a model in place as the FSDP plugin of an accelerator says, where it would shard the label table, too.

    Models without a label table stay as they are, and so do those that are sharded, without what a forward gathered.

    Args:
        accelerator: with ``accelerator.is_fsdp2``.
        model: of which the first rank has the right weights; the others get them from it.

    Raises:
        ValueError: an adapter is around the model, or the weights are to stay on the CPU.
    """
    core = core_model(model)
    is_wrapped = core is not model
    if not isinstance(core, LwALPreTrainedModel):
        return
    for part in core.modules():
        if isinstance(part, FSDPModule):
            part.reshard()
    if is_sharded(core):
        return
    if is_wrapped:
        raise ValueError(
            f"FSDP2 cannot shard a {type(model).__name__} around a model with a label table: train the adapter with "
            "DistributedDataParallel (fsdp left out), where only its few weights need gradients."
        )
    plugin, mesh = accelerator.state.fsdp_plugin, getattr(accelerator, "torch_device_mesh", None)
    if isinstance(plugin.cpu_offload, CPUOffloadPolicy):
        raise ValueError(
            "fsdp_offload_params keeps the optimizer's state on the CPU, beside that of the label table on the GPU, "
            "and PyTorch cannot resume from such a mixture: leave it false."
        )
    policy = plugin.mixed_precision_policy
    options = {
        "reshard_after_forward": plugin.reshard_after_forward,
        # The outputs are distances, and their differences: rounded to bfloat16, close classes become one.
        "mp_policy": None if policy is None else replace(policy, output_dtype=None),
        "mesh": None if mesh is None else mesh[tuple(accelerator.parallelism_config.fsdp_dim_names)],
    }
    if policy is not None:
        for parameter in core.parameters():
            if parameter.requires_grad and parameter.is_floating_point():
                parameter.data = parameter.data.float()  # as accelerate does: the optimizer steps in float32
    core._apply(lambda tensor: _of_first_rank(tensor, accelerator.device))
    core.label_table.to(accelerator.device)
    if plugin.activation_checkpointing:  # accelerate would look for the classes of the layers by name
        core.gradient_checkpointing_enable()
        plugin.activation_checkpointing = False
    given = {name: value for name, value in options.items() if value is not None}
    shard(core, _units_of(plugin, core), **given)


@torch.no_grad()
def _of_first_rank(tensor: Tensor, device: torch.device) -> Tensor:
    """The first rank's values, where the tensor was; one without numbers gets them on the CPU."""
    there = (torch.empty_like(tensor, device=device) if tensor.is_meta else tensor.to(device)).contiguous()
    broadcast_(there)
    return there.cpu() if tensor.is_meta else tensor.copy_(there)


def _units_of(plugin: Any, model: LwALPreTrainedModel) -> Wanted:
    """Which modules are units of their own, as ``fsdp_auto_wrap_policy`` and the settings beside it say."""
    if plugin.transformer_cls_names_to_wrap is None:
        there = {type(module).__name__ for module in model.encoder.modules()}
        plugin.transformer_cls_names_to_wrap = [name for name in model._no_split_modules or () if name in there]
    plugin.set_auto_wrap_policy(model)  # accelerate does so later, when the classes no longer have these names
    settings = getattr(plugin.auto_wrap_policy, "keywords", {})
    if "transformer_layer_cls" in settings:
        return lambda module: isinstance(module, tuple(settings["transformer_layer_cls"]))
    if "min_num_params" in settings:
        return lambda module: sum(part.numel() for part in module.parameters()) > settings["min_num_params"]
    return lambda module: False
