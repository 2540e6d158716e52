"""Grids and files that people made, or a full disk: read right or refused in a sentence, never destroyed."""

import json

import pytest

from hf_lwal.bench.grid import Cell, Grid
from hf_lwal.bench.results import drop_torn_line, plan_path, read_lines, read_plan, write_plan
from hf_lwal.bench.summary import tables
from hf_lwal.bench.tuning import at_best_rate, first_seed
from hf_lwal.cli import main as cli
from hf_lwal.errors import CommandError
from hf_lwal.metrics.running_time import running_times


def cell(method="one_hot", rate=0.1, seed=1, dataset="toy"):
    return Cell(dataset, "hub", "mlp", {"name": method}, 32, rate, seed, 20, None, 2, "adam", None, None, False)


def record(one, accuracy=0.5):
    return {
        "key": one.key,
        "settings": one.settings,
        "curve": [[0, 0.1], [20, accuracy]],
        "f1_macro": 0.5,
        "seconds": {"training": 4.0, "with_evaluation": 9.0, "start": 1.0},
        "start_samples": 0,
        "rows": {"train": 10, "test": 10},
        "batch_rows": 32,
        "machine": {"device": "abacus"},
    }


def grid(dataset, rates, seeds):
    return [cell(rate=rate, seed=seed, dataset=dataset) for seed in seeds for rate in rates]


class TestTuneFirst:
    @pytest.mark.parametrize(
        "cells",
        [
            [*grid("a", [0.1, 0.2], [1, 2]), *grid("b", [0.1, 0.2], [3, 4])],
            [*grid("a", [0.1], [7]), *grid("b", [0.2], [8]), *grid("c", [0.1, 0.3], [7, 8, 9])],
            [*grid("a", [0.1], [1]), *grid("a", [0.2], [2])],
        ],
        ids=["other seeds", "one seed each", "other rates of one method"],
    )
    def test_every_grid_is_tuned_with_a_seed_of_its_own(self, cells):
        """With the first seed of the first grid, the trainings of all others never ran, and the command ended well."""
        tried = first_seed(cells)
        settings = {(one.dataset, one.learning_rate) for one in cells}
        assert sorted((one.dataset, one.learning_rate) for one in tried) == sorted(settings)
        rest = at_best_rate(cells, [record(one, one.learning_rate) for one in tried])
        best = {
            one.dataset: max(other.learning_rate for other in cells if other.dataset == one.dataset) for one in cells
        }
        wanted = {one.key for one in cells if one.learning_rate == best[one.dataset]} - {one.key for one in tried}
        assert {one.key for one in rest} == wanted

    def test_of_equal_rates_the_smaller_is_taken_wherever_it_stands(self):
        """The order of the flags, or of the lines of a file, would choose the rate that a table shows as tuned."""
        for rates in ([0.1, 0.2], [0.2, 0.1]):
            cells = grid("a", rates, [1, 2])
            assert {one.learning_rate for one in at_best_rate(cells, map(record, first_seed(cells)))} == {0.1}
            (table,) = tables(map(record, cells), {})
            assert table.tuned("one_hot").learning_rate == 0.1


