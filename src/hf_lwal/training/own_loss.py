"""A loss of the user's own: does an override of ``compute_loss`` replace ours, and what did the model return to it."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any

from torch import nn


def replaces_loss(trainer: object, ours: Callable[..., Any]) -> bool:
    """Whether the ``compute_loss`` of the trainer's class is an override that never calls on to ``ours``."""
    for override in (vars(kind)["compute_loss"] for kind in type(trainer).__mro__ if "compute_loss" in vars(kind)):
        if override is ours:
            return False
        function = inspect.unwrap(getattr(override, "__func__", override))
        if "compute_loss" not in _names_in(getattr(function, "__code__", None)):
            return True
    return False


def _names_in(code: CodeType | None) -> set[str]:
    if code is None:  # a callable object: what it calls cannot be read
        return {"compute_loss"}
    inner = [_names_in(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*inner)


def ignores_items(loss: Callable[..., Any] | None) -> bool:
    """Whether a ``compute_loss_func`` never reads ``num_items_in_batch``, so that it gives a micro-batch's mean."""
    code = getattr(inspect.unwrap(loss), "__code__", None) if loss is not None else None
    return code is not None and not code.co_flags & inspect.CO_VARKEYWORDS and not _reads_items(code)


def _reads_items(code: CodeType) -> bool:
    read = [
        entry.argval if isinstance(entry.argval, tuple) else (entry.argval,) for entry in dis.get_instructions(code)
    ]
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return any("num_items_in_batch" in names for names in read) or any(map(_reads_items, inner))


@contextmanager
def seen_outputs(model: nn.Module, seen: list[Any]) -> Iterator[None]:
    """Collects in ``seen`` what ``model`` returns within the block."""
    handle = model.register_forward_hook(lambda _module, _args, output: seen.append(output))
    try:
        yield
    finally:
        handle.remove()
