"""Two processes train as one does; every scenario is a function of distributed_worker.py, run here and there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from distributed_worker import SCENARIOS, in_one_process, run, split
from filelock import FileLock
from launchers import ACCELERATE, TORCHRUN, launch
from safetensors.torch import load_file
from trajectory import checksum, differences

WORKER = Path(__file__).with_name("distributed_worker.py")
BOUND = 1e-5
"""Largest difference to one process, as max|a - b| / max(max|a|, 1e-3) per tensor."""


def launched(launcher, name, tmp_path_factory, scenarios, warm):
    """Folder of results; several pytest workers that share this file launch once."""
    shared = tmp_path_factory.getbasetemp()
    shared = shared.parent if "PYTEST_XDIST_WORKER" in os.environ else shared
    folder, done = shared / name, shared / f"{name}.done"
    with FileLock(shared / f"{name}.lock"):
        if not done.exists():
            launch(launcher, WORKER, str(folder), *scenarios, warm=warm)
            done.touch()
    return folder


@pytest.fixture(scope="module")
def torchrun_folder(tmp_path_factory):
    scenarios = [name for name in SCENARIOS if name != "plain_loop"]
    return launched(TORCHRUN, "torchrun", tmp_path_factory, scenarios, warm=False)


@pytest.fixture(scope="module")
def accelerate_folder(tmp_path_factory):
    return launched(ACCELERATE, "accelerate", tmp_path_factory, ["default", "plain_loop"], warm=True)


def both_ranks(folder, scenario):
    return [torch.load(folder / scenario / f"rank{rank}.pt") for rank in (0, 1)]


def assert_same_bits(one, other):
    """Both ranks ended alike: weights, label table, losses and predictions."""
    assert one["checksums"] == other["checksums"]
    unlike = [name for name, tensor in one["tensors"].items() if not torch.equal(tensor, other["tensors"][name])]
    assert unlike == []


def assert_equal_runs(reference, ranks, bound=BOUND):
    """Both ranks ended as one process does, and something was trained."""
    assert reference["moved"] > 1e-3
    assert_same_bits(*ranks)
    assert ranks[0].get("steps") == reference.get("steps")
    found = differences(reference["tensors"], ranks[0]["tensors"])
    assert {name: value for name, value in found.items() if not value <= bound} == {}


def test_default_preset(torchrun_folder, tmp_path):
    """Means of means, a loss divided by the rows of one rank or of one micro-batch: all train, to something else."""
    ranks = both_ranks(torchrun_folder, "default")
    reference = in_one_process("default", tmp_path)
    assert_equal_runs(reference, ranks)
    assert reference["tensors"]["weight classifier.counts"].sum() > 6 * 6
    assert reference["tensors"]["weight classifier.offset_bias"].abs().max() > 0.01


def test_tables_at_every_save(torchrun_folder):
    """Rank 0 alone writes files; ranks that hold other tables by then go on from another state than was saved."""
    one, other = both_ranks(torchrun_folder, "default")
    assert list(one["checksums"]) == ["start", "step 2", "step 4", "step 6"]
    assert one["checksums"] == other["checksums"]
    assert len(set(one["checksums"].values())) == 4
    for step in (2, 4, 6):
        weights = load_file(torchrun_folder / "default" / "training" / f"checkpoint-{step}" / "model.safetensors")
        table = {name.removeprefix("classifier."): part for name, part in weights.items() if "classifier." in name}
        table = {name: part for name, part in table.items() if not name.startswith("encoder.")}
        assert checksum(table) == one["checksums"][f"step {step}"], step


def test_accelerate_launch(accelerate_folder, torchrun_folder):
    """A launcher that starts one process twice, or none besides the first, leaves a training that looks right."""
    (one, other), (reference, _) = (both_ranks(folder, "default") for folder in (accelerate_folder, torchrun_folder))
    assert_same_bits(one, other)
    assert_same_bits(one, reference)


@pytest.mark.parametrize("case", ["short step", "dropped", "padded"])
def test_ragged_end_of_an_epoch(torchrun_folder, tmp_path, case):
    """A last step with fewer rows or micro-batches, divided by the rows of a full one, trains with a smaller rate."""
    ranks = [rank[case] for rank in both_ranks(torchrun_folder, "ragged")]
    steps = {"short step": 6, "dropped": 4, "padded": 6}[case]
    assert ranks[0]["steps"] == steps
    assert_same_bits(*ranks)
    if case != "padded":  # accelerate repeats two rows there, so that both ranks have as many
        assert_equal_runs(in_one_process("ragged", tmp_path)[case], ranks)


def test_ranks_without_some_class_or_any_label(torchrun_folder, tmp_path):
    """Averages over ranks weigh a rank without rows of a class as much as one with; an empty batch must not be NaN."""
    ranks = both_ranks(torchrun_folder, "unlike_ranks")
    reference = in_one_process("unlike_ranks", tmp_path)
    assert_equal_runs(reference, ranks)
    assert reference["tensors"]["loss"][2] == 0.0
    assert (reference["tensors"]["loss"][[0, 1, 3]] > 0.0).all()


@pytest.mark.parametrize("case", ["accumulation", "short step", "every third step", "fixed means", "unlike ranks"])
def test_ranks_send_rows(torchrun_folder, tmp_path, case):
    """With many labels, ranks that send rows instead of sums must train as one process does; and as sums do."""
    ranks = [rank[case] for rank in both_ranks(torchrun_folder, "touched_rows")]
    assert_equal_runs(in_one_process("touched_rows", tmp_path)[case], ranks)
    sums = {"accumulation": "default", "unlike ranks": "unlike_ranks"}.get(case)
    if sums is not None:
        found = differences(both_ranks(torchrun_folder, sums)[0]["tensors"], ranks[0]["tensors"])
        assert max(found.values()) <= BOUND


def test_start_rows_are_the_same(torchrun_folder, tmp_path):
    """A start pass over each rank's share of the rows gives another table, and another one for every launch."""
    one, other = both_ranks(torchrun_folder, "starts")
    assert one == other == in_one_process("starts", tmp_path)
    assert len(one) == 3


