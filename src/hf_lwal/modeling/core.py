"""What a model with a label table is: a stock classifier that embeds, and the table that classifies.

The encoder is transformers' own ``...For...Classification`` built with ``num_labels = embedding_dim``: what it calls
logits is the embedding z. Nothing else of the architecture changes. How such a model starts, is used, saved and loaded
stands in modeling_lwal.py.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from .algorithm import LabelUpdate
from .building import building
from .configuration_lwal import LwALConfig
from .distributed import all_reduce_sum
from .functional import IGNORE_INDEX, class_ids, cross_entropy, repel_loss
from .heads import (
    Head,
    active_copy,
    check_head,
    has_adapter,
    hooked_head,
    layers_to_save,
    replace_head,
    run_with_features,
    scores_of,
    stock_from_config,
)
from .label_table import LabelTable
from .label_tracking import Labels, LabelTracker
from .step_sums import StepSums

if TYPE_CHECKING:
    from typing_extensions import Self

logger = logging.getLogger(__name__)

FLAGS = ("output_attentions", "output_hidden_states")
"""Arguments that a forward with ``**kwargs`` takes without naming them."""
PREFIX = "past_key_values"
"""Keys and values before the first token, by which an adapter tunes a prefix: never to be left out unsaid."""
PREFIX_IN_BACKBONES = {PREFIX, "cache"}
"""Its names in the forward of backbones, newer ones of which take the old name too."""
MEASURED = ("rejection_radii", "rejection_edges", "row_scatter", "distance_bias")
"""Of a label table; zero, as if never measured, in checkpoints that have them not."""
TABLE_TENSORS = ("label_vectors", "class_features", "pending_sums", "log_scale_bias", "offset_bias", *MEASURED)


@dataclass
class LwALClassifierOutput(ModelOutput):
    """Output of the LwAL models.

    Attributes:
        loss: scalar float32, with ``labels``.
        logits: (B, C) float32, ``-scale * distance``; higher is likelier. None in steps of `LwALTrainer` whose many
            logits nobody reads.
        embeddings: (B, D) float32, z.
        features: (B, H) input of the encoder's head in the model's dtype; None without such a head.
        hidden_states: as the encoder returns them.
        attentions: as the encoder returns them.
        label_vectors: (C, D) float32 with gradient, in place of logits.
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    embeddings: Tensor | None = None
    features: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    label_vectors: Tensor | None = None


