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
from toy import separable_text

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


def edit_of(name, *args, **kwargs):
    return lambda model: getattr(model, name)(*args, **kwargs)


FEATURES = torch.randn(3, 2, 32, generator=torch.Generator().manual_seed(7))
EDITS = {
    "renamed": [edit_of("rename_label", "LABEL_1", "other"), edit_of("rename_label", "other", "LABEL_1")],
    "in another order": [
        edit_of("align", [f"LABEL_{i}" for i in order]) for order in ((3, 0, 4, 2, 1), (0, 1, 2, 3, 4))
    ],
    "one more, one less": [
        *(edit_of("add_label", f"new {i}", features=features) for i, features in enumerate(FEATURES)),
        *(edit_of("remove_label", f"new {i}") for i in (1, 0, 2)),
    ],
    "merged and split": [
        edit_of("merge_labels", ["LABEL_0", "LABEL_2"], "both"),
        edit_of("remove_label", "both"),
        *(edit_of("add_label", f"LABEL_{i}", features=FEATURES[i]) for i in (0, 2)),
    ],
}
ASKED = {
    "predict": lambda model, tokenizer: [
        answer for row in model.predict(TEXTS, tokenizer, top_k=2, batch_size=4) for answer in row
    ],
    "predict_with_rejection": lambda model, tokenizer: model.predict_with_rejection(
        TEXTS, tokenizer, threshold=1e6, batch_size=4
    ),
}


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("edits", EDITS.values(), ids=EDITS.keys())
def test_answers_while_another_thread_edits_the_labels(tiny_config, tokenizer, edits, asked):
    """An answer of half the old labels and half the new is a wrong label, silently, where it is no KeyError."""
    model = build(tiny_config, "bert", embedding_dim=8).eval()
    rows = separable_text(5, 40).with_format("torch")[:]
    model.initialize_labels([rows], progress=False)
    model.fit_rejection([rows], progress=False)

    def answer():
        found = ASKED[asked](model, tokenizer)
        return [[round(x, 4) if isinstance(x, float) else x for x in row.values()] for row in found]

    whole = [answer()]
    assert {row[0] for row in whole[0]} >= {"LABEL_0", "LABEL_1", "LABEL_2"}, "edits of these must be seen"
    for edit in edits * 2:  # the second time from where the first has ended, as all later ones
        edit(model)
        whole.append(answer())
    done = threading.Event()

    def ask(_):
        found = [answer()]
        while not done.is_set():
            found.append(answer())
        return found

    with ThreadPoolExecutor(2) as pool:
        asking = [pool.submit(ask, i) for i in range(2)]
        try:
            for edit in edits * 40:
                edit(model)
                done.wait(0.001)
        finally:
            done.set()
        found = [answer for thread in asking for answer in thread.result()]
    assert [answer for answer in found if answer not in whole] == []


def test_two_threads_edit_the_labels_of_one_model(tiny_config):
    """Names read before another thread's edit and written after it lose that edit; its row stays in the table."""
    model = trained(build(tiny_config, "bert", embedding_dim=8), steps=2)
    features = {f"new {i}": torch.randn(2, 32, generator=torch.Generator().manual_seed(i)) for i in range(4 * THREADS)}
    in_threads(lambda i: model.add_label(f"new {i}", features=features[f"new {i}"]), len(features))
    names = model.config.label_names
    assert len(names) == model.label_table.num_labels == 5 + len(features)
    for index, name in list(names.items())[5:]:
        torch.testing.assert_close(model.label_table.class_features[index], features[name].mean(dim=0))
