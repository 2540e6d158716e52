"""A progress bar for comparisons: the accuracy of each evaluation instead of the whole log entry."""

from __future__ import annotations

import logging
from typing import Any

from transformers import PrinterCallback, ProgressCallback, Trainer, TrainerControl, TrainerState, TrainingArguments

logger = logging.getLogger(__name__)


class AccuracyProgress(ProgressCallback):
    """The trainer's progress bar, with the accuracy after each evaluation.

    Args:
        one_line: the bar is all there is, with the last accuracy at its end; else each accuracy has a line of its own
            above it, as it has where no bar is shown, and an evaluation a bar of its own.
        start: what the accuracy before the first step is that of, which then has a line of its own.
    """

    def __init__(self, one_line: bool = False, start: str | None = None) -> None:
        super().__init__()
        self.one_line = one_line
        self.start = start

    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Count the batches of an evaluation: not below the bar of a training that is to be the only one."""
        if not self.one_line or self.training_bar is None:
            super().on_prediction_step(args, state, control, **kwargs)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Show the accuracy of an evaluation; other entries stay in the trainer's log."""
        bar: Any = self.training_bar  # typed as None where the parent creates it
        if bar is None or not logs or "eval_accuracy" not in logs:
            return
        step, accuracy = state.global_step, f"accuracy {100.0 * logs['eval_accuracy']:.1f} %"
        if step == 0 and self.start is not None:
            bar.write(f"{self.start}: {accuracy}")
        elif self.one_line and not bar.disable:
            bar.set_postfix_str(f"step {step}: {accuracy}")
        else:
            bar.write(f"step {step}: {accuracy}")


def show_accuracy(trainer: Trainer, one_line: bool = False, start: str | None = None) -> None:
    """Let a trainer's bar show accuracies, unless bars are switched off; no bar where no warning would be shown.

    Args:
        trainer: not yet training.
        one_line: nothing but one line, also where transformers would print every entry of the log instead of a bar.
        start: what the model is before its first step, where that is a method of its own.
    """
    if one_line:
        trainer.remove_callback(PrinterCallback)
    if trainer.pop_callback(ProgressCallback) is not None and logger.isEnabledFor(logging.WARNING):
        trainer.add_callback(AccuracyProgress(one_line, start))
