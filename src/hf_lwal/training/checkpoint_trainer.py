"""`CheckpointTrainer`: a Trainer whose checkpoints are whole, hold all that was learned, and resume to the bit."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pickle import UnpicklingError
from typing import Any

from torch import nn
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, SaveStrategy, TrainOutput

from ..errors import reason
from ..modeling.distributed import first_rank_says
from ..modeling.label_table_file import write_label_table_file
from ..modeling.peft_support import active_adapters
from ..objectives import Objective, has_state, load_objective, save_objective
from .checkpoints import forget_state_file
from .folder_lock import FolderLock, in_use
from .hub_trainer import HubTrainer

logger = logging.getLogger(__name__)


class CheckpointTrainer(HubTrainer):
    """The part of `LwALTrainer` that saves and resumes.

    A checkpoint gets its ``trainer_state.json`` last, after the files of all ranks, and holds the state of the
    objective (``objective.safetensors``) beside that of the optimizer.
    """

    label_objective: Objective
    _weights_were_renamed = False

    def train(
        self, resume_from_checkpoint: str | bool | None = None, trial: Any = None, *args: Any, **kwargs: Any
    ) -> TrainOutput:
        """Train, unless another process trains into the output folder; trials of a search have folders of their own.

        Raises:
            ValueError: another training writes to the folder.
        """
        folder, saves = self.args.output_dir, self.args.save_strategy != SaveStrategy.NO
        lock = FolderLock(folder)
        wanted = trial is None and saves and self.is_world_process_zero()
        if not first_rank_says(not wanted or lock.take(), self.args.device):
            raise ValueError(in_use(folder))
        try:
            return super().train(resume_from_checkpoint, trial, *args, **kwargs)
        finally:
            lock.release()

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        if self.args.should_save:
            folder = f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
            forget_state_file(os.path.join(self._get_output_dir(trial=trial), folder))
        super()._save_checkpoint(model, trial)

    def _save_rng_state(self, output_dir: str) -> None:
        super()._save_rng_state(output_dir)
        self.accelerator.wait_for_everyone()  # the file that says "complete" comes after those of all ranks

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        super()._save(output_dir, state_dict)
        model = self._lwal_model
        adapted = self.args.should_save and active_adapters(self.model) is not None  # and then saves itself only
        if model is not None and adapted:
            table, names = model.label_table, model.config.label_names
            folder = output_dir or self.args.output_dir
            write_label_table_file(folder, table.label_vectors, table.counts, names, table.rejection_radii)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model, and beside it what the objective has learned (``objective.safetensors``)."""
        super().save_model(output_dir, _internal_call)
        if self.args.should_save and not _internal_call and any(True for _ in self.label_objective.parameters()):
            save_objective(self.label_objective, output_dir or self.args.output_dir)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        self.label_objective.merge_ranks()
        if self.args.should_save:
            save_objective(self.label_objective, output_dir)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        with _named(checkpoint, "the state of the optimizer"):
            super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            load_objective(self.label_objective, checkpoint)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        with _named(checkpoint, "the state of the random generators"):
            super()._load_rng_state(checkpoint)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        with _named(resume_from_checkpoint, "the weights"):
            super()._load_from_checkpoint(resume_from_checkpoint, model)
            self._load_renamed_weights(resume_from_checkpoint)

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        self._weights_were_renamed = bool(load_result.missing_keys and load_result.unexpected_keys)
        if not self._weights_were_renamed:
            super()._issue_warnings_after_load(load_result)

    def _load_renamed_weights(self, checkpoint: str) -> None:
        # Models write some weights (all of ViT's layers) under names of older versions, which only from_pretrained
        # reads back: Trainer leaves those weights as they are.
        if self._weights_were_renamed:
            self._weights_were_renamed = False
            model = self.core_model
            model.load_state_dict(type(model).from_pretrained(checkpoint, dtype=model.dtype).state_dict())

    def _load_best_model(self) -> None:
        super()._load_best_model()
        self._load_renamed_weights(self.state.best_model_checkpoint)
        if has_state(self.state.best_model_checkpoint):
            load_objective(self.label_objective, self.state.best_model_checkpoint)

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        if self.state.global_step < self.state.max_steps:
            super()._run_epoch(*args, **kwargs)
            return
        # resumed where the last step was already done; transformers looks for the end only after one step more
        logger.warning(
            "The checkpoint has all %d steps, so nothing is left to train: raise max_steps or num_train_epochs.",
            self.state.max_steps,
        )
        self.control.should_training_stop = True


@contextmanager
def _named(checkpoint: str | None, what: str) -> Iterator[None]:
    """Say which part of which checkpoint could not be read, instead of what a library ran into within it."""
    try:
        yield
    except (RuntimeError, ValueError, TypeError, LookupError, AttributeError, EOFError, UnpicklingError) as error:
        if checkpoint is None:
            raise
        raise ValueError(
            f"{checkpoint} cannot be resumed from, because {what} in it could not be loaded ({reason(error)}): resume "
            "from another checkpoint, or start anew in another output_dir."
        ) from error
