"""``hf-lwal train`` and ``predict`` from the command line: data of any make in, a model that answers out."""

import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from copy import deepcopy

import pytest
import torch
import yaml
from datasets import Dataset, DatasetDict, Value
from PIL import Image
from toy import SPECIAL_TOKENS
from transformers import AutoModelForSequenceClassification, BertForSequenceClassification, ViTImageProcessor, set_seed

from hf_lwal import AutoModelForLwALClassification
from hf_lwal.cli.main import build_parser, main
from hf_lwal.cli.train import build_trainer, control_values, default_output
from hf_lwal.cli.train_data import choose_columns, load_rows, prepare_rows, validation_indices
from hf_lwal.cli.train_flags import build_arguments, training_values
from hf_lwal.cli.train_model import Job, choose_start
from hf_lwal.data import load_embedded
from hf_lwal.errors import CommandError
from hf_lwal.metrics import expected_calibration_error
from hf_lwal.training.checkpoints import last_complete_checkpoint

NUM_LABELS = 4
NAMES = [f"intent {label}" for label in range(NUM_LABELS)]


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory):
    """Reading data files writes a cache; keep it out of the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def sentences(rows, offset=0):
    """Sentences with the keyword of their label among fillers."""
    labels = [row % NUM_LABELS for row in range(offset, offset + rows)]
    texts = [f"word{row % 9} key{label} key{label} word{row % 5}" for row, label in enumerate(labels)]
    return Dataset.from_dict({"text": texts, "intent": [NAMES[label] for label in labels]})


@pytest.fixture(scope="module")
def text_file(tmp_path_factory):
    """80 sentences in one CSV file: no validation and no test rows."""
    path = tmp_path_factory.mktemp("texts") / "my requests.csv"
    sentences(80).to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def bert_folder(tmp_path_factory, tiny_config, tokenizer):
    """A saved tiny BERT with its tokenizer."""
    set_seed(0)
    folder = tmp_path_factory.mktemp("bert")
    BertForSequenceClassification(tiny_config("bert", num_labels=7)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def words(data, model, output, *more):
    """A short training on the command line."""
    flags = {"data": data, "model": model, "output-dir": output, "per-device-train-batch-size": 8, "use-cpu": "true"}
    flags |= {"learning-rate": 3e-3}
    return ["train", *(f"--{name}={value}" for name, value in flags.items()), *more]


def run(argv):
    """Run a command line that succeeds; returns what it printed."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = main([str(word) for word in argv])
    assert code == 0, printed.getvalue()
    return printed.getvalue()


def last_line(capsys, start):
    """The error, one line after the progress bars of reading files."""
    error = capsys.readouterr().err
    line = error.splitlines()[-1]
    assert line.startswith(start)
    assert "Traceback" not in error
    return line


