"""A process of the warm Python is what Python itself would have started."""

import os
import signal
import subprocess
import sys
import time

import pytest
from warm_python import warm_python

SAYS = "import os, sys; print(__name__, sys.argv, os.getcwd(), os.environ['ANSWER'], sys.stdin.read()); sys.exit(3)"


@pytest.mark.parametrize(
    "words",
    [("-c", SAYS, "a b", "-u"), ("says.py", "1"), ("-m", "json.tool", "--compact"), ("-c", "import says_too")],
    ids=["code", "script", "module", "path"],
)
def test_words_streams_folder_environment_and_exit_code(words, tmp_path):
    """A launcher reads all of them, and passes each on."""
    (tmp_path / "says.py").write_text(SAYS, encoding="utf-8")
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "says_too.py").write_text(SAYS, encoding="utf-8")
    environment = {**os.environ, "ANSWER": "42 ✓", "PYTHONPATH": str(tmp_path / "modules"), "PYTHONUTF8": "1"}
    found = [
        subprocess.run(
            [python, *words], input='{"a": 1}', capture_output=True, encoding="utf-8", cwd=tmp_path, env=environment
        )
        for python in (sys.executable, warm_python())
    ]
    assert found[1].stdout == found[0].stdout != ""
    assert found[1].returncode == found[0].returncode


def is_there(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_errors_and_signals_end_it_as_they_end_python():
    """Who waits for a process that was killed must not take it for one that has failed, nor find it alive."""
    failed = subprocess.run([warm_python(), "-c", "1 / 0"], capture_output=True, text=True)
    assert (failed.returncode, failed.stderr.splitlines()[-1]) == (1, "ZeroDivisionError: division by zero")
    killed = subprocess.run([warm_python(), "-c", "import os; os.kill(os.getpid(), 9)"])
    assert killed.returncode == -signal.SIGKILL
    waits = [warm_python(), "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(300)"]
    for number in (signal.SIGTERM, signal.SIGKILL):
        with subprocess.Popen(waits, stdout=subprocess.PIPE, text=True) as process:
            worker = int(process.stdout.readline())
            process.send_signal(number)
            assert process.wait(timeout=30) == -number
            assert process.stdout.read() == "", "its end of the pipe is closed once it has ended"
        until = time.monotonic() + 30
        while is_there(worker):  # until it is taken leave of, a moment after its end
            assert time.monotonic() < until
            time.sleep(0.01)


@pytest.mark.parametrize(("name", "value"), [("HF_HOME", "elsewhere"), ("HF_HUB_OFFLINE", None)], ids=["set", "gone"])
def test_what_libraries_have_read_already_is_not_taken_for_new(monkeypatch, name, value):
    """A process that is to meet another Hub or cache would meet the old one without a word."""
    monkeypatch.delenv(name, raising=False)
    if value is not None:
        monkeypatch.setenv(name, value)
    refused = subprocess.run([warm_python(), "-c", "1"], capture_output=True, text=True)
    assert refused.returncode == 1
    assert f"{name} is read on import" in refused.stderr
