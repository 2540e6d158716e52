"""`AutoModelForLwALClassification`: from a backbone, a fine-tuned classifier or an LwAL checkpoint to a model."""

from __future__ import annotations

import copy
import logging
import os
from functools import partial
from pathlib import Path
from types import MethodType
from typing import Any, Literal, overload

from transformers import (
    AutoConfig,
    AutoModelForAudioClassification,
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
    PreTrainedConfig,
    PreTrainedModel,
)

from .building import building, unpartitioned
from .compat import read_renamed
from .configuration_lwal import (
    HUB_KEYWORDS,
    LABEL_KEYWORDS,
    LwALConfig,
    generic_label_names,
    match_label_names,
    parse_label_names,
    refuse_other_problems,
    set_known,
)
from .configuration_pooled import LwALPooledConfig, config_with_pooling
from .heads import Head, find_head, replace_head, stock_from_config, with_architectures
from .loading import (
    NOT_IN_THE_CONFIG,
    check_weights,
    default_embedding_dim,
    listed,
    load_whole,
    readable_weights,
    rows_of,
    stored_label_names,
    take_labels,
)
from .modeling_lwal import (
    MODEL_CLASSES,
    LwALForAudioClassification,
    LwALForImageClassification,
    LwALForSequenceClassification,
    LwALPreTrainedModel,
)
from .pooling import MODEL, check_pooling
from .quantisation import sparing
from .saving import changed_parts
from .setting_rules import check_part
from .stored_files import CONFIG, read_json, stored_shapes
from .tasks import TASKS, inferred_task

logger = logging.getLogger(__name__)

KEPT_HEAD_NORM = 100.0
"""Label vectors of a kept head are this multiple of the unit vectors: so far out that the softmax of negative
distances is the softmax of the head's logits to about 1 percent."""

CONFIG_KEYWORDS = (*HUB_KEYWORDS, "trust_remote_code", "code_revision")
MODEL_KEYWORDS = (*NOT_IN_THE_CONFIG, "attn_implementation", "experts_implementation")
"""Keywords of ``from_pretrained`` that are left to the model, though configurations know them."""
SHARED = ("return_dict", "output_hidden_states", "output_attentions")
"""Settings of the encoder's configuration that hold for the whole model."""
LABEL_KEYS = ("id2label", "num_labels", "num_classes", "label_names")
"""Where the configuration file of a classifier says how many labels it has; the last two are timm's."""


