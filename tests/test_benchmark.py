"""The runner: what is finished is never run again, what fails stops nothing, and a line says what really happened."""

import itertools
import json
import os
import subprocess
import time
from pathlib import Path

import pytest
import torch
from warm_python import warm_python

from hf_lwal.bench.datasets import load_data
from hf_lwal.bench.grid import Grid
from hf_lwal.bench.models import build_model, model_rows
from hf_lwal.bench.results import plan_path, read_lines
from hf_lwal.bench.runner import run_grid
from hf_lwal.bench.trainers import head_of
from hf_lwal.bench.training import build_trainer, run_cell
from hf_lwal.cli import main as cli

TINY = {
    "datasets": ["fashion_mnist"],
    "models": ["mlp"],
    "learning_rates": [1e-3],
    "steps": 6,
    "evaluations": 2,
    "train_rows": 120,
    "test_rows": 40,
}


def cell_of(method="one_hot", seed=1, **changes):
    (cell,) = Grid(**{**TINY, **changes}, methods=[method], seeds=[seed]).cells()
    return cell


def test_a_line_says_what_happened(tmp_path):
    output = tmp_path / "folder" / "results.jsonl"
    cell = cell_of("default")
    assert run_grid([cell], output) == []
    (record,) = read_lines(output)
    assert record["key"] == cell.key
    assert record["settings"] == cell.settings
    assert [step for step, _ in record["curve"]] == [0, 3, 6]
    assert all(0.0 <= accuracy <= 1.0 for _, accuracy in record["curve"])
    assert 0.0 < record["calibration_error"] < 1.0
    assert record["start_samples"] == 120  # 16 rows per class asked for, 12 there
    assert record["rows"] == {"train": 120, "test": 40}
    assert (record["labels"], record["batch_rows"], record["weights"]) == (10, 32, "random")
    seconds = record["seconds"]
    assert 0.0 < seconds["training"] + seconds["start"] < seconds["with_evaluation"]
    assert set(record["versions"]) == {"torch", "transformers", "hf_lwal"}
    assert record["machine"]["cores"] == os.cpu_count()
    assert sorted(path.name for path in output.parent.iterdir()) == ["results.jsonl", "results.plan.json"]


def test_the_seed_decides_everything():
    """Weights drawn before the seed is set would make every comparison of methods one of luck."""
    first, again, other = (run_cell(cell_of(seed=seed), None) for seed in (1, 1, 2))
    assert first["curve"] == again["curve"]
    assert first["curve"] != other["curve"]


def test_methods_start_from_the_same_backbone(tmp_path):
    rows = model_rows("mlp", "fashion_mnist", None, 120, 40, False)
    names = [str(label) for label in range(10)]
    weights = []
    for method in ("one_hot", "default"):
        model = build_model("mlp", rows, names, 1, False)
        trainer = build_trainer(cell_of(method), model, rows, 32, str(tmp_path))
        weights.append(next(getattr(trainer.model, "encoder", trainer.model).layers.parameters()).detach().clone())
    assert torch.equal(*weights)
    assert weights[0].abs().sum() > 0


def test_what_failed_is_noted_and_runs_again(tmp_path, capsys):
    output = tmp_path / "results.jsonl"
    bad = {"name": "bad", "label_method": "static_label", "label_static_model": str(tmp_path / "absent")}
    cells = [cell_of(bad), cell_of("one_hot")]
    (error,) = run_grid(cells, output)
    assert "fashion_mnist mlp bad" in error
    failed, finished = read_lines(output)
    assert "absent" in failed["error"]
    assert "curve" in finished
    assert len(run_grid(cells, output)) == 1
    assert [record["key"] for record in read_lines(output)] == [cells[0].key, cells[1].key, cells[0].key]


def test_dry_run_notes_the_plan_and_runs_nothing(tmp_path, capsys):
    output = tmp_path / "results.jsonl"
    words = ["--dataset", "fashion_mnist", "--model", "mlp", "--method", "one_hot", "default", "--seed", "1"]
    more = ["--steps", "3", "--output", str(output), "--dry-run"]
    assert cli.main(["compare", *words, *more]) == 0
    assert "2 of 2 trainings are missing" in capsys.readouterr().out
    assert not output.exists()
    assert len(json.loads(plan_path(output).read_text())) == 2


