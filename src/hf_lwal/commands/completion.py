"""``hf-lwal completion``: a script that lets the shell complete commands and flags."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..errors import CommandError
from ..flags import Parser, argument

TAKE_FILES = ("config", "data", "file", "inputs", "model", "output_dir", "test_data", "validation_data")
"""Options after which the shell completes names of files."""


@dataclass(frozen=True)
class CompletionOptions:
    """Print a script for the shell that completes commands and flags.

    For bash: hf-lwal completion bash > ~/.local/share/bash-completion/completions/hf-lwal
    """

    shell: Literal["bash", "zsh", "tcsh"] = argument("the shell")


def script(parser: Parser, shell: str) -> str:
    """Return the script for a parser.

    Args:
        parser: the parser of all commands.
        shell: "bash", "zsh" or "tcsh".
    """
    try:
        import shtab
    except ImportError as error:
        raise CommandError('Completion needs shtab: pip install "hf-lwal[completion]".') from error
    for action in parser.every_action():
        if action.dest in TAKE_FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    return str(shtab.complete(parser, shell))
