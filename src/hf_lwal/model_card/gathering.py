"""Collects the facts of a card: from a trainer, from a model, or from a folder with a saved model."""

from __future__ import annotations

from dataclasses import fields, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..hierarchy.tree import neighbourhood
from ..modeling.algorithm import LabelSettings
from ..modeling.loading import readable_weights
from ..modeling.modeling_lwal import LwALPreTrainedModel
from ..modeling.tasks import TASKS, task_of_class
from .facts import CardFacts, LabelFacts, fill_in, read_facts
from .metadata import hub_id
from .training import history_of, read_state, test_of, times_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PACKAGES = {
    "hf-lwal": "hf-lwal",
    "Transformers": "transformers",
    "PyTorch": "torch",
    "Accelerate": "accelerate",
    "Datasets": "datasets",
    "Tokenizers": "tokenizers",
}
LONGEST_MODULES = 10_000
LABEL_ROWS = 12
CLOSEST_PAIRS = 5
NEIGHBOURS = 3
MOST_COMPARED = 5000
"""Labels of which all pairs are compared, in seconds; of more, the card's excerpt is compared with all the others."""
TABLE_SETTINGS = ("preset", "space", *(entry.name for entry in fields(LabelSettings) if entry.name != "preset"))


def facts_of_model(model: PreTrainedModel, name: str) -> CardFacts:
    """Facts about a model alone.

    Args:
        model: an LwAL model or a stock classifier.
        name: title of the card.
    """
    config: Any = model.config
    encoder = model.encoder if isinstance(model, LwALPreTrainedModel) else model
    base = config.name_or_path or getattr(getattr(config, "encoder_config", None), "name_or_path", None)
    return CardFacts(
        name=name,
        task=model.task if isinstance(model, LwALPreTrainedModel) else _task(config, type(model).__name__),
        num_labels=config.num_labels,
        method="lwal" if isinstance(model, LwALPreTrainedModel) else "one_hot",
        base_model=hub_id(base),
        base_revision=_revision(config),
        architecture=type(encoder).__name__,
        modules=modules if len(modules := repr(model)) < LONGEST_MODULES else None,
        parameters=model.num_parameters(),
        labels=label_facts(model) if isinstance(model, LwALPreTrainedModel) else None,
        versions=versions(),
    )


def facts_of_folder(folder: Path, **known: Any) -> tuple[CardFacts, PreTrainedModel]:
    """Facts about a saved model, with those of the card that lies beside it, and the model.

    Args:
        folder: holds config.json and weights; ``card_facts.json`` and ``trainer_state.json`` are read where they are.
        **known: fields of `CardFacts` that the caller knows better.

    Raises:
        ValueError: the folder holds no model that can be loaded.
    """
    if not (folder / "config.json").is_file():
        raise ValueError(f"The folder {str(folder)!r} has no config.json: give one that holds a saved model.")
    model = _load(folder)
    own = facts_of_model(model, folder.resolve().name)
    task = TASKS[own.task]
    processor = task.processor_class if (folder / task.processor_file).is_file() else None
    own = replace(own, processor=processor, folder=own.name)
    own = replace(own, base_model=None, tags=[])  # it was loaded from this folder
    before = read_facts(folder)
    if before is not None:
        fresh = ("num_labels", "labels", "parameters", "processor", "folder")
        own = replace(before, **{name: getattr(own, name) for name in fresh})
    state = read_state(folder)
    if state is not None and state["global_step"] > (own.last_step or 0):  # a later one than the facts know
        own = fill_in(own, **progress(state["log_history"], state["global_step"], None))
    return fill_in(own, **known), model


def progress(log: list[dict[str, Any]], last_step: int, best_step: int | None) -> dict[str, Any]:
    """Fields of `CardFacts` that come from a trainer's log.

    Args:
        log: ``state.log_history``.
        last_step: optimizer steps done.
        best_step: step whose weights were loaded again at the end, or None when the last ones are kept.
    """
    history = history_of(log, best_step)
    steps = [int(entry["step"]) for entry in history]
    return {
        "history": history,
        "measured_step": best_step if best_step in steps else max(steps, default=None),
        "last_step": last_step,
        "test": test_of(log),
        "keeps_best": best_step is not None and best_step in steps,
        **times_of(log),
    }


