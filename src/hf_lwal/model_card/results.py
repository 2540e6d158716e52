"""The sections of a card with figures: results, the honest control, the curve."""

from __future__ import annotations

import math
from collections.abc import Mapping

from .body import dataset, percent
from .facts import CardFacts
from .metadata import METRICS, metrics_of
from .text import code, table

SHARES = ("accuracy", "f1", "precision", "recall")
"""Metrics whose name starts like this and that lie between 0 and 1 are shown in percent."""

SHOWN_ROWS = 12
CONTROLS = {
    "one-hot": "a linear head with a random start, trained with one-hot labels",
    "one-hot from class means": "the same head started from class means, as label vectors are: the honest control",
    "LP-FT": "the same head started as a logistic regression on the frozen features",
}


def results(facts: CardFacts) -> str:
    """The measurement that belongs to the saved weights, and the one on test rows."""
    measured, test = metrics_of(facts.measured), metrics_of(facts.test)
    if not measured and not test:
        return ""
    rows_measured = facts.evaluation.rows if facts.evaluation else None
    columns = {"validation rows" if test else "value": (measured, rows_measured), "test rows": (test, None)}
    columns = {title: column for title, column in columns.items() if column[0]}
    rows = [
        [_metric(name), *(_with_error(name, values, amount) for values, amount in columns.values())]
        for name in dict.fromkeys([*measured, *test])
    ]
    parts = ["## Results", _where(facts), table(["metric", *columns], rows, right=range(1, len(columns) + 1))]
    if any("±" in cell for row in rows for cell in row):
        parts.append("± is the standard error that comes from the number of rows.")
    return "\n\n".join([*parts, *filter(None, [control(facts), curve(facts)])])


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


def _where(facts: CardFacts) -> str:
    rows, split = (facts.evaluation.rows, facts.evaluation.split) if facts.evaluation else (None, None)
    amount = f"{rows:,} rows" if rows else "the evaluation rows"
    part = f" of the split {code(split)}" if split else ""
    source = f" of {dataset(facts)}" if dataset(facts) else ""
    step = facts.measured_step
    if not facts.last_step or step is None:
        return f"On {amount}{part}{source}."
    when = f"after step {step:,}"
    if facts.keeps_best:
        when += f", the best of {facts.last_step:,}, whose weights these are"
    elif step < facts.last_step:
        when += f"; training went on to step {facts.last_step:,}, which was not measured"
    return f"On {amount}{part}{source}, {when}."


def _value(name: str, value: float) -> str:
    if name.split("_")[-1].startswith(SHARES) or name.startswith(SHARES):
        return percent(value) if 0.0 <= value <= 1.0 else f"{value:.4g}"
    return f"{value:.4g}"


def control(facts: CardFacts) -> str:
    """The same training without adaptive labels, or that nobody ran it."""
    if facts.labels is None:
        return ""
    if not facts.controls:
        return (
            "Nothing was trained beside it with one-hot labels and the same budget, so these figures do not say what "
            "adaptive labels add."
        )
    parts = []
    for name, points in facts.controls.items():
        if points:
            # Where the best weights of the model are kept, the control's best ones are what to compare with.
            step, accuracy = max(points, key=lambda point: point[1]) if facts.keeps_best else points[-1]
            meaning = f" ({CONTROLS[name]})" if name in CONTROLS else ""
            best = ", its best" if facts.keeps_best else ""
            test = f"; {percent(facts.control_tests[name])} on the test rows" if name in facts.control_tests else ""
            parts.append(f"- {code(name)}{meaning}: {percent(accuracy)} after step {step:,}{best}{test}")
    if "one-hot from class means" not in facts.controls:
        parts.append("- one-hot labels with a head that starts from class means, the honest control: not trained")
    return "\n".join(["The same rows, steps and settings without adaptive labels:", "", *parts])


def curve(facts: CardFacts) -> str:
    """Accuracy and losses over the steps, with the controls beside them."""
    entries = [
        entry
        for entry in facts.history
        if (metrics_of(entry) or "loss" in entry) and math.isfinite(entry.get("step", math.nan))
    ]
    if not entries:
        return ""
    names = list(dict.fromkeys(name for entry in entries for name in metrics_of(entry)))
    with_losses = [name for name in ("train_loss", "loss") if any(name in entry for entry in entries)]
    header = ["step", *(["epoch"] if any("epoch" in entry for entry in entries) else [])]
    losses = {"train_loss": "training loss", "loss": "evaluation loss"}
    columns = header + [losses[name] for name in with_losses]
    columns += [_metric(name) for name in names]
    columns += [f"accuracy of {code(name)}" for name in facts.controls]
    rows = []
    for entry in _thinned(entries, facts.measured_step):
        row = [f"{entry['step']:,.0f}"] + [f"{entry.get('epoch', 0.0):.2f}"] * (len(header) - 1)
        row += [f"{entry[name]:.4f}" if name in entry else "" for name in with_losses]
        row += [_value(name, entry[name]) if name in entry else "" for name in names]
        for points in facts.controls.values():
            at_step = dict(points).get(int(entry["step"]))
            row.append("" if at_step is None else percent(at_step))
        saved = facts.keeps_best and entry["step"] == facts.measured_step
        rows.append([f"**{cell}**" if saved and cell else cell for cell in row])
    notes = [f"{len(rows)} of {len(entries)} measurements."] if len(rows) < len(entries) else []
    notes += ["The row in bold is the saved one."] if facts.keeps_best else []
    parts = ["### Training curve", table(columns, rows, right=range(len(columns))), " ".join(notes)]
    if "curves.png" in facts.pictures:
        parts.append("![Accuracy over the steps](curves.png)")
    return "\n\n".join(filter(None, parts))


def _thinned(entries: list[dict[str, float]], kept_step: int | None) -> list[dict[str, float]]:
    """At most ``SHOWN_ROWS`` measurements, evenly spaced, the saved one among them."""
    if len(entries) <= SHOWN_ROWS:
        return entries
    chosen = {round(place * (len(entries) - 1) / (SHOWN_ROWS - 1)) for place in range(SHOWN_ROWS)}
    return [entry for place, entry in enumerate(entries) if place in chosen or entry.get("step") == kept_step]
