"""`LwALTrainingArguments`: transformers' training arguments plus the knobs of the label table."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from transformers import TrainingArguments

from ..data.start_budget import SHARE_OF_TRAINING
from ..modeling.configuration_lwal import LwALConfig
from ..modeling.name_start import check_label_names
from ..modeling.pooling import check_pooling
from ..modeling.setting_rules import INITIAL_HEADS
from .presets import preset

WITH_PRIOR = ("label_smoothing", "lwal", "one_hot")
"""Methods whose loss is a cross-entropy and nothing else that logits are compared in."""


class FilledIn(str):
    """A name that stands in the arguments because the user gave none; it stays one where they are copied."""


class LwALSettings(NamedTuple):
    """Resolved settings of one training.

    Attributes:
        label_method: key of the objective.
        config: values to write into the model's `LwALConfig`, only those asked for.
        embedding_dim: D asked for by a preset, for example "10x"; None leaves the model's.
        init: "class_means", "one_hot" or None for the method's own.
        initial_head: what the class-means start of one_hot makes of its head; None for class_means.
        init_samples: start rows per class, at least.
        start_budget: share of the training's work that reading more start rows may take, where they are fitted.
        scale: fixed start value of the scale, or None to calibrate it.
        eval_refresh: "auto", "no", "evaluate", "epoch" or a number of steps.
        eval_refresh_samples: rows per class for a refresh before evaluation.
        class_weights: None, "balanced" or one weight per class.
        prior: "uniform", or "train" for the class frequencies of the training rows in the training loss.
        exact_accumulation: two passes per step, so that the paper's centroids are those of the whole step.
        weight: weight of the method's extra term, or None for the method's own.
        temperature: temperature of the method's softened targets, or None for the method's own.
        lwr_every: epochs between recordings of lwr.
        static_model: text model that embeds the class names for static_label.
        pooling: how a text model pools its tokens; None as it does.
        label_names: "auto", "off" or descriptions by label name: what counts as one more start row of a class.
        noisy_labels: "keep", "drop" or "downweight": what becomes of rows whose label is probably wrong.
    """

    label_method: str
    config: dict[str, Any]
    embedding_dim: str | None
    init: str | None
    initial_head: str | None
    init_samples: int
    start_budget: float
    scale: float | None
    eval_refresh: str | int
    eval_refresh_samples: int
    class_weights: str | list[float] | None
    exact_accumulation: bool
    weight: float | None = None
    temperature: float | None = None
    lwr_every: int = 5
    static_model: str | None = None
    pooling: str | None = None
    label_names: str | dict[str, str] = "auto"
    prior: str = "uniform"
    noisy_labels: str = "keep"

    @property
    def of_the_method(self) -> dict[str, float]:
        """``weight`` and ``temperature``, those that were given."""
        given = {"weight": self.weight, "temperature": self.temperature}
        return {name: value for name, value in given.items() if value is not None}


@dataclass
class LwALTrainingArguments(TrainingArguments):
    """Training arguments of `LwALTrainer`; everything that is not named here is transformers' own.

    Fields left at None take the preset's value when training starts, so that hyper-parameter search can set them.
    Without ``compute_metrics``, ``metric_for_best_model`` is the accuracy instead of the loss, whose meaning moves
    with the label vectors.
    """

    label_method: str | None = field(
        default=None,
        metadata={
            "help": "What the outputs are compared with: lwal (default), one_hot, label_smoothing, max_entropy, "
            "teacher_free, lwr, label_embed, static_label, or a class of your own as module:Class."
        },
    )
    label_weight: float | None = field(
        default=None,
        metadata={
            "help": "Weight of the method's extra term. max_entropy 0.1, teacher_free 0.1, lwr 0.9 (at the end of "
            "training), label_embed 0.5 (of the hard labels); label_smoothing uses label_smoothing_factor, 0.1."
        },
    )
    label_temperature: float | None = field(
        default=None,
        metadata={"help": "Temperature of the targets that a method softens. teacher_free 20, lwr 5, label_embed 2."},
    )
    label_lwr_every: int | None = field(
        default=None,
        metadata={
            "help": "k, epochs between recordings of lwr, which is cross-entropy until epoch k. default 5, "
            "paper:lwr2k 2, paper:lwr3k 3, paper:lwr5k 5."
        },
    )
    label_static_model: str | None = field(
        default=None,
        metadata={"help": "Text model (local folder or Hub id) that embeds the class names for static_label."},
    )
    lwal_preset: str | None = field(
        default=None,
        metadata={
            "help": "Named settings: default, paper (= paper:lwal), paper:lwal10, paper:lwal10+rpl, paper:std, "
            "paper:static_label, paper:lwr2k, paper:lwr3k, paper:lwr5k, paper:label_embed. "
            "Without it a model keeps the settings it was saved with."
        },
    )
    lwal_refresh_every: int | None = field(
        default=None,
        metadata={"help": "k, optimizer steps between refreshes of the class means; 0 never. default 1, paper 1."},
    )
    lwal_warmup_steps: int | None = field(
        default=None, metadata={"help": "w, optimizer steps before the first refresh. default 0, paper 0."}
    )
    lwal_repel_weight: float | None = field(
        default=None,
        metadata={"help": "Weight of the repel loss. default 0, paper 0, paper:lwal10+rpl 10."},
    )
    lwal_memory: int | None = field(
        default=None,
        metadata={"help": "M, rows that a running class mean remembers; 0 overwrites it. default 50, paper 0."},
    )
    lwal_offset: bool | None = field(
        default=None, metadata={"help": "Learn an offset added to the class means. default true, paper false."}
    )
    lwal_reanchor: bool | None = field(
        default=None,
        metadata={"help": "Let the offset absorb the jump of the means at a refresh. default true, paper false."},
    )
    lwal_follow_drift: float | None = field(
        default=None,
        metadata={
            "help": "Share, 0 to 1, of the rows' common displacement from their class means by which all label "
            "vectors move at a refresh; for backbones whose features drift. default 0.3, paper 0."
        },
    )
    lwal_space: str | None = field(
        default=None,
        metadata={
            "help": "Class means of the head's input seen through the head (features) or of the embeddings "
            "(embeddings). default features, paper embeddings."
        },
    )
    lwal_init: str | None = field(
        default=None,
        metadata={
            "help": "Start of the label vectors: class_means of a few rows, or one_hot (only with embeddings). "
            "default class_means, paper one_hot. With label_method one_hot, class_means starts the head from them."
        },
    )
    lwal_initial_head: str | None = field(
        default=None,
        metadata={
            "help": "What the start pass makes of the encoder's last layer: whitened (class means apart, noise within "
            "classes scaled down, as far as the rows allow), class_means (class means apart), probe (head and offset "
            "fitted to the start rows, shrinkage and scale chosen on rows held out), random (kept), or auto (probe "
            "for text, else whitened). default auto, paper random. With label_method one_hot and lwal_init "
            "class_means: class_means."
        },
    )
    lwal_init_samples: int | None = field(
        default=None,
        metadata={
            "help": "Rows per class of the start pass; where none is given, more where head and offset are fitted and "
            "lwal_start_budget allows it. default 16; paper has no start pass."
        },
    )
    lwal_start_budget: float | None = field(
        default=None,
        metadata={
            "help": "Share, 0 to 1, of the work of the planned training that the start pass may take to read more "
            "than lwal_init_samples rows per class, where head and offset are fitted to them; a row that is only read "
            "counts as a third. default 0.1, and 0 with lwal_init_samples."
        },
    )
    lwal_label_names: dict[str, str] | str | None = field(
        default=None,
        metadata={
            "help": "Names of labels as samples, for text: what the encoder makes of a name counts as one more start "
            "row of a class with fewer than 16, and starts one without any. auto (where names predict the start rows "
            "better than chance), off, or descriptions by label name, as JSON. default auto."
        },
    )
    lwal_noisy_labels: str | None = field(
        default=None,
        metadata={
            "help": "What becomes of training rows whose label is probably wrong, which a pass over all rows finds "
            "before the first step, whatever the method: keep, drop (they count for nothing), or downweight (they "
            "count by the probability that the label is right). How many there are is estimated. default keep."
        },
    )
    lwal_scale: str | None = field(
        default=None,
        metadata={"help": "Scale of the logits at the start: auto (calibrated) or a number. default auto, paper 1."},
    )
    lwal_learn_scale: bool | None = field(
        default=None, metadata={"help": "Learn the scale of the logits. default true, paper false."}
    )
    lwal_eval_refresh: str | None = field(
        default=None,
        metadata={
            "help": "Evaluation-mode class means before an evaluation or save during training: auto (models with "
            "BatchNorm whose label vectors jump with the means, having no offset or no reanchoring; and where the "
            "start finds classes closer together than a step moves them), no, evaluate (always), epoch (at "
            "the end of epochs), or at least this many steps apart. default auto, paper auto."
        },
    )
    lwal_eval_refresh_samples: int | None = field(
        default=None, metadata={"help": "Rows per class of that refresh. default 50, paper 50."}
    )
    lwal_class_weights: str | None = field(
        default=None,
        metadata={"help": "Loss weight per class: balanced, or numbers separated by commas. default none."},
    )
    lwal_prior: str | None = field(
        default=None,
        metadata={
            "help": "How frequent the training loss expects the classes to be (logit adjustment): train, as in the "
            "training rows, whose log frequencies are added to the logits in the loss alone, so that predictions suit "
            "classes that are all as frequent and rare ones are found more often; or uniform, which adds nothing, so "
            "that predictions lean to the classes with many rows. Of lwal, one_hot and label_smoothing. default "
            "uniform, paper uniform."
        },
    )
    lwal_pooling: str | None = field(
        default=None,
        metadata={
            "help": "How the tokens of a text become the features, whatever the method: mean, cls, max, last, "
            "mean_sqrt_len, weightedmean, several joined by +, or auto for what a checkpoint of Sentence Transformers "
            "says. Only for a model that was not trained yet. default: as the model was loaded."
        },
    )
    lwal_exact_accumulation: bool | None = field(
        default=None,
        metadata={
            "help": "With gradient accumulation and the paper preset, embed the whole step twice, so that centroids "
            "and gradients are those of one large batch. The default preset needs no second pass. default false, "
            "paper false."
        },
    )

    lwal_card_samples: int | None = field(
        default=None,
        metadata={
            "help": "Rows of the training and the evaluation data that the model card shows; 0 shows none. default: "
            "three of data sets that anyone can see (on the Hub without a token), none of others."
        },
    )

    def __post_init__(self) -> None:
        """Mark the metric of the best model as open when the user did not choose it."""
        # Smaller is better said without a name means the loss.
        args: Any = self
        is_open = args.metric_for_best_model is None and args.greater_is_better is not False
        super().__post_init__()
        if is_open and args.metric_for_best_model is not None:
            args.metric_for_best_model = FilledIn(args.metric_for_best_model)

    def to_dict(self) -> dict[str, Any]:
        """The arguments by name; a metric of the best model that was left open is None, as it was given."""
        values: dict[str, Any] = super().to_dict()
        if isinstance(self.metric_for_best_model, FilledIn):
            values |= {"metric_for_best_model": None, "greater_is_better": self.greater_is_better or None}
        return values

    def resolve_lwal(self) -> LwALSettings:
        """Fill the fields that were left at None from the preset.

        Raises:
            ValueError: an unknown preset or value; the message says which and what is allowed.
        """
        return resolve(self)


CONFIG_FIELDS = tuple(
    name
    for name in LwALConfig.__dataclass_fields__
    if f"lwal_{name}" in LwALTrainingArguments.__dataclass_fields__ and name != "preset"  # whose names are richer
)
"""Fields of the model's configuration that training arguments may set."""


