"""Writes a card with its pictures and facts into a model's folder, whole or not at all, after reading those before."""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..modeling.files import staged, write_text_atomically
from .facts import FACTS_FILE, CardFacts, Sample
from .rendering import changed_by_hand, differing_slots, generated_metadata, merged, render
from .samples import FILE_NAME
from .text import visible

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger(__name__)

CARD_FILE = "README.md"
DRAWN_BEFORE = ("curves.png", "reliability.png")
"""Pictures of a training, which whoever trained has drawn."""
RECORD = "written"
"""Key of ``card_facts.json``: what this package wrote into the card that lies beside it."""
MOST_LABELS = 300
"""A heat map of more labels would be larger than a screen can show or a reader can read."""


def write_card(
    folder: Path,
    facts: CardFacts,
    vectors: Tensor | None = None,
    names: Sequence[str] = (),
    published: Found | None = None,
    files: Mapping[str, bytes] | None = None,
) -> str:
    """Write ``README.md``, ``card_facts.json``, the pictures, and the files of the samples: all of them or none.

    What people wrote into the slots and the metadata of a card that is there already stays. If it was changed
    elsewhere, or cannot be read, it is kept whole under another name, which a warning tells.

    Args:
        folder: where the model is saved.
        facts: what the card says; its pictures are those that this function draws, and those of `DRAWN_BEFORE` that
            lie in the folder.
        vectors: (C, D) label vectors to draw, or None for no pictures.
        names: the C label names.
        published: the card on the Hub, in which people may have written since it was pushed.
        files: name to content of the files that the samples need; None where they lie in the folder already.

    Returns:
        The text of the card.
    """
    published = published or Found()
    cards = newest(in_folder(folder), published)
    with staged(folder) as new:
        pictures = draw(new, vectors, names) if vectors is not None else []
        pictures += [name for name in DRAWN_BEFORE if (folder / name).is_file()]
        for name, content in (files or {}).items():
            (new / name).write_bytes(content)
        facts = _with_files_that_exist((folder, new), replace(facts, pictures=pictures))
        old, before = _kept_text(cards, facts, folder, new)
        text = render(facts, old, before)
        record = {
            "digest": digest_of(text),
            "published": published.digest if published.content else None,
            "metadata": generated_metadata(facts),
        }
        write_text_atomically(new / FACTS_FILE, facts.to_json(**{RECORD: record}))
        write_text_atomically(new / CARD_FILE, text)
    shown = {sample.file for sample in facts.samples}
    for path in folder.iterdir():
        if FILE_NAME.fullmatch(path.name) and path.name not in shown:
            path.unlink()
    return text


def _kept_text(cards: Sequence[Found], facts: CardFacts, folder: Path, new: Path) -> tuple[str, dict[str, Any] | None]:
    """Text of the cards that are about to be written over, as one, and the metadata written into it last.

    A card of which something would be lost is kept aside.
    """
    texts: list[tuple[str, dict[str, Any] | None]] = []
    for card in cards:
        text = card.text
        if text is None:
            _keep_aside(card, folder, new, "it is not UTF-8")
            continue
        if changed_by_hand(text):
            _keep_aside(card, folder, new, "it was changed outside the lines for user text")
        elif texts and differing_slots(facts, texts[0][0], text):
            _keep_aside(card, folder, new, "the one on the Hub has other user text, which counts")
        texts.append((text, card.metadata))
    if not texts:
        return "", None
    (first, before), *others = texts
    for other, generated in others:
        first = merged(facts, first, other, generated)
    return first, before


def _keep_aside(card: Found, folder: Path, new: Path, reason: str) -> None:
    """Write a card into ``new`` under the next free name of ``folder``, unless it lies there under such a name."""
    for number in itertools.count(1):
        name = f"README.old-{number}.md"
        there = [place / name for place in (folder, new) if (place / name).exists()]
        if any(path.read_bytes() == card.content for path in there):
            return
        if not there:
            break
    kept = new / name
    kept.write_bytes(card.content)
    logger.warning("%s is written anew, but %s: the old one is kept as %s.", card.place, reason, kept.name)


