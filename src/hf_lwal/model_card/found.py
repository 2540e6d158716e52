"""Cards that were found, in the folder and on the Hub, and which of them holds people's newest words."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .facts import FACTS_FILE

logger = logging.getLogger(__name__)

CARD_FILE = "README.md"
RECORD = "written"
"""Key of ``card_facts.json``: what this package wrote into the card that lies beside it."""


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
