"""Configuration of a text classifier that pools the tokens of any backbone: the backbone's own, and how to pool."""

from __future__ import annotations

import copy
import logging
import os
from typing import Any, ClassVar

import transformers
from transformers import AutoConfig, PreTrainedConfig

from .building import building
from .compat import as_config, class_attributes_for, without_type_checks
from .pooling import MODEL, check_pooling, stored_pooling
from .setting_rules import POOLED_RULES, check_part, check_settings

logger = logging.getLogger(__name__)

DROPOUTS = ("classifier_dropout", "seq_classif_dropout", "hidden_dropout_prob")
"""Where configurations say how much dropout stands before the classifier, the more special name first."""
LABELS = ("id2label", "label2id", "num_labels", "problem_type")

WITHOUT_TOKENS = ("perceiver", "reformer", "t5gemma")
"""Model types whose encoder alone, or whose one vector per token, transformers does not give."""
OF_THE_WHOLE = ("quantization_config", "auto_map", "name_or_path", "architecture", "pretrained_cfg")
"""What a configuration inside another says of itself alone, as it was loaded."""


class AroundConfig:
    """Configuration around another: what it does not have itself is read from there and written there."""

    part: ClassVar[str]
    """Attribute that holds the other configuration."""
    __validators__: ClassVar[dict[str, Any]]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        for name, value in class_attributes_for(cls.part).items():
            setattr(cls, name, value)
        super().__init_subclass__(**kwargs)
        cls.__validators__ = without_type_checks(cls.__validators__)

    def __post_init__(self, **kwargs: Any) -> None:
        """Make a configuration of what was saved."""
        setattr(self, self.part, as_config(getattr(self, self.part)))
        super().__post_init__(**kwargs)  # type: ignore[misc]

    def __getattr__(self, name: str) -> Any:
        # Called for what this configuration lacks. Scripts and libraries read the sizes and rates of the stock one.
        value = None if name.startswith("_") or name in OF_THE_WHOLE else getattr(self._inner(name), name)
        if name.startswith("_") or name in OF_THE_WHOLE or isinstance(value, PreTrainedConfig):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        inner = self.__dict__.get(self.part)
        own = name.startswith("_") or name in OF_THE_WHOLE or name in self.__dict__ or hasattr(type(self), name)
        if own or not isinstance(inner, PreTrainedConfig) or not hasattr(inner, name):
            super().__setattr__(name, value)
        else:
            setattr(inner, name, value)

    def convert_rope_params_to_dict(self, **kwargs: Any) -> dict[str, Any]:
        """Nothing: rotary positions are the inner configuration's, which has brought them to their form itself."""
        return kwargs

    def _get_generation_parameters(self) -> dict[str, Any]:
        return {}  # nothing is generated; what the inner configuration says of it stays there

    def _inner(self, name: str) -> PreTrainedConfig:
        inner = self.__dict__.get(self.part)
        if not isinstance(inner, PreTrainedConfig):
            raise AttributeError(f"{name} is read from {self.part}, which is not set yet.")
        return inner


def forwarded(name: str) -> property:
    """Property of an `AroundConfig` for what `PreTrainedConfig` has: tokenizers and scripts set it on the whole."""

    def read(self: AroundConfig) -> Any:
        return getattr(self._inner(name), name)

    def write(self: AroundConfig, value: Any) -> None:
        inner = vars(self).get(self.part)
        if isinstance(inner, PreTrainedConfig):
            setattr(inner, name, value)

    return property(read, write)


class LwALPooledConfig(AroundConfig, PreTrainedConfig):
    """Configuration of `LwALPooledForSequenceClassification`.

    Attributes:
        base_config: configuration of the backbone.
        pooling: a key of `pooling.MODES`, or several joined by "+".
        normalize: scale the pooled vectors to length 1.
        classifier_dropout: share of the pooled vector that training drops; None for the backbone's own.
    """

    model_type = "lwal_pooled"
    part: ClassVar[str] = "base_config"

    base_config: Any = None
    pooling: str = "mean"
    normalize: bool = False
    classifier_dropout: float | None = None

    pad_token_id = forwarded("pad_token_id")
    bos_token_id = forwarded("bos_token_id")
    eos_token_id = forwarded("eos_token_id")
    vocab_size = forwarded("vocab_size")
    hidden_size = forwarded("hidden_size")
    initializer_range = forwarded("initializer_range")

    def __post_init__(self, **kwargs: Any) -> None:
        """Check the pooling and take over how the backbone attends."""
        check_settings(self, POOLED_RULES)
        if isinstance(self.base_config, PreTrainedConfig):
            kwargs.setdefault("attn_implementation", self.base_config._attn_implementation)
        elif self.base_config is not None:
            check_part(self.part, self.base_config)
        with building(self.part):
            super().__post_init__(**kwargs)
        self.pooling = check_pooling(self.pooling)
        if self.pooling == MODEL:
            raise ValueError("pooling='model' is the stock classifier's own: load that, without this configuration.")

    def get_text_config(self, *args: Any, **kwargs: Any) -> PreTrainedConfig:
        """The backbone's: there the sizes of vocabulary and layers are looked for."""
        return self.base_config.get_text_config(*args, **kwargs)

    @property
    def dropout_rate(self) -> float:
        """Share of the pooled vector that training drops."""
        stated = (self.classifier_dropout, *(getattr(self.base_config, name, None) for name in DROPOUTS))
        return next((float(rate) for rate in stated if rate is not None), 0.0)

    @property
    def keys_to_ignore_at_inference(self) -> list[str]:
        """Output fields of the backbone that are not predictions."""
        return list(getattr(self.base_config, "keys_to_ignore_at_inference", []))

    def to_dict(self) -> dict[str, Any]:
        """Serialise without the labels of the backbone, which has none, and without its name, which is the whole's."""
        output = super().to_dict()
        for key in (*LABELS, "_name_or_path"):
            output["base_config"].pop(key, None)
        return output


