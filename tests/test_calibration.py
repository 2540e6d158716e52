"""Calibration: the error and its diagram against a plain loop, the temperature against SciPy, and what keeps it."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax
from test_modeling import LABELS, build, trained
from test_open_set import texts_of
from toy import separable_text
from transformers import EvalPrediction

from hf_lwal import AutoModelForLwALClassification
from hf_lwal.metrics import AccuracyAndF1, expected_calibration_error, reliability_curve
from hf_lwal.modeling.linear_fold import fit_label_temperature

# -- the error ------------------------------------------------------------------------------------------------------


def error_in_a_loop(probabilities, labels, bins):
    """As Guo et al. write it: bin m holds confidences in ((m - 1) / M, m / M]."""
    rows = [(max(row), int(np.argmax(row)) == label) for row, label in zip(probabilities, labels, strict=True)]
    total = 0.0
    for m in range(1, bins + 1):
        inside = [row for row in rows if (m - 1) / bins < row[0] <= m / bins or (m == 1 and row[0] == 0.0)]
        if inside:
            confidence, accuracy = (sum(column) / len(inside) for column in zip(*inside, strict=True))
            total += len(inside) / len(rows) * abs(accuracy - confidence)
    return total


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), rows=st.integers(1, 40), num_labels=st.integers(2, 6), bins=st.integers(1, 20))
def test_the_error_equals_a_loop_over_the_bins(seed, rows, num_labels, bins):
    """Bins without rows, one row, and confidences on the edge of a bin included."""
    generator = np.random.default_rng(seed)
    probabilities = softmax(3.0 * generator.normal(size=(rows, num_labels)), axis=1)
    probabilities[0] = np.eye(num_labels)[0]  # a confidence of 1
    probabilities[rows // 2] = 1.0 / num_labels
    labels = generator.integers(0, num_labels, size=rows)
    expected = error_in_a_loop(probabilities.tolist(), labels.tolist(), bins)
    assert expected_calibration_error(probabilities, labels, bins) == pytest.approx(expected, abs=1e-12)
    padded = np.vstack([probabilities, probabilities[:2]]), np.concatenate([labels, [-100] * len(probabilities[:2])])
    assert expected_calibration_error(*padded, bins) == pytest.approx(expected, abs=1e-12)


def test_by_hand():
    """0.8 is the upper edge of a bin, whose floating-point neighbour is in the next."""
    assert expected_calibration_error([[0.0, 0.0]], [0]) == 1.0  # sure of nothing, and right
    assert expected_calibration_error([[1.0, 0.0]], [0]) == 0.0
    assert expected_calibration_error([[1.0, 0.0]], [1]) == 1.0
    assert math.isnan(expected_calibration_error([[1.0, 0.0]], [-100]))
    found = reliability_curve([[0.8, 0.2], [0.75, 0.25], [0.81, 0.19]], [0, 1, 0])
    assert found.counts.tolist() == [*[0] * 11, 2, 1, 0, 0]
    assert found.accuracy[11:13].tolist() == [0.5, 1.0]
    assert found.confidence[11:13].tolist() == pytest.approx([0.775, 0.81])
    assert np.isnan(found.accuracy[0])


@pytest.mark.parametrize(
    ("probabilities", "labels", "bins", "sentence"),
    [
        ([[2.5, -1.0]], [0], 15, r"must lie in 0…1, but they hold 2.5: give the softmax of logits"),
        ([[math.nan, 0.5]], [0], 15, r"must lie in 0…1, but they hold nan"),
        ([[0.5, 0.5]], [0, 1], 15, r"\(N, C\) and labels \(N,\), but they have \(1, 2\) and \(2,\)"),
        ([0.5, 0.5], [0, 1], 15, r"but they have \(2,\) and \(2,\)"),
        ([[0.5, 0.5]], [0], 0, "bins is 0, but there must be at least 1"),
    ],
)
def test_mistakes_are_one_sentence(probabilities, labels, bins, sentence):
    with pytest.raises(ValueError, match=sentence):
        expected_calibration_error(probabilities, labels, bins)


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_evaluations_report_it_of_logits_whole_or_in_batches(temperature):
    """Batches of a large evaluation must add up, and "before" must undo the temperature."""
    generator = np.random.default_rng(0)
    logits, labels = 4.0 * generator.normal(size=(50, 4)).astype(np.float32), generator.integers(0, 4, size=50)
    labels[::7] = -100
    measure = AccuracyAndF1(calibration=True)
    measure.temperature = temperature
    whole = measure(EvalPrediction(logits, labels))
    measure(EvalPrediction(logits[:20], labels[:20]), compute_result=False)
    parts = measure(EvalPrediction(logits[20:], labels[20:]), compute_result=True)
    assert parts == pytest.approx(whole)
    expected = expected_calibration_error(softmax(logits, axis=1), labels)
    assert whole["calibration_error"] == pytest.approx(expected, abs=1e-5)
    before = expected_calibration_error(softmax(temperature * logits, axis=1), labels)
    assert whole.get("calibration_error_before", expected) == pytest.approx(before, abs=1e-5)
    assert set(measure.reliability) == ({""} if temperature == 1.0 else {"before", "after"})
    plain = {"accuracy": whole["accuracy"], "f1_macro": whole["f1_macro"]}
    assert AccuracyAndF1()(EvalPrediction(logits, labels)) == plain
    ids = EvalPrediction(logits.argmax(axis=1), labels)
    assert AccuracyAndF1(calibration=True)(ids) == plain


# -- the temperature ------------------------------------------------------------------------------------------------


def loss_at(logits, labels, temperature):
    return -log_softmax(logits / temperature, axis=1)[np.arange(len(labels)), labels].mean()


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), size=st.floats(0.01, 300.0), num_labels=st.integers(2, 8))
def test_the_temperature_is_the_one_with_the_least_loss(seed, size, num_labels):
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, num_labels, size=60)
    logits = size * (generator.normal(size=(60, num_labels)) + 1.5 * np.eye(num_labels)[labels])
    if (logits.argmax(axis=1) == labels).all():
        return
    found = fit_label_temperature(torch.from_numpy(logits), torch.from_numpy(labels))
    best = minimize_scalar(lambda log: loss_at(logits, labels, math.exp(log)), bounds=(-12, 12), method="bounded")
    assert loss_at(logits, labels, found) <= best.fun + 1e-9


def test_rows_that_are_all_right_and_rows_that_are_guessed():
    """The best temperature of the former is 0, by which nothing can be divided, and of the latter there is none."""
    logits, labels = torch.tensor([[3.0, 0.0, -4.0], [0.0, 2.0, 1.0]], dtype=torch.float64), torch.tensor([0, 1])
    found = fit_label_temperature(logits, labels)
    assert 0.1 < found < 5.0
    assert fit_label_temperature(logits.repeat(100, 1), labels.repeat(100)) < found
    with pytest.raises(ValueError, match="the labels of these 2 rows no better than chance"):
        fit_label_temperature(logits, torch.tensor([2, 0]))


# -- a model --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def once(tiny_config):
    """A trained model that is far too sure, and rows of which a third have a wrong label."""
    model = trained(build(tiny_config, "bert"), 40).eval()
    model.label_table.set_scale(50.0 * model.label_table.scale.item())
    return model


@pytest.fixture
def model(once):
    return copy.deepcopy(once)


TEXTS = texts_of(range(LABELS), 60)
IDS = [(index + (index % 3 == 0)) % LABELS for index in range(60)]


def logits_of(model, tokenizer):
    batch = tokenizer(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        return model(**batch).logits.double().numpy()


def test_a_model_becomes_calibrated_and_predicts_as_before(model, tokenizer):
    before = logits_of(model, tokenizer)
    found = model.calibrate(TEXTS, tokenizer, IDS, batch_size=7, progress=False)
    after = logits_of(model, tokenizer)
    np.testing.assert_allclose(after, before / found, rtol=1e-4)
    assert (after.argmax(axis=1) == before.argmax(axis=1)).all()
    best = minimize_scalar(lambda log: loss_at(before, IDS, math.exp(log)), bounds=(-12, 12), method="bounded")
    assert found == pytest.approx(math.exp(best.x), rel=1e-3)
    errors = [expected_calibration_error(softmax(logits, axis=1), IDS) for logits in (before, after)]
    assert errors[1] < 0.5 * errors[0]
    assert model.calibrate(TEXTS, tokenizer, IDS, progress=False) == pytest.approx(1.0, abs=1e-3)


def test_ids_names_and_batches_are_the_same_rows(once, tokenizer):
    batch = {**tokenizer([*TEXTS, "key9"], padding=True, return_tensors="pt"), "labels": torch.tensor([*IDS, -100])}
    named = [f"LABEL_{index}" for index in IDS]
    given = ((TEXTS, tokenizer, IDS), (TEXTS, tokenizer, named), ([batch],))
    found = [copy.deepcopy(once).calibrate(*rows, progress=False) for rows in given]
    assert found == pytest.approx([found[0]] * 3, rel=1e-4)


def test_it_travels_with_the_model(model, tokenizer, tmp_path):
    """Saved, cast, folded: a temperature beside the weights would be left behind by one of them."""
    model.calibrate(TEXTS, tokenizer, IDS, progress=False)
    expected = logits_of(model, tokenizer)
    model.save_pretrained(tmp_path)
    again = AutoModelForLwALClassification.from_pretrained(tmp_path)
    np.testing.assert_array_equal(logits_of(again, tokenizer), expected)
    batch = dict(tokenizer(TEXTS, padding=True, return_tensors="pt"))
    stock = softmax(logits_of(model.fold([batch]), tokenizer), axis=1)
    assert np.abs(stock.max(axis=1) - softmax(expected, axis=1).max(axis=1)).mean() < 0.1
    assert again.to(torch.bfloat16).label_table.scale == model.label_table.scale


def test_a_label_without_rows_takes_no_part(model, tokenizer):
    """Its logit lies a fixed step below the others, whatever the scale, and rows of it cannot be predicted."""
    model.label_table.counts[2] = 0
    kept = [row for row, label in enumerate(IDS) if label != 2]
    before = np.delete(logits_of(model, tokenizer)[kept], 2, axis=1)
    ids = [IDS[row] - (IDS[row] > 2) for row in kept]
    found = model.calibrate(TEXTS, tokenizer, IDS, progress=False)
    best = minimize_scalar(lambda log: loss_at(before, ids, math.exp(log)), bounds=(-12, 12), method="bounded")
    assert found == pytest.approx(math.exp(best.x), rel=1e-3)


def test_what_cannot_be_calibrated(model, tiny_config, tokenizer):
    """Each ends in a sentence, and the scale stays."""
    scale = model.label_table.scale.item()
    wrong = logits_of(model, tokenizer).argmin(axis=1).tolist()
    rows = separable_text(LABELS, 8).with_format("torch")[:]
    for call, sentence in (
        (lambda: model.calibrate(TEXTS, tokenizer, wrong, progress=False), "no better than chance"),
        (lambda: model.calibrate(TEXTS, tokenizer, [7] * 60, progress=False), "A row has label 7, but the model's"),
        (lambda: model.calibrate(TEXTS, tokenizer, IDS[:3], progress=False), "60 inputs, but 3 labels"),
        (lambda: model.calibrate(TEXTS, tokenizer, [-100] * 60, progress=False), "0 of 0 rows have one"),
        (lambda: model.calibrate([], progress=False), "no rows"),
        (lambda: model.calibrate([{"input_ids": rows["input_ids"]}], progress=False), "needs labels"),
    ):
        with pytest.raises(ValueError, match=sentence):
            call()
    assert model.label_table.scale.item() == scale
