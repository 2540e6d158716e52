"""Seeded damage to the files of a saved model: what a disk, a merge, an editor or an adversary does to them."""

from __future__ import annotations

import json
import math
import random
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

Files = dict[str, bytes]

VALUES: list[Any] = [
    *(None, True, False, "", "x", "12", "ß\n\u202e\U0001f600", "../../etc/passwd", "None", "nan"),
    *(-1, 0, 1, 2, 3, 7, 64, 10**6, 10**12, 2**63, -(10**12), 10**400),
    *(0.5, -0.5, 1.0, 1e-300, 1e300, math.nan, math.inf, -math.inf),
    *([], [1], ["x"], [None], [[]], {}, {"a": 1}, {"0": "x"}, {"model_type": "bert"}),
]
"""What stands in place of a value."""
NO_HEADERS = [b"[]", b"{", b"3", b"null", b'{"a": 3}', b"[" * 50_000, b"\xff" * 9]
TABLE = "label_table.json"
CONFIG = "config.json"
WEIGHTS = "model.safetensors"


class Damage(NamedTuple):
    """Files of a checkpoint after one fault.

    Attributes:
        family: what kind of fault.
        what: this very fault.
        files: content by name; a name with a slash at its end is a folder.
        says: the files say something else that a user may say too: a setting with another value of its own kind.
        settings: names on the way to the value that is another, one of which an error may tell.
        readable: the configuration can be read, so that transformers' own classes come to what is tested.
    """

    family: str
    what: str
    files: Files
    says: bool = False
    settings: tuple[str, ...] = ()
    readable: bool = True


def damaged(files: Files, generator: random.Random) -> Damage:
    """One fault, drawn from all families."""
    family = generator.choice(FAMILIES)
    return family(dict(files), generator)


def write(files: Files, folder: Path) -> None:
    """Write files into an empty folder."""
    for name, content in files.items():
        if name.endswith("/"):
            (folder / name).mkdir()
        else:
            (folder / name).write_bytes(content)


# -- JSON -------------------------------------------------------------------------------------------------------------


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of all values inside a value."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for key, inner in entries for found in ((*path, key), *_places(inner, (*path, key)))]


def _at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def _kind(value: Any) -> Any:
    return float if type(value) is float else type(value)