class AutoModelForLwALClassification:
    """Build or load a classifier with a label table for any text, image or audio architecture of transformers."""

    def __init__(self) -> None:
        raise OSError(
            "AutoModelForLwALClassification is built with AutoModelForLwALClassification.from_pretrained(name) or "
            "AutoModelForLwALClassification.from_config(config)."
        )

    @overload
    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | os.PathLike[str],
        *,
        embedding_dim: int | str | None = ...,
        task: str | None = ...,
        config: PreTrainedConfig | str | os.PathLike[str] | None = ...,
        keep_head: bool = ...,
        output_loading_info: Literal[False] = ...,
        **kwargs: Any,
    ) -> LwALPreTrainedModel: ...

    @overload
    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | os.PathLike[str],
        *,
        embedding_dim: int | str | None = ...,
        task: str | None = ...,
        config: PreTrainedConfig | str | os.PathLike[str] | None = ...,
        keep_head: bool = ...,
        output_loading_info: Literal[True],
        **kwargs: Any,
    ) -> tuple[LwALPreTrainedModel, dict[str, Any]]: ...

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | os.PathLike[str],
        *,
        embedding_dim: int | str | None = None,
        task: str | None = None,
        config: PreTrainedConfig | str | os.PathLike[str] | None = None,
        keep_head: bool = False,
        output_loading_info: bool = False,
        pooling: str | None = "auto",
        normalize: bool | None = None,
        **kwargs: Any,
    ) -> LwALPreTrainedModel | tuple[LwALPreTrainedModel, dict[str, Any]]:
        """Load an LwAL checkpoint with its label table, or start one from a backbone or fine-tuned classifier.

        A fine-tuned classifier's head is replaced, and so are head and label table of an LwAL checkpoint when other
        labels are asked for; its own labels in another order or spelling are put in that order.

        Args:
            pretrained_model_name_or_path: Hub id or local folder.
            embedding_dim: D; an int, a multiple of the number of labels such as "10x", or None for
                ``min(hidden_size, max(128, num_labels))``.
            task: "text", "image" or "audio" where the architecture allows several.
            config: native configuration with the labels, as example scripts pass it; not modified.
            keep_head: keep a fine-tuned classifier's head: D = C, and predictions start as the classifier's.
            output_loading_info: also return what transformers says of the weights.
            pooling: how the tokens of a text become features: "mean", "cls", "max", "last", "mean_sqrt_len",
                "weightedmean", several joined by "+", "model" for what the stock class does, or "auto" for what a
                checkpoint of Sentence Transformers says in its modules.json, and "model" for all others, fine-tuned
                classifiers included. LwAL checkpoints pool as they were trained to.
            normalize: scale these features to length 1; None as the checkpoint says with "auto", else not.
            **kwargs: ``num_labels``, ``id2label``, ``label2id``, settings of the native configuration such as
                ``hidden_dropout_prob``, and all keywords of transformers' ``from_pretrained``.

        Raises:
            ValueError: the task is missing or ambiguous, the configuration asks for regression or several labels per
                row, arguments contradict each other, or weights do not fit.
            OSError: a file cannot be read.
        """
        name = pretrained_model_name_or_path
        load = partial(_load, name, config, embedding_dim=embedding_dim, task=task, keep_head=keep_head)
        model, info = load_whole(name, lambda: load(dict(kwargs), pooling=pooling, normalize=normalize))
        return (model, info) if output_loading_info else model

    @classmethod
    @unpartitioned()
    def from_config(
        cls,
        config: PreTrainedConfig,
        *,
        embedding_dim: int | str | None = None,
        task: str | None = None,
        pooling: str | None = None,
        normalize: bool | None = None,
        **kwargs: Any,
    ) -> LwALPreTrainedModel:
        """Build a model with random weights.

        Args:
            config: native configuration with the labels, or an `LwALConfig`.
            embedding_dim: as in `from_pretrained`.
            task: as in `from_pretrained`.
            pooling: as in `from_pretrained`; without a checkpoint, "auto" is None.
            normalize: as in `from_pretrained`.
            **kwargs: passed on to transformers, for example ``dtype`` or ``attn_implementation``.
        """
        if isinstance(config, LwALConfig):
            return MODEL_CLASSES[config.task]._from_config(config, **kwargs)
        task = inferred_task(config, task)
        refuse_other_problems(config)
        config = config_with_pooling(config, task, None, pooling, normalize)
        settings = _settings(config, task, _names_of(config), embedding_dim)
        encoder_config = copy.deepcopy(config)
        encoder_config.num_labels = settings["embedding_dim"]
        return wrap(stock_from_config(encoder_config, task, **kwargs), settings).train()

    @classmethod
    def from_stock(cls, model: PreTrainedModel, *, embedding_dim: int | str | None = None) -> LwALPreTrainedModel:
        """Turn a stock classifier into an LwAL model: its backbone stays, its head is replaced by a fresh one.

        Args:
            model: a stock classifier. The object itself becomes the LwAL model, so that whoever holds it saves and
                predicts with the label table; what it was is ``model.encoder``.
            embedding_dim: as in `from_pretrained`.

        Returns:
            ``model``; another object only where its ``forward`` was replaced by one that cannot be moved.
        """
        task = inferred_task(model.config, None, type(model).__name__)
        refuse_other_problems(model.config)
        _copy_configuration(model)
        model.config.architectures = [type(model).__name__]  # the head is looked for in this class
        settings = _settings(model.config, task, _names_of(model.config), embedding_dim)
        training = model.training
        if settings["head_name"] is None:
            raise ValueError(
                f"{type(model).__name__} has no single linear head to replace: load it with "
                "AutoModelForLwALClassification.from_pretrained instead."
            )
        _refuse_another_head(model, settings)
        logger.info(
            "The head of %s is replaced by one with %d outputs.", type(model).__name__, settings["embedding_dim"]
        )
        replace_head(model, Head(settings["head_name"], settings["in_features"]), settings["embedding_dim"])
        device, encoder = model.device, _moved_out(model)
        into = None if encoder is model else model
        wrapped = wrap(encoder, settings, into=into).to(device).train(training)
        if (changed := changed_parts(wrapped)) is not None:
            logger.warning("%s: the model trains as it is, but cannot be saved.", changed)
        return wrapped


