"""Marks of tests for what earlier releases have not."""

from importlib.util import find_spec

import pytest
import torch
import transformers
from packaging.version import Version

TRANSFORMERS = Version(transformers.__version__)
HAS_ALL_ARCHITECTURES = Version("5.24") <= TRANSFORMERS
"""Whether transformers has all that tests name; some in earlier releases do not run as they were published."""

CHECKPOINTING = "activation" if Version("5.23") <= TRANSFORMERS else "gradient"
"""What stands before ``_checkpointing`` in names of arguments and attributes."""
RENAMES_VIT = Version("5.9") <= TRANSFORMERS
"""Whether ViT's layers have other names than its checkpoints."""
DRAWS_RESNET_TWICE = Version("5.13") <= TRANSFORMERS
"""Whether a fresh ResNet has the weights that recorded trainings began with."""
STOCK_TAKES_PREFIXES = Version("5.24") > TRANSFORMERS
"""Whether backbones of stock text classifiers name ``past_key_values``."""
DIVIDES_TWICE = Version("5.5.4") > TRANSFORMERS
"""Whether the stock Trainer's gradients are divided by the micro-batches once more, those of stock models too."""
ONE_GRAPH = Version("2.7") <= Version(torch.__version__)
"""Whether a stock model is compiled without breaks."""

exports_onnx = pytest.mark.skipif(find_spec("transformers.exporters") is None, reason="transformers before 5.13")
shards = pytest.mark.skipif(not ONE_GRAPH, reason="PyTorch 2.6 cannot leave parameters out of a shard")
one_graph = pytest.mark.skipif(not ONE_GRAPH, reason="PyTorch 2.6 breaks the graph in transformers' own forward")


def without_oldest_names(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors under the model's names; transformers before 5.6 saves a BERT that was loaded under older ones."""
    if Version("5.6") <= TRANSFORMERS:
        return tensors
    endings = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
    for old, new in endings.items():
        tensors = {name.replace(old, new): tensor for name, tensor in tensors.items()}
    return tensors
