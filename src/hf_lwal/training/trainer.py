"""`LwALTrainer`: transformers' Trainer with label vectors, and any other label-learning method, as the objective."""

from __future__ import annotations

import copy
import inspect
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import SaveStrategy, TrainOutput, has_length

from ..data.labels import CheckedCollator
from ..data.sample_ids import ROW_WEIGHT, SAMPLE_ID
from ..errors import reason
from ..metrics import AccuracyAndF1
from ..modeling.compat import untested_release
from ..modeling.configuration_lwal import match_label_names
from ..modeling.core import LwALClassifierOutput
from ..modeling.distributed import all_reduce_sum, broadcast_, peer_is_gone, world_size
from ..modeling.functional import IGNORE_INDEX
from ..modeling.modeling_lwal import LwALPreTrainedModel
from ..modeling.peft_support import check_adapter, check_trainable, core_model
from ..modeling.tasks import task_of_class
from ..objectives import LossContext, Objective, average_gradients, build_objective
from ..settings.applying import apply_settings, settings_without_use
from ..settings.training_args import LwALSettings, LwALTrainingArguments, resolve
from .best_model import BestModel
from .callbacks import CentroidRefreshCallback
from .checkpointing import Checkpointing
from .checkpoints import (
    check_labels_of_checkpoint,
    check_weights_of_checkpoint,
    checkpoint_to_resume,
    what_is_left,
)
from .checks import (
    check_finite,
    check_ranks,
    check_settings,
    check_train_labels,
    labels_were_edited,
    log_prior,
    untrained_parts,
)
from .exact_accumulation import WholeStep
from .hub_pushes import HubPushes
from .label_log import LabelLog
from .noisy_labels import NoisyLabels
from .own_loss import replaces_loss, seen_outputs
from .own_optimizer import Names, carry_over, parameter_names
from .repooling import with_pooling
from .start_pass import StartPass
from .step_rows import StepRows
from .training_rows import TrainingRows
from .transformers_internals import HookedTrainer

logger = logging.getLogger(__name__)

MOST_LOGITS = 2**27
"""Logits of an evaluation that are kept until its end: half a gibibyte."""


