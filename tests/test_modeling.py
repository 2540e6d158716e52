"""Models with a label table: what they compute, keep, save and refuse."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from toy import AUDIO_LENGTH, IMAGE_SIZE, separable_text
from transformers import (
    AutoImageProcessor,
    AutoModelForSequenceClassification,
    TimmWrapperConfig,
    Trainer,
    TrainingArguments,
    pipeline,
    set_seed,
)
from warm_python import warm_python

from hf_lwal import AutoModelForLwALClassification, LwALConfig

TEXT = ["bert", "distilbert", "roberta", "deberta_v2", "modernbert", "llama"]
IMAGE = ["vit", "convnext", "resnet"]
ALL = [*TEXT, *IMAGE, "wav2vec2"]
LABELS = 5


def inputs_for(model, rows=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    if model.task == "image":
        return {"pixel_values": torch.randn(rows, 3, IMAGE_SIZE, IMAGE_SIZE, generator=generator)}
    if model.task == "audio":
        return {"input_values": torch.randn(rows, AUDIO_LENGTH, generator=generator)}
    ids = torch.randint(4, 60, (rows, 9), generator=generator)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def build(tiny_config, name, **kwargs):
    set_seed(0)
    task = {"task": "audio"} if name == "wav2vec2" else {}
    return AutoModelForLwALClassification.from_config(tiny_config(name, num_labels=LABELS), **task, **kwargs)


def trained(model, steps=6):
    """A few optimizer steps in a plain loop, so that every part of the table has moved."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model.train()
    for step in range(steps):
        model(**inputs_for(model, 8, step), labels=torch.arange(8) % LABELS).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


@pytest.mark.parametrize("name", ALL)
def test_embeddings_are_the_stock_classifiers_outputs(tiny_config, name):
    """A head that is found wrongly, or pooling that is skipped, would give other embeddings than the encoder's own."""
    model = build(tiny_config, name).eval()
    inputs = inputs_for(model)
    with torch.no_grad():
        output = model(**inputs)
        stock = model.encoder(**inputs).logits
    assert stock.shape == (4, model.config.embedding_dim)
    assert torch.allclose(output.embeddings, stock, atol=1e-6)
    assert output.features.shape == (4, model.head_module.in_features)
    assert torch.equal(model.head_module(output.features), output.embeddings)
    nearest = torch.cdist(output.embeddings, model.label_table.label_vectors).argmin(1)
    assert torch.equal(output.logits.argmax(1), nearest)


@pytest.mark.parametrize("name", ALL)
def test_training_moves_encoder_head_and_table(tiny_config, name):
    """A detached head or table would train the backbone only and pass every shape check."""
    model = build(tiny_config, name)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    trained(model)
    moved = {key for key, value in model.state_dict().items() if not torch.equal(value, before[key])}
    table = {"label_vectors", "class_features", "offset_bias", "log_scale_bias", "counts"}
    assert {f"classifier.{part}" for part in table} <= moved
    assert f"encoder.{model.config.head_name}.weight" in moved
    assert sum(key.startswith("encoder.") for key in moved) > 4
    assert model.label_table.counts.sum() == 6 * 8  # leaving training ends the last step


def test_label_vectors_are_the_class_means_through_the_head_plus_offset(tiny_config):
    """Evaluation reads a buffer: were it not written when training ends, it would predict with stale vectors."""
    model = trained(build(tiny_config, "bert"))
    table = model.label_table
    with torch.no_grad():
        expected = model.head_module(table.class_features) + table.offset_bias
    assert torch.equal(table.label_vectors, expected)


def test_edits_of_the_table_survive_until_the_next_training_step(tiny_config, tmp_path):
    """A table that is recomputed at every eval() or save would silently undo what a user changed."""
    model = trained(build(tiny_config, "bert"))
    with torch.no_grad():
        model.label_table.label_vectors.fill_(3.0)
    model.train()
    model.eval()
    model.save_pretrained(tmp_path)
    assert (load_file(tmp_path / "model.safetensors")["classifier.label_vectors"] == 3.0).all()
    trained(model, 1)
    assert not (model.label_table.label_vectors == 3.0).any()


