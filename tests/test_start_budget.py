"""How many rows the start pass reads, in which order, and what it makes of more of them."""

import itertools
import logging

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from datasets import Dataset
from test_probe_start import predicted, rows_of
from tiny_models import tiny_config
from toy import separable_images, separable_text
from trajectory import arguments

from hf_lwal import AutoModelForLwALClassification, LwALConfig, LwALTrainer, LwALTrainingArguments
from hf_lwal.data.start_budget import batches_by_length, rows_per_class_within
from hf_lwal.functional import calibrated_scale
from hf_lwal.modeling import probe_start as module
from hf_lwal.modeling.head_start import class_mean_projection
from hf_lwal.modeling.probe_start import fit_start, prompt_rows


def unpadded(num_labels, rows):
    """Rows of unlike lengths, as a tokenizer without padding makes them."""
    whole = separable_text(num_labels, rows)
    cut = [
        [ids[: sum(mask)] for ids, mask in zip(whole[name], whole["attention_mask"], strict=True)]
        for name in ("input_ids", "attention_mask")
    ]
    return Dataset.from_dict({"input_ids": cut[0], "attention_mask": cut[1], "labels": whole["labels"]})


def padded(rows):
    """A collator without a tokenizer."""
    width = max(len(row["input_ids"]) for row in rows)
    names = ("input_ids", "attention_mask")
    batch = {name: torch.tensor([row[name] + [0] * (width - len(row[name])) for row in rows]) for name in names}
    return batch | {"labels": torch.tensor([row["labels"] for row in rows])}


def start_rows(folder, data, kind="bert", **options):
    """How many rows the start of a training of 8 steps of 16 rows reads."""
    model = AutoModelForLwALClassification.from_config(tiny_config(kind, num_labels=4))
    options = {"max_steps": 8, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 2, **options}
    trainer = LwALTrainer(model, arguments(folder, **options), train_dataset=data)
    trainer.train()
    return next(log["start_samples"] for log in trainer.state.log_history if "start_samples" in log)


@pytest.mark.parametrize("counts", [(5, 5, 5), (1, 40, 7, 7), (3,), (2, 1, 100)])
def test_rows_per_class_are_as_many_as_fit(counts):
    """Rare classes leave their part of the budget to the others, and it is never exceeded."""
    labels = np.repeat(np.arange(len(counts)), counts)
    for names, rows in itertools.product((False, True), (0, 2, 6, 15, 1000)):
        given = np.asarray([f"name {label}" for label in labels]) if names else np.append(labels, [-100] * 9)
        expected = max(n for n in range(max(counts) + 1) if sum(min(n, count) for count in counts) <= rows)
        assert rows_per_class_within(given, rows) == expected


def test_the_start_reads_what_the_budget_allows(tmp_path):
    """Of 8 * 16 planned rows, a quarter is the work of 96 that are only read."""
    data = separable_text(4, 200)
    few = {"lwal_init_samples": 3}
    assert start_rows(tmp_path, data, **few, lwal_start_budget=0.25) == 96
    assert start_rows(tmp_path, data, **few, lwal_start_budget=1.0) == 200, "no more than there are"
    assert start_rows(tmp_path, data, lwal_start_budget=0.0, max_steps=1) == 64, "16 rows per class are the least"
    assert start_rows(tmp_path, data, **few, max_steps=1) == 12, "who counts the rows must get as many"


@pytest.mark.parametrize(
    "options",
    [{"lwal_initial_head": "whitened"}, {"lwal_initial_head": "random"}, {"label_method": "one_hot"}, {"kind": "vit"}],
)
def test_a_start_that_fits_nothing_reads_few_rows(tmp_path, options):
    """Class means of more rows cost time that nothing is made of."""
    options = {"kind": "bert", **options, "lwal_init_samples": 2, "lwal_start_budget": 0.5, "max_steps": 1}
    data = separable_images(4, 200) if options["kind"] == "vit" else separable_text(4, 200)
    control = {"lwal_init": "class_means"} if options.get("label_method") == "one_hot" else {}
    assert start_rows(tmp_path, data, **options, **control) == 8


def test_one_hot_gets_the_rows_that_label_vectors_get(tmp_path):
    """A control that starts from fewer rows would compare starts, not methods."""
    options = {"label_method": "one_hot", "lwal_init": "class_means", "lwal_init_samples": 3}
    options |= {"lwal_initial_head": "auto", "lwal_start_budget": 0.25}
    assert start_rows(tmp_path, separable_text(4, 200), **options) == 96


