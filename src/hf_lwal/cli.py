"""The command ``hf-lwal``: one subcommand per entry of ``COMMANDS``.

A command is a frozen dataclass of options, which become its flags, and a function that takes them and returns the exit
code. A user's mistake is a ``CommandError``: one sentence on standard error and exit code 2.
"""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

from . import quickstart
from .commands import card, compare, completion, doctor, fold, hierarchy, predict, report, train, train_flags
from .errors import CommandError
from .flags import Parser, add_options, print_error

COMMANDS: dict[str, tuple[type[Any], Callable[[Any], int]]] = {
    "quickstart": (quickstart.QuickstartOptions, quickstart.run),
    "train": (train.TrainOptions, train.run),
    "compare": (compare.CompareOptions, compare.run),
    "report": (report.ReportOptions, report.run),
    "hierarchy": (hierarchy.HierarchyOptions, hierarchy.run),
    "card": (card.CardOptions, card.run),
    "predict": (predict.PredictOptions, predict.run),
    "fold": (fold.FoldOptions, fold.run),
    "doctor": (doctor.DoctorOptions, doctor.run),
    "completion": (completion.CompletionOptions, lambda options: _complete(options)),
}
"""Name → (options, function). Modules listed here import their heavy dependencies inside their functions."""

MORE_FLAGS: dict[str, Callable[[Parser], None]] = {"train": train_flags.add_training_flags}
"""Name → what adds flags besides the options' own; their values reach the options as the mapping ``more``."""


def build_parser(*complete: str) -> Parser:
    """Return the parser of all commands.

    Args:
        *complete: commands that get their ``MORE_FLAGS``, which take seconds to collect; all others go without.
    """
    parser = Parser(prog="hf-lwal", description="Learning with Adaptive Labels for Hugging Face.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", title="commands")
    for name, (options, _) in COMMANDS.items():
        summary = (options.__doc__ or "").strip()
        first, _, _ = summary.partition("\n")
        subparser = commands.add_parser(name, help=first, description=summary)
        add_options(subparser, options)
        if name in complete and name in MORE_FLAGS:
            MORE_FLAGS[name](subparser)
    return parser


def _complete(options: completion.CompletionOptions) -> int:
    """Print the script that completes the commands above."""
    print(completion.script(build_parser(*MORE_FLAGS), options.shell))
    return 0


def with_config(parser: Parser, given: Sequence[str]) -> list[str]:
    """Put the settings of a YAML file, the first word after the command, in its place: later flags win over them."""
    words = list(given)
    if "--config" in words[:-1]:  # the other usual way to name it
        place = words.index("--config")
        words = [words[0], words[place + 1], *words[1:place], *words[place + 2 :]]
    if len(words) < 2 or not words[1].endswith((".yaml", ".yml")):
        return words
    import yaml

    chosen = parser.chosen(Namespace(command=words[0]))
    try:
        config = yaml.safe_load(Path(words[1]).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        chosen.error(f"{words[1]} could not be read: {' '.join(str(error).split())}")
    if not isinstance(config, dict):
        chosen.error(f"{words[1]} must hold one `flag: value` per line, but it holds {type(config).__name__}.")
    return [words[0], *chosen.words_of(config), *words[2:]]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    parser = build_parser(*words[:1])
    if words and words[0] in MORE_FLAGS:
        words = with_config(parser, words)
    values = vars(parser.parse_args(words))
    name = values.pop("command")
    options, run = COMMANDS[name]
    if name in MORE_FLAGS:
        own = {entry.name for entry in fields(options)}
        values["more"] = {key: values.pop(key) for key in list(values) if key not in own}
    if name != "doctor":  # which has to work where this import does not
        import_module(".auto", __package__)  # hf_lwal_command.py imports the package without it
    try:
        return run(options(**values))
    except CommandError as error:
        print_error(f"hf-lwal {name}: {error}")
        return 2
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print_error(f"hf-lwal {name}: interrupted.")
        return 130


if __name__ == "__main__":
    sys.exit(main())
