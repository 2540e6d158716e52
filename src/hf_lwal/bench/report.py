"""Tables of results as Markdown, CSV and LaTeX."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from ..data.tables import quoting
from ..metrics import MeanAndSd
from ..model_card.text import LONGEST, code, visible
from ..model_card.text import table as markdown_table
from .methods import REFERENCE
from .summary import Entry, Setting, Table

LATEX = {char: f"\\{char}" for char in "{}&%$#_"}
LATEX |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
LATEX |= {"±": r"$\pm$", "–": "--", "×": r"$\times$"}
"""Character → how LaTeX prints it."""
NEVER = "–"
NOT_RUN = "not run"
FAILED = "failed"
CONTESTED = ("step 0", "best", "final", "AUAC")
"""Of `MEASURES`, those in which the highest mean wins."""
OVERVIEW = ("step 0", "AUAC", "final")
"""Of `MEASURES`, those of a cell of the table of all settings."""
STRUCTURE = {
    "correlation": {"euclidean": "correlation, Euclidean", "cosine": "correlation, cosine"},
    "disparity": {"euclidean": "disparity, Euclidean", "cosine": "disparity, cosine"},
}
"""Measure of label vectors → distance → column."""
COLUMNS = (
    *("method", "learning rate", *CONTESTED, "macro-F1", "ECE"),
    *("steps to reference", "steps saved, %", "time saved, %", "training, s", "seeds"),
)


_HARMLESS = re.compile(r"[A-Za-z0-9]([A-Za-z0-9 ,.+=×()-]|:(?!/)|/(?!/)|(?<=[A-Za-z0-9])_(?=[A-Za-z0-9]))*")


def spread(value: MeanAndSd | None, digits: int = 1, missing: str = NEVER) -> str:
    """Mean ± standard deviation; the mean alone for one seed.

    >>> spread(MeanAndSd(83.25, 0.5))
    '83.2 ± 0.5'
    """
    if value is None:
        return missing
    return f"{value.mean:.{digits}f}" + ("" if value.sd is None else f" ± {value.sd:.{digits}f}")


def tuned_rows(table: Table, mark: Callable[[str], str]) -> list[list[str]]:
    """One row per method at its best learning rate, under `COLUMNS`."""
    entries = [table.tuned(method) for method in table.methods]
    winners = {name: best_shown(entries, name) for name in CONTESTED}
    rows = []
    for entry in entries:
        seeds = f"{len(entry.runs)}/{entry.planned}"
        if not entry.runs:
            rows.append([entry.method, NEVER, *[_state(entry)] * (len(COLUMNS) - 3), seeds])
            continue
        shown = [_marked(entry[name], winner, mark) for name, winner in winners.items()]
        start, speed = [entry.method, f"{entry.learning_rate:g}"], speed_cells(table, entry)
        others = (spread(entry["macro-F1"]), spread(entry["ECE"]))
        rows.append([*start, *shown, *others, *speed, spread(entry["training, s"]), seeds])
    return rows


def _state(entry: Entry) -> str:
    """What there is to say of a method without a finished training."""
    return FAILED if entry.failed else NOT_RUN


def best_shown(entries: Iterable[Entry], measure: str) -> str | None:
    """The highest mean as tables show it, which several entries may have; None where nothing ran."""
    means = [found.mean for entry in entries if (found := entry[measure]) is not None]
    return spread(MeanAndSd(max(means), None)) if means else None


def _marked(value: MeanAndSd | None, winner: str | None, mark: Callable[[str], str]) -> str:
    text = spread(value)
    return mark(text) if value is not None and spread(value._replace(sd=None)) == winner else text


def speed_cells(table: Table, entry: Entry) -> list[str]:
    """Steps to the reference's best accuracy and percent saved, with the number of seeds where not all got there."""
    speed = table.speed(entry)
    values = (speed.steps, speed.steps_saved, speed.time_saved)
    if table.reference is None:
        return [NOT_RUN] * len(values)
    part = f" ({speed.reached}/{len(entry.runs)})" if 0 < speed.reached < len(entry.runs) else ""
    return [spread(value, 0) + (part if value else "") for value in values]


