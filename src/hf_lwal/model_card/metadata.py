"""The YAML block of a card: what the Hub searches, shows and lists as results."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from typing import Any

from huggingface_hub import EvalResult, ModelCardData
from huggingface_hub.errors import HFValidationError
from huggingface_hub.repocard_data import eval_results_to_model_index
from huggingface_hub.utils._validators import validate_repo_id

from ..modeling.tasks import TASKS
from .facts import CardFacts
from .samples import FILE_NAME
from .text import visible

METRICS = {
    "accuracy": ("accuracy", "Accuracy"),
    "f1_macro": ("f1", "Macro-F1"),
    "f1": ("f1", "F1"),
    "precision": ("precision", "Precision"),
    "recall": ("recall", "Recall"),
    "calibration_error": ("calibration_error", "Expected calibration error"),
    "calibration_error_before": ("calibration_error", "Expected calibration error before calibration"),
}
"""Name in the trainer's log → (id on the Hub, name for people); others keep their name."""

SAMPLE = "Sample"
"""How titles of widget examples begin that are rows of the data set."""
NOT_METRICS = ("step", "epoch", "train_loss", "loss", "runtime", "samples_per_second", "steps_per_second")
OURS = ("tags", "library_name", "pipeline_tag", "base_model", "datasets", "metrics", "model-index", "widget")


def hub_id(name: str | None) -> str | None:
    """A name that can be an id on the Hub and is no local path, or None: the Hub refuses cards with others."""
    if not name or not re.search("[A-Za-z0-9]", name) or os.path.exists(name):
        return None
    try:
        validate_repo_id(name)
    except HFValidationError:
        return None
    return name


def metrics_of(entry: Mapping[str, float]) -> dict[str, float]:
    """The metrics of a measurement, without the loss, whose meaning moves with the label vectors."""
    return {name: value for name, value in entry.items() if name not in NOT_METRICS and not name.endswith("_loss")}


FOUND_BY = ("lwal", "hf-lwal")
"""Tags by which the Hub finds models of this library, which a card always has."""
SAID_BY_CALLERS = ("language", "license", "base_model", "datasets")
"""Keys whose new value wins over a person's where it differs from the one written last: someone has said it since."""


def card_metadata(facts: CardFacts, old: Mapping[str, Any], before: Mapping[str, Any] | None = None) -> ModelCardData:
    """Metadata of a card.

    Args:
        facts: what is known.
        old: metadata of the card before. What a person has added to it stays; of what is written here, tags are
            joined, and base model, data sets, licence and language stay where the facts do not know better.
        before: what was written here last; with it, what a person has changed stays too.
    """
    results = _results(facts)
    datasets = [facts.dataset_id] if hub_id(facts.dataset_id) else _as_list(old.get("datasets"))
    values: dict[str, Any] = {
        "language": [visible(code) for code in facts.language] or old.get("language"),
        "license": visible(facts.license) if facts.license else old.get("license"),
        "library_name": "peft" if facts.adapter else "transformers",
        "pipeline_tag": TASKS[facts.task].pipeline,
        "tags": list(dict.fromkeys([*_tags(facts), *_as_list(old.get("tags"))])),
        "base_model": hub_id(facts.base_model) or _ids(old.get("base_model")),
        "datasets": [name for name in datasets if hub_id(name)] or None,
        "metrics": list(dict.fromkeys(result.metric_type for result in results)) or old.get("metrics"),
        "widget": _widget(facts) or _without_samples(old.get("widget")) or None,
        "co2_eq_emissions": _emissions(facts) or old.get("co2_eq_emissions"),
    }
    if before is not None:
        values |= _changed_by_people({**values, "tags": _tags(facts)}, old, before)
    own = {str(key): value for key, value in old.items() if key not in values and key not in OURS}
    data = ModelCardData(**{key: value for key, value in {**values, **own}.items() if value is not None})
    written = _old_results((before or {}).get("model-index"))
    added = [result for result in _old_results(old.get("model-index")) if result not in written]
    index = _merged_index(facts, results, added)
    if index:
        data["model-index"] = index
    return data