def test_state_dict_taken_while_training_holds_the_vectors_of_the_moment(tiny_config):
    """A checkpoint saved in training mode must predict as the model does after eval()."""
    model = trained(build(tiny_config, "bert"))
    model.train()
    model(**inputs_for(model, 8), labels=torch.arange(8) % LABELS).loss.backward()
    with torch.no_grad():
        model.label_table.offset_bias.add_(1.0)
    saved = model.state_dict()["classifier.label_vectors"].clone()
    assert torch.equal(saved, model.eval().label_table.label_vectors)


@pytest.mark.parametrize("cast", ["to", "bfloat16", "half"])
def test_the_table_stays_float32(tiny_config, cast):
    """A table in bfloat16 holds three digits: running means stop moving and near labels become equal."""
    model = build(tiny_config, "bert")
    model = model.to(torch.bfloat16) if cast == "to" else getattr(model, cast)()
    assert {t.dtype for t in model.label_table.state_dict().values()} == {torch.float32, torch.int64}
    assert model.encoder.dtype != torch.float32
    output = model(**inputs_for(model), labels=torch.arange(4))
    assert output.logits.dtype == output.embeddings.dtype == torch.float32
    output.loss.backward()
    assert model.label_table.offset_bias.grad.dtype == torch.float32


RELOAD = """
import sys, torch
torch.set_num_threads(THREADS)
from hf_lwal import AutoModelForLwALClassification
for folder in sys.argv[1:]:
    model = AutoModelForLwALClassification.from_pretrained(folder)
    inputs = torch.load(folder + "/inputs.pt")
    with torch.no_grad():
        logits = model(**inputs).logits
    torch.save({"state": model.state_dict(), "logits": logits}, folder + "/reloaded.pt")
"""


def test_save_and_load_in_a_new_process_is_bit_equal(tiny_config, tmp_path):
    """Reinitialised buffers, a table in another dtype or lost keys only show in a process that never saw the model."""
    cases = {}
    for name in ("bert", "vit", "wav2vec2"):
        for dtype in (torch.float32, torch.bfloat16):
            folder = tmp_path / f"{name}-{dtype}".replace("torch.", "")
            original = trained(build(tiny_config, name)).to(dtype)
            original.save_pretrained(folder)
            # Weights read from a file lie elsewhere in memory, so CPU kernels may differ from the original's in the
            # last bit: logits are compared between two models that were both read, the state with the original.
            model = AutoModelForLwALClassification.from_pretrained(folder)
            inputs = {k: v.to(dtype) if v.is_floating_point() else v for k, v in inputs_for(model).items()}
            torch.save(inputs, folder / "inputs.pt")
            with torch.no_grad():
                cases[folder] = (original.state_dict(), model(**inputs).logits, dtype)
    subprocess.run(
        [warm_python(), "-c", RELOAD.replace("THREADS", str(torch.get_num_threads())), *map(str, cases)], check=True
    )
    for folder, (stored, logits, dtype) in cases.items():
        reloaded = torch.load(folder / "reloaded.pt")
        assert reloaded["state"].keys() == stored.keys()
        assert all(torch.equal(reloaded["state"][key], stored[key]) for key in stored), folder
        assert torch.equal(reloaded["logits"], logits), folder
        assert reloaded["state"]["classifier.class_features"].dtype == torch.float32
        assert any(value.dtype == dtype for key, value in reloaded["state"].items() if key.startswith("encoder."))


def test_saved_files_for_machines_and_people(tiny_config, tmp_path):
    """The dummy names of embedding dimensions must not reach config.json, nor the table file miss a label."""
    model = trained(build(tiny_config, "bert"))
    model.config.id2label = {str(i): f"name {i}" for i in range(LABELS)}  # as example scripts do
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["lwal_version"] == 1
    assert not {"id2label", "label2id", "num_labels"} & config["encoder_config"].keys()
    table = json.loads((tmp_path / "label_table.json").read_text())
    assert [(label["id"], label["name"]) for label in table["labels"]] == [(i, f"name {i}") for i in range(LABELS)]
    assert [label["count"] for label in table["labels"]] == model.label_table.counts.tolist()
    distances = torch.cdist(model.label_table.label_vectors, model.label_table.label_vectors).fill_diagonal_(torch.inf)
    assert table["labels"][2]["nearest"][0]["name"] == f"name {int(distances[2].argmin())}"
    assert table["labels"][2]["nearest"][0]["distance"] == pytest.approx(float(distances[2].min()), abs=1e-3)


