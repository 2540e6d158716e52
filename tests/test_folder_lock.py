"""Two trainings in one folder ended normally, with the weights of one beside the settings of the other."""

import errno
import multiprocessing
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from test_training_stops import trainer_of
from transformers import TrainerCallback

from hf_lwal.cli import main as cli
from hf_lwal.cli.compare import results_lock
from hf_lwal.cli.train import TrainOptions, run
from hf_lwal.errors import CommandError
from hf_lwal.training.folder_lock import LOCK_FILE, FolderLock

HOLD = """
import sys, time
from hf_lwal.training.folder_lock import FolderLock
lock = FolderLock(*sys.argv[1:])
print(lock.take(), flush=True)
time.sleep(120)
"""
SAVES = {"save_strategy": "steps", "save_steps": 2, "max_steps": 2}


@contextmanager
def other_training(folder, *name):
    """Another process that trains into the folder until it is killed."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(folder), *name], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "True\n"
        yield
    finally:
        process.kill()
        process.communicate()


def files(folder):
    """Name → time of the last change; asking for the lock counts as one of the lock file with filelock 3.20."""
    found = {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in Path(folder).rglob("*")}
    return {name: name if name == "_training.lock" else changed for name, changed in found.items()}


def test_a_second_training_is_refused_until_the_first_is_dead(tmp_path):
    """The second writes nothing; the file that a killed process leaves does not stop the next one."""
    trainer = trainer_of(tmp_path, **SAVES)
    with other_training(tmp_path):
        before = files(tmp_path)
        with pytest.raises(ValueError, match=r"Another training is writing to .*another output_dir"):
            trainer.train()
        assert files(tmp_path) == before
        assert trainer.state.global_step == 0
    assert (tmp_path / LOCK_FILE).exists()
    trainer.train()
    assert (tmp_path / "checkpoint-2").is_dir()
    assert not (tmp_path / LOCK_FILE).exists(), "it is no part of what was trained"
    trainer_of(tmp_path, **SAVES | {"max_steps": 4}).train(resume_from_checkpoint=True)
    assert (tmp_path / "checkpoint-4").is_dir()


class Probe(TrainerCallback):
    """Notes whether another process could train into the folder at the first step."""

    def on_step_end(self, args, state, control, **kwargs):
        code = (
            "import sys; from hf_lwal.training.folder_lock import FolderLock; sys.exit(FolderLock(sys.argv[1]).take())"
        )
        if state.global_step == 1:
            self.free = bool(subprocess.run([sys.executable, "-c", code, args.output_dir]).returncode)


def test_the_folder_is_taken_while_training(tmp_path):
    trainer, probe = trainer_of(tmp_path, **SAVES), Probe()
    trainer.add_callback(probe)
    trainer.train()
    assert not probe.free


def test_trainings_that_save_nothing_share_a_folder(tmp_path):
    with other_training(tmp_path):
        trainer_of(tmp_path, max_steps=1).train()


def test_one_process_takes_it_several_times(tmp_path):
    """The command holds it around its trainings, which each take it."""
    outer, inner = FolderLock(tmp_path / "new"), FolderLock(tmp_path / "new")
    assert outer.take()
    assert inner.take()
    inner.release()
    assert outer.path.exists()
    outer.release()
    assert not outer.path.exists()
    outer.release()


def test_a_folder_that_nobody_can_write_to(tmp_path, monkeypatch):
    """There is nothing to protect, and what fails there says so itself."""
    monkeypatch.setattr("os.access", lambda path, mode: False)
    lock = FolderLock(tmp_path)
    assert lock.take()
    assert not lock.path.exists()
    (tmp_path / "file").touch()
    assert FolderLock(tmp_path / "file" / "below").take()


def test_the_command_refuses(tmp_path):
    rows = [f"{word} {number},{word}" for number in range(12) for word in ("red", "green")]
    (tmp_path / "rows.csv").write_text("text,label\n" + "\n".join(rows))
    output = tmp_path / "out"
    more = {"output_dir": str(output), "max_steps": 1, "report_to": "none", "use_cpu": True}
    with other_training(output), pytest.raises(CommandError, match="Another training is writing to"):
        run(TrainOptions(data=str(tmp_path / "rows.csv"), more=more, model=None))
    assert [path.name for path in output.iterdir()] == [LOCK_FILE]


def test_file_systems_without_locks_can_be_trained_into(tmp_path, monkeypatch):
    """On some clusters the system answers that it cannot lock, and no training began at all."""

    def refused(lock, *args, **kwargs):
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr("filelock.FileLock.acquire", refused)
    trainer_of(tmp_path, **SAVES).train()
    assert (tmp_path / "checkpoint-2").is_dir()


GRID = [
    "compare",
    "--dataset",
    "fashion_mnist",
    "--model",
    "mlp",
    "--method",
    "one_hot",
    "--steps",
    "2",
    "--seed",
    "1",
]
GRID += ["--steps", "2", "--train-rows", "50", "--test-rows", "20"]


def test_two_comparisons_of_one_file(tmp_path, capsys):
    """Each ran all cells, a torn line was cut off while it was written, and one plan replaced the other."""
    results = tmp_path / "results.jsonl"
    (tmp_path / "link.jsonl").symlink_to("results.jsonl")
    results.write_text('{"key": ')
    lock = results_lock(results)
    with other_training(lock.path.parent, lock.path.name):
        for name in ("results.jsonl", "link.jsonl"):
            assert cli.main([*GRID, "--output", str(tmp_path / name)]) == 2
            assert "Another `hf-lwal compare` is writing to" in capsys.readouterr().err
        assert cli.main([*GRID, "--dry-run", "--output", str(results)]) == 0
        assert "nothing was noted as planned" in capsys.readouterr().out
        assert results.read_text() == '{"key": ', "the other may be writing it"
        assert cli.main([*GRID, "--dry-run", "--output", str(tmp_path / "other.jsonl")]) == 0
    assert cli.main([*GRID, "--output", str(results)]) == 0
    assert "1 of 1 trainings are in" in capsys.readouterr().out
    names = ["link.jsonl", "other.plan.json", "results.jsonl", "results.plan.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names


def test_two_quickstarts_in_one_folder(tmp_path, capsys):
    with other_training(tmp_path):
        assert cli.main(["quickstart", "--output-dir", str(tmp_path)]) == 2
    assert "Another training is writing to" in capsys.readouterr().err


def fill(folder, mark, gate):
    from hf_lwal.modeling.files import staged

    with staged(Path(folder)) as new:
        for number in range(5):
            (new / str(number)).write_text(mark)
        gate.wait()


def test_one_of_two_that_make_one_folder_makes_it_whole(tmp_path):
    """Of two folds into one folder, the files must be those of one of them."""
    context = multiprocessing.get_context("fork")
    gate = context.Barrier(2)
    both = [context.Process(target=fill, args=(tmp_path / "folder", mark, gate)) for mark in "ab"]
    for process in both:
        process.start()
    for process in both:
        process.join(20)
    assert sorted(process.exitcode for process in both) == [0, 1]
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
    found = [path.read_text() for path in (tmp_path / "folder").iterdir()]
    assert found in (["a"] * 5, ["b"] * 5)
