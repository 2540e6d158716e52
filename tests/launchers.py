"""Start a script in two processes, the two ways users do; whatever happens, nothing is left running."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch.distributed as dist
from warm_python import warm_python

ANY_PORT = "any port"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
# Its type MULTI_GPU selects the torchrun launcher; without GPUs the backend is gloo. MULTI_CPU starts one process.
DDP = Path(__file__).parents[1] / "examples" / "accelerate_configs" / "ddp.yaml"
ACCELERATE = (
    *("-m", "accelerate.commands.launch", "--config_file", str(DDP)),
    *("--num_processes", "2", "--main_process_port", ANY_PORT),
)


def free_port() -> str:
    """A port that nobody uses now; accelerate 1.3 waits for ever where it is to choose one itself."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def launch(launcher: tuple[str, ...], script: Path, *arguments: str, timeout: float = 240.0, warm: bool = True) -> str:
    """Run ``script`` in two processes and return what it printed.

    Args:
        launcher: `TORCHRUN` or `ACCELERATE`.
        script: path of the script.
        *arguments: its arguments.
        timeout: seconds until all processes are ended.
        warm: start launcher and processes from `warm_python`; False as users do, which takes longer.

    Raises:
        RuntimeError: a process failed, or time ran out; the message ends with the last lines of the output.
    """
    launcher = tuple(free_port() if word == ANY_PORT else word for word in launcher)
    python = warm_python() if warm else sys.executable
    command = [python, *launcher, str(script), *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHON_EXEC": python}
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )
    try:
        output, _ = process.communicate(timeout=timeout)
    except BaseException as error:
        process.terminate()  # not kill: the launcher passes it on to its two processes, which outlive a kill
        output, _ = process.communicate()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        raise RuntimeError(f"{script.name} was still running after {timeout:g} seconds.\n{output[-4000:]}") from None
    if process.returncode:
        raise RuntimeError(f"{script.name} failed with exit code {process.returncode}.\n{output[-4000:]}")
    return output


@contextmanager
def two_processes() -> Iterator[None]:
    """Refuse to run as a single process, and leave the process group together, in a worker script.

    A process that ends while threads of the group are alive is sometimes aborted.

    Raises:
        RuntimeError: the launcher started another number of processes, or they formed no group.
    """
    found = os.environ.get("WORLD_SIZE")
    if found != "2":
        raise RuntimeError(f"WORLD_SIZE is {found}, but two processes are needed.")
    yield
    if not dist.is_initialized() or dist.get_world_size() != 2:
        raise RuntimeError("The two processes never formed a group.")
    dist.barrier()
    dist.destroy_process_group()
