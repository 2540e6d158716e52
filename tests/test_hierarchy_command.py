"""``hf-lwal hierarchy``: what it writes and prints is what the model or table says; mistakes are one sentence."""

import csv
import json

import numpy as np
import pytest
import torch
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value
from tiny_wordnet import write_wordnet
from transformers import AutoModelForSequenceClassification

from hf_lwal import AutoModelForLwALClassification
from hf_lwal.cli import main as cli
from hf_lwal.hierarchy import group_distances, label_distances
from hf_lwal.metrics import structure_correlation

NAMES = ["cat", "dog", "seal", "tool", "unicorn"]
GROUPS = {"cat": "animal", "dog": "animal", "seal": "animal", "tool": "thing", "unicorn": "thing"}
VECTORS = np.array([[0.0, 0.0], [0.0, 1.0], [2.0, 1.0], [9.0, 3.0], [8.0, 5.5]])
PICTURES = {"dendrogram.png", "distances.png", "map.png"}


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "table.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["label", "group", "x", "y"])
        writer.writerows([name, GROUPS[name], *row] for name, row in zip(NAMES, VECTORS, strict=True))
    return path


@pytest.fixture
def run(tmp_path, capsys):
    """Run the command; returns exit code, what it printed, and the JSON record."""

    def call(*words):
        output = tmp_path / "out"
        code = cli.main(["hierarchy", *map(str, words), "--output", str(output)])
        printed = capsys.readouterr()
        record = json.loads((output / "hierarchy.json").read_text()) if code == 0 else None
        return code, printed.out + printed.err, record

    return call


def test_a_table_with_groups(run, table, tmp_path):
    code, printed, record = run(table, "--reference", "groups", "--top-k", "2")
    assert code == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == PICTURES | {"nearest_labels.csv", "hierarchy.json"}
    expected = structure_correlation(label_distances(VECTORS), group_distances([GROUPS[name] for name in NAMES]))
    assert record["structure_correlation"] == pytest.approx(expected)
    assert f"Structure correlation: {expected:.3f}" in printed
    assert record["nearest"]["cat"] == pytest.approx({"dog": 1.0, "seal": 5**0.5})
    rows = list(csv.reader((tmp_path / "out" / "nearest_labels.csv").open()))
    assert rows[:2] == [["label", "rank", "nearest", "distance"], ["cat", "1", "dog", "1"]]
    assert len(rows) == 1 + 5 * 2
    assert "Closest: cat – dog (1)" in printed


def test_comparison_with_wordnet(run, table, tmp_path):
    folder = write_wordnet(tmp_path / "dict")
    senses = tmp_path / "senses.json"
    senses.write_text('{"seal": "seal.n.02"}')
    code, printed, record = run(table, "--reference", "wordnet", "--wordnet", folder, "--senses", senses)
    assert code == 0
    assert record["synsets"] == {
        **{name: f"{name}.n.01" for name in ("cat", "dog", "tool")},
        "seal": "seal.n.02",
        "unicorn": None,
    }
    # edges by hand: cat-dog 3, cat-seal 3, cat-tool 5, dog-seal 2, dog-tool 4, seal-tool 4
    reference = np.array([[0, 3, 3, 5], [3, 0, 2, 4], [3, 2, 0, 4], [5, 4, 4, 0]])
    expected = structure_correlation(label_distances(VECTORS[:4]), reference)
    assert record["structure_correlation"] == pytest.approx(expected)
    assert 0.0 <= record["mds_disparity"] <= 1.0
    assert "Not compared, since the reference does not know them: unicorn" in printed


@pytest.fixture
def data(tmp_path):
    """A local data set whose labels, in another order than the model's, belong to groups; with the toy's keywords."""
    names = NAMES[::-1]
    features = Features(
        {"text": Value("string"), "label": ClassLabel(names=names), "kind": ClassLabel(names=["animal", "thing"])}
    )
    rows = {
        "text": [f"key{NAMES.index(name)} word{i}" for name in names for i in range(4)],
        "label": [name for name in names for _ in range(4)],
        "kind": [GROUPS[name] for name in names for _ in range(4)],
    }
    folder = tmp_path / "data"
    DatasetDict({"train": Dataset.from_dict(rows, features=features)})["train"].to_parquet(folder / "train.parquet")
    return folder


