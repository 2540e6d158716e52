"""Loading: labels, settings and damaged files, through every door by which a checkpoint can be loaded."""

from __future__ import annotations

import json
import logging

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_modeling import inputs_for, trained
from tiny_models import tiny_config
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
    BertForSequenceClassification,
    pipeline,
    set_seed,
)

from hf_lwal import AutoModelForLwALClassification as Auto
from hf_lwal import LwALConfig, LwALForSequenceClassification

NAMES = ["angry", "bored", "calm", "dull", "eager"]
GENERIC = [f"LABEL_{index}" for index in range(5)]


def by_id(names):
    return dict(enumerate(names))


@pytest.fixture(scope="module")
def model():
    set_seed(0)
    return trained(Auto.from_config(tiny_config("bert", id2label=by_id(NAMES), label2id=None)))


@pytest.fixture(scope="module")
def saved(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def unnamed(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("unnamed")
    model.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    config["id2label"], config["label2id"] = by_id(GENERIC), {name: i for i, name in enumerate(GENERIC)}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def stock(tmp_path_factory):
    """A classifier of three named labels, fine-tuned elsewhere."""
    folder = tmp_path_factory.mktemp("stock")
    config = tiny_config("bert", id2label={0: "x", 1: "y", 2: "z"}, label2id={"x": 0, "y": 1, "z": 2})
    BertForSequenceClassification(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def backbone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("backbone")
    BertForSequenceClassification(tiny_config("bert")).base_model.save_pretrained(folder)
    return folder


@pytest.fixture(params=["ours", "class", "stock", "config"])
def door(request):
    """Each way of loading a checkpoint with labels of one's own."""
    return {
        "ours": Auto.from_pretrained,
        "class": LwALForSequenceClassification.from_pretrained,
        "stock": AutoModelForSequenceClassification.from_pretrained,
        "config": lambda folder, **labels: AutoModelForSequenceClassification.from_pretrained(
            folder, config=AutoConfig.from_pretrained(folder, **labels)
        ),
    }[request.param]


def scores_by_name(model):
    """Label to logits (B,) of the same four rows, whatever the ids."""
    with torch.no_grad():
        logits = model.eval()(**inputs_for(model)).logits
    return {name: logits[:, index] for index, name in model.config.id2label.items()}


def assert_same_answers(loaded, model, names=None):
    expected = scores_by_name(model)
    found = scores_by_name(loaded)
    names = names or {name: name for name in expected}
    assert set(found) == set(names)
    for name, original in names.items():
        assert torch.allclose(found[name], expected[original], atol=1e-5), name


# -- labels ---------------------------------------------------------------------------------------------------------

REVERSED = NAMES[::-1]


@pytest.mark.parametrize(
    "asked",
    [
        {"id2label": by_id(REVERSED)},
        {"label2id": {name: i for i, name in enumerate(REVERSED)}},
        {"id2label": {str(i): name for i, name in enumerate(REVERSED)}, "num_labels": 5},
        {"id2label": REVERSED},
        {"id2label": by_id(REVERSED), "label2id": {name: str(i) for i, name in enumerate(REVERSED)}},
    ],
    ids=["id2label", "label2id", "strings", "list", "both"],
)
def test_rows_move_with_their_names(door, saved, model, asked, caplog):
    """Names in a data set's order over rows in the checkpoint's: "angry" would be answered as "eager", silently."""
    loaded = door(saved, **asked)
    assert list(loaded.config.id2label.values()) == REVERSED
    assert loaded.config.label2id == {name: i for i, name in enumerate(REVERSED)}
    assert_same_answers(loaded, model)
    assert caplog.text.count("in another order") == 1


def test_names_spelled_otherwise_are_the_same_labels(door, saved, model, caplog):
    """ "Calm" and "calm" are one label to a person, and a table thrown away for a capital letter is work lost."""
    spelled = ["EAGER", "Dull", " calm", "bored", "Angry"]
    loaded = door(saved, id2label=by_id(spelled))
    assert list(loaded.config.id2label.values()) == spelled
    assert_same_answers(loaded, model, dict(zip(spelled, REVERSED, strict=True)))
    assert len(caplog.records) == 1


def test_a_number_or_no_names_leaves_the_checkpoints_own(door, saved, model, caplog):
    """Scripts pass the number only; the names of the checkpoint must not become LABEL_0 and so on."""
    for asked in ({}, {"num_labels": 5}, {"id2label": by_id(GENERIC)}):
        assert_same_answers(door(saved, **asked), model)
    assert not caplog.records


def test_names_for_labels_that_had_none(door, unnamed, model, caplog):
    """Where a checkpoint knows ids only, ids are what its rows are told by."""
    loaded = door(unnamed, id2label=by_id(REVERSED))
    assert_same_answers(loaded, model, dict(zip(REVERSED, NAMES, strict=True)))
    assert "are called" in caplog.text
    moved = door(unnamed, id2label=by_id(GENERIC[::-1]))
    assert_same_answers(moved, model, dict(zip(GENERIC, NAMES, strict=True)))


OTHERS = [
    {"id2label": by_id(["red", "green", "blue", "grey", "pink"])},
    {"id2label": by_id([*NAMES[:4], "glad"])},
    {"id2label": by_id(NAMES[:3])},
    {"num_labels": 7},
    {"label2id": {"yes": 0, "no": 1}},
]


@pytest.mark.parametrize("asked", OTHERS, ids=["names", "one name", "fewer", "number", "label2id"])
def test_other_labels_are_a_new_task(saved, model, asked, caplog):
    """Class means of old labels under new names keep a training from starting, and answer with wrong names."""
    loaded = Auto.from_pretrained(saved, **asked)
    wanted = len(asked.get("id2label") or asked.get("label2id") or range(7))
    assert loaded.config.num_labels == loaded.label_table.num_labels == wanted
    assert not loaded.label_table.seen.any()
    assert loaded.label_table.step == 0
    assert loaded.label_table.scale == 1
    assert not torch.equal(loaded.head_module.weight, model.head_module.weight)
    body = "encoder.bert.encoder.layer.0.attention.self.query.weight"
    assert torch.equal(loaded.state_dict()[body], model.state_dict()[body])
    assert "head and label table are replaced" in caplog.text
    assert loaded(**inputs_for(loaded), labels=torch.zeros(4, dtype=torch.long)).logits.shape == (4, wanted)


@pytest.mark.parametrize("asked", OTHERS, ids=["names", "one name", "fewer", "number", "label2id"])
def test_other_labels_are_refused_where_stock_classes_refuse(saved, asked):
    """These doors load for prediction: a table under other people's names would be believed."""
    for load in (LwALForSequenceClassification.from_pretrained, AutoModelForSequenceClassification.from_pretrained):
        with pytest.raises(ValueError, match=r"were asked for: leave num_labels and id2label out"):
            load(saved, **asked)
        loaded = load(saved, ignore_mismatched_sizes=True, **asked)
        assert not loaded.label_table.seen.any()
        assert loaded.config.num_labels == loaded.label_table.num_labels


def test_a_script_that_makes_the_configuration_first(saved, caplog):
    """run_glue.py asks for the number of its labels in AutoConfig, and hands the configuration over."""
    config = AutoConfig.from_pretrained(saved, num_labels=4, finetuning_task="qqp", cache_dir=None, revision="main")
    assert config.id2label == by_id(GENERIC[:4])
    loaded = Auto.from_pretrained(saved, from_tf=False, config=config, ignore_mismatched_sizes=False)
    assert loaded.label_table.num_labels == 4
    assert not loaded.label_table.seen.any()
    assert config.num_labels == 4


def test_a_new_task_has_the_embedding_dim_it_asks_for(saved):
    assert Auto.from_pretrained(saved, num_labels=3, embedding_dim="4x").config.embedding_dim == 12
    with pytest.raises(ValueError, match=r"has label vectors of dimension 32, not 4x"):
        Auto.from_pretrained(saved, embedding_dim="4x")


def test_a_kept_head_and_the_papers_table_start_anew(tmp_path, stock):
    """Label vectors a hundred times as far out would make the new task's start nonsense."""
    Auto.from_pretrained(stock, keep_head=True).save_pretrained(tmp_path / "kept")
    loaded = Auto.from_pretrained(tmp_path / "kept", num_labels=4)
    assert (loaded.config.initial_labels, loaded.config.initial_label_norm) == ("class_means", 1.0)
    paper = Auto.from_pretrained(stock)
    paper.config.preset, paper.config.space, paper.config.initial_labels = "paper", "embeddings", "one_hot"
    paper.resize_embedding_dim(3)
    paper.save_pretrained(tmp_path / "paper")
    assert Auto.from_pretrained(tmp_path / "paper", num_labels=4).config.embedding_dim == 4


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"id2label": by_id(NAMES), "label2id": {name: i for i, name in enumerate(REVERSED)}}, "but label2id is"),
        ({"id2label": by_id(NAMES), "num_labels": 4}, "num_labels is 4, but id2label names 5"),
        ({"id2label": {name: i for i, name in enumerate(NAMES)}}, "the wrong way round"),
        ({"label2id": {"a": 0, "b": 0}}, "an id of its own"),
        ({"id2label": {1: "a", 2: "b"}}, "must use the ids 0…1"),
        ({"id2label": {0: "a", "0": "b"}}, "must use the ids 0…1"),
        ({"num_labels": 1}, "at least two"),
        ({"problem_type": "multi_label_classification"}, "exactly one class per row"),
    ],
)
def test_labels_that_contradict_each_other(door, saved, asked, sentence):
    """One of two answers would be dropped without a word."""
    with pytest.raises(ValueError, match=sentence):
        door(saved, **asked)


