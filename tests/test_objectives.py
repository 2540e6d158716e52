"""Every label-learning method: its formula, and a whole training with it."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch
from datasets import IterableDataset
from launchers import TORCHRUN, launch
from objectives_worker import LABELS, METHODS, arguments, build, rows_of, train
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy
from trajectory import relative_difference
from transformers import (
    AutoModel,
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
    TrainingArguments,
)

from hf_lwal import AutoModelForLwALClassification, LwALTrainer
from hf_lwal.objectives import (
    OBJECTIVES,
    LabelEmbedding,
    LabelSmoothing,
    LearningWithRetrospection,
    LossContext,
    MaxEntropy,
    Objective,
    ObjectiveLoss,
    OneHot,
    StaticLabel,
    TeacherFree,
)
from hf_lwal.objectives.label_embed import eigen_embedding
from hf_lwal.objectives.label_smoothing import label_smoothing_loss
from hf_lwal.objectives.lwr import retrospection_weight
from hf_lwal.objectives.static_label import fit_to_dimension
from hf_lwal.settings.presets import PRESETS

# -- formulas -------------------------------------------------------------------------------------------------------

BATCHES = {
    "plain": (4, [2, 0, -100, 3, 0, 1]),
    "one row": (4, [1]),
    "no labels": (4, [-100, -100, -100]),
    "one class": (4, [2, 2, 2]),
    "two labels": (2, [0, 1, 1, -100]),
}


def softmax(scores):
    total = sum(math.e**score for score in scores)
    return [math.e**score / total for score in scores]


def ce_of(target, scores):
    return -sum(share * p.log() for share, p in zip(target, softmax(scores), strict=True))


def kl_of(target, scores, temperature=1.0):
    student = softmax([score / temperature for score in scores])
    return sum(u * (u.log() - p.log()) for u, p in zip(target, student, strict=True))


def one_hot(label, size):
    return [1.0 if index == label else 0.0 for index in range(size)]


class Case:
    """Inputs of one batch, drawn once, in float64."""

    def __init__(self, batch):
        self.size, labels = BATCHES[batch]
        self.labels = torch.tensor(labels)
        draw = torch.Generator().manual_seed(len(labels))

        def normal(*shape):
            return torch.randn(*shape, generator=draw, dtype=torch.float64)

        self.logits = (2.0 * normal(len(labels), self.size)).requires_grad_()
        self.features = normal(len(labels), 3)
        self.weight = (2.0 * normal(self.size, 3)).requires_grad_()
        self.bias = normal(self.size).requires_grad_()
        self.embedding = normal(self.size, self.size).requires_grad_()
        self.records = (2.0 * normal(len(labels), self.size)).half()
        self.recorded = torch.arange(len(labels)) % 3 != 1
        self.vectors = normal(self.size, self.size)
        self.rows = [row for row, label in enumerate(labels) if label != -100]
        self.count = max(len(self.rows), 1)

    def context(self):
        table = SimpleNamespace(label_vectors=self.vectors)
        return LossContext(
            model=SimpleNamespace(label_table=table),
            num_items=torch.tensor(len(self.rows)),
            epoch=4.3,
            epochs=6,
            sample_ids=torch.arange(len(self.labels)),
        )

    def ce(self, row):
        return ce_of(one_hot(int(self.labels[row]), self.size), list(self.logits[row]))


def ours_simple(objective):
    return lambda case: objective.loss({"logits": case.logits, "embeddings": case.logits}, case.labels, case.context())


def ours_lwr(case):
    objective = LearningWithRetrospection(every=2)
    objective.allocate(len(case.labels), case.size)
    objective.records.copy_(case.records)
    objective.recorded.copy_(case.recorded)
    return objective.loss({"logits": case.logits}, case.labels, case.context())


def ours_label_embed(case):
    objective = LabelEmbedding()
    objective.second_head = torch.nn.Linear(3, case.size)
    del objective.second_head.weight, objective.second_head.bias
    objective.second_head.weight, objective.second_head.bias = case.weight, case.bias  # type: ignore[assignment]
    objective.__dict__["embedding"] = case.embedding
    outputs = {"logits": case.logits, "features": case.features}
    return objective.loss(outputs, case.labels, case.context())


def by_label_smoothing(case):
    def target(label):
        return [0.9 * share + 0.1 / case.size for share in one_hot(label, case.size)]

    return sum(ce_of(target(int(case.labels[row])), list(case.logits[row])) for row in case.rows) / case.count


def by_max_entropy(case):
    def entropy(row):
        return -sum(p * p.log() for p in softmax(list(case.logits[row])))

    return sum(case.ce(row) - 0.1 * entropy(row) for row in case.rows) / case.count


def by_teacher_free(case):
    total = 0.0
    for row in case.rows:
        label = int(case.labels[row])
        teacher = [0.99 if index == label else 0.01 / (case.size - 1) for index in range(case.size)]
        soft = softmax([torch.tensor(value / 20.0, dtype=torch.float64) for value in teacher])
        total = total + 0.9 * case.ce(row) + 0.1 * kl_of(soft, list(case.logits[row]))
    return total / case.count


def by_lwr(case):
    weight = 0.9 * 2 * 2 / 6  # beta * k * floor(5 / 2) / E, in the fifth epoch
    total = 0.0
    for row in case.rows:
        if not case.recorded[row]:
            total = total + case.ce(row)
            continue
        before = softmax([value / 5.0 for value in case.records[row].double()])
        divergence = 25.0 * kl_of(before, list(case.logits[row]), 5.0)
        total = total + (1.0 - weight) * case.ce(row) + weight * divergence
    return total / case.count


def by_label_embed(case):
    means, own, right, excess = 0.0, 0.0, 0, 0.0
    for row in case.rows:
        label = int(case.labels[row])
        second = [
            sum(w * h for w, h in zip(weights, case.features[row], strict=True)) + bias
            for weights, bias in zip(case.weight, case.bias, strict=True)
        ]
        soft = [p.detach() for p in softmax(list(case.embedding[label]))]
        means = means + 0.5 * case.ce(row) + 0.5 * ce_of(soft, list(case.logits[row]))
        means = means + ce_of(one_hot(label, case.size), second)
        if max(range(case.size), key=lambda index: second[index]) == label:
            right += 1
            own = own + ce_of([p.detach() for p in softmax([s / 2.0 for s in second])], list(case.embedding[label]))
        probability = softmax(second)[label]
        excess = excess + (probability - 0.9 if probability > 0.9 else 0.0)
    return means / case.count + own / (right + 1e-8) + excess


def by_static_label(case):
    total = 0.0
    for row in case.rows:
        for value, wanted in zip(case.logits[row], case.vectors[int(case.labels[row])], strict=True):
            gap = abs(value - wanted)
            total = total + (0.5 * gap**2 if gap <= 1.0 else gap - 0.5) / case.size
    return total / case.count


FORMULAS = {
    "label_smoothing": (ours_simple(LabelSmoothing()), by_label_smoothing),
    "max_entropy": (ours_simple(MaxEntropy()), by_max_entropy),
    "teacher_free": (ours_simple(TeacherFree()), by_teacher_free),
    "lwr": (ours_lwr, by_lwr),
    "label_embed": (ours_label_embed, by_label_embed),
    "static_label": (ours_simple(StaticLabel()), by_static_label),
}


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("method", FORMULAS)
def test_loss_and_gradient_are_the_formula(method, batch):
    """A wrong mean, a forgotten temperature or a gradient through a target still trains, only to something else."""
    ours, reference = FORMULAS[method]
    results = []
    for compute in (ours, reference):
        case = Case(batch)
        loss = compute(case)
        loss = torch.as_tensor(loss.loss if isinstance(loss, ObjectiveLoss) else loss, dtype=torch.float64)
        leaves = [case.logits, case.weight, case.bias, case.embedding]
        gradients = torch.autograd.grad(loss, leaves, allow_unused=True) if loss.requires_grad else [None] * 4
        gradients = [
            torch.zeros_like(leaf) if part is None else part for leaf, part in zip(leaves, gradients, strict=True)
        ]
        results.append([loss.detach(), *gradients])
    for mine, expected in zip(*results, strict=True):
        assert torch.allclose(mine, expected, rtol=1e-9, atol=1e-12)
    moved = float(results[1][1].abs().max())
    assert (moved == 0.0) == (batch == "no labels")


@pytest.mark.parametrize("name", ["bert", "vit"])
def test_the_second_head_sees_the_input_of_the_first_without_gradient(name):
    """With a gradient through its features the second head would train the backbone as well."""
    objective, model = LabelEmbedding(), build(name)
    assert objective.prepare_model(model) is model
    inputs = {key: value for key, value in rows_of(name, 4).with_format("torch")[:].items() if key != "labels"}
    outputs = objective.forward_model(model.train(), inputs)
    assert outputs.logits.requires_grad
    assert not outputs["features"].requires_grad
    assert torch.equal(model.classifier(outputs["features"]), outputs.logits)
    assert "features" not in objective.forward_model(model.eval(), inputs)


def test_low_precision_logits_are_reduced_in_float32():
    """A bfloat16 entropy or divergence has two digits."""
    for method in FORMULAS.keys() - {"label_embed", "lwr"}:
        case = Case("plain")
        case.logits = case.logits.detach().bfloat16()
        assert FORMULAS[method][0](case).loss.dtype in (torch.float32, torch.float64), method


def test_label_smoothing_is_applied_once():
    """`label_smoothing_factor` on top of the method's own epsilon would smooth twice, and nobody would see it."""
    case = Case("plain")
    context = dataclasses.replace(case.context(), label_smoothing=0.3)
    ours = LabelSmoothing().loss({"logits": case.logits}, case.labels, context).loss
    expected = cross_entropy(case.logits, case.labels, label_smoothing=0.3)
    assert torch.allclose(ours, expected)
    assert torch.allclose(label_smoothing_loss(case.logits, case.labels, 0.3).sum() / case.count, expected)


