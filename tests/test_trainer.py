"""`LwALTrainer`: Algorithm 1 inside the Trainer, and everything users expect of a Trainer."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from datasets import ClassLabel, Dataset, IterableDataset
from releases import RENAMES_VIT
from safetensors.torch import load_file
from toy import separable_images, separable_text
from transformers import (
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
    TrainingArguments,
    set_seed,
)

from hf_lwal import AutoModelForLwALClassification, LwALTrainer, LwALTrainingArguments
from hf_lwal.data.labels import rows_per_class
from hf_lwal.functional import class_sums, pairwise_distances, pull_loss, refreshed_label_vectors, repel_loss
from hf_lwal.modeling.algorithm import RunningMeans
from hf_lwal.modeling.start import batch_norms

LABELS = 5
TRAIN, TEST = separable_text(LABELS, 320, 0), separable_text(LABELS, 200, 1)


def lwal(tiny_config, name="bert", **kwargs):
    set_seed(0)
    return AutoModelForLwALClassification.from_config(tiny_config(name, num_labels=LABELS), **kwargs)


def stock(tiny_config, name="bert"):
    set_seed(0)
    auto = AutoModelForSequenceClassification if name == "bert" else AutoModelForImageClassification
    return auto.from_config(tiny_config(name, num_labels=LABELS))


def arguments(folder, **kwargs):
    defaults = {
        "per_device_train_batch_size": 16,
        "per_device_eval_batch_size": 64,
        "max_steps": 8,
        "learning_rate": 2e-3,
        "report_to": "none",
        "disable_tqdm": True,
        "save_strategy": "no",
        "logging_steps": 4,
        "dataloader_pin_memory": False,
    }
    return LwALTrainingArguments(str(folder), **{**defaults, **kwargs})


def table_state(model):
    return {key: value.clone() for key, value in model.label_table.state_dict().items()}


@pytest.mark.parametrize("method", ["lwal", "paper", "one_hot", "one_hot*"])
def test_every_method_learns(tiny_config, tmp_path, method):
    """From chance to over 95 % on separable data, with weights (and label vectors) that moved."""
    options = {
        "lwal": {},
        "paper": {"lwal_preset": "paper", "per_device_train_batch_size": 50},
        "one_hot": {"label_method": "one_hot"},
        "one_hot*": {"label_method": "one_hot", "lwal_init": "class_means"},
    }[method]
    model = stock(tiny_config) if method.startswith("one_hot") else lwal(tiny_config)
    before = {key: value.clone() for key, value in model.state_dict().items() if key.startswith(("bert", "encoder"))}
    trainer = LwALTrainer(model, arguments(tmp_path, max_steps=80, **options), train_dataset=TRAIN, eval_dataset=TEST)
    if method != "one_hot*":
        assert trainer.evaluate()["eval_accuracy"] < 0.6
    trainer.train()
    metrics = trainer.evaluate()
    assert metrics["eval_accuracy"] > 0.95
    assert metrics["eval_f1_macro"] > 0.95
    moved = [
        key
        for key, value in trainer.model.state_dict().items()
        if key in before and not torch.equal(value, before[key])
    ]
    assert len(moved) > 10
    assert trainer.predict(TEST).predictions.shape == (200, LABELS)
    if method in ("lwal", "paper"):
        assert trainer.model.label_table.step == 80
        assert trainer.model.label_tracking == "forward"
    else:
        assert type(trainer.model).__name__ == "BertForSequenceClassification"


@pytest.mark.parametrize(("micro", "accumulation"), [(8, 2), (4, 4), (3, 5)])
@pytest.mark.parametrize("method", ["lwal", "one_hot", "one_hot*"])
def test_accumulation_changes_nothing(tiny_config, tmp_path, micro, accumulation, method):
    """Stock BERT multiplies gradients by the accumulation steps; class means must not depend on the split either."""
    results = []
    for batch, steps in ((micro * accumulation, 1), (micro, accumulation)):
        options = (
            {}
            if method == "lwal"
            else {"label_method": "one_hot", "lwal_init": "class_means" if "*" in method else None}
        )
        model = lwal(tiny_config) if method == "lwal" else stock(tiny_config)
        args = arguments(
            tmp_path,
            per_device_train_batch_size=batch,
            gradient_accumulation_steps=steps,
            optim="sgd",
            learning_rate=0.05,
            max_steps=6,
            logging_steps=1,
            **options,
        )
        # A third of the labels is missing, unevenly over micro-batches: averages of averages would show.
        data = TRAIN.map(lambda row, i: {"labels": -100 if i % 3 == 0 and i % 7 else row["labels"]}, with_indices=True)
        trainer = LwALTrainer(model, args, train_dataset=data)
        trainer.train()
        losses = [log["loss"] for log in trainer.state.log_history if "loss" in log]
        results.append((losses, {**trainer.model.state_dict()}))
    (losses, weights), (split_losses, split_weights) = results
    assert losses == pytest.approx(split_losses, rel=1e-4)
    for key, value in weights.items():
        assert torch.allclose(value.double(), split_weights[key].double(), rtol=1e-4, atol=2e-5), key


def reference_paper_run(model, batches, labels, every, warmup, weight, lr):
    """Algorithm 1 written out: refresh with the batch centroids, gradient through them, plain SGD."""
    vectors = torch.eye(LABELS, model.config.embedding_dim)
    losses = []
    for step, (batch, label) in enumerate(zip(batches, labels, strict=True)):
        embeddings = model.encoder(**batch).logits
        due = step >= warmup and (step - warmup) % every == 0
        used = vectors
        if due:
            used = refreshed_label_vectors(vectors, torch.zeros(LABELS), *class_sums(embeddings, label, LABELS), 0)
        loss = pull_loss(pairwise_distances(embeddings, used, label), label)
        loss = loss + weight * repel_loss(embeddings, label, LABELS) if due else loss
        for parameter in model.encoder.parameters():
            parameter.grad = None
        loss.backward()
        with torch.no_grad():
            for parameter in model.encoder.parameters():
                if parameter.grad is not None:
                    parameter.sub_(lr * parameter.grad)
        vectors = used.detach()
        losses.append(loss.item())
    return losses, vectors


@pytest.mark.parametrize(("every", "warmup", "weight"), [(1, 0, 0.0), (1, 0, 10.0), (2, 1, 10.0)])
def test_paper_preset_is_algorithm_1(tiny_config, tmp_path, every, warmup, weight):
    """Off-by-one refreshes, a stale table or a missing gradient through the centroids all look like training."""
    lr, steps = 0.01, 5
    model = lwal(tiny_config)
    args = arguments(
        tmp_path,
        lwal_preset="paper",
        lwal_refresh_every=every,
        lwal_warmup_steps=warmup,
        lwal_repel_weight=weight,
        max_steps=steps,
        optim="sgd",
        learning_rate=lr,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        logging_steps=1,
    )
    trainer = LwALTrainer(model, args, train_dataset=TRAIN)
    seen = []
    compute = trainer.compute_loss

    def record(inner, inputs, *rest, **more):
        seen.append({key: value.clone() for key, value in inputs.items()})
        return compute(inner, inputs, *rest, **more)

    trainer.compute_loss = record
    reference = AutoModelForLwALClassification.from_config(model.config)
    reference.load_state_dict(model.state_dict())
    trainer.train()
    batches = [{k: v for k, v in batch.items() if k != "labels"} for batch in seen]
    losses, vectors = reference_paper_run(
        reference, batches, [batch["labels"] for batch in seen], every, warmup, weight, lr
    )
    assert model.config.embedding_dim == LABELS
    logged = [log["loss"] for log in trainer.state.log_history if "loss" in log]
    assert logged == pytest.approx(losses, abs=2e-5)
    assert torch.allclose(model.label_table.label_vectors, vectors, atol=1e-5)
    for ours, theirs in zip(model.encoder.parameters(), reference.encoder.parameters(), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)


def test_running_means_and_reanchoring(tiny_config, tmp_path):
    """Class means follow their formula; with the offset re-anchored a refresh alone moves no label vector."""
    model = lwal(tiny_config)
    args = arguments(tmp_path, max_steps=1, learning_rate=0.0, lwal_memory=7, lwal_follow_drift=0.0)
    trainer = LwALTrainer(model, args, train_dataset=TRAIN)
    kept = {}
    start = trainer.start_labels

    def remember():
        start()
        kept.update(table_state(model))

    trainer.start_labels = remember
    batch = []
    compute = trainer.compute_loss
    trainer.compute_loss = lambda inner, inputs, *a, **k: (batch.append(inputs), compute(inner, inputs, *a, **k))[1]
    trainer.train()
    with torch.no_grad():
        inputs = {k: v for k, v in batch[0].items() if k != "labels"}
        features = model(**inputs).features  # no dropout in this model
    for label in range(LABELS):
        rows = features[batch[0]["labels"] == label]
        remembered = min(int(kept["counts"][label]), 7)
        mean = (remembered * kept["class_features"][label] + rows.sum(0)) / (remembered + len(rows))
        assert torch.allclose(model.label_table.class_features[label], mean, atol=1e-5)
        assert model.label_table.counts[label] == kept["counts"][label] + len(rows)
    assert not torch.allclose(model.label_table.class_features, kept["class_features"], atol=1e-4)
    assert torch.allclose(model.label_table.label_vectors, kept["label_vectors"], atol=3e-5)


@pytest.mark.parametrize("reanchor", [True, False])
def test_label_vectors_follow_a_common_drift(tiny_config, reanchor):
    """Where the features of all rows move alike, a batch of few labels moves the label vectors of all."""
    model = lwal(tiny_config)
    table, head = model.label_table, model.head
    model.initialize_labels([TRAIN.with_format("torch")[:100]], progress=False)
    before = table_state(model)
    vectors = table.derived(head).detach()
    drift = torch.randn(table.class_features.shape[1])
    labels = torch.tensor([0, 0, 3])
    rows = before["class_features"][labels] + torch.tensor([[0.5], [-0.5], [0.0]]) + drift
    table.pending_sums.add_(table.sums_of(rows, labels))
    RunningMeans.refresh(table, head, memory=50, reanchor=reanchor, follow=1.0)
    with torch.no_grad():
        moved = head(drift.unsqueeze(0)) - head(torch.zeros(1, len(drift)))
    assert torch.allclose(table.class_features, before["class_features"] + drift, atol=1e-5)
    torch.testing.assert_close(table.derived(head), vectors + moved, rtol=0, atol=1e-5 * float(vectors.abs().max()))
    assert table.counts.tolist() == (before["counts"] + torch.tensor([2, 0, 0, 1, 0])).tolist()


def test_drift_is_followed_in_training(tiny_config, tmp_path):
    """The setting reaches the table from the arguments, is saved with the model, and only then does something."""
    ends = {}
    for share in (0.0, 0.5):
        model = lwal(tiny_config)
        args = arguments(tmp_path, max_steps=6, lwal_follow_drift=share, seed=3)
        LwALTrainer(model, args, train_dataset=TRAIN).train()
        ends[share] = model.label_table.class_features.clone()
        model.save_pretrained(tmp_path / "saved")
        assert AutoModelForLwALClassification.from_pretrained(tmp_path / "saved").config.follow_drift == share
    assert not torch.allclose(ends[0.0], ends[0.5], atol=1e-4)


def test_refresh_every_and_warmup(tiny_config, tmp_path):
    """k and w count optimizer steps; k = 0 keeps the means of the start."""
    counts = {}
    for every, warmup in ((1, 0), (3, 2), (0, 0)):
        model = lwal(tiny_config)
        options = {"lwal_refresh_every": every, "lwal_warmup_steps": warmup, "max_steps": 7, "lwal_init_samples": 4}
        LwALTrainer(model, arguments(tmp_path, **options), train_dataset=TRAIN).train()
        counts[every] = int(model.label_table.counts.sum()), int(model.label_table.pending_sums[:, -1].sum())
    assert counts[1] == (20 + 7 * 16, 0)
    assert counts[3] == (20 + 6 * 16, 16)  # refreshed after steps 2 and 5
    assert counts[0] == (20, 0)  # sums that no refresh takes do not pile up


def test_start_rows_are_read_batch_by_batch(tiny_config, tmp_path):
    """Sixteen pictures of each of a thousand labels do not fit into memory."""
    read = []
    pictures = Dataset.from_dict({"labels": TRAIN["labels"], "row": list(range(len(TRAIN)))})

    def transform(batch):
        read.extend(batch["row"])
        return {"pixel_values": [np.zeros((3, 32, 32), np.float32) for _ in batch["row"]], "labels": batch["labels"]}

    args = arguments(tmp_path, remove_unused_columns=False, per_device_eval_batch_size=16)
    trainer = LwALTrainer(lwal(tiny_config, "vit"), args, train_dataset=pictures.with_transform(transform))
    batches = trainer._training_rows.of_each_class(16)
    assert read == []
    first = next(iter(batches))
    assert first["pixel_values"].shape == (16, 3, 32, 32)
    assert len(read) == 16
    assert len(batches) == LABELS


def test_plain_training_arguments_stock_model_and_default_metrics(tiny_config, tmp_path):
    """Two changed names: a stock model and plain TrainingArguments must do the default preset."""
    args = TrainingArguments(
        str(tmp_path),
        per_device_train_batch_size=16,
        max_steps=10,
        report_to="none",
        disable_tqdm=True,
        save_strategy="no",
    )
    trainer = LwALTrainer(stock(tiny_config), args, train_dataset=TRAIN, eval_dataset=TEST)
    assert type(trainer.model).__name__ == "LwALForSequenceClassification"
    trainer.train()
    assert trainer.model.label_table.seen.all()
    assert {"eval_accuracy", "eval_f1_macro", "eval_loss"} <= trainer.evaluate().keys()
    trainer.save_model()
    assert AutoModelForLwALClassification.from_pretrained(tmp_path).config.num_labels == LABELS


def test_logs(tiny_config, tmp_path):
    """Loss terms and the state of the table must reach whatever reads the trainer's logs."""
    args = arguments(tmp_path, lwal_repel_weight=2.0, max_steps=8)
    trainer = LwALTrainer(lwal(tiny_config), args, train_dataset=TRAIN)
    trainer.train()
    start = trainer.state.log_history[0]
    assert start["start_samples"] == 16 * LABELS
    assert start["start_seconds"] > 0
    assert start["start_scale"] > 0
    logs = [log for log in trainer.state.log_history if "loss" in log]
    assert len(logs) == 2
    for log in logs:
        assert log["loss"] == pytest.approx(log["pull_loss"] + 2.0 * log["repel_loss"], abs=1e-4)
        assert log["classes_seen"] == 1.0
        assert log["label_scale"] > 0
    assert logs[1]["label_drift"] > 0


