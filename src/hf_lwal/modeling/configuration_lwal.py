"""Configuration of a model with a label table: a stock encoder configuration plus what the table is made of."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

from transformers import AutoConfig, PreTrainedConfig

from .algorithm import UPDATES, LabelSettings
from .building import ConfigurationError, building, shown
from .configuration_pooled import AroundConfig, LwALPooledConfig, forwarded
from .peft_targets import SIZES, offer_targets
from .setting_rules import NUM_LABELS, RULES, check_part, check_settings

FORMAT_VERSION = 1
"""Version of the saved format; a checkpoint with a larger number needs a newer hf-lwal."""

HUB_KEYWORDS = ("cache_dir", "force_download", "local_files_only", "proxies", "revision", "subfolder", "token")
LABEL_KEYWORDS = ("id2label", "label2id", "num_labels")
NOT_THE_ENCODERS = (
    *LABEL_KEYWORDS,
    *("dtype", "torch_dtype", "attn_implementation", "experts_implementation", "name_or_path"),
    *("architectures", "model_type", "transformers_version", "auto_map", "quantization_config"),
)
"""Keywords of ``from_pretrained`` that concern the whole model, although the encoder's configuration has them too."""
EXTRA_OUTPUTS = ("embeddings", "features", "label_vectors", "hidden_states", "attentions", "past_key_values", "cache")


def start_of_head(initial_head: str, task: str) -> str:
    """A value of `INITIAL_HEADS`, with what "auto" is for a task: fitted for text, where that was measured."""
    return ("probe" if task == "text" else "whitened") if initial_head == "auto" else initial_head


