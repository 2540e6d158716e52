"""The label table: label vectors, the class means they come from, and how a refresh changes them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import initialization as init

from .blockwise_loss import blockwise_cross_entropy
from .compat import is_exporting
from .distances import DistancesInParts, Part, with_heights
from .distributed import broadcast_
from .few_rows import FewRows, finite
from .functional import (
    calibrated_scale,
    centroids,
    class_sums,
    distances_of_differences,
    pairwise_distances,
    without_names,
)
from .label_rows import Head
from .row_blocks import Distances, some_of

UNSEEN_MARGIN = 30.0
"""How far below a row's smallest logit the logit of a class without a mean is put."""
MOST_PAIRWISE = 20_000
"""Labels of which all distances are computed at once, which takes 1.6 GB then, and copies of it."""
FEW_NUMBERS = 2**13
"""Label vectors of at most this many numbers are compared one by one when serving; a product would start too late."""


class LabelTable(FewRows):
    """One label vector per class, used as ``logits = -scale * distance``.

    What predicts is the buffer ``label_vectors``. While training, label vectors are derived: the class means (of the
    head's input, seen through the current head, or of the embeddings) plus a learned offset. All floating-point
    state stays float32 whatever the model's dtype.

    Buffers: ``label_vectors`` (C, D); ``class_features`` (C, N) running class means, N = H or D; ``pending_sums``
    (C, N + 1) class sums and counts since the last refresh; ``counts`` (C,) int64 rows seen; ``step`` () int64
    optimizer steps; ``distance_bias`` (C,) what is taken off the squared distance to a label since its vector comes
    from few rows, see `bias_of_few_rows`. Measured on rows, and 0 until then and where training has gone on since:
    ``rejection_radii`` (C,) and ``rejection_edges`` (2,), see `open_set`; ``row_scatter`` (2,) mean square distance of
    new rows from the mean of their class and from its label vector, among embeddings. Parameters when learned, buffers
    when not: ``log_scale_bias`` (1,) and ``offset_bias`` (C, D), named so that every weight-decay filter exempts them.

    Args:
        num_labels: C.
        embedding_dim: D.
        mean_dim: N, width of the class means.
        offset: learn ``offset_bias``.
        learn_scale: learn ``log_scale_bias``.
        initial_label_norm: label vectors start as this multiple of the unit vectors.
        mask_unseen: rank classes without a mean below all others; off where the initial label vectors are meant to
            be used, as in the paper.
    """

    step: Tensor
    log_scale_bias: Tensor
    nothing_pending: bool | None = None
    """Whether ``pending_sums`` are zero, on the host, so that a step need not look at all of them; None: not known."""

    def __init__(
        self,
        num_labels: int,
        embedding_dim: int,
        mean_dim: int,
        *,
        offset: bool = True,
        learn_scale: bool = True,
        initial_label_norm: float = 1.0,
        mask_unseen: bool = True,
    ) -> None:
        super().__init__()
        self.initial_label_norm = initial_label_norm
        self.mask_unseen = mask_unseen
        vectors = torch.zeros(num_labels, embedding_dim, dtype=torch.float32)
        means = torch.zeros(num_labels, mean_dim, dtype=torch.float32)
        self.register_buffer("label_vectors", vectors)
        self.register_buffer("class_features", means)
        self.register_buffer("pending_sums", torch.zeros(num_labels, mean_dim + 1, dtype=torch.float32))
        self.register_buffer("counts", torch.zeros(num_labels, dtype=torch.int64))
        self.register_buffer("rejection_radii", torch.zeros(num_labels, dtype=torch.float32))
        self.register_buffer("rejection_edges", torch.zeros(2, dtype=torch.float32))
        self.register_buffer("row_scatter", torch.zeros(2, dtype=torch.float32))
        self.register_buffer("distance_bias", torch.zeros(num_labels, dtype=torch.float32))
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))
        self.register_buffer("log_scale_bias", torch.zeros(1, dtype=torch.float32))
        self.register_buffer("offset_bias", torch.zeros_like(vectors))
        self.set_learned(offset=offset, learn_scale=learn_scale)
        self.reset()

    @property
    def in_features(self) -> int:
        """Width of its input D, under the name that stock heads have for it."""
        return self.embedding_dim

    @property
    def out_features(self) -> int:
        """Number of labels C, under the name that stock heads have for it."""
        return self.num_labels

    @property
    def scale(self) -> Tensor:
        """Scale s of the logits, shape (1,), float32."""
        return self.log_scale_bias.exp()

    # -- what predicts ------------------------------------------------------------------------------------------

    def forward(self, embeddings: Tensor, label_vectors: Tensor | None = None, labels: Tensor | None = None) -> Tensor:
        """Logits ``-scale * |z - y_c|``, Eq. (2), in float32.

        Args:
            embeddings: (B, D).
            label_vectors: (C, D) to use instead of the stored ones.
            labels: (B,) int64; when given, the distance to the row's own label vector is computed exactly.

        Returns:
            (B, C) float32, higher is likelier. Classes that were never seen rank below all others.
        """
        one_by_one = label_vectors is None and self._compares_one_by_one()
        embeddings = self.lifted(embeddings.float())
        vectors = self.raised(self.label_vectors if label_vectors is None else label_vectors)
        masked = self.mask_unseen and not self._nothing_to_mask()
        if masked:
            seen, usable = self.seen, self.seen | ~self.seen.any()  # (C,)
            if not one_by_one:
                # Placeholders of unseen classes may lie far from the rest, and would cost the distances their digits.
                vectors = torch.where(usable.unsqueeze(1), vectors, self._mean_of(vectors, seen))
        distances = (
            distances_of_differences(embeddings, vectors)
            if one_by_one
            else pairwise_distances(embeddings, vectors, labels)
        )  # (B, C)
        logits = -self.scale * distances  # (B, C)
        if not masked:
            return logits
        floor = torch.where(seen, logits.detach(), torch.inf).amin(dim=1, keepdim=True) - UNSEEN_MARGIN
        return torch.where(usable, logits, floor)

    def row_losses(
        self,
        embeddings: Tensor,
        label_vectors: Tensor,
        labels: Tensor,
        label_smoothing: float = 0.0,
        class_weights: Tensor | None = None,
        shift: Tensor | None = None,
    ) -> Tensor:
        """Cross-entropy (B,) of each row with the logits that `forward` would compute, of which none are kept.

        Args:
            embeddings: (B, D).
            label_vectors: (C, D).
            labels: (B,) int64; -100 rows have no loss.
            label_smoothing: share of the target spread evenly over all labels.
            class_weights: (C,) weight per class.
            shift: (C,) added to the logits.
        """
        masked = self.mask_unseen and not self._nothing_to_mask()
        return blockwise_cross_entropy(
            self.lifted(embeddings.float()),
            self.raised(label_vectors),
            self.scale,
            labels,
            usable=self.seen | ~self.seen.any() if masked else None,
            margin=UNSEEN_MARGIN,
            label_smoothing=label_smoothing,
            class_weights=class_weights,
            shift=shift,
        )

    def _compares_one_by_one(self) -> bool:
        """Whether differences cost less than their expansion: few label vectors, a CPU, no gradient, no export."""
        return (
            not torch.is_grad_enabled()
            and self.label_vectors.is_cpu
            and self.label_vectors.numel() <= FEW_NUMBERS
            and not is_exporting()
        )

    def _nothing_to_mask(self) -> bool:
        """Whether all classes have means, where it costs less to know than to mask: not on a GPU, nor in a graph."""
        return not torch.compiler.is_compiling() and self.counts.is_cpu and int(self.counts.min()) > 0

    @staticmethod
    def _mean_of(vectors: Tensor, seen: Tensor) -> Tensor:
        return (vectors.detach() * seen.unsqueeze(1)).sum(dim=0) / seen.sum().clamp(min=1)

    def distances(self) -> Tensor:
        """(C, C) float32 Euclidean distances between the label vectors, with a zero diagonal.

        Raises:
            ValueError: more than `MOST_PAIRWISE` labels.
        """
        if self.num_labels > MOST_PAIRWISE:
            raise ValueError(
                f"The distances between all of {self.num_labels:,} labels would take "
                f"{4e-9 * self.num_labels**2:,.0f} GB, and are computed of up to {MOST_PAIRWISE:,}: find the nearest "
                "labels with hierarchy.neighbourhood(model.label_table.label_vectors)."
            )
        return pairwise_distances(self.label_vectors, self.label_vectors).fill_diagonal_(0.0)

    # -- training: where label vectors come from ------------------------------------------------------------------

    def derived(self, head: Head | None) -> Tensor:
        """Label vectors of the moment: ``head(class means) + offset``, differentiable in head and offset.

        Args:
            head: maps (C, H) features to (C, D) embeddings; None when the means are means of embeddings.

        Returns:
            (C, D) float32.
        """
        return self.through(head, self.class_features) + self.offset_bias

    @torch.no_grad()
    def materialize(self, head: Head | None) -> None:
        """Store the derived label vectors of all classes that have a mean, so that evaluation uses them."""
        self.label_vectors.copy_(torch.where(self.seen.unsqueeze(1), self.derived(head), self.label_vectors))
        self.forget_measured()

    def sums_of(self, values: Tensor, labels: Tensor) -> Tensor:
        """Class sums and counts (C, N + 1) float32 of features or embeddings (B, N), detached."""
        sums, counts = class_sums(values.detach().float(), labels, self.num_labels)
        return torch.cat([sums, counts.unsqueeze(1)], dim=1)

    @torch.no_grad()
    def calibrate(
        self,
        values: Tensor,
        labels: Tensor,
        head: Head | None,
        held_out: Tensor | Distances | None = None,
        names: int = 0,
        smoothed: bool = False,
    ) -> float:
        """Scale with the least cross-entropy on these rows, each held out of its class mean; not stored.

        Args:
            values: (N, H) features, or (N, D) embeddings when ``head`` is None.
            labels: (N,) int64.
            head: as for `derived`.
            held_out: (N, C) distances to class means where the head was made from these rows, as from
                `head_start.held_out_distances`; default: leave-one-out.
            names: the last so many rows count for the means, but are none to predict.
            smoothed: as in `functional.calibrated_scale`, for what was fitted to these rows.
        """
        values, labels = finite(values, labels)
        sums = self.sums_of(values, labels)
        rows = sums[:, -1]
        vectors = self.through(head, centroids(sums[:, :-1], rows))
        distances = self._distances(values, vectors, head, labels).stored_if_few()
        measured = without_names(labels, names)
        if held_out is not None and not self.has_no_bias():
            held_out = with_heights(held_out, self.heights)
        return calibrated_scale(distances, measured, rows, held_out=held_out, smoothed=smoothed)

    @torch.no_grad()
    def start(self, values: Tensor, labels: Tensor, head: Head | None, keep_vectors: bool = False) -> None:
        """Start from data: the class means of these rows.

        Args:
            values: (N, H) features, or (N, D) embeddings when ``head`` is None.
            labels: (N,) int64.
            head: as for `derived`.
            keep_vectors: let the offset keep the label vectors where they are.
        """
        self.distance_bias.zero_()
        self.without_bias = None
        sums = self.sums_of(*finite(values, labels))
        rows = sums[:, -1]
        self.class_features.copy_(centroids(sums[:, :-1], rows))
        self.counts.copy_(rows.round().long())
        self.offset_bias.zero_()
        if keep_vectors:
            self.offset_bias.copy_(self.label_vectors - self.derived(head))
        self.materialize(head)

    @torch.no_grad()
    def add_offset(self, offset: Tensor, head: Head | None) -> None:
        """Move the label vectors by ``offset`` (C, D), the same on every rank, through the offset that is learned."""
        offset = offset.to(self.offset_bias).contiguous()
        broadcast_(offset)
        self.offset_bias.add_(offset)
        self.materialize(head)

    @torch.no_grad()
    def refresh_for_evaluation(self, values: Tensor, labels: Tensor, head: Head | None, choose: bool = False) -> None:
        """Store label vectors from class means of evaluation-mode rows; training state is not touched.

        Args:
            values: (N, H) features, or (N, D) embeddings when ``head`` is None.
            labels: (N,) int64.
            head: as for `derived`.
            choose: take those of the moment, or the means without the offset, where they classify these rows better:
                where classes lie closer together than a step moves them, the offset is of another place.
        """
        values, labels = finite(values, labels)
        sums = self.sums_of(values, labels)
        rows = sums[:, -1:]
        means = self.through(head, centroids(sums[:, :-1], rows.squeeze(1)))
        vectors = torch.where(rows > 0, means + self.offset_bias, self.label_vectors)
        if choose:
            others = (torch.where(rows > 0, means, self.label_vectors), self.derived(head))
            vectors = max((vectors, *others), key=lambda found: self._nearest(found, values, labels, head))
        self.label_vectors.copy_(vectors)

    def _nearest(self, vectors: Tensor, values: Tensor, labels: Tensor, head: Head | None) -> int:
        """Number of rows, or of as many as say enough, whose own label vector (C, D) is the nearest."""
        rows = some_of(torch.arange(len(labels), device=labels.device), self.num_labels)
        found = self._distances(values, vectors, head).blocks(rows)
        return sum(int((distances.argmin(dim=1) == labels[block]).sum()) for block, distances in found)

    def _distances(
        self, values: Tensor, vectors: Tensor, head: Head | None, labels: Tensor | None = None
    ) -> DistancesInParts:
        """Distances of rows (N, H) to vectors (C, D); ``labels`` as for `pairwise_distances`."""
        every, seen = values.new_ones(len(values), dtype=torch.bool), torch.ones_like(self.seen)
        part = Part(every, lambda rows: self.lifted(self.through(head, rows)), self.raised(vectors), seen)
        return DistancesInParts(values, self.num_labels, [part], labels)

    @torch.no_grad()
    def set_scale(self, scale: float) -> None:
        """Set the scale of the logits; must be a positive number.

        Raises:
            ValueError: not a positive finite number.
        """
        if not 0.0 < scale < math.inf:
            raise ValueError(f"The scale of the logits is {scale}, but it must be a positive finite number.")
        self.log_scale_bias.fill_(math.log(scale))

    # -- state ----------------------------------------------------------------------------------------------------

    def reset(self) -> None:
        """Initial state of everything that was not loaded from a checkpoint: no class seen, scale 1."""
        unit = torch.eye(self.num_labels, self.embedding_dim, device=self.label_vectors.device)
        init.copy_(self.label_vectors, self.initial_label_norm * unit)
        init.copy_(self.offset_bias, torch.zeros_like(self.offset_bias))
        one_hot_means = not self.mask_unseen and self.class_features.shape == unit.shape
        init.copy_(self.class_features, self.label_vectors if one_hot_means else torch.zeros_like(self.class_features))
        measured = (self.rejection_radii, self.rejection_edges, self.row_scatter, self.distance_bias)
        for tensor in (self.pending_sums, self.counts, *measured, self.step, self.log_scale_bias):
            init.zeros_(tensor)

    def set_learned(self, *, offset: bool, learn_scale: bool) -> None:
        """Make offset and scale parameters or plain buffers, keeping their values; only before an optimizer exists."""
        for name, learned in (("offset_bias", offset), ("log_scale_bias", learn_scale)):
            value = getattr(self, name)
            if isinstance(value, nn.Parameter) == learned:
                continue
            delattr(self, name)
            if learned:
                self.register_parameter(name, nn.Parameter(value.detach()))
            else:
                self.register_buffer(name, value.detach())

    def extra_repr(self) -> str:
        """Sizes shown by ``print(model)``."""
        return f"num_labels={self.num_labels}, embedding_dim={self.embedding_dim}"

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self.nothing_pending = self.without_bias = None
        super()._load_from_state_dict(*args, **kwargs)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> LabelTable:
        def keep_dtype(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return moved if moved.dtype == tensor.dtype else tensor.to(moved.device)

        super()._apply(keep_dtype, recurse)  # type: ignore[no-untyped-call]
        return self