def test_logs_reach_tensorboard(tiny_config, tmp_path):
    """Numbers of an unusual type are dropped by the writers without an error."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    args = arguments(tmp_path, report_to="tensorboard", max_steps=4)
    LwALTrainer(lwal(tiny_config), args, train_dataset=TRAIN).train()
    folder = next(path.parent for path in tmp_path.rglob("events.out.*"))
    events = EventAccumulator(str(folder)).Reload()
    assert {"train/label_scale", "train/pull_loss", "train/classes_seen", "train/label_drift"} <= set(
        events.Tags()["scalars"]
    )


def test_resume_is_exact(tiny_config, tmp_path):
    """State outside the checkpoint (pending sums, steps, scale) would make a resumed run another run."""
    options = {
        "max_steps": 9,
        "save_strategy": "steps",
        "save_steps": 1,
        "lwal_refresh_every": 2,
        "save_total_limit": None,
    }
    whole = LwALTrainer(lwal(tiny_config), arguments(tmp_path / "whole", **options), train_dataset=TRAIN)
    whole.train()
    expected = whole.model.state_dict()
    for step in (1, 4, 8):
        trainer = LwALTrainer(lwal(tiny_config), arguments(tmp_path / "resumed", **options), train_dataset=TRAIN)
        trainer.train(resume_from_checkpoint=str(tmp_path / "whole" / f"checkpoint-{step}"))
        for key, value in trainer.model.state_dict().items():
            assert torch.equal(value, expected[key]), (step, key)


@pytest.mark.parametrize("method", ["lwal", "one_hot"])
def test_checkpoints_with_names_of_older_versions(tiny_config, tmp_path, caplog, method):
    """ViT's layers are written under older names: transformers' Trainer goes on with those of the fresh model."""
    rows, test = separable_images(LABELS, 64, 0), separable_images(LABELS, 40, 1)
    options = {"label_method": method, "max_steps": 4, "save_strategy": "steps", "save_steps": 1}
    options |= {"eval_strategy": "steps", "eval_steps": 1, "metric_for_best_model": "first", "learning_rate": 1e-2}

    def trainer_of(folder, seed, **more):
        set_seed(seed)
        model = AutoModelForImageClassification.from_config(tiny_config("vit", num_labels=LABELS))
        steps = iter(range(10))
        return LwALTrainer(
            model,
            arguments(tmp_path / folder, **options, **more),
            train_dataset=rows,
            eval_dataset=test,
            compute_metrics=lambda _: {"first": -next(steps)},
        )

    whole = trainer_of("whole", 0)
    whole.train()
    expected = {name: value.clone() for name, value in whole.model.state_dict().items()}
    stored = load_file(tmp_path / "whole" / "checkpoint-2" / "model.safetensors")
    assert (set(expected) <= set(stored)) != RENAMES_VIT
    resumed = trainer_of("resumed", 1)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    assert all(torch.equal(value, expected[name]) for name, value in resumed.model.state_dict().items())
    assert "missing keys" not in caplog.text

    best = trainer_of("best", 0, load_best_model_at_end=True)
    best.train()
    assert best.state.best_model_checkpoint.endswith("checkpoint-1")
    reloaded = type(best.model).from_pretrained(best.state.best_model_checkpoint).state_dict()
    found = {name for name, value in best.model.state_dict().items() if not torch.equal(value, reloaded[name])}
    assert found <= {"classifier.row_scatter"}  # measured when the best model is kept
    assert not all(torch.equal(value, expected[name]) for name, value in best.model.state_dict().items())


def test_load_best_model_at_end_follows_accuracy(tiny_config, tmp_path):
    """eval_loss moves with the label vectors: the best model is the most accurate, and its table comes with it."""
    args = arguments(
        tmp_path,
        max_steps=24,
        eval_strategy="steps",
        eval_steps=8,
        save_strategy="steps",
        save_steps=8,
        load_best_model_at_end=True,
    )
    trainer = LwALTrainer(lwal(tiny_config), args, train_dataset=TRAIN, eval_dataset=TEST)
    trainer.train()
    assert trainer.best_metric == "accuracy"
    best = AutoModelForLwALClassification.from_pretrained(trainer.state.best_model_checkpoint)
    for key, value in table_state(trainer.model).items():  # an earlier model than the last is measured when it is kept
        assert torch.equal(value, best.label_table.state_dict()[key]) or key == "row_scatter"
    assert (trainer.model.label_table.row_scatter > 0).all()
    logged = {log["step"]: log["eval_accuracy"] for log in trainer.state.log_history if "eval_accuracy" in log}
    assert trainer.evaluate()["eval_accuracy"] == max(logged.values()) == trainer.state.best_metric
    chosen = arguments(
        tmp_path,
        load_best_model_at_end=True,
        metric_for_best_model="loss",
        save_strategy="steps",
        eval_strategy="steps",
    )
    trainer = LwALTrainer(lwal(tiny_config), chosen, train_dataset=TRAIN, eval_dataset=TEST)
    assert trainer.best_metric == "loss"


def test_a_checkpoint_evaluates_as_the_trainer_did(tiny_config, tmp_path):
    """What is saved must predict as what was evaluated, with BatchNorm's evaluation-mode label vectors too."""
    data, test = separable_images(LABELS, 200, 0), separable_images(LABELS, 100, 1)
    args = arguments(
        tmp_path,
        max_steps=8,
        eval_strategy="steps",
        eval_steps=4,
        save_strategy="steps",
        save_steps=4,
        learning_rate=5e-3,
    )
    trainer = LwALTrainer(lwal(tiny_config, "resnet"), args, train_dataset=data, eval_dataset=test)
    trainer.train()
    for log in [log for log in trainer.state.log_history if "eval_loss" in log]:
        model = AutoModelForLwALClassification.from_pretrained(tmp_path / f"checkpoint-{log['step']}")
        again = LwALTrainer(model, arguments(tmp_path / "again"), eval_dataset=test).evaluate()
        assert again["eval_accuracy"] == log["eval_accuracy"]
        assert again["eval_loss"] == pytest.approx(log["eval_loss"], rel=1e-4)


