"""From raw texts, images or sounds to embeddings and labels, in batches."""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from transformers.tokenization_utils_base import LARGE_INTEGER

from .core import LabelTableModel
from .label_snapshot import labels_of_now
from .pictures import read_picture
from .sounds import read_sound


@torch.no_grad()
def encode(model: LabelTableModel, inputs: Sequence[Any], processing_class: Any, batch_size: int) -> Tensor:
    """Embeddings (N, D) float32 on the CPU."""
    return torch.cat([model.embed(batch).cpu() for batch in evaluated(model, inputs, processing_class, batch_size)])


@torch.no_grad()
def start_values(model: LabelTableModel, inputs: Sequence[Any], processing_class: Any, batch_size: int) -> Tensor:
    """What class means are taken of, (N, H) or (N, D) float32, on the model's device."""
    batches = evaluated(model, inputs, processing_class, batch_size)
    return torch.cat([model.start_values(batch).float() for batch in batches])


@torch.no_grad()
def predict(
    model: LabelTableModel, inputs: Sequence[Any], processing_class: Any, top_k: int, batch_size: int
) -> list[list[dict[str, Any]]]:
    """Per input the ``top_k`` likeliest labels with their probabilities."""
    table, names = labels_of_now(model)
    if not 1 <= top_k <= len(names):
        raise ValueError(f"top_k is {top_k}, but it must be between 1 and the number of labels, {len(names)}.")
    results = []
    for batch in evaluated(model, inputs, processing_class, batch_size):
        best = model(**batch, label_table=table).logits.softmax(dim=1).topk(top_k)
        for scores, indices in zip(best.values.tolist(), best.indices.tolist(), strict=True):
            results.append([{"label": names[i], "score": score} for i, score in zip(indices, scores, strict=True)])
    return results


def evaluated(
    model: LabelTableModel, inputs: Sequence[Any], processing_class: Any, batch_size: int
) -> Iterator[dict[str, Any]]:
    """Prepared batches, with the model in evaluation mode while they are used."""
    listed = as_list(inputs, model.task)
    with evaluation_mode(model):
        for start in range(0, len(listed), batch_size):
            yield prepare(model, listed[start : start + batch_size], processing_class)


_switching = threading.Lock()
_in_evaluation: WeakKeyDictionary[nn.Module, tuple[int, bool]] = WeakKeyDictionary()


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Evaluation mode until the last of all threads that are in this context leaves it; then the mode before."""
    with _switching:
        users, was_training = _in_evaluation.get(model, (0, model.training))
        if model.training or not users:
            model.eval()
        _in_evaluation[model] = users + 1, was_training
    try:
        yield
    finally:
        with _switching:
            users, was_training = _in_evaluation.pop(model)
            if users > 1:
                _in_evaluation[model] = users - 1, was_training
            else:
                model.train(was_training)


def prepare(model: LabelTableModel, inputs: Sequence[Any], processing_class: Any) -> dict[str, Any]:
    """Raw inputs as one batch, on the model's device and in its dtype."""
    options: dict[str, Any] = {"return_tensors": "pt"}
    inputs = list(inputs)
    if model.task == "text":
        options |= {"padding": True, "truncation": True, "max_length": max_length_of(model, processing_class)}
    if model.task == "image":
        inputs = [picture(image) for image in inputs]
    if model.task == "audio":
        options["sampling_rate"] = processing_class.sampling_rate
        inputs = [sound(wave, processing_class.sampling_rate) for wave in inputs]
        if not getattr(inspect.signature(processing_class.__call__).parameters.get("padding"), "default", False):
            options["padding"] = True  # others pad on their own, Whisper's to the one length that its model takes
    batch = processing_class(inputs, **options)
    return {
        name: value.to(model.device, model.encoder.dtype) if value.is_floating_point() else value.to(model.device)
        for name, value in batch.items()
    }