def rate_rows(table: Table, measure: str, mark: Callable[[str], str]) -> list[list[str]]:
    """One row per method, one column per learning rate."""
    rates = table.learning_rates
    winners = {
        rate: best_shown((entry for entry in table.entries if entry.learning_rate == rate), measure) for rate in rates
    }

    def cell(entry: Entry | None) -> str:
        if entry is None:
            return ""
        return _marked(entry[measure], winners[entry.learning_rate], mark) if entry.runs else _state(entry)

    return [[method, *(cell(table.entry(method, rate)) for rate in rates)] for method in table.methods]


def markdown(tables: Sequence[Table], pictures: Mapping[Setting, str]) -> str:
    """All tables as Markdown."""
    parts = ["# Results", EXPLANATION, *overview_parts(tables)]
    for table in tables:
        parts += [f"## {in_markdown(str(table.setting))}", _rows_sentence(table)]
        parts += ["Each method at its best learning rate:", _table(COLUMNS, tuned_rows(table, _bold))]
        if len(table.learning_rates) > 1:
            header = ["method", *(f"{rate:g}" for rate in table.learning_rates)]
            for name in ("best", "AUAC"):
                parts += [f"{name} at every learning rate:", _table(header, rate_rows(table, name, _bold))]
        parts += structure_parts(table)
        if table.setting in pictures:
            parts.append(f"![test accuracy over steps]({pictures[table.setting]})")
    return "\n\n".join(part for part in parts if part) + "\n"


EXPLANATION = f"""Test accuracies in percent, mean ± standard deviation over seeds; the highest mean is bold, as are
all that look the same. **step 0**: before the first step. **best** and **final**: the best evaluation and the last.
**AUAC**: the mean over all evaluations after the first step.
**ECE**: expected calibration error of the last evaluation, percent between how sure and how often right, 0 at best.
**steps to reference**: optimizer steps until the best accuracy of `{REFERENCE}` at its best learning rate is reached,
seed by seed; a row of a start pass counts as a third of a training row. **steps saved**: percent of the steps that the
reference itself needed; **time saved**: the same for seconds of training. {NEVER}: never reached; (2/3): reached with
two of three seeds. **training**: seconds without evaluations, the start pass included."""


def overview_parts(tables: Sequence[Table]) -> list[str]:
    """All settings in one table, a row for each and a column for each method; nothing for a single setting."""
    if len(tables) < 2:
        return []
    methods = list(dict.fromkeys(method for table in tables for method in table.methods))
    names = [str(table.setting).split(", ") for table in tables]
    shared = set.intersection(*map(set, names))
    rows = []
    for table, parts in zip(tables, names, strict=True):
        entries = {method: table.tuned(method) for method in table.methods}
        winners = [best_shown(entries.values(), name) for name in OVERVIEW]
        label = ", ".join([parts[0], *(part for part in parts[1:] if part not in shared)])
        rows.append([label, *(_overview_cell(entries.get(method), winners) for method in methods)])
    common = ", ".join(part for part in names[0][1:] if part in shared)
    explanation = f"{OVERVIEW_EXPLANATION} All have: {common}." if common else OVERVIEW_EXPLANATION
    return ["## All settings", explanation, _table(["setting", *map(in_markdown, methods)], rows)]


def _overview_cell(entry: Entry | None, winners: Sequence[str | None]) -> str:
    if entry is None:
        return ""
    if not entry.runs:
        return _state(entry)
    shown = [_marked(entry[name], winner, _bold) for name, winner in zip(OVERVIEW, winners, strict=True)]
    part = "" if len(entry.runs) == entry.planned else f" ({len(entry.runs)}/{entry.planned})"
    return f"{' / '.join(shown)}, {spread(entry['training, s'], 0)} s{part}"


OVERVIEW_EXPLANATION = """Each method at its best learning rate: accuracy before the first step / mean over the
evaluations after it / at the end, and seconds of training. A method that is measured at the end alone has that as its
mean. (2/3): two of three seeds have run."""


def _rows_sentence(table: Table) -> str:
    runs = [run for entry in table.entries for run in entry.runs]
    if not runs:
        return ""
    rows, devices = runs[0].rows, sorted({run.device for run in runs})
    return (
        f"{rows['train']:,} training rows, {rows['test']:,} test rows, on {' and '.join(map(in_markdown, devices))}."
    )


def _bold(text: str) -> str:
    return f"**{text}**"


