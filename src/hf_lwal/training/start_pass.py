"""The start of label vectors from data, and the refreshes before evaluations: passes over a few rows of each class."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from transformers.tokenization_utils_base import PreTrainedTokenizerBase

from ..data.start_budget import FORWARD_ROWS, rows_per_class_within
from ..modeling.distributed import broadcast_, first_rank_says
from ..modeling.inference import max_length_of
from ..modeling.modeling_lwal import LwALPreTrainedModel
from ..modeling.name_start import check_descriptions, choose_names, name_batches, with_names
from ..modeling.probe_start import prompt_rows
from ..modeling.start import (
    StartSamples,
    batch_norms,
    classes_are_close,
    has_fresh_batch_norms,
    settle_fresh_batch_norms,
    warn_of_alike_rows,
    warn_of_missing_classes,
)
from .training_rows import Batches, TrainingRows
from .transformers_internals import HookedTrainer, TrainerPart
from .zero import parts_of_start

logger = logging.getLogger(__name__)

CLOSE_CLASSES_ROWS = 1000
"""Of all labels, read before each evaluation where classes lie close together; at least 8 of each."""


SCATTER_SHARE = 0.02
"""Of the work of the training, for measuring how far rows lie from label vectors at its end."""
LEAST_SCATTER_ROWS, MOST_SCATTER_ROWS = 64, 1000
"""Rows of that measurement, which is one number over all classes."""


class StartPass(TrainerPart):
    """Runs the start pass where it is wanted, and refreshes label vectors before evaluations.

    Args:
        trainer: whose model starts.
        rows: of its training.
    """

    def __init__(self, trainer: HookedTrainer, rows: TrainingRows) -> None:
        super().__init__(trainer)
        self.rows = rows
        self._last_refresh = 0

    def check(self) -> None:
        """Raise ValueError for descriptions of labels that the settings cannot mean; remember earlier refreshes."""
        trainer = self.trainer
        if trainer.label_objective.counts_label_names:
            check_descriptions(trainer.lwal_settings.label_names, trainer.label_names_by_id(), trainer.task_of_model)
        refreshes = [entry["step"] for entry in trainer.state.log_history if "eval_refresh_seconds" in entry]
        self._last_refresh = max(refreshes, default=0)

    def run(self) -> None:
        """Train begin of a training that does not resume."""
        trainer, model, objective = self.trainer, self.trainer.core_model, self.trainer.label_objective
        wanted, fresh = objective.wants_start(model), has_fresh_batch_norms(model)
        if not wanted and not fresh:
            return
        batches = self.rows.of_each_class(self._rows_per_class())
        settled = fresh and self._settle_batch_norms(batches)
        if not wanted:
            return
        if not first_rank_says(len(batches) > 0, trainer.args.device):
            logger.warning("No row could be read for the start pass: label vectors start with the first rows seen.")
            return
        samples = self.rows.collect(batches, "Class means", as_in_training=not settled)
        counted = self._with_label_names(samples)
        began = time.perf_counter()
        with trainer.writing(*parts_of_start(model)):
            numbers = objective.start(model, counted, self._peak_learning_rate())
        trainer.check_ranks()
        seconds = counted.seconds + time.perf_counter() - began
        warn_of_alike_rows(samples)
        if isinstance(model, LwALPreTrainedModel):
            of_batch = model.label_update.of_batch
            model.config.close_classes = not of_batch and classes_are_close(samples, model.config.num_labels)
        warn_of_missing_classes(counted.labels, trainer.label_names_by_id())
        _warn_of_scale(trainer.lwal_settings.scale, numbers)
        if counted.names:
            numbers = {**numbers, "start_label_names": counted.names}
        trainer.log({"start_samples": len(samples.labels), "start_seconds": round(seconds, 3), **numbers})

    def refresh_for_evaluation(self, epoch_end: bool) -> None:
        """Write evaluation-mode label vectors where the settings want it.

        Args:
            epoch_end: whether an epoch has just ended.
        """
        trainer, settings = self.trainer, self.trainer.lwal_settings
        model = trainer.lwal_model
        if model is None or not self._wants_refresh(model, settings.eval_refresh, epoch_end):
            return
        self._last_refresh = trainer.state.global_step
        close, per_class = model.config.close_classes, settings.eval_refresh_samples
        if close and settings.eval_refresh == "auto":  # a line in the log told of it, but nobody asked for its time
            per_class = min(per_class, max(CLOSE_CLASSES_ROWS // model.config.num_labels, 8))
        samples = self.rows.collect(self.rows.of_each_class(per_class), "Evaluation means")
        with trainer.writing(model.label_table):
            model.label_table.refresh_for_evaluation(samples.values, samples.labels, model.head, choose=close)
            model.labels_are_current()
        # Straight into the history, which checkpoints keep: log() here would swallow the log of this step.
        entry = {"eval_refresh_seconds": round(samples.seconds, 3), "step": trainer.state.global_step}
        trainer.state.log_history.append(entry)

    def measure_scatter(self) -> None:
        """Train end: measure how far rows lie from class means and label vectors, on a few, where it is not known."""
        trainer, model = self.trainer, self.trainer.lwal_model
        if model is None or not trainer.label_objective.refreshes_labels or not trainer.reads_weights:
            return
        model.bring_labels_up_to_date()
        if not first_rank_says(not bool(model.label_table.row_scatter.any()), trainer.args.device):
            return
        args = trainer.args
        planned = (
            trainer.state.global_step * args.gradient_accumulation_steps * args.train_batch_size * args.world_size
        )
        most = min(max(int(SCATTER_SHARE * FORWARD_ROWS * planned), LEAST_SCATTER_ROWS), MOST_SCATTER_ROWS)
        batches = self.rows.of_some_classes(most)
        if not len(batches):
            return
        samples = self.rows.collect(batches, "Scatter of the rows")
        model.label_table.measure_scatter(samples.values, samples.labels, model.head)
        logger.info("Scatter of the rows around labels: %d rows in %.1f s.", len(samples.labels), samples.seconds)

    def _wants_refresh(self, model: LwALPreTrainedModel, wanted: str | int, epoch_end: bool) -> bool:
        if not self.trainer.label_objective.refreshes_labels:
            return False
        if isinstance(wanted, int):
            return bool(self.trainer.state.global_step - self._last_refresh >= wanted)
        if wanted == "auto":
            config = model.config
            by_gradient_only = config.offset and (config.reanchor or config.refresh_every == 0)
            return config.close_classes or (not by_gradient_only and bool(batch_norms(model)))
        return wanted == "evaluate" or (wanted == "epoch" and epoch_end)

    def _with_label_names(self, samples: StartSamples) -> StartSamples:
        """The start rows, with names of labels as more of them where the settings want it; the same on every rank."""
        trainer, model = self.trainer, self.trainer.core_model
        setting, names = trainer.lwal_settings.label_names, trainer.label_names_by_id()
        starts_elsewhere = getattr(model.config, "initial_labels", None) == "one_hot"
        if setting == "off" or not trainer.label_objective.counts_label_names or starts_elsewhere:
            return samples
        if trainer.task_of_model != "text":
            return samples
        tokenizer = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)
        if not isinstance(tokenizer, PreTrainedTokenizerBase):
            if not isinstance(setting, str):
                raise ValueError(
                    "Descriptions of labels need a tokenizer to read them: give it to the trainer as processing_class."
                )
            logger.debug("The trainer has no tokenizer, so label names do not count as samples.")
            return samples
        texts = choose_names(samples, setting, names)
        if not texts:
            return samples
        limit, size = max_length_of(model, tokenizer), trainer.args.eval_batch_size
        batches = name_batches(texts, tokenizer, limit, size, trainer.columns_of_model())
        return with_names(samples, self.rows.collect(batches, "Label names"), setting, names)

    def _settle_batch_norms(self, batches: Batches) -> bool:
        """Statistics of the start rows for BatchNorm layers without any, the first rank's; whether that was all."""
        trainer, model, settled = self.trainer, self.trainer.core_model, False
        run = model.start_values if isinstance(model, LwALPreTrainedModel) else lambda inputs: model(**inputs)
        if len(batches):
            with trainer.compute_loss_context_manager():
                settled = settle_fresh_batch_norms(model, run, batches, trainer.args.device)
        for layer in batch_norms(model):
            for buffer in layer.buffers():
                broadcast_(buffer)
        return first_rank_says(settled, trainer.args.device)

    def _rows_per_class(self) -> int:
        """Rows per class of the start pass: more than `lwal_init_samples` where fitted, as the budget allows."""
        trainer, settings = self.trainer, self.trainer.lwal_settings
        labels = self.rows.label_column()
        sizes = trainer.label_objective.fitted_sizes(trainer.core_model)
        if sizes is None or labels is None:
            return settings.init_samples
        args = trainer.args
        steps = trainer.state.max_steps * args.gradient_accumulation_steps
        planned = steps * args.train_batch_size * args.world_size
        rows = int(min(settings.start_budget * FORWARD_ROWS * planned, prompt_rows(*sizes)))
        return max(settings.init_samples, rows_per_class_within(labels, rows))

    def _peak_learning_rate(self) -> float | None:
        """Largest learning rate of the optimizer, once warmed up; None where steps follow the gradient's size."""
        optimizer: Any = getattr(self.trainer.optimizer, "optimizer", self.trainer.optimizer)
        if optimizer is None or "sgd" in type(optimizer).__name__.lower():
            return None
        rates = [group.get("initial_lr", group["lr"]) for group in optimizer.param_groups]
        return None if None in rates else max(map(float, rates))  # None: Adafactor chooses its own


def _warn_of_scale(scale: float | None, numbers: Mapping[str, float]) -> None:
    calibrated = numbers.get("start_scale")
    if scale is not None and calibrated and not 0.01 < scale / calibrated < 100:
        logger.warning(
            "lwal_scale is %g, but %.3g fits the start rows best: so far off, training starts from flat or "
            "saturated probabilities. Use lwal_scale='auto'.",
            scale,
            calibrated,
        )
