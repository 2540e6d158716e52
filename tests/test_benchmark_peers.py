"""SetFit in the comparison: the same rows and weights, its own training, and what each of its heads gives."""

import dataclasses

import pytest
import torch
from datasets import Dataset
from sklearn.linear_model import LogisticRegression
from test_pooling import sentence_encoder
from tiny_models import tiny_config

from hf_lwal.bench import peers
from hf_lwal.bench.grid import Grid
from hf_lwal.bench.methods import parse_method
from hf_lwal.bench.models import MODELS
from hf_lwal.bench.results import finished_keys, read_lines
from hf_lwal.bench.runner import run_grid
from hf_lwal.bench.summary import tables
from hf_lwal.errors import CommandError

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
    # 3 steps of 32 rows: twice as many texts are 6 steps of 16 pairs, fewer than there are
    assert {line["curve"][1][0] for line in lines} == {6}
    assert [line["samples"] for line in lines] == [2 * 16 * line["steps"] for line in lines]
    assert ["strength" in line for line in lines] == [False, True]
    body = SentenceTransformer(str(data_root / "encoder"))
    data = peers.load_data("trec", str(data_root), None, None, 4, 3)
    own = LogisticRegression().fit(body.encode(data.train["text"][:]), data.train["label"][:])
    accuracy = own.score(body.encode(data.test["text"][:]), data.test["label"][:])
    assert lines[0]["curve"][0] == [0, pytest.approx(accuracy, abs=1e-6)]
    assert [line["start_samples"] for line in lines] == [16, 16], "the first point of the curve is not free"
    (table,) = tables(lines, {})
    assert str(table.setting).startswith("trec, 4 rows per label, minilm_pooled")


def test_training_changes_the_vectors(data_root):
    pytest.importorskip("setfit")
    vectors = peers._trained("trec", str(data_root), None, None, (4, 3), str(data_root / "encoder"), 64, 3)
    assert (vectors.steps, vectors.samples) == (2, 64)
    assert [part.shape for part in vectors.after] == [part.shape for part in vectors.before]
    assert not torch.equal(vectors.before[1], vectors.after[1])


@pytest.mark.parametrize(("batch_size", "size", "steps"), [(8, 8, 2), (64, 64, 1), ("2x", 8, 2)])
def test_it_reads_twice_the_texts_of_the_others_whatever_the_batch(data_root, batch_size, size, steps):
    """With a fixed number of its own steps, large batches gave the others more texts, and small ones fewer."""
    pytest.importorskip("setfit")
    (cell,) = dataclasses.replace(GRID, batch_sizes=[batch_size], steps=steps, methods=["setfit"]).cells(
        str(data_root)
    )
    found = peers.run_peer(cell, str(data_root))
    assert found.facts["samples"] == 2 * 16 * found.facts["steps"]  # whole steps of 16 pairs
    assert 0 <= found.facts["samples"] - 2 * size * steps < 2 * 16
    assert found.curve[1][0] == -(-found.facts["samples"] // size)
    assert found.times.training + found.times.start == pytest.approx(found.times.whole)


def test_seeds_differ_where_all_take_the_same_rows(data_root):
    """One training under several seeds would have no spread, and look exact."""
    pytest.importorskip("setfit")
    one, other = (
        peers._trained("trec", str(data_root), 16, None, (None, 0), str(data_root / "encoder"), 64, seed)
        for seed in (1, 2)
    )
    assert torch.equal(one.before[0], other.before[0])
    assert not torch.equal(one.after[0], other.after[0])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"models": ["minilm", "minilm_first_token"]},
            "setfit needs a sentence encoder, which minilm_first_token is not",
        ),
        ({"steps": None, "epochs": 1, "evaluations": None}, "give the grid steps instead of epochs"),
        ({"from_config": True}, "setfit has pretrained weights only"),
        ({"methods": ["default", {"name": "mine", "peer": "fasttext"}]}, "Unknown peer 'fasttext'"),
        ({"methods": [{"name": "mine", "peer": "setfit", "peer_head": "deep"}]}, "with head 'deep'"),
    ],
)
def test_what_it_cannot_do_is_refused_before_anything_runs(data_root, change, says):
    with pytest.raises(CommandError, match=says):
        dataclasses.replace(GRID, **change).cells(str(data_root))


def test_label_vectors_that_it_does_not_have_are_not_waited_for():
    """With --structure every call trained it again."""
    lines = [{"key": method["name"], "settings": {"method": method}} for method in map(parse_method, GRID.methods)]
    assert finished_keys(lines, structure=True) == {"setfit", "setfit_tuned"}


def test_a_missing_library_names_the_install_command(data_root, monkeypatch):
    monkeypatch.setattr(peers, "find_spec", lambda name: None)
    (error,) = run_grid(GRID.cells(str(data_root))[:1], data_root / "results.jsonl", str(data_root))
    assert error.endswith('SetFit is not installed: pip install "hf-lwal[peers]".')
