"""`HubTrainer`: transformers' Trainer whose pushes carry all that belongs to a model, and which reports failures."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path
from typing import Any

from transformers import Trainer
from transformers.trainer_utils import HubStrategy

from .hub_code import code_files
from .label_table_file import FILE_NAME
from .modeling_lwal import LwALPreTrainedModel

logger = logging.getLogger(__name__)

WITH_CHECKPOINTS = (HubStrategy.CHECKPOINT, HubStrategy.ALL_CHECKPOINTS)


class HubTrainer(Trainer):
    """The part of `LwALTrainer` that talks to the Hub.

    Pushes during training (``hub_strategy`` every_save, checkpoint and all_checkpoints) carry the label table, the
    card with its pictures and, unless ``model.config.push_code`` is off, the modules that load the model elsewhere.
    """

    _pushing = False

    def push_to_hub(self, *args: Any, **kwargs: Any) -> Any:
        """Push model, card and processing class; arguments and result as in transformers."""
        self._pushing = True
        try:
            pushed = super().push_to_hub(*args, **kwargs)
        finally:
            self._pushing = False
        if self.is_world_process_zero():
            token, revision = kwargs.get("token"), kwargs.get("revision")
            self._take_back_samples(token or self.args.hub_token, revision or self.args.hub_revision)
        return pushed

    def _take_back_samples(self, token: str | None, revision: str | None) -> None:
        """Delete pictures and sounds of rows that the card no longer shows: an upload only adds and replaces."""
        from huggingface_hub import HfApi

        from .model_card import SAMPLE_FILE

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
        super()._save(output_dir, state_dict)
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
        for name in (FILE_NAME, *(path.name for path in code_files())):
            if os.path.isfile(source := os.path.join(checkpoint_folder, name)):
                shutil.copy(source, os.path.join(self.args.output_dir, name))
        self._card_for_push()
        super()._push_from_checkpoint(checkpoint_folder)

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