def test_start_rows_are_mixed_where_the_data_set_is_not():
    """A folder of pictures per label lists them by label; BatchNorm would see batches of one label."""
    for labels in (np.repeat([0, 1, 2], 50), np.repeat(["a", "b", "c"], 50)):
        rows = rows_per_class(labels, 16, seed=0)
        assert sorted(np.unique(labels[rows], return_counts=True)[1]) == [16] * 3
        assert all(len(set(labels[rows[start : start + 12]])) == 3 for start in range(0, 48, 12))
    mixed = np.tile([2, 0, 1], 50)
    rows = rows_per_class(mixed, 16, seed=0)
    assert rows == sorted(rows)


@pytest.mark.parametrize("method", ["lwal", "one_hot"])
def test_the_start_normalises_as_the_training_will(tiny_config, tmp_path, method):
    """A training step does not look at the statistics that came with the weights, so the start must not either."""
    data, starts = separable_images(LABELS, 100, 0), []
    for shift in (0.0, 3.0):
        model = lwal(tiny_config, "resnet") if method == "lwal" else stock(tiny_config, "resnet")
        for layer in batch_norms(model):
            layer.running_mean.add_(shift)
            layer.num_batches_tracked.fill_(1000)
        args = arguments(tmp_path, max_steps=1, label_method=method, lwal_init="class_means", learning_rate=0.0)
        trainer = LwALTrainer(model, args, train_dataset=data)
        start = trainer.label_objective.start
        trainer.label_objective.start = lambda model, samples, *rest, start=start: (
            starts.append(samples.values) or start(model, samples, *rest)
        )
        trainer.train()
    assert torch.equal(*starts)
    assert float(starts[0].std()) > 0


