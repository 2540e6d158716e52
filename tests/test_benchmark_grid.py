"""Grids: named methods and presets are valid, cells have lasting keys, selections mean what they say."""

import json
import runpy
from pathlib import Path

import pytest

from hf_lwal.bench.datasets import DATASETS
from hf_lwal.bench.grid import PRESETS, Grid, batch_rows, load_grids, select, unique_cells
from hf_lwal.bench.methods import METHODS, parse_method
from hf_lwal.bench.models import MODELS
from hf_lwal.bench.results import MEASURED, plan_path, read_lines, read_plan
from hf_lwal.bench.runner import pending_cells
from hf_lwal.bench.training import training_arguments
from hf_lwal.errors import CommandError

SMALL = {"datasets": ["fashion_mnist"], "models": ["mlp"], "steps": 4, "evaluations": 2}


ONE_HOT = (
    *("one_hot", "one_hot_class_means", "one_hot_head10", "paper:std"),
    *("one_hot_whitened", "one_hot_probe", "lp_ft", "frozen_regression"),
)


@pytest.mark.parametrize("method", METHODS)
def test_every_named_method_gives_valid_arguments(method, tmp_path):
    text = {"datasets": ["clinc150"], "models": ["minilm"]} if "peer" in METHODS[method] else {}
    (cell,) = Grid(**{**SMALL, **text}, methods=[method], seeds=[1]).cells()
    arguments = training_arguments(cell, 100, 32, str(tmp_path))
    settings = arguments.resolve_lwal()
    assert (
        settings.label_method
        == {
            **{name: "lwal" for name in METHODS},
            **{name: "one_hot" for name in ONE_HOT},
            **{name: "lwr" for name in ("lwr", "paper:lwr2k", "paper:lwr3k", "paper:lwr5k")},
            **{name: "static_label" for name in ("static_label", "paper:static_label")},
            **{name: "label_embed" for name in ("label_embed", "paper:label_embed")},
            **{name: name for name in ("label_smoothing", "max_entropy", "teacher_free")},
        }[method]
    )
    expected = (1, 1, 0.0) if method == "frozen_regression" else (4, 2, 1e-4)
    assert (arguments.max_steps, arguments.eval_steps, arguments.learning_rate) == expected


def test_several_numbers_of_rows_per_label_are_as_many_grids(tmp_path):
    path = tmp_path / "grid.yaml"
    path.write_text("datasets: [trec]\nmodels: [minilm]\nsteps: 2\nevaluations: 1\nrows_per_label: [4, 8]\n")
    assert [grid.rows_per_label for grid in load_grids(str(path))] == [4, 8]


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_builds_a_grid(preset):
    cells = unique_cells(load_grids(preset), None)
    assert len(cells) > 100
    assert len({cell.key for cell in cells}) == len(cells)
    assert {cell.seed for cell in cells} == {12, 123, 1234}
    controls = {
        "peers": {"frozen_regression", "lp_ft", "setfit_tuned"},
        "fair": {"one_hot_class_means", "frozen_regression_all_rows", "lp_ft_all_rows"},
        "paper": {"one_hot_class_means"},
    }[preset]
    assert controls <= {cell.method["name"] for cell in cells}
    assert all(DATASETS[cell.dataset].kind == MODELS[cell.model].kind for cell in cells)


@pytest.mark.parametrize("file", sorted((Path(__file__).parents[1] / "benchmarks" / "grids").glob("*.yaml")), ids=str)
def test_every_kept_grid_can_be_built(file):
    cells = unique_cells(load_grids(str(file)), None)
    assert {cell.seed for cell in cells} == {12, 123, 1234}
    assert {"one_hot"} < {cell.method["name"] for cell in cells}


@pytest.mark.parametrize("part", ["text", "images", "full"])
def test_every_part_of_the_default_presets_judge_can_be_built(part):
    """A name that the package gave to a method of its own left a script behind that trained nothing."""
    script = runpy.run_path(str(Path(__file__).parents[1] / "benchmarks" / "default_preset.py"))
    cells = unique_cells(script["PARTS"][part], None)
    assert {"one_hot", "one_hot_class_means", "default"} < {cell.method["name"] for cell in cells}
    assert set(script["PARTS"]) == {"text", "images", "full"}


def test_the_papers_settings_are_the_papers():
    """Values typed in from the paper's code, not read from the preset."""
    cells = unique_cells(load_grids("paper"), None)
    assert {cell.batch_size for cell in cells} == {"50x"}
    assert {cell.optimizer for cell in cells} == {"adam"}
    rates = {(cell.model, cell.learning_rate) for cell in cells}
    assert rates == {("resnet50", 1e-4), ("densenet121", 1e-4), ("efficientnet_b0", 1e-3), ("bert_frozen", 1e-4)}
    epochs = {(cell.dataset, cell.epochs) for cell in cells}
    twenty = {"cifar100", "food101"}
    assert epochs == {(name, 20 if name in twenty else 10) for name in {cell.dataset for cell in cells}}
    assert {cell.dataset for cell in cells} == {
        *("mnist", "fashion_mnist", "cifar10", "imdb", "yelp_polarity"),
        *twenty,
    }


def test_a_key_survives_json_and_tells_cells_apart():
    """A key that changes on the way through the file would run every cell again."""
    cells = unique_cells(
        [Grid(**SMALL, methods=["default", {"name": "m", "lwal_memory": 9}], batch_sizes=["8"])], None
    )
    assert len({cell.key for cell in cells}) == 6
    for cell in cells:
        assert json.dumps(json.loads(json.dumps(cell.settings)), sort_keys=True) == cell.key
        assert cell.batch_size == 8


