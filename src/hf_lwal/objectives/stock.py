"""What all methods that train the plain stock classifier share: which model they train, and where its head is."""

from __future__ import annotations

from torch import nn
from transformers import PreTrainedModel

from ..modeling.heads import Head, find_head, replace_head
from ..modeling.modeling_lwal import LwALPreTrainedModel
from ..modeling.tasks import stock_classes
from .base import Objective


class StockObjective(Objective):
    """Base of the methods that change the loss only: what they save is a plain checkpoint of transformers."""

    def prepare_model(self, model: nn.Module) -> nn.Module:
        """Turn an LwAL model whose table was never trained back into the stock classifier of its backbone."""
        return stock_classifier(model) if isinstance(model, LwALPreTrainedModel) else model


def stock_task(model: PreTrainedModel) -> str:
    """Task of a stock classifier, from the mapping its class is in."""
    for task, classes in stock_classes(model.config).items():
        if isinstance(model, classes):
            return task
    raise ValueError(f"{type(model).__name__} is not a text, image or audio classifier of transformers.")


def stock_head(model: PreTrainedModel) -> Head:
    """The one linear head of a stock classifier.

    Raises:
        ValueError: it has none, or several.
    """
    head = find_head(model.config, stock_task(model))
    if head is None:
        raise ValueError(f"{type(model).__name__} has no single linear head, whose input this method needs.")
    return head


def stock_classifier(model: LwALPreTrainedModel) -> PreTrainedModel:
    """The stock classifier with C outputs on the backbone of an untrained LwAL model, which gives it up.

    Raises:
        ValueError: the label table was trained, and would be lost.
    """
    if bool(model.label_table.seen.any()) or model.optimizer_step > 0:
        raise ValueError(
            f"This {type(model).__name__} has a trained label table, which one-hot training would discard: start from "
            "the backbone, or fold the model into a stock classifier first."
        )
    if model.config.head_name is None:
        raise ValueError("This encoder has no single linear head: load the stock classifier for one-hot training.")
    encoder, names = model.encoder, model.config.label_names
    replace_head(encoder, Head(model.config.head_name, model.head_module.in_features), model.config.num_labels)
    encoder.config.id2label = names
    encoder.config.label2id = {name: index for index, name in names.items()}
    return encoder.train(model.training)
