"""Sharding with ``torch.distributed.fsdp.fully_shard``: which parts of a model to shard, and which not."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ..modeling.distributed import all_reduce_sum, world_size
from ..modeling.modeling_lwal import LwALPreTrainedModel


def fsdp_units(model: LwALPreTrainedModel) -> list[nn.Module]:
    """Modules to call ``fully_shard`` on before the model itself, in order.

    The encoder's repeated blocks, and its head: label vectors are the class means seen through the head, also outside
    the model's forward, and a module that is its own unit gathers its weights whenever it is called.

    Args:
        model: not yet sharded.
    """
    blocks = [module for module in model.modules() if type(module).__name__ in (model._no_split_modules or ())]
    return blocks if model.config.head_name is None else [*blocks, model.head_module]


def shard(model: LwALPreTrainedModel, **options: Any) -> LwALPreTrainedModel:
    """Shard a model in place with ``fully_shard``, the label table's own parameters excepted.

    Those are small, float32 beside a model in any dtype, and needed whole on every rank; their gradients are averaged
    over ranks as they arise.

    Args:
        model: on its device, equal on all ranks.
        **options: for ``fully_shard``: ``mesh``, ``mp_policy``, …

    Returns:
        The same model.
    """
    from torch.distributed.fsdp import fully_shard

    whole = list(model.label_table.parameters())
    for unit in fsdp_units(model):
        fully_shard(unit, **options)
    fully_shard(model, ignored_params=set(whole), **options)
    for parameter in whole:
        # On the gradient of one backward pass, not on what has been accumulated: accumulated parts are averaged once.
        parameter.register_hook(_averaged)  # type: ignore[no-untyped-call]
    return model


def _averaged(gradient: Tensor) -> Tensor:
    return all_reduce_sum(gradient.contiguous()) / world_size()
