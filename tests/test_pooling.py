"""Pooling: sentence vectors as Sentence Transformers makes them, for label vectors and for their controls alike."""

import json
import logging
import shutil
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from architectures import architectures, tiny
from tiny_models import tiny_config
from trajectory import arguments, rows_for
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertForSequenceClassification,
)

from hf_lwal import AutoModelForLwALClassification, LwALTrainer
from hf_lwal.bench.comparison import METHODS, build_model, embedded_model_path
from hf_lwal.cli.train_model import Start
from hf_lwal.cli.train_model import build_model as build_start
from hf_lwal.modeling.configuration_pooled import LwALPooledConfig, config_with_pooling, encoder_class, pooled_config
from hf_lwal.modeling.heads import find_head
from hf_lwal.modeling.modeling_pooled import LwALPooledForSequenceClassification
from hf_lwal.modeling.pooling import FLAGS, MODES, pool, stored_pooling

TEXTS = ["book a table", "I would like to know what the exchange rate between pounds and euros is today", "no"]


def by_loops(tokens, mask, mode):
    """One row at a time, of the tokens that are no padding, in float64."""
    rows = []
    for row, kept in zip(tokens.double(), mask.bool(), strict=True):
        own = row[kept]
        weights = torch.arange(1, len(own) + 1, dtype=torch.float64).unsqueeze(1)
        rows.append(
            {
                "mean": lambda own, _: own.mean(0),
                "mean_sqrt_len": lambda own, _: own.sum(0) / len(own) ** 0.5,
                "weightedmean": lambda own, weights: (own * weights).sum(0) / weights.sum(),
                "max": lambda own, _: own.max(0).values,
                "cls": lambda own, _: own[0],
                "last": lambda own, _: own[-1],
            }[mode](own, weights)
        )
    return torch.stack(rows)


def padded(side, dtype=torch.float64):
    """Tokens of three rows of 5, 2 and 1 tokens; what lies in the padding is not even finite."""
    tokens = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mask = (torch.arange(5) < torch.tensor([[5], [2], [1]])).long()
    mask = mask if side == "right" else mask.flip(1)
    return tokens.masked_fill(mask.unsqueeze(2) == 0, torch.nan).to(dtype), mask


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("mode", list(MODES))
def test_padding_counts_for_nothing_on_either_side(mode, side):
    """A product with the mask would let padding that is not finite through; a first token may be padding."""
    tokens, mask = padded(side)
    torch.testing.assert_close(pool(tokens, mask, mode), by_loops(tokens, mask, mode))
    torch.testing.assert_close(pool(tokens, mask.bool(), mode), pool(tokens, mask, mode))


def test_modes_are_concatenated_in_the_order_asked_for_then_scaled_as_one():
    tokens, mask = padded("right")
    both = torch.cat([by_loops(tokens, mask, "max"), by_loops(tokens, mask, "mean")], dim=1)
    torch.testing.assert_close(pool(tokens, mask, "max+mean", normalize=True), both / both.norm(dim=1, keepdim=True))


def test_a_row_without_tokens_is_zero_and_a_cached_prefix_is_cut_off_the_mask():
    tokens, mask = padded("right")
    mask[2] = 0
    for mode in MODES:
        assert pool(tokens, mask, mode)[2].eq(0).all()
    prefix = torch.cat([torch.ones(3, 2, dtype=torch.long), mask], dim=1)
    assert torch.equal(pool(tokens, prefix, "mean"), pool(tokens, mask, "mean"))
    with pytest.raises(ValueError, match="needs an attention_mask"):
        pool(tokens, mask[:, :3], "mean")


def test_half_precision_is_added_up_in_float32():
    """A sum of 4,000 equal numbers in bfloat16 stops growing at 256 of them."""
    tokens, mask = torch.full((1, 4000, 2), 1.0, dtype=torch.bfloat16), torch.ones(1, 4000)
    assert pool(tokens, mask, "mean").tolist() == [[1.0, 1.0]]
    assert pool(tokens, mask, "mean").dtype == torch.bfloat16


