"""What goes to the Hub beside the weights: the modules that load the model elsewhere, and what a card must say.

Transformers loads such modules with ``trust_remote_code=True`` only, and ignores them once hf_lwal is imported.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard
from transformers.dynamic_module_utils import get_relative_import_files

from .files import write_text_atomically

AUTO_CLASSES = {
    "text": "AutoModelForSequenceClassification",
    "image": "AutoModelForImageClassification",
    "audio": "AutoModelForAudioClassification",
}
"""Task → transformers' class that loads a model of it."""

PIPELINE_TAGS = {"text": "text-classification", "image": "image-classification", "audio": "audio-classification"}
TAGS = ("lwal", "hf-lwal")


def code_files() -> list[Path]:
    """The modules that loading a model imports, all in one folder, as remote code has to be."""
    first = Path(__file__).with_name("modeling_lwal.py")
    imported = {Path(name) for name in get_relative_import_files(first)}
    return [first, *sorted(imported - {first})]


def write_code(folder: str | os.PathLike[str], task: str, class_name: str) -> None:
    """Copy `code_files` beside a saved model, and name in its ``config.json`` the classes that load it.

    Args:
        folder: with ``config.json``; without one, as an adapter's folder is, nothing is written.
        task: key of `AUTO_CLASSES`.
        class_name: of the model, in ``modeling_lwal``.
    """
    config_file = Path(folder) / "config.json"
    if not config_file.is_file():
        return
    for source in code_files():
        write_text_atomically(config_file.with_name(source.name), source.read_text(encoding="utf-8"))
    config = json.loads(config_file.read_text(encoding="utf-8"))
    config["auto_map"] = {
        "AutoConfig": "configuration_lwal.LwALConfig",
        AUTO_CLASSES[task]: f"modeling_lwal.{class_name}",
    }
    write_text_atomically(config_file, json.dumps(config, indent=2, sort_keys=True) + "\n")


def forget_code(config: Any) -> None:
    """Drop what a loaded configuration says about modules beside it: where it is saved next, there may be none."""
    mapped = {key: value for key, value in (getattr(config, "auto_map", None) or {}).items() if key not in _OURS}
    if mapped:
        config.auto_map = mapped
    elif hasattr(config, "auto_map"):
        del config.auto_map


_OURS = {"AutoConfig", *AUTO_CLASSES.values()}


def complete_card(path: Path, task: str) -> None:
    """Add to a card's metadata what the Hub needs to find and run the model, where the card does not say it.

    Args:
        path: ``README.md``; nothing happens when there is none.
        task: key of `PIPELINE_TAGS`.
    """
    if not path.is_file():
        return
    card = ModelCard.load(path)
    before = str(card)
    card.data.library_name = card.data.get("library_name") or "transformers"
    card.data.pipeline_tag = card.data.get("pipeline_tag") or PIPELINE_TAGS[task]
    tags = list(card.data.get("tags") or [])
    card.data.tags = [*tags, *(tag for tag in TAGS if tag not in tags)]
    if str(card) != before:
        write_text_atomically(path, str(card))


def broken_download(error: OSError, name: str) -> OSError | None:
    """The error to raise when a download broke off, for which transformers blames the name; None for other errors.

    Args:
        error: from transformers' ``from_pretrained``.
        name: of the model on the Hub.
    """
    cause = error.__cause__
    if cause is None or not type(cause).__module__.startswith("httpx"):
        return None
    return OSError(
        f"The download of {name} broke off ({type(cause).__name__}: {cause}). Nothing half-read was kept: check the "
        "connection and try again."
    )
