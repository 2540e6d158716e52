"""The one error class of the command line: what the user can put right, said in one sentence."""

from __future__ import annotations


class CommandError(Exception):
    """A user's mistake in a command: ``hf-lwal`` prints the message without a traceback and exits with code 2.

    The message says what is wrong, with which value, and what to do.
    """
