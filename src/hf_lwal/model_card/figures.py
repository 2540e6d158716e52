"""The tables of a card: results, curve, labels, rows."""

from __future__ import annotations

import math
from collections.abc import Mapping

from .facts import CardFacts, Sample, SplitFacts
from .metadata import METRICS, metrics_of
from .samples import LONGEST_TEXT
from .text import code, percent, table

SHARES = ("accuracy", "f1", "precision", "recall", "calibration")
"""Metrics whose name starts like this and that lie between 0 and 1 are shown in percent."""
SHOWN_ROWS = 12
SHOWN_HEIGHT = 96
"""Pixels on the page; a picture of 28 pixels would be a dot."""


def results_table(facts: CardFacts) -> str:
    """The measurement that belongs to the saved weights, and the one on test rows."""
    measured, test = metrics_of(facts.measured), metrics_of(facts.test)
    rows_measured = facts.evaluation.rows if facts.evaluation else None
    columns = {"validation rows" if test else "value": (measured, rows_measured), "test rows": (test, None)}
    columns = {title: column for title, column in columns.items() if column[0]}
    rows = [
        [_metric(name), *(_with_error(name, values, amount) for values, amount in columns.values())]
        for name in dict.fromkeys([*measured, *test])
    ]
    return table(["metric", *columns], rows, right=range(1, len(columns) + 1)) if rows else ""


def _metric(name: str) -> str:
    return METRICS[name][1] if name in METRICS else code(name)


def _with_error(name: str, values: Mapping[str, float], rows: int | None) -> str:
    """A value as text; an accuracy with its binomial standard error where the number of rows is known."""
    if name not in values:
        return ""
    value = values[name]
    if name != "accuracy" or not rows or not 0.0 < value < 1.0:
        return _value(name, value)
    return f"{_value(name, value)} ± {100.0 * math.sqrt(value * (1.0 - value) / rows):.1f}"


def _value(name: str, value: float) -> str:
    is_share = name.split("_")[-1].startswith(SHARES) or name.startswith(SHARES)
    return percent(value) if is_share and 0.0 <= value <= 1.0 else f"{value:.4g}"


def curve_table(facts: CardFacts) -> tuple[str, int, int]:
    """Accuracy and losses over the steps, with the controls beside them; how many measurements it shows, and of many.

    Args:
        facts: without measurements, the table is empty.
    """
    entries = [
        entry
        for entry in facts.history
        if (metrics_of(entry) or "loss" in entry) and math.isfinite(entry.get("step", math.nan))
    ]
    if not entries:
        return "", 0, 0
    # Errors of probabilities are those of the saved model where it was calibrated after the last step.
    found = dict.fromkeys(name for entry in entries for name in metrics_of(entry))
    names = [name for name in found if not name.startswith("calibration_error")]
    losses = {"train_loss": "training loss", "loss": "evaluation loss"}
    losses = {name: title for name, title in losses.items() if any(name in entry for entry in entries)}
    epoch = ["epoch"] if any("epoch" in entry for entry in entries) else []
    columns = ["step", *epoch, *losses.values(), *map(_metric, names)]
    columns += [f"accuracy of {code(name)}" for name in facts.controls]
    rows = []
    for entry in _thinned(entries, facts.measured_step):
        row = [f"{entry['step']:,.0f}", *(f"{entry.get('epoch', 0.0):.2f}" for _ in epoch)]
        row += [f"{entry[name]:.4f}" if name in entry else "" for name in losses]
        row += [_value(name, entry[name]) if name in entry else "" for name in names]
        at_step = [dict(points).get(int(entry["step"])) for points in facts.controls.values()]
        row += ["" if accuracy is None else percent(accuracy) for accuracy in at_step]
        saved = facts.keeps_best and entry["step"] == facts.measured_step
        rows.append([f"**{cell}**" if saved and cell else cell for cell in row])
    return table(columns, rows, right=range(len(columns))), len(rows), len(entries)


def _thinned(entries: list[dict[str, float]], kept_step: int | None) -> list[dict[str, float]]:
    """At most ``SHOWN_ROWS`` measurements, evenly spaced, the saved one among them."""
    if len(entries) <= SHOWN_ROWS:
        return entries
    chosen = {round(place * (len(entries) - 1) / (SHOWN_ROWS - 1)) for place in range(SHOWN_ROWS)}
    return [entry for place, entry in enumerate(entries) if place in chosen or entry.get("step") == kept_step]


def label_rows(facts: CardFacts) -> str:
    """The excerpt of the label table; empty without one."""
    rows = [
        [code(name), f"{count:,}", ", ".join(f"{code(other)} {far:.2f}" for other, far in nearest)]
        for name, count, nearest in (facts.labels.rows if facts.labels else [])
    ]
    header = ["label", "rows of it seen in training, repeats counted", "nearest labels, with distance"]
    return table(header, rows, right=[1]) if rows else ""


def statistics_table(facts: CardFacts) -> str:
    """How many rows there are, and what they hold."""
    columns = [_described(split) for split in facts.splits.values()]
    names = [name for name in columns[0] if any(column[name] for column in columns)]
    rows = [[name, *(column[name] for column in columns)] for name in names]
    return table(["", *(f"{name} rows" for name in facts.splits)], rows)


def _described(split: SplitFacts) -> dict[str, str]:
    """Names of statistics and their values as text; empty ones are not known."""
    columns = [f"{name}: {split.types[name]}" if split.types.get(name) else name for name in split.columns]
    return {
        "Number": f"{split.rows:,}" if split.rows is not None else "a stream, whose length is not known",
        "Per label": _span(split.per_label, "{:,.0f}", "median"),
        "Tokens": _span(split.tokens, "{:.0f}", "mean", "{:.1f}"),
        "Pixels": _pixels(split),
        "Seconds": _span(split.seconds, "{:.2f}", "mean"),
        "Columns": ", ".join(map(code, columns)),
        "Split": code(split.split) if split.split else "",
    }


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


def samples_table(facts: CardFacts, split: SplitFacts) -> str:
    """Sample rows, with what the model answers to them where it was asked."""
    samples = split.samples
    answers = {asked: f"{code(label)} {score:.2f}" for asked, label, score in facts.examples}
    columns = list(dict.fromkeys(column for sample in samples for column in sample.texts))
    asked = any(sample.input in answers for sample in samples)
    rows = [
        [*_cells(sample, columns), code(sample.label), *([answers.get(sample.input or "", "")] if asked else [])]
        for sample in samples
    ]
    header = [code(column) for column in columns] or [facts.task]
    return table([*header, "label", *(["the model's answer"] if asked else [])], rows)


def _cells(sample: Sample, columns: list[str]) -> list[str]:
    if sample.file is None:
        return [code(sample.texts.get(column, ""), LONGEST_TEXT) for column in columns]
    if sample.file.endswith(".wav"):
        return [f'<audio controls src="{sample.file}"></audio> [{sample.file}]({sample.file})']
    return [f'<img src="{sample.file}" height="{SHOWN_HEIGHT}" alt="{sample.file}">']
