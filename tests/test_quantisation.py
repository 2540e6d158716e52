"""Quantised loading: the backbone shrinks, the head and the label table keep their precision."""

from __future__ import annotations

import pytest
import torch
from test_modeling import LABELS, inputs_for, trained
from torch import nn
from transformers import AutoModelForSequenceClassification, BitsAndBytesConfig, TorchAoConfig, set_seed

from hf_lwal import AutoModelForLwALClassification, LwALForSequenceClassification
from hf_lwal.modeling.quantisation import sparing

BLOCK = 64
"""bitsandbytes shares a scale among so many weights of a row; on a CPU it asks for rows of whole blocks."""
TABLE = ("label_vectors", "class_features", "counts", "log_scale_bias", "offset_bias")


def bits(number):
    pytest.importorskip("bitsandbytes")
    return BitsAndBytesConfig(**{f"load_in_{number}bit": True})


def torchao():
    quantization = pytest.importorskip("torchao.quantization")
    return TorchAoConfig(quantization.Int8WeightOnlyConfig())


METHODS = {"bitsandbytes 8": lambda: bits(8), "bitsandbytes 4": lambda: bits(4), "torchao": torchao}


def is_whole(layer):
    return type(layer) is nn.Linear and type(layer.weight) is nn.Parameter and layer.weight.dtype == torch.float32


def logits_of(model, inputs):
    with torch.no_grad():
        return model.eval()(**inputs).logits


@pytest.fixture(scope="module")
def saved(tiny_config, tmp_path_factory):
    """A trained model, its folder, the folder of the stock classifier that it folds into, and inputs."""
    set_seed(0)
    config = tiny_config("bert", num_labels=LABELS, hidden_size=BLOCK, intermediate_size=BLOCK)
    model = trained(AutoModelForLwALClassification.from_config(config))
    folder = tmp_path_factory.mktemp("quantisation")
    model.save_pretrained(folder / "lwal")
    model.fold().save_pretrained(folder / "stock")
    return model, folder / "lwal", folder / "stock", inputs_for(model)


@pytest.mark.parametrize("method", METHODS)
def test_the_head_and_the_table_are_left_alone(method, saved, tmp_path):
    """The label vectors are class means seen through the head: rounded, it would move all of them."""
    model, folder, _, inputs = saved
    loaded = AutoModelForLwALClassification.from_pretrained(
        folder, quantization_config=METHODS[method](), device_map="auto"
    )
    layers = {name: layer for name, layer in loaded.encoder.named_modules() if isinstance(layer, nn.Linear)}
    assert [name for name, layer in layers.items() if is_whole(layer)] == ["classifier"]
    assert torch.equal(loaded.head_module.weight, model.head_module.weight)
    for name in TABLE:
        assert torch.equal(getattr(loaded.label_table, name), getattr(model.label_table, name)), name
    loaded.save_pretrained(tmp_path)
    found, exact = logits_of(loaded, inputs), logits_of(model, inputs)
    assert not torch.equal(found, exact), "nothing was quantised"
    assert torch.equal(found.argmax(dim=1), exact.argmax(dim=1))
    with pytest.raises(ValueError, match="quantised: load it without quantization_config"):
        loaded.fold()
    again = AutoModelForLwALClassification.from_pretrained(tmp_path)
    assert is_whole(again.head_module)
    assert torch.equal(logits_of(again, inputs), found)


@pytest.mark.parametrize("loader", [LwALForSequenceClassification, AutoModelForSequenceClassification])
def test_every_way_of_loading_spares_the_head(loader, saved):
    """Only some of them have read the configuration, which names the head, when the quantisation is chosen."""
    loaded = loader.from_pretrained(saved[1], quantization_config=bits(8))
    assert is_whole(loaded.head_module)
    assert not is_whole(loaded.encoder.bert.pooler.dense)


def test_a_stock_classifier_keeps_its_head_whole(saved):
    """A kept head decides alone where the label vectors are: it must be the checkpoint's, and it must train."""
    _, _, folder, inputs = saved
    stock = AutoModelForSequenceClassification.from_pretrained(folder)
    loaded = AutoModelForLwALClassification.from_pretrained(folder, keep_head=True, quantization_config=bits(8))
    assert torch.equal(loaded.head_module.weight, stock.classifier.weight)
    assert not is_whole(loaded.encoder.bert.pooler.dense)
    labels = logits_of(stock, inputs).argmax(dim=1)
    assert torch.equal(logits_of(loaded, inputs).argmax(dim=1), labels)
    loaded.train()(**inputs, labels=labels).loss.backward()
    assert loaded.head_module.weight.grad.abs().sum() > 0
    with pytest.raises(ValueError, match="quantised: load it without quantization_config"):
        loaded.fold()


def test_layers_that_the_user_spares_stay_spared():
    own = BitsAndBytesConfig(load_in_8bit=True, llm_int8_skip_modules=["pooler"])
    assert sparing(own, "encoder.score").llm_int8_skip_modules == ["pooler", "encoder.score"]
    assert own.llm_int8_skip_modules == ["pooler"], "the user's own object is left as it is"
    as_dict = {"quant_method": "bitsandbytes", "load_in_8bit": True}
    assert sparing(as_dict, "score").llm_int8_skip_modules == ["score"]
    assert sparing(own, None) is own
    assert sparing(None, "score") is None