def test_seeds_run_slowest():
    cells = Grid(**SMALL, methods=["one_hot", "default"], seeds=[3, 4]).cells()
    assert [cell.seed for cell in cells] == [3, 3, 4, 4]


def test_multiples_of_the_number_of_labels():
    assert (batch_rows("50x", 150), batch_rows(32, 150), batch_rows("32", 150)) == (7500, 32, 32)


def test_a_selection_takes_the_grid_that_lists_it():
    (grid,) = select(load_grids("paper"), ["cifar100"], ["efficientnet_b0"])
    assert (tuple(grid.datasets), tuple(grid.models)) == (("cifar100",), ("efficientnet_b0",))
    assert (grid.epochs, list(grid.learning_rates)) == (20, [1e-3])


def test_a_selection_that_no_grid_lists_runs_like_its_kind():
    (grid,) = select(load_grids("paper"), ["clinc150"], ["minilm_frozen"])
    assert (tuple(grid.datasets), tuple(grid.models), grid.epochs) == (("clinc150",), ("minilm_frozen",), 10)


def test_a_selection_keeps_both_kinds_apart():
    grids = select(load_grids("fair"), ["clinc150", "mnist"], ["minilm", "convnet"])
    assert {(grid.datasets[0], grid.models[0]) for grid in grids} == {("clinc150", "minilm"), ("mnist", "convnet")}


def test_a_line_from_before_a_name_changed_its_meaning_counts_as_what_was_measured(tmp_path):
    """Lines of the first token would pass for the mean of the tokens, and those cells would never run."""
    grid = {**SMALL, "datasets": ["trec"], "methods": ["one_hot"], "seeds": [12]}
    first, mean = unique_cells([Grid(**{**grid, "models": ["minilm_first_token", "minilm"]})], None)
    assert unique_cells([Grid(**{**grid, "models": ["minilm", "minilm_pooled"]})], None) == [mean]
    old = {**first.settings, "model": "minilm"}
    results = tmp_path / "results.jsonl"
    line = {"key": json.dumps(old, sort_keys=True), "settings": old, **dict.fromkeys(MEASURED, 0)}
    results.write_text(json.dumps({**line, "curve": [[0, 1.0], [2, 2.0]]}) + "\n")
    plan_path(results).write_text(json.dumps({line["key"]: old}))
    assert read_lines(results)[0]["settings"] == first.settings
    assert read_plan(results) == {first.key: first.settings}
    assert pending_cells([first, mean], results) == [mean]


def test_a_selection_finds_a_model_under_either_of_its_names():
    (grid,) = select(load_grids("peers"), ["trec"], ["minilm_pooled"])
    assert (tuple(grid.models), grid.rows_per_label) == (("minilm_pooled",), 8)


def test_methods_of_ones_own():
    mine = parse_method({"name": "mine", "like": "default", "lwal_memory": 10})
    assert mine == {"name": "mine", "lwal_preset": "default", "lwal_memory": 10}
    assert parse_method("one_hot") == {"name": "one_hot", "label_method": "one_hot"}


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("defualt", "Unknown method 'defualt'"),
        ({"name": "mine", "lwal_memroy": 10}, "no training argument 'lwal_memroy': did you mean lwal_memory?"),
        ({"name": "default", "lwal_memory": 10}, "has a meaning already"),
        ({"lwal_memory": 10}, "needs a name"),
        ({"name": "mine", "lwal_preset": "papr"}, "Method 'mine': Unknown lwal_preset 'papr'"),
    ],
)
def test_methods_that_make_no_sense(method, message):
    with pytest.raises(CommandError, match=message.replace("?", r"\?")):
        parse_method(method)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"datasets": ["nmist"]}, "Unknown data set 'nmist'"),
        ({"models": ["vgg"]}, "Unknown model 'vgg'"),
        ({"models": ["minilm"]}, "fashion_mnist holds image and minilm reads text"),
        ({"epochs": 2}, "counts in steps or in epochs"),
        ({"evaluations": None}, "needs the number of evaluations"),
        ({"optimizer": "sgd"}, "Unknown optimizer 'sgd'"),
        ({"batch_sizes": ["x"]}, "A batch size must be"),
        ({"learning_rates": ["1e-4"]}, "A learning rate must be a number above 0 such as 0.001 or 1.0e-3, got '1e-4'"),
        ({"train_rows": 0}, "train_rows must be a whole number above 0"),
        ({"seeds": []}, "The grid has no seeds"),
    ],
)
def test_grids_that_make_no_sense(change, message):
    with pytest.raises(CommandError, match=message):
        Grid(**{**SMALL, **change}).cells()


def test_a_grid_from_yaml(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(
        "steps: 4\nevaluations: 2\nseeds: [1]\nmethods: [one_hot, {name: m9, lwal_memory: 9}]\n"
        "grids:\n  - {datasets: [mnist], models: [mlp]}\n  - {datasets: [trec], models: [minilm], steps: 6}\n"
    )
    cells = unique_cells(load_grids(str(file)), None)
    assert [(cell.dataset, cell.steps, cell.method.get("lwal_memory")) for cell in cells] == [
        *(("mnist", 4, None), ("mnist", 4, 9)),
        *(("trec", 6, None), ("trec", 6, 9)),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- 1", "must hold `setting: value` lines"),
        ("rate: 1", "has no setting 'rate'"),
        ("seeds: 1", "seeds must be a list, got 1"),
        ("steps: [1]", "steps must not be a list"),
        ("a: [", "could not be read"),
    ],
)
def test_yaml_that_makes_no_sense(text, message, tmp_path):
    file = tmp_path / "grid.yaml"
    file.write_text(text)
    with pytest.raises(CommandError, match=message):
        load_grids(str(file))
