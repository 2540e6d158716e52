"""`LwALTrainer`: transformers' Trainer with label vectors, and any other label-learning method, as the objective."""

from __future__ import annotations

import copy
import inspect
import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.tokenization_utils_base import PreTrainedTokenizerBase
from transformers.trainer_utils import TrainOutput

from ..data.labels import (
    CheckedCollator,
    balanced_weights,
    check_labels,
    check_numbering,
    ids_of,
    label_column,
    rows_per_class,
    scanned_rows,
)
from ..data.sample_ids import SAMPLE_ID, NumberedCollator, NumberedRows
from ..data.start_budget import FORWARD_ROWS, batches_by_length, rows_per_class_within
from ..data.streams import KeptStream
from ..metrics import AccuracyAndF1
from ..modeling.configuration_lwal import matched_label_names
from ..modeling.core import LwALClassifierOutput
from ..modeling.distributed import (
    all_reduce_sum,
    broadcast_,
    broadcast_rows,
    differs_between_ranks,
    first_rank_says,
    rows_of_ranks,
    world_size,
)
from ..modeling.functional import IGNORE_INDEX
from ..modeling.inference import max_length_of
from ..modeling.modeling_lwal import LwALPreTrainedModel
from ..modeling.name_start import check_descriptions, name_batches, wanted_names, with_names
from ..modeling.peft_support import check_adapter, check_trainable, core_model
from ..modeling.probe_start import prompt_rows
from ..modeling.start import (
    StartSamples,
    batch_norms,
    classes_are_close,
    collect_any,
    finite_samples,
    has_fresh_batch_norms,
    own_random_state,
    settle_fresh_batch_norms,
    warn_of_alike_rows,
    warn_of_missing_classes,
)
from ..modeling.tasks import task_of_class
from ..objectives import LossContext, Objective, average_gradients, build_objective
from ..settings.applying import apply_settings, settings_without_use
from ..settings.training_args import LwALSettings, LwALTrainingArguments, resolve
from .best_model import BestModelTrainer
from .callbacks import CentroidRefreshCallback
from .checkpoints import check_labels_of_checkpoint, check_weights_of_checkpoint, checkpoint_to_resume
from .exact_accumulation import WholeStep
from .label_log import LabelLog
from .own_loss import ignores_items, replaces_loss, seen_outputs
from .own_optimizer import Names, carry_over, parameter_names
from .repooling import with_pooling

logger = logging.getLogger(__name__)

CLOSE_CLASSES_ROWS = 1000
"""Of all labels, read before each evaluation where classes lie close together; at least 8 of each."""
ROWS_PER_LABEL = 2
"""Rows of a batch for each label below which the paper's class means say little of their classes."""


