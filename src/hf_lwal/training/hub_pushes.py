"""Pushes that carry all that belongs to a model, and that report failures."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex

from huggingface_hub import HfApi
from transformers.trainer_utils import HubStrategy, rotate_checkpoints

from ..modeling.hub_code import CODE_FOLDER, take_back_code
from ..modeling.label_table_file import FILE_NAME
from ..modeling.modeling_lwal import LwALPreTrainedModel
from .transformers_internals import TrainerPart

if TYPE_CHECKING:
    from typing_extensions import Self

logger = logging.getLogger(__name__)

WITH_CHECKPOINTS = (HubStrategy.CHECKPOINT, HubStrategy.ALL_CHECKPOINTS)


class Secret(str):
    """A token that no file holds: ``training_args.bin``, which every save and every push carries, has None for it."""

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        return self.__reduce__()

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self


def keep_secret(args: Any) -> None:
    """Let no token in training arguments be written with them."""
    for name, value in vars(args).items():
        if name.endswith("_token") and isinstance(value, str):
            setattr(args, name, Secret(value))


class HubPushes(TrainerPart):
    """Talks to the Hub.

    Pushes during training (``hub_strategy`` every_save, checkpoint and all_checkpoints) carry the label table, the
    card with its pictures and, unless ``model.config.push_code`` is off, the modules that load the model elsewhere.

    Attributes:
        token: of the push that is under way; None for that of the arguments.
        revision: branch of the push that is under way; None for that of the arguments.
        said: what the caller of `create_model_card` said, which holds for later cards.
    """

    token: str | None = None
    revision: str | None = None
    _pushing = False
    _card: bytes | None = None

    def __init__(self, trainer: Any) -> None:
        super().__init__(trainer)
        self.said: Mapping[str, Any] = {}

    @contextmanager
    def push(self, token: str | None, revision: str | None) -> Iterator[None]:
        """Around a push by the user: waits for those in the background, and takes back what must not stay there."""
        trainer = self.trainer
        self._pushing, self.token, self.revision = True, token, revision
        try:
            if trainer.is_world_process_zero():
                trainer.wait_for_push()  # the card on the Hub is read next, and must be the one on its way
            yield
            if trainer.is_world_process_zero():
                self._take_back_samples()
                if (model := trainer.lwal_model) is not None and not model.config.push_code:
                    take_back_code(trainer.hub_model_id, trainer.hub_token, trainer.hub_revision)
        finally:
            self._pushing, self.token, self.revision = False, None, None

    def say_for_card(self, said: Mapping[str, Any], samples: int | None) -> Mapping[str, Any]:
        """What was said for cards up to now, with what is said this time.

        Args:
            said: entries of the card; those that are empty say nothing.
            samples: rows that the card shows; 0 says something too.
        """
        if samples is not None and samples < 0:
            raise ValueError(f"samples is {samples}, but it must be 0 or more.")
        # What a push says by itself must not replace a title that someone chose.
        args = self.trainer.args
        own_names = {Path(name).name for name in (args.output_dir, args.hub_model_id) if name}
        told = {name: value for name, value in said.items() if value}
        if told.get("model_name") in own_names:
            del told["model_name"]
        self.said = {**self.said, **told, **({} if samples is None else {"samples": samples})}
        return self.said

    def _take_back_samples(self) -> None:
        """Delete pictures and sounds of rows that the card no longer shows: an upload only adds and replaces."""
        from ..model_card import SAMPLE_FILE

        trainer = self.trainer
        place = {"repo_id": trainer.hub_model_id, "revision": trainer.hub_revision}
        try:
            api = HfApi(token=trainer.hub_token)
            names = [name for name in api.list_repo_files(**place) if SAMPLE_FILE.fullmatch(name)]
            gone = [name for name in names if not Path(trainer.args.output_dir, name).exists()]
            if gone:
                api.delete_files(delete_patterns=gone, commit_message="Rows that the card no longer shows", **place)
        except Exception as error:  # the model is pushed; this must not look as if it were not
            logger.warning(
                "%s may still hold pictures or sounds of rows that its card no longer shows (sample_*.png, "
                "sample_*.wav), since they could not be deleted: %s",
                trainer.hub_model_id,
                " ".join(str(error).split()),
            )

    def model_saving(self, folder: str) -> None:
        """PEFT replaces tags and base model in the card at every save: keep it as it was; and tokens stay here."""
        keep_secret(self.trainer.args)
        card = Path(folder, "README.md")
        self._card = card.read_bytes() if self.trainer.args.should_save and card.is_file() else None

    def model_saved(self, folder: str) -> None:
        """Put the card back, and the code beside weights that are on their way to the Hub."""
        trainer, card = self.trainer, Path(folder, "README.md")
        if self._card is not None and card.read_bytes() != self._card:
            card.write_bytes(self._card)
        if not trainer.args.should_save:  # transformers comes here on every rank, and saves on the first
            return
        model = trainer.accelerator.unwrap_model(trainer.model, keep_torch_compile=False)
        if (trainer.args.push_to_hub or self._pushing) and isinstance(model, LwALPreTrainedModel):
            model.write_companions(folder, include_code=model.config.push_code)

    def push_begins(self, checkpoint: str) -> bool:
        """Bring table, code and card into the output folder, which is what is sent; False while a push is under way.

        The files of an upload must not be replaced, nor its checkpoint be rotated away, before it has ended.
        """
        trainer = self.trainer
        args, strategy = trainer.args, trainer.args.hub_strategy
        keep_secret(args)
        if strategy == HubStrategy.END:
            return False
        if args.hub_always_push or (strategy in WITH_CHECKPOINTS and args.save_total_limit is not None):
            trainer.wait_for_push()
        if trainer.push_in_progress is not None and not trainer.push_in_progress.is_done():
            return False
        self.push_ended()
        for source in (Path(checkpoint, FILE_NAME), Path(checkpoint, CODE_FOLDER)):
            target = Path(args.output_dir, source.name)
            if source.is_dir():
                shutil.copytree(source, target, dirs_exist_ok=True)
            elif source.is_file():
                shutil.copy(source, target)
        self.write_card()
        # transformers rotates after the push has begun, which fails when it lists a folder that is being deleted
        best = trainer.state.best_model_checkpoint
        rotate_checkpoints(os.path.dirname(checkpoint), args.save_total_limit, best, use_mtime=True)
        return True

    def training_ends(self) -> float:
        """With a limit of 1, the last checkpoint is deleted if it is not the best, and it may be on its way."""
        waiting_since = time.time()
        if self.trainer.args.save_total_limit == 1 and self.trainer.state.best_model_checkpoint is not None:
            self.trainer.wait_for_push()
        return time.time() - waiting_since

    def write_card(self) -> None:
        """Write the card for a push; hours of training must not end because a picture cannot be drawn."""
        trainer = self.trainer
        name = (trainer.hub_model_id or trainer.args.output_dir).rstrip("/").split("/")[-1]
        try:
            trainer.create_model_card(model_name=name)
        except Exception:
            logger.warning("The model card for the push at step %d failed.", trainer.state.global_step, exc_info=True)

    def push_ended(self) -> None:
        """Report failures: pushes run in the background, where transformers lets their errors vanish."""
        push = getattr(self.trainer, "push_in_progress", None)
        if push is None:
            return
        for job in push.jobs:
            if job.done() and not job.cancelled() and (error := job.exception()) is not None:
                logger.warning(
                    "A push of %s to %s during training failed: %s: %s. The files in that folder are whole, and the "
                    "next push sends them again.",
                    Path(self.trainer.args.output_dir),
                    self.trainer.hub_model_id,
                    type(error).__name__,
                    " ".join(str(error).split()),
                )
        push.jobs = [job for job in push.jobs if not job.done()]
