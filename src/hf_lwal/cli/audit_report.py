"""What ``hf-lwal audit`` writes: an HTML file that needs nothing else, or a csv file."""

from __future__ import annotations

import base64
import csv
import io
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from ..data.tables import quoting
from ..errors import harmless

MOST_ROWS = 1000
"""Rows of the HTML table at most; csv has all."""
LONGEST_TEXT = 600
"""Characters of a text in the HTML table."""
THUMBNAIL = 96
"""Pixels of the longer side of a picture."""
SHOWN = 5
"""Rows of which nothing can be said, by their number and label."""
BARS = 60
BLUE, RED = "#9bb4cf", "#b3261e"
WIDEST = 30.0
"""Margins beyond this are drawn at the edge."""


@dataclass(frozen=True)
class Judged:
    """A row and what was found of its label.

    Attributes:
        row: its number in the file, from 1.
        label: the given one.
        likelier: the likeliest other; None where nothing can be said.
        margin: logarithm of the odds that the given label is right.
        suspicious: among the rows whose label is probably wrong.
        shown: its text, or the name of its file.
        cell: its picture, as the datasets library stores it.
    """

    row: int
    label: str
    likelier: str | None
    margin: float | None
    suspicious: bool
    shown: str
    cell: Any = None

    @property
    def wrong(self) -> float | None:
        """Probability that the label is wrong."""
        return None if self.margin is None else 1.0 / (1.0 + math.exp(min(self.margin, 700.0)))


@dataclass(frozen=True)
class Audit:
    """All rows, the most suspicious first.

    Attributes:
        name: of the data.
        names: of the labels.
        rows: those with a label.
        share: of wrong labels, by estimate.
        kind: "text", "image" or "audio".
    """

    name: str
    names: Sequence[str]
    rows: Sequence[Judged]
    share: float
    kind: str

    @property
    def judged(self) -> int:
        """Rows of which something can be said."""
        return sum(row.margin is not None for row in self.rows)

    @property
    def suspicious(self) -> list[Judged]:
        """Rows whose label is probably wrong."""
        return [row for row in self.rows if row.suspicious]

    @property
    def what(self) -> str:
        """What stands in the last column."""
        return "text" if self.kind == "text" else "file"


def share_sentence(audit: Audit) -> str:
    """What the estimate means."""
    number, apart = len(audit.suspicious), _unjudged_sentence(audit)
    if not number:
        return f"By estimate none of the {audit.judged:,} labels is wrong; the least certain come first.{apart}"
    return (
        f"By estimate {100 * audit.share:.1f} % of the {audit.judged:,} labels are wrong, that is {number:,}: as many "
        f"rows, the most suspicious, are marked. Look at them before you change anything: some are right.{apart}"
    )


def _unjudged_sentence(audit: Audit) -> str:
    """The rows of which nothing can be said, each with its label, which may be another one's, misspelt."""
    rest = [row for row in audit.rows if row.margin is None]
    if not rest:
        return ""
    named = ", ".join(f"row {row.row} ({row.label!a})" for row in rest[:SHOWN])
    number = "1 more row" if len(rest) == 1 else f"{len(rest):,} more rows"
    return (
        f" Of {number} nothing can be said, since no other row has the label: "
        f"{named}{' …' if len(rest) > SHOWN else ''}."
    )


def swaps(audit: Audit) -> list[tuple[str, str, int]]:
    """Given and likelier label of the suspicious rows, with their number, the most frequent pairs first."""
    pairs = Counter((row.label, str(row.likelier)) for row in audit.suspicious)
    return [(given, likelier, count) for (given, likelier), count in pairs.most_common()]


def one_line(text: str) -> str:
    r"""A text on one line, without characters that would move the cursor or turn the direction of reading.

    >>> one_line("two\n lines\x1b[31m")
    'two lines�[31m'
    """
    return harmless(" ".join(text.split()))


def as_csv(audit: Audit, _: int) -> str:
    """All rows, the most suspicious first."""
    file = io.StringIO()
    texts = (text for row in audit.rows for text in (row.label, row.likelier, row.shown))
    writer = csv.writer(file, lineterminator="\n", quoting=quoting(texts))  # type: ignore[arg-type]
    writer.writerow(["row", "label", "likelier", "margin", "wrong", "suspicious", audit.what])
    for row in audit.rows:
        numbers = ["", ""] if row.margin is None else [f"{row.margin:.4f}", f"{row.wrong:.6f}"]
        writer.writerow([row.row, row.label, row.likelier or "", *numbers, int(row.suspicious), row.shown])
    return file.getvalue()


def as_html(audit: Audit, limit: int) -> str:
    """The estimate, the margins, the labels that are swapped, and the most suspicious rows."""
    known = [row for row in audit.rows if row.margin is not None]
    shown = known[: min(max(limit, len(audit.suspicious)), MOST_ROWS)]
    title = escape(f"Labels of {audit.name}")
    parts = [
        f"<h1>{title}</h1>",
        f"<p>{escape(share_sentence(audit))}</p>",
        "<h2>Margins</h2>",
        "<p>The logarithm of the odds that a row's given label is right, of all rows: left of 0 another label is "
        "likelier. Red: rows whose label is probably wrong. The height of the bars grows with the logarithm of the "
        "number.</p>",
        histogram([float(row.margin or 0.0) for row in known], len(audit.suspicious)),
        *_swap_table(audit),
        *_label_table(audit),
        f"<h2>Rows</h2><p>The {len(shown):,} most suspicious of {len(audit.rows):,}, counted from 1 without a header"
        ". A click on a heading sorts.</p>",
        _row_table(audit, shown),
    ]
    return PAGE.format(title=title, body="\n".join(parts), style=STYLE, script=SCRIPT)