def test_evaluation_frequency_does_not_change_training(tiny_config, tmp_path):
    """A refresh before evaluation that leaked into the running means would make training depend on eval_steps."""
    data = separable_images(LABELS, 200, 0)
    states = []
    for eval_steps in (2, 6):
        args = arguments(tmp_path, max_steps=6, eval_strategy="steps", eval_steps=eval_steps)
        trainer = LwALTrainer(
            lwal(tiny_config, "resnet"), args, train_dataset=data, eval_dataset=data.select(range(20))
        )
        trainer.train()
        states.append(trainer.model.state_dict())
    assert all(torch.equal(value, states[1][key]) for key, value in states[0].items())


def test_refresh_before_evaluation_only_where_wanted(tiny_config, tmp_path):
    """`evaluate()` outside training must not read the training set, nor a model without BatchNorm pay for it."""
    calls = []
    for name, wanted, expected in (("bert", "auto", 0), ("bert", "evaluate", 4), ("bert", "no", 0), ("bert", "3", 2)):
        args = arguments(tmp_path, max_steps=8, eval_strategy="steps", eval_steps=2, lwal_eval_refresh=wanted)
        trainer = LwALTrainer(lwal(tiny_config, name), args, train_dataset=TRAIN, eval_dataset=TEST.select(range(8)))
        collect = trainer._training_rows.collect
        trainer._training_rows.collect = lambda batches, text, *more, collect=collect, **kwargs: (
            calls.append(text) or collect(batches, text, *more, **kwargs)
        )
        trainer.train()
        trainer.evaluate()
        assert calls.count("Evaluation means") == expected, (name, wanted)
        assert calls.count("Class means") == 1
        calls.clear()


