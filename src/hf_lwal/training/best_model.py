"""Which figure tells the best model, the best trial, and when the learning rate is to fall."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch.optim.lr_scheduler import ReduceLROnPlateau
from transformers import EarlyStoppingCallback
from transformers.optimization import GreedyLR
from transformers.trainer_utils import SaveStrategy

from ..metrics import AccuracyAndF1, accuracy_and_f1
from ..settings.training_args import FilledIn, metric_is_open
from .transformers_internals import TrainerPart

logger = logging.getLogger(__name__)


class BestModel(TrainerPart):
    """Goes by accuracy where the user left open what makes a model the best.

    The arguments say "loss" then, whose meaning moves with the label vectors. They say "accuracy" while training
    lasts only, since they are the user's, who may give them to other trainers too.
    """

    @property
    def measures_accuracy(self) -> bool:
        """Whether the trainer reports accuracy by itself."""
        measured = self.trainer.compute_metrics
        ours = isinstance(measured, AccuracyAndF1) or measured is accuracy_and_f1
        return ours and not self.trainer.args.prediction_loss_only

    @property
    def goes_by_accuracy(self) -> bool:
        """Whether the accuracy tells the best model, which nobody asked for."""
        return self.measures_accuracy and metric_is_open(self.trainer.args)

    @contextmanager
    def in_arguments(self) -> Iterator[None]:
        """Let the arguments name the metric that tells the best model."""
        args = self.trainer.args
        before = args.metric_for_best_model, args.greater_is_better
        name = FilledIn("accuracy" if self.goes_by_accuracy else "loss")
        if metric_is_open(args) and args.metric_for_best_model != name:
            args.metric_for_best_model, args.greater_is_better = name, name == "accuracy"
        try:
            yield
        finally:
            if args.metric_for_best_model is name:
                args.metric_for_best_model, args.greater_is_better = before

    def say(self) -> None:
        """Warn where the choice is not what the arguments say, or goes by a loss that cannot be compared."""
        trainer, args = self.trainer, self.trainer.args
        callbacks = trainer.callback_handler.callbacks
        stops_early = any(isinstance(callback, EarlyStoppingCallback) for callback in callbacks)
        chooses = args.load_best_model_at_end or args.save_strategy == SaveStrategy.BEST or stops_early
        if not chooses or not metric_is_open(args):
            return
        if self.goes_by_accuracy:
            if not isinstance(args.metric_for_best_model, FilledIn):
                logger.warning(
                    "The best model is the most accurate, not the one with the smallest loss, since plain "
                    "TrainingArguments do not tell whether metric_for_best_model='loss' was asked for: set it to "
                    "'eval_loss' to go by the loss."
                )
        elif trainer.lwal_model is not None and trainer.label_objective.refreshes_labels:
            logger.warning(
                "The best model is chosen by eval_loss, which is taken against label vectors that move, so its values "
                "are not comparable between steps: set metric_for_best_model to %s.",
                "'accuracy' and prediction_loss_only to False"
                if args.prediction_loss_only
                else "a figure that your compute_metrics returns",
            )

    def is_best(self, metrics: dict[str, float], found: bool) -> bool:
        """Of equally good models it is the later, which has seen more rows."""
        state, args = self.trainer.state, self.trainer.args
        name = f"eval_{str(args.metric_for_best_model).removeprefix('eval_')}"
        tied = not found and metrics.get(name) == state.best_metric
        if tied and args.save_strategy != SaveStrategy.NO:
            state.best_global_step = state.global_step
        return found or tied

    def steps_plateau(self) -> bool:
        """Whether the metric in the arguments is this part's, and not the one that the scheduler was made for."""
        return isinstance(self.trainer.args.metric_for_best_model, FilledIn)

    def step_plateau(self, metrics: dict[str, float]) -> None:
        """Step a scheduler that waits for a plateau by the figure it was made for."""
        scheduler = self.trainer.lr_scheduler
        if not isinstance(scheduler, (ReduceLROnPlateau, GreedyLR)):
            return
        name = "eval_loss" if scheduler.mode == "min" else f"eval_{self.trainer.args.metric_for_best_model}"
        if name not in metrics:
            raise KeyError(
                f"{type(scheduler).__name__} waits for {name}, but the evaluation gives {', '.join(metrics)}: set "
                "metric_for_best_model to one of them."
            )
        scheduler.step(metrics[name])

    def search_by(
        self, compute_objective: Callable[[dict[str, float]], float] | None, direction: str | list[str] | None
    ) -> tuple[Callable[[dict[str, float]], float] | None, str | list[str]]:
        """Objective and direction of a search, as `LwALTrainer.hyperparameter_search` describes them."""
        if compute_objective is None and self.measures_accuracy and not isinstance(direction, list):
            direction = direction or "maximize"
            compute_objective = _sum_of_accuracies if direction == "maximize" else _loss
        return compute_objective, direction or "minimize"


def _sum_of_accuracies(metrics: dict[str, float]) -> float:
    return sum(value for name, value in metrics.items() if name.endswith(("_accuracy", "_f1_macro")))


def _loss(metrics: dict[str, float]) -> float:
    return sum(value for name, value in metrics.items() if name.endswith("_loss"))
