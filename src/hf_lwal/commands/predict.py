"""``hf-lwal predict``: labels and probabilities of texts, images or sounds, for people or as JSON lines."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..comparison import load_part, quiet
from ..data.sources import FILES, TEXT_COLUMNS, load_splits
from ..errors import CommandError
from ..flags import argument, option

STANDARD_INPUT = "-"
IMAGE_ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")


@dataclass(frozen=True)
class PredictOptions:
    """Print the likeliest label of texts, images or sounds with its probability.

    Takes any classifier of transformers, with a label table or without.
    """

    model: str = argument("folder or Hub name of the classifier")
    inputs: list[str] = option([], "texts, or paths of images, folders of images or sound files", positional=True)
    file: str | None = option(
        None,
        "rows to classify: txt (one text per line), csv, tsv, json, jsonl or parquet; - for lines of standard input",
    )
    text_column: str | None = option(None, "column of the file with the text or image; default: found by name")
    pair_column: str | None = option(None, "column of the file with the second text of a pair")
    top_k: int = option(1, "labels per input, likeliest first")
    batch_size: int = option(32, "inputs per forward pass")
    json: bool = option(False, "print one JSON object per input")

    def check(self) -> None:
        """Raise for values that cannot work, before the model is loaded."""
        for name in ("top_k", "batch_size"):
            if getattr(self, name) < 1:
                raise CommandError(f"--{name.replace('_', '-')} must be above 0, got {getattr(self, name)}.")
        if bool(self.inputs) == (self.file is not None):
            raise CommandError("Give what to classify: texts or paths after the model, or a file with --file.")
        if self.file not in (None, STANDARD_INPUT) and not Path(str(self.file)).is_file():
            raise CommandError(f"--file: there is no file {self.file!r}.")


@dataclass(frozen=True)
class _Task:
    """How transformers names a task, its model class, and what prepares its inputs."""

    pipeline: str
    model: str
    processing: str
    part: str


TASKS = {
    "text": _Task("text-classification", "AutoModelForSequenceClassification", "AutoTokenizer", "tokenizer"),
    "image": _Task("image-classification", "AutoModelForImageClassification", "AutoImageProcessor", "image_processor"),
    "audio": _Task(
        "audio-classification", "AutoModelForAudioClassification", "AutoFeatureExtractor", "feature_extractor"
    ),
}
"""Kind of input → what transformers calls the parts."""


def run(options: PredictOptions) -> int:
    """Classify and print; returns the exit code."""
    options.check()
    kind, classify = load(options.model)
    shown, inputs = read_inputs(options, kind)
    if not inputs:
        raise CommandError(f"{options.file or options.inputs!r} holds nothing to classify.")
    keywords: dict[str, Any] = {"top_k": options.top_k, "batch_size": options.batch_size}
    if kind == "text":
        keywords["truncation"] = True
    for number in range(0, len(inputs), options.batch_size):  # so that the first lines come at once
        end = number + options.batch_size
        for name, answers in zip(shown[number:end], classify(inputs[number:end], **keywords), strict=True):
            print(_as_json(name, answers) if options.json else _as_text(name, answers), flush=True)
    return 0


def load(name: str) -> tuple[str, Any]:
    """Load a classifier; returns the kind of its inputs and a pipeline.

    Args:
        name: folder or Hub name.
    """
    import transformers

    if Path(name).is_dir() and not (Path(name) / "config.json").exists():
        raise CommandError(f"The folder {name!r} has no config.json; give one that holds a saved model.")
    config = load_part(transformers.AutoConfig, name)
    kind = _kind(name, config)
    task = TASKS[kind]
    with quiet():
        model = load_part(getattr(transformers, task.model), name)
        part = load_part(getattr(transformers, task.processing), name)
        classify = transformers.pipeline(task.pipeline, model=model, **{task.part: part})
    return kind, classify


def _kind(name: str, config: Any) -> str:
    """Kind of input of a classifier, from the name of its class."""
    classes = config.architectures or []
    for kind, task in TASKS.items():
        if any(task.model.removeprefix("AutoModel") in architecture for architecture in classes):
            return kind
    raise CommandError(f"{name!r} is no classifier of texts, images or sounds: its class is {', '.join(classes)}.")


def read_inputs(options: PredictOptions, kind: str) -> tuple[list[str], list[Any]]:
    """What to print for each input, and what the pipeline takes."""
    if options.file is None:
        if kind == "text":
            return options.inputs, list(options.inputs)
        paths = [path for word in options.inputs for path in _files(Path(word), kind)]
        return paths, list(paths)
    if options.file == STANDARD_INPUT or Path(options.file).suffix.lower() not in FILES:
        lines = sys.stdin if options.file == STANDARD_INPUT else _lines(Path(options.file))
        texts = [line.rstrip("\r\n") for line in lines if line.strip()]
        return texts, list(texts)
    return _rows(options, kind)


def _lines(path: Path) -> Iterator[str]:
    try:
        yield from path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise CommandError(f"--file: {str(path)!r} is not a text file in UTF-8: {error}.") from error


def _files(path: Path, kind: str) -> list[str]:
    """A file, or the images of a folder in the order of their names."""
    if path.is_dir() and kind == "image":
        return [str(entry) for entry in sorted(path.rglob("*")) if entry.suffix.lower() in IMAGE_ENDINGS]
    if not path.is_file():
        raise CommandError(f"There is no file {str(path)!r}; this model classifies {kind} files.")
    return [str(path)]


def _rows(options: PredictOptions, kind: str) -> tuple[list[str], list[Any]]:
    """Inputs from the columns of a data file."""
    rows = load_splits(str(options.file))["train"]
    names = rows.column_names
    column = options.text_column or _guess(names, kind, str(options.file))
    for flag, wanted in (("--text-column", column), ("--pair-column", options.pair_column)):
        if wanted is not None and wanted not in names:
            raise CommandError(f"{flag}: there is no column {wanted!r}; the file has {', '.join(names)}.")
    values = rows[column][:]
    empty = [number for number, value in enumerate(values) if value is None]
    if empty:
        raise CommandError(f"Row {empty[0]} of {options.file!r} has nothing in column {column!r}; leave it out first.")
    if kind != "text":
        return [f"row {number}" for number in range(len(values))], values
    if options.pair_column is None:
        return list(map(str, values)), list(map(str, values))
    pairs = [
        {"text": str(first), "text_pair": str(second)}
        for first, second in zip(values, rows[options.pair_column][:], strict=True)
    ]
    return [f"{pair['text']} | {pair['text_pair']}" for pair in pairs], pairs


def _guess(names: Sequence[str], kind: str, file: str) -> str:
    known = [name for name in (*TEXT_COLUMNS, "image", "audio") if name in names]
    if known or len(names) == 1:
        return known[0] if known else names[0]
    raise CommandError(f"Which column of {file!r} holds the {kind}? Name it with --text-column: {', '.join(names)}.")


def _as_json(name: str, answers: Sequence[dict[str, Any]]) -> str:
    record = {"input": name, **answers[0]}
    return json.dumps(record if len(answers) == 1 else {**record, "top": answers}, ensure_ascii=False)


def _as_text(name: str, answers: Sequence[dict[str, Any]]) -> str:
    labels = ", ".join(f"{answer['label']} {answer['score']:.3f}" for answer in answers)
    return f"{labels}\t{' '.join(name.split())}"