def test_set_transform_and_kept_columns(tiny_config, tmp_path):
    """Image scripts keep raw columns and transform on access: the start pass must go through the same transform."""
    raw = separable_images(LABELS, 120, 0).rename_columns({"pixel_values": "image", "labels": "label"})
    raw = raw.cast_column("label", ClassLabel(names=list("abcde")))

    def transform(rows):
        return {"pixel_values": [np.asarray(image, np.float32) for image in rows["image"]], "labels": rows["label"]}

    raw.set_transform(transform)

    def collate(rows):
        return {
            "pixel_values": torch.tensor(np.stack([row["pixel_values"] for row in rows])),
            "labels": torch.tensor([row["labels"] for row in rows]),
        }

    args = arguments(tmp_path, remove_unused_columns=False, max_steps=4)
    trainer = LwALTrainer(lwal(tiny_config, "vit"), args, data_collator=collate, train_dataset=raw, eval_dataset=raw)
    trainer.train()
    assert trainer.state.log_history[0]["start_samples"] == 16 * LABELS
    assert trainer.evaluate()["eval_accuracy"] >= 0.2


@pytest.mark.parametrize("kind", ["iterable", "torch"])
def test_other_data_sets(tiny_config, tmp_path, kind):
    """Streams and plain PyTorch data sets have no label column to look at."""
    data = IterableDataset.from_generator(lambda: iter(TRAIN)) if kind == "iterable" else list(TRAIN)
    args = arguments(tmp_path, max_steps=40)
    trainer = LwALTrainer(lwal(tiny_config), args, train_dataset=data, eval_dataset=TEST)
    trainer.train()
    assert trainer.state.log_history[0]["start_samples"] == 16 * LABELS
    assert trainer.evaluate()["eval_accuracy"] > 0.9


