"""What differs between the releases of torch and transformers that this package runs with, all of it in one place.

Each comment says from which release on there is nothing left to bridge.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
import transformers

OLDEST, NEWEST = (5, 4), (5, 25)
"""Minor releases of transformers that pyproject.toml allows: those tested, and one more."""
_RELEASE = tuple(int(part) for part in transformers.__version__.split(".")[:2])

if _RELEASE < OLDEST:
    raise ImportError(
        f"hf-lwal needs transformers {OLDEST[0]}.{OLDEST[1]} or later, and this is {transformers.__version__}: "
        "pip install -U transformers."
    )

from transformers import PreTrainedConfig, configuration_utils  # noqa: E402

_SPEC = getattr(configuration_utils, "SubConfigSpec", None)  # transformers 5.20
is_exporting: Callable[[], bool] = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)  # torch 2.7

_Function = TypeVar("_Function", bound=Callable[..., Any])


def beside_graphs(function: _Function) -> _Function:
    """Keep ``function`` itself, not what it calls, out of compiled graphs: PyTorch 2.6 cannot guard its own state."""
    if hasattr(torch.compiler, "is_exporting"):  # torch 2.7
        return function
    kept: _Function = torch.compiler.disable(function, recursive=False)  # type: ignore[no-untyped-call]
    return kept


def class_attributes_for(part: str) -> dict[str, Any]:
    """Class attributes that tell transformers of a configuration within another, of any model type.

    Args:
        part: attribute that holds it.
    """
    from transformers import AutoConfig  # which imports our configurations: not while a module they need is imported

    if _SPEC is None:
        return {"sub_configs": {part: AutoConfig}}
    return {"sub_configs_defaults": {part: _SPEC(AutoConfig, model_type="bert")}}


def without_type_checks(validators: dict[str, Any]) -> dict[str, Any]:
    """Checks of a configuration's fields but for those of all models, which transformers 5.18 checks no more.

    Args:
        validators: name of a field → its checks.
    """
    if _RELEASE >= (5, 18):
        return validators
    return {name: checks for name, checks in validators.items() if name not in PreTrainedConfig.__dataclass_fields__}


def as_config(saved: Any) -> Any:
    """The configuration within another, where transformers leaves it the dictionary that was saved."""
    if _SPEC is not None or isinstance(saved, PreTrainedConfig):
        return saved
    from transformers import AutoConfig

    fields = {} if saved is None else dict(saved)
    return AutoConfig.for_model(fields.pop("model_type", "bert"), **fields)


@torch.no_grad()
def read_renamed(encoder: Any, name: Any, info: dict[str, Any], **kwargs: Any) -> None:
    """Read what a classifier lost of a backbone's weights with names of their own, as ViT's; until transformers 5.16.

    Args:
        encoder: a stock classifier that was just loaded.
        name: of the checkpoint.
        info: what transformers says of its weights; what is read now is missing no more.
        **kwargs: of ``from_pretrained``, without the configuration.
    """
    body, prefix = encoder.base_model, f"{encoder.base_model_prefix}."
    lost = {key for key in info["missing_keys"] if key.startswith(prefix)}
    if _RELEASE >= (5, 16) or not lost or not info["unexpected_keys"]:
        return
    whole, found = type(body).from_pretrained(name, config=body.config, output_loading_info=True, **kwargs)
    read = {key: value for key, value in whole.state_dict().items() if key not in found["missing_keys"]}
    for key, value in body.state_dict().items():
        if prefix + key in lost and key in read and value.shape == read[key].shape:
            value.copy_(read[key])
            info["missing_keys"].remove(prefix + key)


def save_onnx(exported: Any, path: Path) -> None:
    """Write what transformers' exporter returned, with its weights in a file beside it; ``model.onnx`` is its name."""
    if hasattr(exported, "save_pretrained"):  # transformers 5.23
        exported.save_pretrained(path.parent)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    exported.save(path, external_data=True)


def untested_release() -> str | None:
    """What to say of a release of transformers that is newer than this package knows; None for others."""
    if _RELEASE <= NEWEST:
        return None
    return (
        f"transformers {transformers.__version__} is newer than this hf-lwal, which was tested up to "
        f"{NEWEST[0]}.{NEWEST[1] - 1}: if training, saving or resuming goes wrong, upgrade hf-lwal, or "
        f'pip install "transformers<{NEWEST[0]}.{NEWEST[1] + 1}".'
    )
