"""What makes a model the best: the accuracy where the user left it open, his own choice where he made one."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle

import numpy as np
import pytest
import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau
from toy import separable_text
from transformers import EarlyStoppingCallback, EvalPrediction, TrainingArguments, set_seed

from hf_lwal import AutoModelForLwALClassification, CentroidRefreshCallback, LwALTrainer, LwALTrainingArguments
from hf_lwal.metrics import AccuracyAndF1, accuracy_and_f1

LABELS = 4
TRAIN, TEST = separable_text(LABELS, 64, 0), separable_text(LABELS, 48, 1)
OPTIONS = {
    **{"max_steps": 3, "learning_rate": 1e-3, "per_device_train_batch_size": 16, "per_device_eval_batch_size": 16},
    **{"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1, "save_only_model": True},
    **{"load_best_model_at_end": True, "logging_steps": 10, "report_to": "none", "disable_tqdm": True},
    "dataloader_pin_memory": False,
}


def arguments(folder, kind=LwALTrainingArguments, **more):
    return kind(str(folder), **{**OPTIONS, **more})


def model_of(tiny_config):
    set_seed(0)
    return AutoModelForLwALClassification.from_config(tiny_config("bert", num_labels=LABELS))


class Scripted(LwALTrainer):
    """Evaluations give these figures instead of measured ones; the model is not asked."""

    accuracies: list[float]
    losses = (0.5, 0.4, 0.3, 0.2, 0.1)

    def evaluation_loop(self, *args, **kwargs):
        output = super().evaluation_loop(*args, **kwargs)
        at = self.state.global_step - 1
        if self.is_in_train:
            output.metrics["eval_loss"] = self.losses[at]
            if "eval_accuracy" in output.metrics:
                output.metrics["eval_accuracy"] = self.accuracies[at]
        return output


def best_step(tiny_config, args, accuracies=(0.2, 0.9, 0.3, 0.3, 0.3), **kwargs):
    trainer = Scripted(model_of(tiny_config), args, train_dataset=TRAIN, eval_dataset=TEST, **kwargs)
    trainer.accuracies = accuracies
    trainer.train()
    return trainer.state.best_global_step, trainer


COPIES = {
    "as given": lambda args: args,
    "replaced": lambda args: dataclasses.replace(args, seed=7),
    "replaced twice": lambda args: dataclasses.replace(dataclasses.replace(args, seed=7), seed=8),
    "copied": copy.deepcopy,
    "pickled": lambda args: pickle.loads(pickle.dumps(args)),
    "as json": lambda args: LwALTrainingArguments(**json.loads(args.to_json_string())),
}


@pytest.mark.parametrize("how", COPIES)
def test_copied_arguments_go_by_accuracy_still(tiny_config, tmp_path, how):
    """Cross-validation and notebooks copy arguments: prevents the moving loss from choosing in the second run."""
    args = COPIES[how](arguments(tmp_path))
    before = args.to_dict()
    assert best_step(tiny_config, args)[0] == 2  # by loss: 3
    assert args.to_dict() == before
    assert args.metric_for_best_model == "loss"  # so that other trainers take them, whose metrics have no accuracy


CHOICES = {
    "loss": ({"metric_for_best_model": "loss"}, 3),
    "eval_loss": ({"metric_for_best_model": "eval_loss"}, 3),
    "smaller is better": ({"greater_is_better": False}, 3),
    "larger is better": ({"greater_is_better": True}, 2),
    "accuracy": ({"metric_for_best_model": "accuracy"}, 2),
    "the worst accuracy": ({"metric_for_best_model": "accuracy", "greater_is_better": False}, 1),
    "no accuracy measured": ({"prediction_loss_only": True}, 3),
    "labels named": ({"label_names": ["labels"]}, 2),
    "batch by batch": ({"batch_eval_metrics": True}, 2),
    "not put together": ({"eval_do_concat_batches": False}, 2),
}


@pytest.mark.parametrize("how", CHOICES)
def test_a_choice_of_the_user_holds(tiny_config, tmp_path, how):
    """Prevents a metric that was asked for from being replaced, and a choice by a figure that is not measured."""
    options, step = CHOICES[how]
    args = arguments(tmp_path, **options)
    assert best_step(tiny_config, dataclasses.replace(args))[0] == step


def test_plain_arguments_go_by_accuracy_and_say_so(tiny_config, tmp_path, caplog):
    assert best_step(tiny_config, arguments(tmp_path, TrainingArguments))[0] == 2
    assert caplog.text.count("set it to 'eval_loss' to go by the loss") == 1
    caplog.clear()
    assert best_step(tiny_config, arguments(tmp_path, TrainingArguments, metric_for_best_model="eval_loss"))[0] == 3
    assert best_step(tiny_config, arguments(tmp_path))[0] == 2
    assert "eval_loss" not in caplog.text


def test_own_metrics_are_chosen_by_a_loss_that_moves_aloud(tiny_config, tmp_path, caplog):
    own = {"compute_metrics": lambda prediction: {"mine": 1.0}}
    assert best_step(tiny_config, arguments(tmp_path), **own)[0] == 3
    assert caplog.text.count("set metric_for_best_model to a figure that your compute_metrics returns") == 1
    caplog.clear()
    assert best_step(tiny_config, arguments(tmp_path, metric_for_best_model="mine"), **own)[0] == 3  # tied: the last
    assert "label vectors that move" not in caplog.text


def test_arguments_are_shared_by_trainers_with_and_without_metrics(tiny_config, tmp_path):
    """Prevents the second trainer from being asked for an accuracy that its metrics lack."""
    args = arguments(tmp_path)
    assert best_step(tiny_config, args)[0] == 2
    assert best_step(tiny_config, args, compute_metrics=lambda prediction: {"mine": 1.0})[0] == 3


@pytest.mark.parametrize(("accuracies", "step"), [((0.9, 0.9, 0.3), 2), ((1.0, 1.0, 1.0), 3), ((0.2, 0.9, 0.3), 2)])
def test_the_later_of_tied_checkpoints_is_kept(tiny_config, tmp_path, accuracies, step):
    """It has seen more rows; with few rows to evaluate ties are common, and the earliest did worse on unseen ones."""
    at, trainer = best_step(tiny_config, arguments(tmp_path, save_total_limit=1), accuracies)
    assert at == step
    assert trainer.state.best_model_checkpoint.endswith(f"checkpoint-{step}")


def test_save_strategy_best_saves_the_later_of_tied_ones(tiny_config, tmp_path):
    options = {"save_strategy": "best", "metric_for_best_model": "accuracy"}
    at, trainer = best_step(tiny_config, arguments(tmp_path, **options), (0.9, 0.9, 0.3))
    assert at == 2
    assert trainer.state.best_model_checkpoint.endswith("checkpoint-2")


def test_early_stopping_counts_by_accuracy(tiny_config, tmp_path):
    """The loss falls to the end; the accuracy does not grow after the first step."""
    stop = {"callbacks": [EarlyStoppingCallback(early_stopping_patience=2)]}
    _, trainer = best_step(tiny_config, arguments(tmp_path, max_steps=5), (0.9, 0.3, 0.3, 0.3, 0.3), **stop)
    assert trainer.state.global_step == 3


@pytest.mark.parametrize("mode", ["min", "max", "by name"])
def test_a_plateau_is_that_of_the_figure_it_was_made_for(tiny_config, tmp_path, mode):
    """A scheduler that waits for a smaller loss must not be fed a growing accuracy, which ends the training."""
    model = model_of(tiny_config)
    mine = torch.optim.AdamW(model.parameters(), lr=1e-3)
    plan = None if mode == "by name" else ReduceLROnPlateau(mine, mode=mode, patience=0)
    args = arguments(tmp_path, max_steps=5, lr_scheduler_type="reduce_lr_on_plateau" if plan is None else "linear")
    if plan is None:
        args.lr_scheduler_kwargs = {"patience": 0}
    optimizers = {} if plan is None else {"optimizers": (mine, plan)}
    trainer = Scripted(model, args, train_dataset=TRAIN, eval_dataset=TEST, **optimizers)
    trainer.accuracies = (0.2, 0.4, 0.6, 0.8, 0.9)
    trainer.train()
    assert trainer.lr_scheduler.best == (0.9 if mode == "max" else 0.1)
    assert trainer.optimizer.param_groups[0]["lr"] == 1e-3


def predictions(rows, tuple_of=False):
    generator = np.random.default_rng(0)
    logits, labels = generator.normal(size=(rows, LABELS)), generator.integers(0, LABELS, rows)
    labels[::5] = -100
    return (logits, np.zeros((rows, 2, 3))) if tuple_of else logits, labels


@pytest.mark.parametrize("size", [1, 3, 4, 5, 8, 16])
@pytest.mark.parametrize("tuple_of", [False, True])
def test_every_form_of_predictions_gives_the_same_figures(size, tuple_of):
    """16 rows in batches of any size, as many batches as rows in one among them, against scikit-learn."""
    from sklearn.metrics import accuracy_score, f1_score

    values, labels = predictions(16, tuple_of)
    logits = values[0] if tuple_of else values
    kept = labels != -100
    expected = {
        "accuracy": accuracy_score(labels[kept], logits.argmax(1)[kept]),
        "f1_macro": f1_score(labels[kept], logits.argmax(1)[kept], average="macro"),
    }
    parts = [slice(start, start + size) for start in range(0, 16, size)]
    batches = [tuple(part[rows] for part in values) if tuple_of else values[rows] for rows in parts]
    assert accuracy_and_f1(EvalPrediction(values, labels)) == pytest.approx(expected)
    assert accuracy_and_f1(EvalPrediction(batches, [labels[rows] for rows in parts])) == pytest.approx(expected)
    ids = [logits[rows].argmax(1) for rows in parts]  # as preprocess_logits_for_metrics often leaves them
    assert accuracy_and_f1(EvalPrediction(ids, [labels[rows] for rows in parts])) == pytest.approx(expected)
    one_by_one = AccuracyAndF1()
    for _ in range(2):  # nothing stays from the evaluation before
        for batch, rows in zip(batches, parts, strict=True):
            tensors = tuple(map(torch.tensor, batch)) if tuple_of else torch.tensor(batch)
            figures = one_by_one(EvalPrediction(tensors, torch.tensor(labels[rows])), compute_result=rows is parts[-1])
        assert figures == pytest.approx(expected)


@pytest.mark.parametrize("size", [7, 8])
def test_evaluations_batch_by_batch_and_not_put_together(tiny_config, tmp_path, size):
    """64 rows in batches of 8 are as many batches as rows in one; 7 leave a smaller last batch."""
    figures = []
    for more in ({}, {"batch_eval_metrics": True}, {"eval_do_concat_batches": False}):
        args = arguments(tmp_path, per_device_eval_batch_size=size, **more)
        trainer = LwALTrainer(model_of(tiny_config), args, train_dataset=TRAIN, eval_dataset=TRAIN)
        measured = trainer.evaluate()
        figures.append((measured["eval_accuracy"], measured["eval_f1_macro"]))
        assert trainer.predict(TRAIN).metrics["test_accuracy"] == pytest.approx(measured["eval_accuracy"])
    assert figures[1:] == [pytest.approx(figures[0])] * 2


class Counting(CentroidRefreshCallback):
    """A refresh callback of the user's own."""