def test_evaluation(torchrun_folder, tmp_path):
    """Repeated rows of the last batch, or ranks with unlike tables, change metrics a little and nobody sees it."""
    one, other = both_ranks(torchrun_folder, "evaluation")
    reference = in_one_process("evaluation", tmp_path)
    for key in ("eval_accuracy", "eval_f1_macro"):
        for rows in ("even", "uneven"):
            assert one[rows][key] == other[rows][key] == reference[rows][key]
    assert one["even"]["eval_loss"] == pytest.approx(reference["even"]["eval_loss"], rel=1e-5)
    assert one["predictions"].shape == (37, 5)
    assert torch.allclose(one["predictions"], one["direct"], rtol=1e-5)  # in the order of the rows
    assert torch.allclose(one["predictions"], reference["predictions"], rtol=1e-4)


@pytest.mark.parametrize("case", ["plain", "accumulated"])
def test_paper_preset(torchrun_folder, tmp_path, case):
    """Centroids of half the rows, or a gradient that stops at the other rank's rows, are another algorithm."""
    ranks = [rank[case] for rank in both_ranks(torchrun_folder, "paper")]
    reference = in_one_process("paper", tmp_path)
    assert_equal_runs(reference[case], ranks)
    assert reference[case]["tensors"]["gradient"].abs().max() > 1e-3
    assert max(differences(reference["plain"]["tensors"], reference["accumulated"]["tensors"]).values()) <= BOUND


@pytest.mark.parametrize("case", ["one_hot", "one_hot from class means"])
def test_one_hot(torchrun_folder, tmp_path, case):
    """A control with another effective learning rate in two processes makes every comparison unfair."""
    ranks = [rank[case] for rank in both_ranks(torchrun_folder, "one_hot")]
    assert_equal_runs(in_one_process("one_hot", tmp_path)[case], ranks)


@pytest.mark.parametrize("case", ["default", "one_hot from class means"])
def test_pooled_from_the_fitted_start(torchrun_folder, tmp_path, case):
    """A fresh head of unlike random numbers, or a fit on the rows of one rank, would train two models."""
    ranks = [rank[case] for rank in both_ranks(torchrun_folder, "pooled")]
    bound = 10 * BOUND  # the iterations of the fit enlarge how the features are rounded in batches of another size
    assert_equal_runs(in_one_process("pooled", tmp_path)[case], ranks, bound)


def test_batch_norm(torchrun_folder):
    """Each rank has its own statistics: label vectors computed from them would differ, and so would predictions."""
    one, other = both_ranks(torchrun_folder, "batch_norm")
    assert not torch.equal(one["statistics"], other["statistics"])
    assert list(one["checksums"]) == ["start", "step 2", "step 4"]
    assert one["checksums"] == other["checksums"]
    assert len(set(one["checksums"].values())) == 3
    assert [log["eval_accuracy"] for log in one["metrics"]] == [log["eval_accuracy"] for log in other["metrics"]]
    assert len(one["metrics"]) == 2
    assert torch.equal(one["loss"], other["loss"])


@pytest.mark.parametrize("step", [3, 5], ids=["first epoch", "second epoch"])
def test_resume_in_two_processes(torchrun_folder, step):
    """Random state, pending sums, a table of rank 0 alone, or the first epoch's rows would change what is resumed."""
    for rank in both_ranks(torchrun_folder, "resume"):
        resumed = rank[f"resumed at {step}"]
        for name, tensor in rank["whole"]["tensors"].items():
            if name != "gradient":  # of the first step after the start, which is another one
                assert torch.equal(tensor, resumed["tensors"][name]), name
        assert rank["whole"]["checksums"]["step 6"] == resumed["checksums"]["step 6"]


