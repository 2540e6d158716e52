"""Another pooling for a model at hand: the classifier around its backbone is exchanged, before it was trained."""

from __future__ import annotations

import logging
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from ..modeling.configuration_pooled import config_with_pooling
from ..modeling.modeling_lwal import LwALPreTrainedModel
from ..modeling.modeling_pooled import LwALPooledForSequenceClassification
from ..modeling.peft_support import active_adapters
from ..objectives.stock import stock_task
from ..settings.applying import is_trained

logger = logging.getLogger(__name__)


def with_pooling(model: nn.Module, pooling: str | None) -> nn.Module:
    """The model with the pooling that was asked for, around the same backbone.

    Args:
        model: an LwAL model, whose table starts empty where its pooling changes, or a stock classifier.
        pooling: as in `AutoModelForLwALClassification.from_pretrained`; None leaves the model as it is.

    Raises:
        ValueError: the model was trained, has an adapter, or cannot pool as asked.
    """
    if pooling is None or not isinstance(model, PreTrainedModel):
        return _adapted(model, pooling)
    encoder: Any = model.encoder if isinstance(model, LwALPreTrainedModel) else model
    task = model.task if isinstance(model, LwALPreTrainedModel) else stock_task(model)
    config = config_with_pooling(encoder.config, task, encoder.config.name_or_path or None, pooling)
    if config is encoder.config or config.to_dict() == encoder.config.to_dict():
        return model
    _adapted(model, pooling)
    if isinstance(model, LwALPreTrainedModel) and is_trained(model):
        raise ValueError(
            f"This model was trained with pooling={model.config.pooling!r}, but lwal_pooling asks for {pooling!r}: "
            "leave it out, or start from the backbone."
        )
    pooled = _around(encoder, LwALPooledForSequenceClassification(config)).train(model.training)
    logger.info(
        "The classifier around %s pools by %s now; its head is fresh.", type(pooled.base_model).__name__, pooling
    )
    if not isinstance(model, LwALPreTrainedModel):
        return pooled
    model.encoder, model.config.encoder_config, model.config.head_name = pooled, pooled.config, "classifier"
    model._encoder_arguments = None
    model.reset_label_table()
    return model


def _adapted(model: nn.Module, pooling: str | None) -> nn.Module:
    """The model, which must have no adapter where its pooling is to change."""
    if pooling is not None and active_adapters(model) is not None:
        raise ValueError(
            f"lwal_pooling={pooling!r} cannot reach through an adapter: load the model with pooling={pooling!r}, then "
            "put the adapter around it."
        )
    return model


def _around(
    encoder: PreTrainedModel, pooled: LwALPooledForSequenceClassification
) -> LwALPooledForSequenceClassification:
    """Put the backbone of a classifier into a pooled one, as it is: its weights, dtype, device and frozen layers."""
    backbone: Any = encoder.base_model
    if type(backbone) is not type(pooled.base_model):
        raise ValueError(
            f"{type(encoder).__name__} is built around {type(backbone).__name__}, and pooling needs "
            f"{type(pooled.base_model).__name__}: load the model with "
            "AutoModelForLwALClassification.from_pretrained(name, pooling=…)."
        )
    if getattr(pooled.base_model, "pooler", None) is None and getattr(backbone, "pooler", None) is not None:
        backbone.pooler = None  # nothing would train it
    setattr(pooled, pooled.base_model_prefix, backbone)
    pooled.classifier.to(device=backbone.device, dtype=backbone.dtype)
    return pooled