def results(folder):
    return json.loads((folder / "all_results.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def finished(text_file, bert_folder, tmp_path_factory):
    """Output folder and printed text of a training with its control."""
    output = tmp_path_factory.mktemp("finished") / "out"
    test = output.parent / "test.jsonl"
    sentences(20, offset=1).to_json(test)
    return output, run(words(text_file, bert_folder, output, "--control", f"--test-data={test}"))


def test_a_run_leaves_everything_a_user_needs(finished):
    output, printed = finished
    names = {path.name for path in output.iterdir()}
    assert names >= {"config.json", "model.safetensors", "label_table.json", "tokenizer.json", "README.md"}
    assert names >= {"curves.png", "all_results.json", "train.yaml", "trainer_state.json", "control"}
    assert not [name for name in names if name.endswith(".tmp")]
    with Image.open(output / "curves.png") as picture:
        assert min(picture.size) > 300
    assert "Note: no validation split: 8 of 80 training rows are set apart as one, 10 % of every label." in printed
    steps = [line.split() for line in printed.splitlines() if line.startswith("  hf-lwal ")]
    assert [step[1:3] for step in steps] == [[name, str(output)] for name in ("predict", "hierarchy", "fold")]
    for step in steps:
        assert build_parser().parse_args(step[1:]).model == str(output), "the advice is a command that exists"
    card = (output / "README.md").read_text(encoding="utf-8")
    assert {"split: validation", "split: test"} <= {line.strip() for line in card.splitlines()}
    assert "one-hot from class means" in card, "the control stands in the card"
    assert " % on the test rows" in card, "measured on the rows that chose nothing, as the model is"
    assert "Samples of the" not in card, "rows of a file are nobody else's business"
    assert str(output) not in card, "no path of this machine"
    log = json.loads((output / "trainer_state.json").read_text(encoding="utf-8"))
    assert [entry["step"] for entry in log["log_history"] if "eval_accuracy" in entry] == [9, 18, 27], "every epoch"


@pytest.fixture(scope="module")
def calibrated(text_file, bert_folder, tmp_path_factory):
    """Output folder and printed text of a training whose probabilities were calibrated."""
    output = tmp_path_factory.mktemp("calibrated") / "out"
    return output, run(words(text_file, bert_folder, output, "--calibrate", "--test-share=0.3", "--max-steps=12"))


def test_calibrated_probabilities_are_those_of_the_saved_model(calibrated, text_file, tokenizer):
    """A temperature that is fitted and reported, but not saved, would be of no use; nor one of other rows."""
    output, printed = calibrated
    found, temperature = results(output), results(output)["temperature"]
    newest = AutoModelForLwALClassification.from_pretrained(last_complete_checkpoint(output))
    saved = AutoModelForLwALClassification.from_pretrained(output)
    assert saved.label_table.scale.item() * temperature == pytest.approx(newest.label_table.scale.item(), rel=1e-5)
    assert abs(temperature - 1.0) > 1e-3
    rows = load_rows(str(text_file), test_share=0.3, seed=42)
    batch = tokenizer(rows.test["text"][:], padding=True, return_tensors="pt")
    with torch.no_grad():
        logits = saved.eval()(**batch).logits
    for factor, name in ((1.0, "test_calibration_error"), (temperature, "test_calibration_error_before")):
        error = expected_calibration_error((factor * logits).softmax(dim=1), rows.test["label"][:])
        assert found[name] == pytest.approx(error, abs=1e-4)
    assert "Calibrated on the validation rows, which also chose the checkpoint, with temperature" in printed
    assert " ECE  test accuracy" in printed
    assert yaml.safe_load((output / "train.yaml").read_text(encoding="utf-8"))["calibrate"] is True
    card = (output / "README.md").read_text(encoding="utf-8")
    assert f"one temperature, {temperature:.3g}, was fitted to the evaluation rows, which also chose these" in card
    assert "](reliability.png)" in card
    assert "| Expected calibration error before calibration |" in card
    with Image.open(output / "reliability.png") as picture:
        assert min(picture.size) > 300


def test_without_calibration_the_card_promises_nothing(finished):
    output, _ = finished
    card = (output / "README.md").read_text(encoding="utf-8")
    assert "they do not say how often it is right" in card
    assert "](reliability.png)" in card
    assert "eval_calibration_error" in results(output)
    assert "eval_calibration_error_before" not in results(output)


def test_a_model_of_the_command_line_can_say_none_of_these(text_file, bert_folder, tmp_path, capsys):
    """Radii could be measured in Python alone; they must be measured before the model is saved, and saved with it."""
    output = tmp_path / "out"
    printed = run(words(text_file, bert_folder, output, "--fit-rejection", "--max-steps=2", "--quiet"))
    next_step = next(line for line in printed.splitlines() if "hf-lwal predict" in line)
    assert next_step.endswith("--reject unknown")
    assert "Data: " not in printed, "--quiet leaves the introduction out"
    assert "validation accuracy" in printed, "and not the results"
    assert main(["predict", str(output), "key1 word3", "--reject", "unknown", "--threshold", "1e9", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["label"] == answer["nearest"]
    assert answer["rejection_score"] > 0


def test_a_model_that_cannot_be_measured_is_saved_all_the_same(text_file, bert_folder, tmp_path, monkeypatch):
    """A measurement that fails after hours of training must not take the model with it."""

    def fail(*_, **__):
        raise ValueError("There are no rows.")

    monkeypatch.setattr("hf_lwal.modeling.open_set.OpenSet.fit_rejection", fail)
    printed = run(words(text_file, bert_folder, tmp_path / "out", "--fit-rejection", "--max-steps=1"))
    assert "Not measured how far rows of a label lie from it: There are no rows." in printed
    assert "--reject" not in printed.partition("Next:")[2]
    assert (tmp_path / "out" / "model.safetensors").exists()


@pytest.mark.parametrize("flag", ["--calibrate", "--fit-rejection"])
def test_what_has_no_label_table_cannot_be_measured_for_it(flag, text_file, bert_folder, tmp_path, capsys):
    """It must be said before hours of training, not after."""
    flags = words(text_file, bert_folder, tmp_path / "out", flag, "--label-method=one_hot")
    assert main([str(word) for word in flags]) == 2
    line = last_line(capsys, "hf-lwal train: ")
    assert f"{flag} measures for a label table, which a model trained with label_method one_hot" in line
    assert not (tmp_path / "out" / "model.safetensors").exists()


def test_the_table_shows_what_the_saved_models_score(finished, tokenizer):
    """Numbers of another checkpoint than the saved one would be a promise that the model does not keep."""
    output, printed = finished
    test = sentences(20, offset=1)
    for folder, loader in (
        (output, AutoModelForLwALClassification),
        (output / "control", AutoModelForSequenceClassification),
    ):
        model = loader.from_pretrained(folder).eval()
        assert model.config.id2label == dict(enumerate(NAMES))
        with torch.no_grad():
            logits = model(**tokenizer(test["text"][:], padding=True, return_tensors="pt")).logits
        predicted = [model.config.id2label[int(row)] for row in logits.argmax(dim=1)]
        accuracy = sum(a == b for a, b in zip(predicted, test["intent"], strict=True)) / len(test)
        assert results(folder)["test_accuracy"] == pytest.approx(accuracy)
        assert accuracy > 0.9, "the toy task is easy"
    main_line, control_line = (
        line.split() for line in printed.splitlines() if line.startswith(("LwAL ", "one-hot from"))
    )
    assert float(main_line[4]) == pytest.approx(100 * results(output)["test_accuracy"], abs=0.06)
    assert float(control_line[-3]) == pytest.approx(100 * results(output / "control")["test_accuracy"], abs=0.06)
    assert results(output)["control_test_accuracy"] == results(output / "control")["test_accuracy"]


def test_the_control_differs_in_the_labels_only(finished):
    output, _ = finished
    state, control = (
        json.loads((folder / "trainer_state.json").read_text(encoding="utf-8"))
        for folder in (output, output / "control")
    )
    for name in ("max_steps", "num_train_epochs", "train_batch_size"):
        assert state[name] == control[name]
    assert any("start_samples" in entry for entry in control["log_history"]), "its head started from class means"
    values = control_values(
        {
            **{"output_dir": "out", "learning_rate": 1.0, "lwal_preset": "paper", "push_to_hub": True},
            "lwal_pooling": "mean",
        }
    )
    assert values == {
        "output_dir": os.path.join("out", "control"),
        "learning_rate": 1.0,
        "label_method": "one_hot",
        "lwal_init": "class_means",
        "lwal_pooling": "mean",
        "push_to_hub": False,
    }


def test_the_settings_file_trains_the_same_again(finished, tmp_path):
    """A settings file that forgets a flag would look like a record and be none."""
    output, _ = finished
    again = tmp_path / "again"
    run(["train", output / "train.yaml", f"--output-dir={again}"])
    first, second = results(output), results(again)
    assert second["train_loss"] == pytest.approx(first["train_loss"], rel=1e-6)
    assert second["test_accuracy"] == first["test_accuracy"]
    settings = yaml.safe_load((again / "train.yaml").read_text(encoding="utf-8"))
    assert os.path.abspath(settings["output_dir"]) == str(again), "the flag wins over the file"
    places = [settings[name] for name in ("data", "model", "test_data", "output_dir")]
    assert not any(map(os.path.isabs, places)), "the file is pushed with the model, and where things are is private"
    assert settings["control"] is True
    assert "hub_token" not in settings


def test_predict_answers_people_and_programs(finished, tmp_path):
    output, _ = finished
    lines = run(["predict", output, "word1 key2 key2", "--top-k", "2", "key3 word2 key3"]).splitlines()
    assert [line.split(",")[0].rsplit(" ", 1)[0] for line in lines] == ["intent 2", "intent 3"]
    assert lines[0].endswith("\tword1 key2 key2")
    file = tmp_path / "rows.csv"
    sentences(7).to_csv(file, index=False)
    records = [
        json.loads(line) for line in run(["predict", output, "--file", file, "--json", "--batch-size=3"]).splitlines()
    ]
    assert [record["label"] for record in records] == sentences(7)["intent"][:]
    assert [record["input"] for record in records] == sentences(7)["text"][:]
    assert all(0.0 < record["score"] <= 1.0 for record in records)
    plain = tmp_path / "rows.txt"
    plain.write_text("key1 key1\n\nkey0 key0\n", encoding="utf-8")
    assert [
        line.split(" 0.")[0].split(" 1.")[0] for line in run(["predict", output, "--file", plain]).splitlines()
    ] == [
        "intent 1",
        "intent 0",
    ]


def test_predict_takes_stock_classifiers_and_standard_input(finished, monkeypatch):
    output, _ = finished
    monkeypatch.setattr(sys, "stdin", io.StringIO("key2 key2 word3\n"))
    assert run(["predict", output / "control", "--file", "-"]).startswith("intent 2 ")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["no/model", "x"], "'no/model' could not be loaded as a folder or from the Hub"),
        (["{tmp_path}", "x"], "has no config.json"),
        (["{model}"], "Give what to classify: texts or paths after the model, or a file with --file."),
        (["{model}", "x", "--top-k=0"], "--top-k must be above 0, got 0."),
        (["{model}", "--file=nothing.csv"], "--file: there is no file 'nothing.csv'."),
        (["{model}", "--file={model}/label_table.json"], "--text-column"),
    ],
)
def test_mistakes_of_predict_are_one_sentence(flags, message, finished, tmp_path, capsys):
    output, _ = finished
    assert main(["predict", *(flag.format(tmp_path=tmp_path, model=output) for flag in flags)]) == 2
    assert message in last_line(capsys, "hf-lwal predict: ")


@pytest.mark.parametrize("ending", ["tsv", "json", "jsonl", "parquet", "folder"])
def test_every_kind_of_file_gives_the_same_rows(ending, tmp_path):
    expected = sentences(24)
    path = tmp_path / f"rows.{ending}"
    if ending == "tsv":
        expected.to_csv(path, index=False, sep="\t")
    elif ending == "parquet":
        expected.to_parquet(path)
    elif ending == "folder":
        path.mkdir()
        expected.to_parquet(path / "train.parquet")
        expected.select(range(8)).to_parquet(path / "validation.parquet")
    else:
        expected.to_json(path, lines=ending == "jsonl")
    rows = load_rows(str(path), seed=3)
    assert rows.names == NAMES
    found = sorted(rows.train["text"][:] + ([] if ending == "folder" else rows.validation["text"][:]))
    assert found == sorted(expected["text"][:])
    assert len(rows.notes) == (0 if ending == "folder" else 1)
    assert rows.test is None


def test_the_validation_share_is_that_of_every_label():
    labels = [0] * 50 + [1] * 20 + [2] * 2 + [3]
    chosen = validation_indices(labels, 0.1, seed=1)
    assert [sum(labels[row] == label for row in chosen) for label in range(4)] == [5, 2, 1, 0]
    assert chosen == validation_indices(labels, 0.1, seed=1)
    assert chosen != validation_indices(labels, 0.1, seed=2)
    assert [sum(labels[row] == label for row in validation_indices(labels, 0.99, 0)) for label in range(4)] == [
        49,
        19,
        1,
        0,
    ]


def test_sentence_pairs_are_read_as_pairs(tmp_path, tokenizer):
    """Half of a pair alone cannot be classified, and nothing would say so."""
    pairs = {"premise": ["key1 word1", "key2"] * 4, "hypothesis": ["key3", "key3 word2"] * 4, "label": ["a", "b"] * 4}
    Dataset.from_dict(pairs).to_json(tmp_path / "pairs.jsonl")
    rows = load_rows(str(tmp_path / "pairs.jsonl"))
    assert (rows.columns.input, rows.second) == ("premise", "hypothesis")
    ids = {tuple(entry) for entry in prepare_rows(rows.train, rows, tokenizer, None)["input_ids"][:]}
    assert ids == {
        tuple(tokenizer("key1 word1", "key3")["input_ids"]),
        tuple(tokenizer("key2", "key3 word2")["input_ids"]),
    }
    assert choose_columns(rows.train.features, "hypothesis", None, None)[1] is None, "a column of choice stands alone"


def test_rows_and_splits_that_cannot_be_used_are_left_out_and_named(tmp_path):
    train = Dataset.from_dict({"text": ["a", None, "c", "d", "e"], "label": ["x", "x", "y", "y", "x"]})
    withheld = Dataset.from_dict({"text": ["f", "g"], "label": [None, None]}, train.features)
    folder = tmp_path / "data"
    folder.mkdir()
    for name, rows in DatasetDict(train=train, validation=train, test=withheld).items():
        rows.to_parquet(folder / f"{name}.parquet")
    rows = load_rows(str(folder))
    assert rows.train["text"][:] == ["a", "c", "d", "e"]
    assert rows.test is None
    assert rows.notes == (
        "1 row of split 'train' without input is left out",
        "1 row of split 'validation' without input is left out",
        "split 'test' is left out: none of its rows has a label",
    )


def test_labels_are_matched_by_name_not_by_number(tmp_path):
    """Two image folders number their labels each for itself: a test folder without the first would be off by one."""
    picture = Image.new("RGB", (8, 8))
    for folder, names in (("train", "abc"), ("test", "bc")):
        for name in names:
            (tmp_path / folder / name).mkdir(parents=True)
            for number in range(2):
                picture.save(tmp_path / folder / name / f"{number}.png")
    rows = load_rows(str(tmp_path / "train"), test_data=str(tmp_path / "test"))
    assert rows.names == ["a", "b", "c"]
    assert sorted(rows.test["label"]) == [1, 1, 2, 2]
    assert rows.columns.kind == "image"


def test_a_folder_of_images_trains_without_a_named_model(tmp_path):
    """One folder per label, as people keep pictures; the small ConvNet and its processor come with the output."""
    splits = load_embedded("fashion_mnist")
    wanted = [row for row, label in enumerate(splits["train"]["label"]) if label < 3][:60]
    names = splits["train"].features["label"].names
    for number, row in enumerate(splits["train"].select(wanted)):
        folder = tmp_path / "pictures" / names[row["label"]].replace("/", "-")
        folder.mkdir(parents=True, exist_ok=True)
        row["image"].save(folder / f"{number}.png")
    output = tmp_path / "out"
    printed = run(
        ["train", f"--data={tmp_path / 'pictures'}", f"--output-dir={output}", "--max-steps=3", "--use-cpu=true"]
    )
    assert "small ConvNet from scratch, 28×28 pixels" in printed
    assert (output / "preprocessor_config.json").exists()
    some = sorted((tmp_path / "pictures").rglob("*.png"))[:2]
    lines = run(["predict", output, *some]).splitlines()
    assert [line.split("\t")[1] for line in lines] == [str(path) for path in some]
    assert len(run(["predict", output, tmp_path / "pictures", "--json"]).splitlines()) == 60
    assert main(["predict", str(output), "nothing.png"]) == 2


def test_big_images_need_a_model(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
        for number in range(2):
            Image.new("RGB", (80, 60)).save(tmp_path / name / f"{number}.png")
    rows = load_rows(str(tmp_path))
    with pytest.raises(CommandError, match="up to 80 pixels wide: give a pretrained image model with --model"):
        choose_start(None, rows)


def test_a_saved_image_model_is_fine_tuned(tmp_path, tiny_config):
    from transformers import ViTForImageClassification

    model, folder, output = tmp_path / "vit", tmp_path / "rows", tmp_path / "out"
    set_seed(0)
    ViTForImageClassification(tiny_config("vit")).save_pretrained(model)
    ViTImageProcessor(size={"height": 16, "width": 16}).save_pretrained(model)
    folder.mkdir()
    for split, rows in load_embedded("fashion_mnist").items():
        rows.select(range(40)).to_parquet(folder / f"{split}.parquet")
    printed = run(words(folder, model, output, "--max-steps=2"))
    assert "test accuracy" in printed
    assert "Model: " + str(model) in printed


# -- flags ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ("epoch", "epoch", True)),
        ({"eval_steps": 5}, ("steps", "steps", True)),
        ({"save_steps": 5}, ("steps", "steps", True)),
        ({"eval_strategy": "steps"}, ("steps", "steps", True)),
        ({"eval_strategy": "no"}, ("no", "epoch", False)),
        ({"save_strategy": "no"}, ("epoch", "no", False)),
        ({"eval_steps": 4, "save_steps": 6}, ("steps", "steps", False)),
        ({"eval_steps": 4, "save_steps": 8}, ("steps", "steps", True)),
    ],
)
def test_saving_keeps_step_with_evaluating(given, expected, tmp_path):
    """transformers refuses to load the best checkpoint where the two differ; a user should not have to know."""
    values = training_values(given, from_scratch=False)
    arguments = build_arguments({**values, "output_dir": str(tmp_path), "use_cpu": True})
    found = (arguments.eval_strategy.value, arguments.save_strategy.value, arguments.load_best_model_at_end)
    assert found == expected


