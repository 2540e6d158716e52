"""Checkpoints whose files are there but hold something else: a sentence that names the file, not a traceback."""

import json
import logging
import random
import shutil
from collections import Counter
from pathlib import Path

import pytest
import torch
from damage_judge import bounded, sentence
from mutations import write
from resume_mutations import damaged_state
from test_training_stops import trainer_of
from transformers import set_seed

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
    (damaged / "checksums.json").unlink()  # as in checkpoints of earlier versions
    with pytest.raises(ValueError, match=f"because {part} in it could not be loaded .*: resume from another"):
        trainer_of(tmp_path).train(resume_from_checkpoint=str(damaged))


def test_a_whole_one_is_resumed(tmp_path, checkpoint):
    assert what_is_missing(checkpoint) is None
    assert json.loads((checkpoint / "trainer_state.json").read_text())["global_step"] == 2
    trainer = trainer_of(tmp_path)
    trainer.train(resume_from_checkpoint=str(checkpoint))
    assert trainer.state.global_step == 6


# -- drawn faults -----------------------------------------------------------------------------------------------------


def resumed(folder):
    """All weights after a training that goes on from a checkpoint to step 4."""
    set_seed(0)
    trainer = trainer_of(folder.parent / "resumed", max_steps=4)
    trainer.train(resume_from_checkpoint=str(folder))
    return torch.cat([value.float().flatten() for value in trainer.model.state_dict().values()])


@pytest.fixture(scope="module")
def another(tmp_path_factory):
    folder = tmp_path_factory.mktemp("another")
    set_seed(7)
    trainer_of(folder, save_strategy="steps", save_steps=2, max_steps=2, learning_rate=1e-3).train()
    return folder / "checkpoint-2"


@pytest.fixture(scope="module")
def right(checkpoint, tmp_path_factory):
    return resumed(Path(shutil.copytree(checkpoint, tmp_path_factory.mktemp("right") / "checkpoint-2")))


@pytest.mark.parametrize("recorded", [True, False], ids=["checksums", "of an earlier version"])
def test_one_fault(tmp_path, checkpoint, another, right, caplog, recorded):
    """Tracebacks of torch in the middle of a step, and states of another training that went on without a word."""
    files, others = (
        {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
        for folder in (checkpoint, another)
    )
    if not recorded:
        del files["checksums.json"]
    found, wrong = Counter(), []
    for case in range(30):
        damage = damaged_state(files, others, random.Random(f"{case}"))
        folder = tmp_path / str(case) / "checkpoint-2"
        folder.mkdir(parents=True)
        write(damage.files, folder)
        caplog.clear()
        try:
            with bounded(), caplog.at_level(logging.WARNING):
                same = torch.allclose(resumed(folder), right, atol=1e-5)
            ended = "same" if same else "said" if caplog.records else "BAD: another result in silence"
        except (ValueError, OSError) as error:
            ended = sentence(error, folder, damage)
        found[ended] += 1
        without = not recorded and "in silence" in ended  # nothing tells a state from another one there
        if ended.startswith("BAD") and not without:
            wrong.append(f"{damage.family}, {damage.what:.90}: {ended}")
    assert not wrong, "\n".join(wrong)
    assert min(found["same"], found["sentence"]) > 3, found


def test_a_state_of_another_training_is_refused(tmp_path, checkpoint, another):
    """Moments of other gradients are numbers like any others."""
    for name in ("optimizer.pt", "model.safetensors"):
        damaged = Path(shutil.copytree(checkpoint, tmp_path / name / "checkpoint-2"))
        shutil.copy(another / name, damaged)
        with pytest.raises(ValueError, match=rf"because {name} is not the one that was saved there: pass resume"):
            trainer_of(tmp_path).train(resume_from_checkpoint=str(damaged))
    damaged = Path(shutil.copytree(checkpoint, tmp_path / "step" / "checkpoint-2"))
    state = json.loads((damaged / "trainer_state.json").read_text())
    (damaged / "trainer_state.json").write_text(json.dumps({**state, "global_step": 1}))
    with pytest.raises(ValueError, match=r"its states are those of step 2, and its trainer_state.json is .* step 1"):
        trainer_of(tmp_path).train(resume_from_checkpoint=str(damaged))


MOMENTS = {
    "not finite": ("exp_avg", lambda value: value * float("nan"), r"exp_avg of a weight .* is not finite"),
    "negative": ("exp_avg_sq", lambda value: value - 1, r"exp_avg_sq of a weight .* is negative"),
    "a number": ("exp_avg_sq", lambda _: 3, r"exp_avg_sq of a weight .* is int"),
    "of another shape": ("exp_avg", lambda value: value[..., :1], r"exp_avg of a weight .* is \("),
    "no steps": ("step", lambda value: value - 9, r"a weight has done -7"),
}


@pytest.mark.parametrize("case", MOMENTS)
def test_moments_that_no_optimizer_writes(tmp_path, checkpoint, case):
    """They became weights of NaN two steps later, and the learning rate was blamed."""
    name, change, said = MOMENTS[case]
    damaged = Path(shutil.copytree(checkpoint, tmp_path / "checkpoint-2"))
    (damaged / "checksums.json").unlink()
    state = torch.load(damaged / "optimizer.pt")
    moments = next(moments for moments in state["state"].values() if moments["exp_avg"].dim() == 2)
    moments[name] = change(moments[name])
    torch.save(state, damaged / "optimizer.pt")
    with pytest.raises(ValueError, match=f"because the state of the optimizer in it could not be loaded .{said}"):
        trainer_of(tmp_path).train(resume_from_checkpoint=str(damaged))