def test_classes_that_come_late(tiny_config, tmp_path, caplog):
    """A class without a start row is named, waits for its first mean, and is learned then."""
    late = TRAIN.filter(lambda row: row["labels"] < 4).select(range(200))
    model = lwal(tiny_config)
    LwALTrainer(model, arguments(tmp_path, max_steps=10), train_dataset=late).train()
    assert "No training row was found for 1 of 5 labels (LABEL_4)" in caplog.text
    assert model.label_table.seen.tolist() == [True] * 4 + [False]
    trainer = LwALTrainer(model, arguments(tmp_path, max_steps=80), train_dataset=TRAIN, eval_dataset=TEST)
    trainer.train()
    assert model.label_table.seen.all()
    assert trainer.evaluate()["eval_accuracy"] > 0.9


def test_model_init_and_two_trainings(tiny_config, tmp_path):
    """`model_init` rebuilds the model inside train(): nothing may hold on to the first one."""
    trainer = LwALTrainer(
        args=arguments(tmp_path, max_steps=5), model_init=lambda: lwal(tiny_config), train_dataset=TRAIN
    )
    trainer.train()
    first = trainer.model.state_dict()
    trainer.train()
    assert all(torch.equal(value, first[key]) for key, value in trainer.model.state_dict().items())
    assert trainer.model.label_table.step == 5


def test_evaluation_and_prediction_without_training_data(tiny_config, tmp_path):
    """Evaluation-only scripts have no train_dataset; test sets have no labels."""
    model = lwal(tiny_config)
    LwALTrainer(model, arguments(tmp_path, max_steps=5), train_dataset=TRAIN).train()
    trainer = LwALTrainer(model, arguments(tmp_path), eval_dataset=TEST)
    state = table_state(model)
    assert trainer.evaluate()["eval_accuracy"] > 0.2
    output = trainer.predict(TEST.remove_columns("labels"))
    assert output.predictions.shape == (200, LABELS)
    assert output.metrics.keys().isdisjoint({"test_loss", "test_accuracy"})
    assert all(torch.equal(value, state[key]) for key, value in table_state(model).items())


def test_own_metrics_own_loss_and_class_weights(tiny_config, tmp_path):
    """A user's loss replaces the pull loss only; weights and smoothing must reach the loss."""
    losses = {}
    options = {"max_steps": 1, "logging_steps": 1, "lwal_repel_weight": 1.0}

    def run(name, compute_loss_func=None, **more):
        trainer = LwALTrainer(
            lwal(tiny_config),
            arguments(tmp_path, **options, **more),
            train_dataset=TRAIN,
            eval_dataset=TEST,
            compute_loss_func=compute_loss_func,
            compute_metrics=lambda prediction: {"rows": len(prediction.label_ids)},
        )
        trainer.train()
        log = next(log for log in trainer.state.log_history if "loss" in log)
        losses[name] = log["loss"], log["pull_loss"], log["repel_loss"]
        assert trainer.evaluate()["eval_rows"] == 200

    run("plain")
    run("own", compute_loss_func=lambda outputs, labels, num_items_in_batch=None: outputs.logits.sum() * 0.0 + 3.0)
    run("weights", lwal_class_weights="2,2,2,2,2")
    run("smooth", label_smoothing_factor=0.3)
    assert losses["own"][1] == pytest.approx(3.0)
    assert losses["own"][2] == pytest.approx(losses["plain"][2], rel=1e-5)
    assert losses["weights"][1] == pytest.approx(2 * losses["plain"][1], rel=1e-4)
    assert losses["smooth"][1] > losses["plain"][1]


def test_string_labels(tiny_config, tmp_path):
    """Names instead of ids are mapped through label2id; a name it does not know is an error that says so."""
    model = lwal(tiny_config)
    model.config.id2label = dict(enumerate(["a", "b", "c", "d", "e"]))
    names = TRAIN.map(lambda row: {"name": "abcde"[row["labels"]]}, remove_columns="labels").rename_column(
        "name", "label"
    )
    trainer = LwALTrainer(model, arguments(tmp_path, max_steps=40), train_dataset=names, eval_dataset=TEST)
    trainer.train()
    assert trainer.evaluate()["eval_accuracy"] > 0.9
    wrong = names.map(lambda row, i: {"label": "z" if i == 7 else row["label"]}, with_indices=True)
    with pytest.raises(ValueError, match=r"Label 'z' in row 7 is not in the model's label2id, which knows 'a', 'b'"):
        LwALTrainer(model, arguments(tmp_path), train_dataset=wrong).train()


