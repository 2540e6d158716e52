"""Static label vectors: embeddings regress a fixed vector per class, such as the text embedding of its name.

Chen, Li, Raghupathi & Lipson, "Beyond Categorical Label Representations for Image Classification", ICLR 2021,
https://arxiv.org/abs/2104.02226, section 3: Huber loss to the label vector, the nearest label vector predicts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..modeling.auto import AutoModelForLwALClassification
from ..modeling.distributed import broadcast_
from ..modeling.functional import IGNORE_INDEX, at_least_float32
from ..modeling.label_table import LabelTable
from ..modeling.modeling_lwal import LwALPreTrainedModel
from ..modeling.peft_support import core_model
from ..modeling.start import own_random_state
from ..settings.applying import apply_config
from ..settings.presets import STATIC
from .base import LossContext, Objective, ObjectiveLoss

logger = logging.getLogger(__name__)

Source = str | Any | Callable[[list[str]], Any]


class StaticLabel(Objective):
    """Huber loss between the embedding and the label vector of the class; label vectors never move.

    The model is an LwAL model whose class means are never refreshed, without offset and learned scale. Label vectors
    wider than the embeddings are reduced by PCA, narrower ones are padded with zeros. They are not rescaled: the log
    states their mean length and mean distance at the start.

    Args:
        source: a text model whose embeddings of the class names are used (local folder or Hub id), an array (C, K),
            or a callable from the list of class names to such an array.
        scale: scale of the logits ``-scale * distance``; it sets how sure predictions sound, not which they are.
        delta: where the Huber loss turns from squared to absolute.
    """

    citation: ClassVar[str] = "Chen et al., ICLR 2021, arXiv:2104.02226"
    refreshes_labels: ClassVar[bool] = False

    def __init__(self, source: Source | None = None, scale: float = 1.0, delta: float = 1.0) -> None:
        super().__init__()
        self.source = source
        self.scale = scale
        self.delta = delta

    def prepare_model(self, model: nn.Module) -> nn.Module:
        """Wrap a stock classifier and switch off everything that moves label vectors."""
        if isinstance(model, PreTrainedModel) and not isinstance(model, LwALPreTrainedModel):
            model = AutoModelForLwALClassification.from_stock(model)
        apply_config(core_model(model), STATIC)
        return model

    def begin(self, model: Any) -> dict[str, float]:
        """Fill the table with the label vectors; a table that is filled already, as of a saved model, stays."""
        table = model.label_table
        if not bool(table.seen.any()):
            self._fill(model, table)
        return {
            "label_vector_length": table.label_vectors.norm(dim=1).mean().item(),
            "label_vector_distance": table.distances().sum().item() / (table.num_labels * (table.num_labels - 1)),
            "label_scale": table.scale.item(),
        }

    def _fill(self, model: Any, table: LabelTable) -> None:
        with own_random_state():
            vectors = fit_to_dimension(self._vectors(list(model.config.label_names.values())), table.embedding_dim)
        with torch.no_grad():
            table.class_features.copy_(vectors)
            broadcast_(table.class_features)
            table.label_vectors.copy_(table.class_features)
            table.counts.fill_(1)
        table.set_scale(self.scale)
        model.labels_are_current()

    def loss(self, outputs: Any, labels: Tensor, context: LossContext) -> ObjectiveLoss:
        """Mean Huber loss over the rows of the whole step, weighted by class."""
        if context.own_loss is not None:
            return ObjectiveLoss(context.classification_loss(outputs, labels, labels), {})
        rows = huber_to_label(outputs["embeddings"], context.model.label_table.label_vectors, labels, self.delta)
        if context.class_weights is not None:
            rows = rows * context.class_weights.to(rows)[labels.clamp(min=0)]
        return ObjectiveLoss(context.mean(rows, labels), {})

    def _vectors(self, names: list[str]) -> Tensor:
        if self.source is None:
            raise ValueError(
                "static_label needs label vectors: set label_static_model to a text model (local folder or Hub id) "
                "that embeds the class names, or pass objective=StaticLabel(array) to LwALTrainer."
            )
        found: Any = self.source
        if isinstance(self.source, str):
            if all(name.startswith("LABEL_") for name in names):
                logger.warning("The labels are called LABEL_0 and so on, which tells a text model nothing of them.")
            found = text_embeddings(names, self.source)
        elif callable(self.source):
            found = self.source(names)
        vectors = found.detach() if isinstance(found, Tensor) else torch.as_tensor(np.asarray(found))
        vectors = vectors.to("cpu", torch.float32)
        if vectors.ndim != 2 or len(vectors) != len(names):
            raise ValueError(
                f"Label vectors must have shape ({len(names)}, K), one row per label, but have {tuple(vectors.shape)}."
            )
        return vectors


def huber_to_label(embeddings: Tensor, label_vectors: Tensor, labels: Tensor, delta: float = 1.0) -> Tensor:
    """Huber loss of every row to its label vector, the mean over dimensions.

    ``d^2 / 2`` where ``|d| <= delta``, else ``delta (|d| - delta / 2)``, with d the difference in one dimension.

    Args:
        embeddings: (B, D) floating point.
        label_vectors: (C, D).
        labels: (B,) int64; -100 rows give 0.
        delta: above 0.

    Returns:
        (B,) in at least float32.
    """
    embeddings = at_least_float32(embeddings)
    own = label_vectors[labels.clamp(min=0)].to(embeddings.dtype)  # (B, D)
    rows = F.huber_loss(embeddings, own, reduction="none", delta=delta).mean(dim=1)  # (B,)
    return torch.where(labels == IGNORE_INDEX, 0.0, rows)


def fit_to_dimension(vectors: Tensor, dim: int) -> Tensor:
    """Bring label vectors to ``dim`` dimensions: PCA where they have more, zeros at the end where fewer.

    With no more labels than dimensions PCA keeps all distances.

    Args:
        vectors: (C, K) float32.
        dim: D.

    Returns:
        (C, D) float32.
    """
    if vectors.shape[1] > dim:
        centred = (vectors - vectors.mean(dim=0)).double()  # (C, K)
        _, _, directions = torch.linalg.svd(centred, full_matrices=False)  # (min(C, K), K)
        largest = directions.gather(1, directions.abs().argmax(dim=1, keepdim=True))
        directions = (directions * largest.sign())[:dim]  # the sign of a direction is arbitrary: fix it
        vectors = (centred @ directions.T).float()
    return F.pad(vectors, (0, dim - vectors.shape[1]))


@torch.no_grad()
def text_embeddings(names: Sequence[str], model: str, batch_size: int = 64) -> Tensor:
    """Mean of a text model's last hidden states over the tokens of each name.

    Args:
        names: class names; underscores count as spaces.
        model: local folder or Hub id of a text model with its tokenizer.
        batch_size: names per forward pass.

    Returns:
        (C, K) float32 on the CPU.
    """
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=False)
    encoder = AutoModel.from_pretrained(model, trust_remote_code=False).float().eval()
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    means = []
    for start in range(0, len(names), batch_size):
        texts = [name.replace("_", " ") for name in names[start : start + batch_size]]
        inputs = tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
        mask = inputs["attention_mask"].unsqueeze(2)  # (n, T, 1)
        states = encoder(**inputs).last_hidden_state  # (n, T, K)
        means.append((states * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1))
    return torch.cat(means)
