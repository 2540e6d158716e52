"""Models with a label table: a stock classifier that embeds, and a table of label vectors that classifies.

The encoder is transformers' own ``...For...Classification`` built with ``num_labels = embedding_dim``: what it calls
logits is the embedding z. Nothing else of the architecture changes.
"""

from __future__ import annotations

import copy
import inspect
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, overload

import torch
import transformers
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from .configuration_lwal import LwALConfig, matched_label_names, refuse_other_problems
from .configuration_pooled import LwALPooledConfig
from .distributed import all_reduce_sum
from .functional import IGNORE_INDEX, class_ids, class_sums, cross_entropy, direction_sums, repel_from_sums
from .head_start import (
    can_start,
    class_mean_projection,
    held_out_distances,
    size_for_offset,
    suited_size,
    visible_size,
    write_linear,
)
from .heads import (
    Head,
    active_copy,
    hooked_head,
    layers_to_save,
    replace_head,
    run_with_features,
    scores_of,
    stock_from_config,
)
from .hub_code import complete_card, forget_code, remove_code, take_back_code, write_code
from .inference import encode as encode_inputs
from .inference import predict as predict_labels
from .label_editing import LabelEditing
from .label_table import LabelTable
from .label_table_file import check_label_table_file, write_label_table_file
from .label_tracking import LabelTracker
from .loading import (
    check_loaded,
    configuration_of,
    readable_weights,
    refuse_other_labels,
    rows_of,
    take_labels,
)
from .modeling_pooled import LwALPooledForSequenceClassification
from .name_start import LabelNames, NameStart
from .open_set import OpenSet
from .probe_start import fitted_start
from .quantisation import sparing
from .saving import Layout, check_can_be_loaded_again, check_labels_fit
from .start import StartSamples, collect, finite_samples, warn_of_alike_rows, warn_of_missing_classes

logger = logging.getLogger(__name__)

FLAGS = ("output_attentions", "output_hidden_states")
"""Arguments that a forward with ``**kwargs`` takes without naming them."""
PREFIX = "past_key_values"
"""Keys and values before the first token, by which an adapter tunes a prefix: never to be left out unsaid."""
PREFIX_IN_BACKBONES = {PREFIX, "cache"}
"""Its names in the forward of backbones, newer ones of which take the old name too."""
TABLE_TENSORS = ("label_vectors", "class_features", "pending_sums", "log_scale_bias", "offset_bias", "rejection_radii")


