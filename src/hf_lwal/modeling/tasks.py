"""What texts, images and sounds differ in, as one table; and which of them a stock model class classifies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Task:
    """One kind of input and the names that transformers has for what handles it.

    Attributes:
        name: "text", "image" or "audio".
        pipeline: task of a pipeline, which is also the tag on the Hub.
        auto_class: loads the stock classifiers.
        processor_class: loads what prepares the inputs.
        processor_argument: name that a pipeline has for it.
        processor_file: what it leaves in a folder when it is saved.
    """

    name: str
    pipeline: str
    auto_class: str
    processor_class: str
    processor_argument: str
    processor_file: str = "preprocessor_config.json"

    @property
    def stock(self) -> Any:
        """The Auto class of the stock classifiers."""
        import transformers  # at first use: importing its Auto classes imports this package's models

        return getattr(transformers, self.auto_class)

    @property
    def processor(self) -> Any:
        """The Auto class of tokenizers, image processors or feature extractors."""
        import transformers

        return getattr(transformers, self.processor_class)

    @property
    def suffix(self) -> str:
        """How the names of its model classes end."""
        return self.auto_class.removeprefix("AutoModel")

    @property
    def title(self) -> str:
        """The task in words, as headings have it."""
        return self.pipeline.capitalize().replace("-", " ")


_TEXT = Task(
    "text",
    "text-classification",
    "AutoModelForSequenceClassification",
    "AutoTokenizer",
    "tokenizer",
    "tokenizer_config.json",
)
_IMAGE = Task(
    "image", "image-classification", "AutoModelForImageClassification", "AutoImageProcessor", "image_processor"
)
_AUDIO = Task(
    "audio", "audio-classification", "AutoModelForAudioClassification", "AutoFeatureExtractor", "feature_extractor"
)
TASKS = {task.name: task for task in (_TEXT, _IMAGE, _AUDIO)}


def stock_classes(config: Any) -> dict[str, tuple[type, ...]]:
    """Tasks that an architecture has stock classifiers for, with their classes.

    Args:
        config: native configuration of the model.
    """
    found = {
        name: task.stock._model_mapping[type(config)]
        for name, task in TASKS.items()
        if type(config) in task.stock._model_mapping
    }
    return {name: classes if isinstance(classes, tuple) else (classes,) for name, classes in found.items()}


def task_of_class(config: Any, class_name: str | None) -> str | None:
    """Task of a stock class, from the mapping that it is in: those for sounds are often …ForSequenceClassification.

    Args:
        config: native configuration of the model.
        class_name: of the model; decides where an architecture has classes for several tasks.

    Returns:
        "text", "image" or "audio"; None where transformers has no such class.
    """
    found = stock_classes(config)
    named = (task for task, classes in found.items() if class_name in [one.__name__ for one in classes])
    return next(named, next(iter(found)) if len(found) == 1 else None)


def inferred_task(config: Any, task: str | None, class_name: str | None = None) -> str:
    """Task of a native configuration from its place in transformers' mappings.

    Args:
        config: native configuration.
        task: the user's choice, which wins when the architecture has it.
        class_name: name of the model class at hand; decides where several tasks are possible, as do the
            ``architectures`` of the configuration.

    Raises:
        ValueError: unknown task, none that fits, or several.
    """
    if task is not None and task not in TASKS:
        raise ValueError(f"Unknown task {task!r}: choose one of {', '.join(TASKS)}.")
    possible = list(stock_classes(config))
    if not possible:
        raise ValueError(
            f"transformers has no text, image or audio classifier for {type(config).__name__} "
            f"(model_type {config.model_type!r}): use an architecture with a ...For...Classification class."
        )
    if task is not None:
        if task not in possible:
            raise ValueError(f"{type(config).__name__} has no {task} classifier; task can be {' or '.join(possible)}.")
        return task
    if len(possible) > 1:
        named = [class_name] if class_name else (config.architectures or [])
        exact = [t for t in possible if any(TASKS[t].suffix in name for name in named)]
        possible = exact or possible
    if len(possible) > 1:
        raise ValueError(
            f"{type(config).__name__} can classify {' and '.join(possible)}: pass task={possible[0]!r} or "
            f"task={possible[1]!r}."
        )
    return possible[0]
