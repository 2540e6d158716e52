"""What is checked before a model is saved: that what is written can be loaded again, and is then the same model."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.integrations import is_deepspeed_zero3_enabled

from .configuration_lwal import match_label_names
from .core import LabelTableModel
from .files import staged
from .heads import is_plain_linear, stock_from_config
from .loading import listed

Layout = dict[str, Any]
"""Name of each part of an encoder → what it is: a module's type, a parameter's shape."""

DROPOUT = "Dropout"
"""What `Layout` calls layers that do nothing when a model predicts."""
KNOWN_FORWARDS = {"accelerate", "deepspeed", "kernels", "liger_kernel", "peft", "torch", "transformers"}
"""Packages that replace a module's ``forward`` by one that computes the same."""

_SHARD = re.compile(r"model-\d{5}-of-\d{5}\.safetensors|model\.safetensors(\.index\.json)?")
"""Weights as transformers calls them; those of an earlier save in other pieces would be read instead."""
WRAPPERS = ("peft.", "torch.distributed.", "torch._dynamo.", "deepspeed.", "transformer_engine.", "torchao.")
"""Where the modules come from that stand for others while a model is trained."""


def check_labels_fit(model: LabelTableModel) -> None:
    """Raise ValueError when the configuration names another number of labels than the label table has.

    Args:
        model: an LwAL model.
    """
    table = model.label_table
    if model.config.num_labels != table.num_labels:
        raise ValueError(
            f"config.id2label names {model.config.num_labels} labels, but the label table has {table.num_labels}: set "
            "as many names, change the labels with add_label, remove_label or merge_labels, or load the model anew "
            "with the labels of another task."
        )


def check_can_be_loaded_again(model: LabelTableModel) -> None:
    """Raise ValueError for a model of which something else, or nothing, would come back.

    Args:
        model: an LwAL model that is about to be saved.
    """
    check_labels_fit(model)
    model.config.id2label, model.config.label2id = match_label_names(model.config.id2label, None)
    outputs, needed = model.encoder.config.num_labels, model.config.embedding_dim
    if outputs != needed:
        raise ValueError(
            f"The encoder has {outputs} outputs instead of {needed}, since it was given to a method that trains a "
            "stock classifier: save what that trained, trainer.model."
        )
    if (changed := changed_parts(model)) is not None:
        raise ValueError(
            f"{changed}, so another model would come back from what is saved: register a class of your own with "
            "transformers' Auto classes before the model is built, or keep the weights with "
            "torch.save(model.state_dict(), path)."
        )


@contextmanager
def saved_together(directory: str | os.PathLike[str], given: Mapping[str, Any]) -> Iterator[str | os.PathLike[str]]:
    """The folder to save a model into, whose files go into ``directory`` all together, or none after an error.

    transformers writes the configuration first: where the weights then find no room, those of an earlier model would
    stand below the names of other labels.

    Args:
        directory: where the model is to be.
        given: arguments of ``save_pretrained`` by their names. A push, and a save of several ranks, goes into
            ``directory`` itself.
    """
    several = not given.get("is_main_process", True) or given.get("distributed_checkpoint", False)
    if several or given.get("push_to_hub", False):
        yield directory
        return
    place = Path(directory)
    with staged(place) as folder:
        yield folder
        saved = {path.name for path in folder.iterdir()}
    if saved & {"model.safetensors", "model.safetensors.index.json"}:
        for shard in place.glob("model*.safetensors*"):
            if shard.name not in saved and _SHARD.fullmatch(shard.name):
                shard.unlink()


def changed_parts(model: LabelTableModel) -> str | None:
    """In which part the encoder is not what is built from its configuration, as half a sentence; None if it is.

    Dropout may be another or none: it does nothing when a model predicts. Quantised and sharded encoders are not
    compared, nor are those with an adapter in them.

    Args:
        model: an LwAL model.
    """
    encoder = model.encoder
    quantised = any(getattr(part, "hf_quantizer", None) is not None for part in (model, encoder))
    wrapped = any(type(module).__module__.startswith(WRAPPERS) for module in encoder.modules())
    if quantised or wrapped or is_deepspeed_zero3_enabled():
        return None
    if (replaced := _replaced_forward(encoder)) is not None:
        return f"The forward of {replaced} was replaced"
    now = _layout(encoder)
    if now == model.saved_layout:
        return None
    built = _layout(_rebuilt(model))
    if now[""] != built[""]:
        return f"The encoder is a {now['']}, but its configuration builds a {built['']}"
    extra, gone, others = _differences(now, built)
    if extra:
        return f"The encoder has parts that its configuration does not build ({listed(extra)})"
    if gone:
        return f"The encoder lacks parts that its configuration builds ({listed(gone)})"
    if others:
        return f"The encoder has other parts than its configuration builds ({listed(others)})"
    model.saved_layout = now
    return None


def _rebuilt(model: LabelTableModel) -> PreTrainedModel:
    """The encoder that loading builds, without memory and without a number from the caller's random stream."""
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        built: PreTrainedModel = stock_from_config(model.config.encoder_config, model.task)
    return built


def _layout(encoder: nn.Module) -> Layout:
    modules = {name: _kind(module) for name, module in encoder.named_modules(remove_duplicate=False)}
    shapes = {
        name: tuple(parameter.shape) if type(parameter) is nn.Parameter else None  # sharded ones have parts only
        for name, parameter in encoder.named_parameters(remove_duplicate=False)
    }
    return modules | shapes


def _differences(now: Layout, built: Layout) -> tuple[list[str], list[str], list[str]]:
    """Names of the parts that are too many, that are missing, and that are others."""
    extra = [name for name in now if name not in built and now[name] != DROPOUT]
    gone = [name for name in built if name not in now and built[name] != DROPOUT]
    own = f"{now[''].rpartition('.')[0]}."  # BigBird exchanges layers of its own for short inputs
    others = [
        name
        for name in now.keys() & built.keys()
        if now[name] != built[name]
        and None not in (now[name], built[name])
        and not all(str(part[name]).startswith(own) for part in (now, built))
    ]
    return sorted(extra), sorted(gone), sorted(others)


def _kind(module: nn.Module) -> str:
    """Type of a module, one name for all that predict alike."""
    kind = type(module)
    if is_plain_linear(module):
        return "Linear"
    if isinstance(module, nn.Identity) or any(word in kind.__name__ for word in ("Dropout", "DropPath")):
        return DROPOUT
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        return "BatchNorm"
    return f"{kind.__module__}.{kind.__qualname__}"


def _replaced_forward(encoder: nn.Module) -> str | None:
    """Name of a module that runs other code than its class was written with."""
    for name, module in encoder.named_modules():
        function = vars(module).get("forward", type(module).forward)
        if "_hf_hook" in vars(module) or hasattr(module, "kernel_layer_name"):
            continue
        package = (getattr(function, "__module__", None) or type(function).__module__).split(".")[0]
        own = {kind.__module__.split(".")[0] for kind in type(module).__mro__}
        if package not in KNOWN_FORWARDS and ("forward" in vars(module) or package not in own):
            return f"the encoder's {name}" if name else "the encoder"
    return None
