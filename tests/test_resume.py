"""Resuming: after any interruption a training ends as if nothing had happened, bit for bit."""

import builtins
import io
import os
import re
import shutil
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import concatenate_datasets
from toy import separable_text
from transformers import modeling_utils, set_seed

from hf_lwal import AutoModelForLwALClassification, LwALTrainer
from hf_lwal.training.checkpoints import checkpoint_to_resume, last_complete_checkpoint, what_is_missing

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from kill_and_resume import LABELS, ROWS, build_trainer, differences, final_state, kills, train

STEPS = 6
"""An epoch of 4 steps, the last of them with fewer micro-batches, and half of a second."""
TEST = separable_text(LABELS, 60, 1)
BEST = {
    "eval_dataset": TEST,
    "eval_strategy": "steps",
    "eval_steps": 1,
    "load_best_model_at_end": True,
    "lwal_eval_refresh": "3",
    "learning_rate": 5e-3,
    **{"lwal_initial_head": "whitened", "lwal_follow_drift": 0.0},  # a training whose best model is not its last
}


def trainer_in(folder, steps=STEPS, **options):
    """The benchmark's trainer; its log goes beside the checkpoints."""
    folder.mkdir(parents=True, exist_ok=True)
    return build_trainer(folder, steps, **options)


def undisturbed(folder, **options):
    """Folder and final state of a training that saved a checkpoint at every step."""
    trainer = trainer_in(folder, **options)
    trainer.train()
    return folder, final_state(trainer), trainer


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return undisturbed(tmp_path_factory.mktemp("whole"))[:2]


POOLED = {"lwal_pooling": "mean+last", "lwal_initial_head": "probe"}
"""Both change the model after it is built, and before a checkpoint is read."""


@pytest.mark.parametrize("options", [{}, BEST, POOLED], ids=["plain", "best", "pooled"])
def test_resume_at_every_step(tmp_path, options):
    """State outside the checkpoint (pending sums, when means were last refreshed, random state) changes the run."""
    folder, expected, first = undisturbed(tmp_path / "whole", **options)
    if options is BEST:
        best = [entry["eval_accuracy"] for entry in first.state.log_history if "eval_accuracy" in entry]
        assert 1 < first.state.best_global_step < STEPS, best
        refreshed = [entry["step"] for entry in first.state.log_history if "eval_refresh_seconds" in entry]
        assert refreshed == [3, 6]
    for step in range(1, STEPS):
        trainer = trainer_in(tmp_path / f"resumed-{step}", **options)
        trainer.train(resume_from_checkpoint=str(folder / f"checkpoint-{step}"))
        assert differences(final_state(trainer), expected) == [], step


@pytest.mark.parametrize("steps", [STEPS, 4], ids=["within an epoch", "after an epoch"])
@pytest.mark.parametrize("options", [{}, BEST], ids=["plain", "best"])
def test_nothing_is_left_to_train(tmp_path, caplog, options, steps):
    """Killed after its last checkpoint, a training was whole; stock transformers then trains one step too many."""
    folder, expected, _ = undisturbed(tmp_path / "whole", steps=steps, **options)
    trainer = trainer_in(Path(shutil.copytree(folder, tmp_path / "again")), steps=steps, **options)
    trainer.train(resume_from_checkpoint=True)
    assert trainer.state.global_step == steps
    assert differences(final_state(trainer), expected) == []
    assert (f"all {steps} steps" in caplog.text) == (steps == STEPS)


def test_the_comparison_sees_dropout_and_pending_sums(whole):
    """Without dropout, or with sums that are always committed, the tests above would pass for the wrong reason."""
    folder, expected = whole
    set_seed(1)
    other = trainer_in(folder.parent / "other", seed=1)
    other.train()
    assert len(differences(final_state(other), expected)) > 50
    table = AutoModelForLwALClassification.from_pretrained(folder / "checkpoint-4").label_table
    assert table.pending_sums[:, -1].sum() > 0
    assert expected["model: classifier.counts"].sum() > ROWS


def test_ignore_data_skip_between_epochs(tmp_path, whole):
    """Between two epochs there is no row to skip, so nothing may change."""
    folder, expected = whole
    trainer = trainer_in(tmp_path / "resumed", ignore_data_skip=True)
    trainer.train(resume_from_checkpoint=str(folder / "checkpoint-4"))
    assert differences(final_state(trainer), expected) == []