def test_methods_that_a_file_defines_are_chosen_by_name(tmp_path):
    output, grid = tmp_path / "results.jsonl", tmp_path / "grid.yaml"
    grid.write_text(
        "datasets: [fashion_mnist]\nmodels: [mlp]\nsteps: 3\nevaluations: 1\nseeds: [1]\nlearning_rates: [1.0e-3]\n"
        'methods: [one_hot, {name: "default, k 5", like: default, lwal_refresh_every: 5}]\n'
    )
    words = ["--grid", str(grid), "--method", "default, k 5", "default", "--output", str(output), "--dry-run"]
    assert cli.main(["compare", *words]) == 0
    methods = [settings["method"] for settings in json.loads(plan_path(output).read_text()).values()]
    assert methods == [
        {"name": "default, k 5", "lwal_preset": "default", "lwal_refresh_every": 5},
        {"name": "default", "lwal_preset": "default"},
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--preset", "far"], "Unknown preset 'far': choose one of fair, paper, peers."),
        (["--preset", "fair", "--grid", "x.yaml"], "both name a grid"),
        (["--dataset", "awa2", "--model", "mlp", "--steps", "1", "--method", "{"], "neither a name nor JSON"),
        (["--dataset", "mnist", "--model", "mlp", "--steps", "1", "--data-root", "/absent"], "no folder '/absent'"),
        (["--dataset", "mnist", "--model", "mlp", "--steps", "1", "--processes", "0"], "--processes must be above 0"),
        (["--dataset", "mnist", "--model", "mlp"], "counts in steps or in epochs"),
        (["--steps", "1"], "The grid has no datasets"),
    ],
)
def test_flags_that_make_no_sense(words, message, capsys):
    assert cli.main(["compare", *words]) == 2
    assert message in capsys.readouterr().err


def test_the_head_learns_faster_where_asked(tmp_path):
    rows = model_rows("mlp", "fashion_mnist", None, 120, 40, False)
    names = [str(label) for label in range(10)]
    for method, rate in (("one_hot_head10", 10.0), ({"name": "m", "like": "default", "head_rate": 3.0}, 3.0)):
        trainer = build_trainer(cell_of(method), build_model("mlp", rows, names, 1, False), rows, 32, str(tmp_path))
        groups = trainer.create_optimizer().param_groups
        rates = {id(parameter): group["lr"] for group in groups for parameter in group["params"]}
        head = {id(parameter) for parameter in head_of(trainer.core_model).parameters()}
        trained = [id(parameter) for parameter in trainer.model.parameters()]
        assert sum(len(group["params"]) for group in groups) == len(rates) == len(trained)
        for place in trained:
            assert rates[place] == pytest.approx(rate * 1e-3 if place in head else 1e-3)
        assert len(head) == 2


def test_the_length_of_label_vectors_can_be_chosen(tmp_path):
    rows = model_rows("mlp", "fashion_mnist", None, 120, 40, False)
    model = build_model("mlp", rows, [str(label) for label in range(10)], 1, False)
    method = {"name": "wide", "like": "paper:lwal", "embedding_dim": "5x"}
    trainer = build_trainer(cell_of(method), model, rows, 32, str(tmp_path))
    assert trainer.model.label_table.label_vectors.shape == (10, 50)
    trainer.train()
    assert trainer.model.label_table.label_vectors.shape == (10, 50)


def test_a_second_start_after_a_plain_end_runs_nothing(tmp_path, monkeypatch):
    output = tmp_path / "results.jsonl"
    run_grid([cell_of()], output)
    content = output.read_bytes()
    monkeypatch.setattr("hf_lwal.bench.training.run_cell", lambda *_: pytest.fail("ran again"))
    assert run_grid([cell_of()], output) == []
    assert output.read_bytes() == content


