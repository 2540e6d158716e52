"""Pictures and sounds of a data set as small files for a card, without anything that a camera wrote into them."""

from __future__ import annotations

import io
import logging
import sys
import wave
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..modeling.pictures import rgb

logger = logging.getLogger(__name__)

LONGEST_SIDE = 256
"""Pixels of a saved picture; models see about as many."""
LONGEST_SECONDS = 5
"""Of a saved sound."""


@dataclass(frozen=True)
class Sound:
    """A recording.

    Attributes:
        wave: (N,) float32 between -1 and 1.
        rate: samples per second.
    """

    wave: np.ndarray
    rate: int

    @property
    def seconds(self) -> float:
        """How long it is."""
        return len(self.wave) / self.rate


def picture_of(row: Mapping[str, Any]) -> Any:
    """The first picture of a row as a PIL image, read only as far as its header; None without one that can be read.

    Args:
        row: values are PIL images, or what ``datasets.Image(decode=False)`` gives.
    """
    pillow = sys.modules.get("PIL.Image")  # only those need it who have pictures
    for value in row.values():
        if pillow is not None and isinstance(value, pillow.Image):
            return value
        content = _encoded(value)
        if content is not None:
            from PIL import Image

            try:
                return Image.open(io.BytesIO(content))
            except (OSError, ValueError, Image.DecompressionBombError) as error:
                logger.debug("A picture of the data set cannot be read: %s", error)
    return None


def png(picture: Any) -> bytes:
    """A PIL image as PNG of at most ``LONGEST_SIDE`` pixels, upright, without EXIF, comments and colour profile."""
    from PIL import Image

    upright = rgb(picture)
    upright.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
    clean = Image.new("RGB", upright.size)
    clean.paste(upright)
    file = io.BytesIO()
    clean.save(file, format="PNG")
    return file.getvalue()


def sound_of(row: Mapping[str, Any], rate: int | None) -> Sound | None:
    """The sound of a row, or None without one that can be read.

    Args:
        row: values are ``{"array", "sampling_rate"}``, or what ``datasets.Audio(decode=False)`` gives; or the row
            holds ``input_values``, a wave as models read it.
        rate: samples per second of ``input_values``.
    """
    for value in row.values():
        if isinstance(value, Mapping) and value.get("array") is not None and value.get("sampling_rate"):
            return _sound(value["array"], int(value["sampling_rate"]))
        content = _encoded(value)
        if content is not None:
            return _decoded(content)
    if rate is not None and row.get("input_values") is not None:
        return _sound(row["input_values"], rate)
    return None


def wav(sound: Sound) -> bytes:
    """The first ``LONGEST_SECONDS`` of a sound as a WAV file, 16 bit, one channel."""
    samples = np.rint(32767.0 * sound.wave[: LONGEST_SECONDS * sound.rate]).astype("<i2")
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(sound.rate)
        writer.writeframes(samples.tobytes())
    return file.getvalue()


def read_wav(content: bytes) -> Sound:
    """A WAV file of 16 bit, its channels averaged.

    Raises:
        wave.Error, EOFError: it is another kind of file.
    """
    with wave.open(io.BytesIO(content)) as reader:
        if reader.getsampwidth() != 2:
            raise wave.Error(f"{8 * reader.getsampwidth()} bit")
        frames = np.frombuffer(reader.readframes(reader.getnframes()), dtype="<i2")
        channels = frames.reshape(-1, reader.getnchannels())  # (N, channels)
        return Sound(channels.mean(axis=1, dtype=np.float32) / 32768.0, reader.getframerate())


def _encoded(value: Any) -> bytes | None:
    """Bytes of a file that the datasets library has not decoded."""
    if not isinstance(value, Mapping) or not {"bytes", "path"} <= set(value):
        return None
    if value["bytes"] is not None:
        return bytes(value["bytes"])
    return Path(value["path"]).read_bytes() if value["path"] and Path(value["path"]).is_file() else None


def _decoded(content: bytes) -> Sound | None:
    """A sound file as a wave; what is no plain WAV needs torchcodec, as it does in the datasets library."""
    try:
        return read_wav(content)
    except (wave.Error, EOFError):
        pass
    try:
        from datasets import Audio

        decoded: Any = Audio().decode_example({"bytes": content, "path": None})
        return _sound(decoded["array"], int(decoded["sampling_rate"]))
    except (ImportError, RuntimeError, ValueError) as error:
        logger.debug("A sound of the data set cannot be read: %s", error)
        return None


def _sound(values: Any, rate: int) -> Sound | None:
    """A wave in range; a louder one, as feature extractors make them, is turned down."""
    try:
        samples = np.asarray(values, dtype=np.float32)
    except (TypeError, ValueError):  # no numbers, or several waves of unlike length
        return None
    samples = samples.mean(axis=0) if samples.ndim == 2 else samples  # (channels, N) → (N,)
    if samples.ndim != 1 or not samples.size or not np.isfinite(samples).all():
        return None
    peak = float(np.abs(samples).max())
    return Sound(samples / peak if peak > 1.0 else samples, rate)