def pooled_config(
    config: PreTrainedConfig, pooling: str, normalize: bool, base: PreTrainedConfig | None = None
) -> LwALPooledConfig:
    """Configuration of the pooled classifier on the backbone of a stock one, with the same labels.

    Args:
        config: of the backbone or its stock classifier; copied.
        pooling: as in `LwALPooledConfig`.
        normalize: as in `LwALPooledConfig`.
        base: configuration of the backbone where ``config`` is a whole around it.
    """
    base = copy.deepcopy(config if base is None else base)
    base.architectures = None
    return LwALPooledConfig(
        base_config=base,
        pooling=pooling,
        normalize=normalize,
        id2label=dict(config.id2label),
        label2id=dict(config.label2id or {name: index for index, name in config.id2label.items()}),
        problem_type=config.problem_type,
        name_or_path=config.name_or_path,
        dtype=config.dtype,
        output_attentions=base.output_attentions,
        output_hidden_states=base.output_hidden_states,
    )


def encoder_class(config: PreTrainedConfig) -> Any:
    """Class of the encoder of a text model, or of the whole where nothing else has its last hidden state."""
    auto: Any = transformers.AutoModelForTextEncoding
    if type(config) not in auto._model_mapping:
        auto = transformers.AutoModel
    found = auto._model_mapping.get(type(config), None)
    return found[0] if isinstance(found, (list, tuple)) else found


def why_not_pooled(config: PreTrainedConfig) -> str | None:
    """What keeps the tokens of an architecture from being pooled by another class than its own, or None.

    Args:
        config: of the backbone.
    """
    name = type(config).__name__
    if encoder_class(config) is None:
        return f"transformers has no backbone without a head for {name}"
    if config.model_type in WITHOUT_TOKENS:
        return f"{name} has no encoder that ends in one vector per token"
    if config.is_encoder_decoder and type(config) not in transformers.AutoModelForTextEncoding._model_mapping:
        return f"{name} is an encoder with a decoder, and transformers has no class for its encoder alone"
    return None


def config_with_pooling(
    config: PreTrainedConfig,
    task: str,
    name: str | os.PathLike[str] | None,
    pooling: str | None,
    normalize: bool | None = None,
    **hub: Any,
) -> PreTrainedConfig:
    """Configuration of the classifier that pools as wanted: the given one where that is what its class does.

    Args:
        config: of a backbone, or of a stock or pooled classifier.
        task: "text", "image" or "audio".
        name: checkpoint that "auto" asks; None for none.
        pooling: "auto", "model", a key of `pooling.MODES`, or several joined by "+"; None changes nothing.
        normalize: scale the pooled vectors to length 1; None does as the checkpoint says with "auto", else not.
        **hub: revision, token and the like.

    Raises:
        ValueError: an unknown pooling, or one that the task or the checkpoint does not allow.
    """
    if pooling is None:
        return _normalized(config, normalize)
    if pooling == "auto":
        if task != "text" or name is None or isinstance(config, LwALPooledConfig):
            return _normalized(config, normalize)
        pooling, stored_normalize, why = stored_pooling(name, **hub)
        reason = None if pooling == MODEL else why_not_pooled(config)
        if reason is not None:
            logger.warning("%s: its modules.json asks for pooling=%r, but gets 'model'.", reason, pooling)
            return _normalized(config, normalize)
        normalize = stored_normalize and pooling != MODEL if normalize is None else normalize
        own = getattr(config, "classifier_pooling", None)
        why += "" if own is None else f" (classifier_pooling={own!r} is for the stock class)"
        logger.info("Pooling of %s: %s%s, since %s.", name, pooling, " scaled to length 1" if normalize else "", why)
    pooling = check_pooling(pooling)
    if pooling == MODEL and not isinstance(config, LwALPooledConfig):
        return _normalized(config, normalize)
    if task != "text":
        raise ValueError(
            f"pooling={pooling!r} is for the tokens of texts, but this model classifies {task}, whose architectures "
            "pool in their own ways: leave pooling out."
        )
    base = config.base_config if isinstance(config, LwALPooledConfig) else config
    if pooling == MODEL:
        raise ValueError(
            f"This classifier pools by {config.pooling!r}, so what its stock class would pool with is not there: load "
            "its backbone anew with AutoModelForLwALClassification.from_pretrained(name, pooling='model')."
        )
    return pooled_config(config, pooling, bool(normalize), base)


def _normalized(config: PreTrainedConfig, normalize: bool | None) -> PreTrainedConfig:
    """The configuration, unless it cannot do what was asked for."""
    if normalize is None or normalize == getattr(config, "normalize", False):
        return config
    if isinstance(config, LwALPooledConfig):
        return pooled_config(config, config.pooling, normalize, config.base_config)
    raise ValueError("normalize=True scales pooled vectors: choose a pooling such as 'mean' with it.")


AutoConfig.register(LwALPooledConfig.model_type, LwALPooledConfig, exist_ok=True)
