"""Rows of a label table added, taken out, merged and put in another order: plain tensor work, labels by their id."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from .functional import cosine_distances

Head = Callable[[Tensor], Tensor]
ROW_TENSORS = (
    "label_vectors",
    "class_features",
    "pending_sums",
    "counts",
    "offset_bias",
    "rejection_radii",
    "distance_bias",
)
"""The tensors of a label table that have one row per label."""


class EditableRows(nn.Module):
    """What `LabelTable` can do with whole rows. Names are the model's business: see `LabelEditing`.

    Each edit replaces the tensors; a learned offset becomes a new parameter, which an optimizer made before does not
    know.
    """

    label_vectors: Tensor
    class_features: Tensor
    pending_sums: Tensor
    counts: Tensor
    offset_bias: Tensor
    rejection_radii: Tensor
    rejection_edges: Tensor
    row_scatter: Tensor
    distance_bias: Tensor
    without_bias: bool | None

    @property
    def num_labels(self) -> int:
        """Number of labels C."""
        return self.label_vectors.shape[0]

    @property
    def embedding_dim(self) -> int:
        """Dimension D of the label vectors."""
        return self.label_vectors.shape[1]

    @property
    def seen(self) -> Tensor:
        """(C,) bool: classes that have a mean."""
        return self.counts > 0

    def through(self, head: Head | None, means: Tensor) -> Tensor:
        """Class means (C, N), or what else the head takes, as embeddings (C, D) float32."""
        return means if head is None else head(means).float()

    @torch.no_grad()
    def add_label(self, features: Tensor, head: Head | None, offset: Tensor | None = None) -> int:
        """Append a label whose class mean is that of ``features``, Eq. (1), and whose vector is ``head(mean)``.

        Where `row_scatter` is known, its squared distance gets a bias. A new row of a class lies
        ``within * (1 + 1/n)`` from the mean of n rows of it, but rows of trained classes lie otherwise from their
        label vectors, which training has moved from the means. The bias is the difference, so that neither takes
        rows from the other.

        Args:
            features: (n, N) rows of the new class: features, or embeddings when ``head`` is None.
            head: maps (1, N) features to (1, D) embeddings; None when the means are means of embeddings.
            offset: (D,) to add to the label vector; zero by default.

        Returns:
            The new label's id, C before the call.

        Raises:
            ValueError: no row, rows of another width, or values that are not finite.
        """
        width = self.class_features.shape[1]
        if features.ndim != 2 or len(features) == 0 or features.shape[1] != width:
            raise ValueError(
                f"features of a new label must have shape (n, {width}) with n at least 1, but have "
                f"{tuple(features.shape)}: take them from model.start_values(inputs)."
            )
        if not bool(features.isfinite().all()):
            raise ValueError("features of a new label must be finite, but hold NaN or infinity.")
        mean = features.to(self.class_features).mean(dim=0)  # (N,)
        shift = torch.zeros_like(self.offset_bias[0]) if offset is None else offset.to(self.offset_bias)
        if shift.shape != self.offset_bias.shape[1:]:
            raise ValueError(
                f"offset must have shape ({self.offset_bias.shape[1]},), but has shape {tuple(shift.shape)}."
            )
        vector = mean if head is None else head(mean.unsqueeze(0))[0].float()
        new = {
            "label_vectors": vector + shift,
            "class_features": mean,
            "pending_sums": torch.zeros_like(self.pending_sums[0]),
            "counts": torch.full_like(self.counts[0], len(features)),
            "offset_bias": shift,
            "rejection_radii": self._usual_radius(),
            "distance_bias": self._bias_of_new(len(features)),
        }
        self._replace({name: torch.cat([getattr(self, name), new[name].unsqueeze(0)]) for name in ROW_TENSORS})
        return len(self.counts) - 1

    @torch.no_grad()
    def take_labels(self, ids: Sequence[int]) -> None:
        """Keep these labels, in this order: removes all others, or permutes.

        Args:
            ids: different ids in 0…C-1.

        Raises:
            ValueError: an id twice or out of range, or fewer than two.
        """
        known = range(len(self.counts))
        if len(set(ids)) != len(ids) or not set(ids) <= set(known):
            wrong = next((index for index, times in Counter(ids).items() if times > 1 or index not in known), None)
            raise ValueError(
                f"ids must be different numbers in 0…{len(self.counts) - 1}, but {wrong!r} is "
                + ("there twice." if wrong in known else "none of them.")
            )
        if len(ids) < 2:
            raise ValueError(f"A classifier needs at least two labels, but {len(ids)} would be left.")
        index = torch.tensor(list(ids), device=self.counts.device)
        self._replace({name: getattr(self, name).index_select(0, index) for name in ROW_TENSORS})

    @torch.no_grad()
    def merge_labels(self, ids: Sequence[int]) -> int:
        """Make one label of several: means, label vectors and offsets are averaged by row counts, counts are added.

        The head is affine, so the merged vector is the head's output for the merged mean plus the merged offset. The
        radius covers about what the radii did: a cosine distance is half a squared angle, and rows scatter around
        their own mean in directions of their own, so that squared angles add.

        Args:
            ids: at least two different ids in 0…C-1.

        Returns:
            The merged label's id: the lowest place among ``ids``, once the others are gone.
        """
        if len(set(ids)) < 2:
            raise ValueError(f"Merging needs at least two different labels, but the ids are {list(ids)}.")
        merging = set(ids)
        first, *others = sorted(merging)
        kept = [index for index in range(len(self.counts)) if index == first or index not in merging]
        parts = {name: getattr(self, name)[[first, *others]] for name in ROW_TENSORS}
        rows = parts["counts"].float()
        weights = (rows if bool(rows.any()) else torch.ones_like(rows)).unsqueeze(1)  # (m, 1)
        weights = weights / weights.sum()
        merged = {
            name: (weights * parts[name]).sum(dim=0) for name in ("label_vectors", "class_features", "offset_bias")
        }
        merged["distance_bias"] = (weights[:, 0] * parts["distance_bias"]).sum()
        away = cosine_distances(parts["class_features"], merged["class_features"].unsqueeze(0))[:, 0]  # (m,)
        fitted = bool((parts["rejection_radii"] > 0).all())
        reach = (parts["rejection_radii"] + away).max()
        merged["rejection_radii"] = reach if fitted else torch.zeros_like(reach)
        merged |= {name: parts[name].sum(dim=0) for name in ("pending_sums", "counts")}
        self.take_labels(kept)
        for name, row in merged.items():
            getattr(self, name)[first] = row  # everything before the lowest id stays in its place
        return first

    def _usual_radius(self) -> Tensor:
        """() radius for a label that has none of its own: the median of the others', 0 where nothing was fitted."""
        return self.rejection_radii.median()

    def _bias_of_new(self, rows: int) -> Tensor:
        """() for a label of so many rows."""
        within, own = self.row_scatter
        return torch.where(within > 0, within * (1.0 + 1.0 / rows) - own, 0.0)

    def _replace(self, tensors: dict[str, Tensor]) -> None:
        for name, value in tensors.items():
            learned = isinstance(getattr(self, name), nn.Parameter)
            setattr(self, name, nn.Parameter(value) if learned else value)
        self.without_bias = None
