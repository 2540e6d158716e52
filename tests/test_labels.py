"""Labels in every form in which data sets and loops give them, and rows that must not count."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from datasets import Dataset
from test_modeling import LABELS, build, inputs_for, trained
from transformers import default_data_collator

from hf_lwal import LwALTrainer, LwALTrainingArguments
from hf_lwal.data.labels import CheckedCollator, check_labels, ids_of, label_column
from hf_lwal.settings import apply_settings
from hf_lwal.settings.training_args import resolve

NAMES = {0: "a", 1: "b", 2: "c", 3: "d", 4: "e"}
IDS = [0, 1, 4, 2]
FORMS = {
    "column": lambda ids: ids.unsqueeze(1),
    "uint8": lambda ids: ids.to(torch.uint8),
    "int8": lambda ids: ids.to(torch.int8),
    "int16": lambda ids: ids.to(torch.int16),
    "int32": lambda ids: ids.to(torch.int32),
    "uint16": lambda ids: ids.to(torch.uint16),
    "float": lambda ids: ids.float(),
    "half column": lambda ids: ids.half().unsqueeze(1),
    "numpy": lambda ids: ids.numpy().astype(np.uint8),
    "list": lambda ids: ids.tolist(),
}


def built(tiny_config, preset):
    model = build(tiny_config, "bert")
    if preset == "paper":
        apply_settings(model, resolve(LwALTrainingArguments(lwal_preset="paper", report_to="none")))
    return model


@pytest.mark.parametrize("preset", ["default", "paper"])
def test_every_form_trains_alike(tiny_config, preset):
    """Labels of a type that PyTorch cannot index by ended in an error from inside, or in sums of other classes."""
    expected = None
    for form in (lambda ids: ids, *FORMS.values()):
        model = built(tiny_config, preset)
        for _ in range(2):
            loss = model(**inputs_for(model), labels=form(torch.tensor(IDS))).loss
        model.eval()
        found = (loss.item(), model.label_table.label_vectors, model.label_table.counts)
        expected = expected or found
        assert found[0] == expected[0]
        assert torch.equal(found[1], expected[1])
        assert torch.equal(found[2], expected[2])
    assert expected[2].tolist() == [2, 2, 2, 0, 2]


def test_two_classes_as_truth_values(tiny_config):
    """True and False are the ids 1 and 0."""
    model = build(tiny_config, "bert").eval()
    inputs = inputs_for(model)
    truth = torch.tensor([True, False, True, True])
    assert model(**inputs, labels=truth).loss == model(**inputs, labels=truth.long()).loss


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        (torch.tensor([0.0, 1.5, 2.0, 0.0]), "one class id .* torch.float32 of shape"),
        (torch.tensor([0.0, float("nan"), 2.0, 0.0]), "one class id"),
        (torch.zeros(4, LABELS), r"one class id .* of shape \(4, 5\)"),
        (torch.tensor([0, 1, 9, 2]), "Label 9 in row 2 of a batch is outside 0…4: build the model with num_labels=10"),
        (torch.tensor([0, 1, 2, -1]), "Label -1 in row 3 of a batch is outside"),
    ],
)
def test_labels_that_cannot_be_used(tiny_config, labels, sentence):
    """A label of no class indexes another class's row, or ends in an error from inside."""
    model = build(tiny_config, "bert")
    with pytest.raises(ValueError, match=sentence):
        model(**inputs_for(model), labels=labels)


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        ([0, 3, 11, 7, 11], "Label 11 in row 2 is outside 0…1: build the model with num_labels=12"),
        ([0, 1, 2], "Label 2 in row 2 is outside 0…1: build the model with num_labels=3"),
        ([5, -100, -1, 0], "Label -1 in row 2 is outside 0…1: rows without a label use -100"),
        ([-100, 4, -100], "Label 4 in row 1 is outside 0…1: build the model with num_labels=5"),
    ],
)
def test_the_remedy_for_too_few_labels_is_enough(labels, sentence):
    """Naming the first label beyond the model's led from one error to the next, up to the highest."""
    with pytest.raises(ValueError, match=sentence):
        check_labels(np.array(labels), {0: "a", 1: "b"})


class Rows(torch.utils.data.Dataset):
    """A data set of tensors, as torchvision's arrays are."""

    def __init__(self, form):
        self.form = form

    def __len__(self):
        return 10

    def __getitem__(self, i):
        return {"input_ids": torch.tensor([2, 4 + i % LABELS, 3]), "labels": self.form(i % LABELS)}