def test_evaluation_of_methods_with_memory_is_cross_entropy():
    """An evaluation row has no record, and none may be written for it."""
    case = Case("plain")
    context = dataclasses.replace(case.context(), num_items=None, sample_ids=None)
    for objective in (LearningWithRetrospection(), LabelEmbedding()):
        loss = objective.loss({"logits": case.logits}, case.labels, context).loss
        assert torch.allclose(loss, cross_entropy(case.logits, case.labels))


def test_rows_without_a_record_have_the_cross_entropy_that_was_asked_for():
    """Class weights and smoothing were lost for rows that the recording epoch did not see."""
    case, objective = Case("plain"), LearningWithRetrospection(every=2)
    objective.allocate(len(case.labels), case.size)  # nothing recorded
    weights = torch.tensor([3.0, 1.0, 0.5, 2.0], dtype=torch.float64)
    for asked in ({"class_weights": weights}, {"label_smoothing": 0.2}, {"class_weights": weights * 2}):
        context = dataclasses.replace(case.context(), **asked)
        loss = objective.loss({"logits": case.logits}, case.labels, context).loss
        alone = cross_entropy(
            case.logits,
            case.labels,
            weight=asked.get("class_weights"),
            label_smoothing=asked.get("label_smoothing", 0.0),
            reduction="sum",
        )
        assert torch.allclose(loss, alone / case.count)


