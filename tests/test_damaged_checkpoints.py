"""Checkpoints whose files are there but hold something else: a sentence that names the file, not a traceback."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from test_training_stops import trainer_of

from hf_lwal.training.checkpoints import last_complete_checkpoint, what_is_missing


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    trainer_of(folder, save_strategy="steps", save_steps=2, max_steps=2).train()
    return folder / "checkpoint-2"


def header(text):
    return len(text).to_bytes(8, "little") + text.encode()


SEEN = {
    "a list as state": ("trainer_state.json", b"[]"),
    "no state": ("trainer_state.json", b"{}"),
    "a step that is text": ("trainer_state.json", b'{"global_step": "2", "log_history": []}'),
    "a history that is none": ("trainer_state.json", b'{"global_step": 2, "log_history": 3}'),
    "a number as configuration": ("config.json", b"3"),
    "bytes that are no text": ("config.json", b"\xff\xfe\x00"),
    "a list as header": ("model.safetensors", header("[1, 2]")),
    "entries without offsets": ("model.safetensors", header('{"a": {"dtype": "F32"}}')),
    "entries that are numbers": ("model.safetensors", header('{"a": 3}')),
    "a header that promises too much": ("model.safetensors", (1 << 62).to_bytes(8, "little") + b"{}"),
    "an index without a map": ("model.safetensors.index.json", b'{"metadata": {}}'),
    "an index that is a list": ("model.safetensors.index.json", b"[]"),
}


@pytest.mark.parametrize("case", SEEN)
def test_what_can_be_seen_before(tmp_path, checkpoint, caplog, case):
    """The newest complete checkpoint is then an older one; named by the user, it is refused."""
    name, content = SEEN[case]
    damaged = Path(shutil.copytree(checkpoint, tmp_path / "checkpoint-4"))
    (damaged / name).write_bytes(content)
    assert name.split(".index")[0] in what_is_missing(damaged)
    shutil.copytree(checkpoint, tmp_path / "checkpoint-2")
    assert last_complete_checkpoint(tmp_path) == str(tmp_path / "checkpoint-2")
    with pytest.raises(ValueError, match=r"cannot be resumed from, because .*pass resume_from_checkpoint=True"):
        trainer_of(tmp_path).train(resume_from_checkpoint=str(damaged))


LOADED = {
    "optimizer of another model": ("optimizer.pt", {"state": {}, "param_groups": []}, "the state of the optimizer"),
    "optimizer that is a number": ("optimizer.pt", 3, "the state of the optimizer"),
    "schedule that is a list": ("scheduler.pt", [1], "the state of the optimizer"),
    "random state without parts": ("rng_state.pth", {}, "the state of the random generators"),
    "random state that is text": ("rng_state.pth", "x", "the state of the random generators"),
}


@pytest.mark.parametrize("case", LOADED)
def test_what_shows_when_it_is_loaded(tmp_path, checkpoint, case):
    name, value, part = LOADED[case]
    damaged = Path(shutil.copytree(checkpoint, tmp_path / "checkpoint-2"))
    torch.save(value, damaged / name)
    with pytest.raises(ValueError, match=f"because {part} in it could not be loaded .*: resume from another"):
        trainer_of(tmp_path).train(resume_from_checkpoint=str(damaged))


def test_a_whole_one_is_resumed(tmp_path, checkpoint):
    assert what_is_missing(checkpoint) is None
    assert json.loads((checkpoint / "trainer_state.json").read_text())["global_step"] == 2
    trainer = trainer_of(tmp_path)
    trainer.train(resume_from_checkpoint=str(checkpoint))
    assert trainer.state.global_step == 6
