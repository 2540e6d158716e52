"""The command line: flags come from the options, mistakes are one sentence with exit code 2."""

import subprocess
import sys
from dataclasses import dataclass, field, fields

import pytest

from hf_lwal import cli
from hf_lwal.errors import CommandError


@dataclass(frozen=True)
class Options:
    """Does a thing."""

    name: str | None = field(default=None, metadata={"help": "a name"})
    rate: float = field(default=0.5, metadata={"help": "50 % by default"})
    steps: int = field(default=3, metadata={"help": "how many"})


@pytest.fixture
def command(monkeypatch):
    """Register a command "thing" and return the list of options it was called with."""
    calls = []

    def run(options):
        calls.append(options)
        if options.steps < 0:
            raise CommandError(f"--steps must not be negative, got {options.steps}.")
        if options.steps == 0:
            raise KeyboardInterrupt
        return 0

    monkeypatch.setitem(cli.COMMANDS, "thing", (Options, run))
    return calls


def test_flags_come_from_the_options(command):
    assert cli.main(["thing"]) == 0
    assert cli.main(["thing", "--name", "x", "--rate", "1e-3", "--steps", "7"]) == 0
    assert command == [Options(), Options("x", 1e-3, 7)]


def test_help_states_defaults(command, capsys):
    with pytest.raises(SystemExit) as exit_info:
        cli.main(["thing", "--help"])
    assert exit_info.value.code == 0
    output = capsys.readouterr().out
    assert "Does a thing." in output
    assert "50 % by default (default: 0.5)" in " ".join(output.split())


def test_a_users_mistake_is_one_sentence_and_code_2(command, capsys):
    assert cli.main(["thing", "--steps", "-1"]) == 2
    captured = capsys.readouterr()
    assert captured.err == "hf-lwal thing: --steps must not be negative, got -1.\n"
    assert captured.out == ""


def test_an_interruption_shows_no_traceback(command, capsys):
    assert cli.main(["thing", "--steps", "0"]) == 130
    assert capsys.readouterr().err == "hf-lwal thing: interrupted.\n"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["fly"], "invalid choice: 'fly'"),
        (["quickstart", "--steps", "many"], "argument --steps: invalid int value: 'many'"),
        (["quickstart", "--pace", "1"], "unrecognized arguments: --pace 1"),
    ],
)
def test_unknown_words_exit_with_code_2(argv, message, capsys):
    with pytest.raises(SystemExit) as exit_info:
        cli.main(argv)
    assert exit_info.value.code == 2
    assert message in capsys.readouterr().err


def test_every_command_has_a_summary_and_every_flag_a_help_text():
    for options, _ in cli.COMMANDS.values():
        assert options.__doc__
        assert all(entry.metadata["help"] for entry in fields(options))


@pytest.mark.slow
def test_it_runs_as_a_program():
    """The console script and ``python -m`` share one entry; the module must not need anything but its name."""
    done = subprocess.run(
        [sys.executable, "-m", "hf_lwal.cli", "quickstart", "--steps", "0"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1] == "hf-lwal quickstart: --steps must be above 0, got 0."
    assert "Traceback" not in done.stderr
