"""Seeded damage to a training's checkpoint: its states replaced, spoiled, cut off, or taken from elsewhere."""

from __future__ import annotations

import io
import json
import math
import random
from typing import Any

import torch
from mutations import VALUES, Damage, Files, changed_json

STATES = ("optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin")
STATE = "trainer_state.json"


def damaged_state(files: Files, other: Files, generator: random.Random) -> Damage:
    """One fault in the states of a checkpoint.

    Args:
        files: content by name.
        other: files of a checkpoint of another training.
        generator: draws the fault.
    """
    files = dict(files)
    how = generator.choice(["json", "json", "value", "value", "value", "file", "bytes", "swapped"])
    if how == "json":
        what, files[STATE], path, *_ = changed_json(json.loads(files[STATE]), generator)
        return Damage("state", what, files, settings=tuple(map(str, path)))
    name = generator.choice([*STATES, STATE] if how in ("file", "bytes") else STATES)
    content = files[name]
    if how == "value":
        what, files[name] = _with_another_value(content, generator)
        return Damage("value", f"{name}: {what}", files)
    if how == "swapped":
        files[name] = other[name]
        return Damage("swapped", name, files)
    if how == "bytes":
        place = generator.randrange(len(content))
        files[name] = content[:place] + bytes([content[place] ^ (1 << generator.randrange(8))]) + content[place + 1 :]
        return Damage("bytes", f"{name} {place}", files)
    way = generator.choice(["gone", "empty", "cut", "garbage", "folder", "pickle"])
    files[name] = {
        "cut": content[: generator.randrange(len(content))],
        "garbage": b"<html>" * 50,
        "pickle": _saved(generator.choice([3, None, [1], {}, "x", {"state": {}}, torch.zeros(2)])),
    }.get(way, b"")
    if way in ("gone", "folder"):
        del files[name]
    if way == "folder":
        files[f"{name}/"] = b""
    return Damage("file", f"{name} {way}", files)


def _saved(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    entries = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else ()
    )
    return [found for key, inner in entries for found in ((*path, key), *_places(inner, (*path, key)))]


def _with_another_value(content: bytes, generator: random.Random) -> tuple[str, bytes]:
    """What torch saved, with one value gone, of another kind, or with numbers that no training writes."""
    value = torch.load(io.BytesIO(content), weights_only=False)
    if not isinstance(value, dict):
        return "another object", _saved(generator.choice([3, {}, None]))
    path = generator.choice(_places(value))
    *parents, key = path
    parent = value
    for step in parents:
        parent = parent[step]
    if isinstance(parent, tuple):
        return "nothing", _saved({})
    old, new = parent[key], generator.choice([*VALUES, torch.zeros(3), torch.zeros(2, 2)])
    if isinstance(old, torch.Tensor) and old.is_floating_point() and generator.random() < 0.7:
        new = old * generator.choice([math.nan, math.inf, -1.0, 1e30])
        new = generator.choice([new, new[..., :1], new.unsqueeze(0)]) if new.dim() else new
    if generator.random() < 0.2:
        del parent[key]
        return f"{path} gone", _saved(value)
    parent[key] = new
    return f"{path} = {str(new)[:40]!r}", _saved(value)
