"""The card of an `LwALTrainer`'s model: its facts, what the caller adds to them, and the files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from .facts import CardFacts, fill_in
from .files import on_the_hub, write_card
from .gathering import facts_of_model, progress, versions
from .metadata import hub_id
from .provenance import hub_revision, hub_sources, sample_count
from .samples import Reader, answers, sample_rows, with_answers
from .training import settings_of, split_facts


def write_trainer_card(trainer: Any, known: Mapping[str, Any]) -> None:
    """Write the card of a trainer's model into its output folder; only the main process may call it.

    Args:
        trainer: an `LwALTrainer`.
        known: what the caller said, by the argument names of ``create_model_card``.
    """
    told = as_facts(known)
    if known.get("examples") and getattr(trainer.core_model, "task", None) == "text":
        texts = list(known["examples"]) if _can_be_asked(trainer) else []
        found = answers(trainer.core_model, texts, trainer.processing_class)
        told["examples"] = [(text, *answer) for text, answer in zip(texts, found, strict=False)]
    facts, files = with_samples(trainer, facts_of_trainer(trainer, **told), known)
    model = trainer.core_model
    vectors = None if facts.labels is None else model.label_table.label_vectors.detach().float().cpu()
    names = [] if facts.labels is None else list(model.config.label_names.values())
    repository = getattr(trainer, "hub_model_id", None)
    published = on_the_hub(repository, trainer.hub_revision, trainer.hub_token) if repository else None
    write_card(Path(trainer.args.output_dir), facts, vectors, names, published, files)


def with_samples(trainer: Any, facts: CardFacts, known: Mapping[str, Any]) -> tuple[CardFacts, dict[str, bytes]]:
    """Facts with rows of the trainer's data sets, and with answers to some where there are no other examples.

    Args:
        trainer: an `LwALTrainer`.
        facts: without samples.
        known: what the caller said. Without "samples" the training arguments' ``lwal_card_samples`` holds, and where
            that is None too, a few rows of data sets that anyone can see and none of others.

    Returns:
        The facts, and name to content of the files that the samples need.
    """
    asked = known.get("samples", getattr(trainer.args, "lwal_card_samples", None))
    reader = Reader(facts.task, trainer.core_model.config.id2label, trainer.processing_class)
    samples, files = {}, dict[str, bytes]()
    for part, dataset in (("training", trainer.train_dataset), ("evaluation", trainer.eval_dataset)):
        amount = sample_count(dataset, _told_ids(known)) if asked is None else asked
        samples[part], contents = sample_rows(dataset, part, amount, reader)
        files |= contents
    facts = facts.with_samples(**samples)
    if _can_be_asked(trainer):
        facts = with_answers(facts, trainer.core_model, trainer.processing_class, files)
    return facts, files


def as_facts(known: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of `CardFacts` from the arguments of ``create_model_card``."""
    ids, names = _told_ids(known), _list(known.get("dataset"))
    shown = [_without_folder(name) for name in names or ids]
    configs = _list(known.get("dataset_args"))
    return {
        "language": _list(known.get("language")),
        "license": known.get("license"),
        "tags": _list(known.get("tags")),
        "name": known.get("model_name"),
        "base_model": _without_folder(known["finetuned_from"]) if known.get("finetuned_from") else None,
        "dataset_id": ids[0] if ids else None,
        "dataset_name": ", ".join(shown) or None,
        "dataset_config": configs[0] if configs else None,
        "controls": {name: list(points) for name, points in (known.get("controls") or {}).items()},
        "control_tests": dict(known.get("control_tests") or {}),
        "command": known.get("command"),
    }


def _told_ids(known: Mapping[str, Any]) -> list[str]:
    """Ids of data sets on the Hub that the caller named, as such or by a name that can be nothing else."""
    names = _list(known.get("dataset"))
    return [*_list(known.get("dataset_tags")), *(name for name in names if "/" in name and hub_id(name))]


def _without_folder(name: str) -> str:
    """A name; of a local path only the last part, since folders are nobody's business but their owner's."""
    return Path(name).name if os.path.exists(name) or os.path.isabs(name) else name


def _list(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value or [])


def _can_be_asked(trainer: Any) -> bool:
    """Whether this process holds the whole model; over several ranks only one of them would call it."""
    return bool(trainer.args.world_size == 1)


