"""Label embedding: a second head learns which labels resemble each other, and the first one learns from that.

Sun, Wei, Ren & Ma, "Label Embedding Network: Learning Label Representation for Soft Training of Deep Networks", 2017,
https://arxiv.org/abs/1710.10393, section 2, and the authors' code for the constants.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from ..modeling.distributed import all_reduce_sum
from ..modeling.functional import IGNORE_INDEX, at_least_float32, cross_entropy
from ..modeling.peft_support import core_model
from ..modeling.start import own_random_state
from .base import LossContext, ObjectiveLoss
from .stock import StockObjective, stock_head


class LabelEmbedding(StockObjective):
    """``beta L1 + (1 - beta) L2 + L3 + L4 + L5`` of `label_embedding_losses`; the stock model's head predicts.

    L1, L2 and L3 are means over the rows of the whole step, L4 is a mean over those that the second head gets right,
    and L5 is a sum, as in the original. L1 and L2 train the model; L3, L4 and L5 train the second head and the label
    embedding, for the second head sees the features without gradient. Evaluation uses the cross-entropy alone.

    Args:
        beta: weight of the hard label against the label embedding's distribution.
        temperature: tau that softens what the label embedding learns from.
        threshold: alpha, probability above which the second head is held back.
    """

    citation: ClassVar[str] = "Sun et al. (2017), arXiv:1710.10393"
    accumulation_caveat: ClassVar[str | None] = (
        "With gradient accumulation the label embedding's own loss is averaged per micro-batch over the rows that the "
        "second head gets right, not over those of the whole step."
    )
    embedding: nn.Parameter
    second_head: nn.Linear

    def __init__(self, beta: float = 0.5, temperature: float = 2.0, threshold: float = 0.9) -> None:
        super().__init__()
        self.beta = beta
        self.temperature = temperature
        self.threshold = threshold

    @property
    def similarities(self) -> Tensor:
        """(C, C) float32: row y is the distribution over labels that rows of class y learn; detached."""
        return self.embedding.detach().softmax(dim=1)

    def prepare_model(self, model: nn.Module) -> nn.Module:
        """Add the second head and the label embedding, which starts as the identity."""
        model = super().prepare_model(model)
        core: Any = core_of(model)
        head = stock_head(core)
        shape = (core.config.num_labels, head.in_features)
        if "second_head" not in self._modules or tuple(self.second_head.weight.shape) != shape:
            with own_random_state():  # the caller's random stream must not depend on the method
                self.second_head = nn.Linear(head.in_features, core.config.num_labels)
            self.embedding = nn.Parameter(torch.eye(core.config.num_labels))
        self._head_name = head.name
        keeps_input(core.get_submodule(head.name))
        return model

    def forward_model(self, model: nn.Module, inputs: dict[str, Any]) -> Any:
        """Outputs of the model with the input of its head, (B, H) without gradient, as ``features``."""
        if isinstance(model, nn.DataParallel):
            raise ValueError(
                "label_embed needs the input of the head, which nn.DataParallel does not give back: start one process "
                "per GPU with `accelerate launch` or `torchrun`."
            )
        if not model.training:
            return super().forward_model(model, inputs)
        head: Any = core_of(model).get_submodule(self._head_name)
        head._lwal_keeps_input = True
        try:
            outputs = super().forward_model(model, inputs)
            outputs["features"] = head._lwal_input
        finally:
            head._lwal_keeps_input, head._lwal_input = False, None
        return outputs

    def loss(self, outputs: Any, labels: Tensor, context: LossContext) -> ObjectiveLoss:
        """All five losses in training; the cross-entropy in evaluation."""
        first = context.classification_loss(outputs, labels, labels)
        if not context.training:
            return ObjectiveLoss(first, {})
        with torch.autocast(labels.device.type, enabled=False):
            second_logits = self.second_head(outputs["features"].to(self.second_head.weight.dtype))  # (B, C)
        rows = label_embedding_losses(
            outputs["logits"], second_logits, self.embedding, labels, self.temperature, self.threshold
        )
        world = context.world_size
        right = all_reduce_sum(rows.right.sum()) if world > 1 else rows.right.sum()
        soft, second = context.mean(rows.soft, labels), context.mean(rows.second, labels)
        embedding = world * (rows.right * rows.embedding).sum() / (right + 1e-8) / context.micro_batches
        excess = world * rows.excess.sum()
        loss = self.beta * first + (1.0 - self.beta) * soft + second + embedding + excess
        terms = {"soft_loss": soft, "second_loss": second, "embedding_loss": embedding, "excess_loss": excess}
        return ObjectiveLoss(loss, {name: value.detach() for name, value in terms.items()})


class LabelEmbeddingLosses(NamedTuple):
    """Losses of every row, all (B,) and 0 for rows without a label.

    Attributes:
        soft: L2, cross-entropy of the model against the label embedding's distribution.
        second: L3, cross-entropy of the second head.
        embedding: L4, cross-entropy of the label embedding against the softened second head.
        right: 1 where the second head's likeliest label is the row's, which are the rows that L4 is averaged over.
        excess: L5, the second head's probability of the label above the threshold.
    """

    soft: Tensor
    second: Tensor
    embedding: Tensor
    right: Tensor
    excess: Tensor


def label_embedding_losses(
    logits: Tensor,
    second_logits: Tensor,
    embedding: Tensor,
    labels: Tensor,
    temperature: float = 2.0,
    threshold: float = 0.9,
) -> LabelEmbeddingLosses:
    """The losses besides the cross-entropy of the model, row by row.

    With e = ``embedding[y]`` and CE(t, z) = ``-sum_c t_c log softmax(z)_c``:
    L2 = CE(softmax(e), logits), L3 = CE(y, second), L4 = CE(softmax(second / tau), e) where argmax second = y,
    L5 = relu(softmax(second)_y - alpha); targets carry no gradient.

    Args:
        logits: (B, C) of the model.
        second_logits: (B, C) of the second head.
        embedding: (C, C).
        labels: (B,) int64; -100 rows give 0.
        temperature: tau > 0.
        threshold: alpha.
    """
    logits, second_logits = at_least_float32(logits), at_least_float32(second_logits)
    labelled, own = labels != IGNORE_INDEX, labels.clamp(min=0)
    of_label = embedding[own]  # (B, C)
    soft = -(of_label.detach().softmax(dim=1) * logits.log_softmax(dim=1)).sum(dim=1)
    target = (second_logits.detach() / temperature).softmax(dim=1)
    from_second = -(target * of_label.log_softmax(dim=1)).sum(dim=1)
    probability = second_logits.softmax(dim=1).gather(1, own.unsqueeze(1)).squeeze(1)
    right = (second_logits.argmax(dim=1) == labels).to(logits.dtype)
    return LabelEmbeddingLosses(
        soft=torch.where(labelled, soft, 0.0),
        second=cross_entropy(second_logits, labels, reduction="none"),
        embedding=torch.where(labelled, from_second, 0.0),
        right=right,
        excess=torch.where(labelled, (probability - threshold).relu(), 0.0),
    )


def eigen_embedding(similarities: Tensor, dim: int | None = None) -> Tensor:
    """Vectors whose inner products come closest to a similarity matrix, by eigendecomposition.

    With ``(S + S^T) / 2 = Q diag(l) Q^T`` they are ``Q sqrt(max(l, 0))``, the largest eigenvalue first. They stand for
    the labels where label vectors are compared, since this method has none.

    Args:
        similarities: (C, C), for example `LabelEmbedding.similarities`.
        dim: number of dimensions to keep; all C when None.

    Returns:
        (C, dim) of the dtype of ``similarities``, at least float32.
    """
    symmetric = at_least_float32(similarities)
    values, vectors = torch.linalg.eigh((symmetric + symmetric.T) / 2.0)  # ascending
    scaled = vectors * values.clamp(min=0.0).sqrt()  # (C, C)
    return scaled.flip(1)[:, :dim]


def core_of(model: Any) -> Any:
    """The stock model inside the wrappers of data parallelism, compilation and adapters."""
    model = getattr(model, "module", model)
    model = getattr(model, "_orig_mod", model)
    return core_model(model)


def keeps_input(head: Any) -> None:
    """Add the hook that keeps the head's input while ``head._lwal_keeps_input`` is set; once, before compilation."""
    if _keep_input not in head._forward_hooks.values():
        head.register_forward_hook(_keep_input)


def _keep_input(module: Any, args: tuple[Any, ...], output: Any) -> None:
    if getattr(module, "_lwal_keeps_input", False):
        module._lwal_input = args[0].detach()
