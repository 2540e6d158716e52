"""Evaluations of models from scratch stood at chance for long, since BatchNorm's statistics start at 0 and 1."""

import copy

import pytest
import torch
from tiny_models import tiny_config
from toy import separable_images
from transformers import AutoModelForImageClassification, TrainerCallback, set_seed

from hf_lwal import AutoModelForLwALClassification, LwALTrainer, LwALTrainingArguments
from hf_lwal.modeling.start import batch_norms
from hf_lwal.training.start_pass import StartPass

ROWS = separable_images(4, 64)
METHODS = {
    "default": {},
    "paper": {"lwal_preset": "paper"},
    "one_hot": {"label_method": "one_hot"},
    "one_hot from class means": {"label_method": "one_hot", "lwal_init": "class_means"},
    "label_smoothing": {"label_method": "label_smoothing"},
}


class AtBegin(TrainerCallback):
    """Keeps the model as the first step finds it."""

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == 0:
            self.model = copy.deepcopy(kwargs["model"])


def trained(folder, data=ROWS, model=None, **options):
    set_seed(0)
    config = tiny_config("resnet", num_labels=4)
    if model is None and options.get("label_method"):
        model = AutoModelForImageClassification.from_config(config)
    model = AutoModelForLwALClassification.from_config(config) if model is None else model
    defaults = {"report_to": "none", "use_cpu": True, "disable_tqdm": True, "save_strategy": "no", "max_steps": 1}
    args = LwALTrainingArguments(str(folder), **(defaults | {"per_device_train_batch_size": 16} | options))
    trainer, begin = LwALTrainer(model, args=args, train_dataset=data, eval_dataset=ROWS), AtBegin()
    trainer.add_callback(begin)
    trainer.train()
    return trainer, begin.model


def first_statistics(model):
    layer = batch_norms(model)[0]
    return layer.running_mean.clone(), layer.running_var.clone()


def by_hand(model):
    """Mean and variance of what the first BatchNorm layer normalises, over all rows."""
    seen, layer = [], batch_norms(model)[0]
    handle = layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    with torch.no_grad():
        pixels = ROWS.with_format("torch")["pixel_values"][:]
        getattr(model, "encoder", model)(pixel_values=pixels)
    handle.remove()
    values = seen[0].transpose(0, 1).flatten(1)
    return values.mean(1), values.var(1)


@pytest.mark.parametrize(
    ("kind", "method"), [*(("columns", method) for method in METHODS), ("list", "one_hot"), ("stream", "one_hot")]
)
def test_statistics_at_the_first_step(tmp_path, kind, method):
    """Of every method, the one-hot controls included, since a comparison of early evaluations must be fair."""
    data = {"columns": ROWS, "list": list(ROWS), "stream": ROWS.to_iterable_dataset()}[kind]
    _, begin = trained(tmp_path, data, **METHODS[method])
    assert {int(layer.num_batches_tracked) for layer in batch_norms(begin)} == {0}
    assert {layer.momentum for layer in batch_norms(begin)} == {0.1}
    assert all(layer.training for layer in batch_norms(begin))
    mean, variance = first_statistics(begin)
    expected_mean, expected_variance = by_hand(begin)
    assert torch.allclose(mean, expected_mean, atol=1e-3)
    assert torch.allclose(variance, expected_variance, rtol=0.05)


@pytest.mark.parametrize("method", ["default", "one_hot"])
def test_training_is_the_same(tmp_path, method, monkeypatch):
    """Training normalises by its batches: losses and weights must not depend on the statistics, nor on the pass."""
    options = METHODS[method] | {"logging_steps": 1, "max_steps": 3, "seed": 3}
    settled, _ = trained(tmp_path, **options)
    monkeypatch.setattr(StartPass, "_settle_batch_norms", lambda self, batches: False)
    fresh, begin = trained(tmp_path, **options)
    assert first_statistics(begin)[0].abs().max() == 0
    losses = [[log["loss"] for log in trainer.state.log_history if "loss" in log] for trainer in (settled, fresh)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    for name, weight in settled.core_model.named_parameters():
        assert torch.allclose(weight, dict(fresh.core_model.named_parameters())[name], atol=1e-6), name


@pytest.mark.parametrize("method", ["default", "one_hot"])
def test_statistics_that_were_learned_stay(tmp_path, method):
    """A pretrained backbone's statistics are part of what it knows."""
    trainer, _ = trained(tmp_path, **METHODS[method])
    model = trainer.core_model
    before = [part.clone() for part in first_statistics(model)]
    _, begin = trained(tmp_path, model=model, **METHODS[method])
    assert all(map(torch.equal, before, first_statistics(begin)))


def test_evaluation_before_much_was_trained(tmp_path):
    """After one step at a tiny rate the label vectors from the start tell these classes apart; 25 % is chance."""
    trainer, _ = trained(tmp_path, learning_rate=1e-6)
    assert trainer.evaluate()["eval_accuracy"] > 0.9
