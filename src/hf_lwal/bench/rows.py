"""What a model reads: token ids, pixels or features of a data set's rows, made once and kept in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from transformers import DataCollatorWithPadding, default_data_collator

from ..modeling.pictures import rgb
from .datasets import Data

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Rows(NamedTuple):
    """Rows to learn from and to measure on, with a "labels" column, and what makes batches of them."""

    train: Dataset
    test: Dataset
    collator: Callable[[Any], Any]


class Pixels(NamedTuple):
    """How pictures become numbers.

    Attributes:
        size: side in pixels; None keeps the pictures' own.
        channels: 1 for grey, 3 for colour; None keeps the pictures' own.
        mean: mean of each channel, of values in 0…1; None measures it on the training rows.
        std: spread of each channel.
    """

    size: int | None = None
    channels: int | None = None
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None


def token_rows(data: Data, tokenizer: Any, max_length: int) -> Rows:
    """Token ids; the rows to measure on lie in the order of their length, so that batches need little padding."""

    def encode(rows: Dataset, by_length: bool) -> Dataset:
        ids = tokenizer(rows[data.input][:], truncation=True, max_length=max_length)["input_ids"]
        order = sorted(range(len(ids)), key=lambda row: len(ids[row])) if by_length else range(len(ids))
        labels = rows["label"][:]
        return Dataset.from_dict({"input_ids": [ids[row] for row in order], "labels": [labels[row] for row in order]})

    return Rows(encode(data.train, False), encode(data.test, True), DataCollatorWithPadding(tokenizer))


def feature_rows(data: Data, features_of: Callable[[list[str]], Tensor]) -> Rows:
    """Features (N, H) float32 of a frozen encoder, computed once, as ``inputs_embeds``."""

    def encode(rows: Dataset) -> Dataset:
        features = features_of(rows[data.input][:])
        return _with_tensors(rows["label"][:], lambda chosen: {"inputs_embeds": features[chosen]})

    return Rows(encode(data.train), encode(data.test), default_data_collator)


def pixel_rows(data: Data, pixels: Pixels) -> Rows:
    """Normalised ``pixel_values`` (3 or 1, size, size) float32; pictures of one size are decoded once and kept."""
    first = data.train[0][data.input]
    channels = pixels.channels or (1 if first.mode in ("L", "1") else 3)
    same_size = first.size == data.test[0][data.input].size == data.train[len(data.train) - 1][data.input].size
    read = _kept if same_size and max(first.size) <= 64 else _decoded_when_read
    size = pixels.size or max(first.size)
    train, test = (read(rows, data.input, channels, size) for rows in (data.train, data.test))
    mean, std = _moments(train, len(data.train), pixels)

    def encode(rows: Dataset, picture: Callable[[Sequence[int]], Tensor]) -> Dataset:
        def tensors(chosen: Sequence[int]) -> dict[str, Tensor]:
            values = picture(chosen).float() / 255.0  # (n, channels, height, width)
            if values.shape[-1] != size or values.shape[-2] != size:
                values = torch.nn.functional.interpolate(values, (size, size), mode="bilinear", antialias=True)
            return {"pixel_values": (values - mean) / std}

        return _with_tensors(rows["label"][:], tensors)

    return Rows(encode(data.train, train), encode(data.test, test), default_data_collator)


def _with_tensors(labels: Sequence[int], tensors: Callable[[Sequence[int]], Mapping[str, Tensor]]) -> Dataset:
    """Rows with a label column that can be read at once, whose tensors are taken when they are read."""

    def read(batch: Mapping[str, Any]) -> dict[str, Any]:
        if "row" not in batch:  # the labels alone, which datasets before 4.0 give to the transform as well
            return dict(batch)
        return {**tensors(batch["row"]), "labels": batch["labels"]}

    rows = Dataset.from_dict({"row": list(range(len(labels))), "labels": list(labels)})
    rows.set_transform(read)
    return rows


def _array(picture: Any, channels: int) -> np.ndarray:
    """(channels, height, width) uint8."""
    values = np.asarray(rgb(picture).convert("L" if channels == 1 else "RGB"))
    return values[None] if channels == 1 else values.transpose(2, 0, 1)


def _kept(rows: Dataset, column: str, channels: int, _: int) -> Callable[[Sequence[int]], Tensor]:
    """Decode all pictures now: (N, channels, height, width) uint8."""
    pictures = np.stack([_array(picture, channels) for picture in rows[column]])
    tensor = torch.from_numpy(pictures)
    return lambda chosen: tensor[chosen]


def _decoded_when_read(rows: Dataset, column: str, channels: int, size: int) -> Callable[[Sequence[int]], Tensor]:
    """Decode and scale pictures of any size when they are read."""

    def read(chosen: Sequence[int]) -> Tensor:
        pictures = [rgb(picture).resize((size, size)) for picture in rows[chosen][column]]
        return torch.from_numpy(np.stack([_array(picture, channels) for picture in pictures]))

    return read


def _moments(picture: Callable[[Sequence[int]], Tensor], number: int, pixels: Pixels) -> tuple[Tensor, Tensor]:
    """Mean and spread of each channel, (1, channels, 1, 1)."""
    if pixels.mean is not None and pixels.std is not None:
        mean, std = torch.tensor(pixels.mean), torch.tensor(pixels.std)
    else:
        sample = picture(np.random.default_rng(0).permutation(number)[:2000].tolist()).float() / 255.0
        mean, std = sample.mean(dim=(0, 2, 3)), sample.std(dim=(0, 2, 3)).clamp(min=1e-3)
    return mean.view(1, -1, 1, 1), std.view(1, -1, 1, 1)