def test_a_saved_model_of_timm_has_its_image_processor(tmp_path):
    """timm's processor writes no file: it reads what the model's configuration says of size, mean and spread."""
    pytest.importorskip("timm")
    looks = {"input_size": [3, 32, 32], "mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6], "crop_pct": 1.0}
    config = TimmWrapperConfig(architecture="test_resnet", num_labels=3, pretrained_cfg=looks)
    model = AutoModelForLwALClassification.from_config(config)
    model.save_pretrained(tmp_path)
    pixels = AutoImageProcessor.from_pretrained(tmp_path)(Image.new("RGB", (64, 64)), return_tensors="pt")
    expected = -torch.tensor(looks["mean"]) / torch.tensor(looks["std"])  # of black
    assert pixels["pixel_values"].shape == (1, 3, 32, 32)
    assert torch.allclose(pixels["pixel_values"].amin(dim=(0, 2, 3)), expected)
    assert LwALConfig.from_pretrained(tmp_path).pretrained_cfg == looks
    assert len(pipeline("image-classification", model=str(tmp_path))(Image.new("RGB", (64, 64)))) == 3


def test_a_disagreeing_table_file_is_reported_and_loses(tiny_config, tmp_path, caplog):
    """Numbers edited in the readable file do not change predictions: the user must be told."""
    trained(build(tiny_config, "bert")).save_pretrained(tmp_path)
    path = tmp_path / "label_table.json"
    path.write_text(path.read_text().replace('"count": ', '"count": 1'))
    AutoModelForLwALClassification.from_pretrained(tmp_path)
    assert "does not describe the label table" in caplog.text
    path.unlink()
    AutoModelForLwALClassification.from_pretrained(tmp_path).save_pretrained(tmp_path)
    assert path.exists()


def test_table_keys_missing_from_the_weights_are_an_error(tiny_config, tmp_path):
    """transformers would fill them with fresh values and predict at random."""
    trained(build(tiny_config, "bert")).save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["classifier.label_vectors"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"has no classifier.label_vectors: its label table is incomplete"):
        AutoModelForLwALClassification.from_pretrained(tmp_path)


def test_another_number_of_labels(tiny_config, tmp_path):
    """Asking for 7 labels of a 5-label checkpoint must not give a table of 5 real and 2 random rows."""
    trained(build(tiny_config, "bert")).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"has 5 labels, but 7 were asked for"):
        AutoModelForSequenceClassification.from_pretrained(tmp_path, num_labels=7)
    model = AutoModelForLwALClassification.from_pretrained(tmp_path, num_labels=7)
    assert model.label_table.counts.tolist() == [0] * 7
    assert model.label_table.scale.item() == 1.0
    assert model(**inputs_for(model)).logits.shape == (4, 7)


def test_a_newer_format_is_refused_in_a_sentence(tiny_config, tmp_path):
    """Reading a format of the future half-way gives wrong predictions instead of an upgrade."""
    build(tiny_config, "bert").save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(path.read_text().replace('"lwal_version": 1', '"lwal_version": 99'))
    with pytest.raises(ValueError, match=r"lwal_version 99.*upgrade"):
        AutoModelForLwALClassification.from_pretrained(tmp_path)


def test_a_backbone_a_classifier_and_a_kept_head(tiny_config, tmp_path):
    """The backbone's weights must arrive; a fine-tuned head must go unless asked for, even when its size fits."""
    set_seed(1)
    stock = AutoModelForSequenceClassification.from_config(tiny_config("bert", num_labels=LABELS)).eval()
    stock.save_pretrained(tmp_path)
    backbone = {k: v for k, v in stock.state_dict().items() if not k.startswith("classifier.")}
    for options in ({}, {"embedding_dim": LABELS}, {"keep_head": True}):
        model = AutoModelForLwALClassification.from_pretrained(tmp_path, num_labels=LABELS, **options)
        assert all(torch.equal(model.encoder.state_dict()[key], value) for key, value in backbone.items())
        kept = torch.equal(model.head_module.weight, stock.classifier.weight)
        assert kept == ("keep_head" in options)
        assert not model.training
    assert model.config.embedding_dim == LABELS
    inputs = inputs_for(model, 16)
    with torch.no_grad():
        ours, theirs = model(**inputs).logits, stock(**inputs).logits
    assert torch.equal(ours.argmax(1), theirs.argmax(1))
    assert torch.allclose(ours.softmax(1), theirs.softmax(1), atol=0.01)