def facts_of_trainer(trainer: Any, **known: Any) -> CardFacts:
    """Facts about the model of an `LwALTrainer` and its training.

    Args:
        trainer: trained or not.
        **known: fields of `CardFacts` that the caller knows better; None and empty ones are left out.
    """
    args, state, model = trainer.args, trainer.state, trainer.core_model
    name = Path(args.hub_model_id or args.output_dir).name or "model"
    settings, changed = settings_of(args)
    adapter = model is not trainer.accelerator.unwrap_model(trainer.model)
    best = getattr(state, "best_global_step", None) if args.load_best_model_at_end else None
    method = trainer.lwal_settings.label_method
    facts = replace(
        facts_of_model(model, name),
        method=method,
        method_citation=getattr(trainer.label_objective, "citation", None),
        adapter=adapter,
        folder=Path(args.output_dir).name,
        model_id=trainer.hub_model_id if getattr(trainer, "hub_model_id", None) else args.hub_model_id,
        processor=_class_that_loads(trainer.processing_class),
        max_length=_max_length(trainer.processing_class, model),
        train=split_facts(trainer.train_dataset, trainer.processing_class),
        evaluation=split_facts(trainer.eval_dataset, trainer.processing_class),
        settings=settings,
        changed=changed,
        hardware=_hardware(args),
        emissions=_emissions(trainer),
        temperature=_temperature(trainer.compute_metrics),
        versions=versions(["PEFT"] if adapter else []),
        tags=["generated_from_trainer"],
        **_dataset(trainer.train_dataset),
        **progress(state.log_history, state.global_step, best),
    )
    known = {**known, "tags": list(dict.fromkeys([*(known.get("tags") or []), *facts.tags]))}
    return fill_in(facts, **known)


def _class_that_loads(processing_class: Any) -> str | None:
    from transformers import FeatureExtractionMixin, PreTrainedTokenizerBase
    from transformers.image_processing_base import ImageProcessingMixin

    kinds = {
        PreTrainedTokenizerBase: "AutoTokenizer",
        ImageProcessingMixin: "AutoImageProcessor",
        FeatureExtractionMixin: "AutoFeatureExtractor",
    }
    return next((name for kind, name in kinds.items() if isinstance(processing_class, kind)), None)


def _max_length(processing_class: Any, model: Any) -> int | None:
    lengths = [getattr(processing_class, "model_max_length", None)]
    config = getattr(model.config, "encoder_config", model.config)
    lengths.append(getattr(config, "max_position_embeddings", None))
    known = [length for length in lengths if isinstance(length, int) and 0 < length < 10**7]
    return min(known, default=None) if processing_class is not None else None


def _dataset(dataset: Any) -> dict[str, Any]:
    """Id on the Hub, configuration and commit of a data set that was loaded from there, as its library records."""
    sources = hub_sources(dataset)
    if not sources:
        return {}
    name = sources[0].split("/")[-1]
    found = {"dataset_id": sources[0], "dataset_name": name, "dataset_config": dataset.info.config_name}
    return {**found, "dataset_revision": hub_revision(dataset)}


def _hardware(args: Any) -> str:
    import torch

    if args.device.type == "cuda":
        device = torch.cuda.get_device_name(args.device)
    elif args.device.type == "cpu":
        device = f"CPU, {torch.get_num_threads()} of {os.cpu_count()} threads"
    else:
        device = args.device.type
    return device if args.world_size == 1 else f"{args.world_size} processes, each {device}"


def _temperature(measured: Any) -> float | None:
    """What the logits were divided by, as the metrics know it."""
    found = getattr(measured, "temperature", 1.0)
    return None if found == 1.0 else float(found)


def _emissions(trainer: Any) -> dict[str, Any] | None:
    """What transformers' CodeCarbonCallback measured, in the units of the Hub (grams)."""
    trackers = [getattr(callback, "tracker", None) for callback in trainer.callback_handler.callbacks]
    data = next((getattr(tracker, "final_emissions_data", None) for tracker in trackers if tracker), None)
    if data is None:
        return None
    measured = {
        "emissions": 1000.0 * float(data.emissions),
        "energy_consumed": float(data.energy_consumed),
        "source": "codecarbon",
        "training_type": "fine-tuning",
        "hardware_used": data.gpu_model or data.cpu_model,
    }
    return {name: value for name, value in measured.items() if value is not None}