def _changed_by_people(values: Mapping[str, Any], old: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """Values of the card before that differ from what was written into it, and that nobody has said anew."""
    usable = {
        "base_model": _ids,
        "datasets": lambda value: [name for name in _as_list(value) if hub_id(name)],
        "widget": _without_samples,
    }
    kept: dict[str, Any] = {}
    for key in values:
        if key == "tags" or key not in old or _as_values(old[key]) == _as_values(before.get(key)):
            continue
        if key not in SAID_BY_CALLERS or _as_values(values[key]) in ([], _as_values(before.get(key))):
            kept[key] = usable[key](old[key]) if key in usable else old[key]
    kept = {key: value for key, value in kept.items() if value not in (None, [])}
    if "tags" in old:
        theirs, written = _as_list(old["tags"]), _as_list(before.get("tags"))
        removed = [tag for tag in written if tag not in theirs and tag not in FOUND_BY]
        added = [tag for tag in theirs if tag not in written]
        kept["tags"] = list(dict.fromkeys([*(tag for tag in values["tags"] if tag not in removed), *added]))
    return kept


def _as_values(value: Any) -> list[Any]:
    """One value and a list of it mean the same, None means nothing."""
    return [] if value is None else value if isinstance(value, list) else [value]


def _widget(facts: CardFacts) -> list[dict[str, str]]:
    """Inputs that the Hub's widget offers; a picture or sound by its address, once there is one."""
    if facts.task == "text":
        samples = {sample.input: number for number, sample in enumerate(facts.samples, start=1)}
        return [
            {"text": visible(text, 500), **({"example_title": f"{SAMPLE} {samples[text]}"} if text in samples else {})}
            for text, _, _ in facts.examples
        ]
    if not facts.model_id:
        return []
    address = f"https://huggingface.co/{facts.model_id}/resolve/main"
    return [
        {"src": f"{address}/{name}", "example_title": f"{SAMPLE} {number}"}
        for number, (name, _, _) in enumerate(facts.examples, start=1)
    ]


def _without_samples(widget: Any) -> list[Any]:
    """Widget of the card before without rows that it showed then, which may have been taken back since."""
    if not isinstance(widget, list):
        return []
    return [
        entry
        for entry in widget
        if not isinstance(entry, dict)
        or not str(entry.get("example_title", "")).startswith(f"{SAMPLE} ")
        or not ("text" in entry or FILE_NAME.search(str(entry.get("src", ""))))
    ]


def _emissions(facts: CardFacts) -> dict[str, Any]:
    return {
        name: visible(value) if isinstance(value, str) else value for name, value in (facts.emissions or {}).items()
    }


def _tags(facts: CardFacts) -> list[str]:
    method = [] if facts.labels is None else ["lwal"]
    size = [f"dataset_size:{facts.train.rows}"] if facts.train is not None and facts.train.rows else []
    return [*method, "hf-lwal", *size, *(visible(tag) for tag in facts.tags)]


def _as_list(value: Any) -> list[str]:
    values = value if isinstance(value, list) else [value]
    return [item for item in values if isinstance(item, str)]


def _ids(value: Any) -> list[str] | str | None:
    ids = [name for name in _as_list(value) if hub_id(name)]
    return ids[0] if len(ids) == 1 else ids or None


def _results(facts: CardFacts) -> list[EvalResult]:
    split = facts.evaluation.split if facts.evaluation else None
    measured = [(facts.measured, "validation" if facts.test and split in (None, "test") else split)]
    measured += [(facts.test, "test")] if facts.test else []
    return [
        _result(facts, name, value, split)
        for entry, split in measured
        for name, value in metrics_of(entry).items()
        if math.isfinite(value) and not name.endswith("_before")  # YAML's .nan and .inf are no numbers to the Hub
    ]


def _result(facts: CardFacts, name: str, value: float, split: str | None) -> EvalResult:
    dataset = facts.dataset_name or facts.dataset_id
    metric, title = METRICS.get(name, (visible(name), visible(name)))
    return EvalResult(
        task_type=TASKS[facts.task].pipeline,
        task_name=TASKS[facts.task].title,
        dataset_type=hub_id(facts.dataset_id) or "unknown",  # the Hub wants a type and a name
        dataset_name=visible(dataset) if dataset else "Unknown",
        dataset_config=visible(facts.dataset_config) if facts.dataset_config else None,
        dataset_split=visible(split) if split else None,
        metric_type=metric,
        metric_name=title,
        metric_value=round(float(value), 4),
    )


def _merged_index(
    facts: CardFacts, results: list[EvalResult], old: list[dict[str, Any]]
) -> list[dict[str, Any]] | None:
    """``model-index`` with the new results, and the old ones on other data sets, which people have added."""
    new: list[dict[str, Any]] = []
    if results:
        new = eval_results_to_model_index(visible(facts.name), results)[0]["results"]
    seen = [_measured_on(result) for result in new]
    kept = [result for result in old if _measured_on(result) not in seen]
    return [{"name": visible(facts.name), "results": [*new, *kept]}] if new or kept else None


def _old_results(index: Any) -> list[dict[str, Any]]:
    models = index if isinstance(index, list) else []
    lists = [model.get("results") for model in models if isinstance(model, dict)]
    return [result for results in lists if isinstance(results, list) for result in results if isinstance(result, dict)]


def _measured_on(result: Mapping[str, Any]) -> tuple[Any, ...]:
    dataset = result.get("dataset")
    dataset = dataset if isinstance(dataset, dict) else {}
    return (dataset.get("type"), dataset.get("name"), dataset.get("config"), dataset.get("split"))
