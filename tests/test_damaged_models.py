"""Saved models with one fault, a thousand of them: one sentence or the right answers, and never others in silence."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from damage_judge import TooLong, bounded, verdict
from hub_stranger import __file__ as stranger
from mutations import CONFIG, FAMILIES, TABLE, WEIGHTS, Damage, damaged, parts, whole, write
from test_modeling import trained
from tiny_models import tiny_config
from toy import word_tokenizer
from transformers import (
    AutoModelForAudioClassification,
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
    BertForSequenceClassification,
    set_seed,
)

from hf_lwal import (
    AutoModelForLwALClassification,
    LwALForAudioClassification,
    LwALForImageClassification,
    LwALForSequenceClassification,
)
from hf_lwal.cli.main import main

NAMES = ["angry", "bored", "calm", "dull", "eager"]
MODELS = {"bert": "model", "pooled": "mean", "resnet": None, "wav2vec2": None}
"""Architecture of `TINY_CONFIGS` → pooling."""
CLASSES = {
    "text": (LwALForSequenceClassification, AutoModelForSequenceClassification),
    "image": (LwALForImageClassification, AutoModelForImageClassification),
    "audio": (LwALForAudioClassification, AutoModelForAudioClassification),
}
CASES, ROUNDS = 100, 10
"""A round is one test."""


class Saved:
    """A trained model as it was saved: its files, and what it answers to a fixed batch."""

    def __init__(self, name: str, folder: Path) -> None:
        set_seed(0)
        config = tiny_config("bert" if name == "pooled" else name, id2label=dict(enumerate(NAMES)), label2id=None)
        task = "audio" if name == "wav2vec2" else None
        model = trained(AutoModelForLwALClassification.from_config(config, pooling=MODELS[name], task=task))
        model.save_pretrained(folder, include_code=False)
        self.files = {path.name: path.read_bytes() for path in folder.iterdir()}
        self.task = model.task
        generator = torch.Generator().manual_seed(1)
        self.batch = {
            "text": lambda: {"input_ids": torch.randint(4, 60, (3, 9), generator=generator)},
            "image": lambda: {"pixel_values": torch.randn(3, 3, 16, 16, generator=generator)},
            "audio": lambda: {"input_values": torch.randn(3, 400, generator=generator)},
        }[self.task]()
        self.right = self.answers(model)

    def answers(self, model):
        with torch.no_grad():
            return model.eval()(**self.batch).logits

    def doors(self, damage: Damage):
        """Ways to load it; transformers' own classes read a configuration first, and fail in their own way."""
        own, stock = CLASSES[self.task]
        doors = [AutoModelForLwALClassification.from_pretrained, own.from_pretrained]
        return [*doors, stock.from_pretrained] if damage.readable else doors


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return {name: Saved(name, tmp_path_factory.mktemp(name)) for name in MODELS}


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_one_fault(saved, tmp_path, caplog, seed):
    """Sizes of 10^12 took all memory, NaN answered the first label, and other types ended within transformers."""
    found, wrong = Counter(), []
    for case in range(CASES):
        generator = random.Random(f"{seed}-{case}")
        model = saved[generator.choice(list(saved))]
        damage = damaged(model.files, generator)
        door = generator.choice(model.doors(damage))
        folder = tmp_path / f"case{case}"
        folder.mkdir()
        write(damage.files, folder)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            ended = verdict(door, model.answers, folder, model.right, damage, caplog.records)
        found[ended.split(":")[0]] += 1
        if ended.startswith("BAD"):
            wrong.append(f"{damage.family}, {damage.what:.90}: {ended}")
    assert not wrong, "\n".join(wrong)
    assert found["sentence"] > CASES / 3, "else the faults are none"
    assert found["same"] > CASES / 10, "else what is right is refused"


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_every_kind_of_fault_is_drawn(saved, family):
    """A family that changes nothing proves nothing."""
    files = saved["bert"].files
    drawn = [family(dict(files), random.Random(seed)) for seed in range(20)]
    assert sum(damage.files != files for damage in drawn) > 15
    assert len({damage.what for damage in drawn}) > 10


