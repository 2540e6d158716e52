"""What a training taught about its labels: their vectors, and how well distances agree with WordNet or groups."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Subset

from ..data.labels import rows_per_class
from ..data.tables import quoting
from ..errors import CommandError
from ..hierarchy.label_vectors import label_vectors
from ..hierarchy.tree import cluster_names, group_distances, label_distances, reference_clusters
from ..hierarchy.wordnet import SENSES, WordNetMissingError, open_wordnet, wordnet_distances
from ..metrics import largest_correlation, mds_disparity, structure_correlation
from ..modeling.files import write_text_atomically
from .datasets import Data
from .grid import Cell
from .rows import Rows

if TYPE_CHECKING:
    from ..training.trainer import LwALTrainer

METRICS = ("euclidean", "cosine")
ROWS_PER_LABEL = 50
"""Training rows of each label whose mean stands for it, where a method has no label vectors of its own."""


def reference_kind(dataset: str, groups: list[str] | None) -> str | None:
    """What the labels of a data set are compared with: "wordnet", "groups", or None where there is neither."""
    if dataset in SENSES:
        return "wordnet"
    return None if groups is None else "groups"


def reference_of(data: Data, data_root: str | None) -> tuple[NDArray[np.float64], list[str | None]] | None:
    """Distances (C, C) to compare with, NaN for labels without, and the group of each label, which colours it.

    Args:
        data: names and groups of the labels.
        data_root: WordNet is read from the folder or archive ``wordnet`` in it, or else from nltk's corpus.

    Raises:
        CommandError: WordNet is needed and nowhere to be found.
    """
    kind = reference_kind(data.name, data.groups)
    if kind is None:
        return None
    if kind == "wordnet":
        return _wordnet_reference(data.name, tuple(data.names), wordnet_place(data_root))
    groups: list[str | None] = list(data.groups or ())
    return group_distances(groups), groups


@functools.lru_cache(maxsize=4)  # unpacking WordNet takes seconds, and every training of a data set needs the same
def _wordnet_reference(
    dataset: str, names: tuple[str, ...], place: Path | None
) -> tuple[NDArray[np.float64], list[str | None]]:
    with _wordnet_named(f"{dataset} is compared with WordNet."):
        distances, _ = wordnet_distances(names, place, SENSES[dataset])
    return distances, cluster_names(reference_clusters(distances), names)


def wordnet_place(data_root: str | None) -> Path | None:
    """WordNet's files or their archive under the data root; None where they are not there."""
    folder = None if data_root is None else Path(data_root).expanduser() / "wordnet"
    if folder is None or not folder.is_dir():
        return None
    return next(iter(sorted(folder.glob("*.tar*"))), folder)


def vectors_of(trainer: LwALTrainer, rows: Rows) -> NDArray[np.float64]:
    """One vector (C, D) float64 per label of a trained model; NaN for labels that it knows nothing of."""
    some = Subset(rows.train, rows_per_class(np.asarray(rows.train["labels"]), ROWS_PER_LABEL, seed=0))
    loader = DataLoader(some, trainer.args.per_device_eval_batch_size, collate_fn=rows.collator)
    vectors = label_vectors(trainer.core_model, loader, trainer.label_objective, progress=False)
    return vectors.double().numpy()


def measure_structure(
    vectors: NDArray[np.float64], reference: NDArray[np.float64] | None, kind: str | None
) -> dict[str, Any]:
    """What a line of results says about label vectors.

    Args:
        vectors: (C, D), NaN for labels without.
        reference: (C, C), NaN for labels that it does not know; None where there is nothing to compare with.
        kind: "wordnet" or "groups".

    Returns:
        ``reference``; with one also ``largest``, and by metric ``correlation`` and, for WordNet, ``disparity`` (groups
        are a single step: their map would be arbitrary). A number that is not defined is None.
    """
    if reference is None:
        return {"reference": None}
    found: dict[str, Any] = {"reference": kind, "largest": _number(largest_correlation(reference)), "correlation": {}}
    if kind == "wordnet":
        found["disparity"] = {}
    for metric in METRICS:
        distances = label_distances(vectors, metric, allow_missing=True)
        found["correlation"][metric] = _number(structure_correlation(distances, reference))
        if kind == "wordnet":
            found["disparity"][metric] = _number(mds_disparity(distances, reference))
    return found


def structure_of(
    cell: Cell, trainer: LwALTrainer, rows: Rows, data: Data, data_root: str | None, folder: Path
) -> dict[str, Any]:
    """Measure a finished training, and keep its label vectors as a table that ``hf-lwal hierarchy`` reads."""
    found = reference_of(data, data_root)
    reference, groups = (None, None) if found is None else found
    vectors = vectors_of(trainer, rows)
    path = folder / vectors_file(cell)
    folder.mkdir(parents=True, exist_ok=True)
    write_text_atomically(path, vectors_table(data.names, groups, vectors))
    measures = measure_structure(vectors, reference, reference_kind(data.name, data.groups))
    return {**measures, "vectors": f"{folder.name}/{path.name}"}


def vectors_file(cell: Cell) -> str:
    """A file name that people can read and that no other cell has."""
    name = f"{cell.dataset}-{cell.model}-{cell.method['name']}-{cell.learning_rate:g}-{cell.seed}"
    plain = "".join(letter if letter.isalnum() or letter in "-_.+" else "_" for letter in name)
    return f"{plain[:100]}-{hashlib.sha256(cell.key.encode()).hexdigest()[:8]}.csv"


def vectors_table(names: list[str], groups: list[str | None] | None, vectors: NDArray[np.float64]) -> str:
    """Label vectors as CSV: label, group where known, one column per dimension; labels without vector are left out."""
    import pandas

    table = pandas.DataFrame(vectors)
    if groups is not None:
        table.insert(0, "group", groups)
    table.insert(0, "label", names)
    known = table[np.isfinite(vectors).all(axis=1)]
    quoted = quoting(known.to_numpy().flat)
    return str(known.to_csv(index=False, float_format="%.9g", lineterminator="\n", quoting=quoted))


def check_structure(datasets: Iterable[str], data_root: str | None) -> None:
    """Raise CommandError before anything runs where WordNet is needed and missing."""
    needing = sorted(set(datasets) & set(SENSES))
    if needing:
        reason = f"--structure compares {', '.join(needing)} with WordNet."
        with _wordnet_named(reason), open_wordnet(wordnet_place(data_root)):
            return


@contextmanager
def _wordnet_named(reason: str) -> Iterator[None]:
    """Say why WordNet is read, and where this command looks for it, when it is missing."""
    try:
        yield
    except WordNetMissingError as error:
        raise CommandError(f"{reason} {error} Here --data-root does that: put them into DATA_ROOT/wordnet.") from error


def _number(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 6)