def metric_is_open(args: TrainingArguments) -> bool:
    """Whether what makes a model the best was left open, which plain arguments do not tell from wanting the loss."""
    name = args.metric_for_best_model
    plain = not isinstance(args, LwALTrainingArguments) and name == "loss" and not args.greater_is_better
    return isinstance(name, FilledIn) or plain


def resolve(args: TrainingArguments) -> LwALSettings:
    """Settings of any training arguments; plain `TrainingArguments` mean the default preset."""

    def given(name: str) -> Any:
        return getattr(args, name, None)

    _above("lwal_card_samples", given("lwal_card_samples"), 0, or_equal=True)
    name = given("lwal_preset")
    values = preset(name) if name is not None else {}
    method = given("label_method") or values.pop("label_method", None) or "lwal"
    values.pop("label_method", None)
    embedding_dim, lwr_every = values.pop("embedding_dim", None), values.pop("lwr_every", None)
    values |= {key: given(f"lwal_{key}") for key in CONFIG_FIELDS if given(f"lwal_{key}") is not None}
    init = given("lwal_init")
    head = given("lwal_initial_head")
    if head not in (None, *INITIAL_HEADS):
        raise ValueError(f"Unknown lwal_initial_head {head!r}: choose one of {', '.join(INITIAL_HEADS)}.")
    if init not in (None, "class_means", "one_hot"):
        raise ValueError(f"Unknown lwal_init {init!r}: choose class_means or one_hot.")
    if method != "lwal":  # the settings of adaptive labels mean nothing to the other methods
        values, embedding_dim = {}, None
    elif init is not None:
        values["initial_labels"] = init
    return LwALSettings(
        label_method=method,
        config=values,
        embedding_dim=embedding_dim,
        init=init,
        initial_head=head,
        init_samples=_positive("lwal_init_samples", given("lwal_init_samples"), 16),
        start_budget=_start_budget(given("lwal_start_budget"), given("lwal_init_samples")),
        scale=_scale(given("lwal_scale")),
        eval_refresh=_eval_refresh(given("lwal_eval_refresh")),
        eval_refresh_samples=_positive("lwal_eval_refresh_samples", given("lwal_eval_refresh_samples"), 50),
        class_weights=_class_weights(given("lwal_class_weights")),
        exact_accumulation=bool(given("lwal_exact_accumulation")),
        weight=_above("label_weight", given("label_weight"), 0.0, or_equal=True),
        temperature=_above("label_temperature", given("label_temperature"), 0.0),
        lwr_every=_positive("label_lwr_every", given("label_lwr_every"), lwr_every or 5),
        static_model=given("label_static_model"),
        pooling=_pooling(given("lwal_pooling")),
        label_names=check_label_names(given("lwal_label_names")),
        prior=_prior(given("lwal_prior"), method),
        noisy_labels=_noisy_labels(given("lwal_noisy_labels")),
    )


