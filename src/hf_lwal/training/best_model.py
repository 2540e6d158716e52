"""`BestModelTrainer`: which figure tells the best model, the best trial, and when the learning rate is to fall."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.optim.lr_scheduler import ReduceLROnPlateau
from transformers import EarlyStoppingCallback
from transformers.optimization import GreedyLR
from transformers.trainer_utils import SaveStrategy, TrainOutput

from ..metrics import AccuracyAndF1, accuracy_and_f1
from ..settings.training_args import FilledIn, metric_is_open
from .checkpoint_trainer import CheckpointTrainer

logger = logging.getLogger(__name__)


class BestModelTrainer(CheckpointTrainer):
    """The part of `LwALTrainer` that goes by accuracy where the user left open what makes a model the best.

    The arguments say "loss" then, whose meaning moves with the label vectors. They say "accuracy" while training
    lasts only, since they are the user's, who may give them to other trainers too.
    """

    @property
    def best_metric(self) -> str | None:
        """Name of the metric that tells the best model."""
        return "accuracy" if self._goes_by_accuracy else self.args.metric_for_best_model

    @property
    def _measures_accuracy(self) -> bool:
        ours = isinstance(self.compute_metrics, AccuracyAndF1) or self.compute_metrics is accuracy_and_f1
        return ours and not self.args.prediction_loss_only

    @property
    def _goes_by_accuracy(self) -> bool:
        return self._measures_accuracy and metric_is_open(self.args)

    @contextmanager
    def _metric_in_arguments(self) -> Iterator[None]:
        args = self.args
        before = args.metric_for_best_model, args.greater_is_better
        name = FilledIn("accuracy" if self._goes_by_accuracy else "loss")
        if metric_is_open(args) and args.metric_for_best_model != name:
            args.metric_for_best_model, args.greater_is_better = name, name == "accuracy"
        try:
            yield
        finally:
            if args.metric_for_best_model is name:
                args.metric_for_best_model, args.greater_is_better = before

    def train(self, *args: Any, **kwargs: Any) -> TrainOutput:
        """Train; arguments as in transformers."""
        self._say_what_is_best()
        with self._metric_in_arguments():
            return super().train(*args, **kwargs)

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Write the model card, which names the metric that told the best model; arguments as in `HubTrainer`."""
        with self._metric_in_arguments():
            super().create_model_card(*args, **kwargs)

    def _say_what_is_best(self) -> None:
        """Warn where the choice is not what the arguments say, or goes by a loss that cannot be compared."""
        stops_early = any(isinstance(callback, EarlyStoppingCallback) for callback in self.callback_handler.callbacks)
        chooses = self.args.load_best_model_at_end or self.args.save_strategy == SaveStrategy.BEST or stops_early
        if not chooses or not metric_is_open(self.args):
            return
        if self._goes_by_accuracy:
            if not isinstance(self.args.metric_for_best_model, FilledIn):
                logger.warning(
                    "The best model is the most accurate, not the one with the smallest loss, since plain "
                    "TrainingArguments do not tell whether metric_for_best_model='loss' was asked for: set it to "
                    "'eval_loss' to go by the loss."
                )
        elif self._lwal_model is not None and self.label_objective.refreshes_labels:
            logger.warning(
                "The best model is chosen by eval_loss, which is taken against label vectors that move, so its values "
                "are not comparable between steps: set metric_for_best_model to %s.",
                "'accuracy' and prediction_loss_only to False"
                if self.args.prediction_loss_only
                else "a figure that your compute_metrics returns",
            )

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        """Whether this is the best model so far; of equally good ones it is the later, which has seen more rows."""
        best = self.state.best_metric
        if super()._determine_best_metric(metrics, trial):
            return True
        name = f"eval_{str(self.args.metric_for_best_model).removeprefix('eval_')}"
        tied = best is not None and metrics.get(name) == best
        if tied and self.args.save_strategy != SaveStrategy.NO:
            self.state.best_global_step = self.state.global_step
        return tied

    def _evaluate(self, trial: Any, ignore_keys_for_eval: list[str] | None, skip_scheduler: bool = False) -> Any:
        """Evaluate in training, and step a scheduler that waits for a plateau by the figure it was made for."""
        if not isinstance(self.args.metric_for_best_model, FilledIn):
            return super()._evaluate(trial, ignore_keys_for_eval, skip_scheduler)
        metrics = super()._evaluate(trial, ignore_keys_for_eval, skip_scheduler=True)
        scheduler = self.lr_scheduler
        if not skip_scheduler and isinstance(scheduler, (ReduceLROnPlateau, GreedyLR)):
            name = "eval_loss" if scheduler.mode == "min" else f"eval_{self.args.metric_for_best_model}"
            if name not in metrics:
                raise KeyError(
                    f"{type(scheduler).__name__} waits for {name}, but the evaluation gives {', '.join(metrics)}: set "
                    "metric_for_best_model to one of them."
                )
            scheduler.step(metrics[name])
        return metrics

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate or predict; arguments and result as in transformers."""
        if isinstance(self.compute_metrics, AccuracyAndF1):
            self.compute_metrics.reset()  # an evaluation that was interrupted may have left rows
        return super().evaluation_loop(*args, **kwargs)

    def hyperparameter_search(
        self,
        hp_space: Callable[..., Any] | None = None,
        compute_objective: Callable[[dict[str, float]], float] | None = None,
        n_trials: int = 20,
        direction: str | list[str] | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Search; arguments as in transformers, but for two that depend on what is measured.

        Where the trainer reports accuracy and macro-F1 by itself, their sum is maximised; ``direction="minimize"``
        then means the evaluation loss, as it does in transformers without ``compute_metrics``. With metrics or an
        objective of your own, ``direction`` is "minimize" by default, as there.
        """
        if compute_objective is None and self._measures_accuracy and not isinstance(direction, list):
            direction = direction or "maximize"
            compute_objective = _sum_of_accuracies if direction == "maximize" else _loss
        return super().hyperparameter_search(
            hp_space, compute_objective, n_trials, direction or "minimize", *args, **kwargs
        )


def _sum_of_accuracies(metrics: dict[str, float]) -> float:
    return sum(value for name, value in metrics.items() if name.endswith(("_accuracy", "_f1_macro")))


def _loss(metrics: dict[str, float]) -> float:
    return sum(value for name, value in metrics.items() if name.endswith("_loss"))