def named(config):
    config.id2label = dict(enumerate(NAMES))
    config.label2id = {name: index for index, name in enumerate(NAMES)}
    return config


def test_a_model_with_a_label_table(run, tiny_config, tmp_path, data):
    """Labels never seen have no vector, and groups come by name: the data set numbers its labels otherwise."""
    torch.manual_seed(0)
    model = AutoModelForLwALClassification.from_config(named(tiny_config("bert", num_labels=5)), embedding_dim=5)
    with torch.no_grad():
        model.label_table.label_vectors.zero_()
        model.label_table.label_vectors[:, :2] = torch.tensor(VECTORS)
        model.label_table.counts[:] = torch.tensor([3, 3, 3, 3, 0])
    model.labels_are_current()
    model.save_pretrained(tmp_path / "model")
    code, printed, record = run(
        tmp_path / "model", "--dataset", data, "--group-column", "kind", "--reference", "groups"
    )
    assert code == 0, printed
    assert record["groups"] == {name: GROUPS[name] for name in NAMES[:4]}
    assert record["labels_without_vector"] == ["unicorn"]
    assert "Left out, since they have no vector: unicorn" in printed
    expected = structure_correlation(label_distances(VECTORS[:4]), group_distances(["a", "a", "a", "t"]))
    assert record["structure_correlation"] == pytest.approx(expected)


def test_a_stock_model_gets_class_means_in_its_own_order(run, tiny_config, tmp_path, data, tokenizer):
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_config(named(tiny_config("bert", num_labels=5))).eval()
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    code, printed, record = run(tmp_path / "model", "--dataset", data)
    assert code == 0, printed
    means = []
    for label in range(5):
        batch = tokenizer([f"key{label} word{i}" for i in range(4)], return_tensors="pt")
        with torch.no_grad():
            means.append(model.bert(**batch).pooler_output.mean(dim=0))
    distances = label_distances(torch.stack(means))
    for row, name in enumerate(NAMES):
        for other, far in record["nearest"][name].items():
            assert far == pytest.approx(distances[row, NAMES.index(other)], rel=1e-3)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["absent.csv"], "There is no file 'absent.csv'."),
        (["{table}", "--top-k", "0"], "--top-k must be above 0, got 0."),
        (["{table}", "--senses", "awa2"], "--wordnet and --senses belong to a comparison: add --reference wordnet."),
        (["{table}", "--group-column", "x"], "--group-column is a column of a data set: name it with --dataset."),
        (["{table}", "--reference", "wordnet", "--wordnet", "nowhere"], "there is no file or folder 'nowhere'"),
        (["{table}", "--reference", "wordnet", "--senses", "x"], "'x' are neither one of awa2"),
        (["{empty}"], "has no config.json; give one that holds a saved model"),
        (["{broken}"], "the row of 'b' does not hold 2 numbers."),
        (["{headless}"], "must start with a header whose first column is `label`"),
        (["{table}", "--dataset", "{data}", "--group-column", "topic"], "there is no other column 'topic'"),
    ],
)
def test_mistakes_are_one_sentence(run, table, tmp_path, data, words, message):
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.csv").write_text("label,x,y\na,1,2\nb,1\n")
    (tmp_path / "headless.csv").write_text("a,1,2\nb,1,3\n")
    places = {"table": table, "data": data, "empty": tmp_path / "empty"}
    places |= {name: tmp_path / f"{name}.csv" for name in ("broken", "headless")}
    code, printed, _ = run(*(word.format(**places) for word in words))
    assert code == 2
    assert message in printed
    assert not (tmp_path / "out").exists(), "nothing is written before the input was understood"


def test_a_stock_model_without_data_says_what_to_give(run, tiny_config, tmp_path):
    AutoModelForSequenceClassification.from_config(tiny_config("bert", num_labels=5)).save_pretrained(
        tmp_path / "model"
    )
    code, printed, _ = run(tmp_path / "model")
    assert code == 2
    assert "has no label table: name its training data with --dataset" in printed