@pytest.mark.parametrize(
    "form",
    [lambda i: torch.tensor(i, dtype=torch.uint8), np.int32, lambda i: [i], float, lambda i: f"LABEL_{i}"],
    ids=["uint8", "numpy", "list of one", "float", "name"],
)
def test_the_trainer_counts_them_rightly(tiny_config, tmp_path, form):
    """A data set of other labels than Python's numbers must train, and each row must count for its class."""
    args = LwALTrainingArguments(
        str(tmp_path), max_steps=2, per_device_train_batch_size=5, report_to="none", use_cpu=True, seed=1
    )
    trainer = LwALTrainer(model=build(tiny_config, "bert"), args=args, train_dataset=Rows(form))
    trainer.train()
    counts = trainer.model.label_table.counts
    assert counts.sum() == 10 + 10  # the start pass and two steps
    assert counts.tolist() == [4] * LABELS


def test_columns_of_a_data_set():
    """A missing label was reported as a wrong one in another row."""
    for column in ([0, 2, 1], [[0], [2], [1]], [0.0, 2.0, 1.0], np.array([0, 2, 1], dtype=np.uint8)):
        found = label_column(Dataset.from_dict({"label": column}))
        check_labels(found, NAMES)
        assert ids_of(found, NAMES).tolist() == [0, 2, 1]
        assert found.dtype == np.int64
    assert label_column(Dataset.from_dict({"label": [True, False]})).tolist() == [1, 0]
    for column, sentence in (
        ([2, 0, 1, None], r"no label \(None\) in row 3"),
        (["a", None, "b"], r"no label \(None\) in row 1"),
        ([None, "z"], r"no label \(None\) in row 0"),
        (["a", "z"], "Label 'z' in row 1 is not in the model's label2id"),
        ([[0], [1, 2]], r"lists such as \[0\] in row 0"),
        ([[0, 1], [1, 2]], "one class id"),
        ([0.5, 1.0], "one class id"),
        ([0, 7], "Label 7 in row 1 is outside"),
    ):
        with pytest.raises(ValueError, match=sentence):
            check_labels(label_column(Dataset.from_dict({"label": column})), NAMES)


def test_batches_of_a_stream():
    """Streams are only checked batch by batch."""
    collator = CheckedCollator(default_data_collator, NAMES)
    for name in ("label", "labels"):
        for given in ([1, 3], [np.uint8(1), np.uint8(3)], [[1], [3]], ["b", "d"], [["b"], ["d"]], [1.0, 3.0]):
            batch = collator([{name: label, "x": 0.5} for label in given])
            assert batch["labels"].tolist() == [1, 3]
            assert batch["labels"].dtype == torch.int64
    with pytest.raises(ValueError, match=r"no label \(None\) in row 1 of a batch"):
        collator([{"label": 1}, {"label": None}])
    with pytest.raises(ValueError, match="Label 5 in row 0 of a batch is outside"):
        collator([{"label": 5}])


@pytest.mark.parametrize("preset", ["default", "paper"])
@pytest.mark.parametrize("bad", ["all", "one", "infinite"])
def test_a_batch_of_nan_does_not_stay(tiny_config, preset, bad):
    """One overflow, whose step a gradient scaler skips, left class means at NaN for the rest of the training."""
    model = trained(built(tiny_config, preset), steps=3).train()
    untouched = copy.deepcopy(model)

    def overflow(module, args, output):
        rows = slice(0, 1) if bad == "one" else slice(None)
        output = output.clone()
        output[rows] = float("inf" if bad == "infinite" else "nan")
        return output

    labels = torch.arange(4)
    hook = model.encoder.dropout.register_forward_hook(overflow)
    model(**inputs_for(model), labels=labels)
    hook.remove()
    model.zero_grad()
    for name, tensor in model.eval().label_table.state_dict().items():
        assert tensor.isfinite().all(), name
    if bad != "one":
        assert torch.equal(model.label_table.class_features, untouched.eval().label_table.class_features)
    assert trained(model)(**inputs_for(model)).logits.isfinite().all()


def test_a_first_batch_or_a_start_row_of_nan(tiny_config):
    """The scale is calibrated on the first rows, and a single NaN among them made all logits NaN."""
    model = build(tiny_config, "bert")
    hook = model.encoder.dropout.register_forward_hook(lambda *_: torch.full_like(_[2], float("nan")))
    model(**inputs_for(model), labels=torch.arange(4))
    hook.remove()
    model(**inputs_for(model), labels=torch.arange(4))
    assert model.label_table.scale.isfinite().all()
    batches = [{**inputs_for(model, seed=seed), "labels": torch.arange(4)} for seed in range(3)]
    started = build(tiny_config, "bert")
    started.initialize_labels(batches[:2], progress=False)
    seen = iter([1.0, 1.0, float("nan")])
    other = build(tiny_config, "bert")
    hook = other.encoder.dropout.register_forward_hook(lambda module, args, output: output * next(seen))
    other.initialize_labels(batches, progress=False)
    hook.remove()
    assert torch.allclose(other.label_table.label_vectors, started.label_table.label_vectors, atol=1e-5)
    table = started.label_table
    table.step.fill_(3)
    started.commit(torch.full_like(table.pending_sums, float("nan")))
    assert table.class_features.isfinite().all()
