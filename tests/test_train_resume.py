"""``hf-lwal train --resume``: a checkpoint that does not belong to the job is refused, another keeps its labels."""

import fnmatch
import json
import shlex
import shutil
from dataclasses import replace

import pytest
import yaml
from datasets import ClassLabel, Dataset, DatasetDict
from test_train_command import run, words
from transformers import BertForSequenceClassification, DistilBertForSequenceClassification, set_seed

from hf_lwal import AutoModelForLwALClassification
from hf_lwal.cli.main import main
from hf_lwal.cli.train_data import load_rows
from hf_lwal.cli.train_report import upload_command
from hf_lwal.cli.train_resume import in_order_of_checkpoint

NAMES = ("apple", "banana", "cherry")


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory):
    """Reading data files writes a cache; keep it out of the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def rows_of(names=NAMES, rows=60):
    """Sentences with the keyword of their label, which keeps its keyword whatever its name or number is."""
    texts = [f"word{row % 9} key{row % 3} key{row % 3}" for row in range(rows)]
    return Dataset.from_dict({"text": texts, "label": [names[row % 3] for row in range(rows)]})


def numbered(order):
    """The same rows with a ClassLabel whose names are in another order."""
    rows = rows_of()
    ids = [order.index(name) for name in rows["label"]]
    return rows.remove_columns("label").add_column("label", ids, feature=ClassLabel(names=list(order)))


@pytest.fixture(scope="module")
def models(tmp_path_factory, tiny_config, tokenizer):
    """Folders of tiny models: BERT, a wider BERT, DistilBERT."""
    folder = tmp_path_factory.mktemp("models")
    kinds = {
        "bert": BertForSequenceClassification(tiny_config("bert")),
        "wide": BertForSequenceClassification(tiny_config("bert", hidden_size=48)),
        "distilbert": DistilBertForSequenceClassification(tiny_config("distilbert")),
    }
    for name, model in kinds.items():
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    return folder


@pytest.fixture(scope="module")
def begun(models, tmp_path_factory):
    """Data and output folder of a training of two epochs, without control."""
    folder = tmp_path_factory.mktemp("begun")
    set_seed(0)
    rows_of().to_csv(folder / "rows.csv", index=False)
    run(words(folder / "rows.csv", models / "bert", folder / "out", "--num-train-epochs=2", "--test-share=0.2"))
    return folder


@pytest.fixture
def output(begun, tmp_path):
    """A copy of the output folder."""
    return shutil.copytree(begun / "out", tmp_path / "out")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("apple", "banana", "zebra"), "(new: 'zebra'; gone: 'cherry')"),  # the same number of labels
        (("Apple", "Banana", "Cherry"), "(new: 'Apple', 'Banana', 'Cherry'; gone: 'apple', 'banana', 'cherry')"),
        (("apple", "banana", "banana"), "was trained on 3 labels and the data has 2, not the same ones (gone: 'che"),
        (("apple", "banana", "1"), "(new: '1'; gone: 'cherry')"),
    ],
)
def test_a_checkpoint_of_other_labels_is_refused(names, message, output, models, tmp_path, capsys):
    """With as many labels as before every row would silently be taken for another label."""
    rows_of(names).to_csv(tmp_path / "rows.csv", index=False)
    before = (output / "train.yaml").read_text(encoding="utf-8")
    argv = words(tmp_path / "rows.csv", models / "bert", output, "--resume", "--num-train-epochs=3")
    assert main(list(map(str, argv))) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Start anew with --overwrite, or choose another --output-dir." in error
    assert (output / "train.yaml").read_text(encoding="utf-8") == before, "the record of what was trained stays"


def test_a_label_more_is_refused(output, models, tmp_path, capsys):
    rows = rows_of()
    more = Dataset.from_dict({"text": [*rows["text"], *["key9"] * 5], "label": [*rows["label"], *["new"] * 5]})
    more.to_csv(tmp_path / "rows.csv", index=False)
    assert main(list(map(str, words(tmp_path / "rows.csv", models / "bert", output, "--resume")))) == 2
    assert "on 3 labels and the data has 4, not the same ones (new: 'new')" in capsys.readouterr().err


def test_labels_in_another_order_keep_what_they_learned(output, models, tmp_path):
    """The same names numbered anew, as a data set's next version may: 100 % before, 0 % after, and no word."""
    order = ("cherry", "apple", "banana")
    folder = tmp_path / "data"
    folder.mkdir()
    for name, rows in DatasetDict(train=numbered(order), validation=numbered(order)).items():
        rows.to_parquet(folder / f"{name}.parquet")
    run(words(folder, models / "bert", output, "--resume", "--num-train-epochs=2", "--test-share=0"))
    accuracy = json.loads((output / "eval_results.json").read_text(encoding="utf-8"))["eval_accuracy"]
    assert accuracy == 1.0, "nothing was left to train, so this is what the checkpoint knows"
    assert AutoModelForLwALClassification.from_pretrained(output).config.id2label == dict(enumerate(NAMES))


def test_every_split_is_numbered_as_the_checkpoint(begun, tmp_path):
    order = ("banana", "cherry", "apple")
    numbered(order).to_parquet(tmp_path / "rows.parquet")
    rows = load_rows(str(tmp_path / "rows.parquet"), test_share=0.2)
    checkpoint = max((begun / "out").glob("checkpoint-*"))
    moved = in_order_of_checkpoint(rows, str(checkpoint))
    assert moved.names == list(NAMES)
    for split, original in ((moved.train, rows.train), (moved.validation, rows.validation), (moved.test, rows.test)):
        names = [NAMES[label] for label in split["label"]]
        assert names == [order[label] for label in original["label"]]
        assert split.features["label"].names == list(NAMES)
        assert split.split == original.split, "the card says what was measured on what"
    assert in_order_of_checkpoint(moved, str(checkpoint)) is moved
    without = replace(rows, test=None)
    assert in_order_of_checkpoint(without, str(checkpoint)).test is None


