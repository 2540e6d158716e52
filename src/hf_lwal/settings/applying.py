"""Writes the resolved settings of a training into the model's configuration, before an optimizer exists."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from transformers import TrainingArguments

from ..modeling.auto import resolve_embedding_dim
from ..modeling.modeling_lwal import LwALPreTrainedModel
from .training_args import CONFIG_FIELDS, LwALSettings

logger = logging.getLogger(__name__)

SHAPES_OF_THE_TABLE = ("space", "embedding_dim", "initial_labels", "initial_label_norm", "preset")


OF_LWAL = {f"lwal_{name}" for name in (*CONFIG_FIELDS, "exact_accumulation")}
OF_START = {"lwal_init", "lwal_init_samples", "lwal_start_budget", "lwal_label_names"}
OF_METHODS: dict[str, set[str]] = {
    "label_embed": {"label_weight", "label_temperature"},
    "label_smoothing": {"lwal_prior"},
    "lwal": OF_LWAL | OF_START | {"lwal_scale", "lwal_eval_refresh", "lwal_eval_refresh_samples", "lwal_prior"},
    "lwr": {"label_weight", "label_temperature", "label_lwr_every"},
    "max_entropy": {"label_weight"},
    "one_hot": OF_START | {"lwal_initial_head", "lwal_prior"},
    "static_label": {"lwal_scale", "label_static_model"},
    "teacher_free": {"label_weight", "label_temperature"},
}
"""The arguments that only some methods use, and which of them each method does."""


def settings_without_use(args: TrainingArguments, settings: LwALSettings) -> list[str]:
    """The arguments that were given but mean nothing to the method, as ``name=value``."""
    if settings.label_method not in OF_METHODS:
        return []
    used = OF_METHODS[settings.label_method]
    if settings.label_method == "one_hot" and settings.init != "class_means":
        used = {"lwal_init", "lwal_prior"}
    unused = sorted(set().union(*OF_METHODS.values()) - used)
    given = {name: getattr(args, name, None) for name in unused}
    if settings.label_method == "static_label":
        given["label_smoothing_factor"] = args.label_smoothing_factor or None
    return [f"{name}={value!r}" for name, value in given.items() if value is not None]


def apply_settings(model: Any, settings: LwALSettings) -> None:
    """Write ``settings`` into an LwAL model's configuration; other models are left alone.

    A model whose table was never trained is rebuilt where the settings need another table or head.

    Raises:
        ValueError: a value that makes no sense, or a trained table that does not fit the settings.
    """
    apply_config(model, settings.config, settings.embedding_dim)


def apply_config(model: Any, config: Mapping[str, Any], embedding_dim: int | str | None = None) -> None:
    """Write values into an LwAL model's configuration, as `apply_settings` does.

    Args:
        model: an LwAL model; others are left alone.
        config: names and values of `LwALConfig`.
        embedding_dim: a number, a multiple such as "10x", or None to keep the model's.
    """
    if not isinstance(model, LwALPreTrainedModel):
        return
    wanted = dict(config)
    if embedding_dim is not None:
        wanted["embedding_dim"] = resolve_embedding_dim(embedding_dim, started_with(model), None)
    if model.config.head_name is None:
        wanted.pop("space", None)  # such a model lives in the embeddings space anyway
    changed = {name: value for name, value in wanted.items() if getattr(model.config, name) != value}
    if not changed:
        return
    rebuild = [name for name in SHAPES_OF_THE_TABLE if name in changed]
    if rebuild and is_trained(model):
        has = ", ".join(f"{name}={getattr(model.config, name)!r}" for name in rebuild)
        asked = ", ".join(f"{name}={changed[name]!r}" for name in rebuild)
        raise ValueError(
            f"This model's label table was trained with {has}, but the arguments ask for {asked}: leave them out, or "
            "start from the backbone."
        )
    _check(model, {**wanted, **changed})
    new_dim = changed.pop("embedding_dim", model.config.embedding_dim)
    for name, value in changed.items():
        setattr(model.config, name, value)
    if new_dim != model.config.embedding_dim:
        logger.info("The encoder's head is rebuilt with %d outputs.", new_dim)
        model.resize_embedding_dim(new_dim)
    elif rebuild:
        model.reset_label_table()
    model.config.validate_lwal()
    model.label_table.set_learned(offset=model.config.offset, learn_scale=model.config.learn_scale)


def is_trained(model: LwALPreTrainedModel) -> bool:
    """Whether the label table holds anything worth keeping."""
    return bool(model.label_table.seen.any()) or model.optimizer_step > 0


def knows_its_labels(model: Any) -> bool:
    """Whether a model of any kind has a label table that holds anything."""
    return isinstance(model, LwALPreTrainedModel) and is_trained(model)


def started_with(model: LwALPreTrainedModel) -> int:
    """Number of labels that "1x" means: the one before labels of a trained table were added or removed."""
    return model.config.initial_num_labels or model.config.num_labels


def _check(model: LwALPreTrainedModel, wanted: dict[str, Any]) -> None:
    space = wanted.get("space", model.config.space)
    if space not in ("features", "embeddings"):
        raise ValueError(f"Unknown lwal_space {space!r}: choose features or embeddings.")
    if wanted.get("initial_labels") == "one_hot" and space != "embeddings":
        raise ValueError("lwal_init='one_hot' needs lwal_space='embeddings': features have no one-hot label vectors.")
    dim, labels = wanted.get("embedding_dim", model.config.embedding_dim), started_with(model)
    if wanted.get("initial_labels") == "one_hot" and dim < labels:
        raise ValueError(f"One-hot label vectors of {labels} labels do not fit in embedding_dim {dim}.")
