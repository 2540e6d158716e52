"""What is checked before a model is saved: that what is written loads again, as the same model."""

from __future__ import annotations

import copy
import logging
from types import MethodType

import pytest
import torch
from test_modeling import inputs_for, trained
from tiny_models import tiny_config
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
    set_seed,
)
from transformers.modeling_outputs import SequenceClassifierOutput

from hf_lwal import AutoModelForLwALClassification as Auto
from hf_lwal import LwALTrainer, LwALTrainingArguments


@pytest.fixture(scope="module")
def original():
    set_seed(0)
    return trained(Auto.from_config(tiny_config("bert", num_labels=5)))


@pytest.fixture
def model(original):
    return copy.deepcopy(original)


# -- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [7, 3])
@pytest.mark.parametrize("form", ["id2label", "list", "num_labels"])
def test_another_number_of_names_is_refused_where_saving_begins(model, tmp_path, number, form):
    """With 7 names a folder was written that nothing could load; with 3 the weights only, without the table's file."""
    names = [f"name {index}" for index in range(number)]
    if form == "num_labels":
        model.config.num_labels = number
    else:
        model.config.id2label = names if form == "list" else dict(enumerate(names))
    with pytest.raises(ValueError, match=rf"config.id2label names {number} labels, but the label table has 5: set as"):
        model.save_pretrained(tmp_path / "new")
    assert not (tmp_path / "new").exists()
    with pytest.raises(ValueError, match=rf"names {number} labels"):
        model.train()


@pytest.mark.parametrize("number", [7, 3])
def test_another_number_of_names_is_refused_where_training_begins(model, tmp_path, number):
    """It trained to the end, and what it saved could not be loaded."""
    args = LwALTrainingArguments(str(tmp_path), max_steps=1, report_to="none", use_cpu=True)
    trainer = LwALTrainer(model=model, args=args, train_dataset=[{"input_ids": [5, 6], "labels": 0}] * 8)
    model.config.id2label = {index: f"name {index}" for index in range(number)}
    with pytest.raises(ValueError, match=rf"names {number} labels"):
        trainer.train()


def test_names_that_repeat_write_nothing(model, tmp_path):
    model.config.id2label = {0: "a", 1: "a", 2: "b", 3: "c", 4: "d"}
    with pytest.raises(ValueError, match="repeats 'a'"):
        model.save_pretrained(tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("names", [["a", "b", "c", "d", "e"], {str(i): name for i, name in enumerate("abcde")}])
def test_as_many_names_in_any_form_are_saved(model, tmp_path, names):
    """Scripts set one of the two dictionaries, with ids as they come; both have to be right in the file."""
    model.config.id2label = names
    model.save_pretrained(tmp_path)
    loaded = Auto.from_pretrained(tmp_path)
    assert loaded.config.id2label == dict(enumerate("abcde"))
    assert loaded.config.label2id == {name: index for index, name in enumerate("abcde")}


# -- an encoder that loading would not build --------------------------------------------------------------------------


class MeanPooled(BertForSequenceClassification):
    """A user's class: the mean of all tokens in place of the first one's."""

    def forward(self, input_ids=None, attention_mask=None, labels=None, **kwargs):
        hidden = self.bert(input_ids, attention_mask=attention_mask).last_hidden_state
        return SequenceClassifierOutput(logits=self.classifier(hidden.mean(dim=1)))


def first_tokens(self, input_ids=None, attention_mask=None, **_):
    return SequenceClassifierOutput(logits=self.classifier(self.bert(input_ids).last_hidden_state[:, 0]))


def other_forward(stock):
    stock.forward = MethodType(first_tokens, stock)


def other_pooler_forward(stock):
    stock.bert.pooler.forward = lambda hidden: hidden.mean(dim=1)


def other_activation(stock):
    stock.bert.pooler.activation = nn.ReLU()


def no_activation(stock):
    stock.bert.pooler.activation = nn.Identity()


def extra_layer(stock):
    stock.adapter = nn.Linear(32, 32)


def extra_parameter(stock):
    stock.bert.temperature = nn.Parameter(torch.ones(1))


def fewer_layers(stock):
    stock.bert.encoder.layer = stock.bert.encoder.layer[:1]


def deeper_pooler(stock):
    stock.bert.pooler.dense = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32))