def test_features_of_a_sentence_encoder_are_its_sentence_embeddings():
    """Otherwise the classifier reads the first token through a pooler that was never trained with these weights."""
    source = embedded_model_path()
    tokenizer = AutoTokenizer.from_pretrained(source)
    inputs = tokenizer(TEXTS, padding=True, return_tensors="pt")
    model = AutoModelForLwALClassification.from_pretrained(source, num_labels=3).eval()
    backbone = AutoModel.from_pretrained(source).eval()
    with torch.no_grad():
        features = model(**inputs).features
        expected = []  # every sentence alone, so that there is no padding that could count
        for text in TEXTS:
            tokens = backbone(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
            expected.append(F.normalize(tokens.double().mean(0), dim=0))
    torch.testing.assert_close(features.double(), torch.stack(expected), rtol=0, atol=1e-5)
    assert not hasattr(model.encoder.bert, "pooler") or model.encoder.bert.pooler is None


def test_sentence_transformers_agrees():
    sentence_transformers = pytest.importorskip("sentence_transformers")
    source = embedded_model_path()
    expected = sentence_transformers.SentenceTransformer(source, device="cpu").encode(TEXTS)
    model = AutoModelForLwALClassification.from_pretrained(source, num_labels=3).eval()
    with torch.no_grad():
        features = model(**AutoTokenizer.from_pretrained(source)(TEXTS, padding=True, return_tensors="pt")).features
    torch.testing.assert_close(features, torch.as_tensor(expected), rtol=0, atol=1e-5)


def sentence_encoder(folder, modules=("Transformer", "Pooling", "Normalize"), pooling=None, name="bert"):
    """A tiny backbone with the files of Sentence Transformers beside it."""
    AutoModel.from_config(tiny_config(name)).save_pretrained(folder)
    listed = [
        {
            "idx": place,
            "name": str(place),
            "path": f"{place}_{kind}" if place else "",
            "type": f"sentence_transformers.models.{kind}",
        }
        for place, kind in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(listed))
    for place, kind in enumerate(modules):
        if kind == "Pooling":
            (folder / f"{place}_Pooling").mkdir()
            (folder / f"{place}_Pooling" / "config.json").write_text(json.dumps(pooling or {"pooling_mode": "mean"}))
    return folder


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        *(
            ({flag: True, "pooling_mode_cls_token": flag == "pooling_mode_cls_token"}, mode)
            for flag, mode in FLAGS.items()
        ),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True}, "max+mean"),
        ({"pooling_mode": "lasttoken", "include_prompt": True}, "last"),
        ({"pooling_mode": ["cls", "mean_sqrt_len_tokens"]}, "cls+mean_sqrt_len"),
        ({"word_embedding_dimension": 32}, "mean"),
    ],
)
def test_every_way_to_write_a_pooling_is_read(tmp_path, config, expected):
    found = stored_pooling(sentence_encoder(tmp_path, pooling=config))
    assert found[:2] == (expected, True)


@pytest.mark.parametrize(
    ("modules", "expected"),
    [
        (("Transformer", "Pooling"), ("mean", False)),
        (("Transformer", "Pooling", "Dense", "Normalize"), ("mean", False)),
        (("Transformer", "SpladePooling"), ("model", False)),
    ],
)
def test_what_stands_behind_the_pooling_is_told(tmp_path, modules, expected, caplog):
    """Weights of the checkpoint that are not used must not go without a word."""
    found = stored_pooling(sentence_encoder(tmp_path, modules))
    assert found[:2] == expected
    assert ("behind its pooling is left out: Dense." in caplog.text) == ("Dense" in modules)