@pytest.mark.parametrize("weights", [[3.0, 1.0, 0.5, 2.0], [1.0, 1.0, 1.0, 1.0], [0.1, 9.0, 9.0, 9.0]])
def test_static_labels_weigh_their_classes(weights):
    """Class weights that do not reach the loss train as if they had not been given."""
    case = Case("plain")
    context = dataclasses.replace(case.context(), class_weights=torch.tensor(weights, dtype=torch.float64))
    loss = StaticLabel().loss({"embeddings": case.logits}, case.labels, context).loss
    rows = [
        weights[int(case.labels[row])]
        * torch.nn.functional.huber_loss(case.logits[row], case.vectors[case.labels[row]]).item()
        for row in case.rows
    ]
    assert loss.item() == pytest.approx(sum(rows) / case.count)


def test_retrospection_schedule_and_records():
    """Recording in the wrong epoch distils from the epoch before, or for ever from the first."""
    objective = LearningWithRetrospection(every=2)
    objective.allocate(3, 4)
    labels = torch.tensor([0, 1, 2])
    for epoch, steps_of_memory in ((1, 0), (2, 2), (3, 2), (4, 4), (5, 4), (6, 6)):
        logits = torch.full((3, 4), float(epoch))
        logits[:, 0] += 1.0
        context = LossContext(model=None, num_items=torch.tensor(3), epoch=epoch - 0.5, epochs=6, sample_ids=labels)
        result = objective.loss({"logits": logits}, labels, context)
        assert ("retrospection_loss" in result.terms) == (epoch > 2)
        assert objective.records[:, 1].tolist() == [float(steps_of_memory)] * 3
    assert retrospection_weight(5, 2, 6) == pytest.approx(0.9 * 4 / 6)