def as_list(inputs: Any, task: str) -> list[Any]:
    """Inputs as a list, from a list, tuple, array, pandas Series or a data set's column.

    Raises:
        ValueError: no inputs, or a single one, or a text that is missing.
    """
    single = isinstance(inputs, str | bytes | Mapping) or not (
        hasattr(inputs, "__len__") and hasattr(inputs, "__iter__")
    )
    if single or not len(inputs):
        raise ValueError(f"inputs must be a list of at least one {task}, but it is {type(inputs).__name__}.")
    least = {"text": 1, "image": 3, "audio": 2}[task]  # dimensions of an array of several
    if getattr(inputs, "ndim", least) < least and np.asarray(inputs).dtype != object:
        raise ValueError(f"inputs must be a list of at least one {task}, but it is a single one: put it in a list.")
    listed = list(inputs)
    for place, value in enumerate(listed if task == "text" else ()):
        if not hasattr(value, "__len__"):  # None, NaN and their like
            raise ValueError(f"inputs[{place}] is {value!r}, which is no text: leave out the rows that have none.")
    return listed


def picture(image: Any) -> Any:
    """A picture as image processors take it: what `read_picture` reads; arrays and tensors stay as they are.

    Raises:
        ValueError: a file that cannot be read.
    """
    named = isinstance(image, str | os.PathLike | bytes | Mapping)
    if not named and not hasattr(image, "getbands"):  # an image of Pillow: processors clip more than 8 bits
        return image
    try:
        return read_picture(image)
    except ValueError as error:
        raise ValueError(
            f"{_name_of(image)} cannot be read as a picture ({error}): leave it out or mend it."
        ) from error


def sound(wave: Any, sampling_rate: int) -> Any:
    """A sound as feature extractors take it, at the extractor's rate: what `read_sound` reads, or samples as they are.

    Args:
        wave: (T,) samples at that rate, a file, or what a data set's Audio column gives.
        sampling_rate: of the extractor.

    Raises:
        ValueError: a file that cannot be read, or a dict that lacks samples or rate.
    """
    decoder = hasattr(wave, "get_all_samples")  # of datasets: it answers for two keys, but is no mapping
    if not decoder and not isinstance(wave, str | os.PathLike | bytes | Mapping):
        return wave
    try:
        if decoder or (isinstance(wave, Mapping) and not {"array", "raw"}.isdisjoint(wave)):
            samples = wave["array"] if decoder or "array" in wave else wave["raw"]
            wave = {"array": samples, "sampling_rate": wave["sampling_rate"]}
        return read_sound(wave, sampling_rate)
    except KeyError as error:
        raise ValueError(
            f"A sound's dict must have array and sampling_rate, but it has {', '.join(map(str, wave))}: decode it."
        ) from error
    except ValueError as error:
        raise ValueError(f"{_name_of(wave)} cannot be read as a sound ({error}): leave it out or mend it.") from error


def _name_of(source: Any) -> str:
    """A file, for a message."""
    source = source.get("path") if isinstance(source, Mapping) else source
    return str(source) if isinstance(source, str | os.PathLike) else "An input"


def max_length_of(model: nn.Module, tokenizer: Any) -> int | None:
    """How many tokens of a text the model can read; None where neither it nor its tokenizer has a limit.

    A tokenizer may know no limit, or a larger one than its model's table of positions has rows.

    Args:
        model: an LwAL model or a stock classifier.
        tokenizer: its tokenizer, or a processor that holds one.
    """
    stated = getattr(getattr(tokenizer, "tokenizer", tokenizer), "model_max_length", None) or LARGE_INTEGER
    config: Any = model.config
    positions = getattr(getattr(config, "encoder_config", None) or config, "max_position_embeddings", None)
    if not isinstance(positions, int) or positions < 1:
        return int(stated) if stated < LARGE_INTEGER else None
    layers = ((name, layer) for name, layer in model.named_modules() if isinstance(layer, nn.Embedding))
    tables = [layer for name, layer in layers if "position" in name or name.endswith("wpe")]  # GPT's name for them
    for table in tables:
        if table.padding_idx is not None and table.num_embeddings == positions:
            positions -= table.padding_idx + 1  # RoBERTa and its kin count positions from behind the padding's
            break
    if stated >= LARGE_INTEGER:
        return positions
    # Without a table, positions are relative or rotary, and a longer text than usual is no error.
    return min(int(stated), positions) if tables else int(stated)
