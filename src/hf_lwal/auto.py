"""`AutoModelForLwALClassification`: from a backbone, a fine-tuned classifier or an LwAL checkpoint to a model."""

from __future__ import annotations

import copy
import logging
import os
from typing import Any

from transformers import (
    AutoConfig,
    AutoModelForAudioClassification,
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
    PreTrainedConfig,
    PreTrainedModel,
)

from .configuration_lwal import HUB_KEYWORDS, TASKS, LwALConfig, matched_label_names
from .configuration_pooled import config_with_pooling
from .heads import STOCK_CLASSES, Head, find_head, replace_head, stock_from_config, with_architectures
from .modeling_lwal import (
    MODEL_CLASSES,
    LwALForAudioClassification,
    LwALForImageClassification,
    LwALForSequenceClassification,
    LwALPreTrainedModel,
)
from .pooling import MODEL, checked_pooling
from .quantisation import sparing

logger = logging.getLogger(__name__)

KEPT_HEAD_NORM = 100.0
"""Label vectors of a kept head are this multiple of the unit vectors: so far out that the softmax of negative
distances is the softmax of the head's logits to about 1 percent."""

CONFIG_KEYWORDS = (*HUB_KEYWORDS, "trust_remote_code", "code_revision")
LABEL_KEYS = ("id2label", "num_labels", "num_classes", "label_names")
"""Where the configuration file of a classifier says how many labels it has; the last two are timm's."""


