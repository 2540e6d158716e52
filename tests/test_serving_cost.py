"""What a call of a model with a label table costs beside a call of the stock classifier."""

from __future__ import annotations

import pytest
import torch
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
