"""The start pass: features of a few rows per class, computed in evaluation mode without leaving a trace."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from tqdm.auto import tqdm  # type: ignore[import-untyped]

from .class_moments import class_means, in_float64, moments
from .functional import IGNORE_INDEX, finite_rows, has_scatter
from .row_blocks import all_finite

logger = logging.getLogger(__name__)

CLOSE_CLASSES = 0.003
"""Mean distance of class means from their centre, as a share of the features' length, at which drift loses labels."""


class StartSamples(NamedTuple):
    """Features (N, H) float32 and labels (N,) int64 of the start rows, and the seconds it took to get them.

    The last ``names`` rows are those of label names: they count for class means, but stand for no new row.
    """

    values: Tensor
    labels: Tensor
    seconds: float
    names: int = 0


@contextmanager
def own_random_state() -> Iterator[None]:
    """Leave the caller's random streams (Python, NumPy, PyTorch on CPU and its GPU) as they were."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
        with torch.random.fork_rng(devices):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def collect(
    model: nn.Module,
    values_of: Callable[[dict[str, Any]], Tensor],
    batches: Iterable[dict[str, Any]],
    device: torch.device,
    progress: bool = True,
    description: str = "Class means",
    as_in_training: bool = False,
) -> StartSamples:
    """Run the model in evaluation mode over ``batches`` and keep what ``values_of`` returns, if it is finite.

    BatchNorm layers normalise by the statistics of these batches, from a pass of their own, where their own are of no
    use: in layers that never ran, and before a training, which normalises by the statistics of its batches. On data
    unlike what the weights were trained on, the features of the two are worlds apart. All layers are put back
    afterwards.

    Args:
        model: put in evaluation mode for the pass and back into its mode afterwards.
        values_of: maps a batch without its labels, on the device, to (B, H).
        batches: iterable that can be iterated twice; each batch a dict with "labels" (B,).
        device: where the model is.
        progress: show a progress bar.
        description: text of the progress bar.
        as_in_training: use the statistics of these batches in all BatchNorm layers.

    Raises:
        ValueError: no batch, a batch without labels, or no finite row.
    """
    return finite_samples(collect_any(model, values_of, batches, device, progress, description, as_in_training))


@torch.no_grad()
def collect_any(
    model: nn.Module,
    values_of: Callable[[dict[str, Any]], Tensor],
    batches: Iterable[dict[str, Any]],
    device: torch.device,
    progress: bool,
    description: str,
    as_in_training: bool,
) -> StartSamples:
    """As `collect`, but rows that are not finite stay: whether all are is for all ranks' rows to say."""
    started = time.perf_counter()
    was_training = model.training
    values, labels = [], []
    try:
        model.eval()
        with own_random_state(), _filled(model, values_of, batches, device, as_in_training):
            for batch in tqdm(batches, desc=description, disable=not progress or None, leave=False):
                inputs = _to_device(batch, device)
                if "labels" not in inputs:
                    raise ValueError(
                        f"The start pass needs labels, but a batch has only the columns {', '.join(sorted(inputs))}: "
                        "name the label column `label` or `labels`."
                    )
                labels.append(inputs.pop("labels"))
                values.append(values_of(inputs).float())
    finally:
        model.train(was_training)
    if not values:
        raise ValueError("The start pass found no rows: the training set is empty.")
    return StartSamples(torch.cat(values), torch.cat(labels), time.perf_counter() - started)


def finite_samples(samples: StartSamples) -> StartSamples:
    """The samples, those with NaN or infinity as rows without a label, which is said in the log.

    Raises:
        ValueError: no row is finite.
    """
    if all_finite(samples.values):
        return samples
    wrong = ~samples.values.isfinite().all(dim=1) & (samples.labels != IGNORE_INDEX)
    if not bool(wrong.any()):
        return samples
    number = int(wrong.sum())
    if number == int((samples.labels != IGNORE_INDEX).sum()):
        raise ValueError(
            f"The features of all {number} start rows hold NaN or infinity, which tells nothing: check "
            "the weights of the backbone and the inputs, or use bf16 or float32 instead of fp16."
        )
    logger.warning(
        "The features of %d of %d start rows hold NaN or infinity: these rows are left out of the start. Check the "
        "inputs, or use bf16 or float32 instead of fp16.",
        number,
        len(wrong),
    )
    return StartSamples(*finite_rows(samples.values, samples.labels), samples.seconds, samples.names)


def batch_norms(model: nn.Module) -> list[Any]:
    """The BatchNorm layers that keep running statistics."""
    layers: list[Any] = [
        layer
        for name, layer in model.named_modules()
        # An adapter keeps the layers it replaces, which run no more.
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and "original_module" not in name
    ]
    return [layer for layer in layers if layer.track_running_stats]


@contextmanager
def keep_batch_norms(model: nn.Module) -> Iterator[None]:
    """Put the statistics, momentum and mode of all BatchNorm layers back afterwards."""
    layers = batch_norms(model)
    saved = [({name: buffer.clone() for name, buffer in layer.named_buffers()}, layer.momentum) for layer in layers]
    modes = [layer.training for layer in layers]
    try:
        yield
    finally:
        for layer, (buffers, momentum), training in zip(layers, saved, modes, strict=True):
            for name, buffer in layer.named_buffers():
                buffer.copy_(buffers[name])
            layer.momentum = momentum
            layer.train(training)


