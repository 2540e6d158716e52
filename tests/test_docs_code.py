"""The code of README and of the pages about serving and questions runs as it stands, and does what the page says."""

import csv
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value
from releases import exports_onnx
from tiny_models import tiny_config
from torch.utils.data import DataLoader
from toy import separable_text, word_tokenizer
from transformers import BertForSequenceClassification

from hf_lwal import AutoModelForLwALClassification, LwALTrainer, LwALTrainingArguments
from hf_lwal.cli.main import CODES, main

PROJECT = Path(__file__).parents[1]
DOCS = PROJECT / "docs"
LABELS = 4
SENTENCES = [f"key{i % LABELS} word1 key{i % LABELS}" for i in range(12)]


def blocks(page):
    """The Python code of a page, block by block, in order."""
    return re.findall(r"^```python\n(.*?)^```$", (DOCS / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def bash(page):
    """The lines of the commands of a page."""
    found = re.findall(r"^```bash\n(.*?)^```$", (DOCS / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return "".join(found).splitlines()


def run(page, names, having=""):
    """Run the blocks of ``page`` that contain ``having`` one after the other, in one namespace."""
    chosen = [block for block in blocks(page) if having in block]
    assert chosen, f"{page} has no code with {having!r}"
    for block in chosen:
        exec(compile(block, page, "exec"), names)
    return names


class Application:
    """What a page needs of FastAPI: decorators that leave the handlers functions."""

    def post(self, path):
        return lambda handler: handler

    put = post


class HTTPException(Exception):
    """FastAPI's, for where it is not installed."""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a model in ``out/best``."""
    folder = tmp_path_factory.mktemp("place")
    names = {i: f"label_{i}" for i in range(LABELS)}
    torch.manual_seed(0)
    model = AutoModelForLwALClassification.from_config(tiny_config("bert", id2label=names))
    model.initialize_labels(DataLoader(separable_text(LABELS, 64).with_format("torch"), batch_size=16), progress=False)
    model.save_pretrained(folder / "out" / "best")
    word_tokenizer().save_pretrained(folder / "out" / "best")
    return folder


@pytest.fixture
def here(place, monkeypatch):
    """That folder as the working folder, and as many threads as before."""
    threads = torch.get_num_threads()
    monkeypatch.chdir(place)
    yield place
    torch.set_num_threads(threads)


@exports_onnx
def test_the_page_on_serving_runs_and_every_way_answers_alike(here, monkeypatch):
    """A snippet that has rotted, or a way of serving that gives other labels than predict, would show nowhere else."""
    pytest.importorskip("onnxruntime")
    fastapi = SimpleNamespace(FastAPI=Application, HTTPException=HTTPException)
    monkeypatch.setitem(sys.modules, "fastapi", fastapi)
    texts = [*SENTENCES, *[None] * 600]  # two pieces, the last of them without any text
    rows = {"key": [f"k{i}" for i in range(len(texts))], "body": texts}
    Dataset.from_dict(rows).to_parquet("rows.parquet")
    Path("sentences.txt").write_text("\n".join(SENTENCES), encoding="utf-8")
    (fold,) = [line for line in bash("serving.md") if line.startswith("hf-lwal fold")]
    assert main(fold.split()[1:]) == 0
    names = run(
        "serving.md",
        {"validation_texts": SENTENCES, "validation_labels": [i % LABELS for i in range(12)]},
    )
    model = names["model"]
    expected = [best["label"] for (best,) in model.predict(SENTENCES, word_tokenizer())]
    assert len(set(expected)) > 1, "a model that gives one label to all would agree with anything"
    assert [[len(row) for row in rows] for rows in names["answers"]] == [[1], [1, 1]]
    assert names["labels"]([]) == []
    assert [row["label"] for row in names["labels"](SENTENCES)] == expected
    assert [row["label"] for row in names["classify"](SENTENCES)] == expected
    assert [row["label"] for row in names["classify_stock"](SENTENCES)] == expected
    assert "lwal" not in type(names["classify_stock"].model).__module__
    assert names["answer_without_torch"](SENTENCES) == expected
    assert [row["nearest"] for row in names["answer_or_refuse"](SENTENCES)] == expected
    with open("answers.csv", newline="", encoding="utf-8") as file:
        assert [(row["key"], row["label"]) for row in csv.DictReader(file)] == [
            (f"k{i}", label) for i, label in enumerate(expected)
        ]
    assert names["add"]("new", ["word6 word3 word6"]) == {"id": LABELS}
    with pytest.raises(HTTPException, match="already a label 'new'"):
        names["add"]("new", ["word6"])
    assert names["labels"](["word6 word3 word6"])[0]["label"] == "new"


def test_the_folding_of_the_page_on_deployment_gives_the_same_labels(here):
    """The first code of the page had a name that nothing imports, and a tokenizer that the folder lacked."""
    model, tokenizer = AutoModelForLwALClassification.from_pretrained("out/best"), word_tokenizer()
    batch = dict(tokenizer(SENTENCES, return_tensors="pt"))
    names = run("deployment.md", {"model": model, "tokenizer": tokenizer, "dataloader": [batch]}, "stock, report =")
    names = run("deployment.md", names, "model.fold()")
    expected = [best["label"] for (best,) in model.predict(SENTENCES, tokenizer)]
    assert [row["label"] for row in names["classify"](SENTENCES)] == expected
    assert type(names["classify"].model) is type(names["stock"]) is BertForSequenceClassification
    assert "12 given" in str(names["report"])


def test_the_temperature_of_the_page_on_questions_calibrates_what_is_saved(here, tmp_path):
    """A temperature that is multiplied where it should divide makes probabilities worse, without an error."""
    rows = separable_text(LABELS, 64, seed=5)
    generator = np.random.default_rng(0)
    wrong = [int(label) if generator.random() < 0.6 else int(generator.integers(LABELS)) for label in rows["labels"]]
    validation = rows.remove_columns("labels").add_column("labels", wrong)
    model = AutoModelForLwALClassification.from_pretrained("out/best")
    arguments = LwALTrainingArguments(str(tmp_path), report_to="none", use_cpu=True, disable_tqdm=True)
    trainer = LwALTrainer(model, arguments, eval_dataset=validation)
    before = trainer.predict(validation)
    names = run("questions.md", {"trainer": trainer, "model": model, "validation": validation}, "calibrate(")
    calibrated = AutoModelForLwALClassification.from_pretrained("out/calibrated")
    after = LwALTrainer(calibrated, arguments, eval_dataset=validation).predict(validation)
    np.testing.assert_allclose(after.predictions, before.predictions / names["temperature"], rtol=1e-4, atol=1e-4)
    assert (after.predictions.argmax(axis=1) == before.predictions.argmax(axis=1)).all()
    assert after.metrics["test_loss"] < before.metrics["test_loss"]


def test_the_loop_and_the_freezing_of_the_page_on_questions_train_what_they_say(here):
    """Freezing by a name that does not exist freezes nothing, and a start that is missed leaves an empty table."""
    model = AutoModelForLwALClassification.from_config(tiny_config("bert", num_labels=LABELS))
    run("questions.md", {"model": model}, "requires_grad")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    loader = DataLoader(separable_text(LABELS, 32).with_format("torch"), batch_size=16)
    run("questions.md", {"torch": torch, "model": model, "dataloader": loader}, "initialize_labels")
    moved = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert not {name for name in moved if name.startswith("encoder.bert")}
    assert {"encoder.classifier.weight", "classifier.label_vectors", "classifier.counts"} <= moved


NEWS = ["World", "Sports", "Business", "Sci/Tech"]


def news(rows):
    """Sentences with the keyword of their label, and the labels of the data set that README names."""
    labels = [i % LABELS for i in range(rows)]
    texts = [f"key{label} word{i % 7} key{label} word{i % 5}" for i, label in enumerate(labels)]
    return Dataset.from_dict(
        {"text": texts, "label": labels}, features=Features({"text": Value("string"), "label": ClassLabel(names=NEWS)})
    )


def test_the_code_of_the_readme_trains_pushes_and_changes_labels(tmp_path, monkeypatch):
    """The first code that anybody copies must not rot: only data, weights and the Hub are stand-ins."""
    AutoModelForLwALClassification.from_config(tiny_config("bert", num_labels=2)).base_model.save_pretrained(tmp_path)
    word_tokenizer().save_pretrained(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("datasets.load_dataset", lambda _: DatasetDict(train=news(640), test=news(40)))
    pushed = []
    monkeypatch.setattr(LwALTrainer, "push_to_hub", lambda trainer: pushed.append(trainer.model.config.num_labels))
    code = "\n".join(blocks("../README.md"))
    for name, here in (
        ("sentence-transformers/all-MiniLM-L6-v2", tmp_path.as_posix()),
        ("max_steps=100", "max_steps=30"),
    ):
        assert code.count(name) == 1
        code = code.replace(name, here)
    names = {}
    exec(compile(code, "README.md", "exec"), names)
    assert pushed == [LABELS], "pushed before its labels were changed"
    assert (
        names["trainer"].evaluate(names["data"]["test"].filter(lambda row: row["label"] < 2))["eval_accuracy"] == 1.0
    )
    assert [names["model"].config.id2label[i] for i in range(4)] == ["World", "Sports", "Economy", "Space"]


def test_the_exit_codes_of_both_pages_are_the_same_ones():
    """Two tables of the same codes would drift apart."""
    codes = [
        re.findall(r"^\| ([\d, ]+) \|", (DOCS / page).read_text(encoding="utf-8"), re.MULTILINE)
        for page in ("questions.md", "command_line.md")
    ]
    assert codes[0] == codes[1] == ["0", "1", "2", "130, 143"]
    assert re.findall(r"\d+", CODES) == re.findall(r"\d+", " ".join(codes[0])), "and those of hf-lwal --help"


LIVING = ["pto_balance", "fun_fact", "change_language", "change_accent"]


@pytest.fixture
def living(here):
    """A model, its tokenizer and rows, with the labels that the pages name."""
    names = dict(enumerate(LIVING))
    model = AutoModelForLwALClassification.from_pretrained("out/best", id2label=names, label2id=None)
    model.initialize_labels(DataLoader(separable_text(LABELS, 64).with_format("torch"), batch_size=16), progress=False)
    labels = [i % LABELS for i in range(len(SENTENCES))]
    rows = {"validation_texts": SENTENCES, "validation_labels": labels, "texts": SENTENCES, "labels": labels}
    given = {"model": model, "tokenizer": word_tokenizer(), "id2label": names, "label2id": None, **rows}
    return {**given, "LwALTrainingArguments": LwALTrainingArguments, "name": "out/best"}


def test_the_code_of_the_page_on_the_label_table_edits_and_draws(living):
    """Six names of methods and two of functions: a renamed one would be found by a reader first."""
    pytest.importorskip("matplotlib")
    names = run("label_table.md", living, "plot_dendrogram")
    assert all(Path(picture).stat().st_size for picture in ("hierarchy.png", "distances.png"))
    model, left = names["model"], ["parental_leave", "vacation_balance", "change_speech"]
    dataset = Dataset.from_dict({"label": [0]}, features=Features({"label": ClassLabel(names=left)}))
    run("label_table.md", {**names, "dataset": dataset}, "merge_labels")
    assert [model.config.id2label[i] for i in range(3)] == left
    run("label_table.md", {**names, "validation_labels": [0, 1, 2] * 4}, "fit_rejection")
    assert model.label_table.rejection_radii.min() > 0


def test_the_code_of_the_page_on_the_label_table_starts_from_names(living):
    """The dots of a page stand for the settings that a reader has; the rest of the line is code."""
    loader = DataLoader(separable_text(LABELS, 32).with_format("torch"), batch_size=16)
    (block,) = [block for block in blocks("label_table.md") if "initialize_labels_from_names" in block]
    exec(block.replace("(..., ", '("out", '), {**living, "dataloader": loader})
    assert living["model"].config.id2label[LABELS] == "card_arrival"
    assert living["model"].label_table.counts[:LABELS].min() >= 8
    (block,) = blocks("long_tail.md")
    exec(block.replace("(..., ", '("out", '), living)
    assert living["args"].lwal_prior == "train"


def test_the_code_of_the_pages_on_calibration_and_wrong_labels_runs(living):
    """One changes probabilities and no label, the other ranks all rows."""
    model, tokenizer = living["model"], living["tokenizer"]
    before = [best["label"] for (best,) in model.predict(SENTENCES, tokenizer)]
    run("calibration.md", living)
    assert [best["label"] for (best,) in model.predict(SENTENCES, tokenizer)] == before
    table = run("audit.md", living)["table"]
    assert list(table) == ["row", "label", "likelier", "margin", "wrong", "suspicious"]
    assert sorted(table.row) == list(range(len(SENTENCES)))


def test_the_code_of_the_page_on_the_hub_pulls_what_was_saved(living, monkeypatch):
    """What is pushed goes through the tests of the Hub; here the calls of the page are made."""
    pushed, model = [], living["model"]
    monkeypatch.setattr(type(model), "push_to_hub", lambda *_, **__: pushed.append("model"))
    tokenizer = SimpleNamespace(push_to_hub=lambda *_: pushed.append("tokenizer"))
    trainer = SimpleNamespace(push_to_hub=lambda: pushed.append("trainer"))
    saver = SimpleNamespace(
        push_to_hub=model.push_to_hub,
        save_pretrained=lambda folder, push_to_hub: model.save_pretrained(folder) or pushed.append(push_to_hub),
    )
    given = {"model": saver, "tokenizer": tokenizer, "trainer": trainer, "folder": "saved"}
    run("hub.md", given, "trainer.push_to_hub")
    assert pushed == ["model", "tokenizer", "trainer", True]
    word_tokenizer().save_pretrained("saved")
    names = {}
    for block in blocks("hub.md")[1:]:
        exec(block.replace("me/my-classifier", "saved"), names)
    assert names["AutoModelForSequenceClassification"].from_pretrained("saved").config.id2label[0] == "pto_balance"


def test_the_adapter_of_the_page_on_training_brings_its_label_table(living, tmp_path):
    """The page's two blocks are one story: what the first trains, the second loads."""
    peft = pytest.importorskip("peft")
    arguments = LwALTrainingArguments(str(tmp_path), max_steps=2, report_to="none", use_cpu=True, disable_tqdm=True)
    names = {**living, **vars(peft), "LwALTrainer": LwALTrainer, "arguments": arguments, "rows": separable_text(4, 64)}
    names["AutoModelForLwALClassification"] = AutoModelForLwALClassification
    first, second = blocks("training.md")
    exec(first.replace(", ...)", ", args=arguments, train_dataset=rows)"), names)
    names["trainer"].train()
    names["trainer"].model.save_pretrained(tmp_path / "adapter")
    living["model"].base_model.save_pretrained(tmp_path / "backbone")
    names |= {"backbone": str(tmp_path / "backbone"), "adapter": str(tmp_path / "adapter")}
    exec(second, names)
    table = names["model"].base_model.model.label_table
    assert table.counts.sum() > 0


def test_the_card_of_the_page_on_cards_is_written(living, tmp_path):
    """Every argument that the page shows is one that the method has, and is found in the card."""
    rows = separable_text(LABELS, 64)
    arguments = LwALTrainingArguments(str(tmp_path), max_steps=2, report_to="none", use_cpu=True, disable_tqdm=True)
    trainer = LwALTrainer(
        living["model"], arguments, train_dataset=rows, eval_dataset=rows, processing_class=living["tokenizer"]
    )
    trainer.train()
    trainer.evaluate()
    run("model_cards.md", {"trainer": trainer})
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    for said in ("clinc/clinc_oos", "CLINC150", "apache-2.0", "book a table for two", "0.918", "python train.py"):
        assert said in card or said.replace("0.918", "91.8") in card, said


@exports_onnx
def test_the_exports_of_the_page_on_deployment_are_written(living):
    """The ONNX of the page, from an example batch."""
    pytest.importorskip("onnxruntime")
    batch = dict(living["tokenizer"](SENTENCES, return_tensors="pt"))
    run("deployment.md", {**living, "stock": living["model"].fold(), "batch": batch}, "export_onnx")
    assert Path("stock/onnx/model.onnx").exists()


def test_the_sentence_transformer_of_the_page_on_deployment_answers(here):
    """A pooled model, whose names the page reads from what it serves."""
    pytest.importorskip("sentence_transformers")
    names = {i: f"label_{i}" for i in range(LABELS)}
    AutoModelForLwALClassification.from_pretrained("out/best").base_model.save_pretrained("encoder")
    model = AutoModelForLwALClassification.from_pretrained("encoder", id2label=names, pooling="mean")
    model.initialize_labels(DataLoader(separable_text(LABELS, 64).with_format("torch"), batch_size=16), progress=False)
    given = run(
        "deployment.md", {"stock": model.fold(), "tokenizer": word_tokenizer()}, "export_sentence_transformer("
    )
    given = run("deployment.md", given, "served")
    assert given["logits"].shape == (1, LABELS)
    assert given["names"] == [model.predict(["book me a table"], word_tokenizer())[0][0]["label"]]


def test_the_method_of_the_page_on_methods_trains_by_object_and_by_name(living, here, monkeypatch):
    """The file that readers copy, in the working folder as the page says."""
    file, use = blocks("methods.md")
    Path("my_methods.py").write_text(file, encoding="utf-8")
    settings = {"max_steps": 60, "learning_rate": 3e-3, "report_to": "none", "use_cpu": True, "disable_tqdm": True}
    monkeypatch.syspath_prepend(str(here))
    monkeypatch.setattr("sys.modules", {**sys.modules})
    train = separable_text(LABELS, 64)
    model = BertForSequenceClassification(tiny_config("bert", num_labels=LABELS))
    names = {**living, "LwALTrainer": LwALTrainer, "train": train, "model": model}
    names["args"] = LwALTrainingArguments("out", **settings)
    exec(file, names)
    by_object, by_name = use.splitlines()
    exec(by_object, names)
    names["trainer"].train()
    assert names["trainer"].evaluate(train)["eval_accuracy"] > 0.9
    exec(by_name, names)
    assert names["args"].label_method == "my_methods:SquaredError"
    named = LwALTrainer(model, LwALTrainingArguments("out", label_method="my_methods:SquaredError", **settings))
    assert type(named.label_objective).__name__ == "SquaredError"
