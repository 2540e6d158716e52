"""Training rows whose label is probably wrong: what leaving them out, or counting them for less, changes."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from datasets import IterableDataset
from toy import separable_text
from trajectory import LABELS, arguments, build, rows_for, train

from hf_lwal import LwALTrainer, LwALTrainingArguments
from hf_lwal.data.sample_ids import ROW_WEIGHT
from hf_lwal.modeling.functional import cross_entropy
from hf_lwal.modeling.label_errors import LabelErrors
from hf_lwal.objectives import LossContext
from hf_lwal.training import noisy_labels
from hf_lwal.training.noisy_labels import row_weights

TEST = rows_for("bert", 40, seed=1)


def swapped_rows(rows=160, every=8, without_label=()):
    """Rows that are easy to tell apart, the label of every so many replaced."""
    data = separable_text(LABELS, rows, 0)
    labels = np.array(data["labels"])
    labels[::every] = (labels[::every] + 1) % LABELS
    labels[list(without_label)] = -100
    return data.remove_columns("labels").add_column("labels", labels.tolist())


def trained(folder, data, method="default", checkpoint=None, **options):
    options = {"max_steps": 4, "per_device_train_batch_size": 16, **options}
    return train(build("bert", method), arguments(folder, method, **options), data, TEST, checkpoint)


def weights_of(trainer):
    return trainer._training_rows.weights.values


@pytest.mark.parametrize("method", ["default", "one_hot", "one_hot from class means", "paper"])
def test_dropped_rows_count_as_rows_without_a_label(tmp_path, method):
    """A row that is left out of the loss, but not of class means, start, or number of rows, still trains something."""
    data = swapped_rows()
    counted = {"lwal_class_weights": "balanced", "lwal_prior": "train"}
    dropping, one = trained(tmp_path / "a", data, method, lwal_noisy_labels="drop", **counted)
    weights = weights_of(dropping)
    dropped = (weights == 0).nonzero()[:, 0].tolist()
    assert 5 < len(dropped) < 40, "most of the twenty replaced labels"
    assert sum(row % 8 == 0 for row in dropped) > 0.6 * len(dropped)
    by_hand = np.array(data["labels"])
    by_hand[dropped] = -100
    other = data.remove_columns("labels").add_column("labels", by_hand.tolist())
    _, two = trained(tmp_path / "b", other, method, **counted)
    assert one.moved > 1e-4
    assert sorted(one.tensors) == sorted(two.tensors)
    for name, tensor in one.tensors.items():
        assert torch.equal(tensor, two.tensors[name]), name
    assert data["labels"] == swapped_rows()["labels"], "the data set is the user's"


def test_the_gradient_of_dropped_rows_is_that_without_them():
    """Weights of 0 and 1 must give the mean over the rows that count, not over all."""
    torch.manual_seed(0)
    logits, labels = torch.randn(6, 3, requires_grad=True), torch.tensor([0, 1, 2, -100, 1, 0])
    weights = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0, 1.0])
    context = LossContext(model=None, num_items=(weights * (labels != -100)).sum(), row_weights=weights)
    rows = cross_entropy(logits, labels, reduction="none")
    (found,) = torch.autograd.grad(context.mean(rows, labels), logits)
    kept = torch.tensor([0, 2, 5])
    (expected,) = torch.autograd.grad(torch.nn.functional.cross_entropy(logits[kept], labels[kept]), logits)
    torch.testing.assert_close(found, expected)


def test_a_weight_of_a_half_is_half_a_row(tmp_path):
    """Rows counted for less must also count for less in what the sum is divided by, in every split into batches."""
    data = swapped_rows(without_label=(3, 9))
    trainer, one = trained(tmp_path / "a", data, lwal_noisy_labels="downweight")
    weights = weights_of(trainer)
    assert len(weights) == 160
    assert float(weights[8::8].mean()) < 0.5 < 0.8 < float(weights[1::8].mean())
    assert weights[[3, 9]].tolist() == [1.0, 1.0]
    parts = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4}
    _, two = trained(tmp_path / "b", data, lwal_noisy_labels="downweight", **parts)
    torch.testing.assert_close(one.tensors["gradient"], two.tensors["gradient"], rtol=1e-3, atol=1e-5)
    batch = next(iter(trainer.get_train_dataloader()))
    items = trainer._get_num_items_in_batch([batch], torch.device("cpu"))
    expected = float((batch[ROW_WEIGHT] * (batch["labels"] != -100)).sum())
    assert float(items) == pytest.approx(expected)
    assert expected < float((batch["labels"] != -100).sum())


def test_a_resumed_training_leaves_out_the_same_rows(tmp_path, monkeypatch):
    """Judged anew by a model that has learned the wrong labels, other rows would be left out after an interruption."""
    data, options = swapped_rows(), {"lwal_noisy_labels": "drop", "max_steps": 6}
    whole, one = trained(tmp_path / "a", data, **options)
    trained(tmp_path / "b", data, **options, save_strategy="steps", save_steps=3)

    def refused(*_):
        raise AssertionError("judged again")

    monkeypatch.setattr(noisy_labels, "label_errors", refused)
    checkpoint = str(tmp_path / "b" / "checkpoint-3")
    resumed, two = trained(tmp_path / "b", data, checkpoint=checkpoint, **options)
    assert torch.equal(weights_of(whole), weights_of(resumed))
    for name, tensor in one.tensors.items():
        if name.startswith("weight ") or name == "logits":
            assert torch.equal(tensor, two.tensors[name]), name
    with pytest.raises(ValueError, match=r"what 160 training rows count, but there are 80"):
        trained(tmp_path / "b", data.select(range(80)), checkpoint=checkpoint, **options)


def test_keep_judges_nothing(tmp_path, monkeypatch):
    """The pass costs a third of an epoch, and nobody asked for it."""

    def refused(*_):
        raise AssertionError("judged")

    monkeypatch.setattr(noisy_labels, "label_errors", refused)
    trainer, _ = trained(tmp_path, swapped_rows(), max_steps=1)
    assert weights_of(trainer) is None
    assert ROW_WEIGHT not in next(iter(trainer.get_train_dataloader()))


def test_the_log_says_what_was_decided(tmp_path, caplog):
    """Rows that vanish without a word are looked for in vain."""
    with caplog.at_level(logging.WARNING, logger="hf_lwal"):
        trainer, _ = trained(tmp_path, swapped_rows(), lwal_noisy_labels="drop", max_steps=1)
    number = int((weights_of(trainer) == 0).sum())
    (line,) = [
        record.getMessage() for record in caplog.records if "probably have a wrong label" in record.getMessage()
    ]
    assert line.startswith(f"{number} of 160 training rows")
    assert "left out" in line
    (logged,) = [entry for entry in trainer.state.log_history if "suspicious_rows" in entry]
    assert logged["suspicious_rows"] == number
    assert logged["wrong_share"] == pytest.approx(number / 160, abs=0.005)


def test_a_second_training_judges_anew(tmp_path):
    """Weights of an earlier training set would leave out rows by their number alone."""
    trainer, _ = trained(tmp_path, swapped_rows(), lwal_noisy_labels="drop", max_steps=1)
    trainer.train_dataset = separable_text(LABELS, 100, 0)
    trainer.train()
    assert len(weights_of(trainer)) == 100


def test_a_label_never_loses_all_its_rows():
    """A class whose rows all look like another's would vanish from the model."""
    suspicious = torch.tensor([True, True, False, True, False])
    margins = torch.where(suspicious, -3.0, 3.0)
    found = LabelErrors(margins, torch.zeros(5, dtype=torch.int64), 0.6, suspicious)
    labels = torch.tensor([0, 0, 1, 1, -100])
    assert row_weights(found, labels, drop=True).tolist() == [1.0, 1.0, 1.0, 0.0, 1.0]
    soft = row_weights(found, labels, drop=False)
    assert soft[:2].tolist() == [1.0, 1.0]
    assert float(soft[3]) == pytest.approx(1 / (1 + np.exp(3.0)))