def _prior(value: str | None, method: str) -> str:
    if value not in (None, "train", "uniform"):
        raise ValueError(f"lwal_prior is {value!r}, but it must be train or uniform.")
    takes = method in WITH_PRIOR or ":" in method  # a class of the user's own, which may use the usual cross-entropy
    return value if value is not None and takes else "uniform"


NOISY_LABELS = ("keep", "drop", "downweight")


def _noisy_labels(value: str | None) -> str:
    if value not in (None, *NOISY_LABELS):
        raise ValueError(f"Unknown lwal_noisy_labels {value!r}: choose one of {', '.join(NOISY_LABELS)}.")
    return value or "keep"


def _pooling(value: str | None) -> str | None:
    return value if value in (None, "auto") else check_pooling(value)


def _positive(name: str, value: int | None, default: int) -> int:
    if value is not None and value < 1:
        raise ValueError(f"{name} is {value}, but it must be at least 1.")
    return default if value is None else value


def _above(name: str, value: float | None, limit: float, or_equal: bool = False) -> float | None:
    if value is not None and not (limit < value < float("inf") or (or_equal and value == limit)):
        raise ValueError(f"{name} is {value}, but it must be {'at least' if or_equal else 'above'} {limit:g}.")
    return value


def _start_budget(value: float | None, init_samples: int | None) -> float:
    if value is not None and not 0.0 <= value <= 1.0:
        raise ValueError(f"lwal_start_budget is {value}, but it is a share of the training, from 0 to 1.")
    if value is None:
        return SHARE_OF_TRAINING if init_samples is None else 0.0  # who counts the rows gets as many
    return value


