"""A progress bar for comparisons: one short line per evaluation instead of the whole log entry."""

from __future__ import annotations

import logging
from typing import Any

from transformers import ProgressCallback, Trainer, TrainerControl, TrainerState, TrainingArguments

logger = logging.getLogger(__name__)


class AccuracyProgress(ProgressCallback):
    """The trainer's progress bar, with the accuracy after each evaluation."""

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Write the accuracy of an evaluation above the bar; other entries stay in the trainer's log."""
        bar: Any = self.training_bar  # typed as None where the parent creates it
        if bar is not None and logs and "eval_accuracy" in logs:
            bar.write(f"step {state.global_step}: accuracy {100.0 * logs['eval_accuracy']:.1f} %")


def show_accuracy(trainer: Trainer) -> None:
    """Let a trainer's bar show accuracies, unless bars are switched off; no bar where no warning would be shown."""
    if trainer.pop_callback(ProgressCallback) is not None and logger.isEnabledFor(logging.WARNING):
        trainer.add_callback(AccuracyProgress)