def test_bad_labels_are_named(tiny_config, tmp_path):
    """An index error on a GPU names neither the label nor the row."""
    bad = TRAIN.map(lambda row, i: {"labels": 9 if i == 11 else row["labels"]}, with_indices=True)
    with pytest.raises(ValueError, match=r"Label 9 in row 11 is outside 0…4.*num_labels=10"):
        LwALTrainer(lwal(tiny_config), arguments(tmp_path), train_dataset=bad).train()
    with pytest.raises(ValueError, match=r"Label 9 in row \d+ of a batch is outside 0…4"):
        LwALTrainer(lwal(tiny_config), arguments(tmp_path), train_dataset=list(bad)).train()
    negative = TEST.map(lambda row: {"labels": -1})
    with pytest.raises(ValueError, match=r"Label -1 in row 0 of a batch.*remove the label column"):
        LwALTrainer(lwal(tiny_config), arguments(tmp_path), eval_dataset=negative).evaluate()
    soft = TRAIN.map(lambda row: {"labels": [0.5, 0.5, 0.0, 0.0, 0.0]})
    with pytest.raises(ValueError, match=r"one class id"):
        LwALTrainer(lwal(tiny_config), arguments(tmp_path), train_dataset=soft).train()
    with pytest.raises(ValueError, match=r"needs labels, but"):
        LwALTrainer(lwal(tiny_config), arguments(tmp_path), train_dataset=TRAIN.remove_columns("labels")).train()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"lwal_preset": "papers"}, "Unknown lwal_preset 'papers': choose one of default, paper"),
        ({"label_method": "two_hot"}, "Unknown label_method 'two_hot': choose one of label_embed, label_smoothing"),
        ({"lwal_scale": "big"}, "lwal_scale is 'big', but it must be auto or a positive number"),
        ({"lwal_scale": "-3"}, "lwal_scale is '-3'"),
        ({"lwal_memory": -1}, "memory is -1, but it cannot be negative"),
        ({"lwal_follow_drift": 1.5}, "follow_drift is 1.5, but it is a share, from 0 to 1"),
        (
            {"lwal_follow_drift": 0.5, "lwal_refresh_every": 0},
            "refresh_every 0 never refreshes them: set follow_drift to 0",
        ),
        (
            {"lwal_follow_drift": 0.5, "lwal_preset": "paper"},
            "preset 'paper' keeps none: set follow_drift to 0",
        ),
        ({"lwal_space": "heads"}, "Unknown lwal_space 'heads'"),
        ({"lwal_init": "one_hot"}, "lwal_init='one_hot' needs lwal_space='embeddings'"),
        ({"lwal_init": "random"}, "Unknown lwal_init 'random'"),
        ({"lwal_init_samples": 0}, "lwal_init_samples is 0"),
        ({"lwal_eval_refresh": "often"}, "lwal_eval_refresh is 'often'"),
        ({"lwal_class_weights": "1,0"}, "every weight must be above 0"),
    ],
)
def test_bad_arguments(tiny_config, tmp_path, options, sentence):
    """Each wrong value is named with what is allowed, before anything is trained."""
    with pytest.raises(ValueError, match=sentence):
        LwALTrainer(lwal(tiny_config), arguments(tmp_path, **options), train_dataset=TRAIN)


def test_a_trained_table_is_never_discarded(tiny_config, tmp_path):
    """Another preset or one-hot training on a trained LwAL model would silently throw its table away."""
    model = lwal(tiny_config)
    LwALTrainer(model, arguments(tmp_path, max_steps=3), train_dataset=TRAIN).train()
    with pytest.raises(ValueError, match=r"label table was trained with .*preset='default'.*preset='paper'"):
        LwALTrainer(model, arguments(tmp_path, lwal_preset="paper"), train_dataset=TRAIN)
    with pytest.raises(ValueError, match=r"one-hot training would discard"):
        LwALTrainer(model, arguments(tmp_path, label_method="one_hot"), train_dataset=TRAIN)
    fresh = LwALTrainer(lwal(tiny_config), arguments(tmp_path, label_method="one_hot"), train_dataset=TRAIN)
    assert type(fresh.model).__name__ == "BertForSequenceClassification"
    assert fresh.model.classifier.out_features == LABELS


def test_a_saved_preset_is_kept(tiny_config, tmp_path):
    """Continuing a paper-preset checkpoint with plain arguments must continue with the paper's algorithm."""
    model = lwal(tiny_config)
    LwALTrainer(model, arguments(tmp_path, lwal_preset="paper:lwal10+rpl", max_steps=2), train_dataset=TRAIN).train()
    model.save_pretrained(tmp_path)
    again = AutoModelForLwALClassification.from_pretrained(tmp_path)
    assert (again.config.preset, again.config.embedding_dim, again.config.repel_weight) == ("paper", 50, 10.0)
    trainer = LwALTrainer(again, arguments(tmp_path, max_steps=2), train_dataset=TRAIN)
    trainer.train()
    assert "start_samples" not in trainer.state.log_history[0]


def test_a_scale_far_off_is_reported(tiny_config, tmp_path, caplog):
    """A scale that flattens or saturates the softmax trains nothing and looks like a bad learning rate."""
    LwALTrainer(lwal(tiny_config), arguments(tmp_path, lwal_scale="1e6", max_steps=1), train_dataset=TRAIN).train()
    assert "lwal_scale is 1e+06" in caplog.text
    assert "Use lwal_scale='auto'" in caplog.text


def test_non_finite_embeddings_stop_with_a_remedy(tiny_config, tmp_path):
    """NaN reaches the running means and stays there for ever, while the NaN filter hides it from the log."""
    model = lwal(tiny_config)
    trainer = LwALTrainer(model, arguments(tmp_path, max_steps=8, logging_steps=4), train_dataset=TRAIN)
    trainer.start_labels()
    means = model.label_table.class_features.clone()
    with torch.no_grad():
        model.encoder.bert.embeddings.word_embeddings.weight.fill_(float("nan"))
    with pytest.raises(FloatingPointError, match=r"last 4 batches contain NaN or infinity: lower the learning rate"):
        trainer.train()
    assert torch.equal(model.label_table.class_features, means)


