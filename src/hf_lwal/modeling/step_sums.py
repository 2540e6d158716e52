"""Class sums of a training step: of all classes, or, where rows are few and classes many, of those that occur."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .functional import IGNORE_INDEX

CLASSES_PER_ROW = 4
"""With more classes than this for each row of a step, its rows are less than the sums of all classes."""


def touches_few(rows: int, num_labels: int) -> bool:
    """Whether a step of so many rows, of all ranks together, is better kept as sums of the classes that it touches."""
    return rows * CLASSES_PER_ROW < num_labels


def counted_rows(values: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Rows as `StepSums.of_rows` takes them: classes (B,) int64, and values with a 1 behind them (B, N + 1) float32.

    Args:
        values: (B, N).
        labels: (B,) int64; a row with -100 becomes zeros of class 0.
    """
    valid = (labels != IGNORE_INDEX).unsqueeze(1)  # (B, 1)
    values = torch.where(valid, values.detach().float(), 0.0)
    return labels.clamp(min=0), torch.cat([values, valid.to(values)], dim=1)


class StepSums(NamedTuple):
    """Class sums and counts of the rows of a step.

    Attributes:
        sums: (C, N + 1) float32 of all classes; or (n, N + 1) of some.
        classes: None; or (n,) int64, which classes these are. One may occur again with zeros, which change nothing:
            how many there are must not be asked, since the host would wait for the device.
    """

    sums: Tensor
    classes: Tensor | None = None

    @classmethod
    def of_rows(cls, classes: Tensor, rows: Tensor) -> StepSums:
        """Sums of the classes that these rows are of.

        Args:
            classes: (n,) int64.
            rows: (n, N + 1) values and counts, as from `counted_rows`.
        """
        ascending = classes.sort().values
        places = torch.searchsorted(ascending, classes)  # the first place of each class
        return cls(torch.zeros_like(rows).index_add_(0, places, rows), ascending)

    def finite(self) -> StepSums:
        """These sums, or zeros where one is NaN or infinite."""
        return self._replace(sums=torch.where(self.sums.isfinite().all(), self.sums, 0.0))

    def of(self, table_rows: Tensor) -> Tensor:
        """The rows of a tensor (C, …) that these sums are of."""
        return table_rows if self.classes is None else table_rows[self.classes]

    def add_to(self, table_rows: Tensor, change: Tensor) -> None:
        """Add a change of the rows `of` a tensor (C, …) to it; zero for a class without rows."""
        if self.classes is None:
            table_rows.add_(change)
        else:
            table_rows.index_add_(0, self.classes, change)

    def put(self, table_rows: Tensor, old: Tensor, new: Tensor) -> None:
        """Write new values of the rows `of` a tensor (C, …), whose values were ``old``, into it."""
        if self.classes is None:
            table_rows.copy_(new)
        else:  # by their change, since a class may occur again
            table_rows.index_add_(0, self.classes, new - old)

    def of_all(self, num_labels: int) -> Tensor:
        """(C, N + 1) sums of all classes."""
        if self.classes is None:
            return self.sums
        return self.sums.new_zeros(num_labels, self.sums.shape[1]).index_add_(0, self.classes, self.sums)