class AutoModelForLwALClassification:
    """Build or load a classifier with a label table for any text, image or audio architecture of transformers."""

    def __init__(self) -> None:
        raise OSError(
            "AutoModelForLwALClassification is built with AutoModelForLwALClassification.from_pretrained(name) or "
            "AutoModelForLwALClassification.from_config(config)."
        )

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | os.PathLike[str],
        *,
        embedding_dim: int | str | None = None,
        task: str | None = None,
        config: PreTrainedConfig | str | os.PathLike[str] | None = None,
        keep_head: bool = False,
        pooling: str = "auto",
        normalize: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """Load an LwAL checkpoint with its label table, or start one from a backbone or fine-tuned classifier.

        Args:
            pretrained_model_name_or_path: Hub id or local folder.
            embedding_dim: D; an int, a multiple of the number of labels such as "10x", or None for
                ``min(hidden_size, max(128, num_labels))``.
            task: "text", "image" or "audio" where the architecture allows several.
            config: native configuration with the labels, as example scripts pass it; used as it is.
            keep_head: keep a fine-tuned classifier's head: D = C, and predictions start as the classifier's.
            pooling: how the tokens of a text become features: "mean", "cls", "max", "last", "mean_sqrt_len",
                "weightedmean", several joined by "+", "model" for what the stock class does, or "auto" for what a
                checkpoint of Sentence Transformers says, and "model" for others.
            normalize: scale these features to length 1; None as the checkpoint says with "auto", else not.
            **kwargs: ``num_labels``, ``id2label``, ``label2id`` and all keywords of transformers' ``from_pretrained``.

        Raises:
            ValueError: the number of labels is not known, the task is missing or ambiguous, or the configuration asks
                for regression or several labels per row.
        """
        for removed in ("from_tf", "from_flax"):
            kwargs.pop(removed, None)
        native, labels = _native_config(pretrained_model_name_or_path, config, kwargs)
        if isinstance(native, LwALConfig):
            _check_pooling(native, pooling, normalize)
            return _load_lwal(pretrained_model_name_or_path, native, labels, embedding_dim, kwargs)
        task = inferred_task(native, task)
        refuse_other_problems(native)
        if keep_head and pooling == "auto":
            pooling = MODEL  # a head that stays needs the features that it was trained on
        hub = {key: kwargs[key] for key in HUB_KEYWORDS if key in kwargs}
        pooled = config_with_pooling(native, task, pretrained_model_name_or_path, pooling, normalize, **hub)
        if keep_head and pooled is not native:
            raise ValueError(
                f"keep_head=True keeps a head that was trained on other features than pooling={pooling!r} gives: "
                "leave pooling and normalize out, or keep_head."
            )
        native = pooled
        settings = _settings(native, task, labels, embedding_dim, keep_head)
        encoder_config = with_architectures(copy.deepcopy(native))
        encoder_config.num_labels = settings["embedding_dim"]
        wants_info = kwargs.pop("output_loading_info", False)
        kwargs.pop("ignore_mismatched_sizes", None)
        kwargs["quantization_config"] = sparing(kwargs.get("quantization_config"), settings["head_name"])
        encoder, info = STOCK_CLASSES[task].from_pretrained(
            pretrained_model_name_or_path,
            config=encoder_config,
            ignore_mismatched_sizes=not keep_head,
            output_loading_info=True,
            **kwargs,
        )
        _renew_head(encoder, settings, info, keep_head, str(pretrained_model_name_or_path))
        model = wrap(encoder, settings)
        return (model, info) if wants_info else model

    @classmethod
    def from_config(
        cls,
        config: PreTrainedConfig,
        *,
        embedding_dim: int | str | None = None,
        task: str | None = None,
        pooling: str = "model",
        normalize: bool | None = None,
        **kwargs: Any,
    ) -> LwALPreTrainedModel:
        """Build a model with random weights.

        Args:
            config: native configuration with the labels, or an `LwALConfig`.
            embedding_dim: as in `from_pretrained`.
            task: as in `from_pretrained`.
            pooling: as in `from_pretrained`; without a checkpoint, "auto" is "model".
            normalize: as in `from_pretrained`.
            **kwargs: passed on to transformers, for example ``dtype`` or ``attn_implementation``.
        """
        if isinstance(config, LwALConfig):
            return MODEL_CLASSES[config.task]._from_config(config, **kwargs)
        task = inferred_task(config, task)
        refuse_other_problems(config)
        config = config_with_pooling(config, task, None, pooling, normalize)
        settings = _settings(config, task, (config.id2label, config.num_labels), embedding_dim)
        encoder_config = copy.deepcopy(config)
        encoder_config.num_labels = settings["embedding_dim"]
        return wrap(stock_from_config(encoder_config, task, **kwargs), settings).train()

    @classmethod
    def from_stock(cls, model: PreTrainedModel, *, embedding_dim: int | str | None = None) -> LwALPreTrainedModel:
        """Wrap a stock classifier: its backbone stays, its head is replaced by a fresh one with D outputs.

        Args:
            model: a stock classifier; it becomes the encoder and is changed in place.
            embedding_dim: as in `from_pretrained`.
        """
        task = inferred_task(model.config, None, type(model).__name__)
        refuse_other_problems(model.config)
        model.config.architectures = [type(model).__name__]  # the head is looked for in this class
        settings = _settings(model.config, task, (model.config.id2label, model.config.num_labels), embedding_dim)
        training = model.training
        if settings["head_name"] is None:
            raise ValueError(
                f"{type(model).__name__} has no single linear head to replace: load it with "
                "AutoModelForLwALClassification.from_pretrained instead."
            )
        logger.info(
            "The head of %s is replaced by one with %d outputs.", type(model).__name__, settings["embedding_dim"]
        )
        replace_head(model, Head(settings["head_name"], settings["in_features"]), settings["embedding_dim"])
        return wrap(model, settings).to(model.device).train(training)


def wrap(encoder: PreTrainedModel, settings: dict[str, Any]) -> LwALPreTrainedModel:
    """Put a label table on an encoder that already has D outputs; the encoder's weights and mode are kept."""
    encoder.config.architectures = [type(encoder).__name__]  # which of several classes to build again when loaded
    own = {name: value for name, value in settings.items() if name != "in_features"}
    config = LwALConfig(encoder_config=encoder.config, name_or_path=encoder.config.name_or_path, **own)
    config.dtype = encoder.config.dtype
    model = MODEL_CLASSES[settings["task"]](config, encoder=encoder)
    if encoder.device.type != "meta":  # as it is where the first layer is offloaded
        model.label_table.to(encoder.device)
    return model.train(encoder.training)


