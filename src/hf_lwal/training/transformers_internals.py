"""The private side of transformers' Trainer: all of it that this package overrides or calls, in one place.

Trainer offers no public way to these moments, so a new release of transformers may change them: then the test of
`INTERNALS` says which. `HookedTrainer` turns them into hooks of `TrainerPart`, of which `LwALTrainer` is made.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pickle import UnpicklingError
from typing import Any
from weakref import ref

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.serialization import safe_globals
from torch.utils.data import DataLoader
from transformers import Trainer
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from ..data.sample_ids import ROW_WEIGHT, NumberedRows
from ..errors import reason
from ..modeling.functional import IGNORE_INDEX
from ..modeling.modeling_lwal import LwALPreTrainedModel
from ..modeling.peft_support import core_model
from ..objectives import Objective
from ..settings.training_args import LwALSettings
from .sharding import is_sharded, shard_with, step_one_by_one
from .state_checks import check_states
from .zero import check_whole, written_to_copies

logger = logging.getLogger(__name__)

INTERNALS: dict[str, tuple[tuple[str, ...], str]] = {
    "_determine_best_metric": (("metrics", "trial"), "of equally good models the later one is the best"),
    "_evaluate": (
        ("trial", "ignore_keys_for_eval", "skip_scheduler"),
        "a plateau is one of the metric that was named",
    ),
    "_finalize_training": (("trial", "num_train_samples", "start_time"), "deletes checkpoints that are being pushed"),
    "_finish_current_push": ((), "lets errors of pushes in the background vanish"),
    "_get_collator_with_removed_columns": (("data_collator", "description"), "start rows have training's columns"),
    "_get_dataloader": (("dataset", "description"), "numbers of rows, and streams whose first rows are read twice"),
    "_get_num_items_in_batch": (("batch_samples", "device"), "counts tokens; a classifier's rows have one label each"),
    "_get_output_dir": (("trial",), "where the checkpoints of a trial lie"),
    "_hp_search_setup": (("trial",), "sets the arguments of a trial after its model was built"),
    "_issue_warnings_after_load": (("load_result",), "renamed weights are read once more, so none are missing"),
    "_load_best_model": ((), "the objective's state belongs to the best model"),
    "_load_from_checkpoint": (("resume_from_checkpoint", "model"), "errors name the checkpoint; renamed weights"),
    "_load_optimizer_and_scheduler": (("checkpoint",), "the objective's state is loaded with them"),
    "_load_rng_state": (("checkpoint",), "errors name the checkpoint"),
    "_move_model_to_device": (("model", "device"), "preparing the model of a trial may make new layers"),
    "_prepare_for_training": (
        ("max_steps", "train_dataloader", "resume_from_checkpoint"),
        "FSDP2 leaves the label table whole",
    ),
    "_prepare_inputs": (("inputs",), "micro-batches that are embedded before their turn"),
    "_push_from_checkpoint": (("checkpoint_folder",), "sends weights and arguments, but no table, code or card"),
    "_remove_unused_columns": (("dataset", "description"), "start rows have training's columns"),
    "_run_epoch": (("epoch", "train_dataloader"), "looks for the end one step late; whose rows of it are left out"),
    "_save": (("output_dir", "state_dict"), "what belongs beside weights; PEFT overwrites the card"),
    "_save_checkpoint": (("model", "trial"), "a checkpoint that is written again is not whole until it is done"),
    "_save_optimizer_and_scheduler": (("output_dir",), "the objective's state is saved with them"),
    "_save_rng_state": (("output_dir",), "ranks wait: the file that says 'complete' comes after those of all"),
    "_set_signature_columns_if_needed": ((), "a forward with **kwargs hides the columns that the encoder takes"),
}
"""Private method of Trainer → parameters that are relied on, and why it is overridden or called."""

ARRAYS: list[Any] = [
    (np.empty(0).__reduce__()[0], f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")
]
"""What makes an array of what was saved, as NumPy 1 and 2 call it; transformers allows the name that it has now."""


class TrainerPart:
    """One of the things a trainer is made of, told of the moments of a training; each hook does nothing here.

    Args:
        trainer: whose part it is.
    """

    def __init__(self, trainer: HookedTrainer) -> None:
        self.trainer: Any = trainer

    def checkpoint_begins(self, folder: str) -> None:
        """On the rank that saves, before a checkpoint is written into ``folder``."""

    def checkpoint_failed(self, folder: str, error: BaseException) -> None:
        """After an error in writing a checkpoint, on every rank that had one."""

    def model_saving(self, folder: str) -> None:
        """Before weights are written into ``folder``, on every rank."""

    def model_saved(self, folder: str) -> None:
        """After weights were written into ``folder``, on every rank."""

    def optimizer_saved(self, folder: str) -> None:
        """After the optimizer's state was written into ``folder``, on every rank."""

    def states_saved(self, folder: str) -> None:
        """After all states of all ranks were written into ``folder``, before the file that says so."""

    def optimizer_loaded(self, checkpoint: str) -> None:
        """After the optimizer's state was read."""

    def weights_loaded(self, checkpoint: str) -> None:
        """After the weights were read."""

    def explains_missing_weights(self, load_result: Any) -> bool:
        """Whether weights that a checkpoint lacks are no news for the user."""
        return False

    def best_model_loaded(self, checkpoint: str) -> None:
        """After the best model was read."""

    def push_begins(self, checkpoint: str) -> bool:
        """Before a checkpoint is pushed, on the first rank; False keeps it from being pushed."""
        return True

    def push_ended(self) -> None:
        """After waiting for the push in progress."""

    def training_ends(self) -> float:
        """Before old checkpoints are deleted at the end; returns the seconds that must not count as training."""
        return 0.0

    def is_best(self, metrics: dict[str, float], found: bool) -> bool:
        """Whether this is the best model so far; ``found`` is what transformers says."""
        return found

    def steps_plateau(self) -> bool:
        """Whether `step_plateau` takes the place of transformers' own step of such a scheduler."""
        return False

    def step_plateau(self, metrics: dict[str, float]) -> None:
        """Step a scheduler that waits for a plateau."""

    def rows_to_load(self, dataset: Any, collator: Any, description: str, training: bool) -> tuple[Any, Any]:
        """Data set and collator that a loader is made of, here as they are."""
        return dataset, collator


