"""``hf-lwal train``: fine-tune a classifier with adaptive labels on data of one's own, from flags or a YAML file."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import CommandError, harmless
from ..modeling.files import write_text_atomically
from ..training.folder_lock import LOCK_FILE, FolderLock, in_use
from .flags import argument, check_above_0, option
from .train_checks import check_full_batches, check_given, rehearse
from .train_data import fit_tokenizer, load_rows, prepare_rows
from .train_flags import DEFAULTS, build_arguments, training_values
from .train_model import Job, build_model, check_max_length, choose_start
from .train_resume import check_same_model, in_order_of_checkpoint, logging_steps_of
from .verbosity import note
from .writing import check_output_folder, writing

if TYPE_CHECKING:
    from transformers import TrainerCallback

    from ..training.trainer import LwALTrainer

OF_THE_MODEL = ("lwal_class_weights", "lwal_noisy_labels", "lwal_pooling", "lwal_prior")
"""Training arguments named after label vectors that hold for every way of learning from labels."""
CONTROL = "control"
"""Folder, inside the output folder, of the control."""
SETTINGS = "train.yaml"
"""File, inside the output folder, with the settings."""
NOT_SETTINGS = (
    "resume",
    "overwrite",
    "config",
    "hub_token",
    "resume_from_checkpoint",
    "run_name",
    "remove_unused_columns",
)
"""What trains nothing else, or concerns one run only; the file goes to the Hub with a push."""
PATHS = ("data", "model", "validation_data", "test_data", "output_dir", "label_static_model")
"""Settings that may be places on this machine."""


@dataclass(frozen=True)
class TrainOptions:
    """Fine-tune a text or image classifier with adaptive labels on your own data.

    Evaluates on a validation split after every epoch, keeps the best checkpoint, measures it on the test split, and
    writes model, label table, model card, learning curves and all_results.json.
    """

    data: str = argument(
        "embedded data set (clinc150, fashion_mnist), file (csv, tsv, json, jsonl, parquet), folder of such files or "
        "with one folder of images per label, or Hub name (NAME or NAME:CONFIGURATION)",
        positional=False,
    )
    config: str | None = option(
        None, "YAML file with these settings, one `flag: value` per line; flags win over it", positional=True
    )
    model: str | None = option(
        None,
        "folder or Hub name of the model; default: MiniLM for texts (extra `quickstart`), a small ConvNet from "
        "scratch for images of up to 64 pixels",
    )
    text_column: str | None = option(None, "column with the text, or with the image; default: found by name and type")
    pair_column: str | None = option(None, "column with the second text of a pair; default: found by name")
    label_column: str | None = option(None, "column with the label; default: found by name and type")
    validation_data: str | None = option(None, "file or folder with the rows that choose the best checkpoint")
    test_data: str | None = option(None, "file or folder with the rows to measure on at the end")
    validation_share: float = option(
        0.1, "part of the training rows of every label that is set apart where there is no validation split"
    )
    test_share: float = option(
        0.0, "part of the training rows of every label that is set apart to measure on where there is no test split"
    )
    max_length: int | None = option(
        None, "tokens of a text beyond this number are cut off; default: the model's limit, at most 512"
    )
    embedding_dim: str | None = option(
        None, "length of the label vectors: a number, or a multiple of the number of labels such as 10x"
    )
    control: bool = option(
        False, "train the honest control too, a one-hot head started from class means, for the same steps"
    )
    calibrate: bool = option(
        False,
        "after training, fit one temperature to the validation rows: probabilities then say how often they are right",
    )
    fit_rejection: bool = option(
        False,
        "after training, measure on the validation rows how far rows of a label lie from it, so that "
        "`hf-lwal predict --reject` can say: none of these",
    )
    resume: bool = option(False, "continue from the newest complete checkpoint in the output folder")
    overwrite: bool = option(False, "start anew in an output folder that is not empty; its checkpoints are deleted")
    more: Mapping[str, Any] = field(default_factory=dict, metadata={"help": "training flags", "flag": False})

    def check(self) -> None:
        """Raise for values that cannot work, before anything is loaded."""
        if self.config is not None:
            raise CommandError(
                f"{self.config!r} is not understood: a YAML file (.yaml, .yml) comes first, as in `hf-lwal train "
                "settings.yaml --max-steps 20`."
            )
        if not 0.0 < self.validation_share < 1.0:
            raise CommandError(f"--validation-share must be between 0 and 1, got {self.validation_share}.")
        if not 0.0 <= self.test_share < 1.0:
            raise CommandError(f"--test-share must be 0 for none, or between 0 and 1, got {self.test_share}.")
        if self.test_share > 0.0 and self.test_data is not None:
            raise CommandError("--test-share sets rows apart and --test-data names others: give one of them.")
        check_above_0(self, "max_length")
        if self.embedding_dim is not None:
            from ..modeling.auto import resolve_embedding_dim

            try:
                resolve_embedding_dim(self.embedding_dim, 2, None)  # no data has fewer labels
            except ValueError as error:
                raise CommandError(f"--embedding-dim: {error}") from error
        if self.resume and self.overwrite:
            raise CommandError("--resume continues and --overwrite starts anew: give one of them.")


def run(options: TrainOptions) -> int:
    """Train, measure and write everything; returns the exit code."""
    options.check()
    check_given(options.more)
    output = check_output_folder(str(options.more.get("output_dir") or default_output(options.data)), "--output-dir")
    resume = options.resume or options.more.get("resume_from_checkpoint") is not None
    check_output(output, resume or options.overwrite)
    with writing(output):
        return _train_and_report(options, output, resume)


def _train_and_report(options: TrainOptions, output: Path, resume: bool) -> int:
    """What comes after the checks of the command line; returns the exit code."""
    from ..settings.applying import knows_its_labels
    from .train_report import report

    rehearse(build_arguments(training_values(options.more, from_scratch=False) | {"output_dir": str(output)}))
    job = _prepare(options, output, resume)
    main = build_trainer(job, job.values)
    if job.checkpoint is not None:
        check_same_model(job.checkpoint, main.core_model)
    if options.control and knows_its_labels(main.core_model):
        raise CommandError(
            f"--control trains a fresh one-hot head, but {options.model!r} has label vectors of these labels already, "
            "which are no fair start: give the model that it was trained from with --model, or leave --control out."
        )
    of_a_table = {"--calibrate": options.calibrate, "--fit-rejection": options.fit_rejection}
    for flag in (name for name, wanted in of_a_table.items() if wanted and main.lwal_model is None):
        raise CommandError(
            f"{flag} measures for a label table, which a model trained with label_method "
            f"{main.lwal_settings.label_method} does not have: leave it out, or train with --label-method lwal."
        )
    note(*_introduction(job), *(f"Note: {found}." for found in job.rows.notes))
    main.add_callback(_at_begin(options, job))
    lock = FolderLock(output)  # to the end of the report, which writes there, too
    if os.environ.get("RANK", "0") == "0" and not lock.take():
        raise CommandError(in_use(output))
    try:
        method = main.lwal_settings.label_method
        trained = {"LwAL" if method == "lwal" else method: _train(main, job, options.calibrate, options.fit_rejection)}
        if options.control:
            note("", "Control: a one-hot head started from class means, the same steps.")
            values = control_values(job.values)
            trained["one-hot from class means"] = _train(build_trainer(job, values), job)
        say(*report(job, trained))
    except KeyboardInterrupt:
        say("", _how_to_go_on(output))
        raise
    finally:
        lock.release()
    return 0


def _how_to_go_on(output: Path) -> str:
    """How to continue a training that was stopped."""
    from ..training.checkpoints import last_complete_checkpoint

    command = shlex.join(["hf-lwal", "train", str(output / SETTINGS), "--resume"])
    if (last := last_complete_checkpoint(output)) is None:
        return f"Stopped before the first checkpoint was complete. To start anew: {command}"
    return f"Stopped. To continue from {last}: {command}"


def default_output(data: str) -> str:
    """Folder name made from the name of the data.

    >>> default_output("data/My tweets.csv")
    'lwal-My-tweets'
    """
    return f"lwal-{re.sub('[^A-Za-z0-9]+', '-', Path(data).stem).strip('-') or 'model'}"


def check_output(output: Path, allowed: bool) -> None:
    """Refuse a folder that holds something unless that is what was asked for."""
    first_process = os.environ.get("RANK", "0") == "0"  # the others may find what the first has written already
    if first_process and not allowed and output.is_dir() and any(map(_is_of_a_training, output.iterdir())):
        raise CommandError(
            f"The folder {str(output)!r} is not empty: add --resume to continue the training in it, --overwrite to "
            "start anew, or choose another --output-dir."
        )


def _is_of_a_training(path: Path) -> bool:
    """Whether something is lost with a file: settings and hidden files of a start that failed are not."""
    return path.name not in (SETTINGS, LOCK_FILE) and not path.name.startswith(".")


def _prepare(options: TrainOptions, output: Path, resume: bool) -> Job:
    """Load data and tokenizer, and settle every value."""
    seed = options.more.get("seed", 42)
    rows = load_rows(
        options.data,
        validation_data=options.validation_data,
        test_data=options.test_data,
        text_column=options.text_column,
        pair_column=options.pair_column,
        label_column=options.label_column,
        validation_share=options.validation_share,
        test_share=options.test_share,
        seed=seed,
    )
    checkpoint = _checkpoint(output, options) if resume else None
    if checkpoint is not None:
        rows = in_order_of_checkpoint(rows, checkpoint)
    start = choose_start(options.model, rows)
    values = training_values(options.more, from_scratch=start.path is None) | {"output_dir": str(output)}
    if rows.columns.kind != "text":
        values["remove_unused_columns"] = False  # pixels and waves are made from the other columns when they are read
    check_max_length(options.max_length, start, rows)
    return Job(options.data, rows, start, values, options.embedding_dim, options.max_length, resume, checkpoint)


def _checkpoint(output: Path, options: TrainOptions) -> str | None:
    """The checkpoint that --resume-from-checkpoint names, or the newest complete one."""
    from ..training.checkpoints import last_complete_checkpoint, what_is_missing

    named = options.more.get("resume_from_checkpoint")
    if named is None or str(named).lower() == "true":
        return last_complete_checkpoint(output)
    fault = what_is_missing(Path(named)) if Path(named).is_dir() else "there is no such folder"
    if fault is not None:
        raise CommandError(
            f"--resume-from-checkpoint: {named!r} cannot be continued from, because {fault}: --resume takes the "
            "newest complete checkpoint of the output folder."
        )
    return str(named)


def build_trainer(job: Job, values: Mapping[str, Any]) -> LwALTrainer:
    """Return the trainer of a job; values the library refuses are a ``CommandError``."""
    import torch

    from ..bench.progress import show_accuracy
    from ..metrics import AccuracyAndF1
    from ..training.trainer import LwALTrainer

    values = {"dataloader_pin_memory": torch.accelerator.is_available(), **values}
    arguments = build_arguments(values)
    check_full_batches(arguments, len(job.rows.train), len(job.rows.validation))
    model = build_model(job.start, job.rows, job.embedding_dim, arguments.seed, arguments.lwal_pooling)
    part = job.start.processing_class
    fit_tokenizer(model, part, job.max_length)
    try:
        trainer = LwALTrainer(
            model=model,
            args=arguments,
            train_dataset=prepare_rows(job.rows.train, job.rows, part, job.max_length),
            eval_dataset=prepare_rows(job.rows.validation, job.rows, part, job.max_length, by_length=True),
            processing_class=part,
            compute_metrics=AccuracyAndF1(calibration=True),
        )
    except (ValueError, OSError) as error:  # OSError: --push-to-hub makes the repository now
        raise CommandError(" ".join(str(error).split())) from error
    show_accuracy(trainer)
    return trainer


def control_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """The training arguments of the control: the same budget and schedule, other labels, never pushed."""
    own = {name for name in values if name.startswith("lwal_") and name not in OF_THE_MODEL}
    own |= {"label_weight", "label_temperature", "label_lwr_every", "label_static_model", "resume_from_checkpoint"}
    same = {name: value for name, value in values.items() if name not in own}
    return {
        **same,
        "output_dir": str(Path(values["output_dir"]) / CONTROL),
        "label_method": "one_hot",
        "lwal_init": "class_means",
        "push_to_hub": False,
    }


def _train(trainer: LwALTrainer, job: Job, calibrate: bool = False, fit_rejection: bool = False) -> LwALTrainer:
    """Train to the end, from a checkpoint where that is wanted and there is one, and measure what was asked for."""
    import torch

    from ..training.checkpoints import last_complete_checkpoint

    output = trainer.args.output_dir
    checkpoint = job.checkpoint
    if Path(output) != job.output:  # the control has its own
        checkpoint = last_complete_checkpoint(output) if job.resume else None
    if checkpoint is not None and trainer.args.logging_steps == DEFAULTS["logging_steps"]:
        # As transformers stored it; it would warn that the share of our default is another number.
        trainer.args.logging_steps = logging_steps_of(checkpoint) or trainer.args.logging_steps
    if job.resume:
        note(f"Continuing from {checkpoint}." if checkpoint else f"No checkpoint in {output} yet: starting anew.")
    try:
        result = trainer.train(resume_from_checkpoint=checkpoint)
    except torch.OutOfMemoryError as error:
        raise CommandError(
            f"The device ran out of memory with --per-device-train-batch-size {trainer.args.train_batch_size}: halve "
            "it and double --gradient-accumulation-steps, which trains alike."
        ) from error
    if calibrate:
        _calibrate(trainer)
    if fit_rejection:
        _fit_rejection(trainer)
    trainer.save_model()
    trainer.save_state()
    trainer.save_metrics("train", result.metrics)
    return trainer


def _calibrate(trainer: LwALTrainer) -> None:
    """Fit the temperature on the validation rows; where there is none that fits, the trained model stays as it is."""
    model: Any = trainer.lwal_model
    try:
        with trainer.compute_loss_context_manager():
            temperature = model.calibrate(trainer.get_eval_dataloader(), progress=not trainer.args.disable_tqdm)
    except ValueError as error:
        say(f"Not calibrated: {error}")
        return
    trainer.compute_metrics.temperature = temperature
    trainer.save_metrics("calibration", {"temperature": temperature})


def _fit_rejection(trainer: LwALTrainer) -> None:
    """Measure radii on the validation rows; where that cannot be, the trained model stays as it is."""
    model: Any = trainer.lwal_model
    try:
        with trainer.compute_loss_context_manager():
            model.fit_rejection(trainer.get_eval_dataloader(), progress=not trainer.args.disable_tqdm)
    except ValueError as error:
        say(f"Not measured how far rows of a label lie from it: {error}")


def _introduction(job: Job) -> list[str]:
    """What is about to happen."""
    rows = job.rows
    test = f"{len(rows.test):,} to measure" if rows.test is not None else "none to measure (no test split)"
    text = f"{rows.columns.input!r}" + (f" and {rows.second!r}" if rows.second else "")
    return [
        f"Data: {rows.columns.kind} in {text}, {len(rows.names)} labels in {rows.columns.label!r}.",
        f"Rows: {len(rows.train):,} to train, {len(rows.validation):,} to choose the checkpoint, {test}.",
        f"Model: {job.start.title}. Output: {job.output}",
    ]


def _at_begin(options: TrainOptions, job: Job) -> TrainerCallback:
    """What writes the settings, and deletes old checkpoints, once the training is really about to begin.

    Until then, a training that is refused, for example since another one runs in the folder, leaves it as it is.
    """
    from transformers import TrainerCallback, TrainerState

    class AtBegin(TrainerCallback):
        def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
            if state.is_world_process_zero:
                if options.overwrite:
                    _forget_checkpoints(job.output)
                _write_settings(options, job)

    return AtBegin()


def _forget_checkpoints(output: Path) -> None:
    """Delete the checkpoints of an earlier training: a later --resume would continue from them."""
    for folder in (output, output / CONTROL):
        for path in folder.glob("checkpoint-*"):
            if re.fullmatch(r"checkpoint-\d+", path.name):
                shutil.rmtree(path)


def _write_settings(options: TrainOptions, job: Job) -> None:
    """Write ``train.yaml``: ``hf-lwal train`` with it, from the same folder, trains the same again."""
    import yaml

    own = {entry.name: getattr(options, entry.name) for entry in fields(options) if entry.metadata.get("flag", True)}
    settings = {name: _plain(value) for name, value in {**own, **job.values}.items() if value is not None}
    kept = {name: portable(value) if name in PATHS else value for name, value in settings.items()}
    kept = {name: value for name, value in kept.items() if name not in NOT_SETTINGS}
    job.output.mkdir(parents=True, exist_ok=True)
    write_text_atomically(job.output / SETTINGS, yaml.safe_dump(kept, sort_keys=False, allow_unicode=True))


def _plain(value: Any) -> Any:
    """A value as YAML knows it: some of transformers' are enumerations."""
    if isinstance(value, Enum):
        return value.value
    return [_plain(entry) for entry in value] if isinstance(value, list) else value


def portable(value: str) -> str:
    """A place on this machine as seen from the working folder, so that no file tells where a user keeps things.

    >>> portable("clinc150"), portable("rows.csv"), portable(os.path.abspath("data/rows.csv"))
    ('clinc150', 'rows.csv', 'data/rows.csv')
    """
    path = Path(value)
    if not path.is_absolute():
        return value
    home = Path.home()
    if path.is_relative_to(home) and not path.is_relative_to(Path.cwd()):
        return str(Path("~") / path.relative_to(home))
    return os.path.relpath(path)


def say(*lines: str) -> None:
    """Print lines, from the first process only."""
    if os.environ.get("RANK", "0") == "0":
        print(*map(harmless, lines), sep="\n", flush=True)