class LabelTableModel(PreTrainedModel):
    """A stock classifier with D outputs, followed by a label table.

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
    _keys_to_ignore_on_load_missing: ClassVar[set[str]] = {rf"^classifier\.{name}$" for name in MEASURED}
    task: ClassVar[Literal["text", "image", "audio"]]

    def __init__(self, config: LwALConfig, encoder: PreTrainedModel | None = None) -> None:
        super().__init__(config)
        if encoder is None:
            with building(f"{config.part} (task {self.task!r})"):
                encoder = stock_from_config(config.encoder_config, self.task)
            check_head(encoder, config.head_name, config.embedding_dim)
        self.encoder = encoder
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
                names and the encoder does not know; the rest is for the encoder to take. ``label_table`` is used in
                place of the model's own.
            labels: (B,) in 0…C-1, of any type that `class_ids` takes; rows with -100 count for nothing.
            return_dict: False for a plain tuple.
        """
        table = inputs.pop("label_table", None) or self.label_table
        if labels is not None:
            labels = self._beside_table(class_ids(labels, table.num_labels))
        embeddings, features, encoded = self._embed(inputs)
        vectors = None
        if self.training:
            self._look_at_plain_loop(labels)
            vectors = self.tracker.label_vectors(self._tracked, embeddings, self.values(embeddings, features), labels)
        without_logits = vectors is not None and self.tracker.leaves_out(len(embeddings), len(vectors))
        logits = None if without_logits else table(embeddings, vectors, labels)
        loss = None
        if labels is not None and logits is not None and self.tracker.takes_loss:
            loss = self._loss(embeddings, logits, labels)
        output = LwALClassifierOutput(
            loss=loss,
            logits=logits,
            embeddings=embeddings,
            features=features,
            hidden_states=encoded.get("hidden_states"),
            attentions=encoded.get("attentions"),
            label_vectors=vectors if without_logits else None,
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
    _looked_for_adapter = False
    saved_layout: dict[str, Any] | None = None

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
        return repel_loss(embeddings, labels, self.label_table.num_labels, all_reduce_sum)

    def trainable_labels(self, labels: Tensor) -> Tensor:
        """Labels (B,) with -100 for rows whose class has no mean yet: they wait for the next refresh."""
        if not self.label_table.mask_unseen:
            return labels
        return torch.where(self.label_table.seen[labels.clamp(min=0)], labels, IGNORE_INDEX)

    # -- Algorithm 1 (algorithm.py, label_tracking.py) ------------------------------------------------------------

    @property
    def label_update(self) -> LabelUpdate:
        """How the label vectors move: one of the two ways of algorithm.py."""
        return self._tracked.update

    @property
    def _tracked(self) -> Labels:
        return Labels(self.config, self.label_table, self.head)

    def _look_at_plain_loop(self, labels: Tensor | None) -> None:
        """Refuse or warn of loops in which what is learned of the labels would be lost."""
        if labels is None or self.tracker.mode != "forward":
            return
        if getattr(self, "_is_replica", False):
            raise RuntimeError(
                "nn.DataParallel throws away what its replicas learn of the labels: start one process per GPU with "
                "`accelerate launch` or `torchrun`, or train with LwALTrainer."
            )
        if not self._looked_for_adapter and not torch.compiler.is_compiling():
            self._looked_for_adapter = True
            if active_copy(self.classifier) is self.classifier and has_adapter(self.encoder):
                logger.warning(
                    "This adapter does not save the label table (model.classifier) that is trained with it: a saved "
                    "adapter comes back without labels. Give its configuration "
                    "modules_to_save=model.peft_modules_to_save()."
                )

    @property
    def label_tracking(self) -> str:
        """Who ends training steps: "forward", "trainer" or "off"."""
        return self.tracker.mode

    @label_tracking.setter
    def label_tracking(self, mode: str) -> None:
        if mode not in ("forward", "trainer", "off"):
            raise ValueError(f"Unknown label_tracking {mode!r}: choose one of forward, trainer, off.")
        self.tracker.end_step(self._tracked)
        self.tracker.mode = mode

    @property
    def optimizer_step(self) -> int:
        """Optimizer steps done over the whole training."""
        return self.tracker.step(self._tracked)

    @optimizer_step.setter
    def optimizer_step(self, step: int) -> None:
        self.tracker.set_step(self._tracked, step)

    @property
    def refresh_due(self) -> bool:
        """Whether this training step refreshes the class means."""
        return self.tracker.refresh_due(self._tracked)

    def commit(self, sums: Tensor | StepSums) -> None:
        """End of an optimizer step: take its class sums, refresh when due, count the step.

        Args:
            sums: (C, N + 1) float32 class sums and counts of all rows of the step, or of the classes that occur in
                it; equal on all ranks.
        """
        self.tracker.commit(self._tracked, sums)

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
        return self.label_update.current(self.label_table, self.head)

    def bring_labels_up_to_date(self) -> None:
        """Write ``label_vectors`` if training has changed what they derive from since they were written."""
        self.tracker.end_step(self._tracked)
        if self.tracker.stale:
            self.materialize()

    def labels_are_current(self) -> None:
        """Say that ``label_vectors`` were just written, so that leaving training mode must not overwrite them."""
        self.tracker.stale = False

    def materialize(self) -> None:
        """Write the label vectors of the moment into the buffer that evaluation uses."""
        if not self.label_update.of_batch:
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

    def train(self, mode: bool = True) -> Self:
        """Set the mode; leaving training mode brings ``label_vectors`` up to date."""
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


def _materialize_before_saving(module: LabelTableModel, *_: Any) -> None:
    module.bring_labels_up_to_date()


def _forget_after_loading(module: LabelTableModel, _: Any) -> None:
    module.tracker.forget()
