"""From facts to the text of ``README.md``: pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml
from huggingface_hub import ModelCard, ModelCardData
from huggingface_hub.repocard import REGEX_YAML_BLOCK

from . import body, data, results, slots, usage
from .facts import CardFacts
from .metadata import card_metadata

HINT = (
    "<!-- Written by hf-lwal. What you write between the lines 'user text begins' and 'user text ends' stays "
    "when the card is written anew, and so does what you add to the metadata above; the rest is replaced. -->"
)
OF_THE_TRAINER = "generated automatically according to the information the Trainer had access to"
SLOTS: dict[str, tuple[body.Section, ...]] = {
    "introduction": (body.title, body.idea),
    "intended use": (body.description, usage.usage),
    "results": (results.results, body.label_table),
    "limitations": (body.limits,),
    "training": (
        body.training,
        data.data,
        body.reproduce,
        body.time_and_place,
        body.hyperparameters,
        body.emissions,
        body.versions,
    ),
    "notes": (body.citation,),
}
"""Each slot, in the order of the card, and the sections before it."""


def render(facts: CardFacts, old: str = "") -> str:
    """Text of a model card.

    Args:
        facts: what it says.
        old: text of the card before; what people wrote into its slots and its metadata stays.

    Returns:
        Markdown with a block of metadata; rendering it over itself gives the same text.
    """
    metadata, old_body = split_card(old)
    card = slots.read_old_card(old_body)
    foreign = {"notes": written_by_people(old_body)}
    kept = slots.recovered(card, _body(facts, card.slots)) if card.ours else foreign
    data = card_metadata(facts, metadata or {})
    return f"---\n{data.to_yaml()}\n---\n\n{slots.signed(_body(facts, kept))}"


def split_card(text: str) -> tuple[dict[str, Any] | None, str]:
    """Metadata and body of a card; None for a block of metadata that cannot be read."""
    block = REGEX_YAML_BLOCK.search(text)
    if block is None:
        return {}, text
    try:
        metadata = yaml.safe_load(block[2])
    except (yaml.YAMLError, ValueError):
        return None, text[block.end() :]
    metadata = {} if metadata is None else metadata
    return (metadata if isinstance(metadata, dict) else None), text[block.end() :]


def changed_by_hand(old: str) -> bool:
    """Whether a card holds something that a new one would not: text outside its slots, or damaged metadata."""
    metadata, old_body = split_card(old)
    card = slots.read_old_card(old_body)
    if metadata is None or card.ours:
        return metadata is None or not card.untouched
    return OF_THE_TRAINER in old_body


def written_by_people(text: str) -> str:
    """Body of a card that this module never wrote, or nothing where transformers or peft made it up."""
    lines = [line for line in text.splitlines() if line.strip()]
    blank = ModelCard.from_template(ModelCardData()).text.splitlines()
    made_up = {*blank, "### Framework versions"}
    if OF_THE_TRAINER in text or all(line in made_up or line.startswith("- PEFT ") for line in lines):
        return ""
    return text.strip("\n")


def _body(facts: CardFacts, texts: Mapping[str, str]) -> str:
    further = {name: text for name, text in texts.items() if name not in SLOTS}
    parts = [HINT]
    for name, sections in SLOTS.items():
        parts += [*(section(facts) for section in sections), slots.slot(name, texts.get(name, ""))]
    parts += [slots.slot(name, text) for name, text in further.items()]
    return "\n\n".join(part for part in parts if part)
