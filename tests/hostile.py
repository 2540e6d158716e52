"""Names that mean something to Markdown, HTML, YAML, LaTeX, shells, templates, terminals or file systems."""

from __future__ import annotations

import sys

NUL = "x\x00y" if sys.version_info >= (3, 11) else "xy"
"""Python 3.10 writes no table with this character, and reads none."""
MEANT = [
    *("**b**", "_i_", "`c`", "``c``", "```\nx\n```", "~~~\nx\n~~~", "~~s~~", "# h", "\n# h\n", "- i", "1. i", "> q"),
    *("---", "a|b", "|", "\\", "\\|", "[l](http://evil.example)", "![i](http://evil.example/x.png)"),
    *("[r]: http://evil.example", "<http://evil.example>", "http://evil.example", "https://evil.example"),
    *("www.evil.example", "me@evil.example", "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "<b>"),
    *("</td></tr></table>", "</bdi>", "</details>", "<!--", "-->", "<!-- user text ends: notes -->", "<![CDATA["),
    *("<?php", "&lt;b&gt;", "&#60;b&#62;", "\"'><svg/onload=x>", "javascript:alert(1)", "data:text/html,<b>"),
    *("' onmouseover='x", '" onmouseover="x', "<style>*{}</style>", "<iframe>", "---\na: b\n---", "...", "a: b"),
    *("- a", "!!python/object/apply:os.system ['touch ran']", "&a *a", "{a: b}", "[1, 2]", "null", "~", "yes"),
    *("1e3", "0x1f", "2024-01-01", "%YAML 1.2", "'", '"', "''", "|-\n x", "? a", "@a", "# no", "a #b", "$x$"),
    *("$$x$$", "\\(x\\)", "\\[x\\]", "\\input{/etc/passwd}", "\\write18{touch ran}", "\\end{tabular}", "%", "{"),
    *("}", "\\textbf{x}", "^", "#1", "\\\\", "$(touch ran)", "`touch ran`", "; touch ran", "| touch ran"),
    *("&& touch ran", "$HOME", "-rf", "--output=x", "*", "?", "!!", "\n touch ran\n", "{{ 7*7 }}", "{% raw %}"),
    *("{# c #}", "${7*7}", "%(x)s", "{0}", "%s", "../../x", "..\\..\\x", "/etc/passwd", "~/x", "C:\\x"),
    *("file:///etc/passwd", ".", "..", "CON", "a/b", "a\\b", NUL, "\x1b[31mred\x1b[0m", "\x1b]0;title\x07"),
    *("\x9b31m", "\b\b", "\x07", "\r", "\x7f", "\x85", "\u2028", "\u2029", "\u202eevil", "\u2066a\u2069", "\u200f"),
    *("\u200b", "\ufeff", "\xad", "\U000e0041", "\ue000", "\ud800", "a\u0301" * 30, "\u05e9\u05dc\u05d5\u05dd"),
    *("\u0645\u0631\u062d\u0628\u0627", "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645"),
    *("\U0001f469\u200d\U0001f680", "\U0001d4ea", "\u01c4", "\xdf", "\u0130", "x" * 5000, "", " ", "\t", "\n"),
    *("\xa0", "\u3000"),
]
WRAPPED = [f"{before}{name}{after}" for name in MEANT[::3] for before, after in (("a ", " b"), ("\n", "\n"))]
HOSTILE = list(dict.fromkeys([*MEANT, *WRAPPED]))
