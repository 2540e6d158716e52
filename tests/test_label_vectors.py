"""Every method has label vectors to compare: the ones it predicts with, or class means of what its head sees."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from toy import separable_images, separable_text
from transformers import AutoModelForImageClassification, AutoModelForSequenceClassification

from hf_lwal import AutoModelForLwALClassification, LwALTrainer, LwALTrainingArguments
from hf_lwal.hierarchy import label_distances
from hf_lwal.hierarchy.label_vectors import label_vectors
from hf_lwal.objectives.label_embed import LabelEmbedding

LABELS = 5


def loader(rows, batch_size=8):
    return DataLoader(rows.with_format("torch"), batch_size=batch_size)


@pytest.fixture
def stock(tiny_config):
    torch.manual_seed(0)
    return AutoModelForSequenceClassification.from_config(tiny_config("bert", num_labels=LABELS))


def test_class_means_are_those_of_the_heads_input(stock):
    """Found independently: a classifier whose head is the identity returns the features as its logits."""
    rows = separable_text(LABELS, 30)
    means = label_vectors(stock.train(), loader(rows), progress=False)
    stock.classifier = torch.nn.Identity()
    batch = rows.with_format("torch")[:]
    with torch.no_grad():
        features = stock.eval()(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    expected = torch.stack([features[batch["labels"] == label].mean(dim=0) for label in range(LABELS)])
    assert expected.std(dim=0).max() > 1e-3, "classes with one and the same mean would prove nothing"
    torch.testing.assert_close(means, expected, rtol=1e-4, atol=1e-5)


def test_class_means_are_taken_in_evaluation_mode_and_leave_no_trace(tiny_config):
    """BatchNorm in training mode would mix the rows of a batch, and would move the model's statistics."""
    torch.manual_seed(0)
    model = AutoModelForImageClassification.from_config(tiny_config("resnet", num_labels=LABELS)).train()
    rows = separable_images(LABELS, 40)
    with torch.no_grad():
        model(pixel_values=rows.with_format("torch")[:]["pixel_values"])  # statistics of a trained model
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random_state = torch.get_rng_state()
    means = label_vectors(model, loader(rows), progress=False)
    assert model.training
    assert torch.equal(torch.get_rng_state(), random_state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    torch.testing.assert_close(means, label_vectors(model, loader(rows, batch_size=3), progress=False))


def test_a_class_without_rows_is_missing_not_zero(stock):
    """A mean of zeros would count as a label like any other."""
    rows = separable_text(LABELS, 30)
    rows = rows.map(lambda row: {"labels": -100 if row["labels"] == 3 else row["labels"]})
    means = label_vectors(stock, loader(rows), progress=False)
    assert torch.isnan(means[3]).all()
    assert torch.isfinite(means[[0, 1, 2, 4]]).all()
    distances = label_distances(means, allow_missing=True)
    assert np.isnan(distances[3]).all()
    np.testing.assert_allclose(distances[0, 4], float((means[0] - means[4]).norm()), rtol=1e-5)


def test_an_lwal_model_gives_its_table_with_what_training_changed(tiny_config):
    """Right after a training step the table's buffer lags behind the head it derives from."""
    torch.manual_seed(0)
    model = AutoModelForLwALClassification.from_config(tiny_config("bert", num_labels=LABELS))
    model.initialize_labels(loader(separable_text(LABELS, 30)), progress=False)
    model.train()
    with torch.no_grad():
        model.encoder.classifier.weight.mul_(2.0)
    model.tracker.stale = True  # what a training step leaves
    vectors = label_vectors(model)
    torch.testing.assert_close(vectors, model.current_label_vectors().detach())
    model.label_table.counts[2] = 0
    vectors = label_vectors(model)
    assert torch.isnan(vectors[2]).all(), "a label never seen has no vector"
    assert torch.isfinite(vectors[[0, 1, 3, 4]]).all()


def test_label_embed_gives_the_embedding_of_its_similarities(stock, tmp_path):
    objective = LabelEmbedding()
    objective.prepare_model(stock)
    with torch.no_grad():
        objective.embedding.copy_(3.0 * torch.eye(LABELS))
        objective.embedding[0, 1] = objective.embedding[1, 0] = 2.5
    vectors = label_vectors(stock, objective=objective)
    similarities = (objective.similarities + objective.similarities.T) / 2
    torch.testing.assert_close(vectors @ vectors.T, similarities, atol=1e-5, rtol=1e-4)
    distances = label_distances(vectors)
    assert distances[0, 1] == np.min(distances[np.triu_indices(LABELS, 1)])


@pytest.mark.parametrize("method", ["lwal", "one_hot", "label_embed"])
def test_after_a_training_every_method_has_vectors(tiny_config, tmp_path, method):
    torch.manual_seed(0)
    config = tiny_config("bert", num_labels=LABELS)
    lwal = method == "lwal"
    model = (AutoModelForLwALClassification if lwal else AutoModelForSequenceClassification).from_config(config)
    rows = separable_text(LABELS, 40)
    args = LwALTrainingArguments(
        str(tmp_path), label_method=method, max_steps=2, use_cpu=True, report_to="none", save_strategy="no",
        disable_tqdm=True, dataloader_pin_memory=False,
    )  # fmt: skip
    trainer = LwALTrainer(model, args, train_dataset=rows)
    trainer.train()
    vectors = label_vectors(trainer.model, loader(rows), trainer.label_objective, progress=False)
    assert vectors.shape[0] == LABELS
    assert vectors.dtype == torch.float32
    off_diagonal = label_distances(vectors)[np.triu_indices(LABELS, 1)]
    assert (off_diagonal > 0).all()


def test_a_stock_model_without_rows_says_what_to_give(stock):
    with pytest.raises(ValueError, match=r"BertForSequenceClassification has no label vectors .* give a dataloader"):
        label_vectors(stock)
