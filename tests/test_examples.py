"""The examples run as their opening lines say."""

import json
import runpy
import sys
from pathlib import Path

import pytest
from launchers import ACCELERATE, launch

from hf_lwal import AutoModelForLwALClassification

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Run a script in this process; the folder it saves to is given to the test."""

    def run_script(name, *arguments, folder_flag="output_dir"):
        monkeypatch.syspath_prepend(str(EXAMPLES))
        monkeypatch.setattr(sys, "argv", [name, "--smoke", f"--{folder_flag}", str(tmp_path / "out"), *arguments])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return tmp_path / "out"

    return run_script


def rows_counted(folder):
    table = json.loads((folder / "label_table.json").read_text(encoding="utf-8"))
    return sum(label["count"] for label in table["labels"])


@pytest.mark.slow
@pytest.mark.parametrize("model", ["convnext", "vit"])
def test_image_classification_from_scratch(model, run, capsys):
    run("image_classification_from_scratch.py", "--model", model, folder_flag="output-dir")
    *_, header, first, second = capsys.readouterr().out.strip().splitlines()
    assert header.split() == ["steps", "one_hot", "lwal"]
    assert [row.split()[0] for row in (first, second)] == ["2", "4"]


def test_text_classification(run):
    """Six labels, so chance is 17 %: the start pass alone must bring a tiny random model above it."""
    folder = run("text_classification.py")
    assert json.loads((folder / "eval_results.json").read_text(encoding="utf-8"))["eval_accuracy"] > 0.3
    assert rows_counted(folder) == 6 * 16 + 4 * 8  # start pass, then four steps of eight rows
    names = set(AutoModelForLwALClassification.from_pretrained(folder).config.label2id)
    assert names == {"translate", "book_flight", "timer", "weather", "balance", "transfer"}
    assert (folder / "README.md").exists()


def test_text_classification_asks_for_data(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", ["text_classification.py", "--output_dir", str(tmp_path)])
    with pytest.raises(SystemExit, match="--train_file and --validation_file"):
        runpy.run_path(str(EXAMPLES / "text_classification.py"), run_name="__main__")


def test_text_classification_no_trainer(run, capsys):
    """The model counts the rows of its own steps; the last step's wait for a next forward."""
    folder = run("text_classification_no_trainer.py")
    assert rows_counted(folder) == 6 * 16 + 3 * 8
    said = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("accuracy"))
    assert float(said.split()[1]) > 0.3
    assert said.endswith("48 rows, 1 process(es)")


@pytest.mark.slow
def test_text_classification_no_trainer_in_two_processes(tmp_path):
    """Both processes' rows must reach the label table, and both must stop at the same step."""
    script = EXAMPLES / "text_classification_no_trainer.py"
    said = launch(ACCELERATE, script, "--smoke", "--output_dir", str(tmp_path), timeout=120)
    assert "48 rows, 2 process(es)" in said
    assert rows_counted(tmp_path) == 6 * 16 + 3 * 2 * 8
