"""Building a model from settings that may be damaged: what goes wrong is said, and nothing grows without end."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from transformers.integrations import deepspeed, is_deepspeed_zero3_enabled

from .stored_files import CONFIG, Shapes

LONGEST = 300
"""Characters of another library's message that are shown."""
MORE_NUMBERS, SPARE_NUMBERS = 16, 10**8
"""A model may have this multiple of the numbers in its files, and that many more: packed weights count several times,
and those that are new are not in the files."""
MORE_WEIGHTS, SPARE_WEIGHTS = 16, 2_000
"""The same of its weights by number."""


class ConfigurationError(ValueError):
    """A configuration from which no model can be built; the message says which setting and what to do."""


@contextmanager
def unpartitioned() -> Iterator[None]:
    """Models that are built within are whole, also where DeepSpeed's stage 3 would take them apart as they come.

    Label vectors, their sizes and their checks need the numbers; the engine takes the weights apart when it starts.
    """
    if not is_deepspeed_zero3_enabled():
        yield
        return
    engine = deepspeed._hf_deepspeed_config_weak_ref()
    deepspeed.unset_hf_deepspeed_config()
    try:
        yield
    finally:
        deepspeed.set_hf_deepspeed_config(engine)


@contextmanager
def building(what: str) -> Iterator[None]:
    """Say which settings describe no model, where a library fails on them somewhere within.

    Args:
        what: the settings, in words.

    Raises:
        ConfigurationError: in place of whatever else was raised, but for what is not the settings' fault.
    """
    try:
        with unpartitioned():
            yield
    except (ConfigurationError, ImportError, OSError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # each architecture has its own way to fail
        if "trust_remote_code" in str(error):  # the settings are right, and wait for a yes
            raise
        raise ConfigurationError(
            f"{what} describes no model that can be built ({said_by(error)}): correct it, or copy it anew from where "
            "the model comes from."
        ) from error


def said_by(error: BaseException) -> str:
    """What an exception says, on one line, cut where it is long."""
    line = " ".join(str(error).split()) or type(error).__name__
    return (line if len(line) <= LONGEST else f"{line[:LONGEST].rstrip()} …").rstrip(".")


def shown(value: Any) -> str:
    """A value for a message, cut where it is long; Python refuses to write very large numbers."""
    try:
        text = repr(value)
    except ValueError:
        text = "a number of very many digits"
    return text if len(text) <= 60 else f"{text[:60]}…"


@contextmanager
def no_larger_than(shapes: Shapes | None, name: str | os.PathLike[str]) -> Iterator[None]:
    """Stop the building of a model that has far more weights than its files, which a damaged size may ask for.

    Transformers builds without memory and then allocates what the files do not hold.

    Args:
        shapes: from `stored_shapes`; None for no limit.
        name: of the model.

    Raises:
        ConfigurationError: as soon as there are too many.
    """
    if shapes is None:
        yield
        return
    most = MORE_NUMBERS * sum(map(math.prod, shapes.values())) + SPARE_NUMBERS
    most_weights = MORE_WEIGHTS * len(shapes) + SPARE_WEIGHTS
    thread, numbers, weights = threading.get_ident(), 0, 0

    def count(module: nn.Module, _: str, weight: nn.Parameter | None) -> None:
        nonlocal numbers, weights
        if weight is None or threading.get_ident() != thread:
            return
        numbers, weights = numbers + weight.numel(), weights + 1
        if numbers > most or weights > most_weights:
            raise ConfigurationError(
                f"The sizes in {Path(name) / CONFIG} ask for far more weights than the model's files hold (a "
                f"{type(module).__name__} of the shape {tuple(weight.shape)}): correct them, or copy the file anew "
                "from where the model comes from."
            )

    handle = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        handle.remove()
