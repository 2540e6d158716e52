"""What a call of a model with a label table costs beside a call of the stock classifier."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest
import torch
from releases import exports_onnx
from test_modeling import build, inputs_for, trained
from torch.utils._python_dispatch import TorchDispatchMode

from hf_lwal import LabelTable
from hf_lwal.functional import distances_of_differences
from hf_lwal.modeling.heads import stock_from_config
from hf_lwal.modeling.label_table import FEW_NUMBERS, UNSEEN_MARGIN

EXTRA_OPERATIONS = 10


class Count(TorchDispatchMode):
    """Counts the operations in its context."""

    operations = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.operations += 1
        return func(*args, **(kwargs or {}))


def operations(model, inputs):
    with torch.inference_mode(), Count() as count:
        model(**inputs)
    return count.operations


@pytest.mark.parametrize("embedding_dim", [32, 8])
@pytest.mark.parametrize("name", ["bert", "roberta", "vit"])
def test_a_call_needs_few_operations_more_than_the_stock_one(tiny_config, name, embedding_dim):
    """On small models every operation is a percent of a call, which no test of results would see."""
    model = trained(build(tiny_config, name, embedding_dim=embedding_dim), steps=1)
    model.label_table.counts.fill_(1)
    stock = stock_from_config(tiny_config(name, num_labels=model.config.num_labels), model.task).eval()
    inputs = inputs_for(model)
    assert operations(model, inputs) - operations(stock, inputs) <= EXTRA_OPERATIONS


def test_the_head_runs_once_with_the_bits_of_two_runs(tiny_config):
    """What the hook keeps must be what the head gives for these features, also after the head has changed."""
    model = trained(build(tiny_config, "bert", embedding_dim=32), steps=1)
    inputs = inputs_for(model)
    for _ in range(2):
        output = model(**inputs)
        assert torch.equal(output.embeddings, model.head_module(output.features))
        with torch.no_grad():
            model.head_module.weight.mul_(-2.0)


@pytest.mark.parametrize("kind", ["reads output", "changes output", "changes input"])
def test_hooks_of_a_head_see_what_they_saw(tiny_config, kind):
    """A hook that the user put on the head must get embeddings, and what it returns must count as in training."""
    model = trained(build(tiny_config, "bert", embedding_dim=32), steps=1)
    inputs, seen = inputs_for(model), []
    if kind == "changes input":
        model.head_module.register_forward_pre_hook(lambda _, args: (args[0] + 1.0,))
    elif kind == "changes output":
        model.head_module.register_forward_hook(lambda _, args, output: output + 1.0)
    else:
        model.head_module.register_forward_hook(lambda _, args, output: seen.append(output))
    output = model(**inputs)
    if seen:
        assert torch.equal(seen[-1], output.embeddings)
    assert torch.equal(output.embeddings, model.head_module(output.features))


def test_a_head_on_tokens_sees_pooled_features(tiny_config):
    """A decoder pools after its head: the output kept from there is of every token, and must not be taken."""
    model = trained(build(tiny_config, "llama", embedding_dim=32), steps=1)
    output = model(**inputs_for(model))
    assert output.embeddings.shape == (len(output.logits), 32)
    assert torch.equal(output.embeddings, model.head_module(output.features))


@pytest.mark.parametrize("shift", [0.0, 1e3])
@pytest.mark.parametrize("unseen", [(), (1,), (0, 1, 2, 3)])
def test_logits_without_gradient_are_those_with(shift, unseen):
    """Two ways to the same logits: without gradient from the differences, with it from the expanded squares."""
    torch.manual_seed(0)
    table, embeddings = LabelTable(4, 6, 6), torch.randn(5, 6) + shift
    table.start(torch.randn(12, 6) + shift, torch.arange(12) % 4, None)
    table.counts[list(unseen)] = 0
    table.set_scale(2.0)
    with torch.no_grad():
        logits = table(embeddings)
    assert torch.allclose(logits, table(embeddings).detach(), rtol=1e-4, atol=1e-4)
    wanted = -2.0 * (embeddings.double().unsqueeze(1) - table.label_vectors.double()).norm(dim=2)
    seen = [label for label in range(4) if label not in unseen] or [0, 1, 2, 3]
    assert torch.allclose(logits[:, seen].double(), wanted[:, seen], rtol=1e-5)
    if len(seen) < 4:
        floor = (logits[:, seen].amin(dim=1, keepdim=True) - UNSEEN_MARGIN).expand(-1, len(unseen))
        assert torch.equal(logits[:, list(unseen)], floor)


def test_logits_follow_every_change_of_the_table():
    """Anything kept from the last call would answer with the label vectors of then."""
    torch.manual_seed(0)
    table, embeddings = LabelTable(4, 6, 6), torch.randn(5, 6)
    table.start(torch.randn(12, 6), torch.arange(12) % 4, None)
    other = LabelTable(4, 6, 6)
    other.start(torch.randn(12, 6), torch.arange(12) % 4, None)

    def is_right():
        with torch.inference_mode():
            return torch.allclose(table(embeddings), -table.scale * torch.cdist(embeddings, table.label_vectors))

    assert is_right()
    for change in (
        lambda: table.load_state_dict(other.state_dict()),
        lambda: table.label_vectors[1].add_(1.0),
        lambda: table.label_vectors.data.mul_(3.0),
        lambda: table.set_scale(5.0),
        lambda: table.take_labels([3, 1]),
    ):
        before = table.label_vectors.clone(), table.log_scale_bias.detach().clone()
        with torch.no_grad():
            change()
        assert not (table.label_vectors.equal(before[0]) and table.log_scale_bias.equal(before[1]))
        assert is_right()


def test_many_label_vectors_are_multiplied_and_close_ones_are_told_apart():
    """One kernel per pair of rows takes ten times as long as a product for many; for few no digit may be lost."""
    table = LabelTable(FEW_NUMBERS // 64 + 1, 64, 64, mask_unseen=False)
    with torch.inference_mode(), torch.profiler.profile() as profile:
        table(torch.randn(2, 64))
    assert not any("cdist" in event.key for event in profile.key_averages())
    vectors = 1e3 + 1e-3 * torch.eye(4)
    distances = distances_of_differences(vectors, vectors)
    assert (distances.diagonal() == distances.min()).all()
    assert distances.min() > 0


@exports_onnx
def test_the_benchmark_of_serving_times_every_form(tmp_path, monkeypatch, capsys):
    """A form that is timed against another round, or left out, would show in no other test before the docs have it."""
    pytest.importorskip("onnxruntime")
    script, output = Path(__file__).parents[1] / "benchmarks" / "serving_latency.py", tmp_path / "lines.jsonl"
    words = ["--tiny", "--rounds", "2", "--calls", "1", "--labels", "6", "--batch-sizes", "1", "3"]
    monkeypatch.setattr(sys, "argv", [str(script), *words, "--output", str(output)])
    benchmark = runpy.run_path(str(script))
    threads = torch.get_num_threads()
    try:
        benchmark["main"]()
    finally:
        torch.set_num_threads(threads)
    lines = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    forms = ["stock", "lwal", "folded", "onnx"]
    assert [(line["batch_size"], line["form"]) for line in lines] == [
        (rows, form) for rows in (1, 3) for form in forms
    ]
    assert all(line["median_ms"] > 0 and line["ratio_to_stock"] > 0 for line in lines)
    table = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert len(table) == 2 + len(lines)
    assert {row.count("|") for row in table} == {6}
    assert benchmark["summary"]("lwal", {"stock": [1.0, 2.0, 4.0], "lwal": [2.0, 2.0, 12.0]}) == {
        "form": "lwal",
        "median_ms": 2000.0,
        "ratio_to_stock": 2.0,  # of 2, 1 and 3; that of the medians is 1
        "ratio_quartiles": [1.5, 2.5],
    }
