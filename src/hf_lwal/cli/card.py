"""``hf-lwal card``: write a saved model's card anew."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import CommandError
from .flags import argument, option
from .writing import writing

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ..model_card import CardFacts, SplitFacts

SAMPLES = 3
"""Rows that ``--data`` without ``--samples`` shows."""


@dataclass(frozen=True)
class CardOptions:
    """Write the model card of a saved model anew; what you wrote into it stays."""

    folder: str = argument("folder with the saved model")
    name: str | None = option(None, "title of the card; default: the one it has, or the name of the folder")
    model_id: str | None = option(None, "id of the model on the Hub, for the snippets")
    base_model: str | None = option(None, "id on the Hub of the model that was fine-tuned")
    dataset: str | None = option(None, "id on the Hub, or name, of the data set it was trained on")
    license: str | None = option(None, "licence id of the Hub, such as apache-2.0")
    language: list[str] | None = option(None, "language codes, such as en")
    tags: list[str] | None = option(None, "further tags")
    samples: int | None = option(
        None, "rows of the training and the evaluation data to show, 0 for none; default: those the card shows already"
    )
    data: str | None = option(
        None,
        "where to take rows from that the card does not show yet: embedded data set (clinc150, fashion_mnist), file, "
        "folder or Hub name, as for `hf-lwal train`; three unless --samples says otherwise",
    )

    def check(self) -> None:
        """Raise for values that cannot work."""
        if not Path(self.folder).is_dir():
            raise CommandError(f"There is no folder {self.folder!r}: give the one that holds the saved model.")
        if self.samples is not None and self.samples < 0:
            raise CommandError(f"--samples must be 0 or more, got {self.samples}.")


def run(options: CardOptions) -> int:
    """Write the card and its pictures; returns the exit code."""
    from ..model_card import facts_of_folder, write_card
    from ..modeling.modeling_lwal import LwALPreTrainedModel

    options.check()
    folder = Path(options.folder)
    facts, model = facts_of_folder(
        folder,
        name=options.name,
        model_id=options.model_id,
        base_model=options.base_model,
        dataset_id=options.dataset if "/" in (options.dataset or "") else None,
        dataset_name=options.dataset,
        license=options.license,
        language=options.language,
        tags=options.tags,
    )
    facts, files = _with_samples(facts, model, options)
    vectors, names = None, []
    if isinstance(model, LwALPreTrainedModel):
        vectors, names = model.label_table.label_vectors.detach(), list(model.config.label_names.values())
    with writing(folder):
        write_card(folder, facts, vectors, names, files=files)
    print(f"Written: {folder / 'README.md'}")
    return 0


def _with_samples(
    facts: CardFacts, model: PreTrainedModel, options: CardOptions
) -> tuple[CardFacts, dict[str, bytes]]:
    """Facts with the rows that were asked for, and the files they need that are not in the folder yet."""
    if options.data is not None:
        amount = SAMPLES if options.samples is None else options.samples
        return _with_rows_of(options.data, amount, facts, model, Path(options.folder))
    if options.samples is None:
        return facts, {}
    if options.samples > 0 and not facts.samples:
        raise CommandError(
            f"--samples {options.samples}: the card of {options.folder!r} shows no rows yet, so say with --data where "
            "to take them from, as in --data clinc150."
        )
    kept = {name: split.samples[: options.samples] for name, split in facts.splits.items()}
    return facts.with_samples(**kept), {}


def _with_rows_of(
    data: str, amount: int, facts: CardFacts, model: PreTrainedModel, folder: Path
) -> tuple[CardFacts, dict[str, bytes]]:
    """Facts with rows of a data set, split as ``hf-lwal train`` splits it, and the model's answers to them."""
    import transformers

    from ..model_card import Reader, sample_rows, split_facts, with_answers
    from .train_data import load_rows

    rows = load_rows(data, seed=int(facts.settings.get("seed", 42)))
    validation = rows.test is None or (facts.evaluation is not None and facts.evaluation.split == "validation")
    reader = Reader(facts.task, dict(enumerate(rows.names)))
    splits = {"training": rows.train, "evaluation": rows.validation if validation else rows.test}
    samples, files = {}, dict[str, bytes]()
    for part, split in splits.items():
        samples[part], contents = sample_rows(split, part, amount, reader)
        files |= contents
    fresh = {part: split_facts(split) for part, split in splits.items()}
    facts = replace(
        facts,
        train=_completed(facts.train, fresh["training"]),
        evaluation=_completed(facts.evaluation, fresh["evaluation"]),
    )
    loader = getattr(transformers, facts.processor) if facts.processor else None
    processor = None if loader is None else loader.from_pretrained(folder, trust_remote_code=False)
    return with_answers(facts.with_samples(**samples), model, processor, files), files


def _completed(known: SplitFacts | None, fresh: SplitFacts | None) -> SplitFacts | None:
    """What the card knows of its rows, and the size of pictures, which earlier cards did not tell."""
    if known is None or fresh is None:
        return known or fresh
    return replace(known, pixels=known.pixels or fresh.pixels)
