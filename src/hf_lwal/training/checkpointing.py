"""Checkpoints that are whole, hold all that was learned, and resume to the bit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers.trainer_utils import SaveStrategy

from ..errors import WriteError, disk_fault
from ..modeling.distributed import first_rank_says
from ..modeling.label_table_file import write_label_table_file
from ..modeling.peft_support import active_adapters
from ..objectives import has_state, load_objective, save_objective
from .checkpoints import forget_state_file, remove_half, what_is_left
from .folder_lock import FolderLock, in_use
from .state_checks import write_checksums
from .transformers_internals import TrainerPart


class Checkpointing(TrainerPart):
    """Saves and resumes what transformers does not know of.

    A checkpoint gets its ``trainer_state.json`` last, after the files of all ranks, and holds the state of the
    objective (``objective.safetensors``) beside that of the optimizer.
    """

    _weights_were_renamed = False

    @contextmanager
    def alone(self, trial: Any) -> Iterator[None]:
        """Keep other processes from training into the output folder; trials of a search have folders of their own.

        Raises:
            ValueError: another training writes to the folder.
        """
        args = self.trainer.args
        lock = FolderLock(args.output_dir)
        wanted = trial is None and args.save_strategy != SaveStrategy.NO and self.trainer.is_world_process_zero()
        if not first_rank_says(not wanted or lock.take(), args.device):
            raise ValueError(in_use(args.output_dir))
        try:
            yield
        finally:
            lock.release()

    def save_learned(self, folder: str) -> None:
        """Write what the objective itself has learned beside a model that was saved."""
        objective = self.trainer.label_objective
        if self.trainer.args.should_save and any(True for _ in objective.parameters()):
            save_objective(objective, folder)

    def checkpoint_begins(self, folder: str) -> None:
        """A checkpoint that is written over is not whole until its last file is."""
        forget_state_file(folder)

    def checkpoint_failed(self, folder: str, error: BaseException) -> None:
        """Half a checkpoint goes, with the room it takes; what is left to resume from is said.

        Raises:
            WriteError: it could not be written.
        """
        if self.trainer.args.should_save:
            remove_half(folder)
        if (why := disk_fault(error)) is not None:
            raise WriteError(
                f"{folder} could not be written ({why}): make room there. {what_is_left(self.trainer.args.output_dir)}"
            ) from error

    def model_saved(self, folder: str) -> None:
        """An adapter saves itself only: the label table for people goes beside it."""
        model = self.trainer.lwal_model
        if model is not None and self.trainer.args.should_save and active_adapters(self.trainer.model) is not None:
            table, names = model.label_table, model.config.label_names
            write_label_table_file(folder, table.label_vectors, table.counts, names, table.rejection_radii)

    def optimizer_saved(self, folder: str) -> None:
        """The objective's state goes with the optimizer's."""
        self.trainer.label_objective.merge_ranks()
        if self.trainer.args.should_save:
            save_objective(self.trainer.label_objective, folder)

    def states_saved(self, folder: str) -> None:
        """What is damaged later looks like what was saved."""
        if self.trainer.args.should_save:
            write_checksums(folder, self.trainer.state.global_step)

    def optimizer_loaded(self, checkpoint: str) -> None:
        """And comes back with it."""
        load_objective(self.trainer.label_objective, checkpoint)

    def explains_missing_weights(self, load_result: Any) -> bool:
        """Weights that are missing under one name and unexpected under another are read by `weights_loaded`."""
        self._weights_were_renamed = bool(load_result.missing_keys and load_result.unexpected_keys)
        return self._weights_were_renamed

    def weights_loaded(self, checkpoint: str) -> None:
        """Read weights under names of older versions, which Trainer leaves as they are.

        Models write some (all of ViT's layers) under such names, which only ``from_pretrained`` reads back.
        """
        if self._weights_were_renamed:
            self._weights_were_renamed = False
            model = self.trainer.core_model
            model.load_state_dict(type(model).from_pretrained(checkpoint, dtype=model.dtype).state_dict())

    def best_model_loaded(self, checkpoint: str) -> None:
        """The objective's state of that step belongs to the best model."""
        self.weights_loaded(checkpoint)
        if has_state(checkpoint):
            load_objective(self.trainer.label_objective, checkpoint)
