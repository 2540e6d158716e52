"""A full disk, or a place where nothing can be written: a sentence, the old files, and nothing left behind."""

import os
import resource
import shutil
import signal
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_models import tiny_config as config_of
from toy import word_tokenizer

from hf_lwal import AutoModelForLwALClassification
from hf_lwal.cli import main as cli
from hf_lwal.errors import CommandError
from hf_lwal.modeling.files import replacing, staged, write_text_atomically

NAMES = ["cat", "dog", "car", "bus"]
RESULTS = Path(__file__).parent.parent / "benchmarks" / "results" / "fair.jsonl"


@contextmanager
def full_disk(room):
    """Let no file grow beyond ``room`` bytes, which writers see as an error of the system, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def content(folder):
    """Every file below a folder with its bytes."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A saved model of four labels and a table of label vectors."""
    folder = tmp_path_factory.mktemp("writing")
    torch.manual_seed(0)
    model = AutoModelForLwALClassification.from_config(
        config_of("bert", id2label=dict(enumerate(NAMES)), label2id={name: i for i, name in enumerate(NAMES)})
    )
    table = model.label_table
    table.start(torch.randn(12, table.class_features.shape[1]), torch.arange(12) % 4, model.head)
    model.save_pretrained(folder / "model")
    word_tokenizer().save_pretrained(folder / "model")
    rows = np.random.default_rng(0).normal(size=(4, 3))
    lines = [",".join([name, *map(str, row)]) for name, row in zip(NAMES, rows, strict=True)]
    (folder / "vectors.csv").write_text("\n".join(["label,a,b,c", *lines, ""]))
    return folder


def commands(saved, output):
    return {
        "fold": ["fold", str(saved / "model"), "--output", str(output)],
        "hierarchy": ["hierarchy", str(saved / "vectors.csv"), "--output", str(output)],
        "report": ["report", str(RESULTS), "--output", str(output)],
    }


@pytest.mark.parametrize("room", [0, 2_000, 8_000])
@pytest.mark.parametrize("command", ["fold", "hierarchy", "report"])
def test_a_full_disk_is_a_sentence_and_leaves_nothing(command, room, saved, tmp_path, capsys):
    """A temporary folder stayed beside every fold that failed, and a traceback named safetensors or Pillow."""
    words = commands(saved, tmp_path / "new" / "folder")[command]
    with full_disk(room):
        assert cli.main(words) == 2
    error = capsys.readouterr().err
    assert "could not be written (" in error
    assert "make room there, or name another place" in error
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", ["hierarchy", "report"])
def test_after_a_full_disk_the_old_files_are_whole(command, saved, tmp_path, capsys):
    """New tables beside old pictures would tell of two models."""
    words = commands(saved, tmp_path / "folder")[command]
    assert cli.main(words) == 0
    (tmp_path / "folder" / "mine.txt").write_text("notes")
    before = content(tmp_path)
    with full_disk(3_000):
        assert cli.main([*words, *(["--metric", "cosine"] if command == "hierarchy" else [])]) == 2
    assert content(tmp_path) == before
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
    assert cli.main(words) == 0
    assert (tmp_path / "folder" / "mine.txt").read_text() == "notes"


def test_a_card_on_a_full_disk_leaves_the_old_one(saved, tmp_path, capsys):
    folder = tmp_path / "model"
    shutil.copytree(saved / "model", folder)
    assert cli.main(["card", str(folder), "--name", "first"]) == 0
    before = content(folder)
    for room in (0, 3_000, 6_000):
        with full_disk(room):
            assert cli.main(["card", str(folder), "--name", "second", "--license", "mit"]) == 2
        assert "could not be written" in capsys.readouterr().err
        assert content(folder) == before


@pytest.mark.parametrize("command", ["fold", "hierarchy", "report"])
@pytest.mark.parametrize("below", ["", "inner", "inner/deeper"])
def test_a_file_where_a_folder_is_wanted(command, below, saved, tmp_path, capsys):
    (tmp_path / "file").write_text("mine")
    assert cli.main(commands(saved, tmp_path / "file" / below)[command]) == 2
    assert "--output must be a folder, but" in capsys.readouterr().err
    assert content(tmp_path) == {"file": b"mine"}


COMPARE = ["compare", "--dataset", "fashion_mnist", "--model", "mlp", "--method", "one_hot", "--steps", "3"]


@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
def test_compare_needs_a_file_that_it_can_read_again(dry, tmp_path, capsys):
    """What was written to a device would be run again for ever, and the plan would land in /dev."""
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    (tmp_path / "file").write_text("")
    cases = {
        str(tmp_path): "--output must be a file, but",
        os.devnull: "is a device or a pipe",
        str(fifo): "is a device or a pipe",
        str(tmp_path / "file" / "results.jsonl"): "--output must be a folder, but",
    }
    for output, message in cases.items():
        assert cli.main([*COMPARE, *dry, "--output", output]) == 2
        assert message in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "pipe"]


def test_compare_on_a_full_disk(tmp_path, capsys):
    with full_disk(0):
        assert cli.main([*COMPARE, "--dry-run", "--output", str(tmp_path / "results.jsonl")]) == 2
    assert "results.jsonl' could not be written (" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_place_that_is_read_only(monkeypatch, saved, tmp_path, capsys):
    """Hours of work would end in a PermissionError; os.access stands in, since root may write everywhere."""
    monkeypatch.setattr(os, "access", lambda place, mode: False)
    for words in (*commands(saved, tmp_path / "new").values(), [*COMPARE, "--output", str(tmp_path / "a.jsonl")]):
        assert cli.main(words) == 2
        assert "is read-only for you" in capsys.readouterr().err


def test_replacing_keeps_the_old_file_after_any_error(tmp_path):
    path = tmp_path / "file"
    write_text_atomically(path, "old")

    def interrupted():
        with replacing(path) as new:
            new.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert content(tmp_path) == {"file": b"old"}
    write_text_atomically(path, "new é")
    assert path.read_bytes() == "new é".encode()
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_folder_that_exists_stays_the_same_one(saved, tmp_path):
    """A link, or a disk mounted in a container, cannot be replaced by another folder, only filled."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk", target_is_directory=True)
    before = (tmp_path / "disk").stat().st_ino
    for words in commands(saved, tmp_path / "link").values():
        assert cli.main(words) == 0
        assert (tmp_path / "disk").stat().st_ino == before
        assert (tmp_path / "link").is_symlink()
        names = [path.name for path in (tmp_path / "disk").iterdir()]
        assert names
        assert not any(name.startswith(".") for name in names)
        for path in (tmp_path / "disk").iterdir():
            path.unlink()


def test_staged_files_come_together_or_not_at_all(tmp_path):
    folder = tmp_path / "a" / "b"

    def failing():
        with staged(folder) as new:
            (new / "one").write_text("1")
            raise CommandError("no")

    with pytest.raises(CommandError):
        failing()
    assert not list(tmp_path.iterdir())
    for text in ("1", "2"):
        with staged(folder) as new:
            (new / "one").write_text(text)
            assert not (folder / "one").exists() or text == "2"
        assert content(folder) == {"one": text.encode()}
    assert folder.stat().st_mode & 0o777 == 0o755
