"""Sharded over two processes, a model trains as in one, and its checkpoint is a whole one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from launchers import TORCHRUN, launch
from releases import shards
from sharding_worker import inputs_of, start, train
from trajectory import build, relative_difference

from hf_lwal import AutoModelForLwALClassification

pytestmark = shards


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sharded")
    launch(TORCHRUN, Path(__file__).with_name("sharding_worker.py"), str(folder))
    return folder, [torch.load(folder / f"rank{rank}.pt") for rank in (0, 1)]


@pytest.mark.parametrize("name", ["bert", "vit"])
def test_sharded_training_equals_one_process(reports, name):
    """An offset that is not averaged, or a head that is not gathered, trains each rank on its own rows."""
    folder, ranks = reports
    model = build(name)
    start(model, name)
    before = model.head_module.weight.detach().clone()
    losses = train(model, name)
    model.eval()
    with torch.no_grad():
        logits = model(**inputs_of(name, 16)).logits
    for rank in ranks:
        report = rank[f"{name}-float32"]
        assert torch.allclose(report["losses"], losses, rtol=1e-5)
        assert torch.allclose(report["logits"], logits, rtol=1e-4, atol=1e-4)
        assert report["whole"] == ["classifier.log_scale_bias", "classifier.offset_bias"]
        block, _, embeddings, head = report["units"]
        assert (report["units"][:2], head) == ([block] * 2, "Linear")
        assert "Embeddings" in embeddings
    loaded = AutoModelForLwALClassification.from_pretrained(folder / f"{name}-float32")
    assert not torch.equal(loaded.head_module.weight, before)
    for key, value in loaded.state_dict().items():
        assert relative_difference(model.state_dict()[key], value) < 1e-4, key


def test_all_ranks_hold_the_same_table(reports):
    """Ranks with unlike tables predict unlike classes."""
    _, (one, other) = reports
    for case, report in one.items():
        for key, value in report["table"].items():
            assert torch.equal(value, other[case]["table"][key]), (case, key)


def test_the_table_stays_float32_beside_bfloat16_shards(reports):
    """Mixed precision casts what a unit is called with, which must not round the running means."""
    _, (report, _) = reports
    plain, mixed = report["bert-float32"], report["bert-torch.bfloat16"]
    floats = [value for value in mixed["table"].values() if value.is_floating_point()]
    assert {value.dtype for value in floats} == {torch.float32}
    assert mixed["losses"].dtype == torch.float32
    assert torch.allclose(mixed["losses"], plain["losses"], rtol=0.1)
    assert not torch.equal(mixed["losses"], plain["losses"])
