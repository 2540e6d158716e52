"""Hard cases: training succeeds, or ends in the sentence that says what to try; no label table ever holds NaN."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import set_seed

from hf_lwal import AutoModelForLwALClassification, LwALTrainer, LwALTrainingArguments
from hf_lwal.bench.nets import DenseConfig

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import stress

WIDTH, LABELS = 16, 8
REMEDY = "lower the learning rate, set max_grad_norm, or train in bf16 or float32 instead of fp16"


def rows_of(per_label, seed=0, size=1.0, wrong=0.0):
    """Rows (N, WIDTH) around one centre per label, as many as are asked for; a share of the labels is wrong."""
    generator, number = torch.Generator().manual_seed(seed), len(per_label)
    centres = torch.randn(number, WIDTH, generator=torch.Generator().manual_seed(99))
    labels = torch.repeat_interleave(torch.arange(number), torch.tensor(per_label))
    labels = labels[torch.randperm(len(labels), generator=generator)]
    rows = size * (centres[labels] + 0.6 * torch.randn(len(labels), WIDTH, generator=generator))
    others = (labels + torch.randint(1, number, (len(labels),), generator=generator)) % number
    labels = torch.where(torch.rand(len(labels), generator=generator) < wrong, others, labels)
    return Dataset.from_dict({"inputs_embeds": rows.numpy().astype(np.float32).tolist(), "labels": labels.tolist()})


def new_model(num_labels=LABELS, hidden_sizes=()):
    """A linear head on the inputs themselves, which are its features; or dense layers before it."""
    set_seed(0)
    config = DenseConfig(input_size=WIDTH, hidden_sizes=list(hidden_sizes), num_labels=num_labels)
    return AutoModelForLwALClassification.from_config(config)


def trained(folder, data, test, hidden_sizes=(), **options):
    """Recall of each label on the test rows after 40 steps of `LwALTrainer`, and the model."""
    number = len(set(test["labels"]))
    defaults = {"report_to": "none", "use_cpu": True, "disable_tqdm": True, "save_strategy": "no", "logging_steps": 5}
    defaults |= {"max_steps": 40, "per_device_train_batch_size": 32, "learning_rate": 1e-3}
    args = LwALTrainingArguments(str(folder), **(defaults | options))
    trainer = LwALTrainer(new_model(number, hidden_sizes), args, train_dataset=data, eval_dataset=test)
    try:
        trainer.train()
    finally:
        if trainer.lwal_model is not None:
            assert_finite(trainer.lwal_model)
    found = trainer.predict(test)
    right = found.predictions.argmax(axis=1) == found.label_ids
    return [float(right[found.label_ids == label].mean()) for label in range(number)], trainer.core_model


def looped(model, data, steps=40, rate=1e-3, start=True, scaler=None):
    """The same in a loop of one's own, optionally in fp16 with a scaler; returns the scaler's scales."""
    batches = torch.utils.data.DataLoader(data.with_format("torch"), 32, shuffle=True)
    model.train()
    if start:
        model.initialize_labels(batches, progress=False)
    optimizer, scales = torch.optim.AdamW(model.parameters(), lr=rate), []
    while len(scales) < steps:
        for batch in batches:
            with torch.autocast("cpu", torch.float16, enabled=scaler is not None):
                loss = model(**batch).loss
            if scaler is None:
                loss.backward()
                optimizer.step()
            else:
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
            optimizer.zero_grad()
            scales.append(0.0 if scaler is None else scaler.get_scale())
    assert_finite(model)
    return scales


def accuracy(model, test):
    rows = test.with_format("torch")[:]
    with torch.no_grad():
        return float(
            (model.eval()(inputs_embeds=rows["inputs_embeds"]).logits.argmax(dim=1) == rows["labels"]).float().mean()
        )


def assert_finite(model):
    """Of the table, whatever the weights are."""
    tensors = model.label_table.state_dict()
    learned = {"offset_bias", "log_scale_bias"}  # by gradient: as any weight
    assert [name for name in tensors if name not in learned and not tensors[name].isfinite().all()] == []


@pytest.mark.parametrize("loop", stress.LOOPS)
def test_the_table_is_that_of_a_copy_in_float64(loop, capsys):
    """A row counted twice, a commit at the wrong moment or digits lost at every step show after many steps only."""
    lines = stress.LOOPS[loop](240, 80)
    capsys.readouterr()
    assert [line["step"] for line in lines] == [80, 160, 240]
    for line in lines:
        assert line["counts_equal"]
        assert line["finite"]
        assert line["means_error"] < 2e-6
        assert line["vectors_error"] < 1e-5
    assert lines[-1]["accuracy"] > 0.85
    assert lines[-1]["rows"] == lines[0]["rows"] + 160 * stress.ROWS


@pytest.mark.parametrize(
    ("loop", "size"), [("trainer", 1e-6), ("trainer", 1e6), *(("plain", size) for size in (1e-6, 1e-3, 1e3, 1e6))]
)
def test_features_of_any_size(tmp_path, caplog, size, loop):
    """A floor or an epsilon that is meant for features of size one ends at chance, or at NaN, for others."""
    data, test = rows_of([40] * LABELS, size=size), rows_of([40] * LABELS, seed=1, size=size)
    if loop == "trainer":
        recalls, _ = trained(tmp_path, data, test)
        found = sum(recalls) / LABELS
    else:
        looped(model := new_model(), data)
        found = accuracy(model, test)
    assert found > 0.95
    assert not [line for line in caplog.records if line.name.startswith("hf_lwal") and line.levelno > logging.INFO]


@pytest.mark.parametrize("size", [1e-6, 1e-3, 1e6])
def test_embeddings_of_any_size(tmp_path, caplog, size):
    """Embeddings that differ in their last digits only cannot be told apart, which must be said."""
    data, test = rows_of([40] * LABELS, size=size), rows_of([40] * LABELS, seed=1, size=size)
    recalls, _ = trained(tmp_path, data, test, lwal_space="embeddings")
    assert ("start rows alike" in caplog.text) == (size == 1e-6)
    assert size == 1e-6 or sum(recalls) / LABELS > 0.95


@pytest.mark.parametrize("options", [{}, {"lwal_class_weights": "balanced"}, {"lwal_prior": "train"}], ids=str)
def test_a_thousand_rows_against_one(tmp_path, options):
    """A label of one row must be found among new rows, though few batches hold it."""
    recalls, model = trained(tmp_path, rows_of([1_000, 1, 1_000]), rows_of([100] * 3, seed=1), **options)
    assert min(recalls) > 0.9
    assert model.label_table.counts[1] >= 1


@pytest.mark.parametrize("options", [{}, {"lwal_noisy_labels": "drop"}], ids=str)
def test_two_of_five_labels_are_wrong(tmp_path, options):
    """Class means of rows with wrong labels lie between the classes, and must not come to lie in one place."""
    recalls, _ = trained(tmp_path, rows_of([60] * LABELS, wrong=0.4), rows_of([40] * LABELS, seed=1), **options)
    assert sum(recalls) / LABELS > 0.95


@pytest.mark.parametrize("rate", [0.1, 1e2, 1e10, 1e37])
@pytest.mark.parametrize("options", [{}, {"lwal_preset": "paper"}], ids=str)
def test_a_learning_rate_a_hundred_times_too_high(tmp_path, caplog, rate, options):
    """It learns, or says what to try: a training that ends normally at chance does neither."""
    data, test, said = rows_of([40] * LABELS), rows_of([40] * LABELS, seed=1), ""
    recalls = [0.0]
    try:
        recalls, _ = trained(tmp_path, data, test, hidden_sizes=(32,), learning_rate=rate, **options)
    except FloatingPointError as error:
        said = str(error)
    learned = sum(recalls) / len(recalls) > 0.9
    assert learned or REMEDY in said or "learning rate ten times lower" in caplog.text
    assert learned or rate > 0.1


@pytest.mark.parametrize("start", [True, False])
def test_steps_that_a_scaler_skips(start):
    """Gradients that overflow in fp16 cost steps, and must not cost the label table."""
    model, data = new_model(hidden_sizes=(32,)), rows_of([40] * LABELS)
    scales = looped(model, data, rate=1e-2, start=start, scaler=torch.amp.GradScaler("cpu", init_scale=2.0**40))
    assert scales[9] < 2.0**40, "no step was skipped"
    assert model.label_table.counts.sum() > 0
    assert accuracy(model, rows_of([40] * LABELS, seed=1)) > 0.9


@pytest.mark.parametrize("start", [True, False])
def test_features_beyond_what_half_precision_holds(start, caplog):
    """No scaler helps against infinite features: a loss of 0 looked like success where no label had a mean yet."""
    model, data = new_model(hidden_sizes=(32,)), rows_of([40] * LABELS)
    if start:
        looped(model, data, steps=10)
    before = {name: value.clone() for name, value in model.eval().label_table.state_dict().items()}
    model.train()
    with torch.no_grad():
        model.encoder.layers[-1].weight.fill_(torch.inf)
    rows = data.with_format("torch")[:32]
    caplog.clear()
    for _ in range(3):
        with torch.autocast("cpu", torch.float16):
            loss = model(**rows).loss
        assert loss.isnan() if start else loss == 0
    assert caplog.text.count("NaN or infinity in every row") == (not start)
    model.train(False)
    assert torch.equal(model.label_table.class_features, before["class_features"])
    assert torch.equal(model.label_table.counts, before["counts"])
    assert_finite(model)