@dataclass
class LwALClassifierOutput(ModelOutput):
    """Output of the LwAL models.

    Attributes:
        loss: scalar float32, with ``labels``.
        logits: (B, C) float32, ``-scale * distance``; higher is likelier.
        embeddings: (B, D) float32, z.
        features: (B, H) input of the encoder's head in the model's dtype; None without such a head.
        hidden_states: as the encoder returns them.
        attentions: as the encoder returns them.
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    embeddings: Tensor | None = None
    features: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


class LwALPreTrainedModel(LabelEditing, NameStart, OpenSet, PreTrainedModel):
    """What the three tasks share; use `LwALForSequenceClassification` and its siblings.

    Attributes:
        encoder: the stock classifier with D outputs.
        classifier: the `LabelTable`; read it as ``label_table``.
        label_tracking: who ends training steps: "forward", every training forward with labels (plain loops and the
            plain Trainer); "trainer", the caller through `commit`; "off", nobody, so class means stay.
    """

    config: LwALConfig
    config_class = LwALConfig
    base_model_prefix = "encoder"
    supports_gradient_checkpointing = True
    accepts_loss_kwargs = False
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _keep_in_fp32_modules_strict: ClassVar[set[str]] = {f"classifier.{name}" for name in TABLE_TENSORS}
    _keys_to_ignore_on_load_missing: ClassVar[set[str]] = {r"^classifier\.rejection_radii$"}  # 0: not measured
    task: ClassVar[Literal["text", "image", "audio"]]

    def __init__(self, config: LwALConfig, encoder: PreTrainedModel | None = None) -> None:
        super().__init__(config)
        self.encoder = stock_from_config(config.encoder_config, self.task) if encoder is None else encoder
        config.encoder_config = self.encoder.config
        config.task = self.task
        self.main_input_name = self.encoder.main_input_name
        self.tracker = LabelTracker()
        self.reset_label_table()
        self.register_state_dict_pre_hook(_materialize_before_saving)
        self.register_load_state_dict_post_hook(_forget_after_loading)
        self.post_init()

    # -- forward --------------------------------------------------------------------------------------------------

    def classify(
        self, inputs: dict[str, Any], labels: Tensor | None = None, return_dict: bool | None = None
    ) -> LwALClassifierOutput | tuple[Any, ...]:
        """Embed the inputs, compare them with the label vectors and, given ``labels``, compute the loss.

        Args:
            inputs: keyword arguments of the encoder. None values are left out, and so is what this model's forward
                names and the encoder does not know; the rest is for the encoder to take.
            labels: (B,) in 0…C-1, of any type that `class_ids` takes; rows with -100 count for nothing.
            return_dict: False for a plain tuple.
        """
        if labels is not None:
            labels = self._beside_table(class_ids(labels, self.label_table.num_labels))
        embeddings, features, encoded = self._embed(inputs)
        vectors = self.tracker.label_vectors(self, embeddings, features, labels) if self.training else None
        logits = self.label_table(embeddings, vectors, labels)
        output = LwALClassifierOutput(
            loss=None if labels is None or not self.tracker.takes_loss else self._loss(embeddings, logits, labels),
            logits=logits,
            embeddings=embeddings,
            features=features,
            hidden_states=encoded.get("hidden_states"),
            attentions=encoded.get("attentions"),
        )
        wants_tuple = return_dict is False or (return_dict is None and not self.config.return_dict)
        return output.to_tuple() if wants_tuple else output

    def _embed(self, inputs: dict[str, Any]) -> tuple[Tensor, Tensor | None, ModelOutput]:
        """Embeddings (B, D) float32, features (B, H) or None, and the encoder's own output."""
        known, head_name, encoder = self._for_encoder(inputs), self.config.head_name, self.encoder
        device = self.label_table.label_vectors.device  # with a device_map, layers lie on several devices
        if head_name is None:
            encoded = encoder(**known, return_dict=True)
            return scores_of(encoded).to(device, torch.float32), None, encoded
        embeddings, features, encoded = run_with_features(encoder, head_name, known)
        return embeddings.to(device, torch.float32), features.to(device), encoded

    def _beside_table(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.label_table.label_vectors.device)

    def embed(self, inputs: dict[str, Any]) -> Tensor:
        """Embeddings (B, D) float32 of a batch without labels, in the model's current mode."""
        return self._embed(inputs)[0]

    def _for_encoder(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """What the encoder gets: what this model's forward names and the encoder knows, and all else as it is."""
        taken = {}
        for name, value in inputs.items():
            if value is None:
                continue
            if self._encoder_takes(name):
                taken[name] = value
            elif name not in self._own_arguments:
                if not self._encoder_takes_any or name == PREFIX:
                    known = ", ".join(sorted(self.encoder_arguments - {"labels"}))
                    raise TypeError(f"{type(self.encoder).__name__} takes no {name!r}; its arguments are {known}.")
                taken[name] = value
        return taken

    def _encoder_takes(self, name: str) -> bool:
        return name in self.encoder_arguments or (self._encoder_takes_any and name in FLAGS)

    @property
    def encoder_arguments(self) -> frozenset[str]:
        """Names that the encoder's own forward has for its arguments: the columns of a data set that it uses."""
        if self._encoder_arguments is None:
            own, encoders = (inspect.signature(type(model).forward).parameters for model in (self, self.encoder))
            self._own_arguments = frozenset(own) - {PREFIX}
            self._encoder_takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in encoders.values())
            named = {name for name, p in encoders.items() if p.kind is not inspect.Parameter.VAR_KEYWORD}
            in_backbone = inspect.signature(type(self.encoder.base_model).forward).parameters
            if self._encoder_takes_any and not PREFIX_IN_BACKBONES.isdisjoint(in_backbone):
                named.add(PREFIX)
            self._encoder_arguments = frozenset(named) - {"self"}
        return self._encoder_arguments

    _encoder_arguments: frozenset[str] | None = None
    _own_arguments: frozenset[str] = frozenset()
    _encoder_takes_any = False
    saved_layout: Layout | None = None

    def _loss(self, embeddings: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
        loss = cross_entropy(logits, self.trainable_labels(labels) if self.training else labels)
        if self.training and self.config.repel_weight > 0 and self.refresh_due:
            loss = loss + self.config.repel_weight * self.repel(embeddings, labels)
        return loss

    def repel(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Repel loss, Eq. (4), over the rows of all ranks and equal on every rank.

        Args:
            embeddings: (B, D).
            labels: (B,) int64.
        """
        sums, counts = direction_sums(embeddings, labels, self.label_table.num_labels)
        return repel_from_sums(all_reduce_sum(sums), all_reduce_sum(counts))

    def trainable_labels(self, labels: Tensor) -> Tensor:
        """Labels (B,) with -100 for rows whose class has no mean yet: they wait for the next refresh."""
        if not self.label_table.mask_unseen:
            return labels
        return torch.where(self.label_table.seen[labels.clamp(min=0)], labels, IGNORE_INDEX)

    # -- Algorithm 1 (label_tracking.py) --------------------------------------------------------------------------

    @property
    def label_tracking(self) -> str:
        """Who ends training steps: "forward", "trainer" or "off"."""
        return self.tracker.mode

    @label_tracking.setter
    def label_tracking(self, mode: str) -> None:
        if mode not in ("forward", "trainer", "off"):
            raise ValueError(f"Unknown label_tracking {mode!r}: choose one of forward, trainer, off.")
        self.tracker.end_step(self)
        self.tracker.mode = mode

    @property
    def optimizer_step(self) -> int:
        """Optimizer steps done over the whole training."""
        return self.tracker.step(self)

    @optimizer_step.setter
    def optimizer_step(self, step: int) -> None:
        self.tracker.set_step(self, step)

    @property
    def refresh_due(self) -> bool:
        """Whether this training step refreshes the class means."""
        return self.tracker.refresh_due(self)

    def commit(self, sums: Tensor) -> None:
        """End of an optimizer step: take its class sums, refresh when due, count the step.

        Args:
            sums: (C, N + 1) float32 class sums and counts of all rows of the step, equal on all ranks.
        """
        self.tracker.commit(self, sums)

    # -- the start pass -------------------------------------------------------------------------------------------

    def initialize_labels(
        self,
        dataloader: Iterable[dict[str, Any]],
        progress: bool = True,
        learning_rate: float | None = None,
        processing_class: Any = None,
        label_names: LabelNames = "auto",
    ) -> StartSamples:
        """Start from data: head, class means and a calibrated scale, from a pass without dropout.

        Call it before the optimizer makes copies of the weights. Before a training, models with BatchNorm must be in
        training mode (``model.train()``), so that they normalise by the statistics of batches, as they will then; in
        evaluation mode the label vectors are those for predictions without any training.

        Args:
            dataloader: batches (dicts with "labels"); about 16 rows per class suffice; iterated twice for models
                with BatchNorm.
            progress: show a progress bar.
            learning_rate: peak learning rate of an Adam-like optimizer, which decides the size of the head.
            processing_class: tokenizer that reads the names of labels with few rows as samples; None for none.
            label_names: "auto", "off", or descriptions by label name, as `LwALTrainingArguments.lwal_label_names`.

        Returns:
            The features or embeddings, the labels, and the seconds it took.
        """
        setting = self.label_names_to_count(label_names, processing_class)
        samples = collect(self, self.start_values, dataloader, self.device, progress, as_in_training=self.training)
        samples = samples._replace(labels=self._checked_labels(samples.labels))
        counted = self.with_label_names(samples, setting, processing_class)
        self.start_from(counted, learning_rate=learning_rate)
        warn_of_alike_rows(samples)
        warn_of_missing_classes(counted.labels, self.config.label_names)
        return samples

    def start_from(
        self, samples: StartSamples, scale: float | None = None, learning_rate: float | None = None
    ) -> float:
        """Set head, class means and scale from collected start rows.

        Args:
            samples: from `initialize_labels` or `collect`; labels outside 0…C-1 are an error.
            scale: use this scale instead of the calibrated one.
            learning_rate: peak learning rate of the head, which decides its size; see `head_start`.

        Returns:
            The calibrated scale.
        """
        table, (values, labels) = self.label_table, finite_samples(samples)[:2]
        labels = self._checked_labels(labels)
        keep = self.config.initial_labels == "one_hot"
        held_out, offset = (None, None) if keep else self._start_head(values, labels, learning_rate, samples.names)
        table.start(values, labels, self.head, keep_vectors=keep)
        if offset is not None:
            table.add_offset(offset, self.head)
        smoothed = offset is not None
        calibrated = table.calibrate(values, labels, self.head, held_out, samples.names, smoothed)
        if scale is not None or not keep:
            table.set_scale(calibrated if scale is None else scale)
        self.tracker.forget()
        return calibrated

    def _checked_labels(self, labels: Tensor) -> Tensor:
        """Labels (N,) of start rows as int64; ValueError for one that the table does not have."""
        labels, number = class_ids(labels), self.label_table.num_labels
        wrong = labels[(labels != IGNORE_INDEX) & ((labels < 0) | (labels >= number))]
        if len(wrong):
            raise ValueError(
                f"Labels must be in 0…{number - 1} or {IGNORE_INDEX}, but a start row has label {int(wrong[0])}: "
                "build the model with the number of labels of the data."
            )
        return labels

    @property
    def fitted_sizes(self) -> tuple[int, int, int] | None:
        """Sizes (H, C, D) of the head and label vectors that the start pass fits to its rows; None if it does not."""
        config = self.config
        if config.start_of_head != "probe" or config.initial_labels == "one_hot" or self.head is None:
            return None
        layer: Any = active_copy(self.head_module)
        return (layer.in_features, config.num_labels, config.embedding_dim) if can_start(layer) else None

    def _start_head(
        self, values: Tensor, labels: Tensor, learning_rate: float | None, names: int
    ) -> tuple[Tensor | None, Tensor | None]:
        """Make the head from start rows, the last ``names`` of which are names of labels.

        Returns:
            Distances (N, C) of the rows to label vectors as if they were new, and an offset (C, D) that was fitted
            with the head; None for what there is not.
        """
        kind = self.config.start_of_head
        if kind == "random" or self.head is None:
            return None, None
        layer = active_copy(self.head_module)
        if not can_start(layer):
            logger.info("The head is no plain trainable linear layer: it starts as it is.")
            return None, None
        sizes, whiten = (self.label_table.num_labels, self.label_table.embedding_dim), kind != "class_means"
        fitted = fitted_start(values, labels, *sizes, self.config.offset, names) if kind == "probe" else None
        if fitted is not None:
            weight, bias, held_out = fitted.weight, fitted.bias, fitted.held_out
        else:
            weight, bias = class_mean_projection(values, labels, *sizes, whiten=whiten)
            held_out = held_out_distances(values, labels, *sizes, whiten=whiten, names=names)
        size = visible_size(suited_size(weight, learning_rate), held_out)
        size = self._size_for_offset(size, values, labels, weight, learning_rate)
        write_linear(layer, size * weight, size * bias)
        return held_out.mul_(size), None if fitted is None else size * fitted.offset

    def _size_for_offset(
        self, size: float, values: Tensor, labels: Tensor, weight: Tensor, learning_rate: float | None
    ) -> float:
        if not self.config.offset:
            return size
        sums, counts = class_sums(values.double(), labels, self.label_table.num_labels)
        means = sums[counts > 0] / counts[counts > 0].unsqueeze(1)
        return size_for_offset(size, (means - means.mean(dim=0)) @ weight.T, learning_rate)

    def start_values(self, inputs: dict[str, Any]) -> Tensor:
        """What class means are taken of, for a batch without labels: (B, H) or (B, D)."""
        return self.values(*self._embed(inputs)[:2])

    # -- use ------------------------------------------------------------------------------------------------------

    def encode(self, inputs: Sequence[Any], processing_class: Any, batch_size: int = 32) -> Tensor:
        """Embeddings of raw inputs.

        Args:
            inputs: texts, images or sounds: a list, an array, a pandas Series or a data set's column. Images may be
                paths, and sounds a data set's dicts, which are brought to the extractor's sampling rate.
            processing_class: tokenizer, image processor or feature extractor.
            batch_size: inputs per forward pass.

        Returns:
            (N, D) float32 on the CPU.
        """
        return encode_inputs(self, inputs, processing_class, batch_size)

    def predict(
        self, inputs: Sequence[Any], processing_class: Any, top_k: int = 1, batch_size: int = 32
    ) -> list[list[dict[str, Any]]]:
        """Names and probabilities of the likeliest labels of raw inputs.

        Args:
            inputs: texts, images or sounds: a list, an array, a pandas Series or a data set's column. Images may be
                paths, and sounds a data set's dicts, which are brought to the extractor's sampling rate.
            processing_class: tokenizer, image processor or feature extractor.
            top_k: labels per input.
            batch_size: inputs per forward pass.

        Returns:
            Per input a list of ``{"label": name, "score": probability}``, likeliest first.
        """
        return predict_labels(self, inputs, processing_class, top_k, batch_size)

    def fold(self, inputs: Iterable[dict[str, Any]] | None = None, *, add_bias: bool = False) -> PreTrainedModel:
        """A stock classifier with the same predictions, which needs no hf-lwal; compared before it is given out.

        Args:
            inputs: batches to compare and to fit the temperature of the probabilities on; default: random inputs.
            add_bias: give a bias to a head that has none by design; such a model cannot be saved.

        Raises:
            ValueError: this architecture cannot be folded, or a prediction differs.
        """
        from .export import fold

        return fold(self, inputs, add_bias=add_bias)

    # -- encoder head and table -----------------------------------------------------------------------------------

    @property
    def label_table(self) -> LabelTable:
        """The label table; the active copy when an adapter wraps it."""
        table: Any = active_copy(self.classifier)
        return table

    def peft_modules_to_save(self) -> list[str]:
        """Names for ``LoraConfig(modules_to_save=...)``: the label table, and what `layers_to_save` names.

        An adapter without them meets others when it is loaded: the head of a backbone, for one, starts at random.
        """
        return ["classifier", *(f"encoder.{name}" for name in layers_to_save(self.encoder, self.config.head_name))]

    @property
    def head_module(self) -> Any:
        """The encoder's last linear layer, or the adapter around it."""
        return self.encoder.get_submodule(self.config.head_name)

    @property
    def head(self) -> Callable[[Tensor], Tensor] | None:
        """Maps class means of features to label vectors: the current head; None in the embeddings space."""
        return None if self.config.space == "embeddings" else self._head

    def _head(self, means: Tensor) -> Tensor:
        return self._beside_table(self.head_module(means.to(self.encoder.dtype)))

    def values(self, embeddings: Tensor, features: Tensor | None) -> Tensor:
        """What class means are taken of: features (B, H), or embeddings (B, D) in the embeddings space."""
        return embeddings if self.config.space == "embeddings" or features is None else features

    def resize_embedding_dim(self, embedding_dim: int) -> None:
        """Give the encoder a fresh head with ``embedding_dim`` outputs and the model an empty table.

        Args:
            embedding_dim: new D, at least 2.

        Raises:
            ValueError: the encoder has no single linear head.
        """
        self._refuse_inside_adapter()
        if self.config.head_name is None:
            raise ValueError("This encoder has no single linear head, so its embedding_dim cannot be changed.")
        head = Head(self.config.head_name, self.head_module.in_features)
        self.config.embedding_dim = embedding_dim
        replace_head(self.encoder, head, embedding_dim)
        self.reset_label_table()

    def reset_label_table(self) -> None:
        """Start an empty table of the shape that the configuration asks for."""
        self._refuse_inside_adapter()
        config = self.config
        if config.head_name is not None:
            hooked_head(self.encoder, config.head_name)
        in_embeddings = config.space == "embeddings" or config.head_name is None
        table = LabelTable(
            config.num_labels,
            config.embedding_dim,
            config.embedding_dim if in_embeddings else self.head_module.in_features,
            offset=config.offset,
            learn_scale=config.learn_scale,
            initial_label_norm=config.initial_label_norm,
            mask_unseen=config.initial_labels == "class_means",
        )
        # Not hasattr: the encoder may have a classifier, which answers for this model's while there is none.
        self.classifier = table.to(self.device) if "classifier" in self._modules else table
        self.tracker.forget()

    def _refuse_inside_adapter(self) -> None:
        if "classifier" in self._modules and active_copy(self.classifier) is not self.classifier:
            raise ValueError(
                "An adapter holds this model's label table, whose shape cannot change any more: first apply the "
                "arguments with hf_lwal.settings.apply_settings(model, args.resolve_lwal()), then wrap the model."
            )

    def current_label_vectors(self) -> Tensor:
        """(C, D) float32 label vectors of the moment, as the next training step would use them."""
        return self.label_table.label_vectors if self.config.preset == "paper" else self.label_table.derived(self.head)

    def bring_labels_up_to_date(self) -> None:
        """Write ``label_vectors`` if training has changed what they derive from since they were written."""
        self.tracker.end_step(self)
        if self.tracker.stale:
            self.materialize()

    def labels_are_current(self) -> None:
        """Say that ``label_vectors`` were just written, so that leaving training mode must not overwrite them."""
        self.tracker.stale = False

    def materialize(self) -> None:
        """Write the label vectors of the moment into the buffer that evaluation uses."""
        if self.config.preset != "paper":
            self.label_table.materialize(self.head)
        self.tracker.stale = False

    # -- the stock class's surface -----------------------------------------------------------------------------------

    @property
    def base_model(self) -> nn.Module:
        """The backbone, without the encoder's head, as in the stock class: freezing it leaves the head trainable."""
        encoder = self._modules.get("encoder")
        base: nn.Module = self if encoder is None else encoder.base_model
        return base

    @property
    def num_labels(self) -> int:
        """Number of labels C; the encoder's own is the number of its outputs D."""
        return self.config.num_labels

    def __getattr__(self, name: str) -> Any:
        # Called for what this model lacks: the encoder's parts (`model.bert`) and its class's own methods
        # (`freeze_feature_encoder`). Nothing else, since libraries ask a model for marks of what was done to it.
        try:
            return super().__getattr__(name)
        except AttributeError:
            encoder = self.__dict__.get("_modules", {}).get("encoder")
            if encoder is None or name.startswith("_"):
                raise
            if name not in encoder._modules and (hasattr(PreTrainedModel, name) or not hasattr(type(encoder), name)):
                raise
            return getattr(encoder, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "classifier" and not any(hasattr(part, "label_vectors") for part in value.modules()):
            raise ValueError(
                f"model.classifier is the label table, and a {type(value).__name__} cannot take its place: change the "
                "size of the embeddings with embedding_dim, or train the stock model with label_method='one_hot'."
            )
        super().__setattr__(name, value)

    # -- transformers -----------------------------------------------------------------------------------------------

    @classmethod
    def _can_set_experts_implementation(cls) -> bool:
        return True  # the encoder's choice: transformers would look for experts in this file and find none

    def train(self, mode: bool = True) -> LwALPreTrainedModel:
        """Set the mode; leaving training mode brings ``label_vectors`` up to date."""
        if mode:
            check_labels_fit(self)
        if self.training and not mode:
            self.bring_labels_up_to_date()
        return super().train(mode)

    def get_input_embeddings(self) -> nn.Module:
        """The encoder's input embeddings."""
        return self.encoder.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the encoder's input embeddings."""
        self.encoder.set_input_embeddings(value)

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, LabelTable):
            module.reset()

    @classmethod
    def register_for_auto_class(cls, auto_class: str = "AutoModel") -> None:
        """As in transformers, for classes of your own: the code of these is saved in a folder of its own."""
        if cls not in MODEL_CLASSES.values():
            super().register_for_auto_class(auto_class)

    def save_pretrained(
        self, save_directory: str | os.PathLike[str], *args: Any, include_code: bool | None = None, **kwargs: Any
    ) -> None:
        """Save weights, configuration, ``label_table.json`` and code; arguments as in transformers.

        Args:
            save_directory: folder, made if need be.
            *args: as in transformers.
            include_code: also save the modules that load the model with ``trust_remote_code=True`` where hf-lwal is
                not installed or not imported; default: ``config.push_code``.
            **kwargs: as in transformers.

        Raises:
            ValueError: something else would come back: the encoder was quantised before it got its label table, or is
                not what its configuration builds, or the configuration names another number of labels.
        """
        if getattr(self.encoder, "hf_quantizer", None) is not None and getattr(self, "hf_quantizer", None) is None:
            raise ValueError(
                "This encoder was quantised while it was loaded, and cannot be saved with a label table around it: "
                "train an adapter and save that, or leave quantization_config out, save, and pass it when you load "
                "the saved model."
            )
        check_can_be_loaded_again(self)
        self.bring_labels_up_to_date()
        if self._auto_class is None:
            forget_code(self.config)
        super().save_pretrained(save_directory, *args, **kwargs)
        if kwargs.get("is_main_process", True):
            self.write_companions(save_directory, include_code)

    def write_companions(self, folder: str | os.PathLike[str], include_code: bool | None = None) -> None:
        """Write beside saved weights what belongs to them: ``label_table.json`` and, if wanted, the code.

        Args:
            folder: with the saved model.
            include_code: as in `save_pretrained`; the code of a subclass of your own does not stand on its own.
        """
        table, names = self.label_table, self.config.label_names
        write_label_table_file(folder, table.label_vectors.detach(), table.counts, names, table.rejection_radii)
        wanted = self.config.push_code if include_code is None else include_code
        if wanted and type(self) in MODEL_CLASSES.values():
            write_code(folder, self.task, type(self).__name__)
        else:
            remove_code(folder)

    def _upload_modified_files(
        self, working_dir: str | os.PathLike[str], repo_id: str, *args: Any, **kwargs: Any
    ) -> Any:
        # Every push of a model passes here, save_pretrained(push_to_hub=True) before it has written the rest.
        self.write_companions(working_dir)
        complete_card(Path(working_dir) / "README.md", self.task)
        pushed = super()._upload_modified_files(working_dir, repo_id, *args, **kwargs)
        if not self.config.push_code and not kwargs.get("create_pr"):
            take_back_code(repo_id, kwargs.get("token"), kwargs.get("revision"))
        return pushed

    @overload
    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | os.PathLike[str],
        *args: Any,
        config: Any = ...,
        ignore_mismatched_sizes: bool = ...,
        output_loading_info: Literal[False] = ...,
        **kwargs: Any,
    ) -> Self: ...

    @overload
    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | os.PathLike[str],
        *args: Any,
        config: Any = ...,
        ignore_mismatched_sizes: bool = ...,
        output_loading_info: Literal[True],
        **kwargs: Any,
    ) -> tuple[Self, dict[str, Any]]: ...

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | os.PathLike[str],
        *args: Any,
        config: Any = None,
        ignore_mismatched_sizes: bool = False,
        output_loading_info: bool = False,
        **kwargs: Any,
    ) -> Self | tuple[Self, dict[str, Any]]:
        """Load a model with its label table; arguments as in transformers.

        Labels asked for by ``id2label``, ``label2id`` or the configuration may be the checkpoint's in another order
        or spelling: the rows of the table move with their names.

        Raises:
            ValueError: the checkpoint lacks weights, its label table is damaged, or it has other labels and
                ``ignore_mismatched_sizes``, which starts a new table for them, is not set.
            OSError: a file cannot be read.
        """
        name = pretrained_model_name_or_path
        for removed in ("from_tf", "from_flax"):
            kwargs.pop(removed, None)
        config, kwargs, stored = configuration_of(name, config, kwargs)
        asked = None
        if isinstance(config, LwALConfig):
            refuse_other_problems(config)
            head = config.head_name and f"encoder.{config.head_name}"
            kwargs["quantization_config"] = sparing(kwargs.get("quantization_config"), head)
            if stored is not None:
                asked, config = config.label_names, copy.deepcopy(config)
                if rows_of(asked, stored) is None and not ignore_mismatched_sizes:
                    refuse_other_labels(name, asked, stored)
                config.id2label, config.label2id = matched_label_names(stored, None)
        with readable_weights(name):
            model, info = super().from_pretrained(
                name, *args, config=config, ignore_mismatched_sizes=True, output_loading_info=True, **kwargs
            )
        check_loaded(model, name, info, ignore_mismatched_sizes)
        check_label_table_file(name, model.label_table.counts, model.config.label_names)
        if asked is not None:
            take_labels(model, name, asked)
        return (model, info) if output_loading_info else model


