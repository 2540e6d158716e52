"""Models with a label table: a stock classifier that embeds, and a table of label vectors that classifies.

The encoder is transformers' own ``...For...Classification`` built with ``num_labels = embedding_dim``: what it calls
logits is the embedding z. Nothing else of the architecture changes.
"""

from __future__ import annotations

import copy
import inspect
import logging
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import transformers
from torch import Tensor
from transformers import PreTrainedModel

from .calibration import Calibration
from .class_moments import class_means
from .configuration_lwal import LwALConfig, match_label_names, refuse_other_problems
from .configuration_pooled import LwALPooledConfig
from .core import LabelTableModel, LwALClassifierOutput
from .functional import IGNORE_INDEX, class_ids
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
    active_copy,
)
from .hub_code import complete_card, forget_code, remove_code, take_back_code, write_code
from .inference import encode as encode_inputs
from .inference import predict as predict_labels
from .label_audit import LabelAudit
from .label_editing import LabelEditing
from .label_table_file import check_label_table_file, write_label_table_file
from .loading import (
    check_loaded,
    check_table_sizes,
    configuration_of,
    load_whole,
    readable_weights,
    refuse_other_labels,
    rows_of,
    take_labels,
)
from .modeling_pooled import LwALPooledForSequenceClassification
from .name_start import LabelNames, NameStart
from .open_set import OpenSet
from .probe_start import fit_start
from .quantisation import sparing
from .row_blocks import Distances
from .saving import check_can_be_loaded_again, check_labels_fit, saved_together
from .start import StartSamples, collect, finite_samples, warn_of_alike_rows, warn_of_missing_classes
from .stored_files import stored_shapes

if TYPE_CHECKING:
    from typing_extensions import Self

logger = logging.getLogger(__name__)


class LwALPreTrainedModel(LabelAudit, LabelEditing, NameStart, OpenSet, Calibration, LabelTableModel):
    """What the three tasks share; use `LwALForSequenceClassification` and its siblings.

    Attributes:
        encoder: the stock classifier with D outputs.
        classifier: the `LabelTable`; read it as ``label_table``.
        label_tracking: who ends training steps: "forward", every training forward with labels (plain loops and the
            plain Trainer); "trainer", the caller through `commit`; "off", nobody, so class means stay.
    """

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
        if not keep:
            rows = slice(len(values) - samples.names)  # what is read of a name scatters otherwise
            table.favour_few_rows(values[rows], labels[rows], self.head)
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
    ) -> tuple[Tensor | Distances | None, Tensor | None]:
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
        fitted = fit_start(values, labels, *sizes, self.config.offset, names) if kind == "probe" else None
        held_out: Tensor | Distances
        if fitted is not None:
            weight, bias, held_out = fitted.weight, fitted.bias, fitted.held_out
        else:
            weight, bias = class_mean_projection(values, labels, *sizes, whiten=whiten)
            held_out = held_out_distances(values, labels, *sizes, whiten=whiten, names=names)
        size = visible_size(suited_size(weight, learning_rate), held_out)
        size = self._size_for_offset(size, values, labels, weight, learning_rate)
        write_linear(layer, size * weight, size * bias)
        return held_out * size, None if fitted is None else size * fitted.offset

    def _size_for_offset(
        self, size: float, values: Tensor, labels: Tensor, weight: Tensor, learning_rate: float | None
    ) -> float:
        if not self.config.offset:
            return size
        means, counts = class_means(values, labels, self.label_table.num_labels)
        means = means[counts > 0]
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

    # -- transformers -----------------------------------------------------------------------------------------------

    @classmethod
    def _can_set_experts_implementation(cls) -> bool:
        return True  # the encoder's choice: transformers would look for experts in this file and find none

    def train(self, mode: bool = True) -> Self:
        """Set the mode; leaving training mode brings ``label_vectors`` up to date."""
        if mode:
            check_labels_fit(self)
        return super().train(mode)

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
        given = inspect.signature(super().save_pretrained).bind_partial(save_directory, *args, **kwargs).arguments
        with saved_together(save_directory, given) as folder:
            super().save_pretrained(folder, *args, **kwargs)
        if given.get("is_main_process", True):
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
        model, info = load_whole(name, lambda: cls._loaded(name, args, config, ignore_mismatched_sizes, dict(kwargs)))
        return (model, info) if output_loading_info else model

    @classmethod
    def _loaded(
        cls,
        name: str | os.PathLike[str],
        args: Sequence[Any],
        config: Any,
        ignore_mismatched_sizes: bool,
        kwargs: dict[str, Any],
    ) -> tuple[Self, dict[str, Any]]:
        """Load a model and what transformers says of the weights; arguments as in `from_pretrained`."""
        for removed in ("from_tf", "from_flax"):
            kwargs.pop(removed, None)
        shapes = stored_shapes(name, kwargs)
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
                config.id2label, config.label2id = match_label_names(stored, None)
            if not ignore_mismatched_sizes:
                check_table_sizes(shapes, config, name)
        with readable_weights(name, shapes):
            model, info = super().from_pretrained(
                name, *args, config=config, ignore_mismatched_sizes=True, output_loading_info=True, **kwargs
            )
        check_loaded(model, name, info, ignore_mismatched_sizes)
        check_label_table_file(name, model.label_table.counts, model.config.label_names)
        if asked is not None:
            take_labels(model, name, asked)
        return model, info


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
        return self.classify({**inputs, **kwargs}, labels, return_dict)


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
        return self.classify({**inputs, **kwargs}, labels, return_dict)


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
        return self.classify({**inputs, **kwargs}, labels, return_dict)


MODEL_CLASSES: dict[str, type[LwALPreTrainedModel]] = {
    "text": LwALForSequenceClassification,
    "image": LwALForImageClassification,
    "audio": LwALForAudioClassification,
}

# Here, where this module is whole: importing transformers' Auto classes imports it where the package is installed.
transformers.AutoModelForSequenceClassification.register(
    LwALPooledConfig, LwALPooledForSequenceClassification, exist_ok=True
)
