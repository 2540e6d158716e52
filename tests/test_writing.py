"""A full disk, or a place where nothing can be written: a sentence, the old files, and nothing left behind."""

import os
import resource
import shutil
import signal
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_models import tiny_config as config_of
from toy import word_tokenizer
from transformers import AutoModelForSequenceClassification, PreTrainedConfig

from hf_lwal import AutoModelForLwALClassification
from hf_lwal.bench.results import append_line, read_lines
from hf_lwal.cli import main as cli
from hf_lwal.errors import CommandError
from hf_lwal.modeling.files import replacing, staged, write_text_atomically

NAMES = ["cat", "dog", "car", "bus"]
COMPARE = ["compare", "--dataset", "fashion_mnist", "--model", "mlp", "--method", "one_hot", "--steps", "3"]
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
    texts = [f"key{row % 4} word{row % 7},{NAMES[row % 4]}" for row in range(40)]
    (folder / "rows.csv").write_text("\n".join(["text,label", *texts, ""]))
    (folder / "vectors.csv").write_text("\n".join(["label,a,b,c", *lines, ""]))
    return folder


def commands(saved, output):
    return {
        "fold": ["fold", str(saved / "model"), "--output", str(output)],
        "hierarchy": ["hierarchy", str(saved / "vectors.csv"), "--output", str(output)],
        "report": ["report", str(RESULTS), "--output", str(output)],
    }


def commands_with_a_file(saved, output):
    return {
        "predict": ["predict", str(saved / "model"), "key1 word2", "--output", f"{output}.csv"],
        "audit": ["audit", str(saved / "rows.csv"), "--model", str(saved / "model"), "--output", f"{output}.html"],
        "compare": [*COMPARE, "--dry-run", "--output", f"{output}.jsonl"],
    }


def training(saved, output):
    return [
        *("train", "--data", str(saved / "rows.csv"), "--model", str(saved / "model"), "--output-dir", str(output)),
        *("--max-steps", "4", "--save-steps", "2", "--save-strategy", "steps", "--eval-strategy", "no", "--use-cpu"),
        *("--report-to", "none", "--load-best-model-at-end", "no", "--per-device-train-batch-size", "4"),
    ]


@pytest.mark.parametrize("room", [0, 2_000, 8_000])
@pytest.mark.parametrize("command", ["fold", "hierarchy", "report"])
def test_a_full_disk_is_a_sentence_and_leaves_nothing(command, room, saved, tmp_path, capsys):
    """A temporary folder stayed beside every fold that failed, and a traceback named safetensors or Pillow."""
    words = commands(saved, tmp_path / "new" / "folder")[command]
    with full_disk(room):
        assert cli.main(words) == 1
    error = capsys.readouterr().err
    assert "could not be written (" in error
    assert "make room there, or name another place" in error
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", ["predict", "audit", "compare"])
def test_a_full_disk_leaves_no_half_file(command, saved, tmp_path, capsys):
    """The file of an earlier run was replaced by nothing but a message without a name."""
    words = commands_with_a_file(saved, tmp_path / "file")[command]
    file = Path(words[-1])
    for before in ({}, {file.name: b"" if command == "compare" else b"mine"}):
        for name, old in before.items():
            (tmp_path / name).write_bytes(old)
        with full_disk(10):
            assert cli.main(words) == 1
        assert f"{file.name}' could not be written (" in capsys.readouterr().err
        assert content(tmp_path) == before


@pytest.mark.parametrize("room", [1_000, 110_000])
def test_a_training_on_a_full_disk_says_from_where_it_can_go_on(room, saved, tmp_path, capsys):
    """safetensors' error was called a bug, and half a checkpoint took the room that was left."""
    with full_disk(room):
        assert cli.main(training(saved, tmp_path / "out")) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert "checkpoint-2 could not be written (" in error
    assert "No checkpoint in" in error
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["train.yaml"]


def test_the_checkpoint_before_a_full_disk_is_whole_and_named(saved, tmp_path, capsys, monkeypatch):
    save = torch.save

    def save_until_full(value, path, *args, **kwargs):
        if "checkpoint-4" in str(path):
            raise RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 576 vs 534")
        save(value, path, *args, **kwargs)

    monkeypatch.setattr(torch, "save", save_until_full)
    assert cli.main(training(saved, tmp_path / "out")) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert "checkpoint-4 could not be written (" in error
    assert f"The last complete checkpoint is {tmp_path / 'out' / 'checkpoint-2'}" in error
    assert "bug" not in error
    monkeypatch.undo()
    assert cli.main([*training(saved, tmp_path / "out"), "--resume"]) == 0
    assert (tmp_path / "out" / "checkpoint-4" / "trainer_state.json").exists()


