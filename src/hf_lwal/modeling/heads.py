"""The last linear layer of a stock classifier: finding it, and running the classifier as if it were the identity."""

from __future__ import annotations

import copy
import logging
import sys
import threading
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from .building import ConfigurationError
from .compat import beside_graphs
from .tasks import TASKS

logger = logging.getLogger(__name__)


def stock_from_config(config: PreTrainedConfig, task: str, **kwargs: Any) -> Any:
    """Build a stock classifier with random weights.

    Args:
        config: its configuration; gets an empty list where it names no ``architectures``.
        task: "text", "image" or "audio".
        **kwargs: passed on to transformers.
    """
    with_architectures(config)
    return TASKS[task].stock.from_config(config, **kwargs)


def with_architectures(config: PreTrainedConfig) -> PreTrainedConfig:
    """Let ``config`` name no architecture by an empty list: transformers cannot choose by None (DeiT, LeViT)."""
    config.architectures = config.architectures or []
    return config


class Head(NamedTuple):
    """Where a stock classifier's last linear layer is, and how wide its input is."""

    name: str
    in_features: int


def find_head(config: PreTrainedConfig, task: str) -> Head | None:
    """Find the one linear layer whose size follows ``num_labels``, by building the class twice without memory.

    Args:
        config: configuration of the stock classifier; not modified.
        task: "text", "image" or "audio".

    Returns:
        The head, or None when no module, several, or something other than a plain linear layer depends on
        ``num_labels``.
    """
    first, second = (_shapes(config, task, num_labels) for num_labels in (5, 7))
    changed = {name.rpartition(".")[0] for name in first if first[name] != second.get(name)}
    if len(changed) != 1:
        return None
    name = changed.pop()
    module = _skeleton(config, task, 5).get_submodule(name)
    return Head(name, module.in_features) if is_plain_linear(module) else None


def check_head(encoder: nn.Module, name: str | None, outputs: int) -> None:
    """Raise ValueError where a configuration names another layer of a stock classifier than that of its outputs.

    Args:
        encoder: as it was built from the configuration.
        name: of its last linear layer; None for none.
        outputs: of that layer.
    """
    if name is None:
        return
    layer: Any = dict(encoder.named_modules(remove_duplicate=False)).get(name) if name else None
    if getattr(layer, "out_features", None) != outputs or not hasattr(layer, "in_features"):
        raise ConfigurationError(
            f"head_name is {name!r}, but it must name the last linear layer of {type(encoder).__name__}, which has "
            f"{outputs} outputs: copy config.json anew from where the model comes from."
        )


def is_plain_linear(module: nn.Module) -> bool:
    """Whether ``module`` is a linear layer with its weights as they are: ``nn.Linear``, sharded or not, or timm's."""
    kind = type(module)
    if kind.__module__.startswith("torch.distributed.fsdp."):  # a class that fully_shard has made of the module's own
        kind = kind.__bases__[-1]
    return kind is nn.Linear or (issubclass(kind, nn.Linear) and kind.__module__.startswith("timm.layers."))


def _shapes(config: PreTrainedConfig, task: str, num_labels: int) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in _skeleton(config, task, num_labels).state_dict().items()}


def _skeleton(config: PreTrainedConfig, task: str, num_labels: int) -> PreTrainedModel:
    config = copy.deepcopy(config)
    config.num_labels = num_labels
    with torch.device("meta"):
        return stock_from_config(config, task)


class _Running(threading.local):
    """The head that returns its input in the current thread, if any; torch.compile traces it as a constant."""

    head: nn.Module | None = None
    last: tuple[Any, Any] | None = None
    """Its last input and output in this call."""


_running = _Running()
_registering = threading.Lock()


@beside_graphs
def run_without_head(encoder: nn.Module, head_name: str, inputs: dict[str, Any]) -> Any:
    """Run ``encoder`` with its head as the identity, so that what it calls logits are the pooled features (B, H).

    The encoder's own pooling then works for every architecture, decoders included. A forward hook on the outermost
    module of that name (an adapter's wrapper as well) returns the module's input while this call runs, in this thread
    and for this very module only: a server's threads share one model, and each replica of a model on several devices
    has a head of its own. The hook, a plain function, can be copied with the module.

    Args:
        encoder: stock classifier.
        head_name: from `find_head`.
        inputs: keyword arguments of the encoder.

    Returns:
        What the encoder returns, with features in place of logits.
    """
    return _run_without_head(encoder, hooked_head(encoder, head_name), inputs)[0]


