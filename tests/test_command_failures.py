"""How commands end: one sentence and a documented exit code, whatever went wrong and wherever it is printed."""

import contextlib
import errno
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from hf_lwal.cli import main as cli
from hf_lwal.errors import CommandError, one_line, reason
from hf_lwal.settings.presets import preset

LIGHT = "from hf_lwal.cli.terminal import prepare_terminal; "
"""Python without the imports of transformers, as the console script begins."""


@dataclass(frozen=True)
class Options:
    """Does a thing."""


@pytest.fixture
def thing(monkeypatch):
    """``thing(function)``: run a command that calls the function."""

    def run(function, *words):
        monkeypatch.setitem(cli.COMMANDS, "thing", (Options, lambda options: function()))
        return cli.main(["thing", *words])

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    yield run
    signal.signal(signal.SIGINT, before)


def raising(error, cause=None):
    def function():
        raise error from cause

    return function


def without_an_error_of_its_own():
    return {}["here"]


@pytest.mark.parametrize(
    ("function", "code", "message"),
    [
        (raising(CommandError("--steps is 0.")), 2, "--steps is 0."),
        (lambda: preset("nothing"), 2, "Unknown"),  # this library's own refusals are sentences already
        (without_an_error_of_its_own, 1, "KeyError in test_command_failures, line"),
        (lambda: one_line(3), 1, "AttributeError in hf_lwal.errors, line"),  # inside this library, but no refusal
        (
            raising(OSError(errno.ENOSPC, "No space left on device", "x.bin")),
            1,
            "(No space left on device: 'x.bin'): make room",
        ),
        (raising(PermissionError(errno.EACCES, "Permission denied", "/root/x")), 1, "Permission denied: '/root/x'."),
        (raising(ConnectionError("no route to host")), 1, "no route to host."),
        (raising(MemoryError()), 1, "memory ran out (MemoryError): take smaller batches"),
        (raising(torch.OutOfMemoryError("CUDA out of memory")), 1, "memory ran out (CUDA out of memory)"),
        (raising(RuntimeError("two\nlines"), ValueError("the cause")), 1, "two lines (ValueError: the cause)"),
        (raising(KeyboardInterrupt()), 130, "interrupted."),
        (raising(AssertionError()), 1, "AssertionError"),
    ],
)
def test_whatever_is_raised_ends_in_one_sentence_and_a_code(function, code, message, thing, capsys):
    """A traceback tells a user nothing, and a wrong code lets a script go on."""
    assert thing(function) == code
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f"hf-lwal thing: {'' if code == 1 else message}")
    assert message in lines[0]
    assert ("--traceback" in lines[0]) == ("may be a bug" in lines[0])


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [
        ("sklearn", "scikit-learn", "plots"),
        ("sklearn.linear_model", "scikit-learn", "plots"),
        ("PIL", "pillow", "vision"),
        ("setfit", "setfit", "peers"),
        ("sentence_transformers", "sentence-transformers", "sentence-transformers"),
    ],
)
def test_a_missing_package_names_the_extra_that_brings_it(module, package, extra, thing, capsys):
    """Wherever it is imported: "this may be a bug" sent people to a traceback for want of an extra."""
    assert thing(raising(ModuleNotFoundError(f"No module named {module!r}", name=module))) == 2
    expected = f'{package} is needed here, and is not installed: pip install "hf-lwal[{extra}]".'
    assert capsys.readouterr().err == f"hf-lwal thing: {expected}\n"


def test_a_missing_module_of_no_extra_may_be_a_bug(thing, capsys):
    assert thing(raising(ModuleNotFoundError("No module named 'nothing'", name="nothing"))) == 1
    assert "may be a bug" in capsys.readouterr().err


def test_the_whole_traceback_is_shown_on_demand(thing, capsys):
    assert thing(raising(RuntimeError("broken"), ValueError("cause")), "--traceback") == 1
    error = capsys.readouterr().err
    assert "Traceback (most recent call last)" in error
    assert "ValueError: cause" in error
    assert error.splitlines()[-1].startswith("hf-lwal thing: RuntimeError")


def test_a_closed_pipe_is_quiet_wherever_it_is_noticed(thing, capsys, monkeypatch):
    """Who writes inside something that watches the disk sees a closed pipe as the cause of its own error."""
    monkeypatch.setattr("os.dup2", lambda *places: None)
    monkeypatch.setattr(sys.stdout, "fileno", lambda: 1, raising=False)
    assert thing(raising(BrokenPipeError())) == 0
    assert thing(raising(CommandError("could not be written"), BrokenPipeError())) == 0
    assert capsys.readouterr().err == ""


def test_termination_cleans_up_and_has_its_code(thing, capsys):
    """A scheduler sends SIGTERM; without an exception half-written files stay and nothing says how to go on."""
    cleaned = []

    def function():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pause()
        finally:
            cleaned.append(True)

    assert thing(function) == 143
    assert cleaned == [True]
    assert capsys.readouterr().err == "hf-lwal thing: terminated.\n"
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


class Deleted:
    """A signal arrives while it is deleted, and Python drops what is raised there."""

    def __init__(self, number) -> None:
        self.number = number

    def __del__(self):
        os.kill(os.getpid(), self.number)
        time.sleep(0.01)


