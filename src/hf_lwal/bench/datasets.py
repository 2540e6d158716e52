"""Data sets by name: where each is found, and which of its columns is what."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from ..data import EMBEDDED, load_embedded, parquet_splits
from ..data.selection import rank_in_class, stratified_indices
from ..data.sources import encode_labels, evaluation_split, label_groups, load_splits
from ..errors import CommandError

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

Kind = Literal["text", "image"]


@dataclass(frozen=True)
class DatasetSpec:
    """Where a data set is on the Hub, and what its columns are called there.

    Attributes:
        kind: what a row holds.
        hub: Hub id, with a configuration after a colon; None where the Hub has no copy to load.
        input: text or image column.
        label: label column.
        group: column with the label's group, a natural hierarchy.
        without: a label whose rows are left out.
        max_length: tokens of a text beyond this number are cut off.
    """

    kind: Kind
    hub: str | None
    input: str
    label: str
    group: str | None = None
    without: str | None = None
    max_length: int = 64


DATASETS: dict[str, DatasetSpec] = {
    "mnist": DatasetSpec("image", "ylecun/mnist", "image", "label"),
    "fashion_mnist": DatasetSpec("image", "zalando-datasets/fashion_mnist", "image", "label"),
    "cifar10": DatasetSpec("image", "uoft-cs/cifar10", "img", "label"),
    "cifar100": DatasetSpec("image", "uoft-cs/cifar100", "img", "fine_label", "coarse_label"),
    "food101": DatasetSpec("image", "ethz/food101", "image", "label"),
    "awa2": DatasetSpec("image", None, "image", "label"),
    # Lengths as in the reference implementation of the paper, data_preprocessing.ipynb.
    "imdb": DatasetSpec("text", "stanfordnlp/imdb", "text", "label", max_length=200),
    "yelp_polarity": DatasetSpec("text", "fancyzhx/yelp_polarity", "text", "label", max_length=100),
    "clinc150": DatasetSpec("text", "clinc/clinc_oos:plus", "text", "intent", without="oos"),
    "banking77": DatasetSpec("text", "mteb/banking77", "text", "label_text"),
    "trec": DatasetSpec("text", "SetFit/TREC-QC", "text", "label_original", "label_coarse_original"),
    "sst2": DatasetSpec("text", "stanfordnlp/sst2", "sentence", "label"),
    "ag_news": DatasetSpec("text", "fancyzhx/ag_news", "text", "label", max_length=100),
}
"""Name → where it is. A folder of the same name under ``--data-root`` goes first, with its columns called ``text`` or
``image``, and ``label``; then the copy embedded in the package; then the Hub."""


class Data(NamedTuple):
    """Rows with the columns of `input` and "label".

    Attributes:
        name: key of `DATASETS`.
        kind: "text" or "image".
        train: rows to learn from.
        test: rows to measure on.
        input: text or image column.
        names: C label names.
        groups: C names of groups, or None.
    """

    name: str
    kind: Kind
    train: Dataset
    test: Dataset
    input: str
    names: list[str]
    groups: list[str] | None


def dataset_spec(name: str) -> DatasetSpec:
    """Return the entry of a data set.

    Raises:
        CommandError: unknown name; the message lists the known ones.
    """
    if name not in DATASETS:
        raise CommandError(f"Unknown data set {name!r}: choose one of {', '.join(DATASETS)}.")
    return DATASETS[name]


def source_of(name: str, data_root: str | None) -> str:
    """Where a data set would come from, without loading it: "data root", "embedded" or "hub"."""
    dataset_spec(name)
    if data_root is not None and (Path(data_root).expanduser() / name).is_dir():
        return "data root"
    return "embedded" if name in EMBEDDED else "hub"


@functools.lru_cache(maxsize=4)
def load_data(
    name: str,
    data_root: str | None,
    train_rows: int | None,
    test_rows: int | None,
    rows_per_label: int | None = None,
    draw: int = 0,
) -> Data:
    """Load a data set once per process.

    Args:
        name: key of `DATASETS`.
        data_root: folder with one folder per data set, or None.
        train_rows: the number of rows to keep for training, of every class its share; None for all.
        test_rows: the same of the rows to measure on.
        rows_per_label: rows of each label to keep for training instead, or all that it has.
        draw: which of them; the same number draws the same rows.
    """
    spec, source = dataset_spec(name), source_of(name, data_root)
    splits, renamed = _splits(name, spec, source, data_root)
    label = spec.label if source == "hub" and not renamed else "label"
    column = spec.input if source == "hub" and not renamed else spec.kind
    for needed in (label, column):
        if needed not in splits["train"].features:
            raise CommandError(
                f"Data set {name!r} from the {source} has no column {needed!r}, only "
                f"{', '.join(splits['train'].features)}."
            )
    splits = encode_labels(_without(splits, label, spec.without), label)
    train, test = _limited(splits["train"], train_rows), _limited(evaluation_split(splits), test_rows)
    if rows_per_label is not None:
        train = _of_each_label(train, rows_per_label, draw)
    return Data(name, spec.kind, train, test, column, list(train.features["label"].names), _groups(train, spec.group))


def _groups(train: Dataset, column: str | None) -> list[str] | None:
    """The group of each label, from a column that holds their names or numbers."""
    from datasets import ClassLabel

    if column in train.features and not isinstance(train.features[column], ClassLabel):
        train = train.class_encode_column(column)
    return label_groups(train)


def _splits(name: str, spec: DatasetSpec, source: str, data_root: str | None) -> tuple[DatasetDict, bool]:
    """The splits, and whether their columns have this library's names."""
    if source == "embedded":
        return load_embedded(name), True
    if source == "data root":
        folder = Path(str(data_root)).expanduser() / name
        return parquet_splits(folder) if (folder / "train.parquet").exists() else load_splits(str(folder)), True
    if spec.hub is None:
        raise CommandError(
            f"The Hub has no copy of {name}: put its pictures in DATA_ROOT/{name}/train/LABEL/*.jpg and "
            f"DATA_ROOT/{name}/test/LABEL/*.jpg, and give --data-root DATA_ROOT."
        )
    return load_splits(spec.hub), False


def _without(splits: DatasetDict, column: str, label: str | None) -> DatasetDict:
    """Leave out the rows of one label, and its name."""
    from datasets import ClassLabel, Value

    feature: Any = splits["train"].features[column]
    if label is None or not isinstance(feature, ClassLabel) or label not in feature.names:
        return splits
    number = feature.str2int(label)
    splits = splits.filter(lambda values: [value != number for value in values], input_columns=column, batched=True)
    # Without the name of the empty label, ids close up: encode_labels gives them anew, in the order of the names.
    return splits.map(
        lambda values: {column: feature.int2str(values)},
        input_columns=column,
        batched=True,
        features=splits["train"].features.__class__({**splits["train"].features, column: Value("string")}),
    )


def _of_each_label(rows: Dataset, number: int, draw: int) -> Dataset:
    """So many rows of each label, or all that it has."""
    labels = np.asarray(rows["label"][:])
    order = np.random.default_rng(draw).permutation(len(labels))
    return rows.select(np.sort(order[rank_in_class(labels[order]) < number]))


def _limited(rows: Dataset, size: int | None) -> Dataset:
    """A share of the rows, the same in every run and for every seed."""
    if size is None or size >= len(rows):
        return rows
    labels: Sequence[int] = rows["label"]
    return rows.select(stratified_indices(labels, size, seed=0))