@beside_graphs
def run_with_features(encoder: nn.Module, head_name: str, inputs: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Run ``encoder``, and its head on the features that `run_without_head` returns.

    The head's output behind its hook is used where it is just that: for an encoder that pools before its head, which
    nothing else watches. Otherwise the head runs once more.

    Args:
        encoder: stock classifier.
        head_name: from `find_head`.
        inputs: keyword arguments of the encoder.

    Returns:
        Embeddings (B, D), features (B, H), and what the encoder returns.
    """
    head = hooked_head(encoder, head_name)
    encoded, last = _run_without_head(encoder, head, inputs)
    features = scores_of(encoded)
    if last is not None and last[0] is features and _is_watched_by_us_alone(head):
        return last[1], features, encoded
    return head(features), features, encoded


@beside_graphs
def _run_without_head(encoder: nn.Module, head: nn.Module, inputs: dict[str, Any]) -> tuple[Any, Any]:
    outer = _running.head, _running.last
    _running.head, _running.last = head, None
    try:
        return encoder(**inputs, return_dict=True), _running.last
    finally:
        _running.head, _running.last = outer


def _is_watched_by_us_alone(head: nn.Module) -> bool:
    return len(head._forward_hooks) == 1 and not head._forward_pre_hooks


def scores_of(encoded: Any) -> Any:
    """What an encoder computed for its ``num_labels`` outputs, (B, D); PP-LCNet calls it otherwise than logits."""
    return encoded.logits if "logits" in encoded else encoded[0]


def hooked_head(encoder: nn.Module, head_name: str) -> nn.Module:
    """The encoder's head, with the hook that `run_without_head` needs; called early to keep it out of compilation."""
    head = encoder.get_submodule(head_name)
    if _return_input not in head._forward_hooks.values():
        with _registering:
            if _return_input not in head._forward_hooks.values():
                head.register_forward_hook(_return_input)
    return head


@beside_graphs
def _return_input(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
    if _running.head is not module:
        return output
    if not torch.compiler.is_compiling():  # a graph drops the run of the head whose output nobody uses
        _running.last = args[0], output
    return args[0]


def layers_to_save(encoder: PreTrainedModel, head_name: str | None) -> list[str]:
    """Names of the encoder's layers that an adapter must save whole.

    They are the layers behind the backbone, which start from scratch (of a head inside the backbone, the head alone),
    and the BatchNorm layers, whose running statistics move although nothing trains them.

    Args:
        encoder: stock classifier.
        head_name: from `find_head`; None where there is no such head.
    """
    backbone = encoder.base_model_prefix
    if not hasattr(encoder, backbone) or (head_name or "").startswith(f"{backbone}."):
        behind = [] if head_name is None else [head_name]
    else:
        others = {name: child for name, child in encoder.named_children() if name != backbone}
        behind = [name for name, child in others.items() if any(True for _ in child.parameters())]
    norms = [
        name.partition(".modules_to_save.")[0].removesuffix(".original_module")
        for name, layer in encoder.named_modules()
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.track_running_stats
    ]
    return list(dict.fromkeys(behind + [name for name in norms if name.partition(".")[0] not in behind]))


def has_adapter(module: nn.Module) -> bool:
    """Whether PEFT has put layers into it."""
    peft = sys.modules.get("peft.tuners.tuners_utils")
    return peft is not None and any(isinstance(layer, peft.BaseTunerLayer) for layer in module.modules())


def active_copy(module: nn.Module) -> nn.Module:
    """The copy in use of a module that a PEFT adapter saves, or the module itself where none does."""
    wrapper: Any = module
    copies = wrapper._modules.get("modules_to_save")
    if copies is None:
        return module
    active = [name for name in wrapper.active_adapters if name in copies]
    return wrapper.original_module if wrapper.disable_adapters or not active else copies[active[0]]


def replace_head(encoder: PreTrainedModel, head: Head, outputs: int) -> None:
    """Give ``encoder`` a fresh last layer with ``outputs`` outputs, initialised as the architecture does it.

    It lies on the device of the old one and has its dtype, or the encoder's where the old one was quantised.

    Args:
        encoder: stock classifier, changed in place together with its configuration.
        head: from `find_head`.
        outputs: new number of outputs.
    """
    old: Any = encoder.get_submodule(head.name)
    new: Any = nn.Linear(head.in_features, outputs, bias=old.bias is not None, device=old.weight.device)
    with torch.no_grad():
        encoder._init_weights(new)
    # Of a quantised encoder the head is fresh, so there is nothing to quantise, and it must train.
    new = new.to(old.weight.dtype if old.weight.dtype.is_floating_point else encoder.dtype)
    new._is_hf_initialized = True
    parent, _, leaf = head.name.rpartition(".")
    setattr(encoder.get_submodule(parent), leaf, new)
    encoder.config.num_labels = outputs
    if hasattr(encoder, "num_labels"):
        encoder.num_labels = outputs
