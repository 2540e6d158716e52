"""`encode` and `predict`: raw inputs in, embeddings and names out."""

from __future__ import annotations

import copy

import numpy as np
import pandas as pd
import pytest
import torch
from datasets import Dataset
from PIL import Image
from scipy.io import wavfile
from test_modeling import LABELS, build, trained
from toy import AUDIO_LENGTH, IMAGE_SIZE
from transformers import (
    GPT2Config,
    MPNetConfig,
    Wav2Vec2FeatureExtractor,
    WhisperConfig,
    WhisperFeatureExtractor,
    XLNetConfig,
    pipeline,
)
from transformers.models.vit import ViTImageProcessor

from hf_lwal import AutoModelForLwALClassification
from hf_lwal.modeling.inference import max_length_of, sound

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


@pytest.mark.parametrize("missing", [None, float("nan"), 7, pd.NA])
def test_a_text_that_is_missing_is_named(tiny_config, tokenizer, missing):
    """A table's empty cells ended in the tokenizer's own words, which say neither which text nor what to do."""
    model = trained(build(tiny_config, "bert"), steps=1)
    for call in (model.predict, model.encode):
        with pytest.raises(ValueError, match=rf"inputs\[2\] is {missing}, which is no text: leave out the rows"):
            call(pd.Series(["key1", "", missing], dtype=object), tokenizer, batch_size=1)
    assert len(model.predict([("key1", "word2"), ("", "key2")], tokenizer)) == 2


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


def test_lists_of_every_kind(tiny_config, tokenizer):
    """An array as list or as labels ended in "truth value is ambiguous", a Series in a refusal."""
    model = trained(build(tiny_config, "bert"))
    expected = model.predict(TEXTS, tokenizer)
    ids = [1, 2, 0] * 3
    radii = model.fit_rejection(TEXTS, tokenizer, ids, progress=False)
    for kind in (tuple, np.array, pd.Series, lambda values: Dataset.from_dict({"text": values})["text"]):
        assert model.predict(kind(TEXTS), tokenizer) == expected
        assert torch.equal(model.encode(kind(TEXTS), tokenizer), model.encode(TEXTS, tokenizer))
        assert torch.equal(model.fit_rejection(kind(TEXTS), tokenizer, kind(ids), progress=False), radii)
        names = [model.config.id2label[i] for i in ids]
        assert torch.equal(model.fit_rejection(kind(TEXTS), tokenizer, kind(names), progress=False), radii)
        assert model.predict_with_rejection(kind(TEXTS), tokenizer)[0]["nearest"] == expected[0][0]["label"]
        copied = copy.deepcopy(model)
        assert copied.add_label("new", kind(TEXTS[:3]), tokenizer) == LABELS
    with pytest.raises(ValueError, match="The label of row 1 is None"):
        model.fit_rejection(TEXTS, tokenizer, [0, None, *ids[2:]], progress=False)


class Decoder:
    """A sound as data sets decode it."""

    def __init__(self, wave, rate):
        self.values = {"array": wave, "sampling_rate": rate}

    def get_all_samples(self):
        return self

    def __getitem__(self, key):
        return self.values[key]


def test_sounds_of_a_data_set(tiny_config, tmp_path):
    """A sound of another sampling rate was taken for the extractor's: other pitches, another label."""
    model, extractor = trained(build(tiny_config, "wav2vec2")), Wav2Vec2FeatureExtractor(sampling_rate=16_000)
    time = np.arange(1600) / 16_000
    wave = np.sin(2 * np.pi * 300 * time).astype(np.float32)
    expected = model.encode([wave], extractor)
    forms = [
        {"array": wave, "sampling_rate": 16_000, "path": None},
        {"raw": wave.tolist(), "sampling_rate": 16_000},
        {"array": np.stack([wave + 0.1, wave - 0.1]), "sampling_rate": 16_000},
        Decoder(wave, 16_000),
    ]
    for form in forms:
        assert torch.allclose(model.encode([form], extractor), expected, atol=1e-4)
    for rate in (8_000, 44_100):
        other = np.sin(2 * np.pi * 300 * np.arange(rate // 10) / rate).astype(np.float32)
        found = sound({"array": other, "sampling_rate": rate}, 16_000)
        assert len(found) == len(wave)
        assert np.abs(found - wave)[100:-100].max() < 0.02
    file = tmp_path / "array of raw.wav"  # a name is no dict, whatever it contains
    wavfile.write(file, 16_000, (wave * 32_767).astype(np.int16))
    for form in (str(file), file, file.read_bytes(), {"path": str(file), "bytes": None}):
        assert torch.allclose(model.encode([form], extractor), expected, atol=1e-3)
    for wrong in ("a.wav", {"path": "a.wav", "bytes": None}):
        with pytest.raises(ValueError, match=r"a\.wav cannot be read as a sound \(there is no such file"):
            model.predict([wrong], extractor)
    with pytest.raises(ValueError, match="it has sampling_rate"):
        model.predict([{"sampling_rate": 16_000}], extractor)
    with pytest.raises(ValueError, match="a single one: put it in a list"):
        model.predict(wave, extractor)


def test_whisper_pads_to_its_own_length():
    """Padding to the longest sound of the batch is refused by the model."""
    config = WhisperConfig(
        **{"vocab_size": 64, "d_model": 16, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 16},
        **{"num_mel_bins": 8, "max_source_positions": 50, "classifier_proj_size": 16, "num_labels": LABELS},
        **{"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "decoder_start_token_id": 2},
    )
    model = AutoModelForLwALClassification.from_config(config, task="audio").eval()
    extractor = WhisperFeatureExtractor(feature_size=8, chunk_length=1)
    assert len(model.predict([np.zeros(4000, np.float32), np.zeros(9000, np.float32)], extractor)) == 2


def test_pictures_by_path(tiny_config, tmp_path):
    """A path given to an image model, and what a data set keeps of a picture, are pictures too."""
    model, processor = trained(build(tiny_config, "vit")), ViTImageProcessor(size={"height": 16, "width": 16})
    image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (IMAGE_SIZE, IMAGE_SIZE, 3), dtype=np.uint8))
    path = tmp_path / "a.png"
    image.save(path)
    expected = model.encode([image], processor)
    for form in (str(path), path, {"path": str(path), "bytes": None}, {"bytes": path.read_bytes(), "path": None}):
        assert torch.equal(model.encode([form], processor), expected)
    grey = np.asarray(image)[:, :, 0]
    deep = Image.fromarray(grey.astype(np.uint16) * 257)  # image processors would clip it to white
    deep.save(tmp_path / "deep.png")
    expected = model.encode([Image.fromarray(grey).convert("RGB")], processor)
    for form in (deep, tmp_path / "deep.png"):
        assert torch.equal(model.encode([form], processor), expected)
    (tmp_path / "b.png").write_text("no picture")
    for wrong in (tmp_path / "b.png", tmp_path / "nothing.png"):
        with pytest.raises(ValueError, match=f"{wrong.name} cannot be read as a picture"):
            model.predict([wrong], processor)
    with pytest.raises(ValueError, match="is a single one"):
        model.predict(np.zeros((16, 16), np.uint8), processor)
