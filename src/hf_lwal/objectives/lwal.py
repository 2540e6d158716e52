"""Learning with adaptive labels: cross-entropy of negative distances to learned label vectors.

Yu & Verma, "Improving Model Training via Self-learned Label Representations" (2022), arXiv:2209.04528, Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from torch import Tensor, nn
from transformers import PreTrainedModel

from ..modeling.auto import AutoModelForLwALClassification
from ..modeling.modeling_lwal import LwALPreTrainedModel
from ..modeling.start import StartSamples
from .base import LossContext, Objective, ObjectiveLoss


class LwAL(Objective):
    """Pull rows to the label vector of their class, optionally repel rows of different classes.

    Args:
        scale: start value of the logits' scale; None calibrates it on the start rows.
    """

    citation: ClassVar[str] = "Yu & Verma (2022), arXiv:2209.04528"
    passes_labels: ClassVar[bool] = True
    reads_logits: ClassVar[bool] = False
    counts_label_names: ClassVar[bool] = True

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "loss" in vars(cls) and "reads_logits" not in vars(cls):
            cls.reads_logits = True

    def __init__(self, scale: float | None = None) -> None:
        super().__init__()
        self.scale = scale

    def prepare_model(self, model: nn.Module) -> nn.Module:
        """Wrap a stock classifier; an LwAL model stays as it is."""
        if isinstance(model, PreTrainedModel) and not isinstance(model, LwALPreTrainedModel):
            return AutoModelForLwALClassification.from_stock(model)
        return model

    def wants_start(self, model: PreTrainedModel) -> bool:
        """Start from class means unless label vectors are to start one-hot in the embeddings space, as the paper's."""
        config = model.config
        empty = not bool(model.label_table.seen.any())
        return empty and (config.initial_labels == "class_means" or config.space == "features")

    def fitted_sizes(self, model: PreTrainedModel) -> tuple[int, int, int] | None:
        """Those of head and offset, where both start fitted."""
        sizes: tuple[int, int, int] | None = model.fitted_sizes
        return sizes

    def start_values(self, model: PreTrainedModel) -> Callable[[dict[str, Any]], Tensor]:
        """Features, or embeddings in the embeddings space."""
        return model.start_values

    def start(
        self, model: PreTrainedModel, samples: StartSamples, learning_rate: float | None = None
    ) -> dict[str, float]:
        """Head, class means and scale from the start rows."""
        calibrated = model.start_from(samples, self.scale, learning_rate)
        return {"start_scale": calibrated}

    def loss(self, outputs: Any, labels: Tensor, context: LossContext) -> ObjectiveLoss:
        """Pull loss, Eq. (3), plus the weighted repel loss, Eq. (4), on refresh steps."""
        targets = context.model.trainable_labels(labels) if context.training else labels
        pull = context.classification_loss(outputs, labels, targets)
        terms = {"pull_loss": pull.detach()}
        weight = context.model.config.repel_weight
        if not context.training or weight == 0 or not context.model.refresh_due:
            return ObjectiveLoss(pull, terms)
        # Sums over ranks make the repel loss equal on all of them, so it needs no factor for the averaging.
        repel = context.model.repel(outputs["embeddings"], labels) / context.micro_batches
        return ObjectiveLoss(pull + weight * repel, {**terms, "repel_loss": repel.detach()})
