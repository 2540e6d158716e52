"""A Python that has imported what takes seconds: real processes that start in a moment, for tests that start many.

`warm_python` gives the path of an executable that takes what ``python`` takes (``-m module``, ``-c code`` or a script,
and arguments). A process of it is forked from one that has imported the libraries under hf_lwal, and nothing of
hf_lwal or of the tests. Its environment, folder, streams, exit code and the signals that end it are those of the
process that was started; launchers find it by the variable ``PYTHON_EXEC``. What a process finds on importing
libraries is not tested with it: those tests start ``sys.executable``, and so does one launch of every kind, whose
processes have hash seeds of their own.
"""

from __future__ import annotations

import atexit
import functools
import gc
import io
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType

LIBRARIES = """accelerate datasets evaluate numpy pandas peft PIL.Image scipy.optimize scipy.special
sklearn.linear_model torch torch._dynamo torch.distributed.fsdp torch.distributed.run torch.distributed.tensor
torchvision transformers.models.auto.modeling_auto transformers.models.bert.modeling_bert
transformers.models.resnet.modeling_resnet transformers.models.vit.modeling_vit transformers.trainer"""
READ_ON_IMPORT = ("HF_", "TRANSFORMERS_", "OMP_", "TOKENIZERS_")
"""Beginnings of the names of variables that a library may have read on import."""
_ENVIRONMENT = dict(os.environ)
"""Before a test has altered it."""
PAUSE = 0.02
"""Seconds between two looks at whether a process has ended."""

CLIENT = """
import json, os, signal, socket, sys

connection = socket.socket(socket.AF_UNIX)
connection.connect(ADDRESS)
request = json.dumps({"words": sys.argv[1:], "environment": dict(os.environ), "folder": os.getcwd()}).encode()
socket.send_fds(connection, [len(request).to_bytes(8, "big")], [0, 1, 2])
connection.sendall(request)
process = int.from_bytes(connection.recv(8), "big")
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda number, frame: os.kill(process, number))
code = int.from_bytes(connection.recv(8), "big", signed=True)
if code < 0:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


@functools.cache
def warm_python() -> str:
    """Path of the executable; the process that all others are forked from is started once, and ends with this one."""
    folder = Path(tempfile.mkdtemp(prefix="warm"))  # near the root, since the path of a socket has to be short
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    executable, address = folder / "python", str(folder / "socket")
    code = f"#!{sys.executable} -IS\nADDRESS = {address!r}\n{CLIENT}"
    environment = {**_ENVIRONMENT, "OMP_NUM_THREADS": "1"}
    server = subprocess.Popen(
        [sys.executable, __file__, address], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert server.stdin is not None
    assert server.stdout is not None
    if server.stdout.readline() != b"ready\n":
        raise RuntimeError("The process that is to start others has failed: see what it printed.")
    executable.write_text(code)
    executable.chmod(0o755)
    atexit.register(server.stdin.close)  # which ends it
    return str(executable)


def serve(address: str) -> None:
    """Fork a process for every connection, until standard input ends; returns in each forked process, ready to run."""
    for name in LIBRARIES.split():
        __import__(name)
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # keepers are not waited for
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    os.write(1, b"ready\n")
    while True:
        ready = select.select([listener, 0], [], [])[0]
        if 0 in ready:
            sys.exit()
        connection, _ = listener.accept()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listener.close()
            _keep(connection)
            return
        connection.close()


def _keep(connection: socket.socket) -> None:
    """Fork the process asked for, and keep it company; returns in that process alone."""
    head, streams, _, _ = socket.recv_fds(connection, 8, 3)
    with connection.makefile("rb") as file:
        request = json.loads(file.read(int.from_bytes(head, "big")))
    process = os.fork()
    if process == 0:
        connection.close()
        _become(request, streams)
        return
    for stream in streams:  # whoever reads them waits for the last that holds them
        os.close(stream)
    connection.sendall(process.to_bytes(8, "big"))
    while True:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            connection.sendall(code.to_bytes(8, "big", signed=True))
            os._exit(0)
        if select.select([connection], [], [], PAUSE)[0]:  # whoever asked for it was killed
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            os._exit(0)


def _become(request: dict, streams: list[int]) -> None:
    """Take over environment, folder, streams and words of the process that was started."""
    import numpy as np

    given = {"OMP_NUM_THREADS": "1", **request["environment"]}
    for number, stream in enumerate(streams):  # the first, so that errors are told to whoever started it
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin, sys.stdout, sys.stderr = (
        io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False))),
        io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w", closefd=False))),
        io.TextIOWrapper(io.BufferedWriter(io.FileIO(2, "w", closefd=False)), "utf-8", "backslashreplace", None, True),
    )
    for name in {*given, *os.environ}:
        if name.startswith(READ_ON_IMPORT) and os.environ.get(name) != given.get(name):
            raise RuntimeError(f"{name} is read on import: start sys.executable, not the warm Python.")
    os.environ.clear()
    os.environ.update(given)
    os.chdir(request["folder"])
    sys.path[1:1] = [path for path in given.get("PYTHONPATH", "").split(os.pathsep) if path]
    np.random.seed()
    words = request["words"]
    sys.argv = words[1:] if words[0] == "-u" else words
    sys.orig_argv = [sys.executable, *request["words"]]


def run() -> None:
    """Run ``sys.argv`` as Python would."""
    first = sys.argv.pop(0)
    if first == "-m":
        sys.path[0] = os.getcwd()
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        sys.path[0] = ""
        code, sys.argv[0] = sys.argv[0], "-c"
        main = sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(code, "<string>", "exec"), vars(main))
    else:
        sys.argv.insert(0, first)
        sys.path[0] = str(Path(first).parent)
        runpy.run_path(first, run_name="__main__")


if __name__ == "__main__":
    serve(sys.argv[1])
    run()