def _scale(value: str | float | None) -> float | None:
    if value is None or value == "auto":
        return None
    try:
        scale = float(value)
    except ValueError:
        raise ValueError(f"lwal_scale is {value!r}, but it must be auto or a positive number.") from None
    if not 0.0 < scale < float("inf"):
        raise ValueError(f"lwal_scale is {value!r}, but it must be auto or a positive number.")
    return scale


def _eval_refresh(value: str | int | None) -> str | int:
    if value is None:
        return "auto"
    if str(value) in ("auto", "no", "evaluate", "epoch"):
        return str(value)
    if str(value).isdigit() and int(value) > 0:
        return int(value)
    raise ValueError(
        f"lwal_eval_refresh is {value!r}, but it must be auto, no, evaluate, epoch or a positive number of steps."
    )


def _class_weights(value: str | list[float] | None) -> str | list[float] | None:
    if value is None or value == "balanced":
        return value
    try:
        numbers = value if isinstance(value, (list, tuple)) else json.loads(f"[{value.strip('[]')}]")
        weights = [float(number) for number in numbers]
    except (ValueError, TypeError, OverflowError, RecursionError):
        raise ValueError(
            f"lwal_class_weights is {value!r}, but it must be balanced or numbers separated by commas."
        ) from None
    if not weights or not all(0.0 < weight < math.inf for weight in weights):
        raise ValueError(f"lwal_class_weights is {value!r}, but every weight must be above 0 and finite.")
    return weights