def test_a_long_training_asks_for_no_more_rows_than_are_fitted_in_seconds(tmp_path, monkeypatch):
    """Without a limit, the start of a training of many epochs would take minutes, or would not be fitted at all."""
    assert prompt_rows(384, 150, 150) > 15_000
    monkeypatch.setattr(module, "PROMPT_WORK", 40 * 32 * (32 + 2 * 4))
    assert start_rows(tmp_path, separable_text(4, 200), lwal_init_samples=3, lwal_start_budget=1.0) == 40


@pytest.mark.parametrize("value", [-0.1, 1.5, float("nan"), float("inf")])
def test_a_budget_is_a_share(tmp_path, value):
    with pytest.raises(ValueError, match=r"lwal_start_budget is .*from 0 to 1"):
        LwALTrainingArguments(str(tmp_path), lwal_start_budget=value).resolve_lwal()


@pytest.mark.parametrize("task", ["text", "image", "audio"])
def test_what_is_fitted_by_default(task):
    """On features of pictures and sounds the fit was not measured; who asks for it gets it all the same."""
    kind = {"text": "bert", "image": "vit", "audio": "wav2vec2"}[task]
    config = AutoModelForLwALClassification.from_config(tiny_config(kind, num_labels=4)).config
    assert isinstance(config, LwALConfig)
    assert config.start_of_head == ("probe" if task == "text" else "whitened")
    config.initial_head = "probe"
    assert config.start_of_head == "probe"


def test_rows_are_read_by_length_and_come_back_in_their_order(tmp_path):
    """Features that went to other rows' labels would make every class mean wrong."""
    data = unpadded(4, 40)
    model = AutoModelForLwALClassification.from_config(tiny_config("bert", num_labels=4)).eval()
    args = arguments(tmp_path, per_device_eval_batch_size=8)
    trainer = LwALTrainer(model, args, train_dataset=data, data_collator=padded)
    batches = trainer._training_rows.of_each_class(5)
    widths = [batch["input_ids"].shape[1] for batch in batches]
    assert widths == sorted(widths)
    assert len(set(widths)) > 1
    samples = trainer._training_rows.collect(batches, "")
    rows = [data[index] for index in batches.dataset.indices]
    with torch.no_grad():
        alone = [model.start_values({k: v for k, v in padded([row]).items() if k != "labels"}) for row in rows]
    assert samples.labels.tolist() == [row["labels"] for row in rows]
    torch.testing.assert_close(samples.values, torch.cat(alone), atol=1e-5, rtol=1e-4)


def test_rows_without_tokens_stay_in_their_order():
    assert batches_by_length(separable_images(2, 5), [4, 0, 3, 1, 2], 2) == [[0, 1], [2, 3], [4]]
    assert batches_by_length([{"input_ids": [1, 2]}, {"input_ids": [1]}], [0, 1], 2) == [[0, 1]]


def test_of_many_rows_one_part_is_held_out(monkeypatch):
    """The scale must come from rows that were not fitted: those of other parts would make it far too steep."""
    features, labels = rows_of(40)
    every = fit_start(features, labels, 6, 12)
    monkeypatch.setattr(module, "ROWS_OF_ALL_FOLDS", 100)
    one = fit_start(features, labels, 6, 12)
    measured = one.held_out.isfinite().all(dim=1)
    assert measured.sum() == len(labels) / 4
    assert abs(one.accuracy - every.accuracy) < 0.1
    counts = labels.bincount()
    mixed = calibrated_scale(every.held_out, labels, counts, held_out=one.held_out)
    alone = calibrated_scale(every.held_out, torch.where(measured, labels, -100), counts, held_out=one.held_out)
    assert 0.5 < mixed / alone < 2.0


def test_the_fit_lowers_the_loss_on_new_rows(caplog):
    """A fit that learns its rows by heart lowers the loss on them alone."""
    features, labels = rows_of(30)
    queries, truth = rows_of(200, seed=1)
    means = torch.stack([features[labels == label].double().mean(0) for label in range(6)])
    with caplog.at_level(logging.INFO, "hf_lwal.modeling.probe_start"):
        found = fit_start(features, labels, 6, 12)

    def loss(weight, bias, offset):
        distances = torch.cdist(queries.double() @ weight.T + bias, means @ weight.T + bias + offset)
        mean = float(distances.mean())
        return min(float(F.cross_entropy(-(2 ** (k / 4)) / mean * distances, truth)) for k in range(-4, 40))

    before = loss(*class_mean_projection(features, labels, 6, 12), torch.zeros(6, 12).double())
    assert loss(found.weight, found.bias, found.offset) < 0.95 * before
    assert (predicted(found, features, labels, queries) == truth).double().mean() > 0.5
    assert "rows held out" in caplog.text
