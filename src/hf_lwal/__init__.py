"""hf-lwal: Learning with Adaptive Labels for Hugging Face models (Yu & Verma, 2022, arXiv:2209.04528)."""

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from .modeling.auto import AutoModelForLwALClassification
    from .modeling.configuration_lwal import LwALConfig
    from .modeling.core import LwALClassifierOutput
    from .modeling.label_table import LabelTable
    from .modeling.modeling_lwal import (
        LwALForAudioClassification,
        LwALForImageClassification,
        LwALForSequenceClassification,
    )
    from .settings.training_args import LwALTrainingArguments
    from .training.callbacks import CentroidRefreshCallback
    from .training.trainer import LwALTrainer

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

# PyTorch and transformers take seconds, which a help text should not wait for.
_ON_FIRST_USE = {
    "AutoModelForLwALClassification": "modeling.auto",
    "CentroidRefreshCallback": "training.callbacks",
    "LabelTable": "modeling.label_table",
    "LwALClassifierOutput": "modeling.core",
    "LwALConfig": "modeling.configuration_lwal",
    "LwALForAudioClassification": "modeling.modeling_lwal",
    "LwALForImageClassification": "modeling.modeling_lwal",
    "LwALForSequenceClassification": "modeling.modeling_lwal",
    "LwALTrainer": "training.trainer",
    "LwALTrainingArguments": "settings.training_args",
}

_MOVED = {
    "bench": "benchmark comparison frozen_regression progress",
    "cli": "commands flags quickstart terminal",
    "data": "labels sample_ids start_budget streams",
    "hierarchy": "label_vectors wordnet",
    "metrics": "running_time",
    "modeling": "auto configuration_lwal configuration_pooled distributed export files fold_check head_start heads "
    "hub_code inference label_editing label_rows label_table label_table_file label_tracking linear_fold loading "
    "modeling_lwal modeling_pooled name_start onnx_export open_set peft_support peft_targets pictures pooling "
    "probe_start probes quantisation saving sentence_export sounds start tasks",
    "settings": "presets training_args",
    "training": "best_model callbacks checkpoints exact_accumulation folder_lock "
    "label_log own_loss own_optimizer repooling sharding trainer",
}
"""Folder → modules that lay beside it, one level up, before the package had folders; the old names go in 0.3."""


def __getattr__(name: str) -> Any:
    if name not in _ON_FIRST_USE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_ON_FIRST_USE[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)


class _FindMoved(MetaPathFinder, Loader):
    """``hf_lwal.labels`` still finds what is ``hf_lwal.data.labels`` now: the same module, and a warning."""

    _folders: ClassVar = {name: folder for folder, names in _MOVED.items() for name in names.split()}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, name = fullname.partition(".")
        return ModuleSpec(fullname, self) if package == __name__ and name in self._folders else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        name = spec.name.partition(".")[2]
        folder = f"{__name__}.{self._folders[name]}"
        now = folder if name in ("benchmark", "commands") else f"{folder}.{name}"
        warnings.warn(f"{spec.name} is now {now}, and the old name goes in 0.3.", FutureWarning, stacklevel=2)
        module = import_module(now)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # the import system has put its own in the place of it


class _AcquaintTransformers(MetaPathFinder, Loader):
    """Registers the models with transformers' Auto classes as soon as these are imported, and not before."""

    _modules: ClassVar = {
        "transformers.models.auto.configuration_auto": ".modeling.configuration_lwal",
        "transformers.models.auto.modeling_auto": ".modeling.auto",
    }
    """Module of transformers → module of ours that registers with it."""

    def __init__(self) -> None:
        self._loaders: dict[str, Loader] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._modules or fullname in self._loaders:
            return None
        self._loaders[fullname] = self  # so that the search below passes by here
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            self._loaders[fullname], spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loaders[spec.name].create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loaders[module.__name__]
        module.__spec__.loader.exec_module(module)
        ours = self._modules[module.__name__]
        # A configuration that is being imported has asked for AutoConfig, and registers itself at its end.
        if f"{__name__}.modeling.configuration_pooled" not in sys.modules or ours == ".modeling.auto":
            import_module(ours, __name__)


def _make_ready() -> None:
    acquaint = _AcquaintTransformers()
    sys.meta_path[:0] = [_FindMoved(), acquaint]
    for theirs, ours in acquaint._modules.items():
        if theirs in sys.modules:
            import_module(ours, __name__)


_make_ready()