def test_a_configuration_and_a_number_that_disagree(stock, backbone):
    """The number was ignored: a model of two labels where five were asked for."""
    assert Auto.from_pretrained(backbone, config=tiny_config("bert"), num_labels=5).config.num_labels == 5
    named = AutoConfig.from_pretrained(stock)
    with pytest.raises(ValueError, match=r"num_labels is 5, but the configuration names 3 labels \('x', 'y', 'z'\)"):
        Auto.from_pretrained(stock, config=named, num_labels=5)
    assert Auto.from_pretrained(stock, config=named, num_labels=3).config.id2label == {0: "x", 1: "y", 2: "z"}
    assert Auto.from_pretrained(stock, config=named, id2label=["p", "q"]).config.label2id == {"p": 0, "q": 1}
    assert named.num_labels == 3


# -- settings as keywords ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("labels", [{}, {"num_labels": 4}])
@pytest.mark.parametrize("source", ["backbone", "stock", "saved"])
def test_settings_of_the_stock_configuration(request, source, labels):
    """What `from_pretrained` of the stock class takes: half of the public recipes pass one of them."""
    settings = {"hidden_dropout_prob": 0.3, "classifier_dropout": 0.4, "use_cache": False, "return_dict": True}
    settings |= {"output_hidden_states": True, "output_attentions": True, "attn_implementation": "eager"}
    folder = request.getfixturevalue(source)
    loaded = Auto.from_pretrained(folder, problem_type="single_label_classification", **settings, **labels)
    encoder = loaded.encoder
    assert encoder.bert.embeddings.dropout.p == 0.3
    assert encoder.dropout.p == 0.4
    assert encoder.config.use_cache is False
    output = loaded.eval()(**inputs_for(loaded))
    assert len(output.hidden_states) == 3
    assert len(output.attentions) == 2
    assert loaded.config.num_labels == labels.get("num_labels", {"backbone": 2, "stock": 3, "saved": 5}[source])


