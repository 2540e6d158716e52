"""What ``hf-lwal hierarchy`` looks at: label vectors of a model or a table, and groups of the labels."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..bench.comparison import attach_images, load_part, load_processing_class, tokenize
from ..data.sources import encode_labels, find_columns, groups_in, load_splits
from ..data.usable import usable
from ..errors import CommandError
from ..modeling.tasks import TASKS
from .flags import argument, check_above_0, option
from .writing import check_output_folder

if TYPE_CHECKING:
    from datasets import Dataset

    from ..data.sources import Columns

MAX_TOKENS = 128
"""Tokens of a text beyond this number are cut off where class means are taken."""


@dataclass(frozen=True)
class HierarchyOptions:
    """Draw what a model learned about its labels, and compare it with WordNet or with known groups.

    Writes dendrogram, heat map, map, nearest labels and, where asked, how well a reference agrees.
    """

    model: str = argument(
        "folder or Hub name of a classifier, or a CSV file: label, optionally group, one column per dimension"
    )
    output: str = option("lwal-hierarchy", "folder for the pictures and tables")
    metric: Literal["euclidean", "cosine"] = option("euclidean", "distance between label vectors")
    reference: Literal["wordnet", "groups"] | None = option(
        None, "what to compare with: distances in WordNet, or groups of the labels"
    )
    wordnet: str | None = option(None, "folder or tar archive with WordNet's files; default: nltk's corpus")
    senses: str | None = option(
        None, "WordNet senses: awa2, cifar10, cifar100, fashion_mnist or a JSON file; default: first noun sense"
    )
    dataset: str | None = option(
        None, "data set with groups of the labels, and with rows where the model has no label table"
    )
    group_column: str | None = option(None, "column of the data set with the group of each label")
    text_column: str | None = option(None, "column with the text or image; default: found by name and type")
    label_column: str | None = option(None, "column with the label; default: found by name and type")
    samples_per_label: int = option(50, "rows per label for class means, where the model has no label table")
    top_k: int = option(5, "nearest labels to list for each label")
    format: Literal["png", "svg", "pdf"] = option("png", "kind of the pictures")

    def check(self) -> None:
        """Raise for options that cannot work, before anything is loaded."""
        check_above_0(self, "samples_per_label", "top_k")
        if (self.wordnet or self.senses) and self.reference != "wordnet":
            raise CommandError("--wordnet and --senses belong to a comparison: add --reference wordnet.")
        if self.group_column and not self.dataset:
            raise CommandError("--group-column is a column of a data set: name it with --dataset.")
        check_output_folder(self.output)


@dataclass(frozen=True)
class Labels:
    """Label vectors (C, D) float64 with the C names and, where known, groups.

    Attributes:
        names: the labels.
        vectors: (C, D), all finite.
        groups: for each label its group or None; None as a whole where no groups are known.
        source: what the vectors are, for people.
        missing: labels without a vector, which are left out of everything.
    """

    names: list[str]
    vectors: NDArray[np.float64]
    groups: list[str | None] | None
    source: str
    missing: tuple[str, ...] = ()


def read_labels(options: HierarchyOptions) -> Labels:
    """Read a table file, or load a model; then leave out labels without a vector and look up groups."""
    path = Path(options.model)
    labels = read_table(path) if path.suffix.lower() == ".csv" else _of_model(options)
    if options.group_column is not None and options.dataset is not None:
        labels = replace(labels, groups=_groups(options, labels.names))
    present = np.asarray(np.isfinite(labels.vectors).all(axis=1))  # (C,)
    kept = np.flatnonzero(present).tolist()
    if len(kept) < 2:
        raise CommandError(f"{options.model!r} has {len(kept)} labels with a vector, but a hierarchy needs 2.")
    return Labels(
        names=[labels.names[index] for index in kept],
        vectors=labels.vectors[kept],
        groups=labels.groups and [labels.groups[index] for index in kept],
        source=labels.source,
        missing=tuple(name for name, there in zip(labels.names, present, strict=True) if not there),
    )


def read_table(path: Path) -> Labels:
    """Read label vectors from a CSV file with a header: label, optionally group, and one column per dimension."""
    if not path.is_file():
        raise CommandError(f"There is no file {str(path)!r}.")
    with path.open(encoding="utf-8", newline="") as file:
        header, *rows = [row for row in csv.reader(file) if row] or [[]]
    first = 2 if len(header) > 1 and header[1] == "group" else 1
    if not header or header[0] != "label" or len(header) <= first or not rows:
        raise CommandError(
            f"{str(path)!r} must start with a header whose first column is `label`, then optionally `group`, then one "
            "column per dimension; and hold one row per label."
        )
    vectors = np.asarray([_numbers(row, first, len(header), str(path)) for row in rows])
    groups = [row[1] or None for row in rows] if first == 2 else None
    return Labels([row[0] for row in rows], vectors, groups, "label vectors of the file")


def _numbers(row: Sequence[str], first: int, columns: int, path: str) -> list[float]:
    try:
        if len(row) != columns:
            raise ValueError
        return [float(value) for value in row[first:]]
    except ValueError as error:
        raise CommandError(f"{path!r}: the row of {row[0]!r} does not hold {columns - first} numbers.") from error


def _of_model(options: HierarchyOptions) -> Labels:
    """Label vectors of a model with a table, or class means of a stock classifier."""
    from transformers import AutoConfig

    from ..hierarchy.label_vectors import label_vectors
    from ..modeling.auto import AutoModelForLwALClassification

    config = load_part(AutoConfig, options.model)
    if config.model_type == "lwal":
        model = load_part(AutoModelForLwALClassification, options.model)
        return Labels(_names(model), label_vectors(model).double().numpy(), None, "label table")
    if options.dataset is None:
        raise CommandError(
            f"{options.model!r} has no label table: name its training data with --dataset, and class means of the "
            "features that it classifies stand for its labels."
        )
    return _class_means(options)


def _names(model: Any) -> list[str]:
    names = model.config.id2label
    return [names[index] for index in range(len(names))]


def _class_means(options: HierarchyOptions) -> Labels:
    """Class means of a stock classifier over some rows of each label."""
    import torch
    from transformers import DataCollatorWithPadding, default_data_collator

    from ..data.labels import rows_per_class
    from ..hierarchy.label_vectors import label_vectors

    rows, columns = _training_rows(options)
    model = load_part(TASKS[columns.kind].stock, options.model)
    names = _names(model)
    rows = _in_model_order(rows, names)
    rows = rows.select(rows_per_class(np.asarray(rows["label"][:]), options.samples_per_label, seed=0))
    processing = load_processing_class(options.model, columns.kind)
    ready = (tokenize if columns.kind == "text" else attach_images)(rows, columns.input, processing, MAX_TOKENS)
    collate: Any = DataCollatorWithPadding(processing) if columns.kind == "text" else default_data_collator
    loader = torch.utils.data.DataLoader(ready, batch_size=32, collate_fn=collate)
    vectors = label_vectors(model, loader).double().numpy()
    return Labels(names, vectors, None, f"class means of {len(rows)} rows of {options.dataset}")


def _training_rows(options: HierarchyOptions) -> tuple[Dataset, Columns]:
    """The training split with its labels as ids in the column "label"."""
    splits = load_splits(str(options.dataset))
    columns = find_columns(splits["train"].features, options.text_column, options.label_column)
    if columns.kind == "audio":
        raise CommandError(f"{options.dataset!r} holds sounds; class means are taken of texts and images.")
    return encode_labels(usable(splits, columns, named=options.text_column is not None), columns.label)[
        "train"
    ], columns


def _in_model_order(rows: Dataset, names: list[str]) -> Dataset:
    """Number the labels of the rows as the model does."""
    own = rows.features["label"].names
    unnamed = names == [f"LABEL_{index}" for index in range(len(names))]
    if len(own) != len(names) or not (unnamed or set(own) == set(names)):
        raise CommandError(
            f"The labels of the model and of the data differ: {', '.join(names[:5])} … ({len(names)}) and "
            f"{', '.join(own[:5])} … ({len(own)}). Give the data that the model was trained on."
        )
    return rows if unnamed else rows.align_labels_with_mapping({name: i for i, name in enumerate(names)}, "label")


def _groups(options: HierarchyOptions, names: Sequence[str]) -> list[str | None]:
    """The group of each label, from a column of the data set that gives every label exactly one."""
    rows, _ = _training_rows(options)
    column = str(options.group_column)
    if column not in rows.column_names or column == "label":
        raise CommandError(f"--group-column: there is no other column {column!r}; there are {rows.column_names}.")
    feature = rows.features[column]
    groups = groups_in(rows, column)
    if groups is None:
        raise CommandError(f"--group-column: {column!r} groups no labels, since some label is in several groups.")
    group_of = {rows.features["label"].int2str(label): group for label, group in groups.items()}
    known: list[str | None] = [
        None if (group := group_of.get(name)) is None else str(getattr(feature, "int2str", str)(group))
        for name in names
    ]
    if not any(known):
        raise CommandError(
            f"None of the labels {', '.join(names[:5])} … is one of {options.dataset!r}, so they have no groups there."
        )
    return known
