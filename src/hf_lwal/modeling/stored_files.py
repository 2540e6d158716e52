"""The files of a saved model as they lie on the disk, looked at before anything is built or allocated from them."""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CONFIG, WEIGHTS = "config.json", "model.safetensors"
INDEX = f"{WEIGHTS}.index.json"
REMEDY = "Copy, download or save the model again."
MOST_COMPARED = 2**32
"""Bytes of weights that are compared with their checksum, which takes about a second."""
ANSWERS = ("encoder_config", "head_name", "initial_labels", "preset", "space", "task")
"""Settings that predictions depend on."""

_SHARD = re.compile(r"model(-\d+-of-\d+)?\.safetensors")

Shapes = dict[str, tuple[int, ...]]


def read_json(path: Path) -> dict[str, Any]:
    """Content of a JSON file.

    Raises:
        OSError: it cannot be read, or holds no settings by name; with its path and the remedy.
    """
    _check_is_file(path)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise OSError(f"{path} cannot be read ({type(error).__name__}: {str(error)[:100]}). {REMEDY}") from error
    if not isinstance(content, dict):
        raise OSError(f"{path} holds {type(content).__name__} where settings by name belong. {REMEDY}")
    return content


def _check_is_file(path: Path) -> None:
    """Raise OSError for what is none: a pipe or a device would be read for ever."""
    if not path.is_file():
        raise OSError(f"{path} is no file. {REMEDY}")


def tensors_of(path: Path) -> Shapes:
    """Shapes by name from the header of a safetensors file; its data is not read.

    Raises:
        OSError: the file is cut off, or none of this kind; with its path and the remedy.
    """
    _check_is_file(path)
    try:
        with path.open("rb") as file:
            length, size = int.from_bytes(file.read(8), "little"), path.stat().st_size
            header = json.loads(file.read(min(length, size)))
        entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
        ends = [int(entry["data_offsets"][1]) for entry in entries.values()]
        shapes = {name: tuple(int(width) for width in entry["shape"]) for name, entry in entries.items()}
    except (OSError, ValueError, AttributeError, TypeError, LookupError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "no whole header"
        raise OSError(f"{path} cannot be read ({why}): it was cut off or holds no weights. {REMEDY}") from error
    if 8 + length + max(ends, default=0) != size:
        raise OSError(f"{path} cannot be read (its size is not what its header says): it was cut off. {REMEDY}")
    return shapes


def stored_shapes(name: str | os.PathLike[str], keywords: Mapping[str, Any]) -> Shapes | None:
    """Shapes of the weights in a local folder, whose files are looked at on the way.

    Args:
        name: Hub id or folder.
        keywords: of ``from_pretrained``.

    Returns:
        None where other files than the usual ones are loaded.

    Raises:
        OSError: a file is damaged or missing.
    """
    folder = Path(name)
    if not folder.is_dir() or any(keywords.get(key) for key in ("subfolder", "variant", "gguf_file")):
        return None
    if (folder / CONFIG).exists():
        read_json(folder / CONFIG)
    if (folder / WEIGHTS).exists():
        return tensors_of(folder / WEIGHTS)
    if not (folder / INDEX).exists():
        return None
    index = read_json(folder / INDEX)
    places, about = index.get("weight_map"), index.get("metadata", {})
    if not isinstance(places, dict) or not isinstance(about, dict) or {*map(type, places.values())} - {str}:
        raise OSError(f"{folder / INDEX} does not say which weights are in which file. {REMEDY}")
    for place in places.values():
        if not place.isprintable() or not place.endswith(".safetensors"):
            raise OSError(f"{folder / INDEX} names {place[:60]!r} as a file of weights. {REMEDY}")
    found = {shard: tensors_of(folder / shard) for shard in sorted(set(places.values()))}
    for tensor, place in places.items():
        if tensor not in found[place]:
            raise OSError(f"{folder / INDEX} says that {tensor} is in {place}, which has no such weight. {REMEDY}")
    return {tensor: found[place][tensor] for tensor, place in places.items()}


# -- checksums --------------------------------------------------------------------------------------------------------


def checksums(folder: str | os.PathLike[str]) -> dict[str, str]:
    """Checksum by name of the files that predictions come from; without the weights where they are very large."""
    files = [path for path in sorted(Path(folder).glob("model*")) if _SHARD.fullmatch(path.name) and path.is_file()]
    if sum(path.stat().st_size for path in files) > MOST_COMPARED:
        files = []
    found = {path.name: checksum_of_file(path) for path in files}
    config = Path(folder) / CONFIG
    return found | ({CONFIG: _checksum_of_settings(config)} if config.is_file() else {})


def changed_files(folder: str | os.PathLike[str], recorded: Any) -> list[str]:
    """Names of files that are others than those of which `checksums` was recorded, some that are new or gone too."""
    if not isinstance(recorded, dict) or not recorded:
        return []
    now = checksums(folder)
    return sorted(name for name in recorded | now if recorded.get(name) != now.get(name))


def checksum_of_file(path: Path) -> str:
    """Checksum of a file's bytes."""
    value = 0
    with path.open("rb") as file:
        while block := file.read(2**22):
            value = zlib.crc32(block, value)
    return f"{value:08x}"


def _checksum_of_settings(path: Path) -> str:
    settings = read_json(path)
    text = json.dumps({name: settings.get(name) for name in ANSWERS}, sort_keys=True)
    return f"{zlib.crc32(text.encode()):08x}"
