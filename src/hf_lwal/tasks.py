"""What a stock model class classifies: texts, images or sounds."""

from __future__ import annotations

from typing import Any

from .heads import STOCK_CLASSES


def task_of_class(config: Any, class_name: str | None) -> str | None:
    """Task of a stock class, from the mapping that it is in: those for sounds are often …ForSequenceClassification.

    Args:
        config: native configuration of the model.
        class_name: of the model; decides where an architecture has classes for several tasks.

    Returns:
        "text", "image" or "audio"; None where transformers has no such class.
    """
    found = {
        task: stock._model_mapping[type(config)]
        for task, stock in STOCK_CLASSES.items()
        if type(config) in stock._model_mapping
    }
    for task, classes in found.items():
        if class_name in [one.__name__ for one in (classes if isinstance(classes, tuple) else (classes,))]:
            return task
    return next(iter(found)) if len(found) == 1 else None
