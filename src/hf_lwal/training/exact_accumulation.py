"""The paper's step under gradient accumulation, exactly: centroids of the whole step, gradient through all of them.

Pass 1 embeds all micro-batches without gradient. Pass 2 embeds them again one by one with gradient, and takes the loss
of *all* rows as a function of this micro-batch's embeddings, both directly and through the centroids: the gradients of
the micro-batches then add up to the gradient of the whole step, while one micro-batch's activations are in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..modeling.distributed import all_reduce_sum
from ..modeling.functional import class_sums, direction_sums, refreshed_label_vectors, repel_from_sums
from ..modeling.modeling_lwal import LwALClassifierOutput, LwALPreTrainedModel
from ..modeling.start import kept_batch_norms, own_random_state
from ..objectives import LossContext, ObjectiveLoss


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
        with own_random_state(), kept_batch_norms(model):
            embeddings = [model.embed(part) for part in inputs]
        return cls(embeddings, [batch["labels"] for batch in batches])

    def loss(self, model: LwALPreTrainedModel, embeddings: Tensor, context: LossContext) -> ObjectiveLoss:
        """Pass 2: loss of the whole step as a function of the next micro-batch's embeddings.

        Args:
            model: whose label vectors the centroids replace.
            embeddings: (B, D) of the next micro-batch, with gradient.
            context: what the trainer knows about the step.

        Returns:
            A loss with the gradient of the whole step and the value of this micro-batch's share of it, so that the
            micro-batches' values add up.
        """
        parts = [part.to(embeddings) for part in self.embeddings]
        parts[self.done] = embeddings
        self.done += 1
        rows, labels = torch.cat(parts), torch.cat(self.labels)  # (all rows of this rank, D)
        vectors = self._label_vectors(model, rows, labels)
        logits = model.label_table(rows, vectors, labels)
        pull = context.classification_loss(LwALClassifierOutput(logits=logits, embeddings=rows), labels, labels)
        terms = {"pull_loss": pull.detach() / len(parts)}
        loss = pull
        if model.config.repel_weight > 0:
            sums, counts = direction_sums(rows, labels, model.label_table.num_labels)
            repel = repel_from_sums(all_reduce_sum(sums), all_reduce_sum(counts))
            terms["repel_loss"] = repel.detach() / len(parts)
            loss = loss + model.config.repel_weight * repel
        return ObjectiveLoss(loss - loss.detach() * (1.0 - 1.0 / len(parts)), terms)

    @torch.no_grad()
    def commit(self, model: LwALPreTrainedModel) -> None:
        """Step end: store the centroids of the whole step."""
        sums, counts = class_sums(torch.cat(self.embeddings), torch.cat(self.labels), model.label_table.num_labels)
        model.label_table.centroids_of_batch(all_reduce_sum(sums), all_reduce_sum(counts))

    def _label_vectors(self, model: LwALPreTrainedModel, rows: Tensor, labels: Tensor) -> Tensor:
        table = model.label_table
        sums, counts = class_sums(rows, labels, table.num_labels)
        sums, counts = all_reduce_sum(sums), all_reduce_sum(counts)
        return refreshed_label_vectors(table.label_vectors.clone(), table.counts, sums, counts, memory=0)
