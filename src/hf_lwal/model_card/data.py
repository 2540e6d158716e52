"""The section on the rows that a model was trained and measured on: statistics and samples."""

from __future__ import annotations

from .facts import CardFacts, Sample, SplitFacts
from .samples import LONGEST_TEXT
from .text import code, table

SHOWN_HEIGHT = 96
"""Pixels on the page; a picture of 28 pixels would be a dot."""


def data(facts: CardFacts) -> str:
    """How many rows there are, what they hold, and a few of them."""
    if not facts.splits:
        return ""
    samples = [_samples(facts, name, split) for name, split in facts.splits.items()]
    return "\n\n".join(filter(None, ["### Data", _statistics(facts), *samples]))


def _statistics(facts: CardFacts) -> str:
    columns = [_described(split) for split in facts.splits.values()]
    names = [name for name in columns[0] if any(column[name] for column in columns)]
    rows = [[name, *(column[name] for column in columns)] for name in names]
    return table(["", *(f"{name} rows" for name in facts.splits)], rows)


def _described(split: SplitFacts) -> dict[str, str]:
    """Names of statistics and their values as text; empty ones are not known."""
    return {
        "Number": f"{split.rows:,}" if split.rows is not None else "a stream, whose length is not known",
        "Per label": _span(split.per_label, "{:,.0f}", "median"),
        "Tokens": _span(split.tokens, "{:.0f}", "mean", "{:.1f}"),
        "Pixels": _pixels(split),
        "Seconds": _span(split.seconds, "{:.2f}", "mean"),
        "Columns": ", ".join(code(_column(name, split.types.get(name))) for name in split.columns),
        "Split": code(split.split) if split.split else "",
    }


def _column(name: str, kind: str | None) -> str:
    return f"{name}: {kind}" if kind else name


def _span(values: tuple[float, float, float] | None, pattern: str, middle: str, of_middle: str = "") -> str:
    """Smallest, middle and largest value as text; one of them where they are the same."""
    if values is None:
        return ""
    smallest, between, largest = (pattern.format(value) for value in values)
    if smallest == largest:
        return smallest
    between = of_middle.format(values[1]) if of_middle else between
    return f"{smallest} to {largest}, {middle} {between}"


def _pixels(split: SplitFacts) -> str:
    sizes = [f"{width} × {height}" for width, height in split.pixels or []]
    if len(set(sizes)) < 2:
        return "".join(sizes[:1])
    smallest, mean, largest = sizes
    return f"{smallest} to {largest}, mean {mean}"


def _samples(facts: CardFacts, name: str, split: SplitFacts) -> str:
    """Table of sample rows, with what the model answers to them where it was asked."""
    samples = split.samples
    if not samples:
        return ""
    answers = {asked: f"{code(label)} {score:.2f}" for asked, label, score in facts.examples}
    columns = list(dict.fromkeys(column for sample in samples for column in sample.texts))
    header = [code(column) for column in columns] or [facts.task]
    asked = any(sample.input in answers for sample in samples)
    rows = [
        [*_cells(sample, columns), code(sample.label), *([answers.get(sample.input or "", "")] if asked else [])]
        for sample in samples
    ]
    header += ["label", *(["the model's answer"] if asked else [])]
    return f"Samples of the {name} rows:\n\n{table(header, rows)}"


def _cells(sample: Sample, columns: list[str]) -> list[str]:
    if sample.file is None:
        return [code(sample.texts.get(column, ""), LONGEST_TEXT) for column in columns]
    if sample.file.endswith(".wav"):
        return [f'<audio controls src="{sample.file}"></audio> [{sample.file}]({sample.file})']
    return [f'<img src="{sample.file}" height="{SHOWN_HEIGHT}" alt="{sample.file}">']