def test_records_that_are_not_finite_do_not_stay():
    """One NaN row would give NaN losses for k epochs; one beyond float16 an infinite divergence."""
    objective = LearningWithRetrospection(every=1)
    objective.allocate(3, 2)
    logits = torch.tensor([[float("nan"), 0.0], [1e6, 0.0], [1.0, 2.0]])
    ids = torch.tensor([0, 1, 2])
    context = LossContext(model=None, num_items=torch.tensor(3), epoch=0.0, epochs=6, sample_ids=ids)
    objective.loss({"logits": logits}, torch.tensor([0, 1, 1]), context)
    assert objective.recorded.tolist() == [False, True, True]
    assert objective.records.isfinite().all()


def test_eigen_embedding_reproduces_similarities():
    """Vectors in the wrong order or scale would make a structure measure compare noise."""
    vectors = torch.randn(6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = eigen_embedding(vectors @ vectors.T, 3)
    assert found.shape == (6, 3)
    assert torch.allclose(found @ found.T, vectors @ vectors.T)
    assert found.norm(dim=0).tolist() == sorted(found.norm(dim=0).tolist(), reverse=True)


@pytest.mark.parametrize(("width", "dim"), [(40, 8), (5, 8), (8, 8)])
def test_fitted_label_vectors_keep_their_distances(width, dim):
    """A projection that loses distances between labels loses what static labels are for."""
    vectors = torch.randn(6, width, generator=torch.Generator().manual_seed(0))
    assert fit_to_dimension(vectors, dim).shape == (6, dim)
    assert torch.allclose(
        torch.cdist(fit_to_dimension(vectors, dim), fit_to_dimension(vectors, dim)),
        torch.cdist(vectors, vectors),
        atol=1e-4,
    )


# -- whole trainings ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bert", "vit"])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns_and_saves_a_loadable_model(tmp_path, method, name):
    """A method whose loss falls while its accuracy does not, or whose checkpoint needs this library, is of no use."""
    # a fresh head in 16 epochs of separable data; the retrospection starts after the second
    trainer = train(
        name,
        method,
        tmp_path,
        rows=160,
        max_steps=80,
        per_device_train_batch_size=32,
        optim="adamw_torch",
        learning_rate=3e-3,
    )
    test = rows_of(name, 100, seed=1)
    assert trainer.evaluate(test)["eval_accuracy"] > 0.9
    trainer.save_model()
    inputs = {key: value for key, value in test.with_format("torch")[:].items() if key != "labels"}
    if method == "static_label":
        model = AutoModelForLwALClassification.from_pretrained(tmp_path)
        assert torch.equal(model.label_table.label_vectors, trainer.model.label_table.label_vectors)
    else:
        auto = AutoModelForSequenceClassification if name == "bert" else AutoModelForImageClassification
        model = auto.from_pretrained(tmp_path)
        assert type(model).__name__ == {"bert": "BertFor", "vit": "ViTFor"}[name] + auto.__name__.partition("For")[2]
        assert AutoModel.from_pretrained(tmp_path).config.model_type == name
    with torch.no_grad():
        assert torch.equal(model(**inputs).logits, trainer.model.eval()(**inputs).logits)
    has_own_file = (tmp_path / "objective.safetensors").exists()
    assert has_own_file == (method == "label_embed")


def bound(tensor):
    """Largest difference that rounding explains: records are float16."""
    return 2e-3 if tensor.dtype == torch.float16 else 1e-4


@pytest.mark.parametrize("method", [method for method in METHODS if method != "label_embed"])
def test_accumulation_changes_nothing(tmp_path, method):
    """Losses and records must be those of the whole step however it is split."""
    results = []
    for micro, accumulation in ((8, 1), (4, 2)):
        trainer = train(
            "bert", method, tmp_path, per_device_train_batch_size=micro, gradient_accumulation_steps=accumulation
        )
        losses = [log["loss"] for log in trainer.state.log_history if "loss" in log]
        results.append((losses, {**trainer.model.state_dict(), **trainer.label_objective.state_dict()}))
    (losses, state), (split_losses, split_state) = results
    assert losses == pytest.approx(split_losses, rel=1e-4)
    for key, value in state.items():
        assert relative_difference(value, split_state[key]) < bound(value), key


def test_label_embedding_says_what_accumulation_changes(tmp_path, caplog):
    """Its one loss that is no sum over rows depends on the split: silence would look like a guarantee."""
    train("bert", "label_embed", tmp_path, max_steps=1, gradient_accumulation_steps=2)
    assert "averaged per micro-batch" in caplog.text


@pytest.mark.parametrize("method", ["lwr", "label_embed", "static_label", "max_entropy"])
def test_resume_is_exact(tmp_path, method):
    """Records, the second head or their optimizer state outside the checkpoint make a resumed run another run."""
    options = {"save_strategy": "steps", "save_steps": 1, "optim": "adamw_torch"}
    whole = train("bert", method, tmp_path / "whole", **options)
    expected = {**whole.model.state_dict(), **whole.label_objective.state_dict()}
    for step in (2, 3):  # within an epoch, and between two
        checkpoint = str(tmp_path / "whole" / f"checkpoint-{step}")
        trainer = train("bert", method, tmp_path / f"resumed-{step}", checkpoint=checkpoint, **options)
        found = {**trainer.model.state_dict(), **trainer.label_objective.state_dict()}
        assert found.keys() == expected.keys()
        assert [key for key, value in found.items() if not torch.equal(value, expected[key])] == [], step
    first = (
        load_file(tmp_path / "whole" / "checkpoint-1" / "objective.safetensors")
        if whole.label_objective.state_dict()
        else {}
    )
    moved = [key for key, value in first.items() if not torch.equal(value, expected[key])]
    assert bool(moved) == (method in ("lwr", "label_embed"))


def test_a_checkpoint_without_the_objectives_state_is_refused(tmp_path):
    """Resuming without it would train on with empty records and a random second head."""
    options = {"save_strategy": "steps", "save_steps": 1, "max_steps": 1}
    train("bert", "max_entropy", tmp_path / "other", **options)
    with pytest.raises(ValueError, match=r"has no objective.safetensors, without which LearningWithRetrospection"):
        train("bert", "lwr", tmp_path / "new", checkpoint=str(tmp_path / "other" / "checkpoint-1"), **options)
    train("bert", "lwr", tmp_path / "lwr", **options)
    with pytest.raises(ValueError, match=r"holds .* but LearningWithRetrospection needs .*\(16, 5\)"):
        train("bert", "lwr", tmp_path / "new", rows=16, checkpoint=str(tmp_path / "lwr" / "checkpoint-1"), **options)


@pytest.mark.parametrize("kind", ["columns", "list", "workers"])
def test_records_belong_to_their_rows(tmp_path, kind):
    """Records under the wrong id distil every row from another one, which trains to a plausible, worse model."""
    rows = rows_of("bert", 24)
    data = rows.add_column("text", ["unused"] * 24)
    data = list(data) if kind == "list" else data
    options = {"learning_rate": 0.0, "max_steps": 3, "label_lwr_every": 1}
    trainer = train(
        "bert", "lwr", tmp_path, data=data, dataloader_num_workers=2 if kind == "workers" else 0, **options
    )
    inputs = {key: value for key, value in rows.with_format("torch")[:].items() if key != "labels"}
    with torch.no_grad():
        logits = trainer.model.eval()(**inputs).logits
    assert trainer.label_objective.recorded.all()
    assert torch.allclose(trainer.label_objective.records.float(), logits, atol=1e-3)
    assert torch.cdist(logits, logits).fill_diagonal_(1.0).min() > 0.01
    assert trainer.state.log_history[0]["lwr_memory_mib"] == round(24 * LABELS * 2 / 2**20, 3)


def test_the_best_model_brings_its_own_label_embedding(tmp_path):
    """The similarities that are saved beside the best model must not be those of the last step."""
    steps = {"save_strategy": "steps", "save_steps": 1, "eval_strategy": "steps", "eval_steps": 1, "max_steps": 3}
    best = {"load_best_model_at_end": True, "metric_for_best_model": "loss", "greater_is_better": True}
    data = rows_of("bert", 24)
    args = arguments(tmp_path, "label_embed", **steps, **best)  # the highest loss is that of the first step
    trainer = LwALTrainer(build("bert"), args, train_dataset=data, eval_dataset=data)
    trainer.train()
    assert trainer.state.best_global_step < 3
    saved = [load_file(tmp_path / f"checkpoint-{step}" / "objective.safetensors")["embedding"] for step in (1, 2, 3)]
    assert torch.equal(saved[trainer.state.best_global_step - 1], trainer.label_objective.embedding.detach())
    assert not torch.equal(saved[2], trainer.label_objective.embedding.detach())


def test_a_second_training_starts_without_records(tmp_path):
    """Records of an earlier training would be distilled from before the new one has recorded any."""
    trainer = train("bert", "lwr", tmp_path, label_lwr_every=1)
    assert trainer.label_objective.recorded.all()
    trainer.args.max_steps = 1
    trainer.train()
    assert trainer.label_objective.recorded.sum() == 8


@pytest.mark.parametrize(("every", "said"), [(2, False), (3, True)])
def test_a_training_too_short_to_look_back_says_so(tmp_path, caplog, every, said):
    """Three presets of the paper trained for two epochs were one-hot labels, to the last digit and without a word."""
    train("bert", "lwr", tmp_path, max_steps=9, label_lwr_every=every)
    found = [record for record in caplog.records if "it is cross-entropy alone" in record.getMessage()]
    assert len(found) == said


def test_streams_are_refused(tmp_path):
    """A stream's rows have no number: whatever were remembered would belong to other rows in the next epoch."""
    stream = IterableDataset.from_generator(lambda: iter(rows_of("bert", 24)))
    with pytest.raises(ValueError, match=r"is a stream, whose rows have no number: use a map-style data set"):
        train("bert", "lwr", tmp_path, data=stream)


def test_two_processes_equal_one(tmp_path):
    """Ranks that keep their own records or average nothing of the second head train different models."""
    launch(TORCHRUN, Path(__file__).with_name("objectives_worker.py"), str(tmp_path))
    ranks = [torch.load(tmp_path / f"rank{rank}.pt") for rank in (0, 1)]
    for method in ("lwr", "label_embed", "static_label"):
        trainer = train("bert", method, tmp_path / "one", per_device_train_batch_size=8)
        one = {**trainer.model.state_dict(), **trainer.label_objective.state_dict()}
        for rank in ranks:
            assert rank["world_size"] == 2
            for key, value in one.items():
                assert relative_difference(value, rank[method][key]) < bound(value), (method, key)
        own = trainer.label_objective.state_dict()
        assert all(torch.equal(ranks[0][method][key], ranks[1][method][key]) for key in own)
        assert method == "static_label" or own


# -- static labels --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["array", "callable", "text model"])
def test_sources_of_static_label_vectors(tmp_path, tokenizer_dir, kind):
    """Vectors in another order than the labels, or that move, make every class another one's target."""
    names = [f"key{index}" for index in range(LABELS)]
    vectors = np.random.default_rng(0).standard_normal((LABELS, 4)).astype(np.float32)
    if kind == "text model":
        AutoModel.from_config(build("bert").config).save_pretrained(tokenizer_dir)
    source = {
        "array": vectors,
        "callable": lambda given: [vectors[names.index(name)] for name in given],
        "text model": str(tokenizer_dir),
    }[kind]
    model = build("resnet")
    model.config.id2label = dict(enumerate(names))
    data = rows_of("resnet", 24)
    args = arguments(tmp_path, "static_label", eval_strategy="steps", eval_steps=1)
    trainer = LwALTrainer(model, args, objective=StaticLabel(source), train_dataset=data, eval_dataset=data)
    trainer.train()
    kept = trainer.model.label_table.label_vectors
    if kind == "text model":
        assert torch.cdist(kept, kept).fill_diagonal_(1.0).min() > 0.1
    else:
        assert torch.equal(kept[:, :4], torch.from_numpy(vectors))
        assert not kept[:, 4:].any()
    assert trainer.state.log_history[0]["label_scale"] == 1.0
    assert trainer.state.log_history[0]["label_vector_length"] == pytest.approx(kept.norm(dim=1).mean().item())


def test_static_label_without_vectors_says_where_they_come_from(tmp_path):
    """An empty table would predict the first class for ever."""
    trainer = LwALTrainer(
        build("bert"), arguments(tmp_path, label_method="static_label"), train_dataset=rows_of("bert", 8)
    )
    with pytest.raises(ValueError, match=r"set label_static_model .* or pass objective=StaticLabel\(array\)"):
        trainer.train()
    trainer = LwALTrainer(
        build("bert"), arguments(tmp_path), objective=StaticLabel(np.zeros((3, 4))), train_dataset=rows_of("bert", 8)
    )
    with pytest.raises(ValueError, match=r"must have shape \(5, K\), one row per label, but have \(3, 4\)"):
        trainer.train()


# -- choosing -------------------------------------------------------------------------------------------------------


def test_presets_name_every_method_of_the_paper(tmp_path):
    """A preset that does not set the method would train another one under the name of the paper's."""
    expected = {
        "paper:std": OneHot,
        "paper:static_label": StaticLabel,
        "paper:lwr2k": LearningWithRetrospection,
        "paper:lwr3k": LearningWithRetrospection,
        "paper:lwr5k": LearningWithRetrospection,
        "paper:label_embed": LabelEmbedding,
    }
    for preset, kind in expected.items():
        trainer = LwALTrainer(build("bert"), arguments(tmp_path, lwal_preset=preset), train_dataset=rows_of("bert", 8))
        assert type(trainer.label_objective) is kind
        if kind is LearningWithRetrospection:
            assert trainer.label_objective.every == int(preset[-2])
    assert {PRESETS[name]["label_method"] for name in PRESETS} <= OBJECTIVES.keys()


def test_method_settings_reach_their_method(tmp_path):
    """A flag that is parsed and dropped looks like a setting without effect."""
    options = {"label_weight": 0.25, "label_temperature": 3.0, "label_lwr_every": 4}
    built = {}
    for method in ("max_entropy", "teacher_free", "lwr", "label_embed"):
        args = arguments(tmp_path, label_method=method, **options)
        built[method] = LwALTrainer(build("bert"), args, train_dataset=rows_of("bert", 8)).label_objective
    assert built["max_entropy"].beta == built["lwr"].beta == built["label_embed"].beta == 0.25
    assert built["teacher_free"].alpha == 0.25
    assert {built[method].temperature for method in built if method != "max_entropy"} == {3.0}
    assert built["lwr"].every == 4
    args = arguments(tmp_path, label_method="static_label", label_static_model="some/model", lwal_scale="3")
    static = LwALTrainer(build("bert"), args, train_dataset=rows_of("bert", 8)).label_objective
    assert (static.source, static.scale) == ("some/model", 3.0)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"label_weight": -1.0}, "label_weight is -1.0, but it must be at least 0"),
        ({"label_temperature": 0.0}, "label_temperature is 0.0, but it must be above 0"),
        ({"label_lwr_every": 0}, "label_lwr_every is 0, but it must be at least 1"),
        ({"label_method": "two_hot"}, f"choose one of {', '.join(sorted(OBJECTIVES))}"),
    ],
)
def test_bad_settings_are_named(tmp_path, options, sentence):
    """A negative weight or a temperature of zero trains to NaN or away from the labels."""
    with pytest.raises(ValueError, match=sentence):
        LwALTrainer(build("bert"), arguments(tmp_path, **options), train_dataset=rows_of("bert", 8))