def test_flags_win_over_the_file_and_the_file_over_defaults(text_file, bert_folder, tmp_path):
    settings = {
        "data": str(text_file),
        "model": str(bert_folder),
        "learning-rate": "1e-3",
        "weight_decay": 0.25,
        "lwal_offset": False,
        "bf16": False,
        "control": False,
        "use_cpu": True,
        "max_steps": 2,
        "lr_scheduler_kwargs": {},
    }
    (tmp_path / "settings.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    output = tmp_path / "out"
    run(["train", tmp_path / "settings.yaml", "--weight-decay", "0.5", f"--output_dir={output}", "--eval_strategy=no"])
    used = yaml.safe_load((output / "train.yaml").read_text(encoding="utf-8"))
    assert (used["weight_decay"], used["learning_rate"], used["lwal_offset"]) == (0.5, 1e-3, False)
    assert used["num_train_epochs"] == 3.0
    assert not AutoModelForLwALClassification.from_pretrained(output).config.offset


def test_the_default_output_folder_is_named_after_the_data():
    assert default_output("clinc150") == "lwal-clinc150"
    assert default_output("owner/name:part") == "lwal-name-part"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--data=nobody/nothing"], "Data set 'nobody/nothing' is neither embedded (clinc150, fashion_mnist)"),
        (["--data={tmp_path}/notes.docx"], "notes.docx' is not a data file; its name must end in .csv, .tsv, .json"),
        (["--data={tmp_path}/empty.csv"], "empty.csv' is empty."),
        (["--data={tmp_path}/broken.json"], "broken.json' could not be read as json: "),
        (["--data={tmp_path}/one.csv"], "Column 'label' has only one label, 'x': nothing to tell apart."),
        (["--data={tmp_path}/singles.csv"], "There is no validation split, and none can be made"),
        (["--text-column=body"], "--text-column: there is no column 'body'"),
        (["--text-column=number"], f"Column 'number' is of type {Value('int64')}, but texts or images are needed."),
        (["--pair-column=body"], "--pair-column: there is no column 'body'"),
        (["--label-column=topic"], "--label-column: there is no column 'topic'"),
        (["--model=nobody/nothing"], "--model: 'nobody/nothing' could not be loaded"),
        (["--model={tmp_path}"], "has no config.json; give one that holds a saved model."),
        (["--validation-share=1"], "--validation-share must be between 0 and 1, got 1.0."),
        (["--max-length=0"], "--max-length must be above 0, got 0."),
        (["--resume", "--overwrite"], "--resume continues and --overwrite starts anew: give one of them."),
        (["--output-dir={tmp_path}/file"], "cannot be one: it is a file."),
        (["--output-dir={tmp_path}"], "is not empty: add --resume to continue the training in it, --overwrite to"),
        (["--lwal-preset=best"], "best"),
        (["--lwal-scale=-3"], "lwal_scale is '-3', but it must be auto or a positive number."),
        (["--embedding-dim=wide"], "embedding_dim is 'wide', but it must be a whole number or a multiple like '10x'."),
        (["settings.txt"], "'settings.txt' is not understood: a YAML file (.yaml, .yml) comes first"),
    ],
)
def test_mistakes_are_one_sentence_and_leave_nothing(flags, message, bert_folder, tmp_path, capsys):
    (tmp_path / "file").touch()
    (tmp_path / "empty.csv").touch()
    (tmp_path / "notes.docx").write_text("text", encoding="utf-8")
    (tmp_path / "broken.json").write_text("{{{", encoding="utf-8")
    (tmp_path / "one.csv").write_text("text,label\na,x\nb,x\n", encoding="utf-8")
    (tmp_path / "singles.csv").write_text("text,label\na,x\nb,y\n", encoding="utf-8")
    (tmp_path / "rows.csv").write_text("text,number,label\n" + "a,1,x\nb,2,y\n" * 4, encoding="utf-8")
    before = sorted(path.name for path in tmp_path.iterdir())
    argv = words(tmp_path / "rows.csv", bert_folder, tmp_path / "out", *flags)
    assert main([str(word).format(tmp_path=tmp_path) for word in argv]) == 2
    assert message in last_line(capsys, "hf-lwal train: ")
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == before, "nothing is written before the input is understood"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("lerning_rate: 3", "unrecognized arguments: --lerning-rate=3: did you mean --learning-rate?"),
        ("max_steps: many", "argument --max_steps/--max-steps: invalid int value: 'many'"),
        ("- a", "must hold one `flag: value` per line, but it holds a list."),
        ("a: [", "could not be read: "),
    ],
)
def test_mistakes_in_a_settings_file_are_found(settings, message, tmp_path, capsys):
    (tmp_path / "settings.yaml").write_text(settings, encoding="utf-8")
    with pytest.raises(SystemExit) as exit_info:
        main(["train", str(tmp_path / "settings.yaml"), "--data=clinc150"])
    assert exit_info.value.code == 2
    assert message in capsys.readouterr().err