def test_resume_in_one_process(torchrun_folder, tmp_path):
    """On fewer processes a training goes on with the same rows per step, not with half of them or from row 0."""
    (whole, _), checkpoint = both_ranks(torchrun_folder, "default"), torchrun_folder / "default/training/checkpoint-2"
    resumed = run(tmp_path, checkpoint=str(checkpoint), **split(8))
    found = differences(*({k: v for k, v in run["tensors"].items() if k != "gradient"} for run in (whole, resumed)))
    assert {name: value for name, value in found.items() if not value <= BOUND} == {}
    assert list(resumed["checksums"]) == ["start"]


def test_plain_trainer_and_plain_loop(torchrun_folder, accelerate_folder, tmp_path):
    """Without LwALTrainer the model merges the rows of all ranks itself; a rank of its own would drift away."""
    one, other = both_ranks(torchrun_folder, "plain_trainer")
    assert_same_bits(one, other)
    assert one["moved"] > 1e-3
    one, other = both_ranks(accelerate_folder, "plain_loop")
    assert one["table"] == other["table"]
    assert torch.equal(one["logits"], other["logits"])
    assert torch.equal(one["counts"], in_one_process("plain_loop", tmp_path)["counts"])


def test_gradient_of_a_sum_over_ranks(torchrun_folder):
    """A sum without its backward pass loses the other rank's loss: a third of a gradient, in the right direction."""
    parts = [torch.arange(6.0).reshape(3, 2).add(10.0 * rank).requires_grad_() for rank in (0, 1)]
    total = torch.cat(parts).square().sum(dim=0)
    (3.0 * total.sqrt().sum()).backward()  # the losses of both ranks together
    for part, found in zip(parts, both_ranks(torchrun_folder, "sum_over_ranks"), strict=True):
        assert torch.equal(found["total"], total.detach())
        assert torch.allclose(found["gradient"], part.grad)


@pytest.mark.parametrize("case", ["parts", "whole"])
def test_the_temperature_of_the_probabilities(torchrun_folder, tmp_path, case):
    """Ranks that each fit it to their own part would save one model and predict with others."""
    one, other = (rank[f"{case}, temperature"] for rank in both_ranks(torchrun_folder, "rejection"))
    assert torch.equal(one, other)
    assert torch.allclose(one, in_one_process("rejection", tmp_path)[f"{case}, temperature"], rtol=1e-5)
    assert abs(float(one) - 1.0) > 0.1


@pytest.mark.parametrize("case", ["parts", "whole"])
def test_radii_for_rejection(torchrun_folder, tmp_path, case):
    """Ranks that each measure their own part end with unlike radii; rows that every rank has must count once."""
    one, other = (rank[case] for rank in both_ranks(torchrun_folder, "rejection"))
    assert torch.equal(one, other)
    reference = in_one_process("rejection", tmp_path)[case]
    assert torch.allclose(one, reference, rtol=1e-5)
    assert (reference.max() - reference.min()) / reference.max() > 0.01


def test_unlike_starts(torchrun_folder):
    """Seeds per rank, or shares of a stream of unlike lengths, gave every rank its own label vectors, or SIGABRT."""
    one, other = both_ranks(torchrun_folder, "unlike_starts")
    for case in ("seeds", "shares"):
        assert one[case] == other[case]
        assert one[case]["checksums"]["start"] != one[case]["end"]
    assert one["altered"] == other["altered"]
    assert "hold unlike label tables: give all of them the same seed" in one["altered"]


def test_labels_are_judged_by_the_rows_of_all_ranks(torchrun_folder, tmp_path):
    """Each rank would otherwise suspect other rows, and estimate another share, from its own part."""
    one, other = both_ranks(torchrun_folder, "suspicious_labels")
    reference = in_one_process("suspicious_labels", tmp_path)["whole"]
    assert len(reference) == 53, "those with a label"
    for given in ("parts", "whole"):
        assert one[given] == other[given]
        assert {entry["row"] for entry in one[given]} == {entry["row"] for entry in reference}
        found = {entry["row"]: entry for entry in one[given]}
        for entry in reference:
            assert found[entry["row"]]["margin"] == pytest.approx(entry["margin"], rel=1e-3, abs=1e-3)
            assert found[entry["row"]]["suspicious"] == entry["suspicious"]


def test_rows_left_out_or_weighted(torchrun_folder, tmp_path):
    """Weights of one rank's rows alone in what the loss is divided by would give another gradient."""
    ranks = both_ranks(torchrun_folder, "noisy_labels")
    reference = in_one_process("noisy_labels", tmp_path)
    plain = in_one_process("default", tmp_path / "plain")
    for mode in ("drop", "downweight"):
        assert_equal_runs(reference[mode], [rank[mode] for rank in ranks])
        assert not torch.equal(reference[mode]["tensors"]["loss"], plain["tensors"]["loss"])
