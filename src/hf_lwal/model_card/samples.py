"""A few rows of a data set for a card, cut to size and made into files, and what the model says to them."""

from __future__ import annotations

import io
import itertools
import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from datasets import Audio, Dataset, Image

from ..data.labels import LABEL_COLUMNS, label_column
from ..modeling.functional import IGNORE_INDEX
from .facts import CardFacts, Sample
from .media import picture_of, png, read_wav, sound_of, wav
from .text import visible

logger = logging.getLogger(__name__)

LONGEST_TEXT = 300
MOST_TEXTS = 3
"""Text columns that are shown; the others are notes about the row."""
DECODED_TOKENS = 128
MEASURED_ROWS = 100

FILE_NAME = re.compile(r"sample_(training|evaluation)_\d+\.(png|wav)")
"""Files that a card writes for its samples, and may delete."""


@dataclass(frozen=True)
class Reader:
    """How rows of a data set are read for people.

    Attributes:
        task: "text", "image" or "audio".
        names: label id to name.
        processing_class: tokenizer, whose ids are decoded where no text is left, or feature extractor.
    """

    task: str
    names: Mapping[int, str] = field(default_factory=dict)
    processing_class: Any = None

    @property
    def rate(self) -> int | None:
        """Samples per second of the waves that the model reads."""
        return getattr(self.processing_class, "sampling_rate", None)


def sample_rows(dataset: Any, part: str, amount: int, reader: Reader) -> tuple[list[Sample], dict[str, bytes]]:
    """Rows to show, of different labels where the labels can be read at once, else the first ones.

    Args:
        dataset: map-style, its rows mappings; of anything else there are no samples.
        part: "training" or "evaluation", for the names of files.
        amount: how many.
        reader: how they are read.

    Returns:
        The samples, and name to content of their files.
    """
    samples: list[Sample] = []
    files: dict[str, bytes] = {}
    for index in _chosen(dataset, amount):
        row = _untransformed(dataset)[index]
        if not isinstance(row, Mapping):
            break
        label, name = _label(row, reader.names), f"sample_{part}_{len(samples) + 1}"
        if reader.task == "text":
            texts = _texts(row, reader.processing_class)
            samples += [Sample(label, texts)] if texts else []
        elif (file := _file(row, reader)) is not None:
            ending, content = file
            files[f"{name}.{ending}"] = content
            samples.append(Sample(label, file=f"{name}.{ending}"))
    return samples, files


def pixels_of(dataset: Any) -> list[tuple[int, int]] | None:
    """Smallest, mean and largest width and height of the first pictures; None without pictures."""
    found = [picture.size for row in _first(dataset) if (picture := picture_of(row)) is not None]
    if not found:
        return None
    sizes = np.asarray(found)  # (rows, 2)
    return [(int(width), int(height)) for width, height in (sizes.min(0), sizes.mean(0).round(), sizes.max(0))]


def seconds_of(dataset: Any, rate: int | None) -> tuple[float, float, float] | None:
    """Shortest, mean and longest of the first sounds; None without sounds."""
    found = [sound.seconds for row in _first(dataset) if (sound := sound_of(row, rate)) is not None]
    return (min(found), float(np.mean(found)), max(found)) if found else None


def _first(dataset: Any) -> Iterator[Mapping[str, Any]]:
    """The first rows of a `datasets.Dataset`; other data sets may be slow, or make their rows up."""
    if isinstance(dataset, Dataset):
        plain = _untransformed(dataset)
        yield from (plain[index] for index in range(min(len(plain), MEASURED_ROWS)))


def _untransformed(dataset: Any) -> Any:
    """Rows as they are stored, pictures and sounds as the bytes of their files."""
    if not isinstance(dataset, Dataset):
        return dataset
    plain = dataset.with_format(None)
    for name, feature in plain.features.items():
        if isinstance(feature, (Image, Audio)):
            plain = plain.cast_column(name, type(feature)(decode=False))
    return plain


