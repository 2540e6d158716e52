"""What scripts for stock classifiers touch beside forward: parts, methods and configuration."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from test_modeling import LABELS, build, inputs_for, trained
from torch import nn
from toy import separable_text
from transformers import AutoModelForSequenceClassification

from hf_lwal import AutoModelForLwALClassification, LwALTrainer, LwALTrainingArguments

BACKBONES = {"bert": "bert", "distilbert": "distilbert", "llama": "model", "vit": "vit", "wav2vec2": "wav2vec2"}


@pytest.mark.parametrize("name", BACKBONES)
def test_a_frozen_backbone_leaves_the_head(tiny_config, name):
    """Freezing `base_model` froze the head too, which then stayed random: a worse model, and no word."""
    model = build(tiny_config, name)
    assert model.base_model is getattr(model, BACKBONES[name]) is getattr(model.encoder, BACKBONES[name])
    for parameter in model.base_model.parameters():
        parameter.requires_grad = False
    left = {key for key, parameter in model.named_parameters() if parameter.requires_grad}
    assert any(parameter.requires_grad for parameter in model.head_module.parameters())
    assert not any(key.startswith(f"encoder.{BACKBONES[name]}.") for key in left)


def test_the_start_pass_fits_a_head_on_a_frozen_backbone(tiny_config, tmp_path):
    """The head of a frozen backbone must start from the data and learn, the backbone must stay."""
    model = build(tiny_config, "bert")
    model.base_model.requires_grad_(False)
    head, backbone = model.head_module.weight.clone(), copy.deepcopy(model.bert.state_dict())
    args = LwALTrainingArguments(str(tmp_path), max_steps=2, report_to="none", use_cpu=True)
    LwALTrainer(model=model, args=args, train_dataset=separable_text(LABELS, 40)).train()
    assert not torch.equal(model.head_module.weight, head)
    assert all(torch.equal(value, backbone[key]) for key, value in model.bert.state_dict().items())
    model.save_pretrained(tmp_path / "saved")
    loaded = AutoModelForLwALClassification.from_pretrained(tmp_path / "saved")
    assert torch.equal(loaded.bert.pooler.dense.weight, model.bert.pooler.dense.weight)
    assert torch.equal(loaded(**inputs_for(model)).logits, model.eval()(**inputs_for(model)).logits)


def test_parts_and_methods(tiny_config):
    """Audio scripts freeze the feature encoder by the stock class's method; others look at the head's sizes."""
    model = build(tiny_config, "wav2vec2")
    model.freeze_feature_encoder()
    assert not any(p.requires_grad for p in model.wav2vec2.feature_extractor.parameters())
    model.freeze_base_model()
    assert not any(p.requires_grad for p in model.wav2vec2.parameters())
    assert model.projector is model.encoder.projector
    model = build(tiny_config, "bert")
    assert model.num_labels == model.config.num_labels == model.classifier.out_features == LABELS
    assert model.classifier.in_features == model.config.embedding_dim
    model.dropout.p = 0.25
    assert model.encoder.dropout.p == 0.25
    for missing in ("hf_device_map", "hf_quantizer", "is_quantized", "vit", "weight"):
        assert not hasattr(model, missing)
    with pytest.raises(AttributeError, match="'LwALForSequenceClassification' object has no attribute 'nothing'"):
        _ = model.nothing
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert copied.bert is copied.encoder.bert is not model.bert
        assert torch.equal(copied.eval()(**inputs_for(model)).logits, model.eval()(**inputs_for(model)).logits)
    assert not any(key.startswith(("bert.", "dropout.")) for key in model.state_dict())


def test_another_classifier(tiny_config):
    """A head put in the table's place ended in an error about a step."""
    model = build(tiny_config, "bert")
    for head in (nn.Sequential(nn.Linear(32, 8), nn.Linear(8, LABELS)), nn.Linear(32, LABELS), nn.Identity()):
        with pytest.raises(ValueError, match=f"model.classifier is the label table, and a {type(head).__name__}"):
            model.classifier = head
    model.classifier = copy.deepcopy(model.classifier)
    trained(model)


@pytest.mark.parametrize("name", ["bert", "distilbert", "modernbert", "llama", "vit", "wav2vec2"])
def test_the_configuration_is_read_and_written(tiny_config, name, tmp_path):
    """A rate that a script sets must reach the encoder, and what it reads must be the encoder's."""
    model = build(tiny_config, name)
    config, stock = model.config, model.encoder.config
    before = config.to_json_string()
    known = [key for key in stock.to_dict() if not key.startswith("_") and key not in config.to_dict()]
    assert len(known) > 5
    for key in known:
        if key not in ("quantization_config", "auto_map"):
            assert getattr(config, key) == getattr(stock, key)
    rate = next(key for key in known if "dropout" in key or key == "initializer_range")
    setattr(config, rate, 0.25)
    assert getattr(stock, rate) == 0.25
    assert rate not in vars(config)
    assert config.to_json_string() != before
    assert not hasattr(config, "no_such_setting")
    assert not hasattr(config, "quantization_config")
    assert pickle.loads(pickle.dumps(config)).to_dict() == copy.deepcopy(config).to_dict() == config.to_dict()
    model.save_pretrained(tmp_path)
    loaded = AutoModelForLwALClassification.from_pretrained(tmp_path)
    assert getattr(loaded.config, rate) == getattr(loaded.encoder.config, rate) == 0.25


def test_sizes_are_the_stock_models(tiny_config):
    """Names that a library reads from a stock configuration have the same values here."""
    stock = AutoModelForSequenceClassification.from_config(tiny_config("distilbert", num_labels=LABELS))
    model = build(tiny_config, "distilbert")
    for key in ("num_hidden_layers", "n_layers", "hidden_size", "dim", "max_position_embeddings", "num_labels"):
        assert getattr(model.config, key) == getattr(stock.config, key)
    assert model.base_model.__class__ is stock.base_model.__class__
    assert isinstance(model.base_model, nn.Module)