def _has_several_rows(batch: Mapping[str, Any]) -> bool:
    """Whether the batch has a variance. Without labels it is refused later."""
    return len(batch.get("labels", ())) > 1


def _never_ran(layer: Any) -> bool:
    """Whether a BatchNorm layer has its initial statistics; its count says 0 too where weights came from elsewhere."""
    return bool((layer.running_mean == 0).all() and (layer.running_var == 1).all())


def has_fresh_batch_norms(model: nn.Module) -> bool:
    """Whether a BatchNorm layer never ran."""
    return any(map(_never_ran, batch_norms(model)))


@torch.no_grad()
def settle_fresh_batch_norms(
    model: nn.Module,
    values_of: Callable[[dict[str, Any]], Any],
    batches: Iterable[dict[str, Any]],
    device: torch.device,
) -> bool:
    """Give BatchNorm layers that never ran the statistics of ``batches``, for good.

    Evaluations normalise by running statistics, which start at mean 0 and variance 1 and move by a tenth per step:
    early ones would stand at chance however well the training goes. It does not use them itself.

    Returns:
        Whether all layers are such, so that the statistics of these batches are now those of the whole model.
    """
    layers = batch_norms(model)
    fresh = [layer for layer in layers if _never_ran(layer)]
    if not fresh or not any(map(_has_several_rows, batches)):
        return False
    was_training, momenta = model.training, [layer.momentum for layer in fresh]
    try:
        model.eval()
        with own_random_state():
            _take_statistics(fresh, values_of, batches, device)
    finally:
        model.train(was_training)
        for layer, momentum in zip(fresh, momenta, strict=True):
            layer.momentum = momentum
            layer.num_batches_tracked.zero_()  # of the training, which a cumulative average starts with
    return len(fresh) == len(layers)


@contextmanager
def _filled(
    model: nn.Module,
    values_of: Callable[[dict[str, Any]], Tensor],
    batches: Iterable[dict[str, Any]],
    device: torch.device,
    as_in_training: bool,
) -> Iterator[None]:
    """Give BatchNorm layers, or those that never ran, the statistics of ``batches`` for the time of the context."""
    fresh = [layer for layer in batch_norms(model) if as_in_training or _never_ran(layer)]
    if not fresh or not any(map(_has_several_rows, batches)):
        yield
        return
    with keep_batch_norms(model):
        _take_statistics(fresh, values_of, batches, device)
        yield


def _take_statistics(
    layers: Iterable[Any], values_of: Callable[[dict[str, Any]], Any], batches: Iterable[dict[str, Any]], device: Any
) -> None:
    """Run the batches through a model in evaluation mode whose given layers normalise by and average over them."""
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # cumulative average over the batches
        layer.train()
    for batch in filter(_has_several_rows, batches):
        inputs = _to_device(batch, device)
        del inputs["labels"]
        values_of(inputs)
    for layer in layers:
        layer.eval()


def _to_device(batch: dict[str, Any], device: torch.device) -> dict[str, Any]:
    return {name: value.to(device) if isinstance(value, Tensor) else value for name, value in batch.items()}


def warn_of_alike_rows(samples: StartSamples) -> None:
    """Warn where all start rows have the same features, but for rounding."""
    rows = (samples.labels != IGNORE_INDEX).nonzero()[:, 0]
    if len(rows) > 1 and not moments(samples.values, torch.zeros_like(samples.labels), 1, rows).differ:
        logger.warning(
            "The model sees all %d start rows alike, so nothing tells one label from another: look for a max_length "
            "that cuts everything off, for inputs that are empty or constant, and for weights that are zero.",
            len(rows),
        )


def classes_are_close(samples: StartSamples, num_labels: int) -> bool:
    """Whether class means lie so close together that the features' first steps move them past each other; warns."""
    means, counts = class_means(samples.values, samples.labels, num_labels)
    means = means[counts > 0]
    rows = (samples.labels != IGNORE_INDEX).nonzero()[:, 0]
    norm = sum(float(values.norm(dim=1).sum()) for _, values in in_float64(samples.values, rows)) / max(len(rows), 1)
    apart = float((means - means.mean(dim=0)).norm(dim=1).mean())
    if len(means) < 2 or not has_scatter(means - means.mean(dim=0), means) or apart >= CLOSE_CLASSES * norm:
        return False
    logger.warning(
        "The class means lie only %.2g %% of the features' length apart, and one step of the optimizer moves all "
        "features further than that. Unless lwal_eval_refresh says otherwise, label vectors are measured anew before "
        "each evaluation: on two layers of MiniLM accuracy then fell from 92 to 77 %% in 24 steps and was back at 90 "
        "after 48 (without, at 46 after 15). A backbone that was trained as a whole does not fall.",
        100.0 * apart / norm,
    )
    return True


def warn_of_missing_classes(labels: Tensor, names: Mapping[int, str]) -> None:
    """Warn with the names of the classes that do not occur in ``labels`` (N,) int64."""
    present = set(labels.tolist())
    missing = [name for index, name in sorted(names.items()) if index not in present]
    if missing:
        logger.warning(
            "No training row was found for %d of %d labels (%s): they rank last until a row of theirs is seen.",
            len(missing),
            len(names),
            ", ".join(missing[:20]) + (", …" if len(missing) > 20 else ""),
        )
