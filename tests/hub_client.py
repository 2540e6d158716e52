"""Client processes of the test Hub: their environment, and a way to run one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from hub_server import HubServer

import hf_lwal

TESTS = Path(__file__).parent
_NOT_INHERITED = (
    *("HF_TOKEN", "HF_TOKEN_PATH", "HF_HUB_CACHE", "TRANSFORMERS_CACHE", "HF_MODULES_CACHE", "PYTHONPATH"),
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"),
)


def client_environment(hub: HubServer, home: Path, offline: bool = False) -> dict[str, str]:
    """Environment of a process of alice, who may write: a cache in ``home``, and no way to the real Hub."""
    return {
        **{name: value for name, value in os.environ.items() if name not in _NOT_INHERITED},
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(home),
        "HF_TOKEN": "alice-write",
        "HF_HUB_OFFLINE": str(int(offline)),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "DISABLE_SAFETENSORS_CONVERSION": "1",
        "OMP_NUM_THREADS": "1",
    }


def run_client(hub: HubServer, script: str, *arguments: str, home: Path, offline: bool = False) -> str:
    """Run a script of this folder, with hf_lwal on its path unless it is the stranger's, and return what it printed.

    Raises:
        RuntimeError: it failed; the message ends with the last lines of what it printed.
    """
    home.mkdir(exist_ok=True)
    environment = client_environment(hub, home, offline)
    if script != "hub_stranger.py":
        environment["PYTHONPATH"] = str(Path(hf_lwal.__file__).parents[1])
    command = [sys.executable, str(TESTS / script), *arguments]
    done = subprocess.run(command, env=environment, cwd=home, capture_output=True, text=True, timeout=280)
    if done.returncode:
        raise RuntimeError(f"{script} failed with exit code {done.returncode}.\n{(done.stdout + done.stderr)[-6000:]}")
    return done.stdout