class LwALTrainer(HookedTrainer):
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

    _ours_ran = True
    _items_of_step: Tensor | None = None
    _scaled: bool | None = None
    _names_of_parameters: Names | None = None

    def __init__(
        self,
        model: nn.Module | None = None,
        args: TrainingArguments | None = None,
        *positional: Any,
        objective: Objective | None = None,
        **kwargs: Any,
    ) -> None:
        if said := untested_release():
            logger.warning(said)
        args = LwALTrainingArguments("tmp_trainer") if args is None else args
        self._own_objective = objective
        self._said: set[str] = set()
        self._checkpointing, self._hub_pushes, self._best_model = Checkpointing(self), HubPushes(self), BestModel(self)
        self._training_rows = TrainingRows(self)
        self._start_pass = StartPass(self, self._training_rows)
        self._noisy_labels = NoisyLabels(self, self._training_rows)
        self._parts = (
            self._hub_pushes,
            self._checkpointing,
            self._best_model,
            self._training_rows,
            self._noisy_labels,
        )
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
        self.data_collator: Any = CheckedCollator(self.data_collator, self.label_names_by_id())
        for callback in (CentroidRefreshCallback, *filter(_refreshes, callbacks)):
            self.add_callback(callback)
        self._whole_step: WholeStep | None = None
        self._step_rows, self._label_log = self._new_step_rows(), LabelLog()
        self._class_weights: Tensor | None = None
        self._log_prior: Tensor | None = None

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
        return self.settled(model) if trial is None else model

    def train(
        self, resume_from_checkpoint: str | bool | None = None, trial: Any = None, *args: Any, **kwargs: Any
    ) -> TrainOutput:
        """Train; arguments as in transformers, but True resumes from the newest *complete* checkpoint.

        The model tracks its own class means again afterwards.

        Raises:
            ValueError: another training writes to the output folder, or a checkpoint does not fit.
        """
        checkpoint = checkpoint_to_resume(resume_from_checkpoint, self.args.output_dir, self.args.world_size)
        if self.model_init is None:
            self._configure()
            check_trainable(self.model)
        if checkpoint is not None:
            check_labels_of_checkpoint(checkpoint, self.label_names_by_id())
            if self.reads_weights:
                check_weights_of_checkpoint(checkpoint, self.core_model.state_dict())
        self._best_model.say()
        try:
            with self._best_model.in_arguments(), self._checkpointing.alone(trial):
                output = super().train(checkpoint, trial, *args, **kwargs)
        except KeyboardInterrupt:
            if self.args.save_strategy != SaveStrategy.NO and self.is_world_process_zero():
                left = what_is_left(self.args.output_dir)
                logger.warning("Training was interrupted after step %d. %s", self.state.global_step, left)
            raise
        except RuntimeError as error:
            if not peer_is_gone(error):
                raise
            raise RuntimeError(
                f"Another process of this training ended after step {self.state.global_step}, and its own last lines "
                f"say why; without it this one cannot go on ({reason(error)}). {what_is_left(self.args.output_dir)}"
            ) from error
        finally:
            if (model := self.lwal_model) is not None:
                model.label_tracking = "forward"
        if model is not None:
            model.bring_labels_up_to_date()
        return output

    def _prepared(self, model: nn.Module) -> nn.Module:
        check_adapter(model, None if self._own_objective else self.lwal_settings.label_method)
        model = self.label_objective.prepare_model(with_pooling(model, self.lwal_settings.pooling))
        apply_settings(core_model(model), self.lwal_settings)
        return model

    def settled(self, model: nn.Module) -> nn.Module:
        """Prepare ``model`` for the arguments as they are now."""
        self._take_settings(self.args, model)
        return self._prepared(model)

    def _configure(self) -> None:
        """Bring objective and model in line with the arguments, which may have changed since the last training."""
        if self._resolved(self.args, self.model) != self.lwal_settings:
            self.model = self.model_wrapped = self.settled(self.model)

    # -- loss -------------------------------------------------------------------------------------------------------

    def get_batch_samples(
        self,
        epoch_iterator: Any,
        num_batches: int,
        device: torch.device,
    ) -> tuple[list[Any], Tensor | None]:
        """Fetch the micro-batches of one optimizer step and count their labels over all ranks."""
        batches, num_items = super().get_batch_samples(epoch_iterator, num_batches, device)
        model = self.lwal_model
        self._whole_step = None
        if model is not None and len(batches) > 1 and self._wants_whole_step(model):
            with self.compute_loss_context_manager():
                self._whole_step = WholeStep.collect(model, [self.on_device(batch) for batch in batches])
        if num_items is None:
            return batches, None
        num_items = all_reduce_sum(num_items.to(device))
        self._label_log.count(num_items)
        return batches, num_items

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
        hidden = {SAMPLE_ID, ROW_WEIGHT} | (set() if self.label_objective.passes_labels else {"labels"})
        kept = {name: value for name, value in inputs.items() if name not in hidden}
        items = self._items_of_step if num_items_in_batch is None else num_items_in_batch
        weights = inputs.get(ROW_WEIGHT)
        context = self._context(items if model.training else None, inputs.get(SAMPLE_ID), weights)
        self._ours_ran = True
        if context.training and self._whole_step is not None:
            context.model.label_tracking = "off"  # the forward must not refresh from a part of the step
            outputs = model(**kept)
            context.model.label_tracking = "trainer"
            loss, terms = self._whole_step.loss(self.label_objective, outputs["embeddings"], context)
        else:
            with self._without_loss_of_the_model(needs_logits=return_outputs or not model.training):
                outputs = self.label_objective.forward_model(model, kept)
            loss, terms = self.label_objective.loss(outputs, labels, context)
        if isinstance(outputs, LwALClassifierOutput):
            outputs.loss = loss
        if model.training:  # a subclass's training_step need not say how many rows the step has
            trusted = labels if weights is None else labels.masked_fill(weights < 0.5, IGNORE_INDEX)
            self._observe(outputs, trusted, terms)
        return (loss, outputs) if return_outputs else loss

    @contextmanager
    def _without_loss_of_the_model(self, needs_logits: bool) -> Iterator[None]:
        """The objective computes the loss: the model need not do it, too, with its sums over ranks."""
        model = self.lwal_model
        if model is None:
            yield
            return
        reads = needs_logits or self.label_objective.reads_logits or self.compute_loss_func is not None
        model.tracker.takes_loss = False
        model.tracker.takes_logits = reads or self.args.n_gpu > 1 or self.shards_weights
        try:
            yield
        finally:
            model.tracker.takes_loss = model.tracker.takes_logits = True

    @property
    def loss_is_scaled_for_ga(self) -> bool:
        """Whether micro-batches just add up: ours are divided by the rows of the whole step, others are means.

        A subclass whose ``compute_loss`` divides by ``num_items_in_batch`` sets it to True.
        """
        return self._ours_ran if self._scaled is None else self._scaled

    @loss_is_scaled_for_ga.setter
    def loss_is_scaled_for_ga(self, scaled: bool | None) -> None:
        self._scaled = scaled

    def _context(
        self, num_items: Tensor | None, sample_ids: Tensor | None = None, row_weights: Tensor | None = None
    ) -> LossContext:
        return LossContext(
            model=self.core_model,
            num_items=num_items,
            world_size=world_size(),
            micro_batches=getattr(self, "current_gradient_accumulation_steps", 1),
            label_smoothing=self.args.label_smoothing_factor,
            class_weights=self._class_weights,
            log_prior=self._log_prior,
            step=self.state.global_step,
            epoch=self.state.epoch or 0.0,
            own_loss=self.compute_loss_func,
            epochs=self.state.num_train_epochs,
            sample_ids=sample_ids,
            row_weights=row_weights,
        )

    @torch.no_grad()
    def _observe(self, outputs: Any, labels: Tensor, terms: Mapping[str, Tensor]) -> None:
        self._label_log.add(terms)
        model = self.lwal_model
        if model is None or model.label_update.of_batch:
            return
        values = model.values(outputs["embeddings"], outputs.get("features"))
        self._step_rows.add(model.label_table, values, labels, self._label_log)

    def _observe_under_own_loss(self, seen: list[Any], labels: Tensor | None) -> None:
        """Keep a batch's class sums from what the model returned to a ``compute_loss`` that never called ours."""
        name = f"{type(self).__name__}.compute_loss"
        scaling_is_open = self._scaled is None and isinstance(type(self).loss_is_scaled_for_ga, property)
        if self.current_gradient_accumulation_steps > 1 and scaling_is_open:
            self._warn_once(
                f"{name} is taken for a mean over the micro-batch, and divided by their number: set "
                "loss_is_scaled_for_ga = True on the class if it is already divided by num_items_in_batch."
            )
        model = self.lwal_model
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
        check_settings(self, replaces_loss(self, LwALTrainer.compute_loss))
        if (left_out := untrained_parts(self)) is not None:
            self._warn_once(left_out)
        names = self.label_names_by_id()
        self._class_weights = check_train_labels(self, names)
        self._start_pass.check()
        self._noisy_labels.decide()
        if self._class_weights is not None and self.lwal_settings.class_weights == "balanced":
            self._class_weights = self._training_rows.balanced_weights()
        self._log_prior = log_prior(self, names, self._training_rows.label_column())
        self._step_rows, self._label_log = self._new_step_rows(), LabelLog()
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
        self._start_pass.run()

    def _new_step_rows(self) -> StepRows:
        return StepRows(self.args.train_batch_size * self.args.gradient_accumulation_steps)

    def check_finite(self) -> None:
        """Raise FloatingPointError where a weight is NaN or infinite: nothing more can be learned, nor measured."""
        check_finite(self)

    def check_ranks(self) -> None:
        """Raise RuntimeError, on all ranks, where they hold unlike label tables: each would train towards its own."""
        check_ranks(self)

    def commit_step(self) -> None:
        """Step end: give the rows of this step, of all ranks, to the class means."""
        self._label_log.end_step()
        self.label_objective.zero_grad()  # the trainer's own loop only knows the model's gradients
        model = self.lwal_model
        if model is None:
            return
        with self.writing(model.label_table):
            if self._whole_step is not None:
                self._whole_step.commit(model)
            if model.label_update.of_batch:
                model.commit(model.label_table.pending_sums)
            else:
                model.commit(self._step_rows.take(model.label_table, self.accelerator.optimizer_step_was_skipped))

    def refresh_for_evaluation(self, epoch_end: bool) -> None:
        """Before an evaluation or save: write evaluation-mode label vectors where the settings want it.

        Args:
            epoch_end: whether an epoch has just ended.
        """
        self._start_pass.refresh_for_evaluation(epoch_end)

    def measure_scatter(self) -> None:
        """Train end: measure how far rows lie from label vectors, for labels that are added later."""
        self._start_pass.measure_scatter()

    # -- the objective's own parameters and state --------------------------------------------------------------------

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """Optimizer of the model and of the objective's own parameters, which are not decayed."""
        self.label_objective.to(self.args.device)
        if self.optimizer is not None and labels_were_edited(self):
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

    # -- saving, the Hub, the best model ------------------------------------------------------------------------------

    @property
    def best_metric(self) -> str | None:
        """Name of the metric that tells the best model."""
        return "accuracy" if self._best_model.goes_by_accuracy else self.args.metric_for_best_model

    @property
    def hub_token(self) -> str | None:
        """Token of the push that is under way, else that of the arguments."""
        return self._hub_pushes.token or self.args.hub_token

    @property
    def hub_revision(self) -> str | None:
        """Branch of the push that is under way, else that of the arguments."""
        return self._hub_pushes.revision or self.args.hub_revision

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model, and beside it what the objective has learned (``objective.safetensors``)."""
        super().save_model(output_dir, _internal_call)
        if not _internal_call:
            self._checkpointing.save_learned(output_dir or str(self.args.output_dir))

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Push model, card and processing class; arguments and result as in transformers."""
        with self._hub_pushes.push(token, revision):
            return super().push_to_hub(commit_message, blocking, token, revision, *args, **kwargs)

    def create_model_card(
        self,
        language: str | None = None,
        license: str | None = None,
        tags: str | list[str] | None = None,
        model_name: str | None = None,
        finetuned_from: str | None = None,
        tasks: str | list[str] | None = None,
        dataset_tags: str | list[str] | None = None,
        dataset: str | list[str] | None = None,
        dataset_args: str | list[str] | None = None,
        *,
        controls: Mapping[str, list[tuple[int, float]]] | None = None,
        control_tests: Mapping[str, float] | None = None,
        examples: list[str] | None = None,
        samples: int | None = None,
        command: str | None = None,
    ) -> None:
        """Write README.md with pictures into the output folder; what people wrote into it stays.

        Arguments as in transformers, and five more; what was said once holds for later calls, as from `push_to_hub`.

        Args:
            language: language code.
            license: licence id of the Hub.
            tags: further tags.
            model_name: title; default: the name of the output folder.
            finetuned_from: id of the base model; default: the one the model was loaded from.
            tasks: ignored, since the model knows its task.
            dataset_tags: id of the data set on the Hub.
            dataset: its name for people.
            dataset_args: its configuration.
            controls: "one-hot" or "one-hot from class means" to its curve, (step, accuracy between 0 and 1).
            control_tests: the same name to its accuracy on the test rows.
            examples: texts for the snippets and the Hub's widget, shown with the model's answers; default: samples.
            samples: rows of the training and the evaluation data to show, 0 for none; default: those of
                ``lwal_card_samples``, else three of data sets that anyone can see, and none of others.
            command: shell command that trains the model again.
        """
        said = {
            "language": language,
            "license": license,
            "tags": tags,
            "model_name": model_name,
            "finetuned_from": finetuned_from,
            "dataset_tags": dataset_tags,
            "dataset": dataset,
            "dataset_args": dataset_args,
            "controls": controls,
            "control_tests": control_tests,
            "examples": examples,
            "command": command,
        }
        facts = self._hub_pushes.say_for_card(said, samples)
        if self.is_world_process_zero():
            from ..model_card import write_trainer_card

            with self._best_model.in_arguments():
                write_trainer_card(self, facts)

    def evaluation_loop(self, dataloader: DataLoader[Any], *args: Any, **kwargs: Any) -> Any:
        """Evaluate or predict; arguments and result as in transformers.

        Accuracy and F1 of very many logits (`MOST_LOGITS`) are counted batch by batch, as with ``batch_eval_metrics``.
        """
        if not isinstance(self.compute_metrics, AccuracyAndF1):
            return super().evaluation_loop(dataloader, *args, **kwargs)
        self.compute_metrics.reset()  # an evaluation that was interrupted may have left rows
        before = self.args.batch_eval_metrics
        rows = self.num_examples(dataloader) if has_length(dataloader) else math.inf
        try:
            self.args.batch_eval_metrics = before or rows * self.core_model.config.num_labels > MOST_LOGITS
            return super().evaluation_loop(dataloader, *args, **kwargs)
        finally:
            self.args.batch_eval_metrics = before

    def hyperparameter_search(
        self,
        hp_space: Callable[..., Any] | None = None,
        compute_objective: Callable[[dict[str, float]], float] | None = None,
        n_trials: int = 20,
        direction: str | list[str] | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Search; arguments as in transformers, but for two that depend on what is measured.

        Where the trainer reports accuracy and macro-F1 by itself, their sum is maximised; ``direction="minimize"``
        then means the evaluation loss, as it does in transformers without ``compute_metrics``. With metrics or an
        objective of your own, ``direction`` is "minimize" by default, as there.
        """
        compute_objective, direction = self._best_model.search_by(compute_objective, direction)
        return super().hyperparameter_search(hp_space, compute_objective, n_trials, direction, *args, **kwargs)

    # -- data and logs --------------------------------------------------------------------------------------------

    @property
    def task_of_model(self) -> str | None:
        """The kind of input, "text", "image" or "audio"; None where transformers has no such class for the model."""
        model = self.core_model
        if isinstance(model, LwALPreTrainedModel):
            return model.task
        return task_of_class(model.config, type(model).__name__)

    def label_names_by_id(self) -> dict[int, str]:
        """Id → name of the model's labels; empty where it names none."""
        names, _ = match_label_names(self.core_model.config.id2label, None)
        return names or {}

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log, with the loss terms and the state of the label table beside the training loss."""
        if "loss" in logs:
            logs = {**logs, **self._label_log.read(self.lwal_model)}
        super().log(logs, *args, **kwargs)


def _refreshes(callback: Any) -> bool:
    kind = callback if isinstance(callback, type) else type(callback)
    return issubclass(kind, CentroidRefreshCallback)