def test_settings_beside_a_configuration(backbone):
    config = tiny_config("bert", num_labels=4)
    loaded = Auto.from_pretrained(backbone, config=config, hidden_dropout_prob=0.3)
    assert loaded.encoder.bert.embeddings.dropout.p == 0.3
    assert config.hidden_dropout_prob == 0.0


def test_a_tuple_where_tuples_were_asked_for(backbone, saved):
    for folder in (backbone, saved):
        loaded = Auto.from_pretrained(folder, return_dict=False)
        assert isinstance(loaded(**inputs_for(loaded)), tuple)


@pytest.mark.parametrize("source", ["backbone", "stock", "saved"])
def test_settings_that_no_model_has(request, source):
    """A misspelt setting would be lost, and the training run without it."""
    folder = request.getfixturevalue(source)
    for misspelt in ({"hidden_droput_prob": 0.3}, {"id2lable": {0: "a"}}):
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{next(iter(misspelt))}'"):
            Auto.from_pretrained(folder, **misspelt)
    with pytest.raises(ValueError, match=r"exactly one class per row.*multi_label"):
        Auto.from_pretrained(folder, problem_type="multi_label_classification")


@pytest.mark.parametrize("source", ["backbone", "stock", "saved"])
def test_a_setting_that_changes_weights_is_refused(request, source):
    """Position embeddings of another number would be random, and the model nonsense from there on."""
    folder = request.getfixturevalue(source)
    with pytest.raises(ValueError, match=r"stores .*position_embeddings.weight with shape \(40, 32\)"):
        Auto.from_pretrained(folder, max_position_embeddings=80)
    loaded = Auto.from_pretrained(folder, max_position_embeddings=80, ignore_mismatched_sizes=True)
    assert loaded.encoder.bert.embeddings.position_embeddings.weight.shape == (80, 32)