def _refuse_another_head(model: PreTrainedModel, settings: dict[str, Any]) -> None:
    """Raise ValueError when the last layer of a classifier is no longer the one that its class builds."""
    name = settings["head_name"]
    head: Any = dict(model.named_modules()).get(name)
    if getattr(head, "in_features", None) != settings["in_features"]:
        raise ValueError(
            f"The head {name} of this {type(model).__name__} is {head!r}, but a linear layer of "
            f"{settings['in_features']} inputs belongs there, which gets D outputs: put it back, or register a class "
            "of your own with transformers' Auto classes."
        )


def _copy_configuration(model: PreTrainedModel) -> None:
    """Give a model a configuration of its own: the caller may build others from the one it was made with."""
    shared, own = model.config, copy.deepcopy(model.config)
    for module in model.modules():
        if vars(module).get("config") is shared:
            module.config = own


def _moved_out(model: PreTrainedModel) -> PreTrainedModel:
    """A new object that is all that ``model`` is, parameters and hooks included; ``model`` where that cannot be."""
    bound = {
        name: value for name, value in vars(model).items() if isinstance(value, MethodType) and value.__self__ is model
    }
    if "forward" in vars(model) and "forward" not in bound:  # accelerate's, which keeps the model it belongs to
        return model
    kind: Any = type(model)
    moved: PreTrainedModel = kind.__new__(kind)
    vars(moved).update(vars(model))
    for name, method in bound.items():
        vars(moved)[name] = MethodType(method.__func__, moved)
    return moved


def wrap(
    encoder: PreTrainedModel, settings: dict[str, Any], into: PreTrainedModel | None = None
) -> LwALPreTrainedModel:
    """Put a label table on an encoder that already has D outputs; the encoder's weights and mode are kept.

    Args:
        encoder: stock classifier.
        settings: from `_settings`.
        into: object that becomes the model; default: a new one.
    """
    encoder.config.architectures = [type(encoder).__name__]  # which of several classes to build again when loaded
    own = {name: value for name, value in settings.items() if name != "in_features"}
    own |= {name: getattr(encoder.config, name) for name in SHARED}
    config = LwALConfig(encoder_config=encoder.config, name_or_path=encoder.config.name_or_path, **own)
    config.dtype = encoder.config.dtype
    kind = MODEL_CLASSES[settings["task"]]
    model: Any = kind.__new__(kind) if into is None else into
    if into is not None:
        vars(into).clear()
        object.__setattr__(into, "__class__", kind)
    kind.__init__(model, config, encoder=encoder)
    if encoder.device.type != "meta":  # as it is where the first layer is offloaded
        model.label_table.to(encoder.device)
    return model.train(encoder.training)


def _names_of(config: PreTrainedConfig) -> dict[int, str]:
    """Id to name of the labels of a native configuration; some have a number of labels and no names."""
    return match_label_names(config.id2label, None)[0] or generic_label_names(config.num_labels or 0)


def _native_config(
    name: str | os.PathLike[str], config: Any, kwargs: dict[str, Any]
) -> tuple[PreTrainedConfig, dict[int, str]]:
    """Configuration of the checkpoint with the settings asked for, and the labels asked for.

    All that this uses is popped from ``kwargs``, but what says where the checkpoint is.
    """
    asked = {key: kwargs.pop(key) for key in LABEL_KEYWORDS if key in kwargs}
    names, num_labels = parse_label_names(**asked)[0], asked.get("num_labels")
    place = {key: kwargs[key] for key in CONFIG_KEYWORDS if key in kwargs}
    settings = {key: kwargs.pop(key) for key in [*kwargs] if key not in (*CONFIG_KEYWORDS, *MODEL_KEYWORDS)}
    if isinstance(config, PreTrainedConfig):
        native = copy.deepcopy(config)
        kwargs |= set_known(native, settings)
        own, known = _names_of(native), True
        if names is None and num_labels not in (None, len(own)) and own != generic_label_names(len(own)):
            raise ValueError(
                f"num_labels is {num_labels}, but the configuration names {len(own)} labels ({listed(own.values())}): "
                "pass only one of them, or make them agree."
            )
    else:
        source = name if config is None else config
        native, unused = _stored_config(source, place, settings)
        kwargs |= {key: value for key, value in unused.items() if key in settings}
        stored, _ = PreTrainedConfig.get_config_dict(source, **{k: v for k, v in place.items() if k in HUB_KEYWORDS})
        own = _names_of(native)
        known = isinstance(native, LwALConfig) or any(key in stored for key in LABEL_KEYS)
    if names is not None:
        return native, names
    if num_labels not in (None, len(own)):
        return native, generic_label_names(num_labels)
    if num_labels is None and not known:
        logger.warning(
            "%s does not say how many labels there are, so there are %d, as transformers has it: pass num_labels=… or "
            "id2label={0: 'first name', …} for others.",
            name,
            len(own),
        )
    return native, own


