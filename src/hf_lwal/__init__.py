"""hf-lwal: Learning with Adaptive Labels for Hugging Face models (Yu & Verma, 2022, arXiv:2209.04528)."""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .auto import AutoModelForLwALClassification
    from .callbacks import CentroidRefreshCallback
    from .configuration_lwal import LwALConfig
    from .label_table import LabelTable
    from .modeling_lwal import (
        LwALClassifierOutput,
        LwALForAudioClassification,
        LwALForImageClassification,
        LwALForSequenceClassification,
    )
    from .trainer import LwALTrainer
    from .training_args import LwALTrainingArguments

__version__ = "0.1.0"

__all__ = [
    "AutoModelForLwALClassification",
    "CentroidRefreshCallback",
    "LabelTable",
    "LwALClassifierOutput",
    "LwALConfig",
    "LwALForAudioClassification",
    "LwALForImageClassification",
    "LwALForSequenceClassification",
    "LwALTrainer",
    "LwALTrainingArguments",
]

# transformers' Trainer imports datasets and, where installed, scikit-learn: who only loads and serves a model need not
# wait for them.
_ON_FIRST_USE = {
    "AutoModelForLwALClassification": "auto",
    "CentroidRefreshCallback": "callbacks",
    "LabelTable": "label_table",
    "LwALClassifierOutput": "modeling_lwal",
    "LwALConfig": "configuration_lwal",
    "LwALForAudioClassification": "modeling_lwal",
    "LwALForImageClassification": "modeling_lwal",
    "LwALForSequenceClassification": "modeling_lwal",
    "LwALTrainer": "trainer",
    "LwALTrainingArguments": "training_args",
}


def __getattr__(name: str) -> Any:
    if name not in _ON_FIRST_USE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_ON_FIRST_USE[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)


# With this import transformers' own Auto classes know the models. It takes seconds; the command line, which reads its
# words and prints help without it, does it later (hf_lwal_command.py).
if not getattr(sys.modules.get("hf_lwal_command"), "loading", False):
    import_module(".auto", __name__)
