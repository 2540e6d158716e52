"""What a training step has seen of the classes, over its micro-batches and over all ranks."""

from __future__ import annotations

import torch
from torch import Tensor

from ..modeling.distributed import all_reduce_sum, gathered_rows, largest_of_ranks, world_size
from ..modeling.label_table import LabelTable
from ..modeling.step_sums import StepSums, counted_rows, touches_few
from .label_log import LabelLog


class StepRows:
    """Collects the rows of a step for the class means.

    Where classes are many against the rows of a step, the rows themselves go to the other ranks instead of sums over
    all classes, and only the means that they touch are read and written.

    Args:
        rows: of a step on this rank at most, as the arguments say; the same on all ranks.
    """

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self._parts: list[tuple[Tensor, Tensor]] = []
        self._sums: Tensor | None = None
        self._sends_rows: bool | None = None

    def _keeps_rows(self, table: LabelTable) -> bool:
        return self._sends_rows is not False and touches_few(self.rows * world_size(), table.num_labels)

    def add(self, table: LabelTable, values: Tensor, labels: Tensor, log: LabelLog) -> None:
        """Add a micro-batch.

        Args:
            table: whose class means these are for.
            values: (B, N) what class means are taken of.
            labels: (B,) int64.
            log: counts micro-batches that hold NaN or infinity, which are left out.
        """
        if self._keeps_rows(table):
            classes, rows = counted_rows(values, labels)
            self._parts.append((classes, log.finite(rows)))
        else:
            sums = log.finite(table.sums_of(values, labels))
            self._sums = sums if self._sums is None else self._sums + sums

    def take(self, table: LabelTable, skipped: bool) -> StepSums:
        """Sums over the rows of all ranks, once all of the step were added; then the next step begins.

        Args:
            table: whose class means these are for.
            skipped: the optimizer did not step, so nothing counts.
        """
        if not self._keeps_rows(table):
            sums, self._sums = self._sums, None
            if sums is None or skipped:
                sums = torch.zeros_like(table.pending_sums)
            return StepSums(all_reduce_sum(sums))
        classes, rows = _joined(self._parts, table.pending_sums)
        self._parts = []
        if self._sends_rows is None:  # once: what the arguments say does not hold for a loader of the user's own
            self._sends_rows = largest_of_ranks(len(classes), classes.device) <= self.rows
        if skipped:
            classes, rows = classes[:0], rows[:0]
        if not self._sends_rows:
            return StepSums(all_reduce_sum(StepSums.of_rows(classes, rows).of_all(table.num_labels)))
        if world_size() > 1:
            if len(classes) > self.rows:  # a message has one size; nothing is lost
                self._parts = [(classes[self.rows :], rows[self.rows :])]
            classes, rows = _of_all_ranks(classes[: self.rows], rows[: self.rows], self.rows)
        return StepSums.of_rows(classes, rows)


def _joined(parts: list[tuple[Tensor, Tensor]], like: Tensor) -> tuple[Tensor, Tensor]:
    if not parts:
        return torch.zeros(0, dtype=torch.int64, device=like.device), like.new_zeros(0, like.shape[1])
    classes, rows = zip(*parts, strict=True)
    return torch.cat(classes), torch.cat(rows)


def _of_all_ranks(classes: Tensor, rows: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Rows of all ranks in the order of the ranks, from ``size`` or fewer of each: in one message."""
    width = rows.shape[1]
    message = rows.new_zeros(size, width + 1)
    message[: len(rows), :width] = rows
    message[: len(rows), width] = classes.int().view(torch.float32)  # the bits: floats would end at 2**24 classes
    everything = gathered_rows(message)
    return everything[:, width].contiguous().view(torch.int32).long(), everything[:, :width]