def test_the_judge_sees_what_must_not_be(saved, tmp_path):
    """A judge that is content with everything finds nothing."""
    model, damage = saved["bert"], Damage("none", "nothing", {})

    def judged(load, answers=model.answers):
        return verdict(load, answers, tmp_path, model.right, damage, [])

    def fails(error):
        def load(folder):
            raise error

        return load

    assert judged(fails(KeyError("x"))).startswith("BAD: KeyError")
    assert judged(fails(ValueError("wrong"))).startswith("BAD: names no file")
    assert judged(fails(ValueError("config.json\nis wrong"))).startswith("BAD: several lines")
    assert judged(fails(ValueError(f"{tmp_path}/config.json is wrong: mend it."))) == "sentence"
    assert judged(lambda _: bytearray(2**31)).startswith("BAD: memory")
    assert judged(lambda _: 0, lambda _: model.right * float("nan")) == "BAD: logits are not finite"
    assert judged(lambda _: 0, lambda _: model.right + 1) == "BAD: other answers in silence"
    assert judged(lambda _: 0, lambda _: model.right.clone()) == "same"


# -- what is said -----------------------------------------------------------------------------------------------------


def changed(files, folder, **settings):
    """Files with other settings; ``encoder__name`` is one of the encoder's."""
    config = json.loads(files[CONFIG])
    for name, value in settings.items():
        *part, key = name.split("__")
        (config["encoder_config"] if part else config)[key] = value
    write({**files, CONFIG: json.dumps(config).encode()}, folder)
    return folder


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"offset": "yes"}, "offset is 'yes', but it must be true or false"),
        ({"memory": True}, "memory is True, but it must be a whole number"),
        ({"refresh_every": -2}, "refresh_every is -2, but it cannot be negative"),
        ({"repel_weight": float("nan")}, "repel_weight is nan, but it cannot be negative or infinite"),
        ({"follow_drift": "0.5"}, "follow_drift is '0.5', but it must be a share"),
        ({"initial_label_norm": [1]}, r"initial_label_norm is \[1\], but it must be a number above 0"),
        ({"task": ["text"]}, r"Unknown task \['text'\]: choose one of text, image, audio"),
        ({"dtype": "float31"}, "Unknown dtype 'float31': choose one of .*bfloat16"),
        ({"architectures": [3]}, r"architectures is \[3\], but it must be a list of names"),
        ({"lwal_version": None}, "lwal_version is None, but it must be a whole number"),
        ({"id2label": 5}, "id2label is 5, but it must give every label an id"),
        ({"id2label": {"²": "x", "1": "y"}}, "id2label must map the ids"),
        ({"head_name": "bert"}, "head_name is 'bert', but it must name the last linear layer of Bert"),
        ({"head_name": ""}, "head_name is '', but it must name the last linear layer of Bert"),
        ({"embedding_dim": 10**12}, "embedding_dim is 1000000000000, but label vectors .* at most 1048576"),
        ({"embedding_dim": 64}, r"label_vectors with shape \(5, 32\), but this configuration needs \(5, 64\)"),
        ({"encoder_config": "bert"}, "encoder_config is 'bert', but it must hold the settings of a model"),
        ({"encoder__hidden_size": "32"}, "encoder_config describes no model .*hidden_size.*expected int, got str"),
        ({"encoder__num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000, but no model has more than 10,000"),
        ({"encoder__num_hidden_layers": 9000}, "ask for far more weights than the model's files hold"),
        ({"encoder__vocab_size": 10**11}, "ask for far more weights than the model's files hold"),
        ({"encoder__layer_norm_eps": -1.0}, "layer_norm_eps is -1.0, but it cannot be negative"),
        ({"encoder__layer_norm_eps": float("inf")}, "layer_norm_eps is inf, but it must be a finite number"),
        ({"encoder__chunk_size_feed_forward": "0"}, "chunk_size_feed_forward is '0', but it must be a whole number"),
        ({"encoder__model_type": "brt"}, "encoder_config describes no model that can be built .*brt"),
    ],
)
def test_settings_that_cannot_be(saved, tmp_path, settings, sentence):
    folder = changed(saved["bert"].files, tmp_path, **settings)
    for door in (AutoModelForLwALClassification.from_pretrained, AutoModelForSequenceClassification.from_pretrained):
        with bounded(), pytest.raises(ValueError, match=sentence):
            door(folder)


