"""Writes a card with its pictures and facts into a model's folder, whole or not at all."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..files import write_text_atomically
from .facts import FACTS_FILE, CardFacts, Sample
from .rendering import changed_by_hand, render
from .samples import FILE_NAME
from .text import visible

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger(__name__)

CARD_FILE = "README.md"
MOST_LABELS = 300
"""A heat map of more labels would be larger than a screen can show or a reader can read."""


def write_card(
    folder: Path,
    facts: CardFacts,
    vectors: Tensor | None = None,
    names: Sequence[str] = (),
    published: str = "",
    files: Mapping[str, bytes] | None = None,
) -> str:
    """Write ``README.md``, ``card_facts.json``, the pictures, and the files of the samples.

    What people wrote into the slots and the metadata of a card that is there already stays. If it was changed
    elsewhere, or cannot be read, it is kept whole under another name, which a warning tells.

    Args:
        folder: where the model is saved.
        facts: what the card says; its pictures are those that this function draws, and a ``curves.png`` in the folder.
        vectors: (C, D) label vectors to draw, or None for no pictures.
        names: the C label names.
        published: card to keep people's text of, when there is none in the folder.
        files: name to content of the files that the samples need; None where they lie in the folder already.

    Returns:
        The text of the card.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pictures = draw(folder, vectors, names) if vectors is not None else []
    pictures += ["curves.png"] if (folder / "curves.png").is_file() else []
    _write_files(folder, files or {})
    facts = _with_files_that_exist(folder, replace(facts, pictures=pictures))
    shown = {sample.file for sample in facts.samples}
    for path in folder.iterdir():
        if FILE_NAME.fullmatch(path.name) and path.name not in shown:
            path.unlink()
    old = old_card(folder / CARD_FILE) or published
    text = render(facts, old)
    write_text_atomically(folder / FACTS_FILE, facts.to_json())
    write_text_atomically(folder / CARD_FILE, text)
    return text


def _write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        temporary = folder / f"{name}.tmp"
        temporary.write_bytes(content)
        os.replace(temporary, folder / name)


def _with_files_that_exist(folder: Path, facts: CardFacts) -> CardFacts:
    """Facts without samples whose file is not in the folder, or has a name that this package never gives."""

    def is_there(sample: Sample) -> bool:
        known = sample.file is None or FILE_NAME.fullmatch(sample.file)
        return bool(known) and (sample.file is None or (folder / sample.file).is_file())

    return facts.with_samples(
        **{name: [sample for sample in split.samples if is_there(sample)] for name, split in facts.splits.items()}
    )


def old_card(path: Path) -> str:
    """Text of the card that is about to be written over; kept aside where something of it would be lost."""
    if not path.is_file():
        return ""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        _keep_aside(path, "it is not UTF-8")
        return ""
    if changed_by_hand(text):
        _keep_aside(path, "it was changed outside the lines for user text")
    return text


def _keep_aside(path: Path, reason: str) -> None:
    number = 1
    while (kept := path.with_name(f"README.old-{number}.md")).exists():
        number += 1
    kept.write_bytes(path.read_bytes())
    logger.warning("%s is written anew, but %s: the old one is kept as %s.", path, reason, kept.name)


def draw(folder: Path, vectors: Tensor, names: Sequence[str]) -> list[str]:
    """Draw dendrogram and heat map; returns the names of the files, none without matplotlib."""
    try:
        from ..plots import plot_dendrogram, plot_label_distances, require_matplotlib

        require_matplotlib()
    except ImportError:
        logger.info('The model card has no pictures, since matplotlib is not installed: pip install "hf-lwal[plots]".')
        return []
    plots: dict[str, Any] = {"dendrogram.png": plot_dendrogram, "label_distances.png": plot_label_distances}
    if len(names) < 2 or len(names) > MOST_LABELS or not bool(vectors.isfinite().all()):
        return []
    shown = [picture_name(name) for name in names]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # a box instead of a letter is no failure
        for file, plot in plots.items():
            plot(vectors, shown, folder / file)
    return list(plots)


def picture_name(name: str) -> str:
    """A label name for a picture: one short line, in which a dollar does not start a formula."""
    return visible(name, longest=40).replace("$", r"\$")
