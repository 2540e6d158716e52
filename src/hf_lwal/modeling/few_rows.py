"""What it means for a label vector to come from few rows, and what is measured of how rows scatter around them."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from .class_moments import class_means
from .functional import IGNORE_INDEX, bias_of_few_rows, centroids, finite_rows
from .label_rows import EditableRows, Head
from .row_blocks import all_finite, blocks


class FewRows(EditableRows):
    """The bias of labels that come from few rows; `LabelTable` inherits it.

    Attributes:
        without_bias: whether ``distance_bias`` is zero, on the host, so that a step need not ask; None: not known.
    """

    without_bias: bool | None = None

    def lifted(self, embeddings: Tensor) -> Tensor:
        """Embeddings (B, D), with a coordinate 0 more where there is a `distance_bias`; see `raised`."""
        return embeddings if self.has_no_bias() else F.pad(embeddings, (0, 1))

    def raised(self, label_vectors: Tensor) -> Tensor:
        """Label vectors (C, D), with their height as one more coordinate where there is a `distance_bias`.

        The more the bias of a label falls short of the largest, the farther its height takes it from all rows, whose
        is 0. So the nearest label is the one of the least ``|z - y_c|^2 - bias_c``, and distances stay distances,
        with gradients of at most 1.
        """
        return label_vectors if self.has_no_bias() else torch.cat([label_vectors, self.heights.unsqueeze(1)], dim=1)

    @property
    def heights(self) -> Tensor:
        """(C,) see `raised`."""
        return (self.distance_bias.max() - self.distance_bias).sqrt()

    def has_no_bias(self) -> bool:
        """Whether all labels are as near as their vectors; the device is asked once, after an edit or loading."""
        if torch.compiler.is_compiling() or self.distance_bias.is_meta:
            return self.without_bias is True
        if self.without_bias is None:
            self.without_bias = not bool(self.distance_bias.any())
        return self.without_bias

    def forget_measured(self) -> None:
        """Training has moved rows and label vectors: what was measured of their distances is out of date."""
        for measured in (self.rejection_radii, self.rejection_edges, self.row_scatter):
            measured.zero_()

    @torch.no_grad()
    def favour_few_rows(self, values: Tensor, labels: Tensor, head: Head | None) -> None:
        """Give the classes that started from few rows their `bias_of_few_rows`, and keep how these rows scatter.

        Args:
            values: (N, H) features, or (N, D) embeddings when ``head`` is None, that the table started from.
            labels: (N,) int64.
            head: as for `derived`.
        """
        within = self.variance_within(*finite(values, labels), head)
        counts = self.counts.clamp(min=1)
        bias = bias_of_few_rows(within, counts)
        bias = bias - bias[self.seen].min() if bool(self.seen.any()) else bias  # what all share moves no label
        self.distance_bias.copy_(torch.where(self.seen, bias, 0.0))
        self.without_bias = None
        moved = self.offset_bias.square().sum(dim=1) - self.distance_bias + within / counts  # (C,)
        self.row_scatter[0], self.row_scatter[1] = within, within + moved[self.seen].mean()

    @torch.no_grad()
    def measure_scatter(
        self,
        values: Tensor,
        labels: Tensor,
        head: Head | None,
        add_up: Callable[[Tensor], Tensor] = torch.Tensor.clone,
    ) -> None:
        """Keep how far rows lie from class means and from label vectors, for labels that are added later.

        Args:
            values: (N, H) features, or (N, D) embeddings when ``head`` is None, at least two rows of some class.
            labels: (N,) int64.
            head: as for `derived`.
            add_up: sum over the parts of the rows that other ranks hold.
        """
        values, labels = finite(values, labels)
        within = self.variance_within(values, labels, head, add_up)
        squares = self.own_squares(values, labels, head)
        rows = add_up(torch.tensor(float(len(squares)), device=values.device))
        own = float(add_up(squares.double().sum()) / rows.clamp(min=1.0))
        self.row_scatter.copy_(torch.tensor([within, own if within else 0.0]))

    def variance_within(
        self,
        values: Tensor,
        labels: Tensor,
        head: Head | None,
        add_up: Callable[[Tensor], Tensor] = torch.Tensor.clone,
    ) -> float:
        """Mean square distance of new rows from the mean of their class, among embeddings; 0 without two of any class.

        Args:
            values: (N, H) features, or (N, D) embeddings when ``head`` is None; finite.
            labels: (N,) int64.
            head: as for `derived`.
            add_up: as for `measure_scatter`.
        """
        means, counts = class_means(values, labels, self.num_labels)
        sums, counts = add_up(means * counts.unsqueeze(1)), add_up(counts)
        vectors = self.through(head, centroids(sums, counts).float())
        spare = float((counts - 1.0).clamp(min=0.0).sum())
        total = self._own_squares(values, labels, head, vectors).double().sum()
        return float(add_up(total)) / spare if spare else 0.0

    def own_squares(self, values: Tensor, labels: Tensor, head: Head | None) -> Tensor:
        """(n,) squared distances of the n rows with a label from its label vector, less the label's bias."""
        squares = self._own_squares(values, labels, head, self.label_vectors)
        return squares - self.distance_bias[labels[labels != IGNORE_INDEX]]

    def _own_squares(self, values: Tensor, labels: Tensor, head: Head | None, vectors: Tensor) -> Tensor:
        found = [
            (self.through(head, values[rows]) - vectors[labels[rows]]).square().sum(dim=1)
            for rows in blocks((labels != IGNORE_INDEX).nonzero()[:, 0], max(values.shape[1], self.embedding_dim))
        ]
        return torch.cat(found) if found else values.new_zeros(0)


def finite(values: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """What `finite_rows` returns, without a copy where nothing is left out."""
    return (values, labels) if all_finite(values) else finite_rows(values, labels)
