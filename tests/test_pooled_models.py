"""A model that pools its tokens, everywhere else that a model goes: settings, folding, ONNX, compilation, adapters."""

import json
import os
import subprocess
import sys

import pytest
import torch
from releases import exports_onnx, one_graph
from test_modeling import LABELS, build, inputs_for, trained
from tiny_models import tiny_config
from transformers import AutoConfig, AutoModelForSequenceClassification

from hf_lwal import AutoModelForLwALClassification
from hf_lwal.cli import main as cli
from hf_lwal.modeling.configuration_pooled import LwALPooledConfig
from hf_lwal.modeling.modeling_pooled import LwALPooledForSequenceClassification


@pytest.fixture(scope="module")
def model():
    return trained(build(tiny_config, "bert", pooling="mean+max", normalize=True, embedding_dim=8))


@pytest.fixture(scope="module")
def saved(model, tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pooled")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def logits_of(model, inputs):
    with torch.no_grad():
        return model.eval()(**inputs).logits


def test_sizes_and_rates_of_the_backbone_are_read_and_written_through_both_configurations(saved):
    """hidden_dropout_prob=… of a script reached a configuration that no layer was built from."""
    config = AutoModelForLwALClassification.from_pretrained(saved).config
    own = tiny_config("bert")
    assert (config.num_hidden_layers, config.hidden_size) == (own.num_hidden_layers, own.hidden_size)
    assert config.encoder_config.num_attention_heads == own.num_attention_heads
    loaded = AutoModelForLwALClassification.from_pretrained(saved, hidden_dropout_prob=0.25)
    assert loaded.encoder.bert.embeddings.dropout.p == loaded.encoder.dropout.p == 0.25
    loaded = AutoModelForLwALClassification.from_pretrained(saved, classifier_dropout=0.5)
    assert (loaded.encoder.bert.embeddings.dropout.p, loaded.encoder.dropout.p) == (0.0, 0.5)
    with pytest.raises(AttributeError, match="no attribute 'quantization_config'"):
        config.encoder_config.quantization_config  # noqa: B018


def test_the_backbones_own_rate_before_the_classifier_counts():
    config = tiny_config("bert", hidden_dropout_prob=0.1, classifier_dropout=0.4)
    model = AutoModelForLwALClassification.from_config(config, pooling="mean")
    assert model.encoder.dropout.p == 0.4


def test_attentions_and_hidden_states_asked_for_when_loading(saved, model):
    """They are settings of the backbone's configuration, and came back as None."""
    loaded = AutoModelForLwALClassification.from_pretrained(
        saved, attn_implementation="eager", output_attentions=True, output_hidden_states=True
    )
    output = loaded(**inputs_for(model))
    assert len(output.attentions) == 2
    assert len(output.hidden_states) == 3
    config = tiny_config("bert", output_hidden_states=True)
    assert AutoModelForLwALClassification.from_config(config, pooling="mean")(**inputs_for(model)).hidden_states


def test_an_attention_that_the_backbone_lacks_is_not_asked_of_it_again(tmp_path):
    """Saving a pooled DeBERTa built it again with the attention of the class around it, and failed."""
    model = AutoModelForLwALClassification.from_config(tiny_config("deberta_v2", num_labels=3), pooling="cls")
    assert model.encoder.config._attn_implementation == "eager"
    model.save_pretrained(tmp_path)
    assert AutoModelForLwALClassification.from_pretrained(tmp_path).encoder.config._attn_implementation == "eager"


def test_the_fold_pools_alike_and_is_a_start_like_others(model, tmp_path):
    stock = model.fold()
    stock.save_pretrained(tmp_path)
    inputs = inputs_for(model)
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert type(loaded) is LwALPooledForSequenceClassification
    assert torch.equal(logits_of(loaded, inputs), logits_of(stock, inputs))
    assert torch.equal(logits_of(stock, inputs).argmax(1), logits_of(model, inputs).argmax(1))
    again = AutoModelForLwALClassification.from_pretrained(tmp_path, num_labels=7)
    assert (again.config.pooling, again.encoder.config.normalize) == ("mean+max", True)
    kept = AutoModelForLwALClassification.from_pretrained(tmp_path, keep_head=True)
    assert torch.equal(logits_of(kept, inputs).argmax(1), logits_of(stock, inputs).argmax(1))
    assert AutoModelForLwALClassification.from_pretrained(tmp_path, pooling="cls").config.pooling == "cls"


WITHOUT_IMPORT = """
import json, sys, torch
from transformers import AutoModelForSequenceClassification, pipeline
inputs = {"input_ids": torch.tensor([[5, 6, 7], [8, 0, 0]]), "attention_mask": torch.tensor([[1, 1, 1], [1, 0, 0]])}
seen = {}
for name in ("fold", "lwal"):
    run = pipeline("text-classification", f"{sys.argv[1]}/{name}", trust_remote_code=True, device="cpu")
    with torch.no_grad():
        seen[name] = run.model.eval()(**inputs).logits.tolist()
    assert type(run.model).__module__.startswith("transformers_modules."), type(run.model)
    run.model.save_pretrained(f"{sys.argv[1]}/{name}-again")
seen["pooling"] = run.model.config.pooling
assert not [name for name in sys.modules if name.partition(".")[0] == "hf_lwal"]
import hf_lwal
for name in ("fold", "lwal"):
    again = AutoModelForSequenceClassification.from_pretrained(f"{sys.argv[1]}/{name}-again")
    with torch.no_grad():
        assert again.eval()(**inputs).logits.tolist() == seen[name]
    assert type(again).__module__.startswith("hf_lwal."), type(again)
assert run.model.config.pooling == seen["pooling"]
print(json.dumps(seen))
"""


@pytest.mark.slow
def test_both_forms_serve_where_nobody_imports_hf_lwal(model, tokenizer, tmp_path):
    """The fold promises to need no hf-lwal, and no stock class pools as this one does."""
    for name, part in (("lwal", model), ("fold", model.fold())):
        part.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    environment = {**os.environ, "HF_MODULES_CACHE": str(tmp_path / "modules")}
    command = [sys.executable, "-c", WITHOUT_IMPORT, str(tmp_path)]
    found = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    seen = json.loads(found.stdout)
    inputs = {
        "input_ids": torch.tensor([[5, 6, 7], [8, 0, 0]]),
        "attention_mask": torch.tensor([[1, 1, 1], [1, 0, 0]]),
    }
    assert torch.allclose(torch.tensor(seen["lwal"]), logits_of(model, inputs), atol=1e-5)
    assert torch.allclose(torch.tensor(seen["fold"]), logits_of(model.fold(), inputs), atol=1e-5)
    assert seen["pooling"] == "mean+max"


@exports_onnx
def test_the_command_says_what_loading_the_fold_takes(saved, tmp_path, capsys):
    pytest.importorskip("onnxruntime")
    assert cli.main(["fold", str(saved), "--output", str(tmp_path / "stock"), "--onnx"]) == 0
    output = capsys.readouterr().out
    assert "onnxruntime's logits differ" in output
    assert "trust_remote_code=True" in output
    assert (tmp_path / "stock" / "lwal_code" / "modeling_pooled.py").is_file()
    config = json.loads((tmp_path / "stock" / "config.json").read_text())
    assert config["auto_map"]["AutoConfig"] == "lwal_code/modeling_pooled.LwALPooledConfig"


@one_graph
def test_one_graph(model):
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    inputs = inputs_for(model)
    assert torch.allclose(logits_of(compiled, inputs), logits_of(model, inputs), atol=1e-6)


def test_an_adapter_goes_with_it(model, tmp_path):
    peft = pytest.importorskip("peft")

    def fresh():
        return build(tiny_config, "bert", pooling="mean+max", normalize=True, embedding_dim=8)

    base = fresh()
    config = peft.LoraConfig(r=2, target_modules=["query"], modules_to_save=base.peft_modules_to_save())
    adapted = trained(peft.get_peft_model(base, config), steps=2)
    adapted.save_pretrained(tmp_path)
    inputs = inputs_for(model)
    expected = logits_of(adapted, inputs)
    assert torch.equal(logits_of(peft.PeftModel.from_pretrained(fresh(), tmp_path), inputs), expected)
    merged = adapted.merge_and_unload()
    assert torch.allclose(logits_of(merged, inputs), expected, atol=1e-5)
    assert torch.equal(logits_of(merged.fold(), inputs).argmax(1), expected.argmax(1))


def test_a_stock_classifier_that_pools_gets_a_label_table(tmp_path):
    config = LwALPooledConfig(base_config=tiny_config("distilbert"), pooling="max", num_labels=LABELS)
    stock = AutoModelForSequenceClassification.from_config(config)
    model = AutoModelForLwALClassification.from_stock(stock)
    assert model is stock
    model.save_pretrained(tmp_path)
    loaded = AutoModelForLwALClassification.from_pretrained(tmp_path)
    inputs = inputs_for(build(tiny_config, "distilbert"))
    assert torch.equal(logits_of(loaded, inputs), logits_of(model, inputs))
    assert AutoConfig.from_pretrained(tmp_path).pooling == "max"