class HookedTrainer(Trainer):
    """transformers' Trainer, whose private methods tell its ``parts``, in their order."""

    data_collator: Any
    model: Any
    optimizer: Any
    label_objective: Objective
    lwal_settings: LwALSettings
    _parts: tuple[TrainerPart, ...] = ()
    _divides = False
    loss_is_scaled_for_ga: Any
    _unwrapped: tuple[Callable[[], Any], Callable[[], Any]] = (lambda: None, lambda: None)
    _before_trial: Mapping[str, Any] = {}
    _own_parameters: Sequence[list[Tensor]] = ()

    @property
    def core_model(self) -> Any:
        """The model itself, without the wrappers of data parallelism, compilation and adapters."""
        known, model = self._unwrapped
        if known() is not self.model or model() is None:  # unwrapping looks at every module of the model
            found = core_model(self.accelerator.unwrap_model(self.model, keep_torch_compile=False))
            self._unwrapped = ref(self.model), ref(found)
            return found
        return model()

    def __getstate__(self) -> dict[str, Any]:  # a search over several processes sends the trainer to them
        return {name: value for name, value in vars(self).items() if name != "_unwrapped"}

    @property
    def lwal_model(self) -> LwALPreTrainedModel | None:
        """The model itself where it has a label table."""
        model = self.core_model
        return model if isinstance(model, LwALPreTrainedModel) else None

    @property
    def shards_weights(self) -> bool:
        """Whether ranks hold parts of the weights, in parameters that their engine made."""
        return bool(self.is_fsdp_enabled or self.is_deepspeed_enabled)

    @property
    def reads_weights(self) -> bool:
        """Whether each rank can read what it holds of the weights under their names, as all can but some engines'."""
        return self.shards_by_fsdp2 or not self.shards_weights

    def settled(self, model: nn.Module) -> nn.Module:
        """Prepare ``model`` for the arguments as they are now."""
        return model

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        folder = os.path.join(self._get_output_dir(trial=trial), f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}")
        try:
            for part in self._parts if self.args.should_save else ():
                part.checkpoint_begins(folder)
            super()._save_checkpoint(model, trial)
        except (OSError, RuntimeError, SafetensorError, KeyboardInterrupt) as error:
            for part in self._parts:
                part.checkpoint_failed(folder, error)
            raise

    def _save_rng_state(self, output_dir: str) -> None:
        super()._save_rng_state(output_dir)
        self.accelerator.wait_for_everyone()
        for part in self._parts:
            part.states_saved(output_dir)

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        folder = output_dir or str(self.args.output_dir)
        if self.shards_weights and (model := self.lwal_model) is not None:
            model.bring_labels_up_to_date()  # through the head, which takes all ranks; one alone saves
        for part in self._parts:
            part.model_saving(folder)
        super()._save(output_dir, state_dict)
        for part in self._parts:
            part.model_saved(folder)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        for part in self._parts:
            part.optimizer_saved(output_dir)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        self._give_back_parameters()
        with _named(checkpoint, "the state of the optimizer"):
            super()._load_optimizer_and_scheduler(checkpoint)
            if checkpoint is not None and not self.shards_weights:
                check_states(self.optimizer, self.lr_scheduler)
        if checkpoint is not None:
            for part in self._parts:
                part.optimizer_loaded(checkpoint)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        with _named(checkpoint, "the state of the random generators"), safe_globals(ARRAYS):
            super()._load_rng_state(checkpoint)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        with _named(resume_from_checkpoint, "the weights"):
            super()._load_from_checkpoint(resume_from_checkpoint, model)
            for part in self._parts:
                part.weights_loaded(resume_from_checkpoint)

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        if not any([part.explains_missing_weights(load_result) for part in self._parts]):
            super()._issue_warnings_after_load(load_result)

    def _load_best_model(self) -> None:
        super()._load_best_model()
        for part in self._parts:
            part.best_model_loaded(self.state.best_model_checkpoint)

    # -- the loss of a micro-batch ------------------------------------------------------------------------------------

    def create_accelerator_and_postprocess(self) -> None:
        """As in transformers, which before 5.5.4 lets accelerate divide gradients by the micro-batches once more."""
        super().create_accelerator_and_postprocess()
        self.accelerator.gradient_accumulation_steps = 1

    def training_step(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Tensor:
        """Forward and backward of a micro-batch, its loss divided as ``loss_is_scaled_for_ga`` says."""
        if hasattr(Trainer, "loss_is_scaled_for_ga"):
            return super().training_step(model, inputs, *args, **kwargs)
        # transformers before 5.19 divides the loss of a model that takes no loss arguments, however it was computed.
        steps = getattr(self, "current_gradient_accumulation_steps", 1)
        self.model_accepts_loss_kwargs, self._divides = False, True
        try:
            return super().training_step(model, inputs, *args, **kwargs)
        finally:
            self.current_gradient_accumulation_steps, self._divides = steps, False

    def compute_loss_context_manager(self) -> ExitStack:
        """As in transformers; at its end the loss is there, and known how it is to be divided."""
        stack: ExitStack = super().compute_loss_context_manager()
        if self._divides:
            stack.callback(self._divide_no_more)
        return stack

    def _divide_no_more(self) -> None:
        if self.loss_is_scaled_for_ga:
            self.current_gradient_accumulation_steps = 1

    # -- engines ------------------------------------------------------------------------------------------------------

    def writing(self, *modules: nn.Module) -> AbstractContextManager[None]:
        """Within, parameters of ``modules`` may be written beside the optimizer."""
        return written_to_copies(*modules) if self.is_deepspeed_enabled else nullcontext()

    @property
    def shards_by_fsdp2(self) -> bool:
        """Whether ``fully_shard`` takes the weights apart."""
        return bool(self.is_fsdp_enabled and getattr(self.accelerator, "is_fsdp2", False))

    def _prepare_for_training(self, *args: Any, **kwargs: Any) -> Any:
        if not self.shards_by_fsdp2 or self.lwal_model is None:
            prepared = super()._prepare_for_training(*args, **kwargs)
            if self.is_deepspeed_enabled:
                check_whole(self.core_model)
            return prepared
        shard_with(self.accelerator, self.model)
        optimizer = self.create_optimizer()
        step_one_by_one(optimizer.param_groups)
        self._own_parameters = [list(group["params"]) for group in optimizer.param_groups]
        self.__dict__["create_optimizer"] = lambda: optimizer  # a subclass may make another one at every call
        try:
            prepared = super()._prepare_for_training(*args, **kwargs)
        finally:
            del self.__dict__["create_optimizer"]
        self._give_back_parameters()
        return prepared

    def _give_back_parameters(self) -> None:
        """Undo what accelerate took for the same: empty parts of several parameters have one address."""
        for group, parameters in zip(self.optimizer.param_groups, self._own_parameters, strict=False):
            group["params"] = parameters

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """As in transformers, which with ``SHARDED_STATE_DICT`` would save nothing at all."""
        super().save_model(output_dir, _internal_call)
        is_checkpoint = _internal_call and output_dir is not None  # a push calls it so without a folder
        if is_checkpoint or not self.shards_by_fsdp2:
            return
        if "FULL_STATE_DICT" not in str(self.accelerator.state.fsdp_plugin.state_dict_type):
            self._save(output_dir, state_dict=self.accelerator.get_state_dict(self.model))

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        """As in transformers, which with FSDP2 cannot evaluate a model before it was trained."""
        if self.shards_by_fsdp2 and not is_sharded(self.model) and self.lwal_model is not None:
            shard_with(self.accelerator, self.model)
            self.model = self.accelerator.prepare_model(self.model, device_placement=False, evaluation_mode=True)
        return super().evaluation_loop(*args, **kwargs)

    # -- the course of a training -------------------------------------------------------------------------------------

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        if self.state.global_step < self.state.max_steps:
            _set_epoch(kwargs["train_dataloader"], kwargs["epoch"])
            super()._run_epoch(*args, **kwargs)
            return
        logger.warning(
            "The checkpoint has all %d steps, so nothing is left to train: raise max_steps or num_train_epochs.",
            self.state.max_steps,
        )
        self.control.should_training_stop = True

    def _finalize_training(self, trial: Any, num_train_samples: int, start_time: float) -> Any:
        start_time += sum(part.training_ends() for part in self._parts)
        return super()._finalize_training(trial, num_train_samples, start_time)

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        before = self.state.best_metric
        found = super()._determine_best_metric(metrics, trial)
        for part in self._parts if before is not None else ():
            found = part.is_best(metrics, found)
        return found

    def _evaluate(self, trial: Any, ignore_keys_for_eval: list[str] | None, skip_scheduler: bool = False) -> Any:
        own = [part for part in self._parts if part.steps_plateau()]
        metrics = super()._evaluate(trial, ignore_keys_for_eval, skip_scheduler or bool(own))
        for part in () if skip_scheduler else own:
            part.step_plateau(metrics)
        return metrics

    def _hp_search_setup(self, trial: Any) -> None:
        if trial is None or self.hp_search_backend is None:
            super()._hp_search_setup(trial)
            return
        for name, value in self._before_trial.items():  # what this trial leaves out is not for the last one to say
            setattr(self.args, name, value)
        before = dict(vars(self.args))
        super()._hp_search_setup(trial)
        self._before_trial = {name: value for name, value in before.items() if vars(self.args)[name] is not value}
        self.model = self.settled(self.model)
        if self.place_model_on_device:
            self._move_model_to_device(self.model, self.args.device)
        self.model_wrapped = self.model

    # -- pushes -------------------------------------------------------------------------------------------------------

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        if not self.is_world_process_zero() or all([part.push_begins(checkpoint_folder) for part in self._parts]):
            super()._push_from_checkpoint(checkpoint_folder)

    def _finish_current_push(self) -> None:
        super()._finish_current_push()
        for part in self._parts:
            part.push_ended()

    def wait_for_push(self) -> None:
        """Wait until the push in progress has ended."""
        self._finish_current_push()

    # -- rows ---------------------------------------------------------------------------------------------------------

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: torch.device) -> Tensor | None:
        counts = [
            ((batch["labels"] != IGNORE_INDEX) * batch.get(ROW_WEIGHT, 1)).sum()
            for batch in batch_samples
            if "labels" in batch
        ]
        return torch.stack(counts).sum() if counts else None

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()
        if (model := self.lwal_model) is not None:
            self._signature_columns = [*model.encoder_arguments, "label", "label_ids", *self.label_names]

    def _get_dataloader(self, dataset: Any, description: str, *args: Any, **kwargs: Any) -> DataLoader[Any]:
        own, training = self.data_collator, bool(kwargs.get("is_training"))
        try:
            for part in self._parts:
                loaded = part.rows_to_load(dataset, self.data_collator, description, training)
                dataset, self.data_collator = loaded
            if (sampler := kwargs.get("sampler_fn")) is not None:  # some samplers look into the columns
                kwargs["sampler_fn"] = lambda rows: sampler(rows.dataset if isinstance(rows, NumberedRows) else rows)
            return super()._get_dataloader(dataset, description, *args, **kwargs)
        finally:
            self.data_collator = own

    def columns_of_model(self) -> list[str]:
        """Names of the columns that the model takes."""
        self._set_signature_columns_if_needed()
        return list(self._signature_columns or ())

    def with_columns_of_model(self, dataset: Any, collator: Any, description: str) -> tuple[Any, Any]:
        """Rows and collator such that what the model does not take is left out, by the one or the other."""
        from datasets import Dataset

        if isinstance(dataset, Dataset):
            return self._remove_unused_columns(dataset, description=description), collator
        return dataset, self._get_collator_with_removed_columns(collator, description=description)

    def on_device(self, batch: dict[str, Any]) -> dict[str, Any]:
        """A batch as the model gets it."""
        prepared: dict[str, Any] = self._prepare_inputs(batch)
        return prepared


_UNREADABLE = (RuntimeError, ValueError, TypeError, LookupError, AttributeError, AssertionError, EOFError)


def _set_epoch(part: Any, epoch: int) -> None:
    """Tell samplers of an epoch; accelerate before 1.7 does not where a resumed epoch skips rows."""
    if hasattr(part, "set_epoch"):
        part.set_epoch(epoch)
    for inner in (getattr(part, name, None) for name in ("batch_sampler", "sampler")):
        if inner is not None:
            _set_epoch(inner, epoch)


@contextmanager
def _named(checkpoint: str | None, what: str) -> Iterator[None]:
    """Say which part of which checkpoint could not be read, instead of what a library ran into within it."""
    try:
        yield
    except (*_UNREADABLE, UnpicklingError) as error:
        if checkpoint is None:
            raise
        raise ValueError(
            f"{checkpoint} cannot be resumed from, because {what} in it could not be loaded ({reason(error)}): resume "
            "from another checkpoint, or start anew in another output_dir."
        ) from error
