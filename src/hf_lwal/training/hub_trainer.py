"""`HubTrainer`: transformers' Trainer whose pushes carry all that belongs to a model, and which reports failures."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import Trainer
from transformers.trainer_utils import HubStrategy, rotate_checkpoints

from ..modeling.hub_code import CODE_FOLDER, take_back_code
from ..modeling.label_table_file import FILE_NAME
from ..modeling.modeling_lwal import LwALPreTrainedModel
from ..modeling.peft_support import core_model

logger = logging.getLogger(__name__)

WITH_CHECKPOINTS = (HubStrategy.CHECKPOINT, HubStrategy.ALL_CHECKPOINTS)


class HubTrainer(Trainer):
    """The part of `LwALTrainer` that talks to the Hub.

    Pushes during training (``hub_strategy`` every_save, checkpoint and all_checkpoints) carry the label table, the
    card with its pictures and, unless ``model.config.push_code`` is off, the modules that load the model elsewhere.
    """

    model: Any
    _pushing = False
    _pushed_with: tuple[str | None, str | None] = (None, None)
    _said_for_card: Mapping[str, Any] = {}

    @property
    def core_model(self) -> Any:
        """The model itself, without the wrappers of data parallelism, compilation and adapters."""
        return core_model(self.accelerator.unwrap_model(self.model, keep_torch_compile=False))

    @property
    def _lwal_model(self) -> LwALPreTrainedModel | None:
        model = self.core_model
        return model if isinstance(model, LwALPreTrainedModel) else None

    @property
    def hub_token(self) -> str | None:
        """Token of the push that is under way, else that of the arguments."""
        return self._pushed_with[0] or self.args.hub_token

    @property
    def hub_revision(self) -> str | None:
        """Branch of the push that is under way, else that of the arguments."""
        return self._pushed_with[1] or self.args.hub_revision

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
        self._pushing, self._pushed_with = True, (token, revision)
        try:
            if self.is_world_process_zero():
                self._finish_current_push()  # the card on the Hub is read next, and must be the one on its way
            pushed = super().push_to_hub(commit_message, blocking, token, revision, *args, **kwargs)
            if self.is_world_process_zero():
                self._take_back_samples(self.hub_token, self.hub_revision)
                if (model := self._lwal_model) is not None and not model.config.push_code:
                    take_back_code(self.hub_model_id, self.hub_token, self.hub_revision)
        finally:
            self._pushing, self._pushed_with = False, (None, None)
        return pushed

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
        # What a push says by itself, which must not replace a title that someone chose.
        own_names = {Path(name).name for name in (self.args.output_dir, self.args.hub_model_id) if name}
        said = {
            "language": language,
            "license": license,
            "tags": tags,
            "model_name": None if model_name in own_names else model_name,
            "finetuned_from": finetuned_from,
            "dataset_tags": dataset_tags,
            "dataset": dataset,
            "dataset_args": dataset_args,
            "controls": controls,
            "control_tests": control_tests,
            "examples": examples,
            "command": command,
        }
        if samples is not None and samples < 0:
            raise ValueError(f"samples is {samples}, but it must be 0 or more.")
        shown = {} if samples is None else {"samples": samples}  # 0 says something too
        said = {name: value for name, value in said.items() if value}
        self._said_for_card = {**self._said_for_card, **said, **shown}
        if self.is_world_process_zero():
            from ..model_card import write_trainer_card

            write_trainer_card(self, self._said_for_card)

    def _take_back_samples(self, token: str | None, revision: str | None) -> None:
        """Delete pictures and sounds of rows that the card no longer shows: an upload only adds and replaces."""
        from huggingface_hub import HfApi

        from ..model_card import SAMPLE_FILE

        api, place = HfApi(token=token), {"repo_id": self.hub_model_id, "revision": revision}
        try:
            names = [name for name in api.list_repo_files(**place) if SAMPLE_FILE.fullmatch(name)]
            gone = [name for name in names if not Path(self.args.output_dir, name).exists()]
            if gone:
                api.delete_files(delete_patterns=gone, commit_message="Rows that the card no longer shows", **place)
        except Exception as error:  # the model is pushed; this must not look as if it were not
            logger.warning(
                "%s may still hold pictures or sounds of rows that its card no longer shows (sample_*.png, "
                "sample_*.wav), since they could not be deleted: %s",
                self.hub_model_id,
                " ".join(str(error).split()),
            )

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        card = Path(output_dir or self.args.output_dir, "README.md")
        written = card.read_bytes() if self.args.should_save and card.is_file() else None
        super()._save(output_dir, state_dict)
        if written is not None and card.read_bytes() != written:  # PEFT replaces tags and base model at every save
            card.write_bytes(written)
        if not self.args.should_save:  # transformers comes here on every rank, and saves on the first
            return
        model = self.accelerator.unwrap_model(self.model, keep_torch_compile=False)
        if (self.args.push_to_hub or self._pushing) and isinstance(model, LwALPreTrainedModel):
            model.write_companions(output_dir or self.args.output_dir, include_code=model.config.push_code)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        strategy = self.args.hub_strategy
        if not self.is_world_process_zero() or strategy == HubStrategy.END:
            return
        # The files of an upload must not be replaced, nor its checkpoint be rotated away, while it is under way.
        rotated = strategy in WITH_CHECKPOINTS and self.args.save_total_limit is not None
        if self.args.hub_always_push or rotated:
            self._finish_current_push()
        if self.push_in_progress is not None and not self.push_in_progress.is_done():
            return
        self._report_failed_pushes()
        for source in (Path(checkpoint_folder, FILE_NAME), Path(checkpoint_folder, CODE_FOLDER)):
            target = Path(self.args.output_dir, source.name)
            if source.is_dir():
                shutil.copytree(source, target, dirs_exist_ok=True)
            elif source.is_file():
                shutil.copy(source, target)
        self._card_for_push()
        # transformers rotates after the push has begun, which fails when it lists a folder that is being deleted
        limit, best = self.args.save_total_limit, self.state.best_model_checkpoint
        rotate_checkpoints(os.path.dirname(checkpoint_folder), limit, best, use_mtime=True)
        super()._push_from_checkpoint(checkpoint_folder)

    def _finalize_training(self, trial: Any, num_train_samples: int, start_time: float) -> Any:
        # With a limit of 1, the last checkpoint is deleted here if it is not the best, and it may be on its way.
        if self.args.save_total_limit == 1 and self.state.best_model_checkpoint is not None:
            waiting_since = time.time()
            self._finish_current_push()
            start_time += time.time() - waiting_since
        return super()._finalize_training(trial, num_train_samples, start_time)

    def _card_for_push(self) -> None:
        name = (self.hub_model_id or self.args.output_dir).rstrip("/").split("/")[-1]
        try:
            self.create_model_card(model_name=name)
        except Exception:  # hours of training must not end because a picture cannot be drawn
            logger.warning("The model card for the push at step %d failed.", self.state.global_step, exc_info=True)

    def _finish_current_push(self) -> None:
        super()._finish_current_push()
        self._report_failed_pushes()

    def _report_failed_pushes(self) -> None:
        """Pushes during training run in the background, where transformers lets their errors vanish."""
        push = getattr(self, "push_in_progress", None)
        if push is None:
            return
        for job in push.jobs:
            if job.done() and not job.cancelled() and (error := job.exception()) is not None:
                logger.warning(
                    "A push of %s to %s during training failed: %s: %s. The files in that folder are whole, and the "
                    "next push sends them again.",
                    Path(self.args.output_dir),
                    self.hub_model_id,
                    type(error).__name__,
                    " ".join(str(error).split()),
                )
        push.jobs = [job for job in push.jobs if not job.done()]
