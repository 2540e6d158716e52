"""`LwALTrainer` under FSDP2, with nothing but accelerate's configuration: the same training, and whole checkpoints."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from accelerate import Accelerator
from fsdp2_worker import CASES, SHARDED, numbers_of, trainer_for
from launchers import ANY_PORT, launch
from peft import LoraConfig, get_peft_model
from torch.distributed.fsdp import CPUOffloadPolicy
from trajectory import build, relative_difference

from hf_lwal import AutoModelForLwALClassification
from hf_lwal.training.sharding import is_sharded, shard_with

FSDP2 = Path(__file__).parents[1] / "examples" / "accelerate_configs" / "fsdp2.yaml"
LAUNCH = (
    *("-m", "accelerate.commands.launch", "--config_file", str(FSDP2)),
    *("--num_processes", "2", "--main_process_port", ANY_PORT),
)


pytestmark = pytest.mark.skipif(not hasattr(Accelerator, "is_fsdp2"), reason="accelerate before FSDP2")
KEY_BIASES = ("key.bias", "k_proj.bias")
"""Their gradient is zero but for rounding, whose sign Adam takes for a step."""


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fsdp2")
    launch(LAUNCH, Path(__file__).with_name("fsdp2_worker.py"), str(folder))
    return folder, [torch.load(folder / f"rank{rank}.pt") for rank in (0, 1)]


def assert_same(report, reference):
    assert report["losses"] == pytest.approx(reference["losses"], rel=1e-3)
    assert report["loss"] == pytest.approx(reference["loss"], rel=1e-3)
    assert report["f1"] == pytest.approx(reference["f1"])
    assert report["weights"].keys() == reference["weights"].keys()
    for key, value in reference["weights"].items():
        if key.endswith(KEY_BIASES):
            continue
        assert relative_difference(value, report["weights"][key]) < 1e-3, key


@pytest.mark.parametrize("name", CASES)
def test_training_equals_one_process(reports, tmp_path, name):
    """A gradient that is not averaged, a start that finds no head, and rows counted twice all train something else."""
    reference = trainer_for(tmp_path, name)
    before = reference.evaluate()["eval_loss"]
    reference.train()
    numbers = numbers_of(reference)
    for rank in reports[1]:
        assert rank[name]["before"] == pytest.approx(before, rel=1e-4)
        assert_same(rank[name], numbers)
        kinds = rank[name]["kinds"]
        assert {kind for key, kind in kinds.items() if not key.startswith("classifier.")} == {"DTensor"}
        assert {kind for key, kind in kinds.items() if key.startswith("classifier.")} <= {"Parameter"}


@pytest.mark.parametrize("name", CASES)
def test_resuming_goes_on_exactly(reports, name):
    """Optimizer states that changed places, or a label table from the start, go on with another training."""
    for rank in reports[1]:
        once, again = rank[name], rank[name]["resumed"]
        assert again["losses"] == once["losses"]
        for key, value in once["weights"].items():
            assert torch.equal(value, again["weights"][key]), key


@pytest.mark.parametrize(
    ("name", "saved"),
    [
        *((name, saved) for name in CASES for saved in ("final", ".")),
        *((name, "checkpoint-6") for name in CASES if name not in SHARDED),
    ],
)
def test_checkpoints_are_whole(reports, name, saved):
    """One rank's parts, no file at all, or weights without their label table cannot be served."""
    folder, (rank, _) = reports
    model = AutoModelForLwALClassification.from_pretrained(folder / name / saved)
    assert (folder / name / saved / "label_table.json").exists()
    for key, value in model.state_dict().items():
        assert torch.equal(value, rank[name]["weights"][key]), key
    assert bool((model.label_table.counts > 0).all())


def test_bfloat16_keeps_table_and_logits_in_float32(reports):
    """The outputs are distances: rounded to bfloat16, close classes become one."""
    for rank in reports[1]:
        mixed, plain = rank["bf16"], rank["default"]
        assert {dtype for dtype in mixed["table"].values() if dtype.is_floating_point} == {torch.float32}
        assert mixed["logits"] == torch.float32
        assert mixed["losses"] == pytest.approx(plain["losses"], rel=0.1)
        assert mixed["losses"] != plain["losses"]


def test_layers_that_only_the_first_rank_has_made(reports):
    """The others hold no numbers for a new head, which must neither be refused nor trained."""
    one, other = (rank["read"] for rank in reports[1])
    assert one == [one[0], {**one[0], "meta": []}]
    assert other[1]["meta"]
    assert other[0]["losses"] == other[1]["losses"] == one[0]["losses"]


@pytest.mark.parametrize("what", ["an adapter", "weights on the CPU"])
def test_what_cannot_be_sharded_stays_whole_and_is_said(what):
    """An adapter's wrapper would shard the label table after all; offloaded states cannot be resumed from."""
    model, policy, said = build("bert"), None, "DistributedDataParallel"
    if what == "an adapter":
        model = get_peft_model(model, LoraConfig(target_modules=["query"]))
    else:
        policy, said = CPUOffloadPolicy(), "leave it false"
    plugin = SimpleNamespace(cpu_offload=policy)
    with pytest.raises(ValueError, match=said):
        shard_with(SimpleNamespace(state=SimpleNamespace(fsdp_plugin=plugin)), model)
    assert not is_sharded(model)
