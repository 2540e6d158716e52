"""What a label-learning method is: a loss on the model's outputs, and the state it needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..modeling.functional import IGNORE_INDEX, cross_entropy
from ..modeling.start import StartSamples


class ObjectiveLoss(NamedTuple):
    """A differentiable scalar, and detached scalars to log by name."""

    loss: Tensor
    terms: dict[str, Tensor]


@dataclass(frozen=True)
class LossContext:
    """What the trainer knows about the step.

    Attributes:
        model: the model itself, without the wrappers of data parallelism and adapters.
        num_items: rows with a label in the whole optimizer step over all ranks; None in evaluation.
        world_size: number of ranks.
        micro_batches: micro-batches in the optimizer step.
        label_smoothing: share of the target spread over all labels.
        class_weights: (C,) float32 or None.
        log_prior: (C,) float32, added to the logits in the loss of training batches; None adds nothing.
        step: optimizer steps done.
        epoch: epochs done, fractional.
        own_loss: the user's ``compute_loss_func``, or None.
        epochs: epochs of the whole training, rounded up.
        sample_ids: (B,) int64, which rows of the training set these are; only for methods that need it.
        row_weights: (B,) float32, what the rows of a training batch count; None where all count the same. Then
            ``num_items`` is the sum of the weights.
    """

    model: Any
    num_items: Tensor | int | None = None
    world_size: int = 1
    micro_batches: int = 1
    label_smoothing: float = 0.0
    class_weights: Tensor | None = None
    log_prior: Tensor | None = None
    step: int = 0
    epoch: float = 0.0
    own_loss: Callable[..., Tensor] | None = None
    epochs: int = 0
    sample_ids: Tensor | None = None
    row_weights: Tensor | None = None

    @property
    def training(self) -> bool:
        """Whether this is a training batch."""
        return self.num_items is not None

    def classification_loss(self, outputs: Any, labels: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy of ``outputs.logits``, averaged over the step; or the user's own loss function instead.

        Args:
            outputs: the model's, with logits (B, C).
            labels: (B,) int64; rows with -100 are not counted.
            targets: (B,) int64; rows with -100 have no loss, but are counted where they have a label.
        """
        if self.own_loss is not None:
            own = self.own_loss(outputs, labels, num_items_in_batch=self.num_items)
            return own * self.world_size if self.training else own
        prior = self.log_prior if self.training else None
        if outputs.get("logits") is None:  # there are too many
            table, embeddings, vectors = self.model.label_table, outputs["embeddings"], outputs["label_vectors"]
            rows = table.row_losses(embeddings, vectors, targets, self.label_smoothing, self.class_weights, prior)
        else:
            logits = outputs["logits"] if prior is None else outputs["logits"] + prior
            rows = cross_entropy(logits, targets, self.label_smoothing, self.class_weights, "none")
        return self.mean(rows, labels)

    def mean(self, row_losses: Tensor, labels: Tensor) -> Tensor:
        """Average row losses over the rows with a label of the whole optimizer step.

        In training the sum is divided by ``num_items`` and multiplied by ``world_size``, since gradients are averaged
        over ranks: then the same rows give the same gradient however they are split into micro-batches and ranks.

        Args:
            row_losses: (B,), zero where the label is -100.
            labels: (B,) int64.
        """
        if self.num_items is None:
            return row_losses.sum() / (labels != IGNORE_INDEX).sum().clamp(min=1)
        if self.row_weights is not None:
            row_losses = row_losses * self.row_weights.to(row_losses)
        return row_losses.sum() * self.world_size / torch.as_tensor(self.num_items).clamp(min=1).to(row_losses.device)


class Objective(nn.Module):
    """Base of all methods; a module, so that trainable parts and buffers are optimised and saved.

    Attributes:
        citation: where the method comes from, for the model card.
        passes_labels: the model's forward takes ``labels``.
        refreshes_labels: label vectors of an LwAL model are class means, so evaluation may refresh them.
        needs_sample_ids: the loss needs to know which row of the training set is which.
        reads_logits: the loss reads logits of a training batch itself, not through `LossContext.classification_loss`.
        counts_label_names: the start takes names of labels as samples, `StartSamples.names` of them.
        accumulation_caveat: what gradient accumulation changes, as a sentence; None for nothing.
    """

    citation: ClassVar[str]
    passes_labels: ClassVar[bool] = False
    refreshes_labels: ClassVar[bool] = True
    needs_sample_ids: ClassVar[bool] = False
    reads_logits: ClassVar[bool] = True
    counts_label_names: ClassVar[bool] = False
    accumulation_caveat: ClassVar[str | None] = None

    def prepare_model(self, model: nn.Module) -> nn.Module:
        """Return the model this method trains, built from the user's; called once, before the optimizer exists."""
        return model

    def allocate(self, rows: int, num_labels: int) -> None:
        """Make room for what is kept of each training row; called before training and before a checkpoint is read."""
        raise TypeError(f"{type(self).__name__} needs sample ids but does not define allocate(rows, num_labels).")

    def begin(self, model: Any) -> dict[str, float]:
        """Called before the first step of a training that does not resume; returns numbers to log."""
        return {}

    def merge_ranks(self) -> None:
        """Make the state equal on all ranks; all of them call it after an epoch and before a checkpoint."""
        return

    def forward_model(self, model: nn.Module, inputs: dict[str, Any]) -> Any:
        """Outputs of the model, in whatever wrapper the trainer put it."""
        return model(**inputs)

    def wants_start(self, model: PreTrainedModel) -> bool:
        """Whether to run a start pass over a few rows per class before the first step."""
        return False

    def fitted_sizes(self, model: PreTrainedModel) -> tuple[int, int, int] | None:
        """Sizes (H, C, D) of what the start pass fits to its rows; None where it fits nothing and few rows suffice."""
        return None

    def start_values(self, model: PreTrainedModel) -> Callable[[dict[str, Any]], Tensor]:
        """Function from a batch without labels to what the start pass collects, (B, H)."""
        raise TypeError(f"{type(self).__name__} wants a start pass but does not define start_values(model).")

    def start(
        self, model: PreTrainedModel, samples: StartSamples, learning_rate: float | None = None
    ) -> dict[str, float]:
        """Use the start rows; returns numbers to log.

        Args:
            model: the model itself.
            samples: what the start pass collected.
            learning_rate: peak learning rate of the head; None for optimizers that do not normalise gradients.
        """
        return {}

    def loss(self, outputs: Any, labels: Tensor, context: LossContext) -> ObjectiveLoss:
        """Loss of a batch.

        Args:
            outputs: what the model returned.
            labels: (B,) int64, -100 for rows that count for nothing.
            context: what the trainer knows about the step.
        """
        raise TypeError(f"{type(self).__name__} must define loss(outputs, labels, context).")