# -- interruption -----------------------------------------------------------------------------------------------------


def test_overwriting_starts_anew_without_the_old_checkpoints(finished, tmp_path, text_file, bert_folder):
    """A later --resume would continue from a checkpoint of the training that was overwritten."""
    output = tmp_path / "out"
    shutil.copytree(finished[0], output)
    assert last_complete_checkpoint(output).endswith("-27")
    (output / "notes.txt").write_text("mine", encoding="utf-8")
    run(words(text_file, bert_folder, output, "--overwrite", "--max-steps=2"))
    assert last_complete_checkpoint(output).endswith("-2")
    assert (output / "notes.txt").exists(), "nothing but checkpoints is deleted"


def test_a_finished_training_can_be_resumed(finished, tmp_path, text_file, bert_folder):
    output = tmp_path / "out"
    shutil.copytree(finished[0], output)
    printed = run(words(text_file, bert_folder, output, "--resume"))
    assert "Continuing from" in printed
    assert results(output)["eval_accuracy"] == results(finished[0])["eval_accuracy"]


@pytest.mark.slow
def test_a_killed_training_resumes_to_the_same_model(text_file, bert_folder, tmp_path):
    """SIGKILL in the middle, then --resume: the same weights as a run that nobody disturbed."""
    flags = ("--num-train-epochs=3", "--save-steps=4", "--logging-steps=100")
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    run(words(text_file, bert_folder, whole, *flags))
    argv = [sys.executable, "-m", "hf_lwal.cli.main", *map(str, words(text_file, bert_folder, killed, *flags))]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_DATASETS_CACHE": str(tmp_path / "cache")}
    process = subprocess.Popen(argv, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 120
        while last_complete_checkpoint(killed) is None and process.poll() is None and time.monotonic() < end:
            time.sleep(0.005)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not (killed / "all_results.json").exists(), "it was killed before its end"
    assert "Continuing from" in run(words(text_file, bert_folder, killed, *flags, "--resume"))
    models = [AutoModelForLwALClassification.from_pretrained(folder) for folder in (whole, killed)]
    for (name, first), second in zip(models[0].state_dict().items(), models[1].state_dict().values(), strict=True):
        assert torch.equal(first, second), name


def test_resuming_before_the_first_checkpoint_starts_anew(text_file, bert_folder, tmp_path):
    """A job that a cluster restarts always says --resume, the first time too."""
    printed = run(words(text_file, bert_folder, tmp_path / "out", "--resume", "--max-steps=2"))
    assert "No checkpoint in" in printed


@pytest.mark.slow
def test_a_real_process_trains_on_embedded_data(tmp_path):
    """As users start it: a process of its own, nothing but the name of the data."""
    argv = ["train", "--data", "fashion_mnist", "--max-steps", "2", "--use-cpu", "true"]
    done = subprocess.run(
        [sys.executable, "-m", "hf_lwal.cli.main", *argv],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "10 labels in 'label'" in done.stdout
    assert "Rows: 1,800 to train, 200 to choose the checkpoint, 1,000 to measure." in done.stdout
    assert (tmp_path / "lwal-fashion-mnist" / "label_table.json").exists()


def test_texts_have_a_default_model():
    rows = load_rows("clinc150")
    start = choose_start(None, rows)
    assert (len(rows.train), len(rows.validation), len(rows.test), len(rows.names)) == (15000, 3000, 4500, 150)
    assert start.base == "sentence-transformers/all-MiniLM-L6-v2"
    assert start.processing_class.model_max_length == 512


def test_a_language_model_without_padding_gets_some(tmp_path, tiny_config, tokenizer, text_file):
    """Llama has no padding token: batches of more than one row would be refused."""
    from transformers import LlamaForSequenceClassification, PreTrainedTokenizerFast

    folder = tmp_path / "llama"
    set_seed(0)
    LlamaForSequenceClassification(tiny_config("llama", pad_token_id=None, num_labels=2)).save_pretrained(folder)
    backend = deepcopy(tokenizer.backend_tokenizer)
    backend.no_padding()  # it remembers that another test has padded
    bare = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=SPECIAL_TOKENS[3])
    bare.save_pretrained(folder)
    run(words(text_file, folder, tmp_path / "out", "--max-steps=2"))
    saved = AutoModelForLwALClassification.from_pretrained(tmp_path / "out")
    assert saved.config.pad_token_id == bare.eos_token_id


def test_running_out_of_memory_says_what_to_do(text_file, bert_folder, tmp_path, monkeypatch, capsys):
    def exhausted(*args, **kwargs):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("hf_lwal.training.trainer.LwALTrainer.training_step", exhausted)
    assert main([str(word) for word in words(text_file, bert_folder, tmp_path / "out")]) == 2
    assert "halve it and double --gradient-accumulation-steps" in capsys.readouterr().err


def test_an_interruption_says_how_to_go_on(text_file, bert_folder, tmp_path, monkeypatch, capsys):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("hf_lwal.training.trainer.LwALTrainer.training_step", interrupted)
    assert main([str(word) for word in words(text_file, bert_folder, tmp_path / "out")]) == 130
    assert f"hf-lwal train {tmp_path / 'out'}/train.yaml --resume" in capsys.readouterr().out


def test_the_trainer_is_the_documented_one(bert_folder, text_file, tmp_path):
    """The command adds defaults and nothing else: one may go on in Python from its pieces."""
    from hf_lwal import LwALTrainer

    rows = load_rows(str(text_file))
    values = training_values({"max_steps": 1, "use_cpu": True}, from_scratch=False) | {
        "output_dir": str(tmp_path / "o")
    }
    job = Job("my", rows, choose_start(str(bert_folder), rows), values, embedding_dim="2x", max_length=4, resume=False)
    trainer = build_trainer(job, values)
    assert type(trainer) is LwALTrainer
    assert trainer.model.config.embedding_dim == 8
    assert max(map(len, trainer.train_dataset["input_ids"])) == 4
    lengths = [len(ids) for ids in trainer.eval_dataset["input_ids"]]
    assert lengths == sorted(lengths)