def test_a_save_that_finds_no_room_leaves_the_model_of_before(saved, tmp_path):
    """Weights of before stayed below the label names of after, and loaded without a word."""
    shutil.copytree(saved / "model", tmp_path / "model")
    before = content(tmp_path)
    model = AutoModelForLwALClassification.from_pretrained(tmp_path / "model")
    model.align(NAMES[::-1])
    with full_disk(20_000), pytest.raises(Exception, match="os error 27"):
        model.save_pretrained(tmp_path / "model")
    assert content(tmp_path) == before
    model.save_pretrained(tmp_path / "model")
    again = AutoModelForLwALClassification.from_pretrained(tmp_path / "model")
    assert list(again.config.id2label.values()) == NAMES[::-1]
    assert torch.equal(again.label_table.label_vectors, model.label_table.label_vectors)


def test_a_model_in_fewer_pieces_replaces_one_in_more(saved, tmp_path):
    """Shards of the earlier save stayed, with the index that loading goes by."""
    model = AutoModelForLwALClassification.from_pretrained(saved / "model")
    model.save_pretrained(tmp_path / "model", max_shard_size="20KB")
    assert len(list((tmp_path / "model").glob("model-*.safetensors"))) > 1
    (tmp_path / "model" / "model-mine.safetensors").write_text("notes")
    model.save_pretrained(tmp_path / "model")
    assert sorted(path.name for path in (tmp_path / "model").glob("model*")) == [
        "model-mine.safetensors",
        "model.safetensors",
    ]
    model.save_pretrained(tmp_path / "model", max_shard_size="20KB")
    assert not (tmp_path / "model" / "model.safetensors").exists(), "it would be read instead of the shards"


def test_a_model_that_is_saved_while_it_is_loaded_is_loaded_anew(saved, tmp_path, monkeypatch):
    """The configuration of before and the weights of after made a model with the names of other labels."""
    folder = tmp_path / "model"
    shutil.copytree(saved / "model", folder)
    model = AutoModelForLwALClassification.from_pretrained(folder)
    marks = {name: float(vector.sum()) for name, vector in zip(NAMES, model.label_table.label_vectors, strict=True)}
    saves, read = [], PreTrainedConfig.get_config_dict.__func__

    def saved_meanwhile(cls, *args, **kwargs):
        found = read(cls, *args, **kwargs)
        if saves:
            model.align(saves.pop())
            model.save_pretrained(folder)
        return found

    monkeypatch.setattr(PreTrainedConfig, "get_config_dict", classmethod(saved_meanwhile))
    for loader in (AutoModelForLwALClassification, AutoModelForSequenceClassification):
        saves[:] = [NAMES[::-1], NAMES[1:] + NAMES[:1]]
        found = loader.from_pretrained(folder)
        assert not saves
        sums = found.label_table.label_vectors.sum(dim=1).tolist()
        assert {found.config.id2label[row]: pytest.approx(total) for row, total in enumerate(sums)} == marks


def test_a_model_that_is_never_left_in_peace(saved, tmp_path, monkeypatch):
    shutil.copytree(saved / "model", tmp_path / "model")
    config, read = tmp_path / "model" / "config.json", PreTrainedConfig.get_config_dict.__func__

    def touched(cls, *args, **kwargs):
        write_text_atomically(config, config.read_text())
        return read(cls, *args, **kwargs)

    monkeypatch.setattr(PreTrainedConfig, "get_config_dict", classmethod(touched))
    monkeypatch.setattr("hf_lwal.modeling.loading.MOST_LOADS", 2)
    with pytest.raises(OSError, match="was written to during each of 2 attempts to load it: wait until"):
        AutoModelForLwALClassification.from_pretrained(tmp_path / "model")


@pytest.mark.parametrize("command", ["hierarchy", "report"])
def test_after_a_full_disk_the_old_files_are_whole(command, saved, tmp_path, capsys):
    """New tables beside old pictures would tell of two models."""
    words = commands(saved, tmp_path / "folder")[command]
    assert cli.main(words) == 0
    (tmp_path / "folder" / "mine.txt").write_text("notes")
    before = content(tmp_path)
    with full_disk(3_000):
        assert cli.main([*words, *(["--metric", "cosine"] if command == "hierarchy" else [])]) == 1
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
            assert cli.main(["card", str(folder), "--name", "second", "--license", "mit"]) == 1
        assert "could not be written" in capsys.readouterr().err
        assert content(folder) == before


