"""Log priors in the training loss: its value, what predictions become of it, and what it is refused for."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from datasets import Dataset, IterableDataset
from scipy.special import softmax
from test_trainer import LABELS, TRAIN, arguments, lwal, stock
from toy import separable_text

from hf_lwal import LwALTrainer
from hf_lwal.data.labels import log_frequencies
from hf_lwal.objectives import LossContext

COUNTS = np.array([96, 48, 16])


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ([0, 0, 0, 2, 1, 1], [3 / 6, 2 / 6, 1 / 6]),
        ([-100, 1, 1, 1, -100], [1 / 5, 3 / 5, 1 / 5]),  # classes without rows count as one
        ([2], [1 / 3, 1 / 3, 1 / 3]),
        ([-100], [1 / 3, 1 / 3, 1 / 3]),
    ],
)
def test_log_frequencies_by_hand(labels, expected):
    """The logarithm of 0 would turn the loss of every row into infinity minus infinity."""
    found = log_frequencies(np.asarray(labels), 3)
    np.testing.assert_allclose(found.exp().numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize("training", [True, False])
def test_the_prior_is_in_the_training_loss_alone(training):
    """In an evaluation it would measure another model than the one that predicts."""
    generator = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(5, 3, generator=generator), torch.tensor([0, 2, -100, 1, 1])
    prior = torch.tensor([0.7, 0.2, 0.1]).log()
    context = LossContext(model=None, num_items=torch.tensor(4) if training else None, log_prior=prior)
    loss = context.classification_loss({"logits": logits}, labels, labels)
    shares = softmax(logits.double().numpy() + training * prior.double().numpy(), axis=1)
    rows = [0, 1, 3, 4]
    assert float(loss) == pytest.approx(-np.log(shares[rows, labels[rows].numpy()]).mean(), rel=1e-6)


def alike_rows():
    """Rows of one input whose labels are distributed as ``COUNTS``: nothing but their frequency can be learned."""
    row = separable_text(3, 3)[0]
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(3), COUNTS))
    columns = {name: [value] * len(labels) for name, value in row.items() if name != "labels"}
    return Dataset.from_dict({**columns, "labels": labels.tolist()})


@pytest.mark.parametrize("prior", ["train", "uniform"])
def test_what_is_predicted_where_only_frequencies_can_be_learned(tiny_config, tmp_path, prior):
    """With the prior in the loss the logits need not hold it: all labels are as likely; without, as in training."""
    options = {"learning_rate": 3e-2, "max_steps": 60, "per_device_train_batch_size": 160, "weight_decay": 0.0}
    model = stock(tiny_config)
    for parameter in model.base_model.parameters():
        parameter.requires_grad_(False)
    args = arguments(tmp_path, label_method="one_hot", lwal_prior=prior, lr_scheduler_type="linear", **options)
    trainer = LwALTrainer(model, args, train_dataset=alike_rows())
    trainer.train()
    shares = softmax(trainer.predict(alike_rows().select([0])).predictions, axis=1)[0, :3]
    expected = COUNTS / COUNTS.sum() if prior == "uniform" else np.full(3, 1 / 3)
    np.testing.assert_allclose(shares / shares.sum(), expected, atol=0.03)


def first_pull_loss(tiny_config, folder, rows, labels=LABELS, **options):
    args = arguments(folder, max_steps=1, logging_steps=1, **options)
    trainer = LwALTrainer(lwal(tiny_config), args, train_dataset=rows)
    trainer.train()
    return next(log["pull_loss"] for log in trainer.state.log_history if "pull_loss" in log)


def test_equal_frequencies_change_nothing(tiny_config, tmp_path):
    """A constant in all logits has no effect; the way through blocks of labels must agree."""
    plain = first_pull_loss(tiny_config, tmp_path, TRAIN)
    assert first_pull_loss(tiny_config, tmp_path, TRAIN, lwal_prior="train") == pytest.approx(plain, rel=1e-5)
    assert first_pull_loss(tiny_config, tmp_path, TRAIN, lwal_prior="uniform") == plain


def test_a_training_with_very_many_labels_has_the_same_loss(tiny_config, tmp_path, monkeypatch):
    """Without the matrix of logits the prior is added block by block: only large models would miss it there."""
    rows = TRAIN.select([row for row, label in enumerate(TRAIN["labels"]) if label != 1 or row < 40])
    plain = first_pull_loss(tiny_config, tmp_path, rows)
    whole = first_pull_loss(tiny_config, tmp_path, rows, lwal_prior="train")
    monkeypatch.setattr("hf_lwal.modeling.label_tracking.LEAST_LOGITS", 1)
    blocks = first_pull_loss(tiny_config, tmp_path, rows, lwal_prior="train")
    assert blocks == pytest.approx(whole, rel=1e-4)
    assert abs(whole - plain) > 1e-3


def test_names_as_labels_are_counted(tiny_config, tmp_path):
    model = lwal(tiny_config)
    rows = TRAIN.select(range(64))
    named = rows.remove_columns("labels").add_column("label", [f"LABEL_{label}" for label in rows["labels"]])
    trainer = LwALTrainer(model, arguments(tmp_path, max_steps=1, lwal_prior="train"), train_dataset=named)
    trainer.train()
    expected = np.log(np.bincount(rows["labels"], minlength=LABELS) / 64)
    np.testing.assert_allclose(trainer._log_prior.numpy(), expected, rtol=1e-5)


def test_what_cannot_be_counted_and_what_it_means_nothing_to(tiny_config, tmp_path, caplog):
    """A prior that is asked for and silently not there is believed to act."""
    stream = IterableDataset.from_generator(lambda: iter(TRAIN.select(range(32))))
    trainer = LwALTrainer(lwal(tiny_config), arguments(tmp_path, lwal_prior="train"), train_dataset=stream)
    with pytest.raises(ValueError, match=r"counts the labels of all training rows, which IterableDataset does not"):
        trainer.train()
    with pytest.raises(ValueError, match="lwal_prior is 'test', but it must be train or uniform"):
        LwALTrainer(lwal(tiny_config), arguments(tmp_path, lwal_prior="test"), train_dataset=TRAIN)
    options = {"label_method": "max_entropy", "lwal_prior": "train"}
    trainer = LwALTrainer(lwal(tiny_config), arguments(tmp_path, max_steps=1, **options), train_dataset=TRAIN)
    assert "lwal_prior='train': means nothing to label_method='max_entropy'" in caplog.text
    trainer.train()
    assert trainer._log_prior is None
    own = LwALTrainer(
        lwal(tiny_config),
        arguments(tmp_path, max_steps=1, lwal_prior="train"),
        train_dataset=TRAIN,
        compute_loss_func=lambda outputs, labels, num_items_in_batch=None: outputs.logits.square().sum(),
    )
    own.train()
    assert "compute_loss_func replaces the cross-entropy, so lwal_prior='train' changes nothing" in caplog.text