def test_labels_that_nobody_has_counted(backbone, stock, caplog):
    """Recipes for two labels leave the number out, as transformers lets them."""
    with caplog.at_level(logging.WARNING):
        loaded = Auto.from_pretrained(backbone, return_dict=True)
    assert loaded.config.id2label == {0: "LABEL_0", 1: "LABEL_1"}
    assert caplog.text.count("does not say how many labels") == 1
    caplog.clear()
    Auto.from_pretrained(stock)
    Auto.from_pretrained(backbone, num_labels=2)
    assert "does not say" not in caplog.text


def test_two_labels_without_names_load_again(tmp_path, caplog):
    """transformers leaves the names of two unnamed labels out of config.json, which then looked like a backbone's."""
    Auto.from_config(tiny_config("bert", num_labels=2)).save_pretrained(tmp_path)
    assert Auto.from_pretrained(tmp_path).config.num_labels == 2
    assert not caplog.records


# -- damaged files ----------------------------------------------------------------------------------------------------


def damaged(saved, folder, change):
    """A copy of a checkpoint whose tensors went through ``change``."""
    for path in saved.iterdir():
        if path.is_file():
            (folder / path.name).write_bytes(path.read_bytes())
    weights = load_file(folder / "model.safetensors")
    save_file(change(weights), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


LOADERS = [
    Auto.from_pretrained,
    LwALForSequenceClassification.from_pretrained,
    AutoModelForSequenceClassification.from_pretrained,
    lambda folder: pipeline("text-classification", model=str(folder)),
]


@pytest.mark.parametrize(
    ("lost", "named"),
    [
        ("encoder.classifier.weight", "'encoder.classifier.weight'"),
        ("encoder.bert.pooler", "'encoder.bert.pooler.dense.bias'"),
        ("encoder.", " more"),
        ("encoder.bert.encoder.layer.1.output", "layer.1.output.LayerNorm.bias"),
    ],
)
def test_weights_that_are_missing(saved, tmp_path, lost, named):
    """transformers fills them with random values and goes on: the same answer for every input, exit code 0."""
    count = sum(key.startswith(lost) for key in load_file(saved / "model.safetensors"))
    damaged(saved, tmp_path, lambda weights: {k: v for k, v in weights.items() if not k.startswith(lost)})
    for load in LOADERS:
        with pytest.raises(ValueError, match=rf"lacks {count} weights of the encoder") as caught:
            load(tmp_path)
        assert named in str(caught.value)


@pytest.mark.parametrize(
    ("tensor", "place", "value", "sentence"),
    [
        ("label_vectors", (2, 3), float("nan"), "label_vectors of 'calm' is not finite"),
        ("class_features", (4, 0), float("inf"), "class_features of 'eager' is not finite"),
        ("offset_bias", (0, 1), float("-inf"), "offset_bias of 'angry' is not finite"),
        ("pending_sums", (1, 0), float("nan"), "pending_sums of 'bored' is not finite"),
        ("counts", (3,), -4, "counts of 'dull' is negative"),
        ("log_scale_bias", (0,), float("nan"), "scale of the logits is nan"),
        ("log_scale_bias", (0,), -500.0, "scale of the logits is 0.0"),
        ("log_scale_bias", (0,), 500.0, "scale of the logits is inf"),
    ],
)
def test_numbers_that_no_training_writes(saved, tmp_path, tensor, place, value, sentence):
    """One NaN among 160 numbers makes every logit NaN, and argmax answers the first label."""

    def spoil(weights):
        weights[f"classifier.{tensor}"][place] = value
        return weights

    damaged(saved, tmp_path, spoil)
    for load in LOADERS[:3]:
        with pytest.raises(ValueError, match=f"is damaged: (the )?{sentence}"):
            load(tmp_path)


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"<html>not found</html>" * 9, None], ids=["empty", "5", "html", "cut"]
)
@pytest.mark.parametrize("source", ["saved", "stock"])
def test_weights_that_cannot_be_read(request, source, tmp_path, content):
    """safetensors says "header too large", of no file, to people who ran out of disk."""
    folder = damaged(request.getfixturevalue(source), tmp_path, dict)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:2000] if content is None else content)
    for load in LOADERS if source == "saved" else LOADERS[:1]:
        with pytest.raises(
            (OSError, ValueError), match=r"model.safetensors cannot be read .*download or save the model again"
        ):
            load(tmp_path)