def test_one_hot_from_class_means_is_the_nearest_mean_classifier(tiny_config, tmp_path):
    """The control's head start must be the very one that label vectors get: nearest class mean before any step."""
    trainer = LwALTrainer(
        stock(tiny_config),
        arguments(tmp_path, label_method="one_hot", lwal_init="class_means", max_steps=1, learning_rate=0.0),
        train_dataset=TRAIN,
    )
    trainer.train()
    ours = lwal(tiny_config)
    ours.encoder.bert.load_state_dict(trainer.model.bert.state_dict())
    batch = TRAIN.with_format("torch")[:]
    samples = ours.initialize_labels([batch], progress=False)
    means = torch.stack([samples.values[samples.labels == c].mean(0) for c in range(LABELS)])
    chosen = trainer._training_rows.of_each_class(16)
    values = ours.initialize_labels(chosen, progress=False)
    means = torch.stack([values.values[values.labels == c].mean(0) for c in range(LABELS)])
    test = TEST.with_format("torch")[:]
    with torch.no_grad():
        features = ours.eval()(input_ids=test["input_ids"], attention_mask=test["attention_mask"]).features
        nearest = torch.cdist(features, means).argmin(1)
        logits = trainer.model.eval()(input_ids=test["input_ids"], attention_mask=test["attention_mask"]).logits
    assert (logits.argmax(1) == nearest).float().mean() > 0.99


def test_arguments_survive_json_and_command_line(tmp_path):
    """Every field must be usable from the command line and readable back from the saved arguments."""
    from transformers import HfArgumentParser

    line = ["--output_dir", str(tmp_path), "--lwal_preset", "paper", "--lwal_memory", "9", "--lwal_offset", "false"]
    (args,) = HfArgumentParser(LwALTrainingArguments).parse_args_into_dataclasses(line)
    assert (args.lwal_preset, args.lwal_memory, args.lwal_offset) == ("paper", 9, False)
    assert json.loads(args.to_json_string())["lwal_memory"] == 9
    assert args.resolve_lwal().config["offset"] is False


def test_data_loader_workers(tiny_config, tmp_path):
    """Workers receive a copy of the collator: it must not drag the trainer and the model along."""
    import pickle

    trainer = LwALTrainer(
        lwal(tiny_config), arguments(tmp_path, dataloader_num_workers=1, max_steps=3), train_dataset=TRAIN
    )
    assert len(pickle.dumps(trainer.data_collator)) < 5000
    trainer.train()
    assert trainer.model.label_table.step == 3


def test_class_weights_taken_away_are_gone(tiny_config, tmp_path):
    """The weights of an earlier training, or trial, must not weigh the next one."""

    def loss_of(trainer, weights):
        trainer.model = trainer.model_wrapped = lwal(tiny_config)
        trainer.args.lwal_class_weights = weights
        trainer.train()
        return next(log["pull_loss"] for log in trainer.state.log_history if "pull_loss" in log)

    args = arguments(tmp_path, max_steps=1, logging_steps=1)
    trainer = LwALTrainer(lwal(tiny_config), args, train_dataset=TRAIN)
    plain, doubled, balanced, after = (loss_of(trainer, weights) for weights in (None, "2,2,2,2,2", "balanced", None))
    assert doubled == pytest.approx(2 * plain, rel=1e-4)
    assert balanced == pytest.approx(plain, rel=1e-4)
    assert after == plain


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"label_method": "one_hot", "label_weight": 0.3}, ["label_weight=0.3"]),
        ({"label_method": "one_hot", "lwal_memory": 7, "lwal_scale": "3"}, ["lwal_memory=7", "lwal_scale='3'"]),
        ({"label_method": "one_hot", "lwal_initial_head": "whitened"}, ["lwal_initial_head='whitened'"]),
        ({"label_method": "max_entropy", "label_temperature": 3.0}, ["label_temperature=3.0"]),
        ({"label_method": "label_smoothing", "label_weight": 0.2}, ["label_weight=0.2"]),
        ({"label_temperature": 3.0, "label_lwr_every": 2}, ["label_lwr_every=2", "label_temperature=3.0"]),
        ({"label_method": "static_label", "label_smoothing_factor": 0.1}, ["label_smoothing_factor=0.1"]),
        ({"label_method": "teacher_free", "lwal_exact_accumulation": True}, ["lwal_exact_accumulation=True"]),
        ({"label_method": "one_hot", "lwal_init": "class_means", "lwal_initial_head": "whitened"}, []),
        ({"label_method": "static_label", "lwal_scale": "3", "lwal_class_weights": "1,1,1,1,2"}, []),
        ({"lwal_preset": "paper:lwr2k", "label_weight": 0.5, "label_temperature": 2.0}, []),
        ({"lwal_memory": 7, "lwal_init_samples": 4, "label_smoothing_factor": 0.1}, []),
    ],
)
def test_settings_that_mean_nothing_to_the_method_are_said(tiny_config, tmp_path, caplog, options, said):
    """One line, and none where every setting counts: a setting that is ignored in silence is believed to act."""
    LwALTrainer(lwal(tiny_config), arguments(tmp_path, **options), train_dataset=TRAIN)
    lines = [record.getMessage() for record in caplog.records if "means nothing" in record.getMessage()]
    assert len(lines) == bool(said)
    assert not said or lines[0].startswith(", ".join(said) + ": means nothing")
