"""Algorithm 1: when label vectors move during training, and from what.

Yu & Verma (2022), arXiv:2209.04528, Algorithm 1. One training step t is: embed the batch; if a refresh is due, move
the class means to the new rows; take the loss against the label vectors; step the optimizer.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .distributed import all_reduce_sum, broadcast_
from .functional import IGNORE_INDEX, class_sums, finite_rows
from .heads import active_copy

if TYPE_CHECKING:
    from .modeling_lwal import LwALPreTrainedModel

logger = logging.getLogger(__name__)

CALIBRATION_ROWS = 256
"""Without a start pass the scale is calibrated on this many first rows."""
LOOPS_FOLLOW = 1.0
"""Share of the common drift that label vectors follow in plain loops: their heads start at random, and drift far."""
TRAINER_FOLLOWS = 0.3
"""Share that they follow in `LwALTrainer`, whose heads start from data."""


class LabelTracker:
    """Host-side state of Algorithm 1 for one model; everything that outlives the process is in the label table.

    Attributes:
        mode: "forward", every training forward with labels is a step; "trainer", the caller ends steps with `commit`;
            "off", class means stay.
        takes_loss: the model's forward computes a loss from its labels; off while a trainer does it.
        stale: the stored label vectors lag behind what training has changed.
    """

    def __init__(self) -> None:
        self.mode = "forward"
        self.takes_loss = True
        self.forget()

    def forget(self) -> None:
        """Drop what was derived from the label table: it was just loaded or replaced."""
        self.stale = False
        self._step: int | None = None
        self._due: bool | None = None
        self._last_sums: Tensor | None = None
        self._first_rows: list[tuple[Tensor, Tensor]] | None = None
        self._first_labels = 0
        self._looked_for_adapter = False

    def label_vectors(
        self, model: LwALPreTrainedModel, embeddings: Tensor, features: Tensor | None, labels: Tensor | None
    ) -> Tensor:
        """Label vectors (C, D) of this training step, with gradient.

        Args:
            model: whose label table it is.
            embeddings: (B, D).
            features: (B, H) or None.
            labels: (B,) int64, or None for a forward that is no training step.
        """
        if labels is not None and self.mode == "forward":
            self._step_in_forward(model, model.values(embeddings, features), labels)
        if model.config.preset == "paper":
            return self._paper_label_vectors(model, embeddings, labels)
        self.stale = True
        return model.label_table.derived(model.head)

    def _paper_label_vectors(self, model: LwALPreTrainedModel, embeddings: Tensor, labels: Tensor | None) -> Tensor:
        if labels is None or self.mode == "off" or not self.refresh_due(model):
            return model.label_table.label_vectors.clone()
        sums, counts = class_sums(embeddings, labels, model.label_table.num_labels)
        return model.label_table.centroids_of_batch(all_reduce_sum(sums), all_reduce_sum(counts))

    def refresh_due(self, model: LwALPreTrainedModel) -> bool:
        """Refresh at step t when t >= w and (t - w) mod k = 0; never when k = 0.

        The paper writes ``(i - w) mod k = 1``, which never holds for k = 1; the authors' code does this.
        """
        if self._due is None:  # kept as a flag: a compiled forward that read the step would compile at every step
            every, since = model.config.refresh_every, self.step(model) - model.config.warmup_steps
            self._due = every > 0 and since >= 0 and since % every == 0
        return self._due

    def step(self, model: LwALPreTrainedModel) -> int:
        """Optimizer steps done, mirrored on the host so that no step waits for the device."""
        if self._step is None:
            self._step = int(model.label_table.step)
        return self._step

    def set_step(self, model: LwALPreTrainedModel, step: int) -> None:
        """Set the number of optimizer steps done, here and in the table."""
        self._step, self._due = step, None
        self.refresh_due(model)
        model.label_table.step.fill_(step)

    def commit(self, model: LwALPreTrainedModel, sums: Tensor) -> None:
        """End of a step: take its class sums (C, N + 1), equal on all ranks, refresh when due, count the step."""
        config = model.config
        if config.preset != "paper":  # the paper's refresh happened inside the forward
            sums = torch.where(sums.isfinite().all(), sums, 0.0)
            if config.refresh_every == 0:  # means stay, but a label without one would never be learned
                model.label_table.first_sight(sums)
                model.label_table.pending_sums.zero_()
            else:
                model.label_table.pending_sums.add_(sums)
            if self.refresh_due(model):
                reanchor = config.offset and config.reanchor
                own = LOOPS_FOLLOW if self.mode == "forward" else TRAINER_FOLLOWS
                follow = own if config.follow_drift is None else config.follow_drift
                model.label_table.refresh(model.head, config.memory, reanchor, follow)
            self.stale = True
        self.set_step(model, self.step(model) + 1)

    def end_step(self, model: LwALPreTrainedModel) -> None:
        """Mode "forward": end the step of the last forward, unless it has ended, as the next forward would.

        Evaluation and saved state then include it, and a loop resumed from that state goes on as if uninterrupted.
        """
        if self.mode == "forward" and self._last_sums is not None:
            sums, self._last_sums = self._last_sums, None
            self.commit(model, sums)

    def _step_in_forward(self, model: LwALPreTrainedModel, values: Tensor, labels: Tensor) -> None:
        """Mode "forward": end the step of the previous forward, then take this one's class sums."""
        if getattr(model, "_is_replica", False):
            raise RuntimeError(
                "nn.DataParallel throws away what its replicas learn of the labels: start one process per GPU with "
                "`accelerate launch` or `torchrun`, or train with LwALTrainer."
            )
        self.end_step(model)
        if not self._looked_for_adapter and not torch.compiler.is_compiling():
            self._looked_for_adapter = True
            warn_of_lost_table(model)
        table = model.label_table
        values, labels = finite_rows(
            values.detach(), labels
        )  # one bad batch, whose step a scaler skips, must not stay
        self._last_sums = all_reduce_sum(table.sums_of(values, labels))
        if model.config.preset == "paper":
            return
        if self.step(model) == 0 and self._first_rows is None and not bool(table.seen.any()):
            self._first_rows, self._first_labels = [], 0
            if model.config.initial_labels == "class_means":
                logger.warning(
                    "The label vectors start from the rows of the first batches, through a random head, "
                    "and can stay at chance: with two labels at 50 % for 8 epochs, where a start from data reached "
                    "100 % in the second. Call model.initialize_labels(dataloader) before the optimizer is made, or "
                    "train with LwALTrainer."
                )
        if self._first_rows is not None:
            self._first_rows.append((values, labels))
            self._first_labels += int(self._last_sums[:, -1].sum())  # of all ranks, which must stop together
        self._last_sums = table.first_sight(self._last_sums)
        if self._first_rows is not None:
            self._calibrate(model, self._first_rows)

    def _calibrate(self, model: LwALPreTrainedModel, first_rows: list[tuple[Tensor, Tensor]]) -> None:
        values, labels = (torch.cat(parts) for parts in zip(*first_rows, strict=True))
        if bool((labels != IGNORE_INDEX).any()):
            model.label_table.set_scale(model.label_table.calibrate(values, labels, model.head))
        broadcast_(model.label_table.log_scale_bias.data)
        if self._first_labels >= CALIBRATION_ROWS:
            self._first_rows = None


def warn_of_lost_table(model: LwALPreTrainedModel) -> None:
    """Warn where PEFT has put layers into the encoder, but will not save the label table that is trained with them."""
    peft = sys.modules.get("peft.tuners.tuners_utils")
    if peft is None or active_copy(model.classifier) is not model.classifier:
        return
    if any(isinstance(layer, peft.BaseTunerLayer) for layer in model.encoder.modules()):
        logger.warning(
            "This adapter does not save the label table (model.classifier) that is trained with it: a saved adapter "
            "comes back without labels. Give its configuration modules_to_save=model.peft_modules_to_save()."
        )