class SquaredError(Objective):
    """A method of one's own: squared distance of the probabilities to the one-hot label (Brier, 1950)."""

    citation: ClassVar[str] = "Brier (1950)"

    def loss(self, outputs, labels, context):
        probabilities = outputs["logits"].softmax(dim=1)
        wanted = torch.nn.functional.one_hot(labels.clamp(min=0), probabilities.shape[1])
        rows = (probabilities - wanted).square().sum(dim=1)
        return ObjectiveLoss(context.mean(torch.where(labels == -100, 0.0, rows), labels), {})


def test_a_method_of_ones_own_needs_no_other_file(tmp_path):
    """If a new method had to touch the trainer, users could not add one."""
    args = TrainingArguments(
        str(tmp_path), max_steps=60, learning_rate=3e-3, per_device_train_batch_size=32, report_to="none", use_cpu=True
    )
    trainer = LwALTrainer(build("bert"), args, objective=SquaredError(), train_dataset=rows_of("bert", 160))
    trainer.train()
    assert type(trainer.model).__name__ == "BertForSequenceClassification"
    assert trainer.evaluate(rows_of("bert", 100, seed=1))["eval_accuracy"] > 0.9


@pytest.mark.parametrize("method", sorted(OBJECTIVES))
def test_every_method_says_where_it_is_from(tmp_path, method):
    """A method without its source cannot be cited by a model that was trained with it."""
    args = arguments(tmp_path, label_method=method)
    assert LwALTrainer(build("bert"), args, train_dataset=rows_of("bert", 8)).label_objective.citation
    assert f"`{method}`" in Path(__file__).parents[1].joinpath("docs", "methods.md").read_text(encoding="utf-8")