def _chosen(dataset: Any, amount: int) -> list[int]:
    """Numbers of the rows to show: the first of labels that are evenly spread over all, then whatever comes first."""
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__") or isinstance(dataset, Mapping):
        return []
    labels = label_column(dataset)
    rows = list(range(len(dataset)))
    if labels is None or labels.ndim != 1:
        return rows[:amount]
    if labels.dtype.kind not in "OUS":
        rows = [row for row in rows if labels[row] != IGNORE_INDEX]
    present, firsts = np.unique(labels[rows], return_index=True)
    spread = np.unique(np.linspace(0, len(present) - 1, min(amount, len(present))).round().astype(int))
    chosen = [rows[firsts[place]] for place in spread]
    others = (row for row in rows if row not in chosen)
    return [*chosen, *itertools.islice(others, amount - len(chosen))]


def _label(row: Mapping[str, Any], names: Mapping[int, str]) -> str:
    value: Any = next((row[name] for name in LABEL_COLUMNS if name in row), None)
    value = value.item() if hasattr(value, "item") else value
    return str(names.get(value, "" if value is None else value))


def _texts(row: Mapping[str, Any], tokenizer: Any) -> dict[str, str]:
    """Text columns of a row, or what its token ids say."""
    texts = {name: value for name, value in row.items() if isinstance(value, str) and name not in LABEL_COLUMNS}
    if not texts and "input_ids" in row and hasattr(tokenizer, "decode"):
        decoded = _decoded(row["input_ids"], tokenizer)
        numbers = [f"{number} " for number in range(1, len(decoded) + 1)] if len(decoded) > 1 else [""]
        texts = {f"text {number}from tokens": text for number, text in zip(numbers, decoded, strict=False)}
    return {name: visible(text, LONGEST_TEXT) for name, text in list(texts.items())[:MOST_TEXTS]}


def _decoded(ids: Any, tokenizer: Any) -> list[str]:
    """What token ids say: one text, or those of a pair, which the tokenizer has put a separator between."""
    separator = getattr(tokenizer, "sep_token_id", None)
    parts: list[list[int]] = [[]]
    for token in map(int, ids[:DECODED_TOKENS]):
        if separator is not None and token == separator:
            parts.append([])
        else:
            parts[-1].append(token)
    texts = (tokenizer.decode(part, skip_special_tokens=True).strip() for part in parts)
    return [text for text in texts if text]


def _file(row: Mapping[str, Any], reader: Reader) -> tuple[str, bytes] | None:
    """Ending and content of the file that shows a row; None where it cannot be read."""
    if reader.task == "audio":
        sound = sound_of(row, reader.rate)
        return None if sound is None else ("wav", wav(sound))
    try:
        picture = picture_of(row)
        return None if picture is None else ("png", png(picture))
    except OSError:  # cut off: a header without its pixels
        return None


def answers(model: Any, inputs: list[Any], processing_class: Any) -> list[tuple[str, float]]:
    """Likeliest label and its probability for each input; nothing where the model cannot be asked, as a stock one."""
    if not inputs or processing_class is None or not hasattr(model, "predict"):
        return []
    return [(best[0]["label"], float(best[0]["score"])) for best in model.predict(inputs, processing_class)]


def with_answers(facts: CardFacts, model: Any, processing_class: Any, files: Mapping[str, bytes]) -> CardFacts:
    """Facts with answers to samples, those of the evaluation where there are any, unless there are other examples.

    Args:
        facts: with its samples.
        model: the model of the card.
        processing_class: its tokenizer or feature extractor.
        files: name to content of the samples' files.
    """
    if facts.examples:
        return facts
    samples: list[Sample] = next((split.samples for split in reversed(facts.splits.values()) if split.samples), [])
    inputs = [sample.input for sample in samples if sample.input]
    try:
        found = answers(
            model, [_read(name, files[name]) if name in files else name for name in inputs], processing_class
        )
    except Exception:  # nobody asked for the answers: a push must not end because a tokenizer rejects its own text
        logger.debug("The model could not be asked about the sample rows of its card.", exc_info=True)
        return facts
    return replace(facts, examples=[(name, *answer) for name, answer in zip(inputs, found, strict=False)])


def _read(name: str, content: bytes) -> Any:
    """A saved picture or sound as a processing class takes it."""
    if name.endswith(".wav"):
        return read_wav(content).wave
    from PIL import Image

    return Image.open(io.BytesIO(content))