def _with_files_that_exist(folders: Sequence[Path], facts: CardFacts) -> CardFacts:
    """Facts without samples whose file is in none of the folders, or has a name that this package never gives."""

    def is_there(sample: Sample) -> bool:
        name = sample.file
        return name is None or (bool(FILE_NAME.fullmatch(name)) and any((one / name).is_file() for one in folders))

    return facts.with_samples(
        **{name: [sample for sample in split.samples if is_there(sample)] for name, split in facts.splits.items()}
    )


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
    """A label name for a picture: short, and without characters that hide or reorder others."""
    return visible(name, longest=40)


@dataclass(frozen=True)
class Found:
    """A card as it was found.

    Attributes:
        content: bytes of the file; empty where there is none.
        record: what was noted when this package wrote it last: "digest" of the card, "published" for the digest of the
            card that lay on the Hub then, and "metadata" without what people put into it. Empty where that is not
            known.
        place: where it was found, for people.
    """

    content: bytes = b""
    record: Mapping[str, Any] = field(default_factory=dict)
    place: str = ""

    @property
    def text(self) -> str | None:
        """Without a byte order mark and with line feeds only; None for bytes that are no UTF-8."""
        try:
            return self.content.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
        except UnicodeDecodeError:
            return None

    @property
    def digest(self) -> str:
        """Of the text, or of bytes that are none."""
        return digest_of(self.text) if self.text is not None else hashlib.sha256(self.content).hexdigest()

    @property
    def metadata(self) -> dict[str, Any] | None:
        """Metadata that was written last, without what people put into it; None where that is not known."""
        found = self.record.get("metadata")
        return found if isinstance(found, dict) else None


def digest_of(text: str) -> str:
    """Digest of a whole card, people's text included."""
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def newest(local: Found, published: Found) -> list[Found]:
    """The cards that people's words must be taken from, the one that wins first.

    Args:
        local: in the folder.
        published: on the Hub.

    Returns:
        One card where the other has nothing of its own, else the published and the local one.
    """
    if not published.content:
        return [local]
    known = (local.digest, local.record.get("digest"), local.record.get("published"))
    if local.content and published.digest in known:
        return [local]  # nobody changed what was pushed, or seen at the last writing
    if not local.content or published.record.get("digest") == local.digest:
        return [published]  # the local one was pushed as it is, and changed there since
    return [published, local]


def in_folder(folder: Path) -> Found:
    """The card of a folder."""
    path = folder / CARD_FILE
    return Found(path.read_bytes(), _record(folder / FACTS_FILE), str(path)) if path.is_file() else Found()


def on_the_hub(repository: str, revision: str | None, token: str | None) -> Found:
    """The card of a repository as it is now, not as it is in the cache; a warning where it cannot be read.

    Args:
        repository: id on the Hub.
        revision: branch that will be pushed to.
        token: that will be pushed with.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import (
        GatedRepoError,
        RemoteEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    # Without force_download a stale one where the Hub is slow to answer.
    place: dict[str, Any] = {"revision": revision, "token": token, "force_download": True}
    nothing: tuple[type[Exception], ...] = (RemoteEntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError)
    try:
        content = Path(str(hf_hub_download(repository, CARD_FILE, **place))).read_bytes()
        try:
            record = _record(Path(str(hf_hub_download(repository, FACTS_FILE, **place))))
        except nothing:
            record = {}
        return Found(content, record, f"The card of {repository} on the Hub")
    except GatedRepoError as error:
        _warn_unread(repository, error)
    except nothing:
        return Found()
    except (OSError, ValueError) as error:
        _warn_unread(repository, error)
    return Found()


def _warn_unread(repository: str, error: Exception) -> None:
    logger.warning(
        "The card of %s on the Hub could not be read (%s): what people changed there since the last push is missing "
        "in the new card, and a push replaces it. The history of the repository keeps it.",
        repository,
        " ".join(str(error).split())[:200] or type(error).__name__,
    )


def _record(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))[RECORD]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}