def test_ignore_data_skip_within_an_epoch(tmp_path, tiny_config):
    """The epoch starts again from its first row; the means must count these rows twice, as a training on them does."""
    rows = separable_text(LABELS, ROWS)
    options = {"train_sampling_strategy": "sequential", "max_steps": 6, "ignore_data_skip": True}

    def run(name, data, resume=None):
        trainer = trainer_in(tmp_path / name, **options)
        set_seed(0)
        model = AutoModelForLwALClassification.from_config(tiny_config("bert", num_labels=LABELS))  # no dropout
        model.initialize_labels([rows.with_format("torch")[:20]], progress=False)
        trainer = LwALTrainer(model, trainer.args, train_dataset=data)
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    seen_twice = concatenate_datasets([rows.select(range(2 * 12)), rows])
    expected = run("expected", seen_twice).model.state_dict()
    run("first", rows)
    resumed = run("second", rows, str(tmp_path / "first" / "checkpoint-2")).model.state_dict()
    assert expected["classifier.counts"].sum() + expected["classifier.pending_sums"][:, -1].sum() == 20 + 24 + ROWS
    differing = [name for name, value in expected.items() if not torch.equal(value, resumed[name])]
    assert set(differing) <= {"classifier.row_scatter"}  # measured on some rows of unlike data sets


@pytest.mark.parametrize("core", ["core", "_core"])
def test_random_states_of_either_numpy(tmp_path, whole, core):
    """Between NumPy 1 and 2 a module was renamed: after an upgrade no checkpoint could be resumed from."""
    checkpoint = Path(shutil.copytree(whole[0] / "checkpoint-4", tmp_path / "checkpoint-4"))
    with zipfile.ZipFile(checkpoint / "rng_state.pth") as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    renamed = {name: re.sub(rb"numpy\._?core\.", f"numpy.{core}.".encode(), held) for name, held in files.items()}
    assert sum(f"numpy.{core}.multiarray".encode() in held for held in renamed.values()) == 1
    with zipfile.ZipFile(checkpoint / "rng_state.pth", "w") as archive:
        for name, held in renamed.items():
            archive.writestr(name, held)
    trainer, found = trainer_in(tmp_path / "resumed"), []
    for folder in (whole[0] / "checkpoint-4", checkpoint):
        np.random.seed(7)
        trainer._load_rng_state(str(folder))
        found.append(np.random.random(3).tolist())
    assert found[0] == found[1] != np.random.RandomState(7).random(3).tolist()


def test_killed_three_times(tmp_path, capsys):
    """SIGKILL gives no chance to tidy up: whatever is on the disk at that moment must be enough."""
    assert kills(tmp_path, number=3, seed=0, steps=10) == 3
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == [f"kill {i} of 3" for i in (1, 2, 3)]
    assert all(line.endswith("; bit for bit the same") for line in lines)


class Interrupted(Exception):
    """Stands for the end of the process in the middle of a checkpoint."""