@pytest.mark.slow
def test_a_killed_run_resumes_without_redoing_finished_cells(tmp_path):
    """SIGKILL while the second training is under way, and a torn line on top, as a full disk leaves it."""
    output = tmp_path / "results.jsonl"
    grid = {**TINY, "steps": 100, "evaluations": 1}
    words = ["compare", "--dataset", "fashion_mnist", "--model", "mlp", "--method", "one_hot", "--seed", "1", "2", "3"]
    flags = ["--learning-rate", "1e-3", "--steps", "100", "--evaluations", "1", "--train-rows", "120"]
    command = [warm_python(), "-m", "hf_lwal.cli.main", *words, *flags, "--test-rows", "40", "--output", str(output)]
    source = str(Path(cli.__file__).parents[1])
    process = subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until = time.monotonic() + 120
        while not (output.exists() and output.read_bytes().endswith(b"\n")) and time.monotonic() < until:
            assert process.poll() is None
            time.sleep(0.005)
    finally:
        process.kill()
        process.wait()
    finished = output.read_bytes()
    cells = Grid(**grid, methods=["one_hot"], seeds=[1, 2, 3]).cells()
    assert 1 <= finished.count(b"\n") < len(cells)
    with output.open("ab") as stream:
        stream.write(b'{"key": "torn')
    assert run_grid(cells, output) == []
    assert output.read_bytes().startswith(finished)
    assert [record["key"] for record in read_lines(output)] == [cell.key for cell in cells]


def test_other_seeds_run_at_the_best_rate_of_the_first(tmp_path):
    output = tmp_path / "results.jsonl"
    words = ["compare", "--dataset", "fashion_mnist", "--model", "mlp", "--method", "one_hot", "default"]
    flags = ["--learning-rate", "1e-9", "1e-2", "--seed", "7", "8", "9", "--steps", "12", "--evaluations", "2"]
    command = [*words, *flags, "--train-rows", "120", "--test-rows", "40", "--tune-first", "--output", str(output)]
    assert cli.main(command) == 0
    records = read_lines(output)
    rates = {method: {} for method in ("one_hot", "default")}
    for record in records:
        settings = record["settings"]
        rates[settings["method"]["name"]].setdefault(settings["seed"], set()).add(settings["learning_rate"])
    best = {
        method: max(
            (one for one in records if one["settings"]["method"]["name"] == method and one["settings"]["seed"] == 7),
            key=lambda one: max(accuracy for _, accuracy in one["curve"][1:]),
        )["settings"]["learning_rate"]
        for method in rates
    }
    assert best["one_hot"] == 1e-2
    assert rates == {method: {7: {1e-9, 1e-2}, 8: {best[method]}, 9: {best[method]}} for method in rates}
    before = output.read_bytes()
    assert cli.main(command) == 0
    assert output.read_bytes() == before


@pytest.mark.slow
def test_two_processes_share_a_grid(tmp_path):
    output = tmp_path / "results.jsonl"
    cells = Grid(**TINY, methods=["one_hot", "default"], seeds=[1, 2]).cells()
    assert run_grid(cells, output, processes=2) == []
    records = {record["key"]: record for record in read_lines(output)}
    assert set(records) == {cell.key for cell in cells}
    assert records[cells[1].key]["curve"] == run_cell(cells[1], None)["curve"]
    assert {record["machine"]["threads"] for record in records.values()} == {max(1, os.cpu_count() // 2)}


def test_a_shortened_data_set_keeps_every_class_and_its_pictures():
    data = load_data("fashion_mnist", None, 120, 40)
    labels = data.train["label"][:]
    assert {labels.count(label) for label in range(10)} == {12}
    rows = model_rows("mlp", "fashion_mnist", None, 120, 40, False)
    assert rows.train["labels"][:] == labels
    assert rows.train[5]["pixel_values"].shape == (1, 28, 28)


def test_combinations_are_complete():
    cells = Grid(**TINY, methods=["one_hot", "default"], batch_sizes=[8, 16], seeds=[1, 2]).cells()
    found = {(cell.method["name"], cell.batch_size, cell.seed) for cell in cells}
    assert found == set(itertools.product(["one_hot", "default"], [8, 16], [1, 2]))
