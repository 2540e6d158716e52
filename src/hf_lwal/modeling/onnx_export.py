"""ONNX: a stock classifier as a graph for onnxruntime, compared with it before it is given out."""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import os
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .fold_check import largest_difference

if TYPE_CHECKING:
    from transformers import PreTrainedModel

FILE_NAME = "model.onnx"
NEEDED = ("onnx", "onnxscript", "onnxruntime")
EXTRA_TOKENS = 3


def require_onnx() -> None:
    """Raise ImportError with the command that installs what is missing."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise ImportError(f'ONNX export needs {", ".join(missing)}: pip install "hf-lwal[onnx]".')


@torch.no_grad()
def export_onnx(
    model: PreTrainedModel,
    folder: str | os.PathLike[str],
    batch: dict[str, Any],
    compared: Iterable[dict[str, Any]] = (),
) -> float:
    """Write ``model.onnx`` and its weights with any number of rows and tokens, in float32.

    The graph comes from transformers' own exporter. Before this returns, onnxruntime has run it on the batch, on its
    first row alone, for texts on the batch with more padding, and on the other batches.

    Args:
        model: a stock classifier, for example from ``fold``; left as it is.
        folder: made if need be.
        batch: an example of the inputs; a single row is used twice, since a size of 1 would be taken as fixed.
        compared: more batches to compare, with the same inputs.

    Returns:
        Largest difference of a logit between onnxruntime and PyTorch.

    Raises:
        ImportError: the extra ``onnx`` is not installed.
        ValueError: onnxruntime gives other logits.
    """
    require_onnx()
    from transformers.exporters.exporter_onnx import OnnxConfig, OnnxExporter

    model = copy.deepcopy(model).float().cpu().eval()
    model.config.use_cache = False  # else decoders return a cache that no classifier needs
    batch = {name: _example(value) for name, value in batch.items()}
    with _quiet():
        exported = OnnxExporter().export(model, batch, config=OnnxConfig(dynamic=True))
        exported.save_pretrained(folder)
    batches = [*_variants(batch, model.config), *({name: _plain(more[name]) for name in batch} for more in compared)]
    return _compared(model, Path(folder) / FILE_NAME, batches)


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
        ours = model(**batch, return_dict=True).logits
        outputs: Any = session.run(["logits"], {name: batch[name].numpy() for name in names})
        theirs = torch.from_numpy(outputs[0])
        difference, allowed = largest_difference(ours, theirs)
        if not difference <= allowed:  # NaN is no equality either
            raise ValueError(
                f"onnxruntime gives other logits than PyTorch for {type(model).__name__} (difference {difference:.3g} "
                f"on inputs of shape {tuple(batch[names[0]].shape)}): do not use {path}."
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
        if isinstance(logger, logging.Logger) and name.startswith(("torch.onnx.", "transformers.exporters."))
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
