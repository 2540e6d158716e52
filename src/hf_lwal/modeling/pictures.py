"""Pictures of any kind as the 8-bit RGB that models read, the same in training, prediction and measurement."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

NO_PILLOW = 'pictures need Pillow, which is not installed: pip install "hf-lwal[vision]"'
DEEP_MODES = ("I;16", "I;16L", "I;16B", "I;16N", "I", "F")
"""Modes of more than 8 bits, which Pillow's ``convert("RGB")`` clips at 255: they would come out white."""


def read_picture(source: Any, fast: bool = False) -> Any:
    """A picture as an upright 8-bit RGB image of Pillow.

    Args:
        source: a path, the bytes of a file, ``{"bytes", "path"}`` as the datasets library stores it, or an image.
        fast: decode the whole file, but perhaps not in its full size: to learn whether it can be read.

    Raises:
        ImportError: Pillow is missing.
        ValueError: there is no such file, or it is no picture that Pillow can read to its end.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError(NO_PILLOW) from error
    if isinstance(source, Image.Image):
        return rgb(source)
    try:
        with Image.open(_file(source)) as picture:
            if fast:
                picture.draft("RGB", (32, 32))
            return rgb(picture)
    except Exception as error:  # Pillow's readers raise nearly anything where a file is damaged
        raise ValueError(" ".join(str(error).split()) or type(error).__name__) from error


def _file(source: Any) -> Any:
    """What Pillow opens."""
    if isinstance(source, Mapping):
        source = source["path"] if source.get("bytes") is None else source["bytes"]
    if isinstance(source, (bytes, bytearray)):
        return io.BytesIO(source)
    if not Path(source).is_file():
        raise FileNotFoundError("there is no such file")
    return source


def rgb(picture: Any) -> Any:
    """An image of Pillow as 8-bit RGB: upright, deep grey values scaled, transparent parts on white.

    Args:
        picture: of any mode. 16-bit values 0…65535 become 0…255; 32-bit integers and floats, whose range no file
            states, are scaled by the smallest of 1 (floats), 255, 65535 and 2³²−1 that holds the largest of them, and
            from their smallest to their largest where some are negative.
    """
    try:  # guarded, or code that is loaded from the Hub would need it for texts too
        from PIL import Image, ImageOps
    except ImportError as error:
        raise ImportError(NO_PILLOW) from error
    upright = ImageOps.exif_transpose(picture)
    if upright.mode in DEEP_MODES:
        return Image.fromarray(_eight_bits(np.asarray(upright), upright.mode)).convert("RGB")
    if upright.has_transparency_data:
        # Colours under transparent pixels are arbitrary, mostly black: a black drawing would vanish.
        drawn = upright.convert("LA").convert("RGBA") if upright.mode == "La" else upright.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", drawn.size, "white"), drawn).convert("RGB")
    return upright.convert("RGB")


def _eight_bits(values: np.ndarray, mode: str) -> np.ndarray:
    """Deep grey values (height, width) as uint8."""
    grey = np.nan_to_num(values.astype(np.float64), posinf=0.0, neginf=0.0)
    low, high = (float(grey.min()), float(grey.max())) if grey.size else (0.0, 0.0)
    if mode.startswith("I;16"):
        low, high = 0.0, 65535.0
    elif low >= 0.0:
        scales = ([1.0] if mode == "F" else []) + [255.0, 65535.0, 2.0**32 - 1.0]
        low, high = 0.0, next((scale for scale in scales if high <= scale), high)
    return np.rint((grey - low) * (255.0 / (high - low))).astype(np.uint8)