@pytest.mark.parametrize(
    "content", ["[" * 100_000, "", "[1, 2]", '{"labels": 3}', '{"labels": [[1], null]}', '{"labels": {}}', "\ud800"]
)
def test_a_readable_file_that_cannot_be_read(saved, tmp_path, caplog, content):
    """The numbers that count are in the weights file: what people read must not stop a model from loading."""
    folder = damaged(saved, tmp_path, dict)
    (folder / "label_table.json").write_bytes(content.encode("utf-8", "surrogatepass"))
    loaded = Auto.from_pretrained(folder)
    assert "does not describe the label table" in caplog.text
    loaded.save_pretrained(folder)
    assert len(json.loads((folder / "label_table.json").read_text())["labels"]) == 5


@pytest.mark.parametrize("content", [b"", b"PK", b"\x80\x02junk", None])
def test_weights_of_torch_that_cannot_be_read(model, saved, tmp_path, content):
    """Older checkpoints hold pytorch_model.bin, of which torch says "failed finding central directory"."""
    (tmp_path / "config.json").write_bytes((saved / "config.json").read_bytes())
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    assert_same_answers(Auto.from_pretrained(tmp_path), model)
    weights = tmp_path / "pytorch_model.bin"
    weights.write_bytes(weights.read_bytes()[:3000] if content is None else content)
    with pytest.raises(OSError, match=r"pytorch_model.bin cannot be read .*save the model again"):
        Auto.from_pretrained(tmp_path)


