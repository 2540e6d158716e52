"""`LwALTrainer` with DeepSpeed, which copies the weights and takes them apart. Needs `pip install deepspeed`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from launchers import TORCHRUN, launch

from hf_lwal import AutoModelForLwALClassification

pytest.importorskip("deepspeed")


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    folder = tmp_path_factory.mktemp("deepspeed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DS_ACCELERATOR", "cpu")
        launch(TORCHRUN, Path(__file__).with_name("deepspeed_worker.py"), str(folder))
    return folder, [torch.load(folder / f"rank{rank}.pt") for rank in (0, 1)]


def test_stage_2_trains_as_one_process(reports, tmp_path):
    """Its optimizer steps copies, from which the old head, scale and label vectors came back after the first step."""
    from deepspeed_worker import losses_of, trainer_for

    reference = trainer_for(tmp_path, 0)
    reference.train()
    loss = reference.evaluate()["eval_loss"]
    for rank in reports[1]:
        assert rank[2]["losses"] == pytest.approx(losses_of(reference), rel=1e-3)
        assert rank[2]["loss"] == pytest.approx(loss, rel=1e-3)


@pytest.mark.parametrize("stage", [2, 3])
def test_resuming_and_saving(reports, stage):
    """Rank 0 alone cannot bring label vectors up to date through a head that is taken apart."""
    folder, ranks = reports
    for rank in ranks:
        assert rank[stage]["resumed"] == rank[stage]["losses"]
        assert rank[stage]["losses"][-1] < rank[stage]["losses"][1]
    for saved in ("final", "checkpoint-6"):
        model = AutoModelForLwALClassification.from_pretrained(folder / str(stage) / saved)
        assert (folder / str(stage) / saved / "label_table.json").exists()
        assert bool((model.label_table.counts > 0).all())
        assert all(bool(value.isfinite().all()) and value.numel() for value in model.state_dict().values())


def test_stage_3_and_parameters_of_the_label_table(reports):
    for rank in reports[1]:
        assert "stage 2" in rank["refused"]
        assert "lwal_offset=False" in rank["refused"]