class LwALConfig(AroundConfig, LabelSettings, PreTrainedConfig):
    """Configuration of a classifier whose targets are learned label vectors.

    What it does not have itself (``num_hidden_layers``, ``hidden_dropout_prob``) is read from ``encoder_config`` and
    written there. How label vectors start and move: `LabelSettings`.

    Attributes:
        encoder_config: configuration of the stock classifier that embeds the input; its ``num_labels`` is kept equal
            to ``embedding_dim``.
        task: "text", "image" or "audio"; which stock ``...For...Classification`` family the encoder belongs to.
        embedding_dim: D, the dimension of the label vectors.
        head_name: name inside the encoder of its last linear layer; None when there is no such layer.
        space: "features" keeps class means of the head's input and sees them through the current head; "embeddings"
            keeps class means of the embeddings themselves, as the paper does.
        initial_label_norm: multiple of the unit vectors that one-hot label vectors start as.
        close_classes: the start pass found class means that lie closer together than a step moves them, so that
            evaluations need label vectors of evaluation-mode rows; set by `LwALTrainer`.
        initial_num_labels: number of labels that the table was started with, where labels were added or removed
            since; ``embedding_dim`` belongs to it.
        push_code: let saves and pushes carry the modules that load the model with ``trust_remote_code=True`` where
            hf-lwal is not installed.
        lwal_version: version of the saved format.
    """

    model_type = "lwal"
    part: ClassVar[str] = "encoder_config"

    id2label: dict[int, str] | dict[str, str] | None = None
    label2id: dict[str, int] | dict[str, str] | None = None
    encoder_config: Any = None
    task: Literal["text", "image", "audio"] = "text"
    embedding_dim: int = 128
    head_name: str | None = None
    space: Literal["features", "embeddings"] = "features"
    initial_label_norm: float = 1.0
    close_classes: bool = False
    initial_num_labels: int | None = None
    push_code: bool = True
    lwal_version: int = FORMAT_VERSION

    if TYPE_CHECKING:  # which takes the fields of `LabelSettings` for all there are

        def __init__(self, **kwargs: Any) -> None: ...

    pad_token_id = forwarded("pad_token_id")
    bos_token_id = forwarded("bos_token_id")
    eos_token_id = forwarded("eos_token_id")
    vocab_size = forwarded("vocab_size")
    hidden_size = forwarded("hidden_size")
    problem_type = forwarded("problem_type")

    def __post_init__(self, **kwargs: Any) -> None:
        """Check the values and bring both label dictionaries and the encoder's output size in line."""
        check_settings(self, RULES)
        if self.lwal_version > FORMAT_VERSION:
            raise ConfigurationError(
                f"This checkpoint has lwal_version {self.lwal_version}, but this hf-lwal reads versions up to "
                f"{FORMAT_VERSION}: upgrade with `pip install -U hf-lwal`."
            )
        num_labels = kwargs.get("num_labels")
        if num_labels is not None:
            check_number_of_labels(num_labels)
        self.id2label, self.label2id = match_label_names(self.id2label, self.label2id, num_labels)
        if self.encoder_config is not None and not isinstance(self.encoder_config, PreTrainedConfig):
            check_part(self.part, self.encoder_config)
            known = self.encoder_config.items()  # its own labels are one per embedding dimension
            self.encoder_config = {name: value for name, value in known if name not in LABEL_KEYWORDS}
        if isinstance(self.encoder_config, PreTrainedConfig):  # a live encoder's choices must survive the wrapping
            kwargs.setdefault("attn_implementation", self.encoder_config._attn_implementation)
            kwargs.setdefault("experts_implementation", self.encoder_config._experts_implementation)
        with building(self.part):
            super().__post_init__(**kwargs)
        self.label2id = {name: index for index, name in self.label_names.items()}
        self.validate_lwal()
        cast("PreTrainedConfig", self.encoder_config).num_labels = self.embedding_dim

    @property
    def start_of_head(self) -> str:
        """``initial_head``, with what "auto" is for this task."""
        return start_of_head(self.initial_head, self.task)

    @classmethod
    def get_config_dict(cls, *args: Any, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """As in transformers; another type is no matter here.

        PEFT asks the class of the model for the vocabulary of the plain checkpoint below an adapter, at every save,
        and transformers would warn each time. Models of other types are refused where weights are loaded.
        """
        found, rest = super().get_config_dict(*args, **kwargs)
        return ({**found, "model_type": cls.model_type} if "model_type" in found else found), rest

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Configuration from a saved one and the keywords of ``from_pretrained``, as in transformers.

        Labels given as keywords replace the saved ones, also when only one of ``id2label``, ``label2id`` and
        ``num_labels`` is given; what only the encoder's configuration knows (``hidden_dropout_prob``) goes there.

        Raises:
            ValueError: the keywords contradict each other, or ask for no classifier with one label per row.
        """
        wants_unused = kwargs.pop("return_unused_kwargs", False)
        asked = {name: kwargs.pop(name) for name in LABEL_KEYWORDS if name in kwargs}
        names, ids = parse_label_names(**asked)
        config_dict = {name: value for name, value in config_dict.items() if name not in SIZES}
        num_labels = asked.get("num_labels")
        if names is not None:
            config_dict |= {"id2label": names, "label2id": ids}
        elif num_labels is not None and num_labels != len(config_dict.get("id2label") or range(2)):
            config_dict |= {"id2label": generic_label_names(num_labels), "label2id": None}
        whole = {name: kwargs[name] for name in kwargs if name in NOT_THE_ENCODERS or name.startswith("_")}
        config, unused = super().from_dict(config_dict, return_unused_kwargs=True, **whole)
        unused |= set_known(config, {name: kwargs[name] for name in kwargs if name not in whole})
        if kwargs or asked:
            config.encoder_config.num_labels = config.embedding_dim
            config.validate_lwal()
            refuse_other_problems(config)
        return (config, unused) if wants_unused else config

    @classmethod
    def register_for_auto_class(cls, auto_class: str = "AutoConfig") -> None:
        """As in transformers, for classes of your own: the model saves the code of this one with its own."""
        if cls is not LwALConfig:
            super().register_for_auto_class(auto_class)

    def validate_lwal(self) -> None:
        """Raise ValueError with the value and the remedy when a setting of the label table makes no sense."""
        check_settings(self, RULES)
        of_batch = UPDATES[self.preset].of_batch
        if self.follow_drift and (of_batch or self.refresh_every == 0):
            why = f"preset {self.preset!r} keeps none" if of_batch else "refresh_every 0 never refreshes them"
            raise ConfigurationError(
                f"follow_drift is {self.follow_drift}, but only running class means can follow a drift, and {why}: "
                "set follow_drift to 0."
            )
        started_with = self.initial_num_labels or self.num_labels
        if self.initial_labels == "one_hot" and self.embedding_dim < started_with:
            raise ConfigurationError(
                f"One-hot label vectors of {started_with} labels do not fit in embedding_dim {self.embedding_dim}: "
                "use at least as many dimensions as labels."
            )

    @property
    def label_names(self) -> dict[int, str]:
        """Id to name of the labels, in order, whatever form a script left ``id2label`` in."""
        return match_label_names(self.id2label, None)[0] or {}

    @property
    def pooling(self) -> str:
        """How tokens become the features: "model" as the stock classifier does, or a key of `pooling.MODES`."""
        own = getattr(self.encoder_config, "model_type", None) == LwALPooledConfig.model_type  # code may exist twice
        return str(self.encoder_config.pooling) if own else "model"

    @property
    def keys_to_ignore_at_inference(self) -> list[str]:
        """Output fields that are not predictions: the encoder's own, and what the label table adds."""
        own = list(getattr(self.encoder_config, "keys_to_ignore_at_inference", []))
        return own + [key for key in EXTRA_OUTPUTS if key not in own]

    def to_dict(self) -> dict[str, Any]:
        """Serialise without the encoder's dummy label names, one per embedding dimension.

        Libraries that read a model's sizes from here find the encoder's; what is saved has them in its place alone.
        """
        output = super().to_dict()
        backbone = output["encoder_config"].get("base_config", output["encoder_config"])
        offer_targets(LwALConfig.model_type, backbone["model_type"])
        output = {name: backbone[name] for name in SIZES if name in backbone} | output
        for key in ("id2label", "label2id", "num_labels", "num_classes", "label_names"):  # the last two are timm's
            output["encoder_config"].pop(key, None)
        timm = {key: output["encoder_config"].get(key) for key in ("pretrained_cfg", "architecture")}
        if timm["pretrained_cfg"]:  # timm's image processor has no file of its own: it is looked for here
            output |= {**timm, "image_processor_type": "TimmWrapperImageProcessor"}
        output.pop("problem_type", None)
        return output

    def to_diff_dict(self) -> dict[str, Any]:
        """What is saved."""
        return {name: value for name, value in super().to_diff_dict().items() if name not in SIZES}


def match_label_names(
    id2label: Any, label2id: Mapping[Any, Any] | None, num_labels: int | None = None
) -> tuple[dict[int, str] | None, dict[str, int] | None]:
    """Bring ``id2label`` and ``label2id`` to one form (int to str and back), deriving the one that is missing.

    Scripts pass ids as strings, names as a list, and set one of the two; transformers leaves the other stale.

    Raises:
        ValueError: ids that are not 0…C-1, a name that occurs twice, or another number of names than ``num_labels``.
    """
    for name, given in (("id2label", id2label), ("label2id", label2id)):
        wanted = (Mapping,) if name == "label2id" else (Mapping, Sequence)
        if given is not None and (isinstance(given, str) or not isinstance(given, wanted)):
            raise ConfigurationError(
                f"{name} is {shown(given)}, but it must give every label an id, as id2label={{0: 'first name', …}} "
                "does."
            )
    if id2label is None and label2id is not None:
        id2label = {index: name for name, index in label2id.items()}
        if len(id2label) != len(label2id):
            twice = next(index for index, times in Counter(label2id.values()).items() if times > 1)
            sharing = [name for name, index in label2id.items() if index == twice]
            raise ConfigurationError(
                f"label2id must give every label an id of its own, but {twice!r} is that of {_first(sharing)}."
            )
    if id2label is None:
        return None, None
    by_id = dict(id2label if isinstance(id2label, Mapping) else enumerate(id2label))
    ids = dict(zip(by_id.values(), by_id, strict=True)) if _in_form(by_id) else {}
    if len(ids) == len(by_id) == (len(by_id) if num_labels is None else num_labels):
        return by_id, ids  # as it is nearly always, also where there are very many labels
    try:
        names = {int(index): str(name) for index, name in by_id.items()}
    except (TypeError, ValueError):
        wrong = next((index for index in by_id if not str(index).strip().isdecimal()), "a very long number")
        raise ConfigurationError(
            f"id2label must map the ids 0…{len(by_id) - 1} to names, but one of its ids is {wrong!r}: are ids and "
            "names the wrong way round?"
        ) from None
    if sorted(names) != list(range(len(by_id))):
        wrong = sorted(names.keys() - set(range(len(by_id))))
        raise ConfigurationError(
            f"id2label must use the ids 0…{len(by_id) - 1}, but its ids are [{_first(list(by_id))}]"
            + (f", and {wrong[0]} is none of those." if wrong else ".")
        )
    if len(set(names.values())) != len(names):
        twice = sorted(name for name, times in Counter(names.values()).items() if times > 1)
        raise ConfigurationError(f"Label names must be unique, but id2label repeats {_first(twice)}.")
    if num_labels is not None and num_labels != len(names):
        raise ConfigurationError(
            f"num_labels is {num_labels}, but id2label names {len(names)} labels: pass only one of them, or make them "
            "agree."
        )
    names = {index: names[index] for index in range(len(names))}
    return names, {name: index for index, name in names.items()}


def _in_form(by_id: dict[Any, Any]) -> bool:
    """Whether the keys are 0…C-1 in order and the values texts: nothing is to be brought to another form."""
    return (
        set(map(type, by_id)) == {int}
        and set(map(type, by_id.values())) == {str}
        and all(map(operator.eq, by_id, range(len(by_id))))
    )


def _first(values: Sequence[Any], most: int = 10) -> str:
    """Some values for a message, which 100,000 of them would fill."""
    return ", ".join(map(repr, values[:most])) + (", …" if len(values) > most else "")


def parse_label_names(
    id2label: Any = None, label2id: Mapping[Any, Any] | None = None, num_labels: int | None = None
) -> tuple[dict[int, str] | None, dict[str, int] | None]:
    """`match_label_names` of keywords that a caller has given, none of which may be dropped.

    Raises:
        ValueError: as there, or ``id2label`` and ``label2id`` say different things.
    """
    names, ids = match_label_names(id2label, label2id, num_labels)
    other = match_label_names(None, label2id)[0]
    if names is not None and other is not None and names != other:
        differing = next(index for index in names | other if names.get(index) != other.get(index))
        raise ConfigurationError(
            f"id2label is of {len(names)} labels, {names.get(differing)!r} with id {differing}, but label2id is of "
            f"{len(other)}, {other.get(differing)!r} with that id: pass only one of them, or make them agree."
        )
    return names, ids


def check_number_of_labels(num_labels: Any) -> None:
    """Raise ValueError where a number of labels is none, or too large to make up names for."""
    if (fault := NUM_LABELS.fault("num_labels", num_labels)) is not None:
        raise ConfigurationError(fault)


def generic_label_names(num_labels: int) -> dict[int, str]:
    """Id to name of labels that nobody has named, as transformers calls them."""
    check_number_of_labels(num_labels)
    return {index: f"LABEL_{index}" for index in range(num_labels)}


def set_known(config: PreTrainedConfig, settings: dict[str, Any]) -> dict[str, Any]:
    """Write settings into a configuration that knows them, and return those that it does not know.

    Args:
        config: changed in place; of an `LwALConfig`, what its encoder's configuration knows is written there.
        settings: names and values.
    """
    unknown = {}
    for name, value in settings.items():
        encoder = config.encoder_config if isinstance(config, LwALConfig) else None
        for_encoder = encoder is not None and name not in NOT_THE_ENCODERS and name not in vars(LwALConfig)
        if for_encoder and hasattr(encoder, name):
            setattr(encoder, name, value)
            if hasattr(type(config), name):  # as output_hidden_states, which both read
                setattr(config, name, value)
        elif hasattr(config, name):
            setattr(config, name, value)
        else:
            unknown[name] = value
    return unknown


def refuse_other_problems(config: PreTrainedConfig) -> None:
    """Raise ValueError when a configuration asks for regression or for several labels per row."""
    if config.problem_type in ("regression", "multi_label_classification") or config.num_labels == 1:
        asked = config.problem_type or "regression (num_labels = 1)"
        raise ConfigurationError(
            f"Label vectors need exactly one class per row and at least two classes, but the configuration asks for "
            f"{asked}: use the stock AutoModelFor…Classification for it."
        )


if __package__ == "hf_lwal.modeling":  # transformers registers the copies that travel with checkpoints itself
    AutoConfig.register(LwALConfig.model_type, LwALConfig)