@pytest.mark.parametrize(
    ("modules", "config", "says"),
    [
        (("Transformer", "Pooling"), {"pooling_mode": "mean", "include_prompt": False}, "include_prompt"),
        (("Transformer", "Pooling"), {"pooling_mode": "median"}, "Unknown pooling 'median'"),
        (("Transformer", "LSTM", "Pooling"), None, "puts LSTM between"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(tmp_path, modules, config, says):
    folder = sentence_encoder(tmp_path, modules, config)
    with pytest.raises(ValueError, match=says):
        AutoModelForLwALClassification.from_pretrained(folder, num_labels=3, pooling="auto")
    chosen = AutoModelForLwALClassification.from_pretrained(folder, num_labels=3, pooling="max")
    assert chosen.config.pooling == "max"


def test_broken_and_missing_files_are_named(tmp_path):
    folder = sentence_encoder(tmp_path)
    shutil.rmtree(folder / "1_Pooling")
    with pytest.raises(ValueError, match=r"has no 1_Pooling/config\.json"):
        stored_pooling(folder)
    (folder / "modules.json").write_text("{")
    with pytest.raises(ValueError, match="is not JSON"):
        stored_pooling(folder)


def test_the_choice_and_its_reason_are_logged(tmp_path, caplog):
    folder = sentence_encoder(tmp_path)
    with caplog.at_level(logging.INFO, "hf_lwal"):
        AutoModelForLwALClassification.from_pretrained(folder, num_labels=3)
    assert "mean scaled to length 1, since its modules.json says so" in caplog.text
    (folder / "modules.json").unlink()
    with caplog.at_level(logging.INFO, "hf_lwal"):
        model = AutoModelForLwALClassification.from_pretrained(folder, num_labels=3)
    assert "model, since no modules.json says otherwise" in caplog.text
    assert type(model.encoder).__name__ == "BertForSequenceClassification"


def classifier_of(model):
    return type(model.encoder).__name__


@pytest.mark.parametrize("pooling", ["auto", "model"])
@pytest.mark.parametrize("architecture", ["BertForSequenceClassification", "LwALForSequenceClassification"])
def test_a_fine_tuned_classifier_keeps_its_features_whatever_lies_beside_it(tmp_path, pooling, architecture):
    """Its first token was trained to be read, and the mean of its tokens was not."""
    folder = sentence_encoder(tmp_path)
    stock = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=3)
    stock.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": [architecture]}))
    assert config_with_pooling(AutoConfig.from_pretrained(folder), "text", folder, "auto").model_type == "bert"
    for options in ({"num_labels": 4}, {"keep_head": True}):
        model = AutoModelForLwALClassification.from_pretrained(folder, pooling=pooling, **options)
        assert classifier_of(model) == "BertForSequenceClassification"
    inputs = inputs_of()
    with torch.no_grad():
        expected = stock.eval()(**inputs).logits.argmax(1)
        assert torch.equal(model.eval()(**inputs).embeddings.argmax(1), expected), "with its own head"
    assert (
        AutoModelForLwALClassification.from_pretrained(folder, num_labels=4, pooling="mean").config.pooling == "mean"
    )


def test_the_stock_pooling_is_had_by_name(tmp_path):
    folder = sentence_encoder(tmp_path)
    model = AutoModelForLwALClassification.from_pretrained(folder, num_labels=3, pooling="model")
    assert classifier_of(model) == "BertForSequenceClassification"
    pooled = AutoModelForLwALClassification.from_pretrained(folder, num_labels=3)
    with pytest.raises(ValueError, match=r"load its backbone anew with .*pooling='model'"):
        LwALTrainer(pooled, arguments(tmp_path, lwal_pooling="model"), train_dataset=rows_for("bert", 10))


@pytest.mark.parametrize("model_type", ["bart", "perceiver", "reformer", "t5gemma"])
def test_an_architecture_without_a_vector_per_token_falls_back_or_says_why(model_type, tmp_path, caplog):
    """A model that ends in latents, or only behind a decoder, would be pooled by a mask of other positions."""
    config = tiny(next(entry for entry in architectures() if (entry.task, entry.model_type) == ("text", model_type)))
    sentence_encoder(tmp_path)
    found = config_with_pooling(config, "text", tmp_path, "auto")
    assert found is config
    assert f"{type(config).__name__}" in caplog.text
    assert "asks for pooling='mean', but gets 'model'" in caplog.text
    with pytest.raises(ValueError, match=f"{type(config).__name__} .*: load it with pooling='model'"):
        AutoModelForLwALClassification.from_config(config, task="text", pooling="mean")


@pytest.mark.parametrize("model_type", ["gemma3", "funnel", "t5", "mpnet"])
def test_the_encoder_of_a_checkpoint_is_found_with_all_its_weights(model_type, tmp_path):
    """Sizes that lie inside another configuration, a class that is one of several, an encoder that is half a model."""
    config = tiny(next(entry for entry in architectures() if (entry.task, entry.model_type) == ("text", model_type)))
    torch.manual_seed(0)
    encoder = encoder_class(config)._from_config(config).eval()
    sentence_encoder(tmp_path)
    encoder.save_pretrained(tmp_path)
    model = AutoModelForLwALClassification.from_pretrained(tmp_path, num_labels=3, task="text", normalize=False).eval()
    assert model.config.pooling == "mean"
    inputs = {"input_ids": inputs_of()["input_ids"] % 16 + 5, "attention_mask": inputs_of()["attention_mask"]}
    with torch.no_grad():
        tokens = encoder(**inputs).last_hidden_state
        found = model(**inputs).features
    torch.testing.assert_close(found.double(), by_loops(tokens, inputs["attention_mask"], "mean"), rtol=0, atol=1e-5)


def test_the_files_win_over_what_the_stock_class_would_pool(tmp_path, caplog):
    folder = sentence_encoder(tmp_path, name="modernbert")
    with caplog.at_level(logging.INFO, "hf_lwal"):
        model = AutoModelForLwALClassification.from_pretrained(folder, num_labels=3, classifier_pooling="cls")
    assert (model.config.pooling, model.encoder.config.normalize) == ("mean", True)
    assert "(classifier_pooling='cls' is for the stock class)" in caplog.text
    (folder / "modules.json").unlink()
    model = AutoModelForLwALClassification.from_pretrained(folder, num_labels=3, classifier_pooling="mean")
    assert (model.config.pooling, model.encoder.config.classifier_pooling) == ("model", "mean")


def in_the_cache(folder, missing):
    """A cache of the Hub in which somebody once loaded a model; ``missing``: files that the Hub said it lacks."""
    repo = folder / "models--alice--encoder"
    snapshot = repo / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    AutoModel.from_config(tiny_config("bert")).save_pretrained(snapshot)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("0" * 40)
    for name in missing:
        (repo / ".no_exist" / ("0" * 40)).mkdir(parents=True, exist_ok=True)
        (repo / ".no_exist" / ("0" * 40) / name).touch()


@pytest.mark.parametrize("missing", [(), ("modules.json",)])
def test_a_file_that_nobody_asked_the_hub_for_is_not_taken_for_missing(tmp_path, missing, caplog):
    """Without a network, a sentence encoder would be read by its first token, and with one by the mean, in silence."""
    in_the_cache(tmp_path, missing)
    AutoModelForLwALClassification.from_pretrained("alice/encoder", num_labels=3, cache_dir=str(tmp_path))
    assert ("Whether alice/encoder is a sentence encoder is not known" in caplog.text) == (not missing)


def test_pictures_are_not_asked_how_their_tokens_are_pooled(tmp_path, caplog):
    AutoModel.from_config(tiny_config("vit")).save_pretrained(tmp_path)
    (tmp_path / "modules.json").write_text("{")
    with caplog.at_level(logging.INFO, "hf_lwal"):
        model = AutoModelForLwALClassification.from_pretrained(tmp_path, num_labels=3)
    assert "ooling" not in caplog.text
    assert classifier_of(model) == "ViTForImageClassification"


@pytest.mark.parametrize("fine_tuned", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_controls_of_the_quickstart_read_the_features_that_label_vectors_read(tmp_path, method, fine_tuned):
    """A table whose columns differ in the pooling, too, says nothing of the labels."""
    folder = sentence_encoder(tmp_path)
    if fine_tuned:
        AutoModelForSequenceClassification.from_pretrained(folder, num_labels=3).save_pretrained(folder)
    task = SimpleNamespace(kind="text", model_path=str(folder), names=["a", "b", "c", "d"])
    model = build_model(task, method)
    classifier = model.encoder if method == "LwAL" else model
    expected = BertForSequenceClassification if fine_tuned else LwALPooledForSequenceClassification
    assert type(classifier) is expected
    assert getattr(classifier.config, "normalize", False) is not fine_tuned
    assert model.config.id2label == {0: "a", 1: "b", 2: "c", 3: "d"}


@pytest.mark.parametrize(("asked", "expected"), [(None, "mean"), ("auto", "mean"), ("max", "max"), ("model", "model")])
def test_the_command_loads_with_the_pooling_that_was_asked_for(tmp_path, asked, expected):
    """The stock class's pooler cannot come back after another class was loaded, so asking for it must come first."""
    folder = sentence_encoder(tmp_path)
    rows = SimpleNamespace(names=["a", "b", "c", "d", "e"], columns=SimpleNamespace(kind="text"))
    model = build_start(Start(str(folder), None, None, "tiny"), rows, None, 0, asked)
    assert model.config.pooling == expected
    options = arguments(tmp_path, max_steps=1, lwal_pooling=asked, label_method="one_hot")
    trainer = LwALTrainer(model, options, train_dataset=rows_for("bert", 10))
    assert getattr(trainer.model.config, "pooling", "model") == expected
    assert trainer.train().global_step == 1


def test_a_stock_classifier_that_was_handed_over_stays_the_class_that_was_chosen(tmp_path):
    folder = sentence_encoder(tmp_path)
    stock = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=5)
    trainer = LwALTrainer(stock, arguments(tmp_path), train_dataset=rows_for("bert", 10))
    assert classifier_of(trainer.model) == "BertForSequenceClassification"
    asked = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=5)
    trainer = LwALTrainer(asked, arguments(tmp_path, lwal_pooling="auto"), train_dataset=rows_for("bert", 10))
    assert (trainer.model.config.pooling, trainer.model.encoder.config.normalize) == ("mean", True)


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_tokens_on_the_left_embedded_or_without_a_mask_count_alike(tmp_path, name):
    """Where a tokenizer pads, and who embeds the tokens, is not part of a sentence; no mask means no padding."""
    folder = sentence_encoder(tmp_path, pooling={"pooling_mode": ["mean", "lasttoken"]}, name=name)
    model = AutoModelForLwALClassification.from_pretrained(folder, num_labels=3).eval()
    ids = inputs_of()["input_ids"][:1, :4]
    padded = torch.cat([torch.zeros(1, 2, dtype=torch.long), ids], dim=1)
    mask = torch.tensor([[0, 0, 1, 1, 1, 1]])
    places = torch.tensor([[0, 0, 0, 1, 2, 3]])
    with torch.no_grad():
        expected = model(input_ids=ids, attention_mask=torch.ones_like(ids)).features
        for inputs in (
            {"input_ids": ids},
            {"inputs_embeds": model.get_input_embeddings()(ids)},
            {"input_ids": padded, "attention_mask": mask, "position_ids": places},
            {"inputs_embeds": model.get_input_embeddings()(padded), "attention_mask": mask, "position_ids": places},
        ):
            torch.testing.assert_close(model(**inputs).features, expected, rtol=1e-4, atol=1e-5)


def inputs_of(rows=4):
    ids = torch.randint(5, 40, (rows, 6), generator=torch.Generator().manual_seed(1))
    mask = (torch.arange(6) < torch.tensor([[6], [3], [1], [4]])[:rows]).long()
    return {"input_ids": ids, "attention_mask": mask}


@pytest.mark.parametrize("name", ["bert", "distilbert", "roberta", "deberta_v2", "modernbert", "llama"])
def test_any_backbone_pools_trains_and_loads_again(tmp_path, name):
    torch.manual_seed(0)
    model = AutoModelForLwALClassification.from_config(
        tiny_config(name, num_labels=3), embedding_dim=8, pooling="mean+last", normalize=True
    )
    inputs = inputs_of()
    model.train()(**inputs, labels=torch.tensor([0, 1, 2, 0])).loss.backward()
    without = [
        name for name, parameter in model.named_parameters() if parameter.grad is None and parameter.requires_grad
    ]
    assert not without, "several processes would wait for these gradients for ever"
    model.eval()
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    assert loaded.config.pooling == "mean+last"
    with torch.no_grad():
        found = model(**inputs)
        assert torch.equal(loaded(**inputs).logits, found.logits)
        tokens = model.encoder.base_model(**inputs).last_hidden_state
    expected = torch.cat([by_loops(tokens, inputs["attention_mask"], mode) for mode in ("mean", "last")], dim=1)
    torch.testing.assert_close(found.features.double(), F.normalize(expected, dim=1), rtol=1e-5, atol=1e-6)


def test_an_encoder_with_a_decoder_pools_its_encoder():
    from transformers import T5Config

    config = T5Config(vocab_size=50, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, num_labels=3)
    model = AutoModelForLwALClassification.from_config(config, pooling="mean", embedding_dim=4).eval()
    assert model(**inputs_of()).logits.shape == (4, 3)


def test_the_pooled_classifier_is_a_stock_class_to_everything_else(tmp_path):
    config = pooled_config(tiny_config("bert", num_labels=5), "mean", False)
    assert find_head(config, "text") == ("classifier", 32)
    model = AutoModelForSequenceClassification.from_config(config)
    assert isinstance(model, LwALPooledForSequenceClassification)
    assert model.bert is model.base_model
    model.save_pretrained(tmp_path)
    assert "_name_or_path" not in json.loads((tmp_path / "config.json").read_text())["base_config"]
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert isinstance(AutoConfig.from_pretrained(tmp_path), LwALPooledConfig)
    expected = {key: value.clone() for key, value in model.state_dict().items()}
    assert all(torch.equal(value, expected[key]) for key, value in loaded.state_dict().items())
    folded = AutoModelForLwALClassification.from_stock(loaded, embedding_dim=8)
    folded.initialize_labels([{**inputs_of(), "labels": torch.tensor([0, 1, 2, 3])}], progress=False)
    folded.eval()
    stock = folded.fold([inputs_of()])
    assert isinstance(stock, LwALPooledForSequenceClassification)
    assert torch.equal(stock(**inputs_of()).logits.argmax(1), folded(**inputs_of()).logits.argmax(1))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"pooling": "average"}, "Unknown pooling 'average': choose one of model, mean, cls, max, last"),
        ({"pooling": "mean+mean"}, "Unknown pooling 'mean\\+mean'"),
        ({"pooling": "model", "normalize": True}, "choose a pooling"),
        ({"pooling": "mean", "keep_head": True}, "keep_head=True keeps a head"),
    ],
)
def test_unknown_or_impossible_poolings_say_what_to_choose(tmp_path, options, says):
    AutoModelForSequenceClassification.from_config(tiny_config("bert", num_labels=3)).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=says):
        AutoModelForLwALClassification.from_pretrained(tmp_path, **options)