class Writes:
    """Watches all writes of files below a folder, and interrupts one of them before it or half-way.

    Args:
        folder: where writes count.
        number: which write to interrupt; None to watch only.
        half: leave the first half of the file.
    """

    def __init__(self, folder: Path, number: int | None = None, half: bool = False) -> None:
        self.folder, self.number, self.half = str(folder), number, half
        self.files: list[str] = []

    def write(self, path, do, atomic=False):
        path = os.fspath(path) if isinstance(path, (str, os.PathLike)) else ""
        if not path.startswith(self.folder) or "/." in path.removeprefix(self.folder):
            return do()  # a temporary file counts when it takes its name, which os.replace does
        self.files.append(os.path.relpath(path, self.folder))
        if len(self.files) - 1 != self.number:
            return do()
        if self.half and not atomic:
            written = do()
            if isinstance(written, io.IOBase):
                return HalfFile(written)
            os.truncate(path, os.path.getsize(path) // 2)
        raise Interrupted(path)

    @contextmanager
    def watched(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for module in (builtins, io):
                patch.setattr(module, "open", self._opener(module.open))
            save, save_tensors, replace = torch.save, modeling_utils.safe_save_file, os.replace
            patch.setattr(torch, "save", lambda value, path, *a, **k: self.write(path, lambda: save(value, path)))
            patch.setattr(
                modeling_utils,
                "safe_save_file",
                lambda tensors, path, *a, **k: self.write(path, lambda: save_tensors(tensors, path, *a, **k)),
            )
            patch.setattr(os, "replace", lambda old, new: self.write(new, lambda: replace(old, new), True))
            yield

    def _opener(self, real):
        def opened(path, mode="r", *args, **kwargs):
            if not set(mode) & set("wax+"):
                return real(path, mode, *args, **kwargs)
            return self.write(path, lambda: real(path, mode, *args, **kwargs))

        return opened


class HalfFile:
    """A text file that takes the first half of what is written to it, then interrupts."""

    def __init__(self, file) -> None:
        self.file = file

    def __enter__(self):
        return self

    def __exit__(self, *error) -> None:
        self.file.close()

    def write(self, text):
        self.file.write(text[: len(text) // 2])
        self.file.flush()
        raise Interrupted(self.file.name)


@pytest.fixture(scope="module")
def written(whole, tmp_path_factory):
    """The files of checkpoint-5 in the order of their writing."""
    folder = tmp_path_factory.mktemp("watched")
    trainer = trainer_in(folder, max_steps=5)
    writes = Writes(folder / "checkpoint-5")
    with writes.watched():
        trainer.train(resume_from_checkpoint=str(whole[0] / "checkpoint-4"))
    checkpoint = folder / "checkpoint-5"
    on_disk = sorted(str(path.relative_to(checkpoint)) for path in checkpoint.rglob("*") if path.is_file())
    assert sorted(set(writes.files)) == on_disk, "a file of the checkpoint escapes the watch"
    assert writes.files[-1] == "trainer_state.json"
    return writes.files


@pytest.fixture(scope="module")
def foreign(tmp_path_factory):
    """A complete checkpoint-5 of another training."""
    folder = tmp_path_factory.mktemp("foreign")
    trainer_in(folder, save_steps=5, learning_rate=1e-1, max_steps=5).train()
    return folder / "checkpoint-5"


@pytest.mark.parametrize("half", [False, True], ids=["before", "half-way"])
def test_interrupted_at_every_write(tmp_path, whole, written, foreign, half):
    """A checkpoint is many files: between any two of them, and within each, it must not pass for a whole one.

    The folder also holds the checkpoint of the same step of an older training, so that a mixture of both would look
    complete.
    """
    before, expected = whole
    code = [number for number, file in enumerate(written) if file.startswith("lwal_code/")]
    for number, file in enumerate(written):
        if number in code[1:-1]:
            continue  # between two modules is between two files
        folder = tmp_path / str(number)
        shutil.copytree(before / "checkpoint-4", folder / "checkpoint-4")
        shutil.copytree(foreign, folder / "checkpoint-5")
        trainer = trainer_in(folder)
        with Writes(folder / "checkpoint-5", number, half).watched(), pytest.raises(Interrupted, match=file):
            trainer.train(resume_from_checkpoint=str(folder / "checkpoint-4"))
        assert last_complete_checkpoint(folder) == str(folder / "checkpoint-4"), file
        assert differences(final_state(train(folder, STEPS)), expected) == [], file


DAMAGES = {
    "trainer_state.json": ("remove", "trainer_state.json is missing"),
    "trainer_state.json ": ("cut", "trainer_state.json is cut off"),
    "model.safetensors": ("remove", "the weights are missing"),
    "model.safetensors ": ("cut", "model.safetensors is cut off"),
    "model.safetensors  ": ("empty", "model.safetensors is cut off"),
    "optimizer.pt": ("remove", "the state of the optimizer is missing"),
    "optimizer.pt ": ("cut", "optimizer.pt is cut off"),
    "scheduler.pt": ("empty", "scheduler.pt is cut off"),
    "rng_state.pth": ("cut", "rng_state.pth is cut off"),
}


@pytest.mark.parametrize(("file", "damage", "sentence"), [(k.strip(), *v) for k, v in DAMAGES.items()])
def test_damaged_checkpoints_are_named(tmp_path, whole, caplog, file, damage, sentence):
    """transformers takes the highest number, fails on a cut file and goes on without the optimizer's state."""
    for step in (3, 4):
        shutil.copytree(whole[0] / f"checkpoint-{step}", tmp_path / f"checkpoint-{step}")
    (tmp_path / "checkpoint-5").touch()  # no folder, or not yet
    (tmp_path / "checkpoint-5").unlink()
    (tmp_path / "checkpoint-best").mkdir()
    assert last_complete_checkpoint(tmp_path) == str(tmp_path / "checkpoint-4")
    path = tmp_path / "checkpoint-4" / file
    if damage == "remove":
        path.unlink()
    else:
        os.truncate(path, {"cut": path.stat().st_size - 2, "empty": 0}[damage])
    assert last_complete_checkpoint(str(tmp_path)) == str(tmp_path / "checkpoint-3")
    assert f"Skipped {tmp_path / 'checkpoint-4'}, because {sentence}" in caplog.text
    with pytest.raises(ValueError, match=rf"checkpoint-4 cannot be resumed from, because {sentence}"):
        checkpoint_to_resume(tmp_path / "checkpoint-4", str(tmp_path), 1)


def test_other_forms_of_checkpoints_are_complete(tmp_path, whole):
    """Shards, adapters and checkpoints without optimizer are whole too; refusing them would lose hours."""
    full = whole[0] / "checkpoint-3"
    only_model = Path(shutil.copytree(full, tmp_path / "only_model"))
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        (only_model / name).unlink()
    assert what_is_missing(only_model) is None
    adapter = Path(shutil.copytree(full, tmp_path / "adapter"))
    (adapter / "model.safetensors").rename(adapter / "adapter_model.safetensors")
    assert what_is_missing(adapter) is None
    sharded = Path(shutil.copytree(full, tmp_path / "sharded"))
    (sharded / "model.safetensors").unlink()
    model = AutoModelForLwALClassification.from_pretrained(full)
    model.save_pretrained(sharded, max_shard_size="20kB")
    shards = sorted(sharded.glob("model-*.safetensors"))
    assert len(shards) > 1
    assert what_is_missing(sharded) is None
    shards[0].unlink()
    assert what_is_missing(sharded) == f"{shards[0].name} is missing"


def test_the_trainer_resumes_from_the_newest_complete_checkpoint(tmp_path, whole, caplog):
    """`resume_from_checkpoint=True` after a kill must neither fail nor start from half a checkpoint."""
    before, expected = whole
    for step in (2, 3):
        shutil.copytree(before / f"checkpoint-{step}", tmp_path / f"checkpoint-{step}")
    (tmp_path / "checkpoint-3" / "optimizer.pt").unlink()
    trainer = trainer_in(tmp_path)
    trainer.train(resume_from_checkpoint=True)
    assert "because the state of the optimizer is missing" in caplog.text
    assert differences(final_state(trainer), expected) == []
    shutil.rmtree(tmp_path / "checkpoint-2")
    for checkpoint in tmp_path.glob("checkpoint-*"):
        (checkpoint / "trainer_state.json").unlink()
    with pytest.raises(ValueError, match=r"has no complete checkpoint to resume from: leave resume_from_checkpoint"):
        trainer_in(tmp_path).train(resume_from_checkpoint=True)
    with pytest.raises(
        ValueError, match=r"checkpoint-5 cannot be resumed from, because trainer_state.json is missing"
    ):
        trainer_in(tmp_path).train(resume_from_checkpoint=str(tmp_path / "checkpoint-5"))


def test_another_number_of_processes_is_said(tmp_path, whole, caplog):
    """Rows are dealt out by rank: a run on other ranks goes on, but it is another run."""
    checkpoint = Path(shutil.copytree(whole[0] / "checkpoint-3", tmp_path / "checkpoint-3"))
    trainer_in(tmp_path).train(resume_from_checkpoint=True)
    assert "processes" not in caplog.text
    (checkpoint / "rng_state.pth").rename(checkpoint / "rng_state_0.pth")
    shutil.copy(checkpoint / "rng_state_0.pth", checkpoint / "rng_state_1.pth")
    trainer = trainer_in(tmp_path)
    trainer.train(resume_from_checkpoint=str(checkpoint))
    assert "was written by 2 processes, but 1 train now" in caplog.text
    assert trainer.model.label_table.step == STEPS
