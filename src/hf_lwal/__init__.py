"""hf-lwal: Learning with Adaptive Labels for Hugging Face models (Yu & Verma, 2022, arXiv:2209.04528)."""

import sys
import threading
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

__version__ = "0.2.0"

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


_FOLDERS_BEFORE = ("benchmark", "commands")
"""Those of them that were folders themselves."""


def __getattr__(name: str) -> Any:
    if name not in _ON_FIRST_USE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_ON_FIRST_USE[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)


class _FindMoved(MetaPathFinder):
    """``hf_lwal.labels`` still finds what is ``hf_lwal.data.labels`` now: the same module, and a warning."""

    _folders: ClassVar = {name: folder for folder, names in _MOVED.items() for name in names.split()}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, place = fullname.partition(".")
        top, _, inside = place.partition(".")
        if package != __name__ or top not in self._folders:
            return None
        moved = (self._folders[top], "" if top in _FOLDERS_BEFORE else top, inside)
        return ModuleSpec(fullname, _Moved(".".join((__name__, *filter(None, moved)))))


class _Moved(Loader):
    """Gives the module that has another name now."""

    def __init__(self, now: str) -> None:
        self.now = now

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        warnings.warn(f"{spec.name} is now {self.now}, and the old name goes in 0.3.", FutureWarning, stacklevel=2)
        module = import_module(self.now)
        self.spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.spec  # the import system has put its own in the place of it


class _AcquaintTransformers(MetaPathFinder):
    """Registers the models with transformers' Auto classes as soon as these are imported, and not before."""

    modules: ClassVar = {
        "transformers.models.auto.configuration_auto": ".modeling.configuration_lwal",
        "transformers.models.auto.modeling_auto": ".modeling.auto",
    }
    """Module of transformers → module of ours that registers with it."""

    def __init__(self) -> None:
        self._here = threading.local()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self.modules or getattr(self._here, "searches", False):
            return None
        self._here.searches = True  # the search below passes here, too
        try:
            spec = find_spec(fullname)
        finally:
            self._here.searches = False
        if spec is not None and spec.loader is not None:
            spec.loader = _ThenOurs(spec.loader, self.modules[fullname])
        return spec


class _ThenOurs(Loader):
    """Imports a module of ours after the module that it loads."""

    def __init__(self, loader: Loader, ours: str) -> None:
        self.loader, self.ours = loader, ours

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = module.__loader__ = self.loader
        self.loader.exec_module(module)
        # A configuration that is being imported has asked for AutoConfig, and registers itself at its end.
        if f"{__name__}.modeling.configuration_pooled" not in sys.modules or self.ours == ".modeling.auto":
            import_module(self.ours, __name__)


def _make_ready() -> None:
    ours = {_FindMoved.__qualname__, _AcquaintTransformers.__qualname__}  # of a package that is imported once more
    others = [finder for finder in sys.meta_path if type(finder).__qualname__ not in ours]
    sys.meta_path[:] = [_FindMoved(), _AcquaintTransformers(), *others]
    for theirs, registers in _AcquaintTransformers.modules.items():
        if theirs in sys.modules:
            import_module(registers, __name__)


_make_ready()
