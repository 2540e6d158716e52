"""Standard training: cross-entropy on the stock classifier's logits, the control of every comparison."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..modeling.class_moments import class_means, in_float64
from ..modeling.configuration_lwal import start_of_head
from ..modeling.distances import DistancesInParts, Part
from ..modeling.functional import calibrated_scale, without_names
from ..modeling.head_start import class_mean_projection, held_out_distances, write_linear
from ..modeling.heads import run_without_head
from ..modeling.linear_fold import folded_linear
from ..modeling.loading import default_embedding_dim
from ..modeling.probe_start import fit_start
from ..modeling.row_blocks import Distances
from ..modeling.start import StartSamples, finite_samples
from .base import LossContext, ObjectiveLoss
from .stock import StockObjective, stock_head, stock_task


class OneHot(StockObjective):
    """Cross-entropy, correct under accumulation and several ranks.

    Args:
        init: "class_means" starts the head as the nearest-class-mean classifier of a few rows per class, the head
            start that adaptive labels get; None keeps the model's head.
        initial_head: how that start measures distance to the class means: in the whitened space of the label table's
            head start ("whitened"), to the label vectors fitted to the rows ("probe"), as adaptive labels do by
            default ("auto"), else as it is.
    """

    citation: ClassVar[str] = "standard cross-entropy training"
    counts_label_names: ClassVar[bool] = True

    def __init__(self, init: str | None = None, initial_head: str | None = None) -> None:
        super().__init__()
        self.init = init
        self.initial_head = initial_head

    def wants_start(self, model: PreTrainedModel) -> bool:
        """Only for the class-means start."""
        return self.init == "class_means"

    def fitted_sizes(self, model: PreTrainedModel) -> tuple[int, int, int] | None:
        """Those that a label table of the default size would have."""
        if self.init != "class_means" or self._kind(model) != "probe":
            return None
        width, num_labels = stock_head(model).in_features, model.config.num_labels
        return width, num_labels, default_embedding_dim(num_labels, width)

    def start_values(self, model: PreTrainedModel) -> Callable[[dict[str, Any]], Tensor]:
        """Input of the head."""
        name = stock_head(model).name

        def values(inputs: dict[str, Any]) -> Tensor:
            return run_without_head(model, name, inputs).logits

        return values

    def start(
        self, model: PreTrainedModel, samples: StartSamples, learning_rate: float | None = None
    ) -> dict[str, float]:
        """Overwrite the head by the nearest-class-mean classifier of the start rows."""
        head, kind = stock_head(model), self._kind(model)
        build = fit_head if kind == "probe" else nearest_mean_head
        whiten = kind in ("probe", "whitened")
        values, labels = finite_samples(samples)[:2]
        weight, bias, scale = build(values, labels, model.config.num_labels, whiten, names=samples.names)
        layer = model.get_submodule(head.name)
        if layer.bias is None:
            raise ValueError(
                f"{type(model).__name__} has a head without bias, which cannot hold a class-means start: use "
                "lwal_init=None."
            )
        write_linear(layer, weight, bias)
        return {"start_scale": scale}

    def _kind(self, model: PreTrainedModel) -> str | None:
        return None if self.initial_head is None else start_of_head(self.initial_head, stock_task(model))

    def loss(self, outputs: Any, labels: Tensor, context: LossContext) -> ObjectiveLoss:
        """Mean cross-entropy over the rows of the whole step."""
        return ObjectiveLoss(context.classification_loss(outputs, labels, labels), {})


def nearest_mean_head(
    features: Tensor,
    labels: Tensor,
    num_labels: int,
    whiten: bool = False,
    held_out: Tensor | Distances | None = None,
    names: int = 0,
) -> tuple[Tensor, Tensor, float]:
    """Linear classifier whose softmax is that of ``-s |h - mean_c|^2``.

    ``W_c = 2 s (mean_c - m)`` and ``b_c = -s |mean_c - m|^2 - W_c m`` with m the mean of the class means; s has the
    least cross-entropy on rows held out.

    Args:
        features: (N, H) input of the head.
        labels: (N,) int64.
        num_labels: C.
        whiten: h is first divided by the square root of the shrunken within-class covariance.
        held_out: (N, C) distances for s; default: those to the means of the other rows.
        names: the last so many rows count for the means, but are none to predict.

    Returns:
        Weight (C, H) and bias (C,), float32, and s. Classes without rows get weight 0 and the smallest bias.
    """
    if whiten:
        sizes = (num_labels, features.shape[1])
        projection, shift = class_mean_projection(features, labels, *sizes)
        held_out = held_out_distances(features, labels, *sizes, names=names)
        rows = torch.arange(len(features), device=features.device)
        through = torch.cat([values @ projection.T + shift for _, values in in_float64(features, rows)])
        weight, bias, scale = nearest_mean_head(through, labels, num_labels, held_out=held_out, names=names)
        weight = weight.double()
        return (weight @ projection).float(), (bias.double() + weight @ shift).float(), scale
    means, counts = class_means(features, labels, num_labels)
    distances = _distances(features, Tensor.double, means, labels)
    scale = calibrated_scale(distances, without_names(labels, names), counts, power=2, held_out=held_out)
    seen = counts > 0
    centre = means[seen].mean(dim=0)
    weight = 2.0 * scale * (means - centre) * seen.unsqueeze(1)
    bias = -scale * (means - centre).square().sum(dim=1) - weight @ centre
    bias = torch.where(seen, bias, bias[seen].min())
    return weight.float(), bias.float(), scale


def fit_head(
    features: Tensor, labels: Tensor, num_labels: int, whiten: bool = True, names: int = 0
) -> tuple[Tensor, Tensor, float]:
    """Linear classifier whose softmax is that of ``-s |z - y_c|^2``, with embeddings and label vectors fitted to rows.

    It predicts what a model with a label table of the default size predicts after its fitted start; arguments and
    results as of `nearest_mean_head`, which it is where nothing is fitted.
    """
    sizes = num_labels, default_embedding_dim(num_labels, features.shape[1])
    fitted = fit_start(features, labels, *sizes, names=names)
    if fitted is None:
        return nearest_mean_head(features, labels, num_labels, whiten, names=names)
    means, counts = class_means(features, labels, num_labels)
    vectors = means @ fitted.weight.T + fitted.bias + fitted.offset  # (C, D)
    distances = _distances(features, lambda rows: rows.double() @ fitted.weight.T + fitted.bias, vectors, labels)
    measured = without_names(labels, names)
    scale = calibrated_scale(distances, measured, counts, power=2, held_out=fitted.held_out, smoothed=True)
    seen = counts > 0
    weight, bias = folded_linear(fitted.weight, fitted.bias, vectors, seen, temperature=1.0 / scale)
    return weight.float(), torch.where(seen, bias, bias[seen].min()).float(), scale


def _distances(
    features: Tensor, embed: Callable[[Tensor], Tensor], vectors: Tensor, labels: Tensor
) -> Tensor | Distances:
    """Distances (N, C) of features (N, H), once embedded, to vectors (C, D)."""
    every, seen = torch.ones_like(labels, dtype=torch.bool), vectors.new_ones(len(vectors), dtype=torch.bool)
    return DistancesInParts(features, len(vectors), [Part(every, embed, vectors, seen)], labels).stored_if_few()