def test_a_number_of_labels_without_names(saved, tmp_path):
    """A name was made for each of 10^12 labels, until memory was gone."""
    config = json.loads(saved["bert"].files[CONFIG])
    del config["id2label"], config["label2id"]
    write({**saved["bert"].files, CONFIG: json.dumps({**config, "num_labels": 10**12}).encode()}, tmp_path)
    for keywords in ({}, {"num_labels": 10**12}):
        with bounded(), pytest.raises(ValueError, match="num_labels is 1000000000000, but it must be a whole number"):
            AutoModelForLwALClassification.from_pretrained(tmp_path, **keywords)


@pytest.mark.parametrize(
    ("name", "tensor", "number"),
    [
        ("bert", "encoder.bert.encoder.layer.1.output.dense.weight", float("nan")),
        ("bert", "encoder.bert.embeddings.word_embeddings.weight", float("-inf")),
        ("pooled", "encoder.classifier.bias", 3e38),
        ("resnet", "encoder.resnet.embedder.embedder.normalization.running_var", -1.0),
    ],
)
def test_weights_of_the_encoder_that_no_training_ends_with(saved, tmp_path, name, tensor, number):
    """One NaN in the encoder makes every logit NaN, and the first label the answer to everything."""
    files = dict(saved[name].files)
    header, data = parts(files[WEIGHTS])
    start = header[tensor]["data_offsets"][0]
    spoiled = torch.tensor([number]).numpy().tobytes()
    write({**files, WEIGHTS: whole(header, data[:start] + spoiled + data[start + 4 :])}, tmp_path)
    with pytest.raises(ValueError, match=rf"are damaged: {tensor.removeprefix('encoder.')} holds numbers from"):
        AutoModelForLwALClassification.from_pretrained(tmp_path)


@pytest.mark.parametrize("what", ["a bit", "a setting", "nothing", "an older save", "another file"])
def test_files_that_changed_since_they_were_saved(saved, tmp_path, caplog, what):
    """A flipped bit is a finite number like any other: only the checksum knows that it answers otherwise."""
    files = dict(saved["bert"].files)
    if what == "a bit":
        files[WEIGHTS] = files[WEIGHTS][:-200] + bytes([files[WEIGHTS][-200] ^ 1]) + files[WEIGHTS][-199:]
    if what == "another file":
        write({"model-00001-of-00002.safetensors": files[WEIGHTS]}, tmp_path)
    if what == "an older save":
        table = json.loads(files[TABLE])
        files[TABLE] = json.dumps({name: table[name] for name in table if name != "checksums"}).encode()
    changed(files, tmp_path, **({"encoder__num_attention_heads": 4} if what == "a setting" else {}))
    loaded = AutoModelForLwALClassification.from_pretrained(tmp_path)
    named = {"a bit": WEIGHTS, "a setting": CONFIG, "another file": "model-00001-of-00002.safetensors"}.get(what)
    assert [f"{named} in {tmp_path} is no longer what was saved" in record.message for record in caplog.records] == (
        [True] if named else []
    )
    caplog.clear()
    loaded.save_pretrained(tmp_path)
    AutoModelForLwALClassification.from_pretrained(tmp_path)
    assert not caplog.records


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS, f"{WEIGHTS}.index.json"])
def test_a_device_in_the_place_of_a_file(saved, tmp_path, name):
    """It was read for ever, until memory was gone."""
    files = {key: value for key, value in saved["bert"].files.items() if key not in (name, WEIGHTS)}
    write(files, tmp_path)
    (tmp_path / name).symlink_to("/dev/zero")
    with bounded(), pytest.raises(OSError, match=rf"{name} is no file\. Copy"):
        AutoModelForLwALClassification.from_pretrained(tmp_path)


