"""Small classifiers that are trained from scratch, as plain classes of transformers.

They stand for the set-ups of the literature that have no stock class: a convolutional network, a perceptron on pixels,
and two dense layers on the features of a frozen text encoder.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, ClassVar

from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers import initialization as init
from transformers.modeling_outputs import ImageClassifierOutput, SequenceClassifierOutput


class NetConfig(PreTrainedConfig):
    """What the three have in common.

    Attributes:
        input_size: channels of the image, its number of values, or the length of the features.
        hidden_sizes: outputs of each layer before the last.
        dropout: share of the last hidden values dropped in training.
    """

    input_size: int = 1
    hidden_sizes: list[int] | tuple[int, ...] = (32, 64, 128)
    dropout: float = 0.0


class ConvNetConfig(NetConfig):
    """Configuration of `ConvNetForImageClassification`."""

    model_type = "lwal_convnet"


class PerceptronConfig(NetConfig):
    """Configuration of `PerceptronForImageClassification`."""

    model_type = "lwal_perceptron"


class DenseConfig(NetConfig):
    """Configuration of `DenseForSequenceClassification`."""

    model_type = "lwal_dense"


class NetModel(PreTrainedModel):
    """Layers, then dropout, then one linear head."""

    config: NetConfig
    config_class = NetConfig
    base_model_prefix = "layers"

    def __init__(self, config: NetConfig) -> None:
        super().__init__(config)
        sizes = [config.input_size, *config.hidden_sizes]
        self.layers = self.build_layers(list(itertools.pairwise(sizes)))
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(sizes[-1], config.num_labels)
        self.post_init()

    def build_layers(self, sizes: list[tuple[int, int]]) -> nn.Module:
        """Layers from inputs to (B, last hidden size)."""
        raise TypeError(f"{type(self).__name__} must define build_layers(sizes).")

    def classify(self, values: Tensor, labels: Tensor | None) -> dict[str, Any]:
        """``logits`` (B, num_labels) of inputs (B, …) and, given labels (B,) int64, ``loss``."""
        scores: Tensor = self.classifier(self.dropout(self.layers(values)))
        return {"loss": None if labels is None else nn.functional.cross_entropy(scores, labels), "logits": scores}

    def _init_weights(self, module: nn.Module) -> None:
        # The base class has a spread for wide transformers, with which these learn slowly: PyTorch's own instead.
        if isinstance(module, nn.Conv2d):
            init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.Linear):
            bound = 1.0 / math.sqrt(module.in_features)
            init.kaiming_uniform_(module.weight, a=math.sqrt(5))
            init.uniform_(module.bias, -bound, bound)
        else:
            super()._init_weights(module)


class ImageNetModel(NetModel):
    """A network on pixels."""

    main_input_name = "pixel_values"

    def forward(self, pixel_values: Tensor, labels: Tensor | None = None, **_: Any) -> ImageClassifierOutput:
        """Classify pixels (B, channels, height, width) float32."""
        return ImageClassifierOutput(**self.classify(pixel_values, labels))


class ConvNetForImageClassification(ImageNetModel):
    """Convolution, BatchNorm and ReLU per hidden size, halving the sides, then the mean over the picture."""

    config_class = ConvNetConfig

    def build_layers(self, sizes: list[tuple[int, int]]) -> nn.Module:
        """(B, channels, height, width) → (B, last hidden size)."""
        blocks: list[nn.Module] = []
        for inputs, outputs in sizes:
            convolution = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
            blocks += [convolution, nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]
        return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten())


class PerceptronForImageClassification(ImageNetModel):
    """Linear, BatchNorm and ReLU per hidden size, on the flattened picture."""

    config_class = PerceptronConfig

    def build_layers(self, sizes: list[tuple[int, int]]) -> nn.Module:
        """(B, channels, height, width) → (B, last hidden size)."""
        blocks: list[nn.Module] = []
        for inputs, outputs in sizes:
            blocks += [nn.Linear(inputs, outputs), nn.BatchNorm1d(outputs), nn.ReLU()]
        return nn.Sequential(nn.Flatten(), *blocks)


class DenseForSequenceClassification(NetModel):
    """The paper's classifier of texts on frozen features: linear, ReLU, BatchNorm and dropout, then the head.

    As ``DenseEncoder`` and ``ClassificationModel`` of the reference implementation,
    https://github.com/jasonyux/Learning-with-Adaptive-Labels, algorithms/encoders.py and algorithms/base.py; without
    the L2 penalty that base.py declares and whose loss is never added.
    """

    config_class = DenseConfig
    main_input_name: ClassVar[str] = "inputs_embeds"

    def build_layers(self, sizes: list[tuple[int, int]]) -> nn.Module:
        """(B, features) → (B, last hidden size)."""
        blocks: list[nn.Module] = []
        for inputs, outputs in sizes:
            blocks += [nn.Linear(inputs, outputs), nn.ReLU(), nn.BatchNorm1d(outputs)]
        return nn.Sequential(*blocks)

    def forward(self, inputs_embeds: Tensor, labels: Tensor | None = None, **_: Any) -> SequenceClassifierOutput:
        """Classify pooled features (B, input_size) float32."""
        return SequenceClassifierOutput(**self.classify(inputs_embeds, labels))


# The trainer finds a classifier's head through these mappings, as for every stock class.
for _config, _model, _auto in (
    (ConvNetConfig, ConvNetForImageClassification, AutoModelForImageClassification),
    (PerceptronConfig, PerceptronForImageClassification, AutoModelForImageClassification),
    (DenseConfig, DenseForSequenceClassification, AutoModelForSequenceClassification),
):
    AutoConfig.register(_config.model_type, _config)
    _auto.register(_config, _model)