def inferred_task(config: PreTrainedConfig, task: str | None, class_name: str | None = None) -> str:
    """Task of a native configuration from its place in transformers' mappings.

    Args:
        config: native configuration.
        task: the user's choice, which wins when the architecture has it.
        class_name: name of the model class at hand; decides where several tasks are possible, as do the
            ``architectures`` of the configuration.

    Raises:
        ValueError: unknown task, none that fits, or several.
    """
    if task is not None and task not in TASKS:
        raise ValueError(f"Unknown task {task!r}: choose one of {', '.join(TASKS)}.")
    possible = [name for name, stock in STOCK_CLASSES.items() if type(config) in stock._model_mapping]
    if not possible:
        raise ValueError(
            f"transformers has no text, image or audio classifier for {type(config).__name__} "
            f"(model_type {config.model_type!r}): use an architecture with a ...For...Classification class."
        )
    if task is not None:
        if task not in possible:
            raise ValueError(f"{type(config).__name__} has no {task} classifier; task can be {' or '.join(possible)}.")
        return task
    if len(possible) > 1:
        named = [class_name] if class_name else (config.architectures or [])
        exact = [t for t in possible if any(_suffix(t) in name for name in named)]
        possible = exact or possible
    if len(possible) > 1:
        raise ValueError(
            f"{type(config).__name__} can classify {' and '.join(possible)}: pass task={possible[0]!r} or "
            f"task={possible[1]!r}."
        )
    return possible[0]


def _suffix(task: str) -> str:
    return MODEL_CLASSES[task].__name__.removeprefix("LwAL")


def refuse_other_problems(config: PreTrainedConfig) -> None:
    """Raise ValueError when the configuration asks for regression or for several labels per row."""
    if config.problem_type in ("regression", "multi_label_classification") or config.num_labels == 1:
        asked = config.problem_type or "regression (num_labels = 1)"
        raise ValueError(
            f"Label vectors need exactly one class per row and at least two classes, but the configuration asks for "
            f"{asked}: use the stock AutoModelFor…Classification for it."
        )


def _native_config(
    name: str | os.PathLike[str],
    config: Any,
    kwargs: dict[str, Any],
) -> tuple[PreTrainedConfig, tuple[dict[int, str] | None, int | None]]:
    """Configuration of the checkpoint, and the labels asked for as (id2label, num_labels), popped from ``kwargs``."""
    num_labels = kwargs.pop("num_labels", None)
    id2label, _ = matched_label_names(kwargs.pop("id2label", None), kwargs.pop("label2id", None), num_labels)
    if isinstance(config, PreTrainedConfig):
        return config, (id2label or matched_label_names(config.id2label, None)[0], num_labels or config.num_labels)
    hub = {key: kwargs[key] for key in CONFIG_KEYWORDS if key in kwargs}
    source = name if config is None else config
    native = AutoConfig.from_pretrained(source, **hub)
    stored, _ = PreTrainedConfig.get_config_dict(source, **{k: v for k, v in hub.items() if k in HUB_KEYWORDS})
    if id2label is None and num_labels is None:
        if not any(key in stored for key in LABEL_KEYS):
            raise ValueError(
                f"The number of labels is not known: {source} is not a fine-tuned classifier. Pass num_labels=… or "
                "id2label={0: 'first name', …}."
            )
        id2label, num_labels = matched_label_names(native.id2label, None)[0], native.num_labels
    return native, (id2label, num_labels)


def _settings(
    config: PreTrainedConfig,
    task: str,
    labels: tuple[dict[int, str] | None, int | None],
    embedding_dim: int | str | None,
    keep_head: bool = False,
) -> dict[str, Any]:
    """Keyword arguments of `LwALConfig`, and the width of the head's input."""
    id2label, num_labels = labels
    id2label = id2label or {index: f"LABEL_{index}" for index in range(num_labels or 0)}
    if len(id2label) < 2:
        raise ValueError(f"A classifier needs at least two labels, but num_labels is {len(id2label)}.")
    head = find_head(config, task)
    if head is None:
        logger.info(
            "%s has no single linear head: class means are kept of the embeddings (space='embeddings').",
            type(config).__name__,
        )
    settings: dict[str, Any] = {
        "task": task,
        "id2label": id2label,
        "head_name": head.name if head else None,
        "in_features": head.in_features if head else None,
        "space": "features" if head else "embeddings",
        "embedding_dim": resolved_embedding_dim(embedding_dim, len(id2label), head),
    }
    if keep_head:
        if embedding_dim is not None:
            raise ValueError("keep_head=True fixes embedding_dim to the number of labels: leave embedding_dim out.")
        settings |= {
            "embedding_dim": len(id2label),
            "initial_labels": "one_hot",
            "initial_label_norm": KEPT_HEAD_NORM,
        }
    return settings