def in_markdown(name: str) -> str:
    """A name from a file of results as it is where that is harmless on a page, else as a code span.

    >>> in_markdown("one_hot, batch 50x"), in_markdown("<b>"), in_markdown("_a_")
    ('one_hot, batch 50x', '`<b>`', '`_a_`')
    """
    return name if _HARMLESS.fullmatch(name) and len(name) <= LONGEST and "www." not in name.lower() else code(name)


def in_latex(name: str) -> str:
    r"""A name from a file of results, in which no character is a command.

    >>> in_latex("a_b ^ \\input{x}")
    'a\\_b \\textasciicircum{} \\textbackslash{}input\\{x\\}'
    """
    return "".join(LATEX.get(char, char) for char in visible(name))


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in GitHub's Markdown, whose rows begin with a name."""
    return markdown_table(header, _named(rows, in_markdown))


def _named(rows: Sequence[Sequence[str]], show: Callable[[str], str]) -> list[list[str]]:
    """Rows whose first cell is the name of a method."""
    return [[show(row[0]), *row[1:]] for row in rows]


def structure_parts(table: Table) -> list[str]:
    """A sentence and a table on label vectors; nothing where no line measured them."""
    measured = [run.structure for entry in table.entries for run in entry.runs if run.structure]
    references = [found for found in measured if found["reference"]]
    if not references:
        return []
    kind, largest = references[0]["reference"], references[0]["largest"]
    reference = "the labels' distances in WordNet" if kind == "wordnet" else "the known groups of the labels"
    sentence = (
        f"Label vectors against {reference}: **correlation**, Kendall's τ-b of every label's distances to the others, "
        f"0 by chance and at most {largest:.3f} here"
    )
    sentence += "; **disparity** of the two maps, 0 at best." if kind == "wordnet" else "."
    columns = [(measure, metric) for measure in STRUCTURE for metric in STRUCTURE[measure]]
    entries = [entry for entry in map(table.tuned, table.methods) if entry.structure("correlation", "euclidean")]
    kept = [column for column in columns if any(entry.structure(*column) for entry in entries)]
    rows = [
        [entry.method, f"{entry.learning_rate:g}", *(spread(entry.structure(*column), 3) for column in kept)]
        for entry in entries
    ]
    return [sentence, _table(["method", "learning rate", *(STRUCTURE[m][d] for m, d in kept)], rows)]


def latex(tables: Sequence[Table]) -> str:
    """The tables of tuned methods as LaTeX, for the package booktabs."""
    import pandas

    parts = []
    for table in tables:
        found = _named(tuned_rows(table, lambda text: f"\\textbf{{{text}}}"), in_latex)
        rows = pandas.DataFrame([[name, *map(_escaped, cells)] for name, *cells in found], columns=COLUMNS)
        rows = rows.rename(columns=_escaped)
        caption, columns = in_latex(str(table.setting)), "l" + "r" * (len(COLUMNS) - 1)
        parts.append(rows.to_latex(index=False, escape=False, caption=caption, column_format=columns))
    return "\n".join(parts) or "\n"


def _escaped(text: str) -> str:
    """A cell of our own, which may hold commands."""
    return "".join(LATEX[char] if char in "%_±–×" else char for char in text)


def csv_text(tables: Sequence[Table]) -> str:
    """Every method at every learning rate as CSV, with numbers only; empty where there is none."""
    import pandas

    rows = []
    for table in tables:
        for entry in table.entries:
            speed = table.speed(entry)
            row = dict(table.setting._asdict(), method=entry.method, learning_rate=f"{entry.learning_rate:g}")
            row |= {"runs": len(entry.runs), "planned": entry.planned, "reached": speed.reached}
            measures = {
                **{name: entry[measure] for name, measure in CSV_MEASURES.items()},
                **{"steps_to_reference": speed.steps, "steps_saved": speed.steps_saved},
                **{"time_saved": speed.time_saved, "training_seconds": entry["training, s"]},
            }
            for name, measure in measures.items():
                for column, value in zip((name, f"{name}_sd"), measure or (None, None), strict=True):
                    row[column] = None if value is None else f"{value:.4f}"
            rows.append(row)
    frame = pandas.DataFrame(rows, dtype=object)
    return frame.to_csv(index=False, lineterminator="\n", quoting=quoting(frame.to_numpy().flat))


CSV_MEASURES = {
    "first": "step 0",
    "best": "best",
    "final": "final",
    "auac": "AUAC",
    "f1_macro": "macro-F1",
    "calibration_error": "ECE",
}
"""Column of the CSV → measure."""
