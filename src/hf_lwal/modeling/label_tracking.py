"""Which forward or step counts for the label vectors: plain loops, a trainer that ends steps itself, or none.

What a step then does to them is Algorithm 1, in algorithm.py.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

import torch
from torch import Tensor

from .algorithm import UPDATES, LabelUpdate, RunningMeans, refresh_due
from .blockwise_loss import LEAST_LOGITS
from .configuration_lwal import LwALConfig
from .distributed import all_reduce_sum, broadcast_, is_distributed
from .functional import IGNORE_INDEX, finite_rows
from .label_rows import Head
from .label_table import LabelTable
from .step_sums import StepSums, counted_rows, touches_few

logger = logging.getLogger(__name__)

CALIBRATION_ROWS = 256
"""Without a start pass the scale is calibrated on this many first rows."""
LOOPS_FOLLOW = 1.0
"""Share of the common drift that label vectors follow in plain loops: their heads start at random, and drift far."""
TRAINER_FOLLOWS = 0.3
"""Share that they follow in `LwALTrainer`, whose heads start from data."""


class Labels(NamedTuple):
    """What a step works on: the model's configuration, its label table, and the head that means are seen through."""

    config: LwALConfig
    table: LabelTable
    head: Head | None

    @property
    def update(self) -> LabelUpdate:
        """How these label vectors move."""
        return UPDATES[self.config.preset]


class LabelTracker:
    """Host-side state of one model's training; everything that outlives the process is in the label table.

    Attributes:
        mode: "forward", every training forward with labels is a step; "trainer", the caller ends steps with `commit`;
            "off", class means stay.
        takes_loss: the model's forward computes a loss from its labels; off while a trainer does it.
        takes_logits: somebody may read the logits of a training step; off while a trainer knows that nobody does.
        stale: the stored label vectors lag behind what training has changed.
    """

    def __init__(self) -> None:
        self.mode = "forward"
        self.takes_loss = True
        self.takes_logits = True
        self.forget()

    def forget(self) -> None:
        """Drop what was derived from the label table: it was just loaded or replaced."""
        self.stale = False
        self._step: int | None = None
        self._due: bool | None = None
        self._last_sums: StepSums | None = None
        self._first_rows: list[tuple[Tensor, Tensor]] | None = None
        self._first_labels = 0
        self._said_not_finite = False

    def label_vectors(self, on: Labels, embeddings: Tensor, values: Tensor, labels: Tensor | None) -> Tensor:
        """Label vectors (C, D) of this training step, with gradient.

        Args:
            on: whose label vectors.
            embeddings: (B, D).
            values: (B, N) what class means are taken of.
            labels: (B,) int64, or None for a forward that is no training step.
        """
        if labels is not None and self.mode == "forward":
            self._step_in_forward(on, values, labels)
        self.stale = self.stale or not on.update.of_batch
        refreshes = labels is not None and self.mode != "off" and (not on.update.of_batch or self.refresh_due(on))
        return on.update.label_vectors(on.table, on.head, embeddings, labels if refreshes else None)

    def leaves_out(self, rows: int, num_labels: int) -> bool:
        """Whether a training step goes without this many logits, of which it needs the loss alone."""
        return not (self.takes_loss or self.takes_logits) and rows * num_labels >= LEAST_LOGITS

    def refresh_due(self, on: Labels) -> bool:
        """Whether this training step refreshes."""
        if self._due is None:  # kept as a flag: a compiled forward that read the step would compile at every step
            self._due = refresh_due(self.step(on), on.config.refresh_every, on.config.warmup_steps)
        return self._due

    def step(self, on: Labels) -> int:
        """Optimizer steps done, mirrored on the host so that no step waits for the device."""
        if self._step is None:
            self._step = int(on.table.step)
        return self._step

    def set_step(self, on: Labels, step: int) -> None:
        """Set the number of optimizer steps done, here and in the table."""
        self._step, self._due = step, None
        self.refresh_due(on)
        on.table.step.fill_(step)

    def commit(self, on: Labels, sums: Tensor | StepSums) -> None:
        """End of a step: take its class sums, equal on all ranks, refresh when due, count the step."""
        sums = sums if isinstance(sums, StepSums) else StepSums(sums)
        own = LOOPS_FOLLOW if self.mode == "forward" else TRAINER_FOLLOWS
        follow = own if on.config.follow_drift is None else on.config.follow_drift
        on.update.end_step(on.table, on.head, sums, self.refresh_due(on), on.config, follow)
        self.stale = self.stale or not on.update.of_batch
        self.set_step(on, self.step(on) + 1)

    def end_step(self, on: Labels) -> None:
        """Mode "forward": end the step of the last forward, unless it has ended, as the next forward would.

        Evaluation and saved state then include it, and a loop resumed from that state goes on as if uninterrupted.
        """
        if self.mode == "forward" and self._last_sums is not None:
            sums, self._last_sums = self._last_sums, None
            self.commit(on, sums)

    def _step_in_forward(self, on: Labels, values: Tensor, labels: Tensor) -> None:
        """Mode "forward": end the step of the previous forward, then take this one's class sums."""
        self.end_step(on)
        labelled = labels != IGNORE_INDEX
        # One bad batch, whose step a scaler skips, must not stay.
        values, labels = finite_rows(values.detach(), labels)
        if touches_few(len(labels), on.table.num_labels) and not is_distributed():
            self._last_sums = StepSums.of_rows(*counted_rows(values, labels))
        else:  # batches of ranks may differ in size: sums of all classes have one on all
            self._last_sums = StepSums(all_reduce_sum(on.table.sums_of(values, labels)))
        if on.update.of_batch:
            return
        if self.step(on) == 0 and self._first_rows is None and not bool(on.table.seen.any()):
            self._first_rows, self._first_labels = [], 0
            if on.config.initial_labels == "class_means":
                logger.warning(
                    "The label vectors start from the rows of the first batches, through a random head, "
                    "and can stay at chance: with two labels at 50 % for 8 epochs, where a start from data reached "
                    "100 % in the second. Call model.initialize_labels(dataloader) before the optimizer is made, or "
                    "train with LwALTrainer."
                )
        if self._first_rows is not None:
            self._first_rows.append((values, labels))
            counted = int(self._last_sums.sums[:, -1].sum())  # of all ranks, which must stop together
            self._first_labels += counted
            if not counted and bool(labelled.any()) and not self._said_not_finite:
                self._said_not_finite = True
                logger.warning(
                    "The features of the first batch hold NaN or infinity in every row: no label gets a mean from it, "
                    "and until one has, the loss is 0 and nothing is learned. Train in bf16 or float32 instead of "
                    "fp16, and look for NaN in the inputs."
                )
        self._last_sums = RunningMeans.first_sight(on.table, self._last_sums)
        if self._first_rows is not None:
            self._calibrate(on, self._first_rows)

    def _calibrate(self, on: Labels, first_rows: list[tuple[Tensor, Tensor]]) -> None:
        values, labels = (torch.cat(parts) for parts in zip(*first_rows, strict=True))
        if bool((labels != IGNORE_INDEX).any()):
            on.table.set_scale(on.table.calibrate(values, labels, on.head))
        broadcast_(on.table.log_scale_bias.data)
        if self._first_labels >= CALIBRATION_ROWS:
            self._first_rows = None
