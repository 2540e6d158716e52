"""Algorithm 1 of Yu & Verma (2022), arXiv:2209.04528: how label vectors move while the network trains.

For every step i with a batch of inputs x and labels, the paper does::

    z ← f(x)                                            LabelTableModel.classify
    if i ≥ w and (i − w) mod k = 0:                     refresh_due
        y_c ← mean of the z of class c in the batch     Eq. (1): BatchCentroids.label_vectors
    p_c ← softmax over c of −‖z − y_c‖                  Eq. (2): LabelTable.forward
    loss ← −log p_label                                 Eq. (3): cross_entropy
    if label vectors moved: loss ← loss + λ · repel     Eq. (4): repel_loss
    step of the optimizer on f, through the y_c too     the training loop; then end_step

The two classes here are the two ways to do it: `BatchCentroids` to the letter, and `RunningMeans`, the default, which
remembers rows of earlier steps, so that small batches and many classes work. They hold no state: that is in the label
table, so that it is saved with the model.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from .distributed import all_reduce_sum
from .functional import centroids, class_sums, common_drift, refreshed_label_vectors
from .label_rows import Head
from .label_table import LabelTable
from .step_sums import StepSums


@dataclass
class LabelSettings:
    """How label vectors start and move: fields of `LwALConfig`, so that they are saved with a model.

    A field that `LwALTrainingArguments` has too, under its name with ``lwal_`` before it, can be chosen per training.

    Attributes:
        preset: "default", or "paper" for Algorithm 1 with gradients through the batch centroids.
        offset: learn a correction (C, D) that is added to the class means.
        reanchor: let the offset absorb the jump of the class means at a refresh.
        follow_drift: share, 0 to 1, of the common displacement of a step's rows from their class means by which all
            label vectors move at a refresh; None for 0.3 in `LwALTrainer` and 1 in plain loops.
        learn_scale: learn the scale of the logits.
        memory: M, how many rows the running class means remember; 0 overwrites them by the batch's.
        refresh_every: k, optimizer steps between refreshes; 0 never refreshes.
        warmup_steps: w, optimizer steps before the first refresh.
        repel_weight: weight of the repel loss; the paper uses 10 where it uses it.
        initial_labels: "class_means", or "one_hot" for label vectors that start as multiples of the unit vectors.
        initial_head: what the start pass does to the encoder's last layer, in the features space: "whitened" and
            "class_means" make it the projection of `head_start.class_mean_projection`, "probe" fits it and the offset
            to the start rows (`probe_start.fit_start`), "random" leaves it; "auto" is "probe" for text, on whose
            features it was measured, and "whitened" for all else.
    """

    preset: Literal["default", "paper"] = "default"
    refresh_every: int = 1
    warmup_steps: int = 0
    memory: int = 50
    offset: bool = True
    reanchor: bool = True
    follow_drift: float | None = None
    learn_scale: bool = True
    repel_weight: float = 0.0
    initial_labels: Literal["class_means", "one_hot"] = "class_means"
    initial_head: Literal["auto", "whitened", "class_means", "probe", "random"] = "auto"


def refresh_due(step: int, every: int, warmup: int) -> bool:
    """Whether step t refreshes: t >= w and (t - w) mod k = 0; never when k = 0.

    The paper writes ``(i - w) mod k = 1``, which never holds for k = 1; the authors' code does this.

    Args:
        step: optimizer steps done, t.
        every: k.
        warmup: w.
    """
    return every > 0 and step >= warmup and (step - warmup) % every == 0


class LabelUpdate(ABC):
    """How label vectors move.

    Attributes:
        of_batch: they are the centroids of the last batch, which the loss has to see whole.
    """

    of_batch: ClassVar[bool]

    @abstractmethod
    def label_vectors(self, table: LabelTable, head: Head | None, embeddings: Tensor, labels: Tensor | None) -> Tensor:
        """Label vectors (C, D) that a training step compares its embeddings with, with gradient.

        Args:
            table: the label table.
            head: maps class means (C, H) to label vectors; None where they are means of embeddings.
            embeddings: (B, D).
            labels: (B,) int64 of the rows to refresh from; None where no refresh is due.
        """

    @abstractmethod
    def end_step(
        self, table: LabelTable, head: Head | None, sums: StepSums, due: bool, settings: LabelSettings, follow: float
    ) -> None:
        """Take what an optimizer step has seen.

        Args:
            table: the label table.
            head: as above.
            sums: class sums and counts of all rows of the step, equal on all ranks.
            due: this step refreshes.
            settings: what each way has to choose.
            follow: share of the common drift that label vectors follow.
        """

    @abstractmethod
    def current(self, table: LabelTable, head: Head | None) -> Tensor:
        """(C, D) label vectors as the next training step would find them."""


class BatchCentroids(LabelUpdate):
    """The paper's: label vectors become the centroids of the batch, before its loss is taken against them."""

    of_batch = True

    def label_vectors(self, table: LabelTable, head: Head | None, embeddings: Tensor, labels: Tensor | None) -> Tensor:
        """Eq. (1): the centroids, stored and with gradient."""
        if labels is None:
            return table.label_vectors.clone()
        vectors, counts = self.centroids(table, embeddings, labels)
        self.store(table, vectors, counts)
        return vectors

    @staticmethod
    def centroids(table: LabelTable, embeddings: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Centroids (C, D) of the rows of all ranks, and their counts (C,); a label without rows keeps its vector."""
        sums, counts = map(all_reduce_sum, class_sums(embeddings, labels, table.num_labels))
        return refreshed_label_vectors(table.label_vectors.clone(), table.counts, sums, counts, memory=0), counts

    @staticmethod
    @torch.no_grad()
    def store(table: LabelTable, vectors: Tensor, counts: Tensor) -> None:
        """Let the label vectors be these centroids (C, D) of so many rows (C,)."""
        kept = torch.where(vectors.isfinite(), vectors, table.label_vectors)  # one bad batch must not stay
        table.label_vectors.copy_(kept)
        table.forget_measured()
        table.class_features.copy_(kept)
        table.counts.add_(counts.round().long())

    def end_step(
        self, table: LabelTable, head: Head | None, sums: StepSums, due: bool, settings: LabelSettings, follow: float
    ) -> None:
        """Nothing is left to do: the refresh was part of the forward."""

    def current(self, table: LabelTable, head: Head | None) -> Tensor:
        """Those of the last refresh."""
        return table.label_vectors


class RunningMeans(LabelUpdate):
    """The default: means over the rows of many steps, seen through the current head, plus a learned offset.

    They move when the step is over, so its loss takes them as constants; the gradient reaches head and offset.
    """

    of_batch = False

    def label_vectors(self, table: LabelTable, head: Head | None, embeddings: Tensor, labels: Tensor | None) -> Tensor:
        """Eq. (1) for the current head: class means through it, plus the offset."""
        return table.derived(head)

    @torch.no_grad()
    def end_step(
        self, table: LabelTable, head: Head | None, sums: StepSums, due: bool, settings: LabelSettings, follow: float
    ) -> None:
        """Keep the sums of the step, and merge them into the class means when a refresh is due."""
        sums = sums.finite()
        reanchor = settings.offset and settings.reanchor
        if due and self._nothing_pending(table):
            self.merge(table, head, sums, settings.memory, reanchor, follow)
            return
        if settings.refresh_every == 0:  # means stay, but a label without one would never be learned
            self.first_sight(table, sums)
            table.pending_sums.zero_()
        else:
            sums.add_to(table.pending_sums, sums.sums)
            table.nothing_pending = False
        if due:
            self.refresh(table, head, settings.memory, reanchor, follow)

    def current(self, table: LabelTable, head: Head | None) -> Tensor:
        """Derived anew: head and offset move at every step."""
        return table.derived(head)

    @staticmethod
    def _nothing_pending(table: LabelTable) -> bool:
        """Whether no sums of earlier steps wait; the device is asked once, after the table was made or loaded."""
        if table.nothing_pending is None:
            table.nothing_pending = not bool(table.pending_sums.any())
        return table.nothing_pending

    @classmethod
    @torch.no_grad()
    def refresh(cls, table: LabelTable, head: Head | None, memory: float, reanchor: bool, follow: float = 0.0) -> None:
        """`merge` the pending sums into the class means and forget them."""
        cls.merge(table, head, StepSums(table.pending_sums), memory, reanchor, follow)
        table.pending_sums.zero_()
        table.nothing_pending = True

    @staticmethod
    @torch.no_grad()
    def merge(
        table: LabelTable, head: Head | None, step: StepSums, memory: float, reanchor: bool, follow: float = 0.0
    ) -> None:
        """Merge sums into the class means.

        Args:
            table: the label table.
            head: as for `LabelTable.derived`.
            step: the sums.
            memory: M of `refreshed_label_vectors`.
            reanchor: move the offset against the jump of the means, so that label vectors move by gradient only.
                A class that had no mean jumps to its first.
            follow: share of `common_drift` by which the means of all classes move first, and label vectors with them,
                re-anchored or not.
        """
        sums, counts = step.sums[:, :-1], step.sums[:, -1]
        rows_seen = step.of(table.counts)  # (n,)
        seen = (rows_seen > 0).unsqueeze(1)  # (n, 1)
        before = step.of(table.class_features)  # (n, N)
        if follow:
            drift = common_drift(before, torch.where(seen, sums, 0.0), counts * seen.squeeze(1))
            table.class_features.addcmul_(table.seen.unsqueeze(1).to(drift), follow * drift)
            before = step.of(table.class_features)
        means = refreshed_label_vectors(before, rows_seen, sums, counts, memory)
        if reanchor:
            # The head is affine: mapping the small difference keeps digits that subtracting two outputs would lose.
            zero = torch.zeros_like(means[:1])
            jump = table.through(head, before - means) - table.through(head, zero)
            step.add_to(table.offset_bias, torch.where(seen, jump, 0.0))
        step.put(table.class_features, before, means)
        step.add_to(table.counts, counts.round().long())

    @staticmethod
    @torch.no_grad()
    def first_sight(table: LabelTable, step: StepSums) -> StepSums:
        """Give classes without a mean the mean of their first rows, at once.

        Args:
            table: the label table.
            step: class sums and counts.

        Returns:
            The sums that are still to be merged at the next refresh.
        """
        counts = step.sums[:, -1]
        new = ((step.of(table.counts) == 0) & (counts > 0)).unsqueeze(1)  # (n, 1)
        before = step.of(table.class_features)
        means = centroids(step.sums[:, :-1], counts)
        step.put(table.class_features, before, torch.where(new, means, before))
        step.add_to(table.counts, torch.where(new.squeeze(1), counts, 0.0).round().long())
        return step._replace(sums=torch.where(new, 0.0, step.sums))


UPDATES: dict[str, LabelUpdate] = {"default": RunningMeans(), "paper": BatchCentroids()}
"""Preset of a model → how its label vectors move."""
