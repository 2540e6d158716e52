"""Controls of the comparison: a regression on frozen features, fine-tuning from it, and few rows of every label."""

import json
import warnings
from collections import Counter

import pytest
import torch
from tiny_models import tiny_config
from toy import separable_text
from trajectory import arguments
from transformers import AutoModelForSequenceClassification

from hf_lwal import LwALTrainer
from hf_lwal.bench.datasets import load_data
from hf_lwal.bench.frozen_regression import INVERSE_STRENGTHS, RegressionStart, fit_regression
from hf_lwal.bench.grid import Grid
from hf_lwal.bench.methods import parse_method
from hf_lwal.bench.models import MODELS
from hf_lwal.bench.results import read_lines
from hf_lwal.bench.runner import run_grid
from hf_lwal.errors import CommandError
from hf_lwal.modeling.heads import run_without_head
from hf_lwal.modeling.modeling_pooled import LwALPooledForSequenceClassification

FEW = Grid(datasets=["fashion_mnist"], models=["mlp"], methods=["one_hot"], seeds=[1, 2], steps=2, evaluations=1)


@pytest.mark.parametrize("num_labels", [2, 5])
@pytest.mark.parametrize(("size", "shift"), [(1.0, 0.0), (1e-3, 0.0), (1.0, 50.0)])
def test_the_regression_is_that_of_scikit_learn_whatever_the_size_of_the_features(num_labels, size, shift):
    """A control that is regularised by the units of its features is too weak, and everything beats it."""
    from sklearn.linear_model import LogisticRegression

    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(num_labels).repeat_interleave(30)
    features = torch.randn(num_labels, 12, generator=generator)[labels]
    features = features + torch.randn(features.shape, generator=generator)
    found = fit_regression(size * features + shift, labels, num_labels)
    centred = features - features.mean(0)
    scaled = centred / centred.square().sum(1).mean().sqrt()
    reference = LogisticRegression(C=found.strength, max_iter=2000).fit(scaled.double(), labels)
    logits = (size * features + shift) @ found.weight.T + found.bias
    expected = torch.as_tensor(reference.predict_proba(scaled.double()))
    torch.testing.assert_close(logits.double().softmax(1), expected, rtol=0, atol=0.01)
    assert found.accuracy(size * features + shift, labels) == (expected.argmax(1) == labels).double().mean()


def test_labels_without_rows_come_last_and_rows_without_label_do_not_count():
    features, labels = torch.eye(4).repeat(5, 1), torch.arange(4).repeat(5)
    labels[labels == 3] = 5
    labels[0] = -100
    found = fit_regression(features, labels, 7)
    predicted = (features @ found.weight.T + found.bias).argmax(1)
    assert set(predicted.tolist()) == {0, 1, 2, 5}
    assert found.weight[[3, 4, 6]].eq(0).all()


def test_fine_tuning_starts_as_the_regression_and_leaves_it(tmp_path):
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_config(tiny_config("bert", num_labels=5))
    rows = separable_text(5, 60, 0)
    options = arguments(tmp_path, label_method="one_hot", max_steps=1, learning_rate=0.0, lwal_init_samples=100)
    trainer = LwALTrainer(model, options, objective=RegressionStart(), train_dataset=rows)
    trainer.train()
    inputs = trainer.data_collator([rows[index] for index in range(60)])
    labels = inputs.pop("labels")
    with torch.no_grad():
        features = run_without_head(trainer.model.eval(), "classifier", inputs).logits
        logits = trainer.model(**inputs).logits
    found = fit_regression(features, labels, 5)
    torch.testing.assert_close(logits, features @ found.weight.T + found.bias, rtol=0, atol=0.05)
    (start,) = (entry for entry in trainer.state.log_history if "start_strength" in entry)
    assert start["start_samples"] == 60
    assert start["start_seconds"] > 0


def test_a_regression_on_one_row_per_class_warns_of_nothing():
    """scikit-learn took the ids for numbers to predict, and said so above the progress bar."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = fit_regression(torch.eye(30), torch.arange(30), 30)
    assert found.accuracy(torch.eye(30), torch.arange(30)) == 1.0


@pytest.mark.parametrize("name", ["frozen_regression", "lp_ft", "one_hot_probe", "default_probe"])
def test_the_controls_have_names(name):
    assert parse_method(name)["name"] == name


def test_few_rows_of_every_label_are_drawn_anew_by_every_seed():
    """One draw for all seeds would call the luck of that draw the spread of the method."""
    drawn = [load_data("fashion_mnist", None, None, 20, 3, draw).train["label"][:] for draw in (1, 1, 2)]
    assert set(Counter(drawn[0]).values()) == {3}
    pictures = [load_data("fashion_mnist", None, None, 20, 3, draw).train[0]["image"].tobytes() for draw in (1, 2)]
    assert pictures[0] != pictures[1]


def test_cells_say_what_they_draw_and_cells_that_do_not_keep_their_key():
    """Kept results are found again by their key, which a new setting must not change."""
    first, second = (cell.draw for cell in Grid(**{**FEW.__dict__, "rows_per_label": 4}).cells())
    assert (first, second) == ((4, 1), (4, 2))
    cell = FEW.cells()[0]
    assert "rows_per_label" not in json.loads(cell.key)
    assert cell.draw == (None, 0)
    with pytest.raises(CommandError, match="train_rows \\(9\\) or rows_per_label \\(4\\), not both"):
        Grid(**{**FEW.__dict__, "rows_per_label": 4, "train_rows": 9}).cells()
    with pytest.raises(CommandError, match="rows_per_label must be a whole number above 0"):
        Grid(**{**FEW.__dict__, "rows_per_label": 0}).cells()


@pytest.mark.parametrize("from_config", [True, False])
def test_a_sentence_encoder_has_the_pooling_of_its_checkpoint(from_config):
    assert MODELS["minilm"] is MODELS["minilm_pooled"]
    assert not isinstance(MODELS["minilm_first_token"].build(None, from_config), LwALPooledForSequenceClassification)
    model = MODELS["minilm"].build(None, from_config)
    assert isinstance(model, LwALPooledForSequenceClassification)
    assert (model.config.pooling, model.config.normalize) == ("mean", True)


def test_lines_hold_the_chosen_strength_and_a_regression_alone_has_no_seconds_of_training(tmp_path):
    """The one step that changes nothing made the cheapest control look slower than it is."""
    methods = ["one_hot", "frozen_regression", "lp_ft"]
    grid = Grid(**{**FEW.__dict__, "methods": methods, "seeds": [1], "rows_per_label": 4, "test_rows": 20})
    assert run_grid(grid.cells(), tmp_path / "results.jsonl") == []
    one_hot, frozen, tuned = read_lines(tmp_path / "results.jsonl")
    assert "strength" not in one_hot
    assert frozen["strength"] == tuned["strength"]
    assert frozen["strength"] in INVERSE_STRENGTHS
    assert frozen["seconds"]["training"] == 0.0 < min(frozen["seconds"]["start"], tuned["seconds"]["training"])
    assert len({accuracy for _, accuracy in frozen["curve"]}) == 1
    assert frozen["curve"][0] == tuned["curve"][0]