class LwALTrainer(BestModelTrainer):
    """Trains a classifier with adaptive labels, or with another ``label_method``; otherwise transformers' Trainer.

    Takes an LwAL model or a stock classifier, which is wrapped, unless a subclass's ``compute_loss`` replaces the loss
    and no method or preset is named: then the stock classifier trains with that loss as it is. Without
    ``compute_metrics`` it reports accuracy and macro-F1. ``eval_loss`` is not comparable between steps, since the
    label vectors it refers to move.

    Args:
        model: an LwAL model or a stock text, image or audio classifier.
        args: `LwALTrainingArguments`, or plain `TrainingArguments` for the default preset.
        objective: an `Objective` of your own, instead of the one ``label_method`` names.
        **kwargs: all other arguments of transformers' Trainer; ``compute_loss_func`` replaces the pull loss only.

    Raises:
        ValueError: an unknown method, preset or value, or a model that does not fit the method.
    """

    optimizer: Any
    _before_trial: Mapping[str, Any] = {}
    _ours_ran = True
    _items_of_step: Tensor | None = None
    _scaled: bool | None = None
    _names_of_parameters: Names | None = None
    _stream: KeptStream | None = None

    def __init__(
        self,
        model: nn.Module | None = None,
        args: TrainingArguments | None = None,
        *positional: Any,
        objective: Objective | None = None,
        **kwargs: Any,
    ) -> None:
        args = LwALTrainingArguments("tmp_trainer") if args is None else args
        self._own_objective = objective
        self._said: set[str] = set()
        self._take_settings(args, model)
        given = inspect.signature(Trainer.__init__).bind_partial(self, model, args, *positional, **kwargs).arguments
        self._own_optimizer = any(part is not None for part in given.get("optimizers") or ())
        if model is not None:
            if self._own_optimizer or given.get("optimizer_cls_and_kwargs") is not None:
                self._names_of_parameters = parameter_names(model)
            given["model"] = self._prepared(model)
        if given.get("compute_metrics") is None:
            given["compute_metrics"] = AccuracyAndF1()
        callbacks = list(given.get("callbacks") or ())
        given["callbacks"] = [callback for callback in callbacks if not _refreshes(callback)]
        super().__init__(**{name: value for name, value in given.items() if name != "self"})
        self.data_collator: Any = CheckedCollator(self.data_collator, self._label_names())
        for callback in (CentroidRefreshCallback, *filter(_refreshes, callbacks)):
            self.add_callback(callback)
        self._step_sums: Tensor | None = None
        self._whole_step: WholeStep | None = None
        self._label_log = LabelLog()
        self._class_weights: Tensor | None = None
        self._last_eval_refresh = 0

    def add_callback(self, callback: type[TrainerCallback] | TrainerCallback) -> None:
        """Add a callback; one that refreshes takes the place of the trainer's own, so that no step counts twice."""
        if _refreshes(callback):
            callback = callback(self) if isinstance(callback, type) else copy.copy(callback)
            callback.trainer = self
            self.pop_callback(CentroidRefreshCallback)
        super().add_callback(callback)

    # -- model ----------------------------------------------------------------------------------------------------

    def _take_settings(self, args: TrainingArguments, model: nn.Module | None) -> None:
        """Resolve the arguments, and build the objective that they name."""
        self.lwal_settings: LwALSettings = self._resolved(args, model)
        # Not called "objective": there hyperparameter_search writes the figure of a trial.
        self.label_objective = self._own_objective or build_objective(self.lwal_settings)
        unused = [] if self._own_objective else settings_without_use(args, self.lwal_settings)
        if unused:
            method = self.lwal_settings.label_method
            self._warn_once(f"{', '.join(unused)}: means nothing to label_method={method!r} and is ignored.")

    def _resolved(self, args: TrainingArguments, model: nn.Module | None) -> LwALSettings:
        """The settings; a stock model that no method is named for stays as it is under a loss of the user's own."""
        settings = resolve(args)
        named = any(getattr(args, name, None) is not None for name in ("label_method", "lwal_preset"))
        if named or self._own_objective or model is None or not replaces_loss(self, LwALTrainer.compute_loss):
            return settings
        if isinstance(core_model(model), LwALPreTrainedModel):
            return settings
        self._warn_once(
            f"{type(self).__name__}.compute_loss replaces the loss of LwALTrainer, so the {type(model).__name__} is "
            "trained with it as it is, without label vectors: for those, build the model with "
            "AutoModelForLwALClassification, or set label_method='lwal'."
        )
        return settings._replace(label_method="one_hot", config={}, embedding_dim=None)

    def call_model_init(self, trial: Any = None) -> nn.Module:
        """Build the model with the user's ``model_init`` and prepare it for the method.

        The model of a trial is prepared later, since the trial's arguments are only set after this.
        """
        model = super().call_model_init(trial)
        return self._settled(model) if trial is None else model

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> TrainOutput:
        """Train; arguments as in transformers, but True resumes from the newest *complete* checkpoint.

        The model tracks its own class means again afterwards.
        """
        checkpoint = checkpoint_to_resume(resume_from_checkpoint, self.args.output_dir, self.args.world_size)
        if self.model_init is None:
            self._configure()
            check_trainable(self.model)
        if checkpoint is not None:
            check_labels_of_checkpoint(checkpoint, self._label_names())
            if not (self.is_fsdp_enabled or self.is_deepspeed_enabled):
                check_weights_of_checkpoint(checkpoint, self.core_model.state_dict())
        try:
            output = super().train(checkpoint, *args, **kwargs)
        finally:
            if (model := self._lwal_model) is not None:
                model.label_tracking = "forward"
        if model is not None:
            model.bring_labels_up_to_date()
        return output

    def _prepared(self, model: nn.Module) -> nn.Module:
        check_adapter(model, None if self._own_objective else self.lwal_settings.label_method)
        model = self.label_objective.prepare_model(with_pooling(model, self.lwal_settings.pooling))
        apply_settings(core_model(model), self.lwal_settings)
        return model

    def _settled(self, model: nn.Module) -> nn.Module:
        """Prepare ``model`` for the arguments as they are now."""
        self._take_settings(self.args, model)
        return self._prepared(model)

    def _configure(self) -> None:
        """Bring objective and model in line with the arguments, which may have changed since the last training."""
        if self._resolved(self.args, self.model) != self.lwal_settings:
            self.model = self.model_wrapped = self._settled(self.model)

    def _hp_search_setup(self, trial: Any) -> None:
        if trial is None or self.hp_search_backend is None:
            super()._hp_search_setup(trial)
            return
        for name, value in self._before_trial.items():  # what this trial leaves out is not for the last one to say
            setattr(self.args, name, value)
        before = dict(vars(self.args))
        super()._hp_search_setup(trial)
        self._before_trial = {name: value for name, value in before.items() if vars(self.args)[name] is not value}
        self.model = self._settled(self.model)
        if self.place_model_on_device:  # preparing it may have made new layers
            self._move_model_to_device(self.model, self.args.device)
        self.model_wrapped = self.model

    def _refuse_and_warn(self) -> None:
        if self.label_objective.accumulation_caveat is not None and self.args.gradient_accumulation_steps > 1:
            logger.warning(self.label_objective.accumulation_caveat)
        if self.args.gradient_accumulation_steps > 1 and ignores_items(self.compute_loss_func):
            logger.warning(
                "compute_loss_func does not use num_items_in_batch, so its gradient is multiplied by the %d "
                "micro-batches of a step: divide the sum over rows by num_items_in_batch.",
                self.args.gradient_accumulation_steps,
            )
        model = self._lwal_model
        if model is None:
            return
        paper = model.label_update.of_batch
        if paper and self.args.n_gpu > 1:
            raise ValueError(
                "The paper preset needs all rows of a step in one place, which nn.DataParallel does not give: start "
                "one process per GPU with `accelerate launch` or `torchrun`."
            )
        if paper and model.config.refresh_every > 0:
            self._warn_of_small_steps(model.config.num_labels)
        if self.args.gradient_accumulation_steps == 1 or (paper and self.lwal_settings.exact_accumulation):
            return
        if paper:
            logger.warning(
                "With gradient accumulation the paper preset takes its centroids from each micro-batch of %d rows "
                "per process, not from the whole step: set lwal_exact_accumulation=True for those of the step.",
                self.args.per_device_train_batch_size,
            )
        if model.config.repel_weight > 0:
            logger.warning("With gradient accumulation the repel loss compares rows within a micro-batch only.")

    def _warn_of_small_steps(self, num_labels: int) -> None:
        parts = self.args.gradient_accumulation_steps if self.lwal_settings.exact_accumulation else 1
        rows = self.args.train_batch_size * self.args.world_size * parts
        if rows < ROWS_PER_LABEL * num_labels:
            logger.warning(
                "The paper preset takes the label vectors from the %d rows of one batch, few for %d labels: "
                "with 32 rows for 150 labels it ended at 59.6 %% where one-hot reaches 93.6 %%. Use batches of at "
                "least %d rows, or the default preset, whose class means remember rows of earlier steps.",
                rows,
                num_labels,
                ROWS_PER_LABEL * num_labels,
            )

    # -- loss -------------------------------------------------------------------------------------------------------

    def get_batch_samples(
        self,
        epoch_iterator: Any,
        num_batches: int,
        device: torch.device,
    ) -> tuple[list[Any], Tensor | None]:
        """Fetch the micro-batches of one optimizer step and count their labels over all ranks."""
        batches, num_items = super().get_batch_samples(epoch_iterator, num_batches, device)
        model = self._lwal_model
        self._whole_step = None
        if model is not None and len(batches) > 1 and self._wants_whole_step(model):
            with self.compute_loss_context_manager():
                self._whole_step = WholeStep.collect(model, [self._prepare_inputs(batch) for batch in batches])
        if num_items is None:
            return batches, None
        num_items = all_reduce_sum(num_items.to(device))
        self._label_log.count(num_items)
        return batches, num_items

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: torch.device) -> Tensor | None:
        labels = [batch["labels"] for batch in batch_samples if "labels" in batch]
        return torch.stack([(part != IGNORE_INDEX).sum() for part in labels]).sum() if labels else None

    def _wants_whole_step(self, model: LwALPreTrainedModel) -> bool:
        return self.lwal_settings.exact_accumulation and model.label_update.of_batch and model.refresh_due

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | None = None,
    ) -> Any:
        """Loss of a batch under the objective; in training it also keeps the batch's class sums."""
        labels = inputs.get("labels")
        if labels is None:
            raise ValueError(
                f"Training needs labels, but a batch has only the columns {', '.join(sorted(inputs))}: name the "
                "label column `label` or `labels`."
            )
        hidden = {SAMPLE_ID} if self.label_objective.passes_labels else {SAMPLE_ID, "labels"}
        kept = {name: value for name, value in inputs.items() if name not in hidden}
        items = self._items_of_step if num_items_in_batch is None else num_items_in_batch
        context = self._context(items if model.training else None, inputs.get(SAMPLE_ID))
        self._ours_ran = True
        if context.training and self._whole_step is not None:
            context.model.label_tracking = "off"  # the forward must not refresh from a part of the step
            outputs = model(**kept)
            context.model.label_tracking = "trainer"
            loss, terms = self._whole_step.loss(self.label_objective, outputs["embeddings"], context)
        else:
            with self._without_loss_of_the_model():
                outputs = self.label_objective.forward_model(model, kept)
            loss, terms = self.label_objective.loss(outputs, labels, context)
        if isinstance(outputs, LwALClassifierOutput):
            outputs.loss = loss
        if model.training:  # a subclass's training_step need not say how many rows the step has
            self._observe(outputs, labels, terms)
        return (loss, outputs) if return_outputs else loss

    @contextmanager
    def _without_loss_of_the_model(self) -> Iterator[None]:
        """The objective computes the loss: the model need not do it, too, with its sums over ranks."""
        model = self._lwal_model
        if model is None:
            yield
            return
        model.tracker.takes_loss = False
        try:
            yield
        finally:
            model.tracker.takes_loss = True

    @property
    def loss_is_scaled_for_ga(self) -> bool:
        """Whether micro-batches just add up: ours are divided by the rows of the whole step, others are means.

        A subclass whose ``compute_loss`` divides by ``num_items_in_batch`` sets it to True.
        """
        return self._ours_ran if self._scaled is None else self._scaled

    @loss_is_scaled_for_ga.setter
    def loss_is_scaled_for_ga(self, scaled: bool | None) -> None:
        self._scaled = scaled

    def _context(self, num_items: Tensor | None, sample_ids: Tensor | None = None) -> LossContext:
        return LossContext(
            model=self.core_model,
            num_items=num_items,
            world_size=world_size(),
            micro_batches=getattr(self, "current_gradient_accumulation_steps", 1),
            label_smoothing=self.args.label_smoothing_factor,
            class_weights=self._class_weights,
            step=self.state.global_step,
            epoch=self.state.epoch or 0.0,
            own_loss=self.compute_loss_func,
            epochs=self.state.num_train_epochs,
            sample_ids=sample_ids,
        )

    @torch.no_grad()
    def _observe(self, outputs: Any, labels: Tensor, terms: Mapping[str, Tensor]) -> None:
        self._label_log.add(terms)
        model = self._lwal_model
        if model is None or model.label_update.of_batch:
            return
        values = model.values(outputs["embeddings"], outputs.get("features"))
        sums = self._label_log.finite(model.label_table.sums_of(values, labels))
        self._step_sums = sums if self._step_sums is None else self._step_sums + sums

    def _observe_under_own_loss(self, seen: list[Any], labels: Tensor | None) -> None:
        """Keep a batch's class sums from what the model returned to a ``compute_loss`` that never called ours."""
        name = f"{type(self).__name__}.compute_loss"
        scaling_is_open = self._scaled is None and isinstance(type(self).loss_is_scaled_for_ga, property)
        if self.current_gradient_accumulation_steps > 1 and scaling_is_open:
            self._warn_once(
                f"{name} is taken for a mean over the micro-batch, and divided by their number: set "
                "loss_is_scaled_for_ga = True on the class if it is already divided by num_items_in_batch."
            )
        model = self._lwal_model
        if model is None or labels is None:
            return
        labels = labels.to(self.args.device)
        if model.label_update.of_batch and not any(getattr(output, "loss", None) is not None for output in seen):
            raise ValueError(
                f"{name} calls the model without labels, from which the paper preset takes its centroids: leave "
                "`labels` in what the model is called with."
            )
        rows = [output for output in seen if isinstance(output, Mapping) and "embeddings" in output]
        rows = [output for output in rows if len(output["embeddings"]) == len(labels)]
        if rows:  # of several passes over the same rows, as for two dropout masks, one counts
            self._observe(rows[0], labels, {})
        else:
            self._warn_once(
                f"{name} gets no embeddings of the batch's {len(labels)} rows from the model it is given, so the "
                "class means stay: call that model on the rows of the batch, or super().compute_loss."
            )

    def _warn_once(self, sentence: str) -> None:
        if sentence not in self._said:
            self._said.add(sentence)
            logger.warning(sentence)

    # -- Algorithm 1, called by CentroidRefreshCallback ---------------------------------------------------------------

    def start_labels(self) -> None:
        """Train begin: check the labels, hand the class means to the trainer, run the start pass where wanted."""
        self._refuse_and_warn()
        self._warn_of_untrained_objective()
        self._check_train_labels()
        if self.label_objective.counts_label_names:
            check_descriptions(self.lwal_settings.label_names, self._label_names(), self._task)
        refreshes = [entry["step"] for entry in self.state.log_history if "eval_refresh_seconds" in entry]
        self._step_sums, self._label_log, self._last_eval_refresh = None, LabelLog(), max(refreshes, default=0)
        model = self.core_model
        if isinstance(model, LwALPreTrainedModel):
            model.label_tracking = "trainer"
            model.optimizer_step = self.state.global_step
            if self.state.global_step > 0:
                self._label_log.resume(model)
        if self.state.global_step > 0:
            return
        if numbers := self.label_objective.begin(model):
            self.log(numbers)
        wanted, fresh = self.label_objective.wants_start(model), has_fresh_batch_norms(model)
        if not wanted and not fresh:
            return
        batches = self._rows_to_batches(self._start_rows_per_class())
        settled = fresh and self._settle_batch_norms(batches)
        if not wanted:
            return
        if not first_rank_says(len(batches) > 0, self.args.device):
            logger.warning("No row could be read for the start pass: label vectors start with the first rows seen.")
            return
        if self.is_deepspeed_enabled and isinstance(model, LwALPreTrainedModel):
            model.config.initial_head = "random"  # DeepSpeed has copied the weights: it would put the old head back
        samples = self._collect(batches, "Class means", as_in_training=not settled)
        counted = self._with_label_names(samples)
        began = time.perf_counter()
        numbers = self.label_objective.start(model, counted, self._peak_learning_rate())
        self.check_ranks()
        seconds = counted.seconds + time.perf_counter() - began
        warn_of_alike_rows(samples)
        if isinstance(model, LwALPreTrainedModel):
            of_batch = model.label_update.of_batch
            model.config.close_classes = not of_batch and classes_are_close(samples, model.config.num_labels)
        warn_of_missing_classes(counted.labels, self._label_names())
        self._warn_of_scale(numbers)
        if counted.names:
            numbers = {**numbers, "start_label_names": counted.names}
        self.log({"start_samples": len(samples.labels), "start_seconds": round(seconds, 3), **numbers})

    def _with_label_names(self, samples: StartSamples) -> StartSamples:
        """The start rows, with names of labels as more of them where the settings want it; the same on every rank."""
        setting, names, model = self.lwal_settings.label_names, self._label_names(), self.core_model
        starts_elsewhere = getattr(model.config, "initial_labels", None) == "one_hot"
        if setting == "off" or not self.label_objective.counts_label_names or starts_elsewhere:
            return samples
        if self._task != "text":
            return samples
        tokenizer = getattr(self.processing_class, "tokenizer", self.processing_class)
        if not isinstance(tokenizer, PreTrainedTokenizerBase):
            if not isinstance(setting, str):
                raise ValueError(
                    "Descriptions of labels need a tokenizer to read them: give it to the trainer as processing_class."
                )
            logger.debug("The trainer has no tokenizer, so label names do not count as samples.")
            return samples
        texts = wanted_names(samples, setting, names)
        if not texts:
            return samples
        self._set_signature_columns_if_needed()
        limit, size = max_length_of(model, tokenizer), self.args.eval_batch_size
        batches = name_batches(texts, tokenizer, limit, size, self._signature_columns)
        return with_names(samples, self._collect(batches, "Label names"), setting, names)

    def _settle_batch_norms(self, batches: list[Any] | DataLoader[Any]) -> bool:
        """Statistics of the start rows for BatchNorm layers without any, the first rank's; whether that was all."""
        model, settled = self.core_model, False
        run = model.start_values if isinstance(model, LwALPreTrainedModel) else lambda inputs: model(**inputs)
        if len(batches):
            with self.compute_loss_context_manager():
                settled = settle_fresh_batch_norms(model, run, batches, self.args.device)
        for layer in batch_norms(model):
            for buffer in layer.buffers():
                broadcast_(buffer)
        return first_rank_says(settled, self.args.device)

    def check_finite(self) -> None:
        """Raise FloatingPointError where a weight is NaN or infinite: nothing more can be learned, nor measured."""
        if self.is_fsdp_enabled or self.is_deepspeed_enabled:  # ranks that hold unlike parts could not agree
            return
        parts = {**dict(self.model.named_parameters()), **dict(self.label_objective.named_parameters())}
        trained = {name: part for name, part in parts.items() if part.requires_grad}
        if not trained:
            return
        finite = torch.stack([part.detach().isfinite().all() for part in trained.values()])
        if not bool(finite.all()):
            name = list(trained)[int((~finite).nonzero()[0])]
            raise FloatingPointError(
                f"After step {self.state.global_step} {int((~finite).sum())} of {len(trained)} weights hold NaN or "
                f"infinity, {name} first: lower the learning rate, set max_grad_norm, or train in bf16 or float32 "
                "instead of fp16."
            )

    def check_ranks(self) -> None:
        """Raise RuntimeError, on all ranks, where they hold unlike label tables: each would train towards its own."""
        model = self._lwal_model
        if model is None or self.is_fsdp_enabled or self.is_deepspeed_enabled:
            return
        table = model.label_table
        if differs_between_ranks([table.class_features, table.counts, table.offset_bias, table.log_scale_bias]):
            raise RuntimeError(
                "The processes of this training hold unlike label tables: give all of them the same seed and the same "
                "model, and resume all of them from the same checkpoint."
            )

    def _peak_learning_rate(self) -> float | None:
        """Largest learning rate of the optimizer, once warmed up; None where steps follow the gradient's size."""
        optimizer = getattr(self.optimizer, "optimizer", self.optimizer)
        if optimizer is None or "sgd" in type(optimizer).__name__.lower():
            return None
        rates = [group.get("initial_lr", group["lr"]) for group in optimizer.param_groups]
        return None if None in rates else max(map(float, rates))  # None: Adafactor chooses its own

    def commit_step(self) -> None:
        """Step end: give the rows of this step, of all ranks, to the class means."""
        self._label_log.end_step()
        self.label_objective.zero_grad()  # the trainer's own loop only knows the model's gradients
        model = self._lwal_model
        if model is None:
            return
        if self._whole_step is not None:
            self._whole_step.commit(model)
        sums, self._step_sums = self._step_sums, None
        if sums is None or self.accelerator.optimizer_step_was_skipped:
            sums = torch.zeros_like(model.label_table.pending_sums)
        model.commit(sums if model.label_update.of_batch else all_reduce_sum(sums))

    def refresh_for_evaluation(self, epoch_end: bool) -> None:
        """Before an evaluation or save: write evaluation-mode label vectors where the settings want it.

        Args:
            epoch_end: whether an epoch has just ended.
        """
        model, wanted = self._lwal_model, self.lwal_settings.eval_refresh
        if model is None or not self._wants_eval_refresh(model, wanted, epoch_end):
            return
        self._last_eval_refresh = self.state.global_step
        close, per_class = model.config.close_classes, self.lwal_settings.eval_refresh_samples
        if close and wanted == "auto":  # a line in the log told of it, but nobody asked for its time
            per_class = min(per_class, max(CLOSE_CLASSES_ROWS // model.config.num_labels, 8))
        samples = self._collect(self._rows_to_batches(per_class), "Evaluation means")
        model.label_table.refresh_for_evaluation(samples.values, samples.labels, model.head, choose=close)
        model.labels_are_current()
        # Straight into the history, which checkpoints keep: log() here would swallow the log of this step.
        entry = {"eval_refresh_seconds": round(samples.seconds, 3), "step": self.state.global_step}
        self.state.log_history.append(entry)

    def _wants_eval_refresh(self, model: LwALPreTrainedModel, wanted: str | int, epoch_end: bool) -> bool:
        if not self.label_objective.refreshes_labels:
            return False
        if isinstance(wanted, int):
            return self.state.global_step - self._last_eval_refresh >= wanted
        if wanted == "auto":
            config = model.config
            by_gradient_only = config.offset and (config.reanchor or config.refresh_every == 0)
            return config.close_classes or (not by_gradient_only and bool(batch_norms(model)))
        return wanted == "evaluate" or (wanted == "epoch" and epoch_end)

    def _collect(
        self, batches: list[Any] | DataLoader[Any], description: str, as_in_training: bool = False
    ) -> StartSamples:
        model = self.core_model
        values_of = self.label_objective.start_values(model)
        show = not self.args.disable_tqdm and self.is_local_process_zero()
        device = self.args.device
        samples = StartSamples(torch.zeros(0, 0, device=device), torch.zeros(0, dtype=torch.int64, device=device), 0.0)
        shares = self._shares_of_ranks(batches)
        mine = batches
        if len(shares) > 1 and isinstance(batches, DataLoader):
            mine = _with_batches(batches, shares[self.args.process_index])
        if len(batches):  # a rank whose share of a stream is empty takes the rows of the first rank
            with self.compute_loss_context_manager():
                samples = collect_any(model, values_of, mine, device, show, description, as_in_training)
            if isinstance(batches, DataLoader):
                order = torch.tensor([row for share in shares for batch in share for row in batch], device=device)
                gather = rows_of_ranks if len(shares) > 1 else lambda rows: [rows]
                found = [torch.cat(gather(part))[order.argsort()] for part in samples[:2]]
                samples = StartSamples(found[0], found[1], samples.seconds)
            samples = finite_samples(samples)
        # Ranks on unlike hardware, with unlike seeds or unlike shares of a stream must not start from unlike tables.
        return StartSamples(broadcast_rows(samples.values), broadcast_rows(samples.labels), samples.seconds)

    def _shares_of_ranks(self, batches: list[Any] | DataLoader[Any]) -> list[list[list[int]]]:
        """The batches that each rank reads, as positions of their rows; of one share alone each rank reads all.

        Statistics of BatchNorm layers are those of all batches, and where ranks hold parts of the weights, all of
        them must run as often.
        """
        parts: Any = batches.batch_sampler if isinstance(batches, DataLoader) else []
        together = self.is_fsdp_enabled or self.is_deepspeed_enabled or bool(batch_norms(self.core_model))
        if together or len(parts) < world_size():
            return [list(parts)]
        return [list(parts[rank :: world_size()]) for rank in range(world_size())]

    def _start_rows_per_class(self) -> int:
        """Rows per class of the start pass: more than `lwal_init_samples` where fitted, as the budget allows."""
        least, labels = self.lwal_settings.init_samples, label_column(self.train_dataset)
        sizes = None if self.is_deepspeed_enabled else self.label_objective.fitted_sizes(self.core_model)
        if sizes is None or labels is None:
            return least
        args = self.args
        planned = self.state.max_steps * args.train_batch_size * args.gradient_accumulation_steps * args.world_size
        rows = int(min(self.lwal_settings.start_budget * FORWARD_ROWS * planned, prompt_rows(*sizes)))
        return max(least, rows_per_class_within(labels, rows))

    def _rows_to_batches(self, per_class: int) -> list[Any] | DataLoader[Any]:
        """Collated batches of up to ``per_class`` training rows per class, the same on every rank.

        Those of a map-style data set are read anew each time, since thousands of pictures would fill the memory.
        """
        dataset, collator = self.train_dataset, self.data_collator
        if isinstance(dataset, Dataset):
            dataset = self._remove_unused_columns(dataset, description="training")
        else:
            collator = self._get_collator_with_removed_columns(collator, description="training")
        num_labels = len(self._label_names())
        with own_random_state():
            if isinstance(dataset, torch.utils.data.IterableDataset) or not hasattr(dataset, "__len__"):
                rows = (KeptStream(dataset) if self._stream is None else self._stream).first(per_class, num_labels)
                size = self.args.eval_batch_size
                return [collator(rows[start : start + size]) for start in range(0, len(rows), size)]
            labels = label_column(self.train_dataset)
            if labels is None:
                indices = scanned_rows(dataset, per_class, num_labels, self.args.seed)
            else:
                indices = rows_per_class(labels, per_class, self.args.seed)
            parts: Any = batches_by_length(dataset, indices, self.args.eval_batch_size)
            return DataLoader(Subset(dataset, indices), batch_sampler=parts, collate_fn=collator)

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()
        if (model := self._lwal_model) is not None:
            self._signature_columns = [*model.encoder_arguments, "label", "label_ids", *self.label_names]

    def _get_dataloader(self, dataset: Any, description: str, *args: Any, **kwargs: Any) -> DataLoader[Any]:
        self.data_collator.names = self._label_names()  # scripts name the labels after building the trainer
        if kwargs.get("is_training") and isinstance(dataset, torch.utils.data.IterableDataset):
            self._stream = None if self.label_objective.needs_sample_ids else KeptStream(dataset)
            dataset = dataset if self._stream is None else self._stream
        if not (kwargs.get("is_training") and self.label_objective.needs_sample_ids):
            return super()._get_dataloader(dataset, description, *args, **kwargs)
        if isinstance(dataset, torch.utils.data.IterableDataset) or not hasattr(dataset, "__len__"):
            raise ValueError(
                f"{type(self.label_objective).__name__} keeps something of every training row, but "
                f"{type(dataset).__name__} is a stream, whose rows have no number: use a map-style data set, with a "
                "length and an index."
            )
        own = self.data_collator
        self.label_objective.allocate(len(dataset), len(self._label_names()))
        rows, collator = dataset, own
        if isinstance(dataset, Dataset):
            rows = self._remove_unused_columns(dataset, description=description)
        else:
            collator = self._get_collator_with_removed_columns(own, description=description)
        if (sampler := kwargs.get("sampler_fn")) is not None:
            kwargs["sampler_fn"] = lambda numbered: sampler(rows)  # some samplers look into the columns
        try:
            self.data_collator = NumberedCollator(collator)
            return super()._get_dataloader(NumberedRows(rows), description, *args, **kwargs)
        finally:
            self.data_collator = own

    # -- the objective's own parameters and state --------------------------------------------------------------------

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """Optimizer of the model and of the objective's own parameters, which are not decayed."""
        self.label_objective.to(self.args.device)
        if self.optimizer is not None and self._labels_were_edited():
            self.model_wrapped = self.model
            if not self._own_optimizer:
                self.optimizer = None
        optimizer = super().create_optimizer(model)
        if self._names_of_parameters is not None and model is None and hasattr(optimizer, "param_groups"):
            carry_over(optimizer, self._names_of_parameters, self.model)
            self._names_of_parameters = parameter_names(self.model)
        known = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        own = [parameter for parameter in self.label_objective.parameters() if id(parameter) not in known]
        for parameter in own:
            broadcast_(parameter.data)
        if own:
            optimizer.add_param_group({"params": own, "weight_decay": 0.0})
        return optimizer

    def _warn_of_untrained_objective(self) -> None:
        """Warn when a subclass's ``create_optimizer`` left out what the objective learns itself."""
        if self.optimizer is None or self.is_fsdp_enabled or self.is_deepspeed_enabled:
            return  # none was made yet, or it holds parameters of its own making
        held = {id(parameter) for group in self.optimizer.param_groups for parameter in group["params"]}
        left = [name for name, parameter in self.label_objective.named_parameters() if id(parameter) not in held]
        if left:
            self._warn_once(
                f"{type(self).__name__}.create_optimizer leaves out {', '.join(left)} of "
                f"{type(self.label_objective).__name__}, which stay as they are: add "
                "self.label_objective.parameters() to the optimizer, or pass it as optimizers=(optimizer, None)."
            )

    def _labels_were_edited(self) -> bool:
        """Whether the optimizer of an earlier training holds a label table that is no more."""
        if self.is_fsdp_enabled or self.is_deepspeed_enabled:
            return False  # their optimizers hold parameters of their own making
        alive = {id(parameter) for parameter in (*self.model.parameters(), *self.label_objective.parameters())}
        return any(
            id(parameter) not in alive for group in self.optimizer.param_groups for parameter in group["params"]
        )

    def training_step(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Tensor:
        """Forward and backward of a micro-batch; after the last one the objective's gradients are averaged."""
        self._ours_ran, labels = False, inputs.get("labels")
        # For overrides of compute_loss that call this class's without the number of rows, as those of old scripts do.
        self._items_of_step = args[0] if args else kwargs.get("num_items_in_batch")
        overridden = getattr(self.compute_loss, "__func__", None) is not LwALTrainer.compute_loss
        seen: list[Any] = []
        with seen_outputs(model, seen) if overridden else nullcontext():
            loss: Tensor = super().training_step(model, inputs, *args, **kwargs)
        self._items_of_step = None
        if not self._ours_ran:
            self._observe_under_own_loss(seen, labels)
        if self.accelerator.sync_gradients:
            average_gradients(self.label_objective)
        return loss

    # -- data and logs --------------------------------------------------------------------------------------------

    @property
    def _task(self) -> str | None:
        model = self.core_model
        if isinstance(model, LwALPreTrainedModel):
            return model.task
        return task_of_class(model.config, type(model).__name__)

    def _label_names(self) -> dict[int, str]:
        names, _ = matched_label_names(self.core_model.config.id2label, None)
        return names or {}

    def _check_train_labels(self) -> None:
        labels, names = label_column(self.train_dataset), self._label_names()
        self._class_weights = None
        weights = self.lwal_settings.class_weights
        if labels is not None and len(labels):
            check_labels(labels, names)
            if bool((labels == IGNORE_INDEX).all()):
                raise ValueError(
                    f"All {len(labels)} training rows have the label {IGNORE_INDEX}, which is not learned, so nothing "
                    "could be trained: give the rows the ids or names of their labels."
                )
        several = self.eval_dataset if isinstance(self.eval_dataset, dict) else {"": self.eval_dataset}
        for dataset in (self.train_dataset, *several.values()):
            check_numbering(dataset, names)
        if weights == "balanced":
            if labels is None:
                raise ValueError(
                    "lwal_class_weights='balanced' needs a datasets.Dataset with a label column: give the weights as "
                    "numbers instead."
                )
            self._class_weights = balanced_weights(ids_of(labels, names), len(names)).to(self.args.device)
        elif weights is not None:
            if len(weights) != len(names):
                raise ValueError(
                    f"lwal_class_weights has {len(weights)} numbers, but the model has {len(names)} labels."
                )
            self._class_weights = torch.tensor(weights, dtype=torch.float32, device=self.args.device)

    def _warn_of_scale(self, numbers: Mapping[str, float]) -> None:
        scale, calibrated = self.lwal_settings.scale, numbers.get("start_scale")
        if scale is not None and calibrated and not 0.01 < scale / calibrated < 100:
            logger.warning(
                "lwal_scale is %g, but %.3g fits the start rows best: so far off, training starts from flat or "
                "saturated probabilities. Use lwal_scale='auto'.",
                scale,
                calibrated,
            )

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log, with the loss terms and the state of the label table beside the training loss."""
        if "loss" in logs:
            logs = {**logs, **self._label_log.read(self._lwal_model)}
        super().log(logs, *args, **kwargs)


def _with_batches(loader: DataLoader[Any], parts: Any) -> DataLoader[Any]:
    """The loader with other batches of the same rows."""
    return DataLoader(loader.dataset, batch_sampler=parts, collate_fn=loader.collate_fn)


def _refreshes(callback: Any) -> bool:
    kind = callback if isinstance(callback, type) else type(callback)
    return issubclass(kind, CentroidRefreshCallback)
