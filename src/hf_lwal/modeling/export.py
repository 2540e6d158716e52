"""Fold: a stock classifier with C outputs that predicts what a model with a label table predicts.

One linear layer on the features gives the same label as the nearest label vector, and needs no hf-lwal to be served.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable
from typing import Any, NoReturn

import torch
from torch import nn
from transformers import PreTrainedModel

from .core import LabelTableModel
from .fold_check import FoldReport, best_temperature, compare, observe, usable_classes
from .heads import is_plain_linear, scores_of
from .linear_fold import folded_linear
from .probes import Batch, many_random_batches, on_device

logger = logging.getLogger(__name__)

LOGIT_TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""Precision of the model → how far, relative to the largest, two ways to the same embedding may differ."""


def fold(model: LabelTableModel, inputs: Iterable[Batch] | None = None, *, add_bias: bool = False) -> PreTrainedModel:
    """Return the stock classifier with the same predictions; see `fold_with_report`."""
    stock, report = fold_with_report(model, inputs, add_bias=add_bias)
    logger.info("%s", report)
    return stock


@torch.no_grad()
def fold_with_report(
    model: LabelTableModel, inputs: Iterable[Batch] | None = None, *, add_bias: bool = False
) -> tuple[PreTrainedModel, FoldReport]:
    """Fold the label table into the head, and compare predictions on random and given inputs before giving it out.

    Args:
        model: left as it is; its weights are copied.
        inputs: batches of the model's inputs (a DataLoader, a list of dicts); labels in them are ignored. A few
            hundred rows, which are kept in memory, fit the temperature to real inputs.
        add_bias: give a bias to a head that has none by design. The stock class cannot load it again, so the result
            lives in memory only, for example for an ONNX export; `save_pretrained` is refused.

    Returns:
        The stock classifier, in evaluation mode, and what was compared.

    Raises:
        ValueError: the architecture cannot be folded, or a prediction differs where no rounding explains it.
    """
    _refuse_what_has_no_linear_head(model, add_bias)
    was_training = model.training
    model.eval()
    try:
        given = [on_device(batch, model) for batch in inputs or ()]
        if inputs is not None and not given:
            raise ValueError("inputs holds no batch: give at least one, or leave it out to compare on random inputs.")
        random = _working_random_batches(model, needed=not given)
        for batches in (given, random):
            _refuse_processed_logits(model, batches[:1])
        observed = observe(model, given), observe(model, random)
        temperature = best_temperature(model, observed[0] if given else observed[1])
        stock = _with_folded_head(model, temperature)
        report = compare(model, stock, (given, random), observed, temperature)
    finally:
        model.train(was_training)
    return stock, report


def _refuse_what_has_no_linear_head(model: LabelTableModel, add_bias: bool) -> None:
    """Raise ValueError, with what to do instead, for a model that no stock checkpoint can stand for."""
    name = type(model.encoder).__name__
    if any(type(module).__module__.split(".")[0] == "peft" for module in model.modules()):
        raise ValueError("An adapter is around this model: merge it first, model = model.merge_and_unload().")
    if model.config.head_name is None:
        raise ValueError(f"{name} has no single linear head to fold the label vectors into: serve the model as it is.")
    if any(getattr(part, "hf_quantizer", None) is not None for part in (model, model.encoder)):
        raise ValueError(
            "This model is quantised: load it without quantization_config, fold it, and pass quantization_config when "
            "you load the folded model."
        )
    head: Any = model.head_module
    without_bias = getattr(head, "bias", None) is None
    if not is_plain_linear(head):
        raise ValueError(
            f"The head of {name} is a {type(head).__name__}, not a plain linear layer: load the model without "
            "quantisation or sharding, then fold it."
        )
    if any(parameter.is_meta for parameter in model.parameters()):
        raise ValueError("Some weights are not in memory: load the model without offloading, then fold it.")
    if without_bias and not add_bias:
        raise ValueError(
            f"The head of {name} has no bias by design, and its checkpoints have no place for the one that label "
            "vectors need: serve the model as it is, or export it to ONNX (hf-lwal fold --onnx, or "
            "fold(add_bias=True) for a model in memory)."
        )
    if not model.label_table.label_vectors.isfinite().all():
        raise ValueError("The label vectors are not finite: the training that made them has failed.")


def _with_folded_head(model: LabelTableModel, temperature: float) -> PreTrainedModel:
    """A copy of the encoder with the folded head and the names of the labels."""
    head, config = model.head_module, model.config
    vectors, distance_bias = (
        part.to(head.weight.device) for part in (model.label_table.label_vectors, model.label_table.distance_bias)
    )
    usable = usable_classes(model).to(vectors.device)
    weight, bias = folded_linear(head.weight, head.bias, vectors, usable, temperature, distance_bias)
    linear: Any = nn.utils.skip_init(  # type: ignore[no-untyped-call]  # takes no random numbers from the caller
        nn.Linear, weight.shape[1], weight.shape[0], device=head.weight.device, dtype=head.weight.dtype
    )
    linear.weight.copy_(weight)
    linear.bias.copy_(bias)
    linear._is_hf_initialized = True
    stock = copy.deepcopy(model.encoder).eval()
    parent, _, leaf = str(config.head_name).rpartition(".")
    setattr(stock.get_submodule(parent), leaf, linear)
    stock.zero_grad()
    names = config.label_names
    stock.config.num_labels = len(names)  # PVT keeps it beside the names
    stock.config.id2label = names
    stock.config.label2id = {name: index for index, name in names.items()}
    if hasattr(stock, "num_labels"):
        stock.num_labels = len(names)
    if head.bias is None:
        stock.save_pretrained = _refuse_to_save
    return stock


def _refuse_to_save(*_: Any, **__: Any) -> NoReturn:
    raise ValueError(
        "The head of this folded model has a bias that its stock class cannot load again: export it to ONNX, or save "
        "the model that it was folded from."
    )


def _working_random_batches(model: LabelTableModel, needed: bool) -> list[Batch]:
    """Random batches that the model takes; none, if they are not needed and it takes no random ones."""
    try:
        batches = [on_device(batch, model) for batch in many_random_batches(model)]
        model(**batches[0])
    except Exception as error:  # what architectures raise for inputs they cannot take has no common class
        if needed:
            raise ValueError(
                f"{type(model.encoder).__name__} does not take random inputs ({error}): pass inputs=[batch, …]."
            ) from error
        logger.info("%s does not take random inputs: only the given ones are compared.", type(model.encoder).__name__)
        return []
    return batches


def _refuse_processed_logits(model: LabelTableModel, batches: list[Batch]) -> None:
    """Raise ValueError if the architecture does more with the head's output than calling it logits."""
    for batch in batches:
        embeddings = model(**batch).embeddings
        logits = scores_of(model.encoder(**batch, return_dict=True)).float()
        largest = float(logits.abs().max())
        if logits.shape != embeddings.shape or not torch.allclose(
            logits, embeddings, rtol=0.0, atol=LOGIT_TOLERANCE[model.encoder.dtype] * largest
        ):
            raise ValueError(
                f"The logits of {type(model.encoder).__name__} are not what its head returns: it cannot be folded. "
                "Serve the model as it is."
            )