def changed_json(content: Any, generator: random.Random) -> tuple[str, bytes, tuple[Any, ...], Any, Any]:
    """A JSON value with one fault: what it is, its text, and where, from what and to what a value was changed."""
    path = generator.choice(_places(content))
    *parents, key = path
    parent, old = _at(content, tuple(parents)), _at(content, path)
    how = generator.choice(["gone", "value", "value", "value", "near", "text", "deep", "twice", "renamed", "doubled"])
    new: Any = None
    name = ".".join(map(str, path))
    if how == "gone":
        del parent[key]
        return f"{name} gone", _text(content), path, old, None
    if how == "near" and type(old) in (int, float):
        new = generator.choice([old + 1, old - 1, old * 2, -old, old // 2, old * 10**9, float(old), int(old)])
    elif how == "near" and isinstance(old, bool):
        new = not old
    elif how == "text":
        new = old if isinstance(old, str) else json.dumps(old)
        new = "".join(generator.sample(new, len(new))) if isinstance(old, str) else new
    elif how == "deep":
        return f"{name} deep", _text(content, path, b"[" * 20_000 + b"]" * 20_000), path, old, []
    elif how == "twice" and isinstance(parent, dict):
        new = generator.choice(VALUES)
        both = _text(old) + b", " + _text(key) + b": " + _text(new)
        return f"{name} twice, {new!r:.40}", _text(content, path, both), path, old, new
    elif how == "renamed" and isinstance(parent, dict):
        parent[f"{key}{generator.choice(string.ascii_letters)}"] = parent.pop(key)
        return f"{name} renamed", _text(content), path, old, None
    elif how == "doubled" and isinstance(old, (list, dict)):
        new = old * 2 if isinstance(old, list) else {**old, **{f"{k}0": v for k, v in old.items()}}
    else:
        new = generator.choice(VALUES)
    parent[key] = new
    return f"{name} = {new!r:.60}", _text(content), path, old, new


def _text(content: Any, path: tuple[Any, ...] | None = None, raw: bytes = b"") -> bytes:
    """JSON, with ``raw`` in the place of one value."""
    if path is None:
        return json.dumps(content).encode("utf-8", "surrogatepass")
    mark = "\x00here\x00"
    *parents, key = path
    _at(content, tuple(parents))[key] = mark
    return json.dumps(content).encode().replace(json.dumps(mark).encode(), raw)


def of_config(files: Files, generator: random.Random) -> Damage:
    """A value of the configuration, or of the encoder's inside it."""
    content = json.loads(files[CONFIG])
    what, files[CONFIG], path, old, new = changed_json(content, generator)
    says = _kind(old) is _kind(new) and old is not None and not (isinstance(new, float) and math.isnan(new))
    names = tuple(str(key) for key in path if isinstance(key, str))
    names += ("num_labels",) if "id2label" in path else ()
    return Damage("config", what, files, says, names, not what.endswith("deep") and path != ("model_type",))


def of_label_table(files: Files, generator: random.Random) -> Damage:
    """A value of the table that people read: the weights count."""
    what, files[TABLE], *_ = changed_json(json.loads(files[TABLE]), generator)
    return Damage("label_table", what, files)


def of_text(files: Files, generator: random.Random) -> Damage:
    """A JSON file that is none, or another one."""
    name = generator.choice([CONFIG, TABLE])
    content = files[name]
    place = generator.randrange(len(content))
    kinds = ["cut", "empty", "flipped", "list", "number", "null", "latin", "folder", "gone", "deep", "bom"]
    how = generator.choice(kinds)
    files[name] = {
        "cut": content[:place],
        "empty": b"",
        "flipped": content[:place] + bytes([content[place] ^ (1 << generator.randrange(8))]) + content[place + 1 :],
        "list": b"[" + content + b"]",
        "number": b"3",
        "null": b"null",
        "latin": content.replace(b'"', b'"\xe4', 1),
        "deep": b"[" * 100_000,
        "bom": b"\xef\xbb\xbf" + content,
    }.get(how, b"")
    if how in ("gone", "folder"):
        del files[name]
    if how == "folder":
        files[f"{name}/"] = b""
    return Damage("text", f"{name} {how} {place}", files, readable=name != CONFIG)


# -- weights ----------------------------------------------------------------------------------------------------------


def parts(content: bytes) -> tuple[dict[str, Any], bytes]:
    """Header and data of a safetensors file."""
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def whole(header: Any, data: bytes) -> bytes:
    """A safetensors file."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def of_bytes(files: Files, generator: random.Random) -> Damage:
    """A weights file that was cut off, or that is something else."""
    content = files[WEIGHTS]
    place = generator.randrange(len(content))
    how = generator.choice(["cut", "empty", "longer", "html", "length", "folder", "gone", "header", "text header"])
    data = parts(content)[1]
    length = generator.choice([0, 1, 7, len(content), 10**12, 2**64 - 1, 2**63])
    files[WEIGHTS] = {
        "cut": content[:place],
        "empty": b"",
        "longer": content + b"\0" * generator.choice([1, 8, 1000]),
        "html": b"<html>not found</html>" * 99,
        "length": length.to_bytes(8, "little") + content[8:],
        "header": _flipped(content, generator.randrange(8, len(content) - len(data)), generator),
        "text header": whole(generator.choice(NO_HEADERS), data),
    }.get(how, b"")
    if how in ("gone", "folder"):
        del files[WEIGHTS]
    if how == "folder":
        files[f"{WEIGHTS}/"] = b""
    return Damage("bytes", f"{how} {place} {length}", files)


def _flipped(content: bytes, place: int, generator: random.Random) -> bytes:
    return content[:place] + bytes([content[place] ^ (1 << generator.randrange(8))]) + content[place + 1 :]


def of_header(files: Files, generator: random.Random) -> Damage:
    """A header that promises other tensors than there are."""
    header, data = parts(files[WEIGHTS])
    name = generator.choice([key for key in header if key != "__metadata__"])
    entry = header[name]
    how = generator.choice(["json", "name", "gone", "shape", "dtype", "offsets", "swapped", "case"])
    if how == "json":
        what, files[WEIGHTS] = (found := changed_json(header, generator))[0], whole(found[1], data)
        return Damage("header", what, files)
    if how in ("name", "case"):
        header[name.upper() if how == "case" else name + "x"] = header.pop(name)
    elif how == "gone":
        del header[name]
    elif how == "shape":
        shape = entry["shape"]
        others = [shape[::-1], [*shape, 1], [math.prod(shape)], [10**12], [-1], [], [0], ["x"], None]
        entry["shape"] = generator.choice(others)
    elif how == "dtype":
        entry["dtype"] = generator.choice(["F32", "I32", "U32", "F16", "BF16", "I64", "F64", "U8", "F8_E4M3", "x", 3])
    elif how == "offsets":
        start, end = entry["data_offsets"]
        others = [[end, start], [start + 4, end], [start], [0, 10**12], [-4, end], "x"]
        entry["data_offsets"] = generator.choice(others)
    elif how == "swapped":
        other = generator.choice([key for key in header if key not in ("__metadata__", name)])
        header[name], header[other] = header[other], entry
    files[WEIGHTS] = whole(header, data)
    return Damage("header", f"{name} {how} {json.dumps(header.get(name))}", files)


def of_numbers(files: Files, generator: random.Random) -> Damage:
    """A number in a tensor that no training writes."""
    import numpy as np

    header, data = parts(files[WEIGHTS])
    name = generator.choice([key for key in header if key != "__metadata__"])
    start, end = header[name]["data_offsets"]
    kind = {"F32": np.float32, "I64": np.int64}[header[name]["dtype"]]
    values = np.frombuffer(data[start:end], kind).copy()
    place = generator.randrange(len(values))
    number: float = generator.choice([math.nan, math.inf, -math.inf, -1.0, -1e30, 3e38])
    if kind is np.int64:
        number = generator.choice([-1, -(2**63), -7])
    values[generator.choice([slice(place, place + 1), slice(None)])] = number
    files[WEIGHTS] = whole(header, data[:start] + values.tobytes() + data[end:])
    return Damage("numbers", f"{name}[{place}] = {number}", files)


def of_data(files: Files, generator: random.Random) -> Damage:
    """A bit of the weights."""
    content = files[WEIGHTS]
    place = generator.randrange(len(content) - len(parts(content)[1]), len(content))
    files[WEIGHTS] = _flipped(content, place, generator)
    return Damage("data", f"byte {place}", files)


def of_shards(files: Files, generator: random.Random) -> Damage:
    """The index of weights in several files."""
    header, data = parts(files.pop(WEIGHTS))
    names = [key for key in header if key != "__metadata__"]
    index = {"metadata": {"total_size": len(data)}, "weight_map": {}}
    for number, some in enumerate((names[::2], names[1::2]), start=1):
        shard, packed, entries = f"model-0000{number}-of-00002.safetensors", b"", {"__metadata__": {"format": "pt"}}
        for name in some:
            start, end = header[name]["data_offsets"]
            entries[name] = header[name] | {"data_offsets": [len(packed), len(packed) + end - start]}
            packed += data[start:end]
        files[shard] = whole(entries, packed)
        index["weight_map"] |= dict.fromkeys(some, shard)
    how = generator.choice(["value", "value", "text", "shard gone", "shard cut", "swapped"])
    what, text = how, _text(index)
    if how == "value":
        what, text, *_ = changed_json(index, generator)
    elif how == "text":
        text = generator.choice([b"", b"[]", b"3", b"null", text[: len(text) // 2], b"[" * 50_000, b"\xff\xfe"])
    elif how == "shard gone":
        del files["model-00002-of-00002.safetensors"]
    elif how == "shard cut":
        files["model-00001-of-00002.safetensors"] = files["model-00001-of-00002.safetensors"][:-5]
    else:
        first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
        files[first], files[second] = files[second], files[first]
    files[f"{WEIGHTS}.index.json"] = text
    return Damage("shards", what, files)


FAMILIES: list[Callable[[Files, random.Random], Damage]] = [
    *(of_config, of_config, of_config, of_config, of_label_table, of_text),
    *(of_bytes, of_header, of_header, of_numbers, of_numbers, of_data, of_shards),
]
"""The configuration is drawn most often: it has the most places."""
