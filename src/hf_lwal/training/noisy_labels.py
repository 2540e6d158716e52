"""Training rows whose label is probably wrong, found once before the first step: left out, or counted for less."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from ..data.sample_ids import ROW_WEIGHT, SAMPLE_ID, NumberedRow
from ..modeling.distributed import broadcast_
from ..modeling.files import replacing
from ..modeling.functional import IGNORE_INDEX
from ..modeling.heads import run_without_head
from ..modeling.label_audit import features_of
from ..modeling.label_errors import LabelErrors, label_errors
from ..modeling.modeling_lwal import LwALPreTrainedModel
from ..objectives.stock import stock_head
from .training_rows import TrainingRows
from .transformers_internals import HookedTrainer, TrainerPart

logger = logging.getLogger(__name__)

WEIGHTS_FILE = "row_weights.safetensors"
"""File of a checkpoint that says what each training row counts, so that a resumed training leaves out the same."""
SHOWN = 10
"""Rows that the log names."""


class NoisyLabels(TrainerPart):
    """Judges the labels of all training rows before the first step, and weighs the rows as the settings want it.

    Args:
        trainer: whose rows these are.
        rows: reads them.
    """

    def __init__(self, trainer: HookedTrainer, rows: TrainingRows) -> None:
        super().__init__(trainer)
        self.rows = rows

    @property
    def _mode(self) -> str:
        return self.trainer.lwal_settings.noisy_labels

    def rows_to_load(self, dataset: Any, collator: Any, description: str, training: bool) -> tuple[Any, Any]:
        """Let rows bring their weight into the batch, or lose their label where that is 0."""
        if not training or self._mode == "keep":
            return dataset, collator
        keeps_ids = self.trainer.label_objective.needs_sample_ids
        return dataset, WeighingCollator(collator, self.rows.weights, self._mode == "drop", keeps_ids)

    def decide(self) -> None:
        """Train begin: judge the labels, unless the checkpoint that is resumed from brought the weights."""
        resumed = self.trainer.state.global_step > 0 and self.rows.weights.values is not None
        if self._mode == "keep":
            self.rows.weights.values = None
        elif not resumed:
            self.rows.weights.values = None  # those of an earlier training must not choose the rows of this one
            self._judge()

    def _judge(self) -> None:
        trainer, began = self.trainer, time.perf_counter()
        samples = self.rows.collect(self.rows.all(), "Labels", as_in_training=True, values_of=self._values_of())
        found = label_errors(samples.values, samples.labels, len(trainer.label_names_by_id()))
        weights = row_weights(found, samples.labels, self._mode == "drop")
        broadcast_(weights)  # ranks on unlike hardware must not disagree
        self.rows.weights.values = weights.cpu()
        seconds = time.perf_counter() - began
        worst = [row for row in found.order.tolist() if found.suspicious[row]]
        logger.log(
            logging.WARNING if trainer.is_world_process_zero() else logging.DEBUG,
            "%d of %d training rows probably have a wrong label (%.1f %% by estimate, in %.0f s) and are %s; the most "
            "suspicious are rows %s. model.suspicious_labels and `hf-lwal audit` list them.",
            len(worst),
            len(samples.labels),
            100.0 * found.share,
            seconds,
            "left out" if self._mode == "drop" else "counted by the probability that it is right",
            ", ".join(map(str, worst[:SHOWN])) or "none",
        )
        trainer.log(
            {
                "suspicious_rows": len(worst),
                "wrong_share": round(found.share, 4),
                "judging_seconds": round(seconds, 3),
            }
        )

    def _values_of(self) -> Callable[[dict[str, Any]], Tensor]:
        model = self.trainer.core_model
        if isinstance(model, LwALPreTrainedModel):
            return features_of(model)
        name = stock_head(model).name
        return lambda inputs: run_without_head(model, name, inputs).logits

    def optimizer_saved(self, folder: str) -> None:
        """The weights go with the optimizer's state."""
        weights = self.rows.weights.values
        if weights is not None and self.trainer.args.should_save:
            with replacing(Path(folder, WEIGHTS_FILE)) as unfinished:
                save_file({"weights": weights}, unfinished)

    def optimizer_loaded(self, checkpoint: str) -> None:
        """And come back with it.

        Raises:
            ValueError: they are those of another number of rows.
        """
        file = Path(checkpoint, WEIGHTS_FILE)
        self.rows.weights.values = None
        if self._mode == "keep" or not file.exists():
            return
        weights, rows = load_file(file)["weights"], len(self.trainer.train_dataset)
        if len(weights) != rows:
            raise ValueError(
                f"{file} says what {len(weights)} training rows count, but there are {rows}: resume with the training "
                "set that it was written with."
            )
        self.rows.weights.values = weights


def row_weights(found: LabelErrors, labels: Tensor, drop: bool) -> Tensor:
    """What each row counts, (N,) float32: 0 or 1, or the probability that its label is right.

    A label of which nothing would be left keeps all its rows: to lose it altogether is worse than noise.

    Args:
        found: of the rows.
        labels: (N,) int64.
        drop: leave out the suspicious rows; else weigh all.
    """
    weights = (~found.suspicious).float() if drop else 1.0 - found.wrong
    kept = (labels != IGNORE_INDEX) & (weights >= 0.5)
    return torch.where(torch.isin(labels, labels[kept]), weights, 1.0)


class WeighingCollator:
    """Wraps the collator of numbered rows: rows of weight 0 lose their label, or the batch gets all weights.

    Args:
        collator: gives batches with `SAMPLE_ID`.
        weights: holds the weights of all rows once they are known.
        drop: take labels away; else put `ROW_WEIGHT` (B,) float32 into the batch.
        keeps_ids: the objective needs the ids itself.
    """

    def __init__(self, collator: Callable[[Any], Any], weights: Any, drop: bool, keeps_ids: bool) -> None:
        self.collator, self.weights, self.drop, self.keeps_ids = collator, weights, drop, keeps_ids

    def __call__(self, features: Sequence[NumberedRow]) -> Any:
        """Collate the rows."""
        batch = self.collator(features)
        ids = batch[SAMPLE_ID] if self.keeps_ids else batch.pop(SAMPLE_ID)
        if self.weights.values is None or "labels" not in batch:
            return batch
        own = self.weights.values[ids]
        if self.drop:
            batch["labels"] = batch["labels"].masked_fill(own == 0, IGNORE_INDEX)
        else:
            batch[ROW_WEIGHT] = own
        return batch