def _stored_config(source: Any, place: dict[str, Any], settings: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Configuration of a checkpoint, and the settings that it does not know."""
    read = AutoConfig.from_pretrained
    if not os.path.isdir(source):
        return read(source, return_unused_kwargs=True, **place, **settings)
    if not Path(source, CONFIG).exists():
        raise OSError(
            f"{source} has no {CONFIG}, so it holds no whole model: give the folder that save_pretrained wrote. An "
            "adapter is loaded with PeftModel.from_pretrained(model, adapter)."
        )
    content = read_json(Path(source, CONFIG))
    if content.get("model_type") != LwALConfig.model_type:
        check_part(str(Path(source, CONFIG)), content)
    with building(str(Path(source, CONFIG))):
        return read(source, return_unused_kwargs=True, **place, **settings)


def _settings(
    config: PreTrainedConfig,
    task: str,
    id2label: dict[int, str],
    embedding_dim: int | str | None,
    keep_head: bool = False,
) -> dict[str, Any]:
    """Keyword arguments of `LwALConfig`, and the width of the head's input."""
    _refuse_too_few(id2label)
    with building(f"The configuration of {config.name_or_path or type(config).__name__}"):
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
        "embedding_dim": resolve_embedding_dim(embedding_dim, len(id2label), head),
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


def _refuse_too_few(id2label: dict[int, str]) -> None:
    if len(id2label) < 2:
        raise ValueError(f"A classifier needs at least two labels, but num_labels is {len(id2label)}.")


def resolve_embedding_dim(embedding_dim: int | str | None, num_labels: int, head: Head | None) -> int:
    """Turn None, an int or a multiple such as "10x" into D.

    Raises:
        ValueError: not one of these forms, or below 2.
    """
    if embedding_dim is None:
        return default_embedding_dim(num_labels, head and head.in_features)
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


def _check_backbone(
    encoder: PreTrainedModel, settings: dict[str, Any], info: dict[str, Any], any_size: bool, name: str
) -> None:
    """Refuse weights that do not fit the configuration (the head apart), or that are not this model's at all."""
    dim, head = settings["embedding_dim"], f"{settings['head_name']}."

    def follows_labels(key: str, found: Any, wanted: Any) -> bool:
        changed = [new for old, new in zip(found, wanted, strict=False) if old != new]
        return key.startswith(head) or (settings["head_name"] is None and all(size == dim for size in changed))

    wrong = [entry for entry in info["mismatched_keys"] if not follows_labels(*entry)]
    if wrong and not any_size:
        key, found, wanted = wrong[0]
        raise ValueError(
            f"{name} stores {key} with shape {tuple(found)}, but the configuration needs {tuple(wanted)}: leave out "
            "the setting that changes it, or pass ignore_mismatched_sizes=True to start it from random values."
        )
    fresh = set(info["missing_keys"]) | {entry[0] for entry in info["mismatched_keys"]}
    if all(key in fresh for key in encoder.state_dict() if not key.startswith(head)):
        raise ValueError(
            f"{name} holds none of the weights of {type(encoder).__name__}, so all would be random: is it the "
            "checkpoint that its config.json describes?"
        )


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


def _refuse_for_lwal(name: str | os.PathLike[str], config: LwALConfig, task: str | None, keep_head: bool) -> None:
    """Raise ValueError where an argument has no meaning for an LwAL checkpoint."""
    if task not in (None, config.task):
        raise ValueError(f"{name} is a model of the task {config.task!r}, not {task!r}: leave task out.")
    if keep_head:
        raise ValueError(
            f"keep_head=True keeps the head of a stock classifier, but {name} has a label table: leave it out."
        )


def _pooled(
    config: PreTrainedConfig,
    task: str,
    name: str | os.PathLike[str],
    pooling: str | None,
    normalize: bool | None,
    keep_head: bool,
    hub: dict[str, Any],
) -> PreTrainedConfig:
    """`config_with_pooling`, where a head that stays needs the features that it was trained on."""
    if keep_head and pooling == "auto" and not isinstance(config, LwALPooledConfig):
        pooling = MODEL
    pooled = config_with_pooling(config, task, name, pooling, normalize, **hub)
    if keep_head and pooled is not config:
        raise ValueError(
            f"keep_head=True keeps a head that was trained on other features than pooling={pooling!r} gives: "
            "leave pooling and normalize out, or keep_head."
        )
    return pooled


def _check_pooling(config: LwALConfig, pooling: str | None, normalize: bool | None) -> None:
    """Raise ValueError when an LwAL checkpoint is asked to pool otherwise than it was trained to."""
    own = getattr(config.encoder_config, "normalize", False)
    same = pooling in (None, "auto") or check_pooling(pooling) == config.pooling
    if not same or normalize not in (None, own):
        raise ValueError(
            f"This checkpoint was trained with pooling={config.pooling!r}, normalize={own}: leave both out, "
            "or start from the backbone."
        )


def _load(
    name: str | os.PathLike[str],
    config: PreTrainedConfig | str | os.PathLike[str] | None,
    kwargs: dict[str, Any],
    *,
    embedding_dim: int | str | None,
    task: str | None,
    keep_head: bool,
    pooling: str | None,
    normalize: bool | None,
) -> tuple[LwALPreTrainedModel, dict[str, Any]]:
    """Load or build a model, and what transformers says of its weights; arguments as in ``from_pretrained``."""
    for removed in ("from_tf", "from_flax"):
        kwargs.pop(removed, None)
    shapes = stored_shapes(name, kwargs)
    native, id2label = _native_config(name, config, kwargs)
    refuse_other_problems(native)
    if isinstance(native, LwALConfig):
        _refuse_for_lwal(name, native, task, keep_head)
        _check_pooling(native, pooling, normalize)
        return _load_lwal(name, native, id2label, embedding_dim, kwargs)
    task = inferred_task(native, task)
    hub = {key: kwargs[key] for key in HUB_KEYWORDS if key in kwargs}
    native = _pooled(native, task, name, pooling, normalize, keep_head, hub)
    settings = _settings(native, task, id2label, embedding_dim, keep_head)
    encoder_config = with_architectures(copy.deepcopy(native))
    encoder_config.num_labels = settings["embedding_dim"]
    any_size = kwargs.pop("ignore_mismatched_sizes", False)
    kwargs["quantization_config"] = sparing(kwargs.get("quantization_config"), settings["head_name"])
    with readable_weights(name, shapes):
        encoder, info = TASKS[task].stock.from_pretrained(
            name, config=encoder_config, ignore_mismatched_sizes=True, output_loading_info=True, **kwargs
        )
    read_renamed(encoder, name, info, ignore_mismatched_sizes=True, **kwargs)
    check_weights(encoder, name)
    _check_backbone(encoder, settings, info, any_size, str(name))
    _renew_head(encoder, settings, info, keep_head, str(name))
    return wrap(encoder, settings), info


def _load_lwal(
    name: str | os.PathLike[str],
    config: LwALConfig,
    asked: dict[int, str],
    embedding_dim: int | str | None,
    kwargs: dict[str, Any],
) -> tuple[LwALPreTrainedModel, dict[str, Any]]:
    """Load an LwAL checkpoint; for other labels than its own it is what a fine-tuned classifier is: a backbone."""
    stored = stored_label_names(name, {key: kwargs[key] for key in HUB_KEYWORDS if key in kwargs})
    stored = stored or config.label_names
    _refuse_too_few(asked)
    dim = None if embedding_dim is None else resolve_embedding_dim(embedding_dim, len(asked), None)
    if dim is not None and dim != config.embedding_dim and rows_of(asked, stored) is not None:
        raise ValueError(
            f"{name} has label vectors of dimension {config.embedding_dim}, not {embedding_dim}: leave embedding_dim "
            "out."
        )
    config = copy.deepcopy(config)
    config.id2label, config.label2id = match_label_names(stored, None)
    model, info = MODEL_CLASSES[config.task].from_pretrained(name, config=config, output_loading_info=True, **kwargs)
    take_labels(model, name, asked, dim)
    return model, info


AutoModelForSequenceClassification.register(LwALConfig, LwALForSequenceClassification)
AutoModelForImageClassification.register(LwALConfig, LwALForImageClassification)
AutoModelForAudioClassification.register(LwALConfig, LwALForAudioClassification)
