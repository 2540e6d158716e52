"""A script that changes the two names and nothing else: what transformers' example scripts use must all be there."""

import json
import os
from pathlib import Path

import pytest
import swap_loop
import swap_script
import torch
import yaml
from hub_client import TESTS, client_environment
from hub_server import hub_server
from launchers import ACCELERATE, TORCHRUN, launch
from safetensors.torch import load_file
from swap_data import NAMES, backbone
from transformers import (
    AutoConfig,
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    pipeline,
)

from hf_lwal import AutoModelForLwALClassification

MODALITIES = ["text", "image"]
BACKBONES = {"text": "text", "image": "image", "sentences": "text"}
"""Name of a backbone → modality of its scripts."""


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Folder of each backbone."""
    return {name: str(backbone(name, tmp_path_factory.mktemp(name))) for name in BACKBONES}


def arguments(model, modality, out, *more):
    """Command line of `swap_script`: evaluation, and 8 steps of 16 rows where it trains."""
    line = f"--model {model} --modality {modality} --output_dir {out} --do_eval --max_steps 8 --save_steps 2 --use_cpu"
    line += " --per_device_eval_batch_size 16 --learning_rate 5e-3 --report_to none --disable_tqdm true --seed 0"
    line += f" --dataloader_pin_memory false --remove_unused_columns {str(modality == 'text').lower()}"
    batch = [] if "--per_device_train_batch_size" in more else ["--per_device_train_batch_size", "16"]
    return [*line.split(), *batch, *more]


def weights(folder):
    return load_file(folder / "model.safetensors")


def assert_same_bits(one, other):
    """Of two state dicts."""
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


def result(folder, name="eval_accuracy"):
    return json.loads((folder / "all_results.json").read_text())[name]


def front_matter(card):
    return yaml.safe_load(card.split("---")[1])


@pytest.mark.parametrize("name", BACKBONES)
def test_the_script(models, tmp_path, name):
    """Train, choose the best, evaluate, predict, write a card; interrupt; evaluate what was saved."""
    modality = BACKBONES[name]
    out, again, only = tmp_path / "out", tmp_path / "again", tmp_path / "only"
    out.mkdir()
    best = "--eval_strategy steps --eval_steps 2 --load_best_model_at_end true --metric_for_best_model accuracy"
    train = ["--do_train", *best.split()]
    trainer = swap_script.main(arguments(models[name], modality, out, "--do_predict", *train))
    assert trainer.model.config.pooling == ("mean" if name == "sentences" else "model")
    assert type(trainer.args).__name__ == "TrainingArguments"
    assert result(out) == trainer.state.best_metric > 0.4
    assert {"train_results.json", "eval_results.json", "trainer_state.json"} <= {path.name for path in out.iterdir()}
    predicted = (out / "predictions.txt").read_text().split()
    assert len(predicted) == 20
    assert set(predicted) <= set(NAMES)

    line = arguments(models[name], modality, again, *train, "--eval_do_concat_batches", "false")
    resumed = swap_script.main([*line, "--resume_from_checkpoint", str(out / "checkpoint-4")])
    assert resumed.predict(resumed.eval_dataset).predictions[0].shape == (16, len(NAMES))
    assert result(again) == result(out)
    assert_same_bits(weights(again / "checkpoint-8"), weights(out / "checkpoint-8"))

    only.mkdir()
    swap_script.main(arguments(out, modality, only, "--do_predict"))  # neither training nor a training set
    assert result(only) == result(out)
    assert (only / "predictions.txt").read_text().split() == predicted
    assert not (only / "trainer_state.json").exists()

    saved = AutoConfig.from_pretrained(out)
    assert saved.id2label == dict(enumerate(NAMES))
    assert saved.label2id == {label: index for index, label in enumerate(NAMES)}
    table = json.loads((out / "label_table.json").read_text())
    assert [label["name"] for label in table["labels"]] == list(NAMES)


def test_the_card_says_what_the_script_said(models, tmp_path):
    """Keywords that create_model_card drops would leave a pushed model without its data set and language."""
    found = {}
    for modality in MODALITIES:
        out = tmp_path / modality
        swap_script.main(arguments(models[modality], modality, out, "--do_train"))
        found[modality] = front_matter((out / "README.md").read_text())
    text, image = found["text"], found["image"]
    assert text["base_model"] == Path(models["text"]).name
    assert text["language"] in ("en", ["en"])
    assert text["datasets"] == ["glue"]
    (entry,) = text["model-index"][0]["results"]
    assert entry["task"]["type"] == "text-classification"
    assert entry["dataset"]["name"] == "GLUE TOY"
    assert entry["dataset"]["config"] == "toy"
    assert {"image-classification", "vision"} <= set(image["tags"])
    assert "datasets" not in image


@pytest.mark.parametrize("modality", MODALITIES)
def test_the_other_way_with_unused_columns(models, tmp_path, modality):
    """Text with all columns kept, images without the ones that no model takes."""
    line = arguments(models[modality], modality, tmp_path, "--do_train", "--max_steps", "2")
    trainer = swap_script.main([*line, "--remove_unused_columns", str(modality == "image").lower()])
    assert trainer.model.label_table.counts.sum() == 16 * len(NAMES) + 2 * 16  # start pass, two steps
    assert trainer.predict(trainer.eval_dataset).predictions.shape == (40, len(NAMES))


def test_keywords_of_loading(models, tmp_path):
    """What scripts of several years pass must not fail; what nobody knows is named, as stock classes name it."""
    config = AutoConfig.from_pretrained(models["text"], num_labels=len(NAMES))
    removed = {"from_tf": False, "from_flax": False, "low_cpu_mem_usage": True, "mirror": None, "torch_dtype": "auto"}
    hub = {"cache_dir": str(tmp_path), "force_download": False, "local_files_only": True, "token": None}
    model = AutoModelForLwALClassification.from_pretrained(models["text"], config=config, **removed, **hub)
    assert model.config.num_labels == len(NAMES)
    with pytest.raises(TypeError, match="colour"):
        AutoModelForLwALClassification.from_pretrained(models["text"], config=config, colour="red")


@pytest.mark.parametrize("name", BACKBONES)
def test_the_loop(models, tmp_path, name):
    """A loop without a trainer learns, and goes on from its saved state as if it had never stopped.

    Not within its first 256 rows, on which it calibrates its scale.
    """
    modality = BACKBONES[name]
    line = ["--model", models[name], "--modality", modality]
    whole, learned = swap_loop.main([*line, "--output_dir", str(tmp_path / "whole")])
    assert learned > 0.4
    saving = [*line, "--checkpointing_steps", "epoch", "--output_dir"]
    swap_loop.main([*saving, str(tmp_path / "saving")])
    state = str(tmp_path / "saving" / "epoch_1")
    swap_loop.main([*line, "--output_dir", str(tmp_path / "resumed"), "--resume_from_checkpoint", state])
    assert whole.label_table.step == 40
    expected = weights(tmp_path / "whole")
    for folder in ("saving", "resumed"):
        assert_same_bits(weights(tmp_path / folder), expected)
    auto = AutoModelForSequenceClassification if modality == "text" else AutoModelForImageClassification
    assert auto.from_pretrained(tmp_path / "whole").config.id2label == dict(enumerate(NAMES))


@pytest.fixture(scope="module")
def pushed(models, tmp_path_factory):
    """Both scripts, each in two processes that share the rows of a step, pushing to a Hub on this machine."""
    folder = tmp_path_factory.mktemp("pushed")
    with hub_server() as hub, pytest.MonkeyPatch.context() as patch:
        for name, value in client_environment(hub, folder / "home").items():
            patch.setenv(name, value)
        push = "--push_to_hub --hub_model_id alice/script --hub_strategy end --per_device_train_batch_size 8"
        line = arguments(models["text"], "text", folder / "script", "--do_train", *push.split())
        said = launch(TORCHRUN, TESTS / "swap_script.py", *line, warm=False)
        loop = f"--model {models['image']} --modality image --output_dir {folder / 'loop'} --hub_model_id alice/loop"
        batch = ("--per_device_train_batch_size", "8")
        said += launch(ACCELERATE, TESTS / "swap_loop.py", *loop.split(), *batch, warm=False)
        for name, repo in hub.repos.items():
            for path, blob in repo.at().files.items():
                (folder / name / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / name / path).write_bytes(blob.data)
    return folder, said


@pytest.mark.slow
def test_two_processes_are_one(models, tmp_path, pushed):
    """Half the rows in each of two processes must end where all of them in one process end."""
    folder, said = pushed
    assert "trained in 2 process(es)" in said
    assert ", 2 process(es)" in said
    swap_script.main(arguments(models["text"], "text", tmp_path / "script", "--do_train"))
    swap_loop.main(["--model", models["image"], "--modality", "image", "--output_dir", str(tmp_path / "loop")])
    assert result(folder / "script") == result(tmp_path / "script")
    for name in ("script", "loop"):
        one, two = weights(tmp_path / name), weights(folder / name)
        # A loop's scale is calibrated on the rows of one process, so that only what it counts is the same.
        assert torch.equal(one["classifier.counts"], two["classifier.counts"]), name
        assert torch.equal(one["classifier.step"], two["classifier.step"]), name
    one, two = weights(tmp_path / "script"), weights(folder / "script")
    for part in ("classifier.label_vectors", "classifier.class_features"):
        assert torch.allclose(one[part], two[part], atol=2e-2, rtol=2e-2), part


@pytest.mark.slow
def test_what_was_pushed_loads_by_the_stock_names(pushed):
    """A repository of a swapped script must be usable by who only knows transformers' names."""
    folder, _ = pushed
    script = folder / "alice" / "script"
    assert {"config.json", "model.safetensors", "label_table.json", "README.md", "tokenizer.json"} <= set(
        os.listdir(script)
    )
    assert front_matter((script / "README.md").read_text())["datasets"] == ["glue"]
    model = AutoModelForSequenceClassification.from_pretrained(script)
    assert_same_bits(model.state_dict(), weights(folder / "script"))
    local = AutoModelForLwALClassification.from_pretrained(folder / "script")
    tokenizer, texts = AutoTokenizer.from_pretrained(script), ["key2 word1 key2 word3", "key4 word1 key4"]
    answers = pipeline("text-classification", model=model, tokenizer=tokenizer)(texts)
    assert [answer["label"] for answer in answers] == [best[0]["label"] for best in local.predict(texts, tokenizer)]
    assert {answer["label"] for answer in answers} <= set(NAMES)
    loop = folder / "alice" / "loop"
    assert {"config.json", "model.safetensors", "label_table.json"} <= set(os.listdir(loop))
    assert AutoModelForImageClassification.from_pretrained(loop).config.label2id["cat"] == 2