@pytest.mark.parametrize(
    ("model", "flags", "message"),
    [
        ("bert", ["--embedding-dim=8"], "has the shape 3×32, but with these settings it has 3×8"),
        ("bert", ["--label-method=one_hot"], "--label-method differs"),
        ("wide", [], "--model, --embedding-dim or --label-method differ"),
        ("distilbert", [], "holds a model of type bert, --model is distilbert"),
    ],
)
def test_a_checkpoint_of_another_model_is_refused(model, flags, message, begun, output, models, capsys):
    """torch says "size mismatch" for every weight, and loads the rest."""
    argv = words(begun / "rows.csv", models / model, output, "--resume", "--num-train-epochs=3", *flags)
    assert main(list(map(str, argv))) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("hf-lwal train: --resume: ")
    assert message in error


def test_the_default_rhythm_of_the_log_is_no_difference(begun, output, models, capsys):
    """Our own default is a share, the checkpoint holds a number of steps: a warning at every resumption."""
    argv = words(begun / "rows.csv", models / "bert", output, "--num-train-epochs=3", "--test-share=0.2", "--resume")
    run(argv)
    assert "do not match" not in capsys.readouterr().err


def test_a_start_that_failed_is_not_in_the_way(begun, models, tmp_path, capsys):
    """What is wrong with the labels shows after the data is read; the corrected command must not need --overwrite."""
    argv = list(map(str, words(begun / "rows.csv", models / "bert", tmp_path / "out", "--max-steps=1")))
    assert main([*argv, "--lwal-class-weights=1,2"]) == 2
    assert "lwal_class_weights has 2 numbers, but the model has 3 labels." in capsys.readouterr().err
    (tmp_path / "out").mkdir(exist_ok=True)
    (tmp_path / "out" / "train.yaml").write_text("data: x", encoding="utf-8")
    run(argv)


def test_a_control_that_cannot_be_trained_is_refused_before_the_training(begun, tmp_path, capsys):
    """It came up when the control's turn came, after the whole training."""
    argv = words(begun / "rows.csv", begun / "out", tmp_path / "out", "--control", "--max-steps=1")
    assert main(list(map(str, argv))) == 2
    assert "has label vectors of these labels already" in capsys.readouterr().err
    assert not (tmp_path / "out" / "train.yaml").exists()


def test_rows_can_be_set_apart_to_measure_on(begun):
    """What chose the checkpoint is no measure of it: the reported accuracy needs rows of its own."""
    rows = load_rows(str(begun / "rows.csv"), test_share=0.2, seed=3)
    assert [len(split) for split in (rows.train, rows.validation, rows.test)] == [42, 6, 12]
    assert sorted(rows.test["label"]) == [0] * 4 + [1] * 4 + [2] * 4
    assert rows.notes[0] == "no test split: 12 of 60 training rows are set apart as one, 20 % of every label"
    assert load_rows(str(begun / "rows.csv"), seed=3).test is None, "only where it is asked for"
    settings = yaml.safe_load((begun / "out" / "train.yaml").read_text(encoding="utf-8"))
    assert settings["test_share"] == 0.2
    assert "test_accuracy" in json.loads((begun / "out" / "all_results.json").read_text(encoding="utf-8"))


def test_the_printed_lines_say_what_chose_the_model(begun, models, tmp_path):
    argv = words(begun / "rows.csv", models / "bert", tmp_path / "out", "--max-steps=2")
    assert "The validation rows chose it" in run(argv)
    assert "The validation rows chose it" not in run([*argv, "--overwrite", "--test-share=0.1"])
    assert "The validation rows chose it" not in run([*argv, "--overwrite", "--eval-strategy=no"])


def test_saving_the_best_keeps_the_best(begun, models, tmp_path):
    """``--save-strategy best`` saved the best and then kept the one after the last step."""
    flags = ["--max-steps=8", "--eval-steps=2", "--save-strategy=best"]
    printed = run(words(begun / "rows.csv", models / "bert", tmp_path / "out", *flags))
    assert "The model is the best of 8 steps by validation accuracy, from step" in printed
    state = json.loads((tmp_path / "out" / "trainer_state.json").read_text(encoding="utf-8"))
    assert f"from step {state['best_global_step']}" in printed
    best = max(entry["eval_accuracy"] for entry in state["log_history"] if "eval_accuracy" in entry)
    assert json.loads((tmp_path / "out" / "eval_results.json").read_text(encoding="utf-8"))["eval_accuracy"] == best


def test_the_suggested_upload_is_the_model_alone(begun):
    """The whole folder is gigabytes of optimizers, another model and paths of this machine, open to everyone."""
    output = begun / "out"
    _, _, name, folder, *flags = shlex.split(upload_command(output))
    assert (name, folder) == ("YOUR-NAME/out", str(output))
    assert "--private" in flags
    patterns = [flags[place + 1] for place, flag in enumerate(flags) if flag == "--exclude"]
    files = [str(path.relative_to(output)) for path in output.rglob("*") if path.is_file()]
    sent = [file for file in files if not any(fnmatch.fnmatch(file, pattern) for pattern in patterns)]
    assert {"config.json", "model.safetensors", "label_table.json", "README.md", "tokenizer.json"} <= set(sent)
    assert not [file for file in sent if "checkpoint" in file or file.endswith((".bin", ".pt"))]
    for file in sent:
        content = (output / file).read_bytes()
        assert f" {begun}".encode() not in content, f"{file} tells where the training was"
        assert f'"{begun}'.encode() not in content, f"{file} tells where the training was"
