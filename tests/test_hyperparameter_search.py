"""`hyperparameter_search`: transformers sets the arguments of a trial after it has built the trial's model."""

from __future__ import annotations

import optuna
import pytest
import torch
from test_trainer import TEST, TRAIN, arguments, lwal, stock

from hf_lwal import LwALForSequenceClassification, LwALTrainer


class Recorder(LwALTrainer):
    """Remembers, at every loss, what the model really trains with."""

    trained_with: dict[int, set]

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        core, seen = self.core_model, {"optimizer": self.optimizer is not None}
        if isinstance(core, LwALForSequenceClassification):
            config = core.config
            seen |= {"memory": config.memory, "k": config.refresh_every, "repel": config.repel_weight}
            seen |= {"offset": isinstance(core.label_table.offset_bias, torch.nn.Parameter)}
        seen |= {"method": type(self.label_objective).__name__, "scale": self.lwal_settings.scale}
        if model.training and self._trial is not None:
            self.trained_with.setdefault(self._trial.number, set()).add(tuple(sorted(seen.items())))
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)


def search(tiny_config, tmp_path, trials, model=lwal, pruner=None, **options):
    """Run the given trials, {knob: value} each; returns the trainer, the study's trials and the best run."""
    studies = []

    class Study(optuna.pruners.BasePruner):
        """Keeps the study, which transformers does not return."""

        def prune(self, study, trial):
            studies.append(study)
            return pruner is not None and pruner(trial)

    settings = {"max_steps": 4, "eval_strategy": "steps", "eval_steps": 2, **options}
    trainer = Recorder(
        args=arguments(tmp_path, **settings),
        model_init=lambda: model(tiny_config),
        train_dataset=TRAIN,
        eval_dataset=TEST,
    )
    trainer.trained_with = {}
    best = trainer.hyperparameter_search(
        lambda trial: trials[trial.number],
        lambda metrics: metrics["eval_accuracy"],
        len(trials),
        "maximize",
        "optuna",
        pruner=Study(),
    )
    return trainer, (studies[0].trials if studies else []), best


def facts(trainer, number):
    """What a trial trained with; it must not have changed on the way."""
    (seen,) = trainer.trained_with[number]
    return dict(seen)


@pytest.mark.parametrize("model", [lwal, stock])
def test_every_trial_trains_with_its_own_settings(tiny_config, tmp_path, model):
    """Settings of one trial in the model of the next make a search that compares nothing, and says so nowhere."""
    trials = [
        {"lwal_memory": 7, "lwal_refresh_every": 2},
        {"label_method": "one_hot"},
        {"lwal_preset": "default", "lwal_repel_weight": 0.5, "lwal_offset": False, "lwal_scale": 4.0},
        {"learning_rate": 1e-3},
    ]
    trainer, done, best = search(tiny_config, tmp_path, trials, model)
    assert [trial.state.name for trial in done] == ["COMPLETE"] * 4
    usual = {"method": "LwAL", "memory": 50, "k": 1, "repel": 0.0, "offset": True, "scale": None, "optimizer": True}
    assert facts(trainer, 0) == {**usual, "memory": 7, "k": 2}
    assert facts(trainer, 1) == {"method": "OneHot", "scale": None, "optimizer": True}
    assert facts(trainer, 2) == {**usual, "repel": 0.5, "offset": False, "scale": 4.0}
    assert facts(trainer, 3) == usual, "what a trial leaves out is the user's own again, not the trial's before"
    accuracies = [trial.value for trial in done]
    assert all(0.0 <= accuracy <= 1.0 for accuracy in accuracies)
    assert best.objective == max(accuracies)
    assert accuracies[int(best.run_id)] == max(accuracies)


def test_a_trial_gives_what_its_settings_give_alone(tiny_config, tmp_path):
    """Traces of the trials before, in the model or in random states, would show in the second trial's accuracy."""
    settings = {"lwal_memory": 7, "learning_rate": 1e-3}
    _, done, _ = search(tiny_config, tmp_path, [{"label_method": "one_hot"}, settings])
    args = arguments(tmp_path, max_steps=4, **settings)
    alone = LwALTrainer(args=args, model_init=lambda: lwal(tiny_config), train_dataset=TRAIN, eval_dataset=TEST)
    alone.train()
    assert done[1].value == alone.evaluate()["eval_accuracy"]


