"""The command ``hf-lwal``: one subcommand per entry of ``COMMANDS``.

A command is a frozen dataclass of options, which become its flags, and a function that takes them and returns the exit
code. A user's mistake is a ``CommandError``: one sentence on standard error and exit code 2.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields
from typing import Any, get_args, get_type_hints

from . import quickstart
from .errors import CommandError

COMMANDS: dict[str, tuple[type[Any], Callable[[Any], int]]] = {
    "quickstart": (quickstart.QuickstartOptions, quickstart.run),
}
"""Name → (options, function). Modules listed here import their heavy dependencies inside their functions."""


def add_options(parser: argparse.ArgumentParser, options: type[Any]) -> None:
    """Give a parser one flag per field of a dataclass, with the field's type, default and help text."""
    types = get_type_hints(options)
    for entry in fields(options):
        kind = next((choice for choice in get_args(types[entry.name]) if choice is not type(None)), types[entry.name])
        text = entry.metadata["help"]
        shown = text if entry.default in (None, MISSING) else f"{text} (default: {entry.default})"
        parser.add_argument(
            f"--{entry.name.replace('_', '-')}",
            type=kind,
            default=entry.default,
            help=shown.replace("%", "%%"),  # argparse formats help texts
            metavar=kind.__name__.upper(),
        )


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = argparse.ArgumentParser(prog="hf-lwal", description="Learning with Adaptive Labels for Hugging Face.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (options, _) in COMMANDS.items():
        summary = (options.__doc__ or "").strip()
        add_options(commands.add_parser(name, help=summary, description=summary), options)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit code."""
    values = vars(build_parser().parse_args(argv))
    name = values.pop("command")
    options, run = COMMANDS[name]
    try:
        return run(options(**values))
    except CommandError as error:
        print(f"hf-lwal {name}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"hf-lwal {name}: interrupted.", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
