"""What a model card is written from: plain values, which also travel as ``card_facts.json``."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from ..modeling.tasks import TASKS

logger = logging.getLogger(__name__)

FACTS_FILE = "card_facts.json"


@dataclass(frozen=True)
class LabelFacts:
    """What the label table says about the labels.

    Attributes:
        total: C, how many labels there are.
        embedding_dim: D, the dimension of the label vectors.
        scale: s in ``softmax(-s * distance)``.
        mean_distance: between two labels, of very many over the pairs of the excerpt; None where label vectors are
            not finite.
        rows: an excerpt: name, rows behind the class mean, nearest labels as (name, distance).
        closest: the pairs of labels that lie closest together: two names and their distance; none of very many
            labels.
        unseen: names of labels that no training row had.
        settings: what the table is made of, name to value.
    """

    total: int
    embedding_dim: int
    scale: float
    mean_distance: float | None = None
    rows: list[tuple[str, int, list[tuple[str, float]]]] = field(default_factory=list)
    closest: list[tuple[str, str, float]] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Sample:
    """A row that the card shows.

    Attributes:
        label: name of its label.
        texts: name of a column to its text, cut to a length that a table can hold.
        file: picture or sound that lies beside the card.
    """

    label: str
    texts: dict[str, str] = field(default_factory=dict)
    file: str | None = None

    @property
    def input(self) -> str | None:
        """What a model can be asked: the file or the only text; None for a pair of texts."""
        return self.file or (next(iter(self.texts.values())) if len(self.texts) == 1 else None)


@dataclass(frozen=True)
class SplitFacts:
    """Rows that a model was trained or measured on.

    Attributes:
        rows: how many; None for a stream.
        columns: names of the columns.
        types: name of a column to what it holds, of those where that is known.
        per_label: fewest, median and most rows of a label; None when the labels are not known.
        tokens: fewest, mean and most tokens of a row, over the first thousand; None without ``input_ids``.
        split: name of the split, if the data set knows it.
        pixels: smallest, mean and largest width and height of the first hundred pictures.
        seconds: shortest, mean and longest of the first hundred sounds.
        samples: rows to show.
    """

    rows: int | None = None
    columns: list[str] = field(default_factory=list)
    per_label: tuple[int, float, int] | None = None
    tokens: tuple[int, float, int] | None = None
    split: str | None = None
    pixels: list[tuple[int, int]] | None = None
    seconds: tuple[float, float, float] | None = None
    types: dict[str, str] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)


@dataclass(frozen=True)
class CardFacts:
    """Everything a card says. Only ``name``, ``task`` and ``num_labels`` must be known.

    Attributes:
        name: title.
        task: "text", "image" or "audio".
        num_labels: C.
        method: key of the label-learning method.
        method_citation: where a method other than lwal comes from.
        model_id: id on the Hub, if it is known.
        folder: name of the folder with the model, for snippets as long as there is no id.
        base_model: id on the Hub of the model that was fine-tuned; None for one trained from scratch or unknown.
        base_revision: commit of the base model.
        architecture: class name of the encoder.
        modules: all modules of the model, as PyTorch prints them.
        parameters: how many the model has.
        max_length: tokens that the model can read.
        processor: "AutoTokenizer", "AutoImageProcessor" or "AutoFeatureExtractor", whichever is saved with it.
        adapter: whether it is a PEFT adapter.
        labels: the label table; None for a stock model.
        dataset_name: for people.
        dataset_id: id on the Hub.
        dataset_config: its configuration.
        dataset_revision: its commit.
        train: the training rows.
        evaluation: the rows it was measured on.
        history: measurements in the order of the steps: "step", "epoch", "train_loss", and metrics without prefix.
        test: metrics of the saved weights on test rows, which no choice was made by.
        measured_step: step of the measurement that belongs to the saved weights.
        last_step: optimizer steps of the whole training.
        temperature: what the logits were divided by after training, fitted on the evaluation rows; None for nothing.
        keeps_best: whether the saved weights are the best ones and not the last ones.
        controls: name of a control to its curve: (step, accuracy between 0 and 1).
        control_tests: name of a control to its accuracy on the test rows.
        settings: training arguments that shape the weights, name to value.
        changed: those of them that differ from their default.
        start_rows: rows of the start pass.
        start_seconds: what it took.
        train_seconds: training without evaluations and start pass.
        evaluation_seconds: evaluations during training.
        hardware: device and number of processes.
        emissions: as codecarbon measured them, keys of the Hub's ``co2_eq_emissions``.
        command: command that reproduces the model.
        examples: inputs and what the model answers: (text or name of a file, label, probability).
        versions: of Python and packages.
        language: language codes.
        license: licence id of the Hub.
        tags: further tags.
        pictures: pictures that lie beside the card.
    """

    name: str
    task: str
    num_labels: int
    method: str = "lwal"
    method_citation: str | None = None
    model_id: str | None = None
    folder: str | None = None
    base_model: str | None = None
    base_revision: str | None = None
    architecture: str | None = None
    modules: str | None = None
    parameters: int | None = None
    max_length: int | None = None
    processor: str | None = None
    adapter: bool = False
    labels: LabelFacts | None = None
    dataset_name: str | None = None
    dataset_id: str | None = None
    dataset_config: str | None = None
    dataset_revision: str | None = None
    train: SplitFacts | None = None
    evaluation: SplitFacts | None = None
    history: list[dict[str, float]] = field(default_factory=list)
    test: dict[str, float] = field(default_factory=dict)
    measured_step: int | None = None
    last_step: int | None = None
    temperature: float | None = None
    keeps_best: bool = False
    controls: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    control_tests: dict[str, float] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    changed: list[str] = field(default_factory=list)
    start_rows: int | None = None
    start_seconds: float | None = None
    train_seconds: float | None = None
    evaluation_seconds: float | None = None
    hardware: str | None = None
    emissions: dict[str, Any] | None = None
    command: str | None = None
    examples: list[tuple[str, str, float]] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    language: list[str] = field(default_factory=list)
    license: str | None = None
    tags: list[str] = field(default_factory=list)
    pictures: list[str] = field(default_factory=list)

    @property
    def measured(self) -> dict[str, float]:
        """The measurement that belongs to the saved weights; empty without one."""
        at_step = [entry for entry in self.history if entry.get("step") == self.measured_step]
        return at_step[-1] if at_step else {}

    @property
    def splits(self) -> dict[str, SplitFacts]:
        """Training and evaluation rows, those that are known."""
        both = {"training": self.train, "evaluation": self.evaluation}
        return {name: split for name, split in both.items() if split is not None}

    @property
    def samples(self) -> list[Sample]:
        """All rows that the card shows; those of the evaluation, which the model has not learned, come first."""
        return [sample for split in reversed(list(self.splits.values())) for sample in split.samples]

    def with_samples(self, **samples: list[Sample]) -> CardFacts:
        """Facts with other sample rows, and without answers to rows that are no longer shown.

        Args:
            **samples: "training" or "evaluation" to its rows; those of the other stay.
        """
        before = {sample.input for sample in self.samples}
        changed = {
            name: replace(split, samples=samples.get(name, split.samples)) for name, split in self.splits.items()
        }
        facts = replace(self, train=changed.get("training"), evaluation=changed.get("evaluation"))
        gone = before - {sample.input for sample in facts.samples}
        return replace(facts, examples=[example for example in facts.examples if example[0] not in gone])

    def to_json(self, **more: Any) -> str:
        """The facts as JSON.

        Args:
            **more: further keys, which `from_json` leaves out.
        """
        return json.dumps({**asdict(self), **more}, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> CardFacts:
        """Facts from JSON; keys of a later version are left out.

        Raises:
            ValueError: not JSON, or not facts.
        """
        try:
            facts: CardFacts = _read(cls, json.loads(text))
        except (TypeError, RecursionError) as error:
            raise ValueError(f"These are not the facts of a model card: {error}") from error
        if facts.task not in TASKS:
            raise ValueError(f"These are not the facts of a model card: task is {facts.task!r}.")
        return facts if facts.processor in (None, *PROCESSORS) else replace(facts, processor=None)


PROCESSORS = tuple(task.processor_class for task in TASKS.values())
"""Classes that a snippet may import."""


def _read(kind: type[Any], value: Any) -> Any:
    """An object of a dataclass from what JSON holds; values of another type than theirs are left out.

    Raises:
        TypeError: a field without default is missing.
    """
    if not isinstance(value, dict):
        raise TypeError(f"{kind.__name__} is {type(value).__name__}.")
    hints = get_type_hints(kind)
    read: dict[str, Any] = {}
    for name in (entry.name for entry in fields(kind) if entry.name in value):
        try:
            read[name] = _typed(hints[name], value[name])
        except TypeError:
            logger.warning("%s: %r is no %s of a model card, and is left out.", FACTS_FILE, value[name], name)
    return kind(**read)


def _typed(hint: Any, value: Any) -> Any:
    """A value from JSON as a type hint wants it.

    Raises:
        TypeError: it is something else.
    """
    parts = get_args(hint)
    origin = get_origin(hint)
    if origin is UnionType:
        return None if value is None else _typed(next(part for part in parts if part is not NoneType), value)
    if hint is Any:
        return value
    if is_dataclass(hint):
        return _read(hint, value)  # type: ignore[arg-type]
    if origin is list and isinstance(value, list):
        return [_typed(parts[0], item) for item in value]
    if origin is tuple and isinstance(value, list) and len(value) == len(parts):
        return tuple(_typed(part, item) for part, item in zip(parts, value, strict=True))
    if origin is dict and isinstance(value, dict):
        return {key: _typed(parts[1], item) for key, item in value.items()}
    allowed = (int, float) if hint is float else (hint,)
    if origin is not None or type(value) not in allowed:
        raise TypeError
    return value


def read_facts(folder: Path) -> CardFacts | None:
    """The facts that lie in a folder, or None when there are none that can be read."""
    path = folder / FACTS_FILE
    if not path.is_file():
        return None
    try:
        return CardFacts.from_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        logger.warning("%s is not used for the card: %s", path, " ".join(str(error).split()))
        return None


def fill_in(facts: CardFacts, **values: Any) -> CardFacts:
    """Facts with those of ``values`` that are not None and not empty."""
    return replace(facts, **{name: value for name, value in values.items() if value not in (None, [], {}, ())})
