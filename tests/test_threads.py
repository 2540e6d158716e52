"""One model used by several threads at once, as servers do."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from releases import ONE_GRAPH
from test_inference import TEXTS
from test_modeling import build, inputs_for, trained

THREADS, CALLS = 8, 20


@pytest.fixture(autouse=True)
def frequent_switches():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def in_threads(work, calls):
    """Results of ``work(i)`` for all i, with the threads let loose at the same moment."""
    gate = threading.Barrier(THREADS)

    def part(first):
        gate.wait()
        return [(i, work(i)) for i in range(first, calls, THREADS)]

    with ThreadPoolExecutor(THREADS) as pool:
        return [result for part in pool.map(part, range(THREADS)) for result in part]


@pytest.mark.parametrize(
    ("name", "options", "compiled"),
    [
        ("bert", {"embedding_dim": 32}, False),  # as wide as the features: a mix-up raises nothing
        ("bert", {"embedding_dim": 8}, False),
        ("bert", {"embedding_dim": 32, "pooling": "mean"}, False),
        ("roberta", {"embedding_dim": 32}, False),  # a head inside the classifier
        ("vit", {"embedding_dim": 32}, False),
        ("wav2vec2", {"embedding_dim": 16}, False),
        ("bert", {"embedding_dim": 32}, True),
    ],
)
def test_every_thread_gets_its_own_answers(tiny_config, name, options, compiled):
    """A thread whose head was switched off by another got features in place of embeddings: other labels, silently."""
    model = trained(build(tiny_config, name, **options), steps=2)
    batches = [inputs_for(model, rows=2, seed=seed) for seed in range(10)]
    with torch.no_grad():
        alone = [model(**batch) for batch in batches]
    torch._dynamo.reset()  # it gives up code that other tests have compiled often
    called = torch.compile(model, backend="eager", fullgraph=ONE_GRAPH) if compiled else model
    with torch.no_grad():
        called(**batches[0])

    @torch.no_grad()
    def work(i):
        output, expected = called(**batches[i % 10]), alone[i % 10]
        return all(
            torch.allclose(ours, theirs, atol=1e-5)
            for ours, theirs in zip(output.to_tuple(), expected.to_tuple(), strict=True)
        )

    assert all(right for _, right in in_threads(work, THREADS * CALLS))


def test_threads_in_training_and_nested_models(tiny_config):
    """Gradients of a thread, and a call inside another model's call, must not see each other's heads."""
    model = trained(build(tiny_config, "bert", embedding_dim=32), steps=2)
    batches = [inputs_for(model, rows=2, seed=seed) for seed in range(4)]
    alone = [model(**batch).embeddings.square().sum() for batch in batches]
    wanted = [torch.autograd.grad(value, model.head_module.weight)[0] for value in alone]

    def work(i):
        gradient = torch.autograd.grad(model(**batches[i % 4]).embeddings.square().sum(), model.head_module.weight)[0]
        return torch.allclose(gradient, wanted[i % 4], atol=1e-4)

    assert all(right for _, right in in_threads(work, THREADS * 10))
    outer, inner = (trained(build(tiny_config, "bert", embedding_dim=32), steps=2) for _ in range(2))
    expected = outer(**batches[0]).logits
    outer.encoder.bert.register_forward_hook(lambda *_: inner(**batches[1]) and None)
    assert torch.equal(outer(**batches[0]).logits, expected)


def test_predict_of_a_model_in_training_mode(tiny_config, tokenizer):
    """The first thread to end put the model back in training mode while others were at work: dropout."""
    model = trained(build(tiny_config, "bert", embedding_dim=32))
    model.encoder.dropout.p = 0.5
    expected, vectors = model.predict(TEXTS, tokenizer), model.label_table.label_vectors.clone()
    model.train()
    answers = in_threads(lambda i: model.predict(TEXTS[i % 3 :], tokenizer, batch_size=1 + i % 5), THREADS * 6)
    assert model.training
    for i, answer in answers:
        for ours, theirs in zip(answer, expected[i % 3 :], strict=True):
            assert ours[0]["label"] == theirs[0]["label"]
            assert ours[0]["score"] == pytest.approx(theirs[0]["score"], abs=1e-5)
    assert torch.equal(model.eval().label_table.label_vectors, vectors)


def test_a_failed_call_leaves_no_trace(tiny_config):
    """A head that stayed switched off after an error would answer wrongly from then on."""
    model = trained(build(tiny_config, "bert", embedding_dim=32), steps=2)
    inputs = inputs_for(model)
    expected = model(**inputs).logits
    with pytest.raises(IndexError):
        model(input_ids=torch.full((1, 3), 10_000))
    assert torch.equal(model(**inputs).logits, expected)
    assert torch.equal(model.encoder(**inputs).logits, model(**inputs).embeddings)
