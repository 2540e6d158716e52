"""Find out what a classification data set holds: its splits, the column to read, the label column, label names.

Shared by the commands. Every mistake that a user can make here ends in a ``CommandError``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import CommandError
from . import EMBEDDED, load_embedded
from .columns import LABEL_COLUMNS, TEXT_COLUMNS, Columns, find_columns
from .folders import load_folder
from .label_names import encode_labels
from .media import ENDINGS, with_media
from .selection import stratified_indices
from .tables import COMPRESSED, FILES, Tell, ending, first_line, log_note, read_table

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

__all__ = [
    "FILES",
    "LABEL_COLUMNS",
    "TEXT_COLUMNS",
    "Columns",
    "encode_labels",
    "evaluation_split",
    "find_columns",
    "label_groups",
    "load_splits",
    "stratified_indices",
]

EVALUATION_SPLITS = ("test", "validation", "valid", "dev")
_FILE_LIKE = (*FILES, *COMPRESSED, *ENDINGS["image"], *ENDINGS["audio"], ".txt", ".xlsx", ".xls", ".zip", ".tar")


def load_splits(name: str, tell: Tell = log_note) -> DatasetDict:
    """Load the splits of an embedded data set, of a local file or folder, or of a data set on the Hub.

    Args:
        name: a key of ``EMBEDDED``, a data file (its rows are the split "train"), a folder of data files or of one
            folder of images or sounds per label, or a Hub id, with a configuration after a colon if it needs one.
        tell: takes notes on what was read otherwise than one might think.
    """
    if name in EMBEDDED:
        return load_embedded(name)
    from datasets import DatasetDict

    path = Path(name).expanduser()
    if path.is_file():
        return DatasetDict(train=with_media(read_table(path, tell), path.parent))
    loaded = load_folder(path, tell) if path.is_dir() else _from_hub(name)
    if "train" not in loaded:
        raise CommandError(f"Data set {name!r} has no split called 'train', only {', '.join(map(str, loaded))}.")
    return loaded


def _from_hub(name: str) -> DatasetDict:
    """Load a data set on the Hub; what looks like a path is not looked for there."""
    import datasets

    if ending(name) in _FILE_LIKE or name.count("/") > 1 or re.match(r"[./~\\]|[A-Za-z]:\\", name):
        raise CommandError(f"There is no file or folder {name!r}.")
    path, _, configuration = name.partition(":")
    try:
        loaded = datasets.load_dataset(path, configuration or None)
    except (OSError, ValueError, ImportError, datasets.exceptions.DatasetsError) as error:
        raise CommandError(
            f"Data set {name!r} is neither embedded ({', '.join(EMBEDDED)}) nor a file or folder here, and loading it "
            f"from the Hub failed: {first_line(error.__cause__ or error)}"
        ) from error
    for split, rows in loaded.items():
        for column, feature in rows.features.items():
            if isinstance(feature, datasets.Audio):  # decoded by this library, which needs no torchcodec for WAV
                loaded[split] = loaded[split].cast_column(column, datasets.Audio(decode=False))
    return loaded


def evaluation_split(splits: DatasetDict) -> Dataset:
    """Return the split to measure on: the test split, or a validation split if the test labels are withheld (-1)."""
    for name in EVALUATION_SPLITS:
        if name in splits and _is_labelled(splits[name]):
            return splits[name]
    raise CommandError(
        f"The data set has no labelled split to measure on: it needs one called {' or '.join(EVALUATION_SPLITS)}, "
        f"and has {', '.join(map(str, splits))}."
    )


def _is_labelled(dataset: Dataset) -> bool:
    """Whether every row has a label; withheld labels are -1 or missing."""
    return len(dataset) > 0 and all(label is not None and label >= 0 for label in dataset.unique("label"))


def label_groups(dataset: Dataset) -> list[str] | None:
    """Return for each label the group it belongs to, if another ClassLabel column groups the labels (a hierarchy).

    Args:
        dataset: rows with a "label" column and perhaps with a coarser one, such as a domain.

    Returns:
        C names of groups, or None when no column gives every label exactly one.
    """
    from datasets import ClassLabel

    num_labels = dataset.features["label"].num_classes
    for column, feature in dataset.features.items():
        if column != "label" and isinstance(feature, ClassLabel):
            group = groups_in(dataset, column)
            if group is not None and len(group) == num_labels > feature.num_classes:
                return [feature.int2str(group[label]) for label in range(num_labels)]
    return None


def groups_in(dataset: Dataset, column: str) -> dict[int, Any] | None:
    """The one value of a column that goes with each label; None where a label has several."""
    pairs = set(zip(dataset["label"][:], dataset[column][:], strict=True))
    return dict(pairs) if len(pairs) == len(dict(pairs)) else None
