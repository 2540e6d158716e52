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
MOVES_KEYS_OF_VIT = Version("5.9") <= TRANSFORMERS
"""Whether ViT's layers have other names than its checkpoints."""

exports_onnx = pytest.mark.skipif(find_spec("transformers.exporters") is None, reason="transformers before 5.13")
one_graph = pytest.mark.skipif(
    Version(torch.__version__) < Version("2.7"), reason="PyTorch 2.6 breaks the graph in transformers' own forward"
)
