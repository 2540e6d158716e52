"""Adapters of PEFT around a model with a label table: what must be saved with them. Does not import peft."""

from __future__ import annotations

from typing import Any

from .modeling_lwal import LwALPreTrainedModel

METHODS_WITH_LABEL_TABLE = ("lwal", "static_label")
HOW = "get_peft_model(model, LoraConfig(..., modules_to_save=model.peft_modules_to_save()))"


def check_adapter(model: Any, label_method: str | None = "lwal") -> None:
    """Refuse an adapter that would lose its label table or head when it is saved; other models are left alone.

    Args:
        model: a ``PeftModel``, a model with an adapter of its own, or a plain model.
        label_method: method to train with; None when it is not known.

    Raises:
        ValueError: the adapter does not save all of ``model.peft_modules_to_save()``, or is around a model of another
            kind than the method trains.
    """
    adapters = active_adapters(model)
    if adapters is None:
        return
    base = core_model(model)
    if not isinstance(base, LwALPreTrainedModel):
        if label_method in METHODS_WITH_LABEL_TABLE:
            raise ValueError(
                f"The adapter is around a {type(base).__name__}, which has no label table: build the model with "
                f"AutoModelForLwALClassification first, then {HOW}."
            )
        return
    own = label_method is None or ":" in label_method  # a method of the user's own, which may train either
    if not own and label_method not in METHODS_WITH_LABEL_TABLE:
        raise ValueError(
            f"label_method={label_method!r} trains a stock classifier, but the adapter is around a "
            f"{type(base).__name__}: put the adapter around the stock classifier."
        )
    lost = [name for name in base.peft_modules_to_save() if not _is_saved(base.get_submodule(name), adapters)]
    if lost:
        raise ValueError(
            f"The adapter does not save {', '.join(lost[:3])}{', …' if len(lost) > 3 else ''}, so the label vectors "
            f"could not be used after loading it: make it with {HOW}."
        )


def check_trainable(model: Any) -> None:
    """Refuse to train an adapter that was loaded for inference; other models are left alone.

    Raises:
        ValueError: all parameters are frozen.
    """
    if active_adapters(model) is not None and not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError(
            "The adapter was loaded for inference, all its parameters are frozen: load it with is_trainable=True."
        )


def active_adapters(model: Any) -> list[str] | None:
    """Names of the adapters in use; None for a model without adapters."""
    if hasattr(model, "get_base_model"):
        return list(model.active_adapters)
    return list(model.active_adapters()) if getattr(model, "_hf_peft_config_loaded", False) else None


def _is_saved(module: Any, adapters: list[str]) -> bool:
    return set(adapters) <= set(getattr(module, "modules_to_save", None) or ())


def core_model(model: Any) -> Any:
    """The model inside an adapter, or the model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model
