"""The callback that starts, refreshes and evaluates label vectors at the right moments of a training."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ..modeling.modeling_lwal import LwALPreTrainedModel
from .transformers_internals import HookedTrainer


class CentroidRefreshCallback(TrainerCallback):
    """Algorithm 1 inside the Trainer: start pass at train begin, refresh at step end, refresh before evaluation.

    A refresh belongs at the end of a step: before that step's evaluation and save, after its gradient.

    Args:
        trainer: the trainer whose class sums it commits.
    """

    def __init__(self, trainer: HookedTrainer) -> None:
        self.trainer: Any = trainer

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Run the start pass unless training resumes or the table is filled."""
        self.trainer.start_labels()

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Commit the step's class sums, then refresh for an evaluation or save that follows."""
        self.trainer.commit_step()
        if control.should_evaluate or control.should_save or control.should_training_stop:
            self.trainer.check_finite()
            self.trainer.refresh_for_evaluation(epoch_end=False)
        if control.should_training_stop:  # before the last save
            self.trainer.measure_scatter()

    def on_epoch_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Bring the ranks together, and refresh for the evaluation or save at the end of an epoch."""
        self.trainer.label_objective.merge_ranks()
        if control.should_evaluate or control.should_save:
            self.trainer.check_finite()
            self.trainer.refresh_for_evaluation(epoch_end=True)

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Measure how far rows lie from label vectors, where an earlier model was kept or the last step came early."""
        self.trainer.measure_scatter()

    def on_save(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Saving brought the label vectors of rank 0 up to date: do so on the other ranks."""
        model = self.trainer.core_model
        if isinstance(model, LwALPreTrainedModel):
            model.bring_labels_up_to_date()
        self.trainer.check_ranks()
