"""Any stock classifier of transformers: a third of them here, all of them in benchmarks/architectures.py."""

from __future__ import annotations

import copy

import pytest
import torch
import transformers
from architecture_checks import CHECKS, PROCESSORS, build, check_outputs, check_reload, processed, raw_inputs
from architectures import EXCLUDED, MAPPINGS, Architecture, architectures, tiny
from releases import HAS_ALL_ARCHITECTURES
from test_modeling import build as built
from test_modeling import inputs_for, trained
from torch import nn
from transformers import AutoConfig, AutoModelForImageClassification, PvtConfig

from hf_lwal import AutoModelForLwALClassification, LwALConfig
from hf_lwal.modeling import probes
from hf_lwal.modeling.heads import Head, find_head, is_plain_linear, replace_head, with_architectures
from hf_lwal.modeling.tasks import TASKS

REPRESENTATIVE = {
    # encoders, encoder-decoders, decoders, experts, state spaces, long and hashed attention, layouts and languages
    "text": """albert bart bert bigbird_pegasus big_bird bloom canine convbert deberta-v2 deepseek_v3 diffllama
    distilbert esmc falcon fnet funnel gemma3 gpt2 gpt_neo gpt_oss jamba layoutlmv3 llama longformer markuplm
    mixtral modernbert modernvbert mpt mt5 opt perceiver qwen3_moe qwen3_next reformer roberta roc_bert t5 t5gemma
    tapas xlnet xmod zamba2""",
    # patches, windows, convolutions, two heads, tokens of pixels, several classes for one configuration
    "image": """beit clip convnext deit donut-swin efficientnet hiera imagegpt levit mobilenet_v2 pp_lcnet pvt resnet
    segformer siglip2 swiftformer vit""",
    "audio": "audio-spectrogram-transformer sew-d wav2vec2 wav2vec2-bert whisper",
}
"""Task -> model types: many families, and every kind that once broke."""

ALL = list(architectures())
CHOSEN = [a for a in ALL if a.model_type in REPRESENTATIVE[a.task].split()]


def stock_fault(chosen: Architecture) -> str | None:
    """What keeps an earlier release from training its own classifier on the same rows; None where nothing does."""
    if HAS_ALL_ARCHITECTURES:
        return None
    try:
        config = tiny(chosen)
        processor = PROCESSORS[chosen.task](config)
        rows = processed(chosen.task, processor, raw_inputs(chosen.task, config)).with_format("torch")[:2]
        with_labels = {**rows, "labels": rows["labels"] * 0}
        TASKS[chosen.task].stock.from_config(with_architectures(config)).train()(**with_labels)
    except Exception as error:
        return f"{chosen.name} in transformers {transformers.__version__}: {error}"
    return None


def architecture(class_name: str) -> Architecture:
    return next(a for a in ALL if a.class_name == class_name)


@pytest.fixture
def few_random_rows(monkeypatch):
    """A fold compares as many random rows as take seconds; beside the given ones, some are enough to see it work."""
    monkeypatch.setattr(probes, "RANDOM_ROWS", 64)
    monkeypatch.setattr(probes, "LEAST_ROWS", 8)