@pytest.mark.parametrize("what", ["folder", "device"])
def test_a_label_table_that_is_no_file(saved, tmp_path, caplog, what):
    """It looked as if there were none, and so nothing was compared with it."""
    write({key: value for key, value in saved["bert"].files.items() if key != TABLE}, tmp_path)
    (tmp_path / TABLE).mkdir() if what == "folder" else (tmp_path / TABLE).symlink_to("/dev/zero")
    with bounded():
        AutoModelForLwALClassification.from_pretrained(tmp_path)
    assert "does not describe the label table" in caplog.text


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"hidden_size": "32"}, "config.json describes no model that can be built .*hidden_size"),
        ({"pad_token_id": 10**9}, "The configuration of .* describes no model that can be built .Padding_idx"),
        ({"num_hidden_layers": 10**12}, "num_hidden_layers is 1000000000000, but no model has more than 10,000"),
        ({"vocab_size": 10**12}, "ask for far more weights than the model's files hold"),
        ({"num_labels": 10**12, "id2label": None}, "num_labels is 1000000000000, but it must be a whole number"),
    ],
)
def test_backbones(tmp_path, settings, sentence):
    """What a stock checkpoint says goes through the same hands."""
    BertForSequenceClassification(tiny_config("bert", num_labels=3)).save_pretrained(tmp_path)
    config = json.loads((tmp_path / CONFIG).read_text())
    (tmp_path / CONFIG).write_text(json.dumps(config | settings))
    with bounded(), pytest.raises(ValueError, match=sentence):
        AutoModelForLwALClassification.from_pretrained(tmp_path)


# -- the commands and the code on the Hub -----------------------------------------------------------------------------


def called(words):
    """Exit code, output and errors of a command line."""
    out, err = io.StringIO(), io.StringIO()
    try:
        with bounded(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(words)
    except SystemExit as ended:
        code = ended.code
    except TooLong:
        code = "too long"
    return code, out.getvalue(), err.getvalue()


def test_commands(saved, tmp_path):
    """They loaded in their own way, and ended in "this may be a bug in hf-lwal"."""
    word_tokenizer().save_pretrained(tmp_path / "words")
    words = {path.name: path.read_bytes() for path in (tmp_path / "words").iterdir()}
    codes, wrong = Counter(), []
    for case in range(60):
        generator = random.Random(f"commands-{case}")
        damage = damaged(saved["pooled"].files, generator)
        folder, output = tmp_path / f"case{case}", str(tmp_path / f"output{case}")
        folder.mkdir()
        write(words | damage.files, folder)
        command, *more = generator.choice(
            [["predict", "key0 word1"], ["fold", "--output", output], ["hierarchy", "--output", output], ["card"]]
        )
        code, _, errors = called([command, str(folder), *more])
        codes[code] += 1
        if code not in (0, 2) or "may be a bug" in errors or (code and f"hf-lwal {command}: " not in errors):
            wrong.append(f"{command}, {damage.family}, {damage.what:.90}: {code} {errors[-300:]}")
    assert not wrong, "\n".join(wrong)
    assert min(codes[0], codes[2]) > 10, codes


STRANGER = """
import json, sys
from hub_stranger import become_a_stranger, failure
become_a_stranger()
from transformers import AutoModelForSequenceClassification
for folder in sys.argv[1:]:
    load = lambda: AutoModelForSequenceClassification.from_pretrained(folder, trust_remote_code=True)
    print(json.dumps(failure(load)))
"""


def test_code_that_travels_with_the_model(tmp_path):
    """Where hf-lwal is not installed, the same sentences."""
    set_seed(0)
    config = tiny_config("bert", id2label=dict(enumerate(NAMES)), label2id=None)
    AutoModelForLwALClassification.from_config(config).save_pretrained(tmp_path / "whole", include_code=True)
    code = tmp_path / "whole" / "lwal_code"
    files = {path.name: path.read_bytes() for path in (tmp_path / "whole").iterdir() if path.is_file()}
    faults = [{}, {"memory": "many"}, {"encoder__vocab_size": 10**11}, {"embedding_dim": 64}]
    for number, settings in enumerate(faults):
        folder = tmp_path / f"fault{number}"
        folder.mkdir()
        changed(files, folder, **settings)
        (folder / "lwal_code").symlink_to(code)
    ran = subprocess.run(
        [sys.executable, "-c", STRANGER, *[str(tmp_path / f"fault{number}") for number in range(len(faults))]],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=Path(stranger).parent,
        env={
            "HF_HUB_OFFLINE": "1",
            "HF_HOME": str(tmp_path / "home"),
            "PATH": "/usr/bin:/bin",
            "OMP_NUM_THREADS": "1",
        },
    )
    said = [json.loads(line) for line in ran.stdout.splitlines()]
    assert len(said) == len(faults), ran.stderr
    assert not said[0]
    for sentence, fault in zip(
        said[1:], ["memory is 'many', but it must be", "far more weights than", "needs (5, 64)"], strict=True
    ):
        assert fault in sentence