def test_names_and_sizes(tiny_config, tmp_path):
    """Names in any of the forms that scripts pass must end in both dictionaries."""
    config = tiny_config("bert", num_labels=3)
    config.id2label, config.label2id = {"0": "a", "1": "b", "2": "c"}, {"a": "0", "b": "1", "c": "2"}
    model = AutoModelForLwALClassification.from_config(config)
    assert model.config.id2label == {0: "a", 1: "b", 2: "c"}
    assert model.config.label2id == {"a": 0, "b": 1, "c": 2}
    assert model.config.embedding_dim == 32  # the width of the head's input is the limit
    assert AutoModelForLwALClassification.from_config(config, embedding_dim="10x").config.embedding_dim == 30
    assert model.config.keys_to_ignore_at_inference[:2] == ["embeddings", "features"]
    model.config.pad_token_id = 7
    assert model.encoder.config.pad_token_id == 7
    assert model.config.vocab_size == model.encoder.config.vocab_size
    AutoModelForSequenceClassification.from_config(config).base_model.save_pretrained(tmp_path)
    again = AutoModelForLwALClassification.from_pretrained(tmp_path, config=config, from_tf=False, revision="main")
    assert again.config.id2label == {0: "a", 1: "b", 2: "c"}


@pytest.mark.parametrize(
    ("change", "call", "sentence"),
    [
        ({}, {"embedding_dim": 1}, "embedding_dim is 1, but label vectors need at least 2"),
        ({}, {"embedding_dim": "tenx"}, "whole number or a multiple like '10x'"),
        ({}, {"task": "video"}, "Unknown task 'video': choose one of text, image, audio"),
        ({}, {"task": "image"}, "BertConfig has no image classifier; task can be text"),
        ({"problem_type": "regression"}, {}, "exactly one class per row.*regression"),
        ({"problem_type": "multi_label_classification"}, {}, "exactly one class per row.*multi_label"),
        ({"num_labels": 1}, {}, "regression"),
    ],
)
def test_bad_input_to_from_config(tiny_config, change, call, sentence):
    """Each mistake is answered by one sentence, not by a failure deep inside."""
    with pytest.raises(ValueError, match=sentence):
        AutoModelForLwALClassification.from_config(tiny_config("bert", **{"num_labels": 3, **change}), **call)


def test_bad_input_to_from_pretrained(tiny_config, tmp_path):
    """Each mistake is answered by one sentence, not by a failure deep inside."""
    AutoModelForSequenceClassification.from_config(tiny_config("bert")).base_model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"id2label names 2 labels"):
        AutoModelForLwALClassification.from_pretrained(tmp_path, num_labels=3, id2label={0: "a", 1: "b"})
    with pytest.raises(ValueError, match=r"repeats 'a'"):
        AutoModelForLwALClassification.from_pretrained(tmp_path, id2label={0: "a", 1: "a"})
    with pytest.raises(ValueError, match=r"keep_head=True needs a fine-tuned classifier"):
        AutoModelForLwALClassification.from_pretrained(tmp_path, num_labels=3, keep_head=True)
    with pytest.raises(ValueError, match=r"Unknown preset 'nice'"):
        LwALConfig(preset="nice")


def accuracy_of(model, data):
    data = data.with_format("torch")
    model.eval()
    with torch.no_grad():
        logits = model(input_ids=data["input_ids"][:], attention_mask=data["attention_mask"][:]).logits
    return float((logits.argmax(1) == data["labels"][:]).float().mean())


def test_a_plain_loop_learns(tiny_config):
    """The model alone, without a trainer, must refresh its class means and calibrate its scale."""
    model = build(tiny_config, "bert")
    data, test = separable_text(LABELS, 320, 0), separable_text(LABELS, 200, 1)
    assert accuracy_of(model, test) < 0.5
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    model.train()
    for _ in range(4):
        for batch in data.with_format("torch").iter(32):
            model(**batch).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    assert accuracy_of(model, test) > 0.95
    assert model.label_table.scale.item() != 1.0
    assert model.optimizer_step == 40