def versions(further: list[str] | tuple[str, ...] = ()) -> dict[str, str]:
    """Versions of Python and of the packages that are installed.

    Args:
        further: names of packages besides the usual ones.
    """
    import platform

    found = {"Python": platform.python_version()}
    for name, package in {**PACKAGES, **{name: name.lower() for name in further}}.items():
        try:
            found[name] = version(package)
        except PackageNotFoundError:
            if package == "hf-lwal":  # run from its source tree
                from .. import __version__

                found[name] = __version__
    return found


def _revision(config: Any) -> str | None:
    """Commit on the Hub that the weights came from; transformers records it."""
    commits = (getattr(part, "_commit_hash", None) for part in (config, getattr(config, "encoder_config", None)))
    return next((commit for commit in commits if commit), None)


def _load(folder: Path) -> PreTrainedModel:
    from transformers import AutoConfig

    from ..modeling.auto import AutoModelForLwALClassification
    from ..modeling.stored_files import read_json

    try:
        read_json(folder / "config.json")
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        if config.model_type == "lwal":
            model: PreTrainedModel = AutoModelForLwALClassification.from_pretrained(folder, trust_remote_code=False)
            return model
        task = _task(config, next(iter(config.architectures or ()), ""))
        with readable_weights(folder):
            return TASKS[task].stock.from_pretrained(folder, trust_remote_code=False)
    except (OSError, KeyError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"The model in {str(folder)!r} could not be loaded: {reason}") from error


def _task(config: Any, class_name: str) -> str:
    """Task of a stock class, or of one that only its name tells of, as someone's own."""
    named = next((task for task in ("image", "audio") if task in class_name.lower()), "text")
    return task_of_class(config, class_name) or named


def label_facts(model: Any) -> LabelFacts:
    """Facts about the label table of an LwAL model.

    Args:
        model: an `LwALPreTrainedModel`; its ``label_vectors`` are taken as they are.
    """
    table, config = model.label_table, model.config
    names = list(config.label_names.values())
    vectors, counts = table.label_vectors.detach().float().cpu(), table.counts.tolist()
    seen = [index for index, count in enumerate(counts) if count > 0]
    known = seen or list(range(len(names)))  # fixed label vectors count no rows
    facts = LabelFacts(
        total=len(names),
        embedding_dim=vectors.shape[1],
        scale=table.scale.item(),
        unseen=[name for name, count in zip(names, counts, strict=True) if count == 0] if seen else [],
        settings={name: getattr(config, name) for name in TABLE_SETTINGS},
    )
    if len(known) < 2 or not bool(vectors[known].isfinite().all()):
        return facts
    return _with_distances(facts, vectors[known].numpy(), [names[i] for i in known], [counts[i] for i in known])


def _with_distances(facts: LabelFacts, vectors: Any, names: list[str], counts: list[int]) -> LabelFacts:
    """Facts with an excerpt and what is near; of very many labels the excerpt alone is compared with all others."""
    excerpt = np.unique(np.linspace(0, len(names) - 1, min(LABEL_ROWS, len(names))).round().astype(int)).tolist()
    whole = len(names) <= MOST_COMPARED
    found = neighbourhood(vectors, max(NEIGHBOURS, CLOSEST_PAIRS), of=None if whole else excerpt)
    nearest = found.of(names)
    places = excerpt if whole else range(len(excerpt))
    closest = found.closest(CLOSEST_PAIRS) if whole else []
    return replace(
        facts,
        mean_distance=found.mean,
        rows=[
            (names[label], counts[label], nearest[place][:NEIGHBOURS])
            for label, place in zip(excerpt, places, strict=True)
        ],
        closest=[(names[one], names[other], far) for one, other, far in closest],
    )