def _materialize_before_saving(module: LwALPreTrainedModel, *_: Any) -> None:
    module.bring_labels_up_to_date()


def _forget_after_loading(module: LwALPreTrainedModel, _: Any) -> None:
    module.tracker.forget()


class LwALForSequenceClassification(LwALPreTrainedModel):
    """A text classifier whose targets are learned label vectors."""

    task = "text"

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        bbox: Tensor | None = None,
        image: Tensor | None = None,
        pixel_values: Tensor | None = None,
        pixel_attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        global_attention_mask: Tensor | None = None,
        entity_ids: Tensor | None = None,
        entity_attention_mask: Tensor | None = None,
        entity_token_type_ids: Tensor | None = None,
        entity_position_ids: Tensor | None = None,
        langs: Tensor | None = None,
        lang_ids: Tensor | None = None,
        task_type_ids: Tensor | None = None,
        input_shape_ids: Tensor | None = None,
        input_pronunciation_ids: Tensor | None = None,
        xpath_tags_seq: Tensor | None = None,
        xpath_subs_seq: Tensor | None = None,
        perm_mask: Tensor | None = None,
        target_mapping: Tensor | None = None,
        input_mask: Tensor | None = None,
        past_key_values: Any = None,
        labels: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> LwALClassifierOutput | tuple[Any, ...]:
        """Classify texts; arguments as in the stock classifier, ``labels`` (B,) int64.

        The plain Trainer keeps the columns of a data set that are named here.
        """
        inputs = {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "token_type_ids": token_type_ids,
            "position_ids": position_ids,
            "inputs_embeds": inputs_embeds,
            "bbox": bbox,
            "image": image,
            "pixel_values": pixel_values,
            "pixel_attention_mask": pixel_attention_mask,
            "decoder_input_ids": decoder_input_ids,
            "decoder_attention_mask": decoder_attention_mask,
            "global_attention_mask": global_attention_mask,
            "entity_ids": entity_ids,
            "entity_attention_mask": entity_attention_mask,
            "entity_token_type_ids": entity_token_type_ids,
            "entity_position_ids": entity_position_ids,
            "langs": langs,
            "lang_ids": lang_ids,
            "task_type_ids": task_type_ids,
            "input_shape_ids": input_shape_ids,
            "input_pronunciation_ids": input_pronunciation_ids,
            "xpath_tags_seq": xpath_tags_seq,
            "xpath_subs_seq": xpath_subs_seq,
            "perm_mask": perm_mask,
            "target_mapping": target_mapping,
            "input_mask": input_mask,
            "past_key_values": past_key_values,
            "output_attentions": output_attentions,
            "output_hidden_states": output_hidden_states,
        }
        return self.classify(inputs | kwargs, labels, return_dict)


