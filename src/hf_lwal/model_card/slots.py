"""What people write into a card, between two markers: found again, and never lost.

A slot is a pair of HTML comments on lines of their own:

    <!-- user text begins: limitations -->
    Anything, over any number of lines.
    <!-- user text ends: limitations -->

What stands outside is written anew every time. A digest in the last line tells whether it was changed by hand since.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field

_MARKER = re.compile(r"\s*<!--\s*user text (begins|ends):\s*([\w -]{1,60}?)\s*-->\s*")
_DIGEST = re.compile(r"<!-- digest of the generated text: ([0-9a-f]{16}) -->")


@dataclass
class OldCard:
    """The body of a card that is about to be written anew.

    Attributes:
        slots: name to the text between its markers.
        in_doubt: name to lines that may be the user's, where a marker is missing.
        untouched: outside the slots nothing was changed by hand, and no marker is missing.
        ours: this module wrote it once.
    """

    slots: dict[str, str] = field(default_factory=dict)
    in_doubt: dict[str, list[str]] = field(default_factory=dict)
    untouched: bool = True
    ours: bool = False


def slot(name: str, text: str = "") -> str:
    """A slot with its markers."""
    inside = f"{text}\n" if text else ""
    return f"<!-- user text begins: {name} -->\n{inside}<!-- user text ends: {name} -->"


def signed(body: str) -> str:
    """A card's body with the digest of what stands outside its slots."""
    digest = _digest(body.split("\n"))
    return f"{body.rstrip()}\n\n<!-- digest of the generated text: {digest} -->\n"


def read_old_card(body: str) -> OldCard:
    """Find the slots of a card; one whose other marker is missing is in doubt."""
    card, inside = OldCard(), None
    outside: list[str] = []
    since_marker: list[str] = []
    for line in body.split("\n"):  # splitlines would also break at rarer characters, which are the user's
        marker = _MARKER.fullmatch(line)
        if marker is None:
            since_marker.append(line)
            continue
        kind, name = marker.groups()
        card.ours = True
        if kind == "ends" and inside == name:
            _keep(card, name, since_marker)
        elif inside is not None:  # the slot before was never closed
            _doubt(card, inside, since_marker)
        elif kind == "ends":
            _doubt(card, name, since_marker)
        else:
            outside += since_marker
        outside.append(line)
        inside, since_marker = (name if kind == "begins" else None), []
    if inside is not None:
        _doubt(card, inside, since_marker)
    else:
        outside += since_marker
    signatures = _DIGEST.findall(body)
    card.ours = card.ours or bool(signatures)
    card.untouched = card.untouched and signatures[-1:] == [_digest(outside)]
    return card


def recovered(card: OldCard, fresh: str) -> dict[str, str]:
    """Slots of the old card, with what can be saved of those in doubt.

    Args:
        card: the old card.
        fresh: body of the new card with the other slots; lines that occur in it are not the user's.
    """
    generated = {line.strip() for line in fresh.splitlines()}
    slots = dict(card.slots)
    for name, lines in card.in_doubt.items():
        own = "\n".join(line for line in lines if not line.strip() or line.strip() not in generated)
        own = re.sub(r"\n{3,}", "\n\n", _DIGEST.sub("", own)).strip("\n")
        if own.strip():
            slots[name] = f"{slots[name]}\n\n{own}" if slots.get(name) else own
    return slots


def _keep(card: OldCard, name: str, lines: list[str]) -> None:
    text = "\n".join(lines)
    if name in card.slots:
        card.untouched = False  # a slot was copied: both texts stay
        text = f"{card.slots[name]}\n\n{text}"
    card.slots[name] = text


def _doubt(card: OldCard, name: str, lines: list[str]) -> None:
    card.untouched = False
    card.in_doubt.setdefault(name, []).extend(lines)


def _digest(lines: list[str]) -> str:
    """Digest of the lines outside the slots; blank lines and trailing spaces, which editors change, do not count."""
    outside, is_inside = [], False
    for line in lines:
        marker = _MARKER.fullmatch(line)
        if marker is not None:
            is_inside = marker[1] == "begins"
        if not is_inside or marker is not None:
            outside.append(line.rstrip())
    kept = [line for line in outside if line and not _DIGEST.fullmatch(line)]
    return hashlib.sha256("\n".join(kept).encode("utf-8", "replace")).hexdigest()[:16]
