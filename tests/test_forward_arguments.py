"""What a model's forward takes: all that its encoder takes, by call and as a column of a data set."""

from __future__ import annotations

import inspect

import pytest
import torch
from datasets import Dataset
from test_modeling import LABELS, build, inputs_for
from transformers import ErnieConfig, LongformerConfig, RoCBertConfig, Trainer, TrainingArguments, XmodConfig
from transformers.utils.generic import find_labels

from hf_lwal import AutoModelForLwALClassification, LwALTrainer, LwALTrainingArguments

SMALL = {
    **{"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16},
    **{"pad_token_id": 0, "num_labels": LABELS, "max_position_embeddings": 40, "initializer_range": 0.5},
}
SHAPES = {"enable_pronunciation": False, "shape_vocab_size": 8, "shape_embed_dim": 8}
CASES = {
    "global_attention_mask": LongformerConfig(**(SMALL | {"num_hidden_layers": 2}), attention_window=4),
    "task_type_ids": ErnieConfig(**SMALL, use_task_id=True),
    "lang_ids": XmodConfig(**SMALL, languages=["en_XX", "de_DE"], default_language="en_XX"),
    "input_shape_ids": RoCBertConfig(**SMALL, **SHAPES),
}


@pytest.mark.parametrize("name", CASES)
def test_arguments_of_one_architecture(tmp_path, name):
    """A column that the encoder uses was dropped without a word, so that the model was trained without it."""
    torch.manual_seed(0)
    model = AutoModelForLwALClassification.from_config(CASES[name]).eval()
    ids = torch.randint(4, 60, (4, 16))
    value = torch.tensor([0, 1, 1, 0]) if name == "lang_ids" else torch.ones_like(ids)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    with torch.no_grad():
        embeddings = model(**inputs, **{name: value}).embeddings
        assert torch.allclose(embeddings, model.encoder(**inputs, **{name: value}).logits, atol=1e-5)
        assert not torch.allclose(embeddings, model(**inputs).embeddings, atol=1e-4)
    columns = {**inputs, name: value, "labels": [0, 1, 2, 3], "note": list("abcd"), "langs": list("abcd")}
    rows = Dataset.from_dict(
        {
            key: [part.tolist() if hasattr(part, "tolist") else part for part in column]
            for key, column in columns.items()
        }
    )
    options = {"report_to": "none", "use_cpu": True}
    trainer = LwALTrainer(model=model, args=LwALTrainingArguments(str(tmp_path), **options), train_dataset=rows)
    assert set(next(iter(trainer.get_train_dataloader()))) == {*inputs, name, "labels"}
    plain = Trainer(
        model=model, args=TrainingArguments(str(tmp_path), **options), train_dataset=rows.remove_columns("langs")
    )
    assert set(next(iter(plain.get_train_dataloader()))) == {*inputs, name, "labels"}


def test_arguments_that_stock_classes_swallow(tiny_config):
    """Code that hands more to the model than it needs works with the stock class."""
    for name in ("bert", "vit", "wav2vec2", "llama"):
        model = build(tiny_config, name).eval()
        inputs = inputs_for(model)
        more = {"use_cache": False} if name == "llama" else {"extra": 1}
        assert torch.equal(model(**inputs, **more).logits, model(**inputs).logits)
        assert torch.equal(model.encoder(**inputs, **more).logits, model(**inputs).embeddings)
        assert find_labels(type(model)) == ["labels"]


def test_an_argument_that_nothing_takes(tiny_config, monkeypatch):
    """An encoder without ``**kwargs`` must not lose an argument silently."""
    model = build(tiny_config, "bert").eval()
    stock = type(model.encoder).forward

    def forward(self, input_ids=None, attention_mask=None, return_dict=None):
        return stock(self, input_ids=input_ids, attention_mask=attention_mask, return_dict=return_dict)

    monkeypatch.setattr(type(model.encoder), "forward", forward)
    inputs = inputs_for(model)
    assert "kwargs" not in model.encoder_arguments
    model(**inputs, token_type_ids=torch.zeros_like(inputs["input_ids"]))  # tokenizers give it to every model
    with pytest.raises(TypeError, match="takes no 'extra'; its arguments are attention_mask, input_ids"):
        model(**inputs, extra=1)
    assert "kwargs" in inspect.signature(type(model).forward).parameters
