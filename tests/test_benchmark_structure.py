"""The benchmark's measure of label vectors: equal to the library's own functions, kept for `hf-lwal hierarchy`."""

import csv
import math

import numpy as np
import pytest
from tiny_wordnet import write_wordnet

from hf_lwal.bench.grid import Grid
from hf_lwal.bench.report import structure_parts
from hf_lwal.bench.results import read_lines
from hf_lwal.bench.runner import run_grid, vectors_folder
from hf_lwal.bench.structure import measure_structure, wordnet_place
from hf_lwal.bench.summary import tables
from hf_lwal.cli import main as cli
from hf_lwal.hierarchy import group_distances, label_distances
from hf_lwal.metrics import structure_correlation

GROUPED = {
    "datasets": ["clinc150"],
    "models": ["minilm_frozen"],
    "learning_rates": [1e-2],
    "steps": 4,
    "evaluations": 1,
    "train_rows": 450,
    "test_rows": 150,
    "batch_sizes": [64],
}
METHODS = ["one_hot", "default", "label_embed"]


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Lines and tables of three methods, of which one has label vectors, one class means and one similarities."""
    output = tmp_path_factory.mktemp("structure") / "results.jsonl"
    cells = Grid(**GROUPED, methods=METHODS, seeds=[1]).cells()
    assert run_grid(cells, output, structure=True) == []
    return output, cells


def table_of(output, record):
    with (output.parent / record["structure"]["vectors"]).open(newline="") as file:
        header, *rows = csv.reader(file)
    assert header[:2] == ["label", "group"]
    return [row[0] for row in rows], [row[1] for row in rows], np.array([row[2:] for row in rows], dtype=float)


def test_correlations_follow_from_the_kept_vectors(measured):
    output, cells = measured
    records = read_lines(output)
    assert len(list(vectors_folder(output).iterdir())) == len(cells) == len(records)
    widths = []
    for record in records:
        names, groups, vectors = table_of(output, record)
        assert len(set(names)) == 150
        assert len(set(groups)) == 10
        widths.append(vectors.shape[1])
        for metric in ("euclidean", "cosine"):
            expected = structure_correlation(label_distances(vectors, metric), group_distances(groups))
            # Labels of label_embed lie nearly equally far after four steps: fewer digits than float32 has swap them.
            assert record["structure"]["correlation"][metric] == pytest.approx(expected, abs=1e-3)
    assert widths[0] == 768  # class means of the layer before the head
    assert widths[1] == 150  # D = C
    by_method = {record["settings"]["method"]["name"]: record["structure"] for record in records}
    assert by_method["default"]["correlation"]["euclidean"] > 0.1  # 0 by chance, 0.43 at most


def test_the_report_has_a_table_of_structure(measured):
    output, _ = measured
    (table,) = tables(read_lines(output), {})
    sentence, text = structure_parts(table)
    assert "known groups" in sentence
    assert "disparity" not in sentence + text
    default = next(line for line in text.splitlines() if line.startswith("| default"))
    record = next(one for one in read_lines(output) if one["settings"]["method"]["name"] == "default")
    assert f"{record['structure']['correlation']['euclidean']:.3f}" in default


def test_what_was_measured_is_not_run_again_and_what_was_not_is(measured, tmp_path):
    output, cells = measured
    before = output.read_bytes()
    assert run_grid(cells, output, structure=True) == []
    assert run_grid(cells, output) == []
    assert output.read_bytes() == before
    plain = tmp_path / "plain.jsonl"
    assert run_grid(cells[1:2], plain) == []
    assert run_grid(cells[1:2], plain, structure=True) == []
    first, second = read_lines(plain)
    assert "structure" not in first
    assert first["curve"] == second["curve"]
    (table,) = tables(read_lines(plain), {})
    assert [len(entry.runs) for entry in table.entries] == [1]


def test_kept_vectors_are_what_the_hierarchy_command_reads(measured, tmp_path, capsys):
    output, _ = measured
    record = read_lines(output)[1]
    vectors = str(output.parent / record["structure"]["vectors"])
    assert cli.main(["hierarchy", vectors, "--reference", "groups", "--output", str(tmp_path / "out")]) == 0
    assert f"{record['structure']['correlation']['euclidean']:.3f}" in capsys.readouterr().out
    assert (tmp_path / "out" / "dendrogram.png").stat().st_size > 0


def test_wordnet_has_disparities_and_missing_labels():
    places = np.array([[0.0], [1.0], [4.0], [9.0], [np.nan]])
    reference = label_distances(np.array([[0.0], [2.0], [5.0], [7.0], [1.0]]))
    found = measure_structure(places, reference, "wordnet")
    assert found["reference"] == "wordnet"
    assert found["correlation"]["euclidean"] == pytest.approx(
        structure_correlation(label_distances(places[:4]), reference[:4, :4]), abs=1e-6
    )
    assert 0.0 <= found["disparity"]["euclidean"] <= 1.0
    assert not math.isnan(found["largest"])


def test_without_a_reference_only_vectors_are_kept():
    assert measure_structure(np.eye(3), None, None) == {"reference": None}


def test_wordnet_under_the_data_root(tmp_path):
    assert wordnet_place(None) is None
    assert wordnet_place(str(tmp_path)) is None
    folder = write_wordnet(tmp_path / "wordnet")
    assert wordnet_place(str(tmp_path)) == folder
    (folder / "nouns.tar.xz").write_bytes(b"")
    assert wordnet_place(str(tmp_path)) == folder / "nouns.tar.xz"


def test_missing_wordnet_is_said_before_anything_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("nltk.data.path", [])
    words = ["compare", "--dataset", "fashion_mnist", "--model", "mlp", "--steps", "1", "--structure"]
    assert cli.main([*words, "--output", str(tmp_path / "results.jsonl")]) == 2
    assert "fashion_mnist with WordNet" in capsys.readouterr().err
    assert not (tmp_path / "results.jsonl").exists()