@pytest.mark.usefixtures("few_random_rows")
@pytest.mark.parametrize("chosen", CHOSEN, ids=lambda chosen: chosen.name)
def test_a_third_of_all_architectures(chosen, tmp_path):
    """A head found wrongly, an argument that is lost, a weight that does not load: each breaks one of the checks."""
    if fault := stock_fault(chosen):
        pytest.skip(fault)
    subject = build(chosen)
    for check in CHECKS.values():
        check(subject, tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("few_random_rows")
@pytest.mark.parametrize("chosen", [a for a in ALL if a.backbone], ids=lambda chosen: chosen.name)
def test_timm_backbones(chosen, tmp_path):
    """Timm has layers and label names of its own."""
    subject = build(chosen)
    for check in CHECKS.values():
        check(subject, tmp_path)


@pytest.mark.skipif(not HAS_ALL_ARCHITECTURES, reason="earlier releases lack the newest architectures")
def test_the_third_is_a_third():
    """Names that transformers no longer knows would leave the list without anybody noticing."""
    for task, names in REPRESENTATIVE.items():
        assert set(names.split()) <= set(MAPPINGS[task])
        assert len(names.split()) >= len(MAPPINGS[task]) / 3
    assert set(EXCLUDED) <= {name for mapping in MAPPINGS.values() for name in mapping}


@pytest.mark.slow
def test_every_architecture_is_tiny():
    """A configuration whose sizes have new names would build gigabytes in the sweep."""
    for chosen in ALL:
        if chosen.model_type in EXCLUDED or chosen.backbone is not None:
            continue
        with torch.device("meta"):
            model = TASKS[chosen.task].stock.from_config(with_architectures(tiny(chosen)))
        assert sum(parameter.numel() for parameter in model.parameters()) < 1_000_000, chosen.name


# -- what the sweep found -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["DeiTForImageClassification", "LevitForImageClassification"])
def test_a_configuration_that_names_no_architecture(name):
    """Transformers iterates over None where a configuration has several classes."""
    config = tiny(architecture(name))
    config.architectures = None
    model = AutoModelForLwALClassification.from_config(config)
    assert type(model.encoder).__name__ == name
    assert model.config.space == "features"


def test_the_class_at_hand_is_built_again(tmp_path):
    """Without its name in the configuration, a two-headed stock model would come back with one head."""
    chosen = architecture("DeiTForImageClassificationWithTeacher")
    subject = build(chosen)
    assert subject.model.config.head_name is None
    assert subject.model.config.space == "embeddings"
    subject.model.initialize_labels([dict(subject.batch(), labels=torch.arange(4) % 3)], progress=False)
    check_reload(subject, tmp_path)
    config = tiny(chosen)
    config.architectures = None
    two_headed = getattr(transformers, chosen.class_name)(config)
    with pytest.raises(ValueError, match="DeiTForImageClassificationWithTeacher has no single linear head to replace"):
        AutoModelForLwALClassification.from_stock(two_headed)


def test_experts_run_as_in_the_stock_model():
    """A wrapper that "does not support setting experts implementation" stopped every mixture of experts."""
    subject = build(architecture("MixtralForSequenceClassification"))
    stock = TASKS["text"].stock.from_config(subject.config)
    implementation = subject.model.encoder.config._experts_implementation
    assert implementation == stock.config._experts_implementation
    subject.model.set_experts_implementation("eager")
    assert subject.model.encoder.config._experts_implementation == "eager"
    check_outputs(subject, None)


def test_labels_without_names(tmp_path):
    """PVT has a number of labels and no names, timm names under its own keys: both looked like bare backbones."""
    config = PvtConfig(num_labels=3)  # which earlier releases take for 2
    assert AutoModelForLwALClassification.from_config(config).config.num_labels == config.num_labels
    stock = AutoModelForImageClassification.from_config(tiny(architecture("PvtForImageClassification")))
    stock.save_pretrained(tmp_path)
    read = AutoConfig.from_pretrained(tmp_path).num_labels
    assert read == 3 or not HAS_ALL_ARCHITECTURES
    assert AutoModelForLwALClassification.from_pretrained(tmp_path).config.num_labels == read


def test_the_dummy_label_names_of_timm_are_not_saved():
    """One name per embedding dimension would stand in the file beside the real ones."""
    small = next(a for a in ALL if a.backbone == "mobilenetv3_small_050")
    config = LwALConfig(encoder_config=tiny(small), task="image", embedding_dim=16, id2label={0: "a", 1: "b"})
    assert not {"num_classes", "label_names", "id2label"} & set(config.to_dict()["encoder_config"])


def test_a_subclass_of_linear_is_no_plain_linear_layer():
    """A quantised layer is a subclass of ``nn.Linear``, with other weights."""

    class Quantised(nn.Linear):
        pass

    assert is_plain_linear(nn.Linear(2, 2))
    assert not is_plain_linear(Quantised(2, 2))
    small = next(a for a in ALL if a.backbone == "mobilenetv3_small_050")
    assert find_head(tiny(small), "image") == Head("timm_model.classifier", 1024)


def test_a_fresh_head_on_a_quantised_encoder_trains(tiny_config):
    """Of the dtype of a quantised head it could not even be made."""
    encoder = built(tiny_config, "bert").encoder
    encoder.classifier.weight = nn.Parameter(encoder.classifier.weight.detach().to(torch.int8), requires_grad=False)
    replace_head(encoder, Head("classifier", 32), 7)
    assert encoder.classifier.weight.dtype == torch.float32
    assert encoder.classifier.weight.requires_grad


def test_an_encoder_quantised_on_loading_is_not_saved(tiny_config, tmp_path):
    """Its integers would be read as weights, and the loaded model would predict noise without a word."""
    model = built(tiny_config, "bert")
    model.encoder.hf_quantizer = object()
    with pytest.raises(ValueError, match="quantised while it was loaded"):
        model.save_pretrained(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["bert", "llama", "resnet"])
def test_device_maps(tiny_config, name, tmp_path):
    """Accelerate moves layers behind the model's back, the head and the label table among them."""
    model = trained(built(tiny_config, name))
    model.save_pretrained(tmp_path / "saved")
    inputs = inputs_for(model)
    for device_map in ("auto", {"encoder": "cpu", "classifier": "disk"}):
        loaded = AutoModelForLwALClassification.from_pretrained(
            tmp_path / "saved", device_map=device_map, offload_folder=tmp_path / "offloaded"
        ).eval()
        with torch.no_grad():
            torch.testing.assert_close(loaded(**inputs).logits, model(**inputs).logits)


def test_padding_of_a_decoder_changes_nothing(tiny_config):
    """Pooling of the last position instead of the last token would embed the padding."""
    model = built(tiny_config, "llama").eval()
    ids = torch.randint(4, 60, (1, 6))
    padded = torch.cat([ids, torch.full((1, 5), model.config.pad_token_id)], dim=1)
    mask = (padded != model.config.pad_token_id).long()
    with torch.no_grad():
        alone = model(input_ids=ids, attention_mask=torch.ones_like(ids))
        beside = model(input_ids=padded, attention_mask=mask)
    torch.testing.assert_close(beside.embeddings, alone.embeddings, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(beside.features, alone.features, atol=1e-5, rtol=1e-4)


def test_the_given_configuration_stays_as_it_is():
    """Filling in what transformers needs must happen on a copy: scripts go on with their configuration."""
    config = tiny(architecture("LevitForImageClassification"))
    config.architectures = None
    before = copy.deepcopy(config.to_dict())
    AutoModelForLwALClassification.from_config(config)
    assert config.to_dict() == before