def test_the_plain_trainer_learns(tiny_config, tmp_path):
    """Users who only swap the model must get a working training, with one (N, C) array of predictions."""
    model = build(tiny_config, "bert")
    start = model.label_table.label_vectors.clone()
    weight = model.head_module.weight.detach().clone()
    arguments = TrainingArguments(
        tmp_path,
        per_device_train_batch_size=16,
        num_train_epochs=4,
        learning_rate=2e-3,
        report_to="none",
        disable_tqdm=True,
    )
    test = separable_text(LABELS, 200, 1)
    trainer = Trainer(model=model, args=arguments, train_dataset=separable_text(LABELS, 320, 0))
    trainer.train()
    assert accuracy_of(model, test) > 0.95
    assert not torch.equal(start, model.label_table.label_vectors)
    assert not torch.equal(weight, model.head_module.weight)
    assert trainer.predict(test).predictions.shape == (200, LABELS)


def test_ignored_rows_change_nothing(tiny_config):
    """A row with -100 must not reach loss, gradient, class means or counts."""
    results = []
    for extra in (0, 3):
        model = build(tiny_config, "bert").train()
        inputs = {key: value[: 5 + extra] for key, value in inputs_for(model, 8).items()}
        labels = torch.tensor([0, 1, 2, 3, 4] + [-100] * extra)
        loss = model(**inputs, labels=labels).loss
        loss.backward()
        results.append(
            (loss, model.head_module.weight.grad, model.label_table.class_features, model.label_table.counts)
        )
    for one, other in zip(*results, strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def test_unseen_classes_rank_last_and_join_when_seen(tiny_config):
    """A class without a mean would be predicted wherever its arbitrary vector happens to lie."""
    model = build(tiny_config, "bert").train()
    inputs = inputs_for(model, 6)
    model(**inputs, labels=torch.tensor([0, 1, 2, 0, 1, 2]))
    model.eval()
    with torch.no_grad():
        logits = model(**inputs).logits
    assert torch.allclose(logits[:, 3:], logits[:, :3].min(1, keepdim=True).values - 30.0)
    model.train()
    model(**inputs, labels=torch.tensor([3, 4, 3, 4, 3, 4]))
    assert model.label_table.seen.all()


def test_two_models_share_no_state(tiny_config):
    """State in a module or class would mix two trainings in one process."""
    one, two = build(tiny_config, "bert"), build(tiny_config, "bert")
    before = {key: value.clone() for key, value in two.state_dict().items()}
    trained(one)
    assert all(torch.equal(value, before[key]) for key, value in two.state_dict().items())


def test_initialize_labels_leaves_no_trace_but_head_and_table(tiny_config):
    """The start pass must not move the backbone, BatchNorm statistics or the caller's random numbers."""
    for name in ("bert", "resnet"):
        model = build(tiny_config, name).train()
        batches = [{**inputs_for(model, 10, seed), "labels": torch.arange(10) % LABELS} for seed in range(4)]
        before = {key: value.clone() for key, value in model.state_dict().items()}
        torch.manual_seed(5)
        expected = torch.rand(3)
        torch.manual_seed(5)
        samples = model.initialize_labels(batches, progress=False)
        assert torch.equal(torch.rand(3), expected)
        assert model.training
        changed = {key for key, value in model.state_dict().items() if not torch.equal(value, before[key])}
        head = f"encoder.{model.config.head_name}"
        assert changed == {f"{head}.weight", f"{head}.bias"} | {
            f"classifier.{part}"
            for part in ("label_vectors", "class_features", "counts", "log_scale_bias", "row_scatter")
        }
        assert model.label_table.counts.tolist() == [8] * LABELS
        means = torch.stack([samples.values[samples.labels == c].mean(0) for c in range(LABELS)])
        assert torch.allclose(model.label_table.class_features, means, atol=1e-5)


def test_batchnorm_is_filled_for_the_start_pass(tiny_config):
    """Fresh BatchNorm statistics would give class means far from those that training uses."""
    model = build(tiny_config, "resnet")
    batch = {**inputs_for(model, 40), "labels": torch.arange(40) % LABELS}
    samples = model.initialize_labels([batch], progress=False)
    model.train()
    with torch.no_grad():
        in_training = model(pixel_values=batch["pixel_values"]).features
    assert torch.allclose(samples.values, in_training, atol=0.05 * float(in_training.std()))


@pytest.mark.parametrize("count", [0, 1000])
@pytest.mark.parametrize("mode", ["training", "evaluation"])
def test_batchnorm_of_trained_weights_is_that_of_the_mode(tiny_config, mode, count):
    """A training normalises by its batches, predictions by the statistics that came with the weights.

    Weights ported from TensorFlow have statistics, but a count of 0: they are not fresh.
    """
    model = build(tiny_config, "resnet")
    batch = {**inputs_for(model, 40), "labels": torch.arange(40) % LABELS}
    norms = [layer for layer in model.modules() if isinstance(layer, torch.nn.BatchNorm2d)]
    generator = torch.Generator().manual_seed(0)
    for layer in norms:
        layer.running_mean.normal_(generator=generator)
        layer.num_batches_tracked.fill_(count)
    before = {key: value.clone() for key, value in model.state_dict().items() if "running" in key or "tracked" in key}
    samples = model.train(mode == "training").initialize_labels([batch], progress=False)
    after = model.state_dict()
    assert all(torch.equal(after[key], value) for key, value in before.items())
    with torch.no_grad():
        in_mode = model(pixel_values=batch["pixel_values"]).features
        in_other = model.train(mode == "evaluation")(pixel_values=batch["pixel_values"]).features
    tolerance = 0.05 * float(in_mode.std())
    assert torch.allclose(samples.values, in_mode, atol=tolerance)
    assert not torch.allclose(samples.values, in_other, atol=tolerance)


@pytest.mark.parametrize("sizes", [(16, 1), (1, 1, 1)])
def test_a_batch_of_one_row_has_no_statistics(tiny_config, sizes):
    """The last batch of the start rows may have a single one, whose variance BatchNorm refuses to take."""
    model = build(tiny_config, "resnet")
    parts = [
        {**inputs_for(model, size, seed), "labels": torch.arange(size) % LABELS} for seed, size in enumerate(sizes)
    ]
    small = [{**part, "pixel_values": part["pixel_values"][..., :4, :4]} for part in parts]
    with pytest.raises(ValueError, match="more than 1 value per channel"), torch.no_grad():
        model.train()(pixel_values=small[-1]["pixel_values"])
    samples = model.initialize_labels(small, progress=False)
    assert samples.values.isfinite().all()
    assert len(samples.labels) == sum(sizes)


def test_head_repr_and_distances(tiny_config):
    """`distances` is public: symmetric, zero diagonal, equal to the naive form."""
    model = trained(build(tiny_config, "bert"))
    vectors = model.label_table.label_vectors
    naive = (vectors[:, None] - vectors[None]).norm(dim=-1)
    assert torch.allclose(model.label_table.distances(), naive, atol=1e-5)
    assert "num_labels=5, embedding_dim=32" in repr(model)


def test_old_files_stay_where_they_are_when_the_table_cannot_be_written(tiny_config, tmp_path, monkeypatch):
    """A crash while writing label_table.json must leave the old file whole and no temporary one."""
    model = trained(build(tiny_config, "bert"))
    model.save_pretrained(tmp_path)
    old = Path(tmp_path / "label_table.json").read_text()

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr("hf_lwal.modeling.label_table_file.os.replace", fail)
    with pytest.raises(OSError, match=r"disk full"):
        model.save_pretrained(tmp_path)
    assert Path(tmp_path / "label_table.json").read_text() == old
    assert not list(tmp_path.glob(".label_table*"))


def test_initialize_labels_checks_the_labels(tiny_config):
    """Label C would be dropped without a word, and its rows lost."""
    model = build(tiny_config, "bert")
    batch = {**inputs_for(model, 6), "labels": torch.tensor([0, 1, 2, 3, 4, 5])}
    with pytest.raises(ValueError, match="but a start row has label 5"):
        model.initialize_labels([batch], progress=False)
    with pytest.raises(ValueError, match="name the label column"):
        model.initialize_labels([inputs_for(model, 6)], progress=False)


def test_a_first_batch_without_labels_calibrates_nothing(tiny_config):
    """A scale from no rows would be NaN, and every later logit with it."""
    model = build(tiny_config, "bert").train()
    output = model(**inputs_for(model, 5), labels=torch.full((5,), -100))
    assert output.loss.item() == 0.0
    assert model.label_table.scale.item() == 1.0
    model(**inputs_for(model, 5), labels=torch.arange(5))
    assert model.label_table.seen.all()
    assert model.label_table.scale.item() != 1.0