def test_without_evaluations_in_training_the_end_counts(tiny_config, tmp_path):
    """transformers evaluates then itself, unless something else already answers to the name of its figure."""
    _, _, best = search(tiny_config, tmp_path, [{"lwal_memory": 7}], eval_strategy="no")
    assert 0.0 <= best.objective <= 1.0


def test_a_pruned_trial_does_not_harm_the_next(tiny_config, tmp_path):
    trials = [{"lwal_memory": 5}, {"label_method": "one_hot"}, {"lwal_memory": 9}]
    trainer, done, best = search(tiny_config, tmp_path, trials, pruner=lambda trial: trial.number == 1)
    assert [trial.state.name for trial in done] == ["COMPLETE", "PRUNED", "COMPLETE"]
    assert facts(trainer, 2)["memory"] == 9
    assert best.run_id in ("0", "2")


def test_settings_written_into_the_arguments_afterwards_train(tiny_config, tmp_path):
    """The usual last act of a search: the best settings go into the arguments, and the trainer trains once more."""
    trainer, _, _ = search(tiny_config, tmp_path, [{"label_method": "one_hot"}])
    for name, value in {"label_method": "lwal", "lwal_memory": 11}.items():
        setattr(trainer.args, name, value)
    trainer.train()
    assert trainer.core_model.config.memory == 11
    assert trainer.core_model.label_table.step == 4


def test_a_value_that_makes_no_sense_is_said(tiny_config, tmp_path):
    with pytest.raises(ValueError, match="Unknown lwal_preset 'papre'"):
        search(tiny_config, tmp_path, [{"lwal_preset": "papre"}])


class Tried(LwALTrainer):
    """Trials are given their figures instead of training for them."""

    figures: list[dict[str, float]]

    def train(self, *args, trial=None, **kwargs):
        self.objective = self.compute_objective(self.figures[trial.number])


MEASURED = [
    {"eval_loss": 0.1, "eval_accuracy": 0.2, "eval_f1_macro": 0.2},
    {"eval_loss": 0.9, "eval_accuracy": 0.9, "eval_f1_macro": 0.8},
    {"eval_loss": 0.5, "eval_accuracy": 0.5, "eval_f1_macro": 0.5},
]


def mine(prediction):
    return {"error": 0.0}


@pytest.mark.parametrize(
    ("given", "searched", "best"),
    [
        ({}, {}, 1),
        ({}, {"direction": "maximize"}, 1),
        ({}, {"direction": "minimize"}, 0),  # without compute_metrics the objective of transformers is the loss
        ({}, {"compute_objective": lambda metrics: metrics["eval_loss"]}, 0),
        ({}, {"compute_objective": lambda metrics: metrics["eval_loss"], "direction": "maximize"}, 1),
        ({"prediction_loss_only": True}, {}, 0),
        ({"compute_metrics": mine}, {}, 0),
        ({"compute_metrics": mine}, {"direction": "maximize"}, 2),
    ],
)
def test_the_best_trial_without_and_with_a_direction(tiny_config, tmp_path, given, searched, best):
    """Without a direction accuracy and macro-F1 were minimised: the trial that learned nothing won."""
    own = {name: value for name, value in given.items() if name == "compute_metrics"}
    options = {name: value for name, value in given.items() if name not in own}
    trainer = Tried(args=arguments(tmp_path, **options), model_init=lambda: stock(tiny_config), **own)
    figures = MEASURED
    if options:
        figures = [{"eval_loss": entry["eval_loss"]} for entry in MEASURED]
    if own:
        figures = [{"eval_loss": 0.0, "eval_error": error} for error in (0.1, 0.2, 0.3)]
    trainer.figures = figures
    found = trainer.hyperparameter_search(lambda trial: {}, n_trials=3, backend="optuna", **searched)
    assert int(found.run_id) == best