def caught(number):
    """A signal arrives in a library that catches everything."""
    try:
        os.kill(os.getpid(), number)
        time.sleep(0.01)
    except:  # noqa: E722
        return


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.parametrize("lose", [Deleted, caught])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_whose_exception_is_lost_counts(lose, number, code, thing, capsys, monkeypatch):
    """A quickstart went on for half a minute and ended with 0."""
    monkeypatch.setattr("hf_lwal.cli.terminal.LATER", 0.1)

    def function():
        lose(number)
        for _ in range(500):
            time.sleep(0.01)

    handlers = [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT)]
    assert thing(function) == code
    assert capsys.readouterr().err.splitlines()[-1].startswith("hf-lwal thing: ")
    assert [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT)] == handlers


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_cleaning_up_after_a_signal_is_not_interrupted(number, thing, monkeypatch):
    monkeypatch.setattr("hf_lwal.cli.terminal.LATER", 0.05)
    cleaned = []

    def function():
        try:
            os.kill(os.getpid(), number)
            time.sleep(5)
        finally:
            for part in range(30):
                time.sleep(0.01)
                with contextlib.suppress(ValueError):
                    int("x")
                cleaned.append(part)

    assert thing(function) in (130, 143)
    assert cleaned == list(range(30))


def test_a_second_interruption_by_hand_ends_the_cleaning_up(thing, monkeypatch):
    """Who presses Ctrl-C again does not want to wait."""
    monkeypatch.setattr("hf_lwal.cli.terminal.LATER", 0.1)
    begun = []

    def function():
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)
        finally:
            begun.append(True)
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)
            begun.append(False)

    assert thing(function) == 130
    assert begun == [True]
    time.sleep(0.2)  # nothing comes after the end


def test_nothing_is_looked_after_when_a_command_has_ended(thing, monkeypatch):
    """Who calls the command from Python is not interrupted afterwards."""
    monkeypatch.setattr("hf_lwal.cli.terminal.LATER", 0.05)
    threads = threading.active_count()
    for number in (signal.SIGINT, signal.SIGTERM):
        thing(lambda number=number: os.kill(os.getpid(), number) or time.sleep(1))
    assert threading.active_count() == threads
    time.sleep(0.1)


def test_the_deepest_cause_is_told_once():
    error = RuntimeError("Generating failed.")
    error.__cause__ = ValueError("Generating failed")
    error.__cause__.__cause__ = KeyError("column")
    assert reason(error) == "Generating failed (KeyError: 'column')"
    assert len(one_line("word " * 1000)) < 520


def light(program, **variables):
    """Run Python as the console script begins, with another encoding."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "src"), **variables}
    done = subprocess.run([sys.executable, "-c", LIGHT + program], capture_output=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize(
    "variables",
    [
        {"PYTHONIOENCODING": "ascii"},
        {"PYTHONIOENCODING": "cp1252"},
        {"PYTHONIOENCODING": "latin-1"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": ""},
        {"PYTHONIOENCODING": "utf-8"},
    ],
)
def test_every_encoding_takes_every_answer(variables):
    """Redirected output on Windows has an encoding without most characters; JSON must stay JSON."""
    text = "café – 😀 \ud800"
    program = f"import json; prepare_terminal(); print(json.dumps({{'text': {text!a}}}, ensure_ascii=False))"
    done = light(program, **variables)
    encoding = variables["PYTHONIOENCODING"] or "ascii"
    assert json.loads(done.stdout.decode(encoding))["text"] == text


def test_an_error_handler_of_the_users_own_stays():
    assert light("prepare_terminal(); print('é')", PYTHONIOENCODING="ascii:replace").stdout == b"?\n"


@pytest.mark.parametrize("before", ["", "from tqdm import tqdm; "])
def test_bars_are_for_terminals(before):
    """In a log file a bar is a thousand half lines."""
    done = light(f"{before}prepare_terminal(); from tqdm.auto import tqdm; assert list(tqdm(range(3))) == [0, 1, 2]")
    assert done.stderr == b""
    assert b"3/3" in light("from tqdm import tqdm; list(tqdm(range(3)))").stderr, "there would be one"


def test_only_noise_is_hidden():
    program = (
        "import logging; prepare_terminal(); logger = logging.getLogger('transformers.trainer_utils'); "
        "logger.warning('mtime may not be reliable on this file system'); logger.warning('a real warning')"
    )
    assert light(program).stderr == b"a real warning\n"


def test_the_version_is_told(capsys):
    with pytest.raises(SystemExit) as exit_info:
        cli.main(["--version"])
    assert exit_info.value.code == 0
    assert capsys.readouterr().out.startswith("hf-lwal 0.")


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        (["quickstart", "--data", "x", "--output=y"], "dataset", "x"),
        (["quickstart", "--data", "x", "--output=y"], "output_dir", "y"),
        (["train", "--dataset=x", "--output", "y"], "data", "x"),
        (["train", "--dataset=x", "--output", "y"], "output_dir", "y"),
        (["fold", "m", "--output_dir", "y"], "output", "y"),
        (["report", "r", "--output-dir", "y"], "output", "y"),
        (["compare", "--data", "a", "b"], "dataset", ["a", "b"]),
        (["hierarchy", "m", "--output-dir", "y"], "output", "y"),
        (["card", "m", "--data", "x", "--dataset", "z"], "data", "x"),  # where both mean something, each keeps it
        (["card", "m", "--data", "x", "--dataset", "z"], "dataset", "z"),
    ],
)
def test_both_usual_names_of_a_flag_are_taken(words, name, value):
    parser = cli.build_parser("train")
    assert getattr(parser.parse_args(words), name) == value


def test_logging_is_left_as_it_was():
    """The filter of noise belongs to the program, not to whoever calls ``main`` from Python."""
    assert not logging.getLogger("transformers.trainer_utils").filters