def test_what_cannot_be_judged_is_refused(tmp_path):
    """A stream has no row numbers, and a loss of one's own cannot be weighted."""
    with pytest.raises(ValueError, match="Unknown lwal_noisy_labels 'yes': choose one of keep, drop, downweight"):
        LwALTrainingArguments(str(tmp_path), lwal_noisy_labels="yes").resolve_lwal()
    data = swapped_rows(40)
    stream = IterableDataset.from_generator(lambda: iter(data))
    with pytest.raises(ValueError, match=r"lwal_noisy_labels='drop' judges all training rows .* is a stream"):
        trained(tmp_path, stream, lwal_noisy_labels="drop", max_steps=1)
    with pytest.raises(ValueError, match=r"downweight.*paper preset.*use lwal_noisy_labels='drop'"):
        trained(tmp_path, data, "paper", lwal_noisy_labels="downweight")
    args = arguments(tmp_path, lwal_noisy_labels="downweight", max_steps=1)
    own = {"compute_loss_func": lambda outputs, labels, num_items_in_batch: outputs.logits.sum()}
    with pytest.raises(ValueError, match=r"downweight.*compute_loss_func.*use lwal_noisy_labels='drop'"):
        LwALTrainer(build("bert"), args, train_dataset=data, **own).train()


def test_a_stock_model_under_lwr_keeps_its_row_numbers(tmp_path):
    """Retrospection and the filter both number the rows; one must not take the numbers from the other."""
    trainer, _ = trained(tmp_path, swapped_rows(), "one_hot", label_method="lwr", lwal_noisy_labels="drop")
    assert trainer.label_objective.records.shape == (160, LABELS)
    assert int((weights_of(trainer) == 0).sum()) > 5
