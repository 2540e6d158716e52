"""Flags of a command from the fields of a dataclass, and a parser whose help and errors are made for people."""

from __future__ import annotations

import argparse
import difflib
import json
import math
import os
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, field, fields
from typing import Any, Literal, NoReturn, TypeVar, get_args, get_origin, get_type_hints

from ..errors import CommandError, harmless

Value = TypeVar("Value")
ALIASES = {"data": "dataset", "dataset": "data", "output": "output_dir", "output_dir": "output"}
"""Field → its other usual name, which is accepted wherever it has no meaning of its own."""
TRUE = ("true", "yes", "on", "y", "t", "1")
FALSE = ("false", "no", "off", "n", "f", "0")
"""Words for a switch in a file of settings."""
RED = "\033[31m"
PLAIN = "\033[0m"


def option(default: Value, text: str, *, positional: bool = False) -> Value:
    """Return a dataclass field with a default and a help text.

    Args:
        default: value without the flag; a list stands for a fresh copy per instance.
        text: help text.
        positional: a word in its place instead of a flag.
    """
    metadata = {"help": text, "positional": positional}
    if isinstance(default, list):
        copied: Any = field(default_factory=lambda: list(default), metadata=metadata)
        return copied
    return field(default=default, metadata=metadata)


def argument(text: str, *, positional: bool = True) -> Any:
    """Return a dataclass field for a word, or a flag, that must be given; words are in the order of the fields."""
    return field(metadata={"help": text, "positional": positional})


def add_options(parser: argparse.ArgumentParser, options: type[Any]) -> None:
    """Give a parser one flag or positional word per field of a dataclass, with its type, default and help text.

    Types are ``str``, ``int``, ``float``, ``bool``, ``Literal`` and lists of them, with or without None. A field whose
    metadata says ``positional`` is a word in its place; one that says ``flag: False`` is not set by words at all.
    Flags may be written with hyphens or underscores.
    """
    types = get_type_hints(options)
    for entry in fields(options):
        if entry.metadata.get("flag", True):
            _add_option(parser, entry, _without_none(types[entry.name]))
    add_aliases(parser)


def add_aliases(parser: argparse.ArgumentParser) -> None:
    """Accept the flags of `ALIASES` under both names, where the second is not taken."""
    known = parser._option_string_actions
    for action in list(parser._actions):
        if action.option_strings and action.dest in ALIASES:
            other = [name for name in spellings(ALIASES[action.dest]) if name not in known]
            known |= dict.fromkeys(other, action)  # not among its option_strings, so that help shows one name


def _without_none(kind: Any) -> Any:
    """The type in ``X | None``, or the type itself."""
    if get_origin(kind) in (list, Literal):
        return kind
    return next((choice for choice in get_args(kind) if choice is not type(None)), kind)


def _add_option(parser: argparse.ArgumentParser, entry: Field[Any], kind: Any) -> None:
    default = entry.default_factory() if entry.default_factory is not MISSING else entry.default
    several = get_origin(kind) is list
    (kind,) = get_args(kind) if several else (kind,)
    text = entry.metadata["help"]
    if default is not None and default is not MISSING and default is not False and default != []:
        shown = " ".join(map(str, default)) if several else default
        text = f"{text} (default: {shown})"
    keywords: dict[str, Any] = {"help": text.replace("%", "%%")}  # argparse formats help texts
    if get_origin(kind) is Literal:
        keywords |= {"choices": get_args(kind)}
    elif kind is not bool:
        keywords |= {"type": kind, "metavar": kind.__name__.upper()}
    if entry.metadata.get("positional"):
        optional = None if default is MISSING else "?"
        keywords |= {"metavar": entry.name.replace("_", "-"), "nargs": "*" if several else optional}
        if default is not MISSING:
            keywords["default"] = default
        parser.add_argument(entry.name, **keywords)
        return
    if kind is bool and not several:
        keywords["action"] = argparse.BooleanOptionalAction if default is True else "store_true"
    elif several:
        keywords["nargs"] = "+"
    if default is MISSING:
        keywords["required"] = True
    else:
        keywords["default"] = default
    parser.add_argument(*spellings(entry.name), dest=entry.name, **keywords)


def spellings(name: str) -> list[str]:
    """The flag of a field with hyphens, and with underscores where that differs.

    >>> spellings("text_column")
    ['--text-column', '--text_column']
    """
    return list(dict.fromkeys([f"--{name.replace('_', '-')}", f"--{name}"]))


def check_above_0(options: Any, *names: str) -> None:
    """Raise CommandError for a number that was given and is not above 0, or has no end."""
    for name in names:
        value = getattr(options, name)
        if value is not None and not 0 < value < math.inf:
            raise CommandError(f"{spellings(name)[0]} must be above 0, got {value}.")