class LwALForImageClassification(LwALPreTrainedModel):
    """An image classifier whose targets are learned label vectors."""

    task = "image"
    main_input_name = "pixel_values"
    input_modalities = "image"

    def forward(
        self,
        pixel_values: Tensor | None = None,
        pixel_attention_mask: Tensor | None = None,
        spatial_shapes: Tensor | None = None,
        interpolate_pos_encoding: bool | None = None,
        input_ids: Tensor | None = None,
        labels: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> LwALClassifierOutput | tuple[Any, ...]:
        """Classify images; arguments as in the stock classifier, ``labels`` (B,) int64."""
        inputs = {
            "pixel_values": pixel_values,
            "pixel_attention_mask": pixel_attention_mask,
            "spatial_shapes": spatial_shapes,
            "interpolate_pos_encoding": interpolate_pos_encoding,
            "input_ids": input_ids,
            "output_attentions": output_attentions,
            "output_hidden_states": output_hidden_states,
        }
        return self.classify(inputs | kwargs, labels, return_dict)


class LwALForAudioClassification(LwALPreTrainedModel):
    """An audio classifier whose targets are learned label vectors."""

    task = "audio"
    main_input_name = "input_values"
    input_modalities = "audio"

    def forward(
        self,
        input_values: Tensor | None = None,
        input_features: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> LwALClassifierOutput | tuple[Any, ...]:
        """Classify sounds; arguments as in the stock classifier, ``labels`` (B,) int64."""
        inputs = {
            "input_values": input_values,
            "input_features": input_features,
            "attention_mask": attention_mask,
            "output_attentions": output_attentions,
            "output_hidden_states": output_hidden_states,
        }
        return self.classify(inputs | kwargs, labels, return_dict)


MODEL_CLASSES: dict[str, type[LwALPreTrainedModel]] = {
    "text": LwALForSequenceClassification,
    "image": LwALForImageClassification,
    "audio": LwALForAudioClassification,
}

# Here, where this module is whole: importing transformers' Auto classes imports it where the package is installed.
transformers.AutoModelForSequenceClassification.register(
    LwALPooledConfig, LwALPooledForSequenceClassification, exist_ok=True
)