def test_pictures_have_no_tokens_to_pool():
    with pytest.raises(ValueError, match="classifies image"):
        AutoModelForLwALClassification.from_config(tiny_config("vit", num_labels=3), pooling="mean")


def test_a_saved_model_keeps_its_pooling_and_refuses_another(tmp_path):
    AutoModelForLwALClassification.from_config(tiny_config("bert", num_labels=3), pooling="max").save_pretrained(
        tmp_path
    )
    assert AutoModelForLwALClassification.from_pretrained(tmp_path).config.pooling == "max"
    assert AutoModelForLwALClassification.from_pretrained(tmp_path, pooling="max").config.pooling == "max"
    with pytest.raises(ValueError, match="trained with pooling='max'"):
        AutoModelForLwALClassification.from_pretrained(tmp_path, pooling="mean")


@pytest.mark.parametrize("method", ["lwal", "one_hot"])
def test_the_training_argument_pools_every_method_alike(tmp_path, method):
    """A control that reads the first token while label vectors read the mean would be no control."""
    model = AutoModelForSequenceClassification.from_config(tiny_config("bert", num_labels=5))
    before = model.bert.embeddings.word_embeddings.weight
    options = arguments(tmp_path, max_steps=2, label_method=method, lwal_pooling="mean", optim="adamw_torch")
    trainer = LwALTrainer(model, options, train_dataset=rows_for("bert", 30))
    encoder = trainer.model.encoder if method == "lwal" else trainer.model
    assert isinstance(encoder, LwALPooledForSequenceClassification)
    assert encoder.bert.embeddings.word_embeddings.weight is before
    first = before.detach().clone()
    trainer.train()
    assert not torch.equal(first, before), "the backbone must have trained"
    if method == "lwal":
        with pytest.raises(ValueError, match="was trained with pooling='mean'"):
            LwALTrainer(trainer.model, arguments(tmp_path, lwal_pooling="max"), train_dataset=rows_for("bert", 30))


def test_an_unknown_training_argument_is_refused_before_any_model_is_touched(tmp_path):
    with pytest.raises(ValueError, match="Unknown pooling 'avg'"):
        arguments(tmp_path, lwal_pooling="avg").resolve_lwal()


def test_an_adapter_is_in_the_way_of_another_pooling(tmp_path):
    from peft import LoraConfig, get_peft_model

    model = AutoModelForLwALClassification.from_config(tiny_config("bert", num_labels=5), pooling="mean")
    saved = model.peft_modules_to_save()
    assert saved == ["classifier", "encoder.classifier"]
    adapted = get_peft_model(model, LoraConfig(target_modules=["query"], modules_to_save=saved))
    LwALTrainer(adapted, arguments(tmp_path, max_steps=1), train_dataset=rows_for("bert", 30)).train()
    with pytest.raises(ValueError, match="cannot reach through an adapter"):
        LwALTrainer(adapted, arguments(tmp_path, lwal_pooling="max"), train_dataset=rows_for("bert", 30))