def _swap_table(audit: Audit) -> list[str]:
    found = swaps(audit)[:30]
    if not found:
        return []
    lines = [[_text(given), _text(likelier), _number(count, f"{count:,}")] for given, likelier, count in found]
    return ["<h2>Labels that are swapped</h2>", _table(["given label", "likelier label", "rows"], lines)]


def _label_table(audit: Audit) -> list[str]:
    rows = Counter(row.label for row in audit.rows)
    wrong = Counter(row.label for row in audit.suspicious)
    often = sorted(rows, key=lambda label: (-wrong[label] / rows[label], label))
    lines = [
        [
            _text(label),
            _number(rows[label], f"{rows[label]:,}"),
            _number(wrong[label], f"{wrong[label]:,}"),
            _number(wrong[label] / rows[label], f"{100 * wrong[label] / rows[label]:.1f} %"),
        ]
        for label in often
    ]
    table = _table(["label", "rows", "suspicious", "share"], lines)
    return ["<h2>Labels</h2>", f"<details><summary>{len(often):,} labels</summary>{table}</details>"]


def _row_table(audit: Audit, shown: Sequence[Judged]) -> str:
    lines = []
    for row in shown:
        text = row.shown if len(row.shown) <= LONGEST_TEXT else f"{row.shown[:LONGEST_TEXT]}…"
        picture = [] if row.cell is None else [f"<td>{_thumbnail(row.cell)}</td>"]
        margin = float(row.margin or 0.0)
        mark = ' class="wrong"' if row.suspicious else ""
        lines.append(
            [
                _number(row.row, str(row.row)),
                *picture,
                _text(row.label),
                _text(str(row.likelier)),
                f'<td{mark} data-v="{margin}">{margin:.1f}</td>',
                _text(text),
            ]
        )
    pictures = ["picture"] if shown and shown[0].cell is not None else []
    return _table(["row", *pictures, "given label", "likelier label", "margin", audit.what], lines)


def _table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "\n".join(f"<tr>{''.join(line)}</tr>" for line in lines)
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table>"


def _text(text: str) -> str:
    """A cell that can neither become markup nor turn the direction of its neighbours."""
    return f"<td><bdi>{escape(harmless(text))}</bdi></td>"


def _number(value: float, shown: str) -> str:
    return f'<td data-v="{value}">{shown}</td>'


def _thumbnail(cell: Any) -> str:
    """A picture inside the file."""
    from ..modeling.pictures import read_picture

    picture = read_picture(cell)
    picture.thumbnail((THUMBNAIL, THUMBNAIL))
    file = io.BytesIO()
    picture.save(file, "PNG")
    return f'<img alt="" src="data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}">'


def histogram(margins: Sequence[float], suspicious: int) -> str:
    """A picture of ascending margins, the first so many of them in red, as SVG."""
    least, most = max(margins[0], -WIDEST), min(margins[-1], WIDEST)
    step = max(most - least, 1e-6) / BARS
    counts: dict[bool, Counter[int]] = {True: Counter(), False: Counter()}
    for place, margin in enumerate(margins):
        inside = min(max(margin, least), most)
        counts[place < suspicious][min(int((inside - least) / step), BARS - 1)] += 1
    highest = math.log1p(max((counts[True] + counts[False]).values()))
    bars = []
    for bar in range(BARS):
        red, all_of = counts[True][bar], counts[True][bar] + counts[False][bar]
        height = 150 * math.log1p(all_of) / highest
        part = height * red / all_of if all_of else 0.0  # of one bar, shares are drawn as they are
        for colour, top, size in ((BLUE, 160 - height, height - part), (RED, 160 - part, part)):
            if size > 0:
                bars.append(f'<rect fill="{colour}" x="{10 * bar}" y="{top:.1f}" width="9" height="{size:.1f}"/>')
    ticks = []
    for value in range(math.ceil(least / 5) * 5, math.floor(most) + 1, 5):
        middle = 10 * (value - least) / step
        ticks.append(f'<text x="{middle:.1f}" y="176" font-size="9" text-anchor="middle">{value}</text>')
    edge = []
    if 0 < suspicious < len(margins):
        cut = (min(max((margins[suspicious - 1] + margins[suspicious]) / 2, least), most) - least) / step
        edge.append(f'<line x1="{10 * cut:.1f}" x2="{10 * cut:.1f}" y1="0" y2="162" stroke="{RED}"/>')
    return f'<svg viewBox="-10 0 620 180" role="img">{"".join(bars + ticks + edge)}</svg>'


STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; margin: .5rem 0 1.5rem; }
th, td { text-align: left; vertical-align: top; padding: .25rem .6rem; border-bottom: 1px solid #ddd; }
th { cursor: pointer; white-space: nowrap; position: sticky; top: 0; background: #fff; }
td[data-v] { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
td bdi { white-space: pre-wrap; overflow-wrap: anywhere; }
td.wrong { color: #b3261e; font-weight: 600; }
svg { width: 100%; max-width: 46rem; }
img { max-width: 96px; image-rendering: pixelated; }
"""
SCRIPT = """
document.querySelectorAll("th").forEach(head => head.addEventListener("click", () => {
  const body = head.closest("table").tBodies[0], place = head.cellIndex, down = head.dataset.down !== "1";
  const value = row => { const cell = row.cells[place];
    return cell.dataset.v === undefined ? cell.textContent : Number(cell.dataset.v); };
  head.dataset.down = down ? "1" : "0";
  [...body.rows].sort((a, b) => { const x = value(a), y = value(b);
    return (x < y ? -1 : x > y ? 1 : 0) * (down ? 1 : -1); }).forEach(row => body.append(row));
}));
"""
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
{body}
<script>{script}</script>
</body>
</html>
"""