TINY = ["compare", "--dataset", "fashion_mnist", "--model", "mlp", "--method", "one_hot", "--steps", "3", "--dry-run"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--train-rows", "0"], "train_rows must be a whole number above 0, got 0"),
        (["--test-rows", "0"], "test_rows must be a whole number above 0, got 0"),
        (["--evaluations", "0"], "evaluations must be a whole number above 0, got 0"),
        (["--optimizer", ""], "Unknown optimizer ''"),
        (["--seed", "-1"], "A seed must be a whole number from 0 to 4294967295, got -1"),
    ],
)
def test_a_setting_of_nothing_is_refused(words, message, tmp_path, capsys):
    """`--train-rows 0` was taken for "not given", and trained on all rows."""
    assert cli.main([*TINY, *words, "--output", str(tmp_path / "results.jsonl")]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("grids", ["fair", "null", "[]", "[fair]", "{datasets: [mnist]}", "3"])
def test_grids_that_are_no_list_of_grids(grids, tmp_path, capsys):
    (tmp_path / "grid.yaml").write_text(f"steps: 3\ngrids: {grids}\n")
    assert cli.main(["compare", "--grid", str(tmp_path / "grid.yaml"), "--output", str(tmp_path / "new.jsonl")]) == 2
    assert "must be a list of grids, each with `setting: value` lines" in capsys.readouterr().err


@pytest.mark.parametrize(
    "setting", ["steps: yes", "seeds: [yes]", "seeds: [1.5]", "seeds: [a]", "train_rows: 0", "test_rows: true"]
)
def test_numbers_of_a_grid_are_numbers(setting, tmp_path, capsys):
    """YAML reads `yes` as True, which Python counts as 1."""
    name = setting.partition(":")[0]
    lines = {"datasets": "[fashion_mnist]", "models": "[mlp]", "steps": "3", "evaluations": "1"}
    lines[name] = setting.partition(": ")[2]
    (tmp_path / "grid.yaml").write_text("".join(f"{key}: {value}\n" for key, value in lines.items()))
    words = ["compare", "--grid", str(tmp_path / "grid.yaml"), "--output", str(tmp_path / "new.jsonl"), "--dry-run"]
    assert cli.main(words) == 2
    assert "must be a whole number" in capsys.readouterr().err


class TestResults:
    @pytest.mark.parametrize(
        "content", ["", "{", "[]", "null", '{"a": 1}', '{"a": {"method": 3}}', "[" * 100_000, "\0\xff"]
    )
    def test_a_plan_that_cannot_be_read_is_written_anew(self, content, tmp_path, caplog):
        """An empty one, as a full disk leaves it, stopped every later comparison and report with a traceback."""
        results = tmp_path / "results.jsonl"
        plan_path(results).write_text(content, encoding="latin-1")
        assert read_plan(results) == {}
        assert "cannot be read, so it is not known what was planned" in caplog.text
        write_plan(results, {cell().key: cell().settings})
        assert read_plan(results) == {cell().key: cell().settings}

    def test_a_whole_last_line_without_end_counts(self, tmp_path):
        """Editors strip the last line feed; the training would run again, and its line would be cut off."""
        path = tmp_path / "results.jsonl"
        lines = [json.dumps(record(cell(seed=seed))) for seed in (1, 2)]
        path.write_text("\n".join(lines))
        assert len(read_lines(path)) == 2
        drop_torn_line(path)
        assert path.read_text() == "".join(f"{line}\n" for line in lines)

    @pytest.mark.parametrize("torn", ["{", '{"ke', '{"key": "x', '{"key": "x", "settings": {}'])
    def test_a_torn_last_line_is_cut_off(self, torn, tmp_path):
        path = tmp_path / "results.jsonl"
        whole = json.dumps(record(cell())) + "\n"
        path.write_text(whole + torn)
        assert len(read_lines(path)) == 1
        drop_torn_line(path)
        assert path.read_text() == whole

    @pytest.mark.parametrize(
        "content", [b"my thesis", b"a\nb", b'{"a": 1}', b'{"key": 1, "settings": {}}\n', b"\xff\xfe\x00", b"\x00"]
    )
    def test_a_file_that_holds_something_else_stays_as_it_is(self, content, tmp_path, capsys):
        """`compare --output notes.txt` cut off the last line of whatever stood there."""
        path = tmp_path / "notes.txt"
        path.write_bytes(content)
        for words in ([*TINY, "--output", str(path)], ["report", str(path), "--output", str(tmp_path / "report")]):
            assert cli.main(words) == 2
            assert "is not a result of `hf-lwal compare`: delete that line" in capsys.readouterr().err
        assert path.read_bytes() == content
        assert list(tmp_path.iterdir()) == [path]

    @pytest.mark.parametrize("missing", ["curve", "seconds", "machine", "batch_rows"])
    def test_a_line_that_lacks_a_measure_is_refused(self, missing, tmp_path):
        path = tmp_path / "results.jsonl"
        path.write_text(json.dumps({name: value for name, value in record(cell()).items() if name != missing}) + "\n")
        with pytest.raises(CommandError, match=r"Line 1 of .* is not a result"):
            read_lines(path)


def test_seconds_of_training_hold_no_evaluation():
    """Three readings of one log gave three times; evaluations after the end made one of them negative."""
    log = [
        {"start_samples": 30, "start_seconds": 2.0},
        {"eval_runtime": 1.0},
        {"eval_refresh_seconds": 0.25, "step": 5},
        {"eval_runtime": 1.0, "eval_accuracy": 0.5},
        {"train_runtime": 10.0},
        {"eval_refresh_seconds": 50.0},
        {"eval_runtime": 100.0},
    ]
    times = running_times(log)
    assert (times.training, times.start, times.evaluation, times.whole) == (5.75, 2.0, 2.25, 10.0)
    assert running_times(log[:2]).training is None
    assert running_times(log[4:]).training == 10.0
    assert running_times([]) == (None, None, 0, None, None)


def test_the_cells_of_these_tests_are_those_of_a_grid():
    names = set(Grid(datasets=["fashion_mnist"], models=["mlp"], steps=1, evaluations=1).cells()[0].settings)
    assert names == set(cell().settings)
