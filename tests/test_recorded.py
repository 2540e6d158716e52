"""Trainings and saved models of the release before the modules moved into folders: nothing of them has changed."""

import json
import math
import shutil
import sys

import pytest
import torch
import transformers
from recording import CHECKPOINTS, LATER, LOOPS, RECORDED, RUNS, looped, platform, resumed, trained
from releases import DRAWS_RESNET_TWICE, without_oldest_names
from safetensors.torch import load_file
from trajectory import logits_of, rows_for
from transformers import AutoModelForImageClassification, AutoModelForSequenceClassification

from hf_lwal import AutoModelForLwALClassification, LwALTrainingArguments
from hf_lwal.cli.main import main
from hf_lwal.modeling.label_table import LabelTable

KNOWN = json.loads((RECORDED / "trajectories.json").read_text(encoding="utf-8"))


@pytest.fixture(autouse=True)
def one_thread():
    """Sums are rounded otherwise on several."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def rare_classes_start_as_the_others(monkeypatch):
    """They have been favoured since (test_few_rows.py); all else must be as it was."""
    monkeypatch.setattr(LabelTable, "favour_few_rows", lambda *_: None)


def compare(found, known):
    """To the bit where both ran on the same PyTorch and processor, else as far as rounding goes."""
    losses, expected = ([float.fromhex(loss) for loss in run["losses"]] for run in (found, known))
    assert losses[0] != losses[-1]
    if platform() == KNOWN["platform"]:
        assert losses == expected
        assert found["tensors"] == known["tensors"]
    else:
        assert losses == pytest.approx(expected, rel=1e-3)
        assert math.isclose(found["norm"], known["norm"], rel_tol=1e-3)


@pytest.mark.parametrize("name", RUNS)
def test_trainings_go_as_before(name, tmp_path):
    """A rewrite of the training must not move a single digit of any way of training."""
    if RUNS[name][0] == "resnet" and not DRAWS_RESNET_TWICE:
        pytest.skip("earlier releases start a fresh ResNet from other weights")
    compare(trained(name, tmp_path)[1], KNOWN["runs"][name])


@pytest.mark.parametrize("name", LOOPS)
def test_plain_loops_go_as_before(name):
    compare(looped(name), KNOWN["loops"][name])


def test_checkpoints_are_resumed_as_before(tmp_path):
    """A training that was interrupted before an upgrade goes on as if nothing had happened."""
    checkpoint = shutil.copytree(RECORDED / "checkpoint", tmp_path / "checkpoint-4")
    compare(resumed(checkpoint, tmp_path / "on"), KNOWN["resumed"])
    assert KNOWN["resumed"]["losses"] == KNOWN["runs"]["default, AdamW"]["losses"]


def test_saved_arguments_are_read_as_before():
    """They are pickled under the names that their classes had."""
    sys.modules.pop("hf_lwal.training_args", None)
    with pytest.warns(FutureWarning, match=r"hf_lwal\.training_args is now hf_lwal\.settings\.training_args"):
        args = torch.load(RECORDED / "checkpoint" / "training_args.bin", weights_only=False)
    assert type(args) is LwALTrainingArguments
    assert (args.max_steps, args.adam_epsilon, args.lwal_memory) == (4, 1e-3, None)


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_saved_models_load_as_before(name, tmp_path):
    """With this package's loader and with transformers' own; what is saved again is what was read."""
    folder, kind = RECORDED / name, CHECKPOINTS[name][0]
    stock = AutoModelForImageClassification if kind == "resnet" else AutoModelForSequenceClassification
    expected, rows = load_file(folder / "expected.safetensors")["logits"], rows_for(kind, 40, seed=1)
    for loader in (AutoModelForLwALClassification, stock):
        model = loader.from_pretrained(folder)
        logits = logits_of(model, rows)
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
        assert platform() != KNOWN["platform"] or torch.equal(logits, expected)
    model.save_pretrained(tmp_path)
    before, after = (without_oldest_names(load_file(path / "model.safetensors")) for path in (folder, tmp_path))
    assert after.keys() - before.keys() == {f"classifier.{name}" for name in LATER}
    assert not any(after[name].any() for name in after.keys() - before.keys())
    assert all(torch.equal(before[key], after[key]) for key in before)
    for file in ("label_table.json", "config.json"):
        found, known = (json.loads((path / file).read_text(encoding="utf-8")) for path in (tmp_path, folder))
        if file == "label_table.json":
            assert sorted(found.pop("checksums")) == ["config.json", "model.safetensors"]  # of later versions
        if file == "config.json":
            assert found["transformers_version"] == transformers.__version__
            for config in (found, known):
                del config["transformers_version"]
                config["encoder_config"].pop("dtype", None)  # transformers learns it by loading
                config.pop("use_cache", None)  # the Trainer sets it, and models without a cache forget it
        assert found == known


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_cards_are_written_again_as_before(name, tmp_path):
    """What people wrote into a card stays, and so does every figure that only the card's facts still know."""
    folder = shutil.copytree(RECORDED / name, tmp_path / name)
    before = (folder / "README.md").read_text(encoding="utf-8")
    assert main(["card", str(folder)]) == 0
    after = (folder / "README.md").read_text(encoding="utf-8")
    assert "Kept by hand." in after
    assert after == before
