"""Writes a card with its pictures and facts into a model's folder, whole or not at all."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..label_table_file import write_text_atomically
from .facts import FACTS_FILE, CardFacts
from .rendering import changed_by_hand, render
from .text import visible

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger(__name__)

CARD_FILE = "README.md"
MOST_LABELS = 300
"""A heat map of more labels would be larger than a screen can show or a reader can read."""


def write_card(
    folder: Path, facts: CardFacts, vectors: Tensor | None = None, names: Sequence[str] = (), published: str = ""
) -> str:
    """Write ``README.md``, ``card_facts.json`` and the pictures.

    What people wrote into the slots and the metadata of a card that is there already stays. If it was changed
    elsewhere, or cannot be read, it is kept whole under another name, which a warning tells.

    Args:
        folder: where the model is saved.
        facts: what the card says; its pictures are those that this function draws, and a ``curves.png`` in the folder.
        vectors: (C, D) label vectors to draw, or None for no pictures.
        names: the C label names.
        published: card to keep people's text of, when there is none in the folder.

    Returns:
        The text of the card.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pictures = draw(folder, vectors, names) if vectors is not None else []
    pictures += ["curves.png"] if (folder / "curves.png").is_file() else []
    facts = replace(facts, pictures=pictures)
    old = old_card(folder / CARD_FILE) or published
    text = render(facts, old)
    write_text_atomically(folder / FACTS_FILE, facts.to_json())
    write_text_atomically(folder / CARD_FILE, text)
    return text


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
