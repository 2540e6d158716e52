"""A process that is killed: the other one of the training ends soon, and says why and from where to go on."""

import os
import socket
import subprocess
from pathlib import Path

import pytest
from warm_python import warm_python

WORKER = Path(__file__).with_name("rank_death_worker.py")
SOON = 60


@pytest.mark.slow
@pytest.mark.parametrize(("where", "who", "left"), [("step", 1, "checkpoint-2"), ("save", 0, "checkpoint-1")])
def test_the_other_process_ends_with_a_sentence(where, who, left, tmp_path):
    """Started without a launcher that watches them, as clusters do, its message named a file of gloo's sources."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    words = [warm_python(), str(WORKER), str(tmp_path / "out"), where, str(who)]
    ranks = [
        subprocess.Popen(words, env={**shared, "RANK": rank, "LOCAL_RANK": rank}, stderr=subprocess.PIPE, text=True)
        for rank in ("0", "1")
    ]
    try:
        ranks[who].communicate(timeout=120)
        error = ranks[1 - who].communicate(timeout=SOON)[1]
    finally:
        for rank in ranks:
            rank.kill()
    assert ranks[who].returncode == -9
    assert ranks[1 - who].returncode == 1
    assert "Another process of this training ended after step 2" in error
    assert f"The last complete checkpoint is {tmp_path / 'out' / left}: " in error