CALLBACKS = {
    "class": lambda trainer: [CentroidRefreshCallback],
    "instance": lambda trainer: [CentroidRefreshCallback(trainer)],
    "two": lambda trainer: [CentroidRefreshCallback(trainer), CentroidRefreshCallback],
    "of another trainer": lambda trainer: [CentroidRefreshCallback(None)],
    "subclass": lambda trainer: [Counting(trainer)],
}


@pytest.mark.parametrize("how", CALLBACKS)
@pytest.mark.parametrize("when", ["at the start", "later"])
def test_a_refresh_callback_added_by_hand_counts_no_step_twice(tiny_config, tmp_path, how, when):
    args = arguments(tmp_path, eval_strategy="no", save_strategy="no", load_best_model_at_end=False)
    early = {"callbacks": CALLBACKS[how](None)} if when == "at the start" else {}
    trainer = LwALTrainer(model_of(tiny_config), args, train_dataset=TRAIN, **early)
    for callback in CALLBACKS[how](trainer) if when == "later" else []:
        trainer.add_callback(callback)
    kept = [call for call in trainer.callback_handler.callbacks if isinstance(call, CentroidRefreshCallback)]
    assert [(type(call), call.trainer) for call in kept] == [
        (Counting if how == "subclass" else CentroidRefreshCallback, trainer)
    ]
    if how == "two":
        trainer.train()
        assert trainer.model.optimizer_step == 3
