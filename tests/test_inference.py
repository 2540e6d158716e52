"""`encode` and `predict`: raw inputs in, embeddings and names out."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from test_modeling import LABELS, build, trained
from toy import AUDIO_LENGTH, IMAGE_SIZE
from transformers import GPT2Config, MPNetConfig, Wav2Vec2FeatureExtractor, XLNetConfig, pipeline
from transformers.models.vit import ViTImageProcessor

from hf_lwal import AutoModelForLwALClassification
from hf_lwal.inference import max_length_of

TEXTS = ["key1 word2", "word3 key2 key2 word4 word5", "key0"] * 3


def test_texts(tiny_config, tokenizer):
    """Padding, batches and training mode must not change what a text is embedded and classified as."""
    model = trained(build(tiny_config, "bert"))
    one_by_one = torch.cat([model.encode([text], tokenizer) for text in TEXTS])
    model.train()
    embeddings = model.encode(TEXTS, tokenizer, batch_size=4)
    assert model.training
    assert torch.allclose(embeddings, one_by_one, atol=1e-5)
    predictions = model.predict(TEXTS, tokenizer, top_k=LABELS, batch_size=4)
    model.eval()
    served = pipeline("text-classification", model=model, tokenizer=tokenizer, device="cpu")(TEXTS, top_k=None)
    for ours, theirs in zip(predictions, served, strict=True):
        assert [entry["label"] for entry in ours] == [entry["label"] for entry in theirs]
        assert [e["score"] for e in ours] == pytest.approx([e["score"] for e in theirs], abs=1e-5)
        assert sum(entry["score"] for entry in ours) == pytest.approx(1.0, abs=1e-5)


def test_images_and_sounds(tiny_config):
    """Processors of images and sounds take other arguments than tokenizers."""
    generator = np.random.default_rng(0)
    images = [generator.integers(0, 255, (IMAGE_SIZE, IMAGE_SIZE, 3), dtype=np.uint8) for _ in range(3)]
    processor = ViTImageProcessor(size={"height": IMAGE_SIZE, "width": IMAGE_SIZE})
    model = trained(build(tiny_config, "vit"))
    assert model.encode(images, processor).shape == (3, model.config.embedding_dim)
    assert all(len(entry) == 2 for entry in model.predict(images, processor, top_k=2))
    sounds = [generator.standard_normal(AUDIO_LENGTH).astype(np.float32) for _ in range(3)]
    model = trained(build(tiny_config, "wav2vec2")).to(torch.bfloat16)
    assert len(model.predict(sounds, Wav2Vec2FeatureExtractor())) == 3


def test_bad_input(tiny_config, tokenizer):
    """A single text would be read letter by letter."""
    model = build(tiny_config, "bert").eval()
    with pytest.raises(ValueError, match="inputs must be a list of at least one text, but it is str"):
        model.predict("key1", tokenizer)
    with pytest.raises(ValueError, match=f"top_k is 9, but it must be between 1 and the number of labels, {LABELS}"):
        model.predict(TEXTS, tokenizer, top_k=9)


SMALL = {"vocab_size": 64, "num_labels": LABELS, "pad_token_id": 0}
GPT2 = GPT2Config(**SMALL, n_embd=16, n_layer=1, n_head=2, n_positions=40, bos_token_id=2, eos_token_id=3)
MPNET = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


@pytest.mark.parametrize(
    ("config", "unlimited", "of_500"),
    [
        ("bert", 40, 40),
        ("roberta", 39, 39),  # its positions start behind the padding's, which is 0 here
        ("modernbert", 40, 500),  # rotary: the tokenizer's word counts
        (GPT2, 40, 40),
        (MPNetConfig(**SMALL, **MPNET, max_position_embeddings=40), 38, 38),
        (XLNetConfig(**SMALL, d_model=16, n_layer=1, n_head=2, d_inner=16), None, 500),
    ],
)
def test_the_longest_text(tiny_config, tokenizer, config, unlimited, of_500):
    """A tokenizer that states no limit, or a wrong one, let the first long text end in an error from the model."""
    model = AutoModelForLwALClassification.from_config(
        tiny_config(config, num_labels=LABELS) if isinstance(config, str) else config
    ).eval()
    tokenizer = copy.deepcopy(tokenizer)
    for limit, expected in ((500, of_500), (int(1e30), unlimited)):
        tokenizer.model_max_length = limit
        assert max_length_of(model, tokenizer) == expected
        assert max_length_of(model.encoder, tokenizer) == expected
    if unlimited:
        long = ["key1 " * 100, "key2"]
        assert len(model.encode(long, tokenizer)) == 2
        cut = [" ".join(["key1"] * (unlimited - 2)), "key2"]  # [CLS] and [SEP] count
        assert torch.equal(model.encode(long, tokenizer), model.encode(cut, tokenizer))