class Formatter(argparse.HelpFormatter):
    """Help that shows each flag in one spelling, the one with hyphens, before one placeholder."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings:
            return super()._format_action_invocation(action)
        names = [name for name in action.option_strings if "_" not in name] or list(action.option_strings)
        if action.nargs == 0:
            return ", ".join(names)
        return f"{', '.join(names)} {self._format_args(action, self._get_default_metavar_for_optional(action))}"

    def _format_action(self, action: argparse.Action) -> str:
        if not isinstance(action, argparse._SubParsersAction):
            return super()._format_action(action)
        return "".join(
            super(Formatter, self)._format_action(entry) for entry in self._iter_indented_subactions(action)
        )

    def _iter_indented_subactions(self, action: argparse.Action) -> Generator[argparse.Action, None, None]:
        # Commands stand in a group of their own: a second indentation would put their help on lines of its own.
        yield from getattr(action, "_get_subactions", list)()

    def _get_default_metavar_for_optional(self, action: argparse.Action) -> str:
        name = getattr(action.type, "__name__", "value").upper()
        return "BOOL" if "BOOL" in name else name


class Parser(argparse.ArgumentParser):
    """An argument parser that suggests what a misspelt word may have meant, in colour on a terminal."""

    def __init__(self, **keywords: Any) -> None:
        # An abbreviation that means one flag today means two after the next release.
        super().__init__(**{"formatter_class": Formatter, "allow_abbrev": False, **keywords})

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse all words; unknown ones end the program with a suggestion."""
        for word in args or ():
            if word.startswith("--") and word.endswith("=--"):  # argparse reads it as no value at all
                self.error(f"{word.removesuffix('=--')} has the value '--', which is none")
        given = None if args is None else list(args)
        if given is not None:  # what stands behind -- is no flag
            end = given.index("--") if "--" in given else len(given)
            given[:end] = map(self._negated, given[:end])
        values, unknown = self.parse_known_args(given, namespace)
        if unknown:
            chosen = self.chosen(values)
            several = next((action for action in chosen._actions if action.nargs == "*"), None)
            if several is not None and not any(word.startswith("-") for word in unknown):
                # argparse gives such a list only the words before the first flag.
                setattr(values, several.dest, [*getattr(values, several.dest), *unknown])
                return values
            hint = suggestion(unknown[0].split("=")[0], chosen.flags())
            chosen.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        return values

    def _negated(self, word: str) -> str:
        """``--no_curves`` as ``--no-curves``, which is the only spelling that argparse takes for a no."""
        if not word.startswith("--no_"):
            return word
        usual = word.replace("_", "-")
        known = {name for action in self.every_action() for name in action.option_strings}
        return usual if word not in known and usual in known else word

    def words_of(self, config: Mapping[str, Any]) -> list[str]:
        """A mapping of settings as words of a command line, so that both are checked in the same way.

        Args:
            config: value per flag, with hyphens or underscores: a word, a list of words, a mapping, or None for a
                setting that is left to its default.
        """
        words: list[str] = []
        for name, value in config.items():
            flag = f"--{str(name).replace('_', '-')}"
            action = self._option_string_actions.get(flag)
            if value is None:
                continue
            if action is not None and takes_truth(action) and not isinstance(value, (list, dict)):
                words += self._truth(flag, action, value)
            elif isinstance(value, list):
                if action is not None and action.nargs not in ("+", "*"):
                    self.error(f"{flag} takes one value, got the list {', '.join(map(str, value))}")
                words += [flag, *map(str, value)]
            else:
                words.append(f"{flag}={json.dumps(value) if isinstance(value, dict) else value}")
        return words

    def _truth(self, flag: str, action: argparse.Action, value: Any) -> list[str]:
        """Words for a flag that is on or off."""
        word = str(value).lower()
        if word not in (*TRUE, *FALSE):
            if action.nargs != 0:  # it has more to say than true and false
                return [f"{flag}={value}"]
            self.error(f"{flag} must be true or false, got {value!r}")
        if action.nargs != 0:
            return [f"{flag}={word in TRUE}"]
        negative = f"--no-{flag.removeprefix('--')}"
        if word in FALSE:
            return [negative] if negative in action.option_strings else []
        return [flag]

    def chosen(self, values: argparse.Namespace) -> Parser:
        """The parser of the subcommand that was given, or this one."""
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                return action.choices.get(getattr(values, action.dest), self)
        return self

    def every_action(self) -> Iterator[argparse.Action]:
        """The actions of this parser and of its subcommands."""
        for action in self._actions:
            yield action
            if isinstance(action, argparse._SubParsersAction):
                for subparser in action.choices.values():
                    yield from subparser.every_action()

    def flags(self) -> list[str]:
        """All flags in the spelling of the help."""
        return [name for action in self._actions for name in action.option_strings if "_" not in name]

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            allowed = [str(choice) for choice in action.choices]
            hint = suggestion(str(value), allowed) or f" (choose from {', '.join(allowed)})"
            raise argparse.ArgumentError(action, f"invalid choice: {value!r}{hint}")

    def error(self, message: str) -> NoReturn:
        """Print the mistake and where help is, and exit with code 2."""
        print_error(f"{self.prog}: {message}\nTry '{self.prog} --help'.")
        sys.exit(2)


def takes_truth(action: argparse.Action) -> bool:
    """Whether a flag is a switch, or takes true and false."""
    return action.nargs == 0 or "bool" in getattr(action.type, "__name__", "")


def suggestion(word: str, known: Sequence[str]) -> str:
    """Half a sentence with the known word that is most like ``word``, or nothing.

    >>> suggestion("trian", ["train", "fold"])
    ': did you mean train?'
    """
    close = difflib.get_close_matches(word.replace("_", "-"), known, n=1)
    return f": did you mean {close[0]}?" if close else ""


def print_error(message: str) -> None:
    """Print to standard error, in red when it is a terminal and NO_COLOR is not set."""
    coloured = sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    message = harmless(message)
    print(f"{RED}{message}{PLAIN}" if coloured else message, file=sys.stderr)
