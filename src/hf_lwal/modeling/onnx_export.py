"""ONNX: a stock classifier as a graph for onnxruntime, compared with it before it is given out."""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import logging
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from transformers.utils import ModelOutput

from .compat import save_onnx
from .core import LabelTableModel
from .fold_check import largest_difference
from .heads import scores_of
from .open_set import RejectionScores

if TYPE_CHECKING:
    from transformers import PreTrainedModel

FILE_NAME = "model.onnx"
NEEDED = ("onnx", "onnxscript", "onnxruntime")
EXTRA_TOKENS = 3
SCORES = "rejection_scores"


@dataclass
class RejectingOutput(ModelOutput):
    """Of a graph that rejects: logits (B, C), and how far outside every class an input lies (B,)."""

    logits: Tensor | None = None
    rejection_scores: Tensor | None = None


def require_onnx() -> None:
    """Raise ImportError with the command that installs what is missing."""
    if find_spec("transformers.exporters") is None:  # before 5.13
        raise ImportError(
            f"ONNX export needs transformers 5.13 or later, and this is {transformers.__version__}: "
            "pip install -U transformers."
        )
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise ImportError(f'ONNX export needs {", ".join(missing)}: pip install "hf-lwal[onnx]".')


@torch.no_grad()
def export_onnx(
    model: PreTrainedModel,
    folder: str | os.PathLike[str],
    batch: dict[str, Any],
    compared: Iterable[dict[str, Any]] = (),
    rejection: tuple[str, nn.Module] | None = None,
) -> float:
    """Write ``model.onnx`` and its weights with any number of rows and tokens, in float32.

    The graph comes from transformers' own exporter. Before this returns, onnxruntime has run it on the batch, on its
    first row alone, for texts on the batch with more padding, and on the other batches.

    Args:
        model: a stock classifier, for example from ``fold``; left as it is.
        folder: made if need be.
        batch: an example of the inputs; a single row is used twice, since a size of 1 would be taken as fixed.
        compared: more batches to compare, with the same inputs.
        rejection: name of the model's last linear layer, and what maps its inputs to scores (B,), which the graph
            gives as a second output ``rejection_scores``.

    Returns:
        Largest difference of a logit or score between onnxruntime and PyTorch.

    Raises:
        ImportError: the extra ``onnx`` is not installed.
        ValueError: onnxruntime gives other logits.
    """
    require_onnx()
    from transformers.exporters.exporter_onnx import OnnxConfig, OnnxExporter

    model = copy.deepcopy(model).float().cpu().eval()
    if rejection is not None:
        _give_scores(model, rejection[0], copy.deepcopy(rejection[1]).float().cpu())
    model.config.use_cache = False  # else decoders return a cache that no classifier needs
    batch = {name: _example(value) for name, value in batch.items()}
    with _quiet():
        exported = OnnxExporter().export(model, batch, config=OnnxConfig(dynamic=True))
        save_onnx(exported, Path(folder) / FILE_NAME)
    batches = [*_variants(batch, model.config), *({name: _plain(more[name]) for name in batch} for more in compared)]
    return _compared(model, Path(folder) / FILE_NAME, batches)


def rejection_of(model: LabelTableModel) -> tuple[str, nn.Module] | None:
    """What `export_onnx` takes as ``rejection`` for the folded model; None where the radii are not known."""
    if not bool((model.label_table.rejection_radii > 0).all()):
        return None
    scores: nn.Module = RejectionScores(model)
    if model.head is None:  # scores of embeddings, which the folded model has no more
        scores = nn.Sequential(model.head_module, scores)
    return str(model.config.head_name), scores


def _give_scores(model: PreTrainedModel, head_name: str, scores: nn.Module) -> None:
    """Let a model return ``rejection_scores`` beside its logits, computed from what its head is given."""
    found: list[Tensor] = []
    stock = type(model)
    model.get_submodule(head_name).register_forward_pre_hook(lambda _, inputs: found.append(scores(inputs[0])))

    @functools.wraps(stock.forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        output = stock.forward(self, *args, **{**kwargs, "return_dict": True})
        return RejectingOutput(logits=scores_of(output), rejection_scores=found.pop())

    model.__class__ = type(stock.__name__, (stock,), {"forward": forward, "__module__": stock.__module__})


def _example(value: Any) -> Any:
    value = _plain(value)
    return torch.cat([value, value]) if isinstance(value, Tensor) and value.shape[0] == 1 else value


def _plain(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return value.cpu().float() if value.is_floating_point() else value.cpu()


def _variants(batch: dict[str, Any], config: Any) -> list[dict[str, Any]]:
    """The batch, its first row, and the batch with more padding where that means the same."""
    variants = [batch, {name: value[:1] if isinstance(value, Tensor) else value for name, value in batch.items()}]
    if {"input_ids", "attention_mask"} <= set(batch) <= {"input_ids", "attention_mask", "token_type_ids"}:
        fill = {"input_ids": config.get_text_config().pad_token_id or 0}
        padded = {name: F.pad(value, (0, EXTRA_TOKENS), value=fill.get(name, 0)) for name, value in batch.items()}
        variants.append(padded)
    return variants


def _compared(model: PreTrainedModel, path: Path, batches: list[dict[str, Any]]) -> float:
    """Largest difference of a logit over the batches; raises ValueError if it is large or a label differs."""
    import onnxruntime  # type: ignore[import-untyped]

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [entry.name for entry in session.get_inputs()]
    largest = 0.0
    for batch in batches:
        ours = model(**batch, return_dict=True)
        wanted = [name for name in ("logits", SCORES) if name in ours]
        outputs: Any = session.run(wanted, {name: batch[name].numpy() for name in names})
        for name, theirs in zip(wanted, outputs, strict=True):
            difference, allowed = largest_difference(ours[name], torch.from_numpy(theirs))
            if not difference <= allowed:  # NaN is no equality either
                raise ValueError(
                    f"onnxruntime gives other {name} than PyTorch for {type(model).__name__} (difference "
                    f"{difference:.3g} on inputs of shape {tuple(batch[names[0]].shape)}): do not use {path}."
                )
            largest = max(largest, difference)
    return largest


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide the exporters' progress and their notes on each other's versions."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "transformers.exporters", "onnxscript", "onnx_ir")]
    loggers += [
        logger
        for name, logger in logging.root.manager.loggerDict.items()
        if isinstance(logger, logging.Logger)
        # One of transformers' is called by the path of its file.
        and (name.startswith("torch.onnx.") or re.search(r"transformers[./\\]exporters[./\\]", name))
    ]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
