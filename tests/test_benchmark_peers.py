"""SetFit in the comparison: the same rows and weights, its own training, and what each of its heads gives."""

import dataclasses
import json

import pytest
import torch
from datasets import Dataset
from sklearn.linear_model import LogisticRegression
from test_pooling import sentence_encoder
from tiny_models import tiny_config

from hf_lwal.benchmark import peers
from hf_lwal.benchmark.grid import Grid
from hf_lwal.benchmark.models import MODELS
from hf_lwal.benchmark.results import read_lines
from hf_lwal.benchmark.runner import run_grid
from hf_lwal.benchmark.summary import tables

LABELS = ["ABBR", "DESC", "ENTY", "HUM"]
GRID = Grid(
    datasets=["trec"],
    models=["minilm_pooled"],
    methods=["setfit", "setfit_tuned", "frozen_regression"],
    seeds=[3],
    steps=3,
    evaluations=1,
    rows_per_label=4,
)


@pytest.fixture
def data_root(tmp_path, tokenizer, monkeypatch):
    """A folder with a data set of keywords, and a tiny sentence encoder in the place of MiniLM."""
    folder = tmp_path / "trec"
    folder.mkdir()
    for split, rows in (("train", 80), ("test", 40)):
        labels = [row % len(LABELS) for row in range(rows)]
        texts = [f"word{row % 9} key{label} key{label} word{row % 5}" for row, label in enumerate(labels)]
        columns = {"text": texts, "label": [LABELS[label] for label in labels]}
        Dataset.from_dict(columns).to_parquet(folder / f"{split}.parquet")
    pooling = {"pooling_mode": "mean", "embedding_dimension": tiny_config("bert").hidden_size}
    encoder = sentence_encoder(tmp_path / "encoder", pooling=pooling)
    tokenizer.save_pretrained(encoder)
    spec = MODELS["minilm_pooled"]
    monkeypatch.setitem(MODELS, "minilm_pooled", dataclasses.replace(spec, sentence_encoder=lambda: str(encoder)))
    peers._trained.cache_clear()
    return tmp_path


def test_a_run_has_both_heads_on_one_body(data_root, monkeypatch):
    pytest.importorskip("setfit")
    from sentence_transformers import SentenceTransformer

    cells = [cell for cell in GRID.cells(str(data_root)) if "peer" in cell.method]
    assert run_grid(cells, data_root / "results.jsonl", str(data_root)) == []
    lines = read_lines(data_root / "results.jsonl")
    assert peers._trained.cache_info().misses == 1, "trained once for both heads"
    assert [line["rows"] for line in lines] == [{"train": 16, "test": 40}] * 2
    # 4 rows of 4 labels: 24 pairs of one label and as many of two, 16 a step, and at most twice the grid's steps
    assert {line["curve"][1][0] for line in lines} <= {3, 4, 5, 6}
    body = SentenceTransformer(str(data_root / "encoder"))
    data = peers.load_data("trec", str(data_root), None, None, 4, 3)
    own = LogisticRegression().fit(body.encode(data.train["text"][:]), data.train["label"][:])
    accuracy = own.score(body.encode(data.test["text"][:]), data.test["label"][:])
    assert lines[0]["curve"][0] == [0, pytest.approx(accuracy, abs=1e-6)]
    (table,) = tables(lines, {})
    assert str(table.setting).startswith("trec, 4 rows per label, minilm_pooled")


def test_training_changes_the_vectors(data_root):
    pytest.importorskip("setfit")
    vectors = peers._trained("trec", str(data_root), None, None, (4, 3), "minilm_pooled", 2)
    assert vectors.steps == 2
    assert [part.shape for part in vectors.after] == [part.shape for part in vectors.before]
    assert not torch.equal(vectors.before[1], vectors.after[1])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"models": ["minilm_first_token"]}, "needs a sentence encoder, which minilm_first_token is not"),
        ({"steps": None, "epochs": 1, "evaluations": None}, "give the grid steps instead of epochs"),
        ({"methods": [{"name": "mine", "peer": "fasttext"}]}, "Unknown peer 'fasttext'"),
        ({"methods": [{"name": "mine", "peer": "setfit", "peer_head": "deep"}]}, "with head 'deep'"),
    ],
)
def test_what_it_cannot_do_is_said(data_root, change, says):
    pytest.importorskip("setfit")
    (cell, *_) = dataclasses.replace(GRID, **change).cells(str(data_root))
    (error,) = run_grid([cell], data_root / "results.jsonl", str(data_root))
    assert says in error
    assert says in json.loads((data_root / "results.jsonl").read_text())["error"]


def test_a_missing_library_names_the_install_command(data_root, monkeypatch):
    monkeypatch.setattr(peers, "find_spec", lambda name: None)
    (error,) = run_grid(GRID.cells(str(data_root))[:1], data_root / "results.jsonl", str(data_root))
    assert error.endswith('SetFit is not installed: pip install "hf-lwal[peers]".')