def wider_layer(stock):
    stock.bert.embeddings.word_embeddings = nn.Embedding(99, 32)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (other_forward, "The forward of the encoder was replaced"),
        (other_pooler_forward, "The forward of the encoder's bert.pooler was replaced"),
        (other_activation, "other parts .*'bert.pooler.activation'"),
        (no_activation, "other parts .*'bert.pooler.activation'"),
        (extra_layer, "parts that its configuration does not build .*'adapter'"),
        (extra_parameter, "does not build .*'bert.temperature'"),
        (fewer_layers, "lacks parts .*'bert.encoder.layer.1'"),
        (deeper_pooler, "does not build .*'bert.pooler.dense.0'"),
        (wider_layer, "other parts .*'bert.embeddings.word_embeddings.weight'"),
    ],
)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_changed_classifier_is_not_saved_as_the_plain_one(tmp_path, caplog, change, sentence, when):
    """The plain class came back, with other features and no word: accuracy of a random model after a reload."""
    stock = BertForSequenceClassification(tiny_config("bert", num_labels=3))
    if when == "before":
        change(stock)
    model = Auto.from_stock(stock)
    if when == "before":
        assert "the model trains as it is, but cannot be saved" in caplog.text
    else:
        model.save_pretrained(tmp_path / "as it was")
        change(model.encoder)
    with pytest.raises(ValueError, match=f"{sentence}.*another model would come back"):
        model.save_pretrained(tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_class_of_ones_own_is_not_saved_as_its_parent(tmp_path, caplog):
    model = Auto.from_stock(MeanPooled(tiny_config("bert", num_labels=3)))
    assert "cannot be saved" in caplog.text
    assert model(**inputs_for(model)).logits.shape == (4, 3)
    with pytest.raises(ValueError, match=r"encoder is a test_saving.MeanPooled, .* builds a transformers.*BertForSeq"):
        model.save_pretrained(tmp_path)


class OwnConfig(BertConfig):
    model_type = "own-bert"


class OwnModel(MeanPooled):
    config_class = OwnConfig


def test_a_registered_class_is_saved_and_comes_back(tmp_path, caplog):
    """What transformers can build by the configuration is no change."""
    AutoConfig.register("own-bert", OwnConfig, exist_ok=True)
    AutoModelForSequenceClassification.register(OwnConfig, OwnModel, exist_ok=True)
    config = OwnConfig(**{**tiny_config("bert", num_labels=3).to_dict(), "model_type": "own-bert"})
    model = Auto.from_stock(OwnModel(config)).eval()
    model.save_pretrained(tmp_path)
    loaded = Auto.from_pretrained(tmp_path)
    assert type(loaded.encoder) is OwnModel
    assert torch.allclose(loaded(**inputs_for(model)).features, model(**inputs_for(model)).features, atol=1e-6)
    assert not caplog.records


def other_dropout(encoder):
    encoder.dropout = nn.Dropout(0.9)


def no_dropout(encoder):
    encoder.dropout = encoder.bert.embeddings.dropout = nn.Identity()


def half(encoder):
    encoder.half()


def checkpointing(encoder):
    encoder.gradient_checkpointing_enable()


@pytest.mark.parametrize("change", [other_dropout, no_dropout, half, checkpointing])
def test_what_changes_no_prediction_is_saved(tmp_path, change):
    """A refusal for nothing would end a training at its first checkpoint."""
    model = Auto.from_config(tiny_config("bert", num_labels=3)).eval()
    change(model.encoder)
    model.save_pretrained(tmp_path)
    Auto.from_pretrained(tmp_path)


def test_fewer_layers_that_the_configuration_knows_of(tmp_path):
    """The common way to a smaller model: cut layers off, and say so in the configuration."""
    model = Auto.from_config(tiny_config("bert", num_labels=3)).eval()
    model.save_pretrained(tmp_path)
    fewer_layers(model.encoder)
    model.encoder.config.num_hidden_layers = 1
    model.save_pretrained(tmp_path)
    assert len(Auto.from_pretrained(tmp_path).encoder.bert.encoder.layer) == 1


def test_a_head_that_is_none_is_refused_at_once():
    stock = BertForSequenceClassification(tiny_config("bert", num_labels=3))
    stock.classifier = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3))
    with pytest.raises(ValueError, match=r"The head classifier of this BertForSequenceClassification is Sequential"):
        Auto.from_stock(stock)


def test_a_model_that_gave_its_encoder_away(tmp_path):
    """Its weights do not fit its configuration any more: what it would save cannot be loaded."""
    model = Auto.from_config(tiny_config("bert", num_labels=3))
    args = LwALTrainingArguments(str(tmp_path / "out"), label_method="one_hot", report_to="none", use_cpu=True)
    trainer = LwALTrainer(model=model, args=args)
    with pytest.raises(ValueError, match=r"encoder has 3 outputs instead of 32.*trained, trainer.model"):
        model.save_pretrained(tmp_path / "new")
    trainer.save_model(tmp_path / "stock")
    assert BertForSequenceClassification.from_pretrained(tmp_path / "stock").config.num_labels == 3


def test_saving_takes_no_random_number(model, tmp_path):
    """A run that saves more often would be another run."""
    before = torch.get_rng_state()
    model.save_pretrained(tmp_path)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", ["vit", "convnext", "resnet", "wav2vec2", "llama", "modernbert", "deberta_v2"])
def test_every_kind_of_encoder_is_saved(name, tmp_path, caplog):
    task = {"task": "audio"} if name == "wav2vec2" else {}
    model = Auto.from_config(tiny_config(name, num_labels=3), **task)
    with caplog.at_level(logging.WARNING):
        model.save_pretrained(tmp_path)
    model.resize_embedding_dim(8)
    model.save_pretrained(tmp_path)
    assert Auto.from_pretrained(tmp_path).config.embedding_dim == 8