@pytest.mark.parametrize("command", ["fold", "hierarchy", "report"])
@pytest.mark.parametrize("below", ["", "inner", "inner/deeper"])
def test_a_file_where_a_folder_is_wanted(command, below, saved, tmp_path, capsys):
    (tmp_path / "file").write_text("mine")
    assert cli.main(commands(saved, tmp_path / "file" / below)[command]) == 2
    assert "--output must be a folder, but" in capsys.readouterr().err
    assert content(tmp_path) == {"file": b"mine"}


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
        str(tmp_path / "file" / "results.jsonl"): "is a file and no folder",
    }
    for output, message in cases.items():
        assert cli.main([*COMPARE, *dry, "--output", output]) == 2
        assert message in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "pipe"]


def test_compare_on_a_full_disk(tmp_path, capsys):
    with full_disk(0):
        assert cli.main([*COMPARE, "--dry-run", "--output", str(tmp_path / "results.jsonl")]) == 1
    assert "results.jsonl' could not be written (" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


ZERO_BYTE = "embedded null byte" if sys.version_info < (3, 13) else "stat: embedded null character in path"
PLACES = {
    "{tmp}/dead{end}": "is a link to 'nowhere', which does not exist: make that",
    "{tmp}/circle{end}": "is no name that can be written to (Too many levels of symbolic links)",
    "{tmp}/" + "x" * 300 + "{end}": "is no name that can be written to (File name too long)",
    "{tmp}/a\0b{end}": f"is no name that can be written to ({ZERO_BYTE})",
    "~nobody-of-that-name/x{end}": "is no name that can be written to (Could not determine home directory)",
    "{tmp}/file/below{end}": "file' is a file",
}


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place[:20])
@pytest.mark.parametrize("command", ["predict", "audit", "compare", "train", "fold", "quickstart"])
def test_places_that_cannot_be_written_to(command, place, saved, tmp_path, capsys):
    """The long work ended in a traceback, and a link was replaced by a file."""
    words = {
        **commands(saved, "?"),
        **commands_with_a_file(saved, "?"),
        "train": training(saved, "?"),
        "quickstart": ["quickstart", "--model", str(saved / "model"), "--output-dir", "?"],
    }[command]
    end = next((word[1:] for word in words if word.startswith("?")), "")
    (tmp_path / "file").write_text("mine")
    (tmp_path / f"dead{end}").symlink_to("nowhere")
    (tmp_path / f"circle{end}").symlink_to(f"circle{end}")
    before = sorted(path.name for path in tmp_path.iterdir())
    name = place.format(tmp=tmp_path, end=end)
    assert cli.main([name if word.startswith("?") else word for word in words]) == 2
    error = capsys.readouterr().err
    assert PLACES[place] in error
    assert len(error) < 700
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_line_that_the_disk_takes_half_of_is_taken_back(tmp_path):
    """Another process appended its line behind the half one, and the file could not be read any more."""
    whole, *_ = read_lines(RESULTS)
    append_line(tmp_path / "results.jsonl", whole)
    size = (tmp_path / "results.jsonl").stat().st_size
    with full_disk(size + 20), pytest.raises(CommandError, match="The disk took only 20 of"):
        append_line(tmp_path / "results.jsonl", whole)
    append_line(tmp_path / "results.jsonl", whole)
    assert len(read_lines(tmp_path / "results.jsonl")) == 2


def test_a_link_to_a_file_stays_a_link(saved, tmp_path):
    """What a link leads to may lie on another disk; it became a file beside the one that was meant."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "answers.csv").write_text("old")
    (tmp_path / "answers.csv").symlink_to("disk/answers.csv")
    (tmp_path / "disk" / "answers.csv").chmod(0o640)
    assert cli.main(commands_with_a_file(saved, tmp_path / "answers")["predict"]) == 0
    assert (tmp_path / "answers.csv").is_symlink()
    assert (tmp_path / "disk" / "answers.csv").read_text().startswith("input,label,score")
    assert (tmp_path / "disk" / "answers.csv").stat().st_mode & 0o777 == 0o640


def test_what_nobody_else_may_read_stays_so(tmp_path):
    """With a umask of 077 texts and label names were readable for everybody all the same."""
    before = os.umask(0o077)
    try:
        write_text_atomically(tmp_path / "file", "x")
        with staged(tmp_path / "folder") as new:
            write_text_atomically(new / "one", "1")
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "folder").stat().st_mode & 0o777 == 0o700


def test_a_name_of_the_longest_length_can_be_written(tmp_path):
    for name in ("x" * 255, "é" * 127):
        write_text_atomically(tmp_path / name, "x")
        assert (tmp_path / name).read_text() == "x"


def test_a_place_that_is_read_only(monkeypatch, saved, tmp_path, capsys):
    """Hours of work would end in a PermissionError; os.access stands in, since root may write everywhere."""
    monkeypatch.setattr(os, "access", lambda place, mode: False)
    for words in (
        *commands(saved, tmp_path / "new").values(),
        *commands_with_a_file(saved, tmp_path / "new").values(),
        training(saved, tmp_path / "new"),
    ):
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
