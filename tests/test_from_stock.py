"""A stock classifier handed to the trainer: whoever still holds it saves, serves and reloads the trained model."""

from __future__ import annotations

import copy
import json
import pickle

import pytest
import torch
from test_modeling import inputs_for
from tiny_models import tiny_config
from toy import separable_text
from transformers import BertForSequenceClassification, ViTForImageClassification, pipeline

from hf_lwal import AutoModelForLwALClassification as Auto
from hf_lwal import LwALForImageClassification, LwALForSequenceClassification, LwALTrainer, LwALTrainingArguments

NAMES = {0: "ant", 1: "bee", 2: "cat", 3: "dog"}
IDS = {name: index for index, name in NAMES.items()}


def stock_classifier():
    torch.manual_seed(0)
    return BertForSequenceClassification(tiny_config("bert", id2label=NAMES, label2id=IDS))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The user's own reference to a classifier that LwALTrainer has trained, and the trainer."""
    stock = stock_classifier()
    args = LwALTrainingArguments(
        str(tmp_path_factory.mktemp("out")), max_steps=4, report_to="none", use_cpu=True, disable_tqdm=True
    )
    trainer = LwALTrainer(model=stock, args=args, train_dataset=separable_text(4, 64, 0))
    trainer.train()
    return stock, trainer


def test_the_users_own_reference_saves_all(trained, tmp_path):
    """It wrote a classifier of 32 outputs, LABEL_0 to LABEL_31, and no label table, which loaded without a word."""
    stock, trainer = trained
    stock.save_pretrained(tmp_path)
    assert list(json.loads((tmp_path / "config.json").read_text())["id2label"].values()) == list(NAMES.values())
    loaded = Auto.from_pretrained(tmp_path)
    assert loaded.label_table.seen.all()
    inputs = inputs_for(loaded)
    with torch.no_grad():
        assert torch.allclose(loaded(**inputs).logits, trainer.model.eval()(**inputs).logits, atol=1e-5)


def test_the_users_own_reference_predicts(trained):
    stock, trainer = trained
    assert stock is trainer.model
    assert stock.config.id2label == NAMES
    assert stock.eval()(**inputs_for(stock)).logits.shape == (4, 4)
    assert isinstance(stock, LwALForSequenceClassification)
    assert type(stock.encoder) is BertForSequenceClassification
    assert type(stock.fold()) is BertForSequenceClassification


def test_a_pipeline_of_the_users_own_reference(trained):
    """It answered LABEL_17 with a score of 0.03."""
    stock, _ = trained
    answers = pipeline("text-classification", model=stock, tokenizer=Words(), device="cpu")("any")
    assert answers[0]["label"] in IDS


class Words:
    """What the pipeline asks of a tokenizer."""

    model_input_names = ("input_ids",)

    def __call__(self, *_, **__):
        from transformers import BatchEncoding

        return BatchEncoding({"input_ids": torch.tensor([[5, 6, 7]])})


def test_copies_stand_on_their_own(trained):
    stock, _ = trained
    for twin in (copy.deepcopy(stock), pickle.loads(pickle.dumps(stock))):
        assert type(twin) is LwALForSequenceClassification
        assert twin.state_dict().keys() == stock.state_dict().keys()
        with torch.no_grad():
            twin.encoder.classifier.weight.add_(1.0)
        assert not torch.equal(twin.encoder.classifier.weight, stock.encoder.classifier.weight)


def test_parameters_and_hooks_of_the_classifier_stay():
    """An optimizer that was made before must still drive the backbone, and hooks still run."""
    stock = stock_classifier()
    before = dict(stock.bert.named_parameters())
    calls = []
    stock.bert.register_forward_hook(lambda *_: calls.append("inner"))
    stock.register_forward_pre_hook(lambda *_: calls.append("outer"))
    model = Auto.from_stock(stock)
    after = dict(model.encoder.bert.named_parameters())
    assert all(after[name] is parameter for name, parameter in before.items())
    model(**inputs_for(model))
    assert calls == ["outer", "inner"]


def test_the_configuration_it_was_made_from_is_the_callers():
    """A second model from the same configuration, for the next seed, would have 32 labels."""
    config = tiny_config("bert", num_labels=4)
    model = Auto.from_stock(BertForSequenceClassification(config))
    assert config.num_labels == 4
    assert model.encoder.config.num_labels == 32
    assert model.encoder.bert.config is model.encoder.config


def test_images_too():
    stock = ViTForImageClassification(tiny_config("vit", id2label=NAMES, label2id=IDS)).eval()
    assert Auto.from_stock(stock) is stock
    assert isinstance(stock, LwALForImageClassification)
    assert stock(**inputs_for(stock)).logits.shape == (4, 4)
    assert not stock.training
