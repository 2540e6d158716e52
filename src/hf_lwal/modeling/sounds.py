"""Sounds as one wave at a model's sampling rate; plain WAV files need nothing but SciPy."""

from __future__ import annotations

import io
import math
import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

NO_SCIPY = "reading and resampling sounds needs SciPy, which is not installed: pip install scipy"


def read_sound(source: Any, sampling_rate: int) -> np.ndarray:
    """A sound as a wave (N,) float32, its channels averaged, at the wanted rate.

    Args:
        source: a path, the bytes of a file, ``{"bytes", "path"}`` or ``{"array", "sampling_rate"}`` as the datasets
            library gives it.
        sampling_rate: samples per second that the model reads.

    Raises:
        ImportError: it is no WAV file, and nothing that reads others is installed.
        ValueError: there is no such file, or it is no sound that can be read.
    """
    if isinstance(source, Mapping) and source.get("array") is not None:
        return resampled(one_channel(source["array"]), int(source["sampling_rate"]), sampling_rate)
    content = _content(source)
    if not content:
        raise ValueError("the file is empty")
    if content[:4] not in (b"RIFF", b"RIFX", b"RF64"):
        return _other(content, sampling_rate)
    try:  # slow to import, and guarded, or code that is loaded from the Hub would need it for texts too
        from scipy.io import wavfile
    except ImportError as error:
        raise ImportError(NO_SCIPY) from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", wavfile.WavFileWarning)  # chunks that hold no samples
            rate, samples = wavfile.read(io.BytesIO(content))
    except Exception as error:  # SciPy's reader raises nearly anything where a file is damaged
        raise ValueError(" ".join(str(error).split()) or type(error).__name__) from error
    wave = one_channel(_unit_range(samples).T)
    if not wave.size:
        raise ValueError("the sound has no samples")
    return resampled(wave, rate, sampling_rate)


def one_channel(samples: Any) -> np.ndarray:
    """Samples (N,) or (channels, N) as a wave (N,) float32."""
    wave = np.asarray(samples, dtype=np.float32)
    return wave.mean(axis=0) if wave.ndim == 2 else wave


def resampled(wave: np.ndarray, rate: int, wanted: int) -> np.ndarray:
    """A wave (N,) at another number of samples per second, filtered so that nothing is mirrored into its range."""
    if rate == wanted:
        return wave
    try:
        from scipy.signal import resample_poly
    except ImportError as error:
        raise ImportError(NO_SCIPY) from error
    common = math.gcd(rate, wanted)
    return np.asarray(resample_poly(wave, wanted // common, rate // common), dtype=np.float32)


def _content(source: Any) -> bytes:
    """The bytes of a sound file."""
    if isinstance(source, Mapping):
        source = source["path"] if source.get("bytes") is None else source["bytes"]
    if isinstance(source, (bytes, bytearray)):
        return bytes(source)
    if not Path(source).is_file():
        raise ValueError("there is no such file")
    return Path(source).read_bytes()


def _unit_range(samples: np.ndarray) -> np.ndarray:
    """Samples of any type of WAV file as float32 between −1 and 1."""
    if samples.dtype.kind == "f":
        return samples.astype(np.float32)
    if samples.dtype == np.uint8:  # the only unsigned kind
        return (samples.astype(np.float32) - 128.0) / 128.0
    return (samples / -float(np.iinfo(samples.dtype).min)).astype(np.float32)


def _other(content: bytes, sampling_rate: int) -> np.ndarray:
    """Anything but WAV, by soundfile or ffmpeg, whichever there is."""
    try:
        import soundfile
    except ImportError:
        if shutil.which("ffmpeg") is None:
            raise ImportError(
                "only WAV files can be read here; for other sounds: pip install soundfile, or install ffmpeg"
            ) from None
        from transformers.pipelines.audio_utils import ffmpeg_read

        return np.asarray(ffmpeg_read(content, sampling_rate), dtype=np.float32)
    try:
        samples, rate = soundfile.read(io.BytesIO(content), dtype="float32", always_2d=True)
    except (RuntimeError, ValueError) as error:  # soundfile's own errors are RuntimeErrors
        raise ValueError(" ".join(str(error).split())) from error
    return resampled(one_channel(samples.T), rate, sampling_rate)