def resolved_embedding_dim(embedding_dim: int | str | None, num_labels: int, head: Head | None) -> int:
    """Turn None, an int or a multiple such as "10x" into D.

    Raises:
        ValueError: not one of these forms, or below 2.
    """
    if embedding_dim is None:
        wanted = max(128, num_labels)
        return wanted if head is None else min(head.in_features, wanted)
    text = str(embedding_dim)
    factor, number = (num_labels, text[:-1]) if text.endswith("x") else (1, text)
    if not number.isdigit():
        raise ValueError(
            f"embedding_dim is {embedding_dim!r}, but it must be a whole number or a multiple like '10x'."
        )
    dim = int(number) * factor
    if dim < 2:
        raise ValueError(f"embedding_dim is {embedding_dim!r}, but label vectors need at least 2 dimensions.")
    return dim


def _renew_head(
    encoder: PreTrainedModel, settings: dict[str, Any], info: dict[str, Any], keep_head: bool, name: str
) -> None:
    """Make sure the head is fresh, unless it is to be kept: a fine-tuned head can fit D by chance."""
    head_name = settings["head_name"]
    if head_name is None:
        return
    not_loaded = set(info["missing_keys"]) | {entry[0] for entry in info["mismatched_keys"]}
    loaded = f"{head_name}.weight" not in not_loaded
    if keep_head:
        if not loaded:
            raise ValueError(
                f"keep_head=True needs a fine-tuned classifier, but {name} has no weights for {head_name}."
            )
        return
    if loaded:
        replace_head(encoder, Head(head_name, settings["in_features"]), settings["embedding_dim"])
    if loaded or info["mismatched_keys"]:
        logger.info(
            "The fine-tuned head of %s is replaced by a fresh one with %d outputs.", name, settings["embedding_dim"]
        )


def _check_pooling(config: LwALConfig, pooling: str, normalize: bool | None) -> None:
    """Raise ValueError when an LwAL checkpoint is asked to pool otherwise than it was trained to."""
    own = getattr(config.encoder_config, "normalize", False)
    same = pooling == "auto" or checked_pooling(pooling) == config.pooling
    if not same or normalize not in (None, own):
        raise ValueError(
            f"This checkpoint was trained with pooling={config.pooling!r}, normalize={own}: leave both out, "
            "or start from the backbone."
        )


def _load_lwal(
    name: str | os.PathLike[str],
    config: LwALConfig,
    labels: tuple[dict[int, str] | None, int | None],
    embedding_dim: int | str | None,
    kwargs: dict[str, Any],
) -> Any:
    """Load an LwAL checkpoint; the labels asked for must be its own, in any spelling of the same names."""
    id2label, num_labels = labels
    if (
        embedding_dim is not None
        and resolved_embedding_dim(embedding_dim, config.num_labels, None) != config.embedding_dim
    ):
        raise ValueError(
            f"{name} has label vectors of dimension {config.embedding_dim}, not {embedding_dim}: leave embedding_dim "
            "out."
        )
    config = copy.deepcopy(config)
    if id2label is not None:
        config.id2label, config.label2id = matched_label_names(id2label, None)
    elif num_labels is not None:
        config.num_labels = num_labels
    return MODEL_CLASSES[config.task].from_pretrained(name, config=config, **kwargs)


AutoConfig.register(LwALConfig.model_type, LwALConfig)
AutoModelForSequenceClassification.register(LwALConfig, LwALForSequenceClassification)
AutoModelForImageClassification.register(LwALConfig, LwALForImageClassification)
AutoModelForAudioClassification.register(LwALConfig, LwALForAudioClassification)