@pytest.mark.parametrize("how", ["cut", "gone"])
def test_one_of_several_weights_files(model, tmp_path, how):
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    second = sorted(tmp_path.glob("model-*.safetensors"))[1]
    second.write_bytes(second.read_bytes()[:100])
    if how == "gone":
        second.unlink()
    with pytest.raises(OSError, match=rf"{second.name}.*again"):
        Auto.from_pretrained(tmp_path)


@pytest.mark.parametrize(("name", "value"), [("embedding_dim", "32"), ("memory", None), ("refresh_every", 0.5)])
def test_a_configuration_with_a_value_of_another_type(saved, tmp_path, name, value):
    folder = damaged(saved, tmp_path, dict)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, name: value}))
    with pytest.raises(ValueError, match=rf"{name} is {value!r}, but it must be a whole number"):
        Auto.from_pretrained(folder)


def test_a_configuration_that_names_more_labels_than_there_are(saved, tmp_path):
    folder = damaged(saved, tmp_path, dict)
    config = json.loads((folder / "config.json").read_text())
    config["id2label"] = by_id([*NAMES, "f", "g"])
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"has 5 labels, but its configuration names 7: correct id2label"):
        Auto.from_pretrained(folder)


def test_weights_of_another_architecture(backbone, tmp_path):
    """A config.json beside weights that it does not describe gives a whole model of random weights."""
    weights = {f"other.{key}": value for key, value in load_file(backbone / "model.safetensors").items()}
    (tmp_path / "config.json").write_bytes((backbone / "config.json").read_bytes())
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match="holds none of the weights of BertForSequenceClassification"):
        Auto.from_pretrained(tmp_path, num_labels=3)


@pytest.mark.parametrize("name", ["vit", "distilbert", "llama", "convnext", "wav2vec2", "deberta_v2"])
def test_whole_checkpoints_pass(name, tmp_path, caplog):
    """Weights under older names (ViT), tied or split into files must not be taken for missing ones."""
    task = {"task": "audio"} if name == "wav2vec2" else {}
    Auto.from_config(tiny_config(name, num_labels=3), **task).save_pretrained(tmp_path, max_shard_size="20KB")
    assert (tmp_path / "model.safetensors.index.json").exists()
    Auto.from_pretrained(tmp_path)
    assert not caplog.records


def test_images_go_through_the_same_doors(tmp_path):
    names = ["cat", "dog", "eel"]
    original = Auto.from_config(tiny_config("vit", id2label=by_id(names), label2id=None))
    original.label_table.counts.copy_(torch.tensor([1, 2, 3]))
    original.save_pretrained(tmp_path)
    loaded = AutoModelForImageClassification.from_pretrained(tmp_path, id2label={"0": "eel", "1": "cat", "2": "dog"})
    assert loaded.label_table.counts.tolist() == [3, 1, 2]


def test_the_configuration_alone_takes_settings():
    config = LwALConfig.from_dict(Auto.from_config(tiny_config("bert")).config.to_dict(), hidden_dropout_prob=0.7)
    assert config.encoder_config.hidden_dropout_prob == 0.7


IMAGE_SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


@pytest.mark.parametrize("kind", ["vit", "deit", "beit", "ijepa", "dinov2"])
def test_backbones_keep_all_their_weights(tmp_path, kind):
    """Where transformers had renamed a layer, a classifier began with its attention at random."""
    config = AutoConfig.for_model(kind, **IMAGE_SIZES, image_size=8, patch_size=4)
    backbone = AutoModel.from_config(config)
    backbone.save_pretrained(tmp_path)
    model = Auto.from_pretrained(tmp_path, num_labels=3)
    found = model.encoder.base_model.state_dict()
    both = {name: value for name, value in backbone.state_dict().items() if name in found}
    assert sum("attention" in name for name in both) >= 6
    assert [name for name, value in both.items() if not torch.equal(value, found[name])] == []
