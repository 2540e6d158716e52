"""The command ``hf-lwal``: one subcommand per entry of ``COMMANDS``.

A command is a frozen dataclass of options, which become its flags, and a function that takes them and returns the exit
code. Whatever goes wrong ends here in one sentence on standard error, with exit code 2 for what the user can put right
and 1 for what else fails; 130 and 143 are Ctrl-C and SIGTERM. ``--traceback`` shows the whole.
"""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from traceback import print_exception
from typing import Any

from .. import __version__
from ..errors import outcome
from . import (
    audit,
    card,
    compare,
    completion,
    doctor,
    fold,
    hierarchy,
    hierarchy_inputs,
    predict,
    quickstart,
    report,
    train,
    train_flags,
)
from .flags import Parser, add_options, print_error
from .settings_file import read_settings
from .terminal import prepare_terminal, termination_as_interrupt
from .verbosity import add_verbosity, verbosity

TRACEBACK = "--traceback"
CODES = "0 done, 1 it failed, 2 a mistake that you can put right, 130 and 143 interrupted and terminated"

COMMANDS: dict[str, tuple[type[Any], Callable[[Any], int]]] = {
    "quickstart": (quickstart.QuickstartOptions, quickstart.run),
    "train": (train.TrainOptions, train.run),
    "audit": (audit.AuditOptions, audit.run),
    "compare": (compare.CompareOptions, compare.run),
    "report": (report.ReportOptions, report.run),
    "hierarchy": (hierarchy_inputs.HierarchyOptions, hierarchy.run),
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
    parser = Parser(
        prog="hf-lwal", description="Learning with Adaptive Labels for Hugging Face.", epilog=f"Exit codes: {CODES}."
    )
    parser.add_argument("--version", action="version", version=f"hf-lwal {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", title="commands")
    for name, (options, _) in COMMANDS.items():
        summary = (options.__doc__ or "").strip()
        first, _, _ = summary.partition("\n")
        subparser = commands.add_parser(name, help=first, description=summary)
        add_options(subparser, options)
        if name in complete and name in MORE_FLAGS:
            MORE_FLAGS[name](subparser)
        add_verbosity(subparser)
        subparser.add_argument(TRACEBACK, action="store_true", help="show where an error came from")
    return parser


def _complete(options: completion.CompletionOptions) -> int:
    """Print the script that completes the commands above."""
    print(completion.script(build_parser(*MORE_FLAGS), options.shell))
    return 0


def with_config(parser: Parser, given: Sequence[str]) -> list[str]:
    """Put the settings of a YAML file, the first word after the command, in its place: later flags win over them.

    Another first word is the data, as it is for ``audit``, unless a flag names them.
    """
    words = list(given)
    if "--config" in words[:-1]:  # the other usual way to name it
        place = words.index("--config")
        words = [words[0], words[place + 1], *words[1:place], *words[place + 2 :]]
    if len(words) < 2 or not words[1].endswith((".yaml", ".yml")):
        named = any(word.partition("=")[0] in ("--data", "--dataset") for word in words)
        data = len(words) > 1 and not words[1].startswith("-") and not named
        return [words[0], f"--data={words[1]}", *words[2:]] if data else words
    chosen = parser.chosen(Namespace(command=words[0]))
    try:
        config = read_settings(Path(words[1]))
    except ValueError as error:
        chosen.error(f"{words[1]} {error}")
    return [words[0], *chosen.words_of(config), *words[2:]]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        with termination_as_interrupt():
            code = _run(words)
            if sys.stdout is not None:  # as it is under pythonw
                sys.stdout.flush()  # here, where a reader that has gone is no error
            return code
    except SystemExit:  # the parser has said why
        raise
    except BaseException as error:  # the one place where every command ends
        return _end(error, words)


def _run(words: list[str]) -> int:
    """Parse and run a command line; returns the exit code."""
    parser = build_parser(*words[:1])
    if words and words[0] in MORE_FLAGS:
        words = with_config(parser, words)
    values = vars(parser.parse_args(words))
    del values["traceback"]
    how_much = verbosity(values.pop("quiet"), values.pop("verbose"))
    name = values.pop("command")
    options, run = COMMANDS[name]
    if name in MORE_FLAGS:
        own = {entry.name for entry in fields(options)}
        values["more"] = {key: values.pop(key) for key in list(values) if key not in own}
    with how_much:
        return run(options(**values))


def _end(error: BaseException, words: Sequence[str]) -> int:
    """Say what ended a command; returns its exit code."""
    if isinstance(error, BrokenPipeError) or isinstance(error.__cause__, BrokenPipeError):
        # The reader, such as `head`, has seen enough; what is still in the buffer must not fail at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    if TRACEBACK in words:
        print_exception(error)
    message, code = outcome(error)
    name = f" {words[0]}" if words and words[0] in COMMANDS else ""
    print_error(f"hf-lwal{name}: {message}")
    return code


def program() -> int:
    """Run the command line of this process; returns the exit code."""
    prepare_terminal()
    return main()


if __name__ == "__main__":
    sys.exit(program())
