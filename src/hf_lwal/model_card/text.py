"""Pieces of Markdown that stay what they are, whatever a label, a file or a data set is called."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from ..errors import is_harmless, shortened

LONGEST = 80
"""Characters of a name that are shown; a label may be a whole paragraph."""

_PLAIN = re.compile(r"[A-Za-z0-9]([A-Za-z0-9 ()-]|(?<=\d)\.(?=\d))*")


def visible(text: str, longest: int = LONGEST) -> str:
    r"""One line without characters that hide or reorder others; those are shown by their number.

    >>> visible("a\n b\u202ec")
    'a b\\u202ec'
    """
    line = " ".join(str(text).split())
    shown = "".join(char if is_harmless(char) else f"\\u{ord(char):04x}" for char in line)
    if len(shown) <= longest or longest <= LONGEST:  # a name; of a text the beginning says most
        return shortened(shown, longest)
    return f"{shown[: longest - 1]}…"


def code(text: str, longest: int = LONGEST) -> str:
    """A name as a code span, in which Markdown, HTML, links and formulas are only letters.

    >>> code("**book** `now`")
    '`` **book** `now` ``'
    """
    shown = visible(text, longest) or "(no name)"
    fence = "`" * (max((len(run) for run in re.findall(r"`+", shown)), default=0) + 1)
    pad = " " if "`" in (shown[0], shown[-1]) else ""
    return f"{fence}{pad}{shown}{pad}{fence}"


def fenced(text: str, language: str = "") -> str:
    """A block of code that ends where it should, whatever it holds."""
    lines = [visible_line(line) for line in text.strip("\n").splitlines()]
    fence = "`" * max(3, 1 + max((len(run) for line in lines for run in re.findall(r"`+", line)), default=0))
    return "\n".join([f"{fence}{language}", *lines, fence])


def visible_line(line: str) -> str:
    """A line with its spaces, and without characters that hide or reorder others."""
    return "".join(char if is_harmless(char) else f"\\u{ord(char):04x}" for char in line.expandtabs())


def plain(text: str, longest: int = 500) -> str:
    r"""A text for a sentence, in which Markdown, HTML, links and formulas are only letters.

    >>> plain("**a** <b> [c](d)")
    '\\*\\*a\\*\\* \\<b\\> \\[c\\]\\(d\\)'
    """
    shown = re.sub(r"([\\`*_{}\[\]<>()#+!|~$&:@-])", r"\\\1", visible(text, longest))
    return re.sub(r"(?i)\bwww\.", r"www\.", shown)


def heading_text(text: str) -> str:
    """A name for a heading: as it is when it is harmless there, else as a code span."""
    shown = visible(text)
    return shown if _PLAIN.fullmatch(shown) else code(text)


def literal(text: str) -> str:
    """A text as a Python literal on one line."""
    return json.dumps(visible(text, longest=500), ensure_ascii=False)


def table(header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """A Markdown table.

    Args:
        header: names of the columns, as Markdown.
        rows: cells, as Markdown on one line.
        right: columns that are aligned to the right.
    """
    rule = ["---:" if column in right else "---" for column in range(len(header))]
    lines = [header, rule, *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def percent(value: float) -> str:
    """A share in percent."""
    return f"{100.0 * value:.1f} %"


def thousands(value: int) -> str:
    """A number with commas."""
    return f"{value:,}"


def millions(size: int) -> str:
    """A number of parameters."""
    return thousands(size) if size < 10**6 else f"{size / 1e6:.1f} M"


def duration(seconds: float) -> str:
    """Seconds for people.

    >>> duration(0.044), duration(7.26), duration(284), duration(7500)
    ('0.04 s', '7.3 s', '4 min 44 s', '2 h 5 min')
    """
    if seconds < 1:
        return f"{seconds:.2f} s"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
