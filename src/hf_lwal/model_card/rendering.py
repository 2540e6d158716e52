"""From facts to the text of ``README.md``: pure functions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import ModelCard, ModelCardData
from huggingface_hub.repocard import REGEX_YAML_BLOCK
from jinja2 import Environment, StrictUndefined, Template

from ..modeling.tasks import TASKS
from . import figures, slots
from . import text as markdown
from .facts import CardFacts
from .metadata import card_metadata, hub_id

OF_THE_TRAINER = "generated automatically according to the information the Trainer had access to"
SLOTS = ("introduction", "intended use", "results", "limitations", "training", "notes")
"""Those that every card has; others follow them."""
CONSTANTS: dict[str, Any] = {
    "TASKS": TASKS,
    # What stands in the snippets where neither examples nor sample rows may be shown.
    "EXAMPLES": {"text": "Replace me with your own text.", "image": "picture.png", "audio": "sound.wav"},
    "CONTROLS": {
        "one-hot": "a linear head with a random start, trained with one-hot labels",
        "one-hot from class means": "the same head started from class means, as label vectors are: the honest control",
        "LP-FT": "one-hot labels from a logistic regression on the frozen features: the honest control",
    },
    "PICTURES": {
        "dendrogram.png": "Hierarchy of the labels by average linkage: branches that meet further left are more alike",
        "label_distances.png": "Distances between the labels, in the order of the hierarchy: blocks are groups",
    },
    "MANY_LABELS": 40,  # pictures of more are longer than a screen: they unfold, and a click shows them in full size
}
_LINE_END = "\udc0a"
"""Stands for a line end that came from the facts or from people; no text that can be written holds it."""


def render(facts: CardFacts, old: str = "", before: Mapping[str, Any] | None = None) -> str:
    """Text of a model card.

    Args:
        facts: what it says.
        old: text of the card before; what people wrote into its slots and its metadata stays.
        before: metadata that was written last, without people's, as `generated_metadata` gives it; None where that is
            not known, and no change can be told from what was generated.

    Returns:
        Markdown with a block of metadata; rendering it over itself gives the same text.
    """
    metadata, _ = split_card(old)
    data = card_metadata(facts, metadata or {}, before)
    return f"---\n{data.to_yaml()}\n---\n\n{slots.signed(_body(facts, people_text(facts, old)))}"


def generated_metadata(facts: CardFacts) -> dict[str, Any]:
    """Metadata of a card that nobody has touched, as YAML gives it back."""
    metadata: dict[str, Any] = yaml.safe_load(card_metadata(facts, {}).to_yaml())
    return metadata


def people_text(facts: CardFacts, old: str) -> dict[str, str]:
    """Name of a slot to what people wrote into it; all of a card that this package never wrote is a note.

    Args:
        facts: of the new card, whose lines are not people's.
        old: text of the card before.
    """
    body_before = split_card(old)[1]
    card = slots.read_old_card(body_before)
    if card.ours:
        return slots.recovered(card, _body(facts, card.slots))
    note = written_by_people(body_before)
    return {"notes": note} if note else {}


def merged(facts: CardFacts, first: str, second: str, generated: Mapping[str, Any] | None) -> str:
    """Metadata and slots of two cards that people changed, as the text of one.

    Args:
        facts: of the new card.
        first: text of the card that wins.
        second: of the other, whose slots and metadata count where the first has none.
        generated: metadata of the second that nobody put there.
    """
    people = {
        name: value
        for name, value in (split_card(second)[0] or {}).items()
        if generated is None or generated.get(name) != value
    }
    metadata = {**people, **(split_card(first)[0] or {})}
    tags = [tag for tag in people.get("tags") or [] if tag not in ((generated or {}).get("tags") or [])]
    if isinstance(metadata.get("tags"), list):
        metadata["tags"] = list(dict.fromkeys([*metadata["tags"], *tags]))
    texts = {**people_text(facts, second), **{k: v for k, v in people_text(facts, first).items() if v}}
    block = yaml.safe_dump(metadata, sort_keys=False, allow_unicode=True)
    return "\n\n".join([f"---\n{block}---", *(slots.slot(name, text) for name, text in texts.items()), ""])


def differing_slots(facts: CardFacts, first: str, second: str) -> bool:
    """Whether a slot of the second card holds words that the text in the first card's would replace."""
    one, other = people_text(facts, first), people_text(facts, second)
    return any(one.get(name) and text not in one[name] for name, text in other.items())


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
    """The card below its metadata; of the empty lines only those from the template are run together."""
    further = [name for name in texts if name not in SLOTS]
    body = _template().render(facts=facts, further=further, slot=lambda name: slots.slot(name, texts.get(name, "")))
    return re.sub(r"\n{3,}", "\n\n", body).strip("\n").replace(_LINE_END, "\n")


@cache
def _template() -> Template:
    environment = Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        finalize=lambda value: str(value).replace("\n", _LINE_END),
    )
    for module, names in {
        markdown: ("code", "fenced", "literal", "millions", "percent", "plain", "thousands", "visible", "duration"),
        figures: ("curve_table", "label_rows", "results_table", "samples_table", "statistics_table"),
    }.items():
        environment.filters |= {name: getattr(module, name) for name in names}
    environment.filters |= {"heading": markdown.heading_text, "link": _link, "revision": _revision}
    environment.filters |= {"dataset": _dataset, "inputs": _inputs}
    environment.globals |= CONSTANTS
    return environment.from_string((Path(__file__).parent / "card.md.jinja").read_text(encoding="utf-8"))


def _link(name: str, folder: str = "", shown: str | None = None) -> str:
    """A link to a repository on the Hub, or the name alone."""
    shown = markdown.code(shown or name)
    return f"[{shown}](https://huggingface.co/{folder}{name})" if hub_id(name) else shown


def _revision(commit: str | None) -> str:
    return f" at revision {markdown.code(commit[:12])}" if commit else ""


def _dataset(facts: CardFacts) -> str:
    """The data set as a link or a name; empty when it is not known."""
    if hub_id(facts.dataset_id):
        return _link(facts.dataset_id or "", "datasets/", facts.dataset_name)
    return markdown.code(facts.dataset_name) if facts.dataset_name else ""


def _inputs(facts: CardFacts) -> list[str]:
    """Texts or names of files to ask the model, with answers first; empty where there are none to show."""
    samples = [sample.input for sample in facts.samples if sample.input]
    return [asked for asked, _, _ in facts.examples] or samples[:1]
