"""The paper's step under gradient accumulation, exactly: centroids of the whole step, gradient through all of them.

Pass 1 embeds all micro-batches without gradient. Pass 2 embeds them again one by one with gradient, and takes the loss
of *all* rows as a function of this micro-batch's embeddings, both directly and through the centroids: the gradients of
the micro-batches then add up to the gradient of the whole step, while one micro-batch's activations are in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..modeling.algorithm import BatchCentroids
from ..modeling.core import LwALClassifierOutput
from ..modeling.modeling_lwal import LwALPreTrainedModel
from ..modeling.start import keep_batch_norms, own_random_state
from ..objectives import LossContext, Objective, ObjectiveLoss


class WholeStep:
    """Embeddings and labels of all micro-batches of one optimizer step on this rank.

    Args:
        embeddings: per micro-batch (B, D) float32, without gradient.
        labels: per micro-batch (B,) int64.
    """

    def __init__(self, embeddings: Sequence[Tensor], labels: Sequence[Tensor]) -> None:
        self.embeddings = list(embeddings)
        self.labels = list(labels)
        self.done = 0

    @classmethod
    @torch.no_grad()
    def collect(cls, model: LwALPreTrainedModel, batches: Sequence[dict[str, Any]]) -> WholeStep:
        """Pass 1: embed all micro-batches in training mode.

        The random state is put back, so that pass 2 draws the same dropout masks, and BatchNorm statistics are, since
        pass 2 counts the rows again.
        """
        model.train()
        inputs = [{name: value for name, value in batch.items() if name != "labels"} for batch in batches]
        with own_random_state(), keep_batch_norms(model):
            embeddings = [model.embed(part) for part in inputs]
        return cls(embeddings, [batch["labels"] for batch in batches])

    def loss(self, objective: Objective, embeddings: Tensor, context: LossContext) -> ObjectiveLoss:
        """Pass 2: loss of the whole step as a function of the next micro-batch's embeddings.

        Args:
            objective: whose loss it is.
            embeddings: (B, D) of the next micro-batch, with gradient.
            context: what the trainer knows about the step; the centroids replace the label vectors of its model.

        Returns:
            A loss with the gradient of the whole step and the value of this micro-batch's share of it, so that the
            micro-batches' values add up.
        """
        model = context.model
        parts = [part.to(embeddings) for part in self.embeddings]
        parts[self.done] = embeddings
        self.done += 1
        rows, labels = torch.cat(parts), torch.cat(self.labels)  # (all rows of this rank, D)
        vectors, _ = BatchCentroids.centroids(model.label_table, rows, labels)
        outputs = LwALClassifierOutput(logits=model.label_table(rows, vectors, labels), embeddings=rows)
        loss, terms = objective.loss(outputs, labels, replace(context, micro_batches=1))
        share = {name: value / len(parts) for name, value in terms.items()}
        return ObjectiveLoss(loss - loss.detach() * (1.0 - 1.0 / len(parts)), share)

    @torch.no_grad()
    def commit(self, model: LwALPreTrainedModel) -> None:
        """Step end: store the centroids of the whole step."""
        table, rows = model.label_table, torch.cat(self.embeddings)
        BatchCentroids.store(table, *BatchCentroids.centroids(table, rows, torch.cat(self.labels)))
