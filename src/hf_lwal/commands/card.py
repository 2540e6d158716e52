"""``hf-lwal card``: write a saved model's card anew."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..errors import CommandError
from ..flags import argument, option


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


def run(options: CardOptions) -> int:
    """Write the card and its pictures; returns the exit code."""
    from ..model_card import facts_of_folder, write_card
    from ..modeling_lwal import LwALPreTrainedModel

    folder = Path(options.folder)
    if not folder.is_dir():
        raise CommandError(f"There is no folder {options.folder!r}: give the one that holds the saved model.")
    try:
        facts, model = facts_of_folder(folder, **_known(options))
    except ValueError as error:
        raise CommandError(str(error)) from error
    vectors, names = None, []
    if isinstance(model, LwALPreTrainedModel):
        vectors, names = model.label_table.label_vectors.detach(), list(model.config.label_names.values())
    write_card(folder, facts, vectors, names)
    print(f"Written: {folder / 'README.md'}")
    return 0


def _known(options: CardOptions) -> dict[str, object]:
    is_id = options.dataset is not None and "/" in options.dataset
    return {
        "name": options.name,
        "model_id": options.model_id,
        "base_model": options.base_model,
        "dataset_id": options.dataset if is_id else None,
        "dataset_name": options.dataset,
        "license": options.license,
        "language": options.language,
        "tags": options.tags,
    }
