"""Small data sets that travel with the package, so that the first run needs no network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datasets import DatasetDict

EMBEDDED = {
    "clinc150": "150 intents of short English requests (CC BY 3.0, Larson et al. 2019)",
    "fashion_mnist": "10 kinds of clothing, 28x28 grey, a small sample (MIT, Xiao et al. 2017)",
}
"""Names and one-line descriptions; the folder of each holds its parquet files, README.md and LICENSE."""

PACKAGE = __name__.partition(".")[0]
"""Builder name of their rows, by which a model card knows that anyone can see them."""


def embedded_folder(name: str) -> Path:
    """Return the folder of an embedded data set.

    >>> embedded_folder("clinc150").name
    'clinc150'
    """
    if name not in EMBEDDED:
        raise ValueError(f"No embedded data set is called {name!r}; there are {', '.join(EMBEDDED)}.")
    return Path(__file__).parent / name


def load_embedded(name: str) -> DatasetDict:
    """Load an embedded data set into memory, without network and without writing a cache.

    Args:
        name: a key of ``EMBEDDED``.

    Returns:
        Its splits, with ``label`` a ``ClassLabel`` that carries the class names.
    """
    from datasets import DatasetInfo

    return parquet_splits(embedded_folder(name), DatasetInfo(builder_name=PACKAGE, dataset_name=name))


def parquet_splits(folder: Path, info: Any = None) -> DatasetDict:
    """Read the parquet files that are named after their splits; load_dataset would copy their rows to a cache."""
    import pyarrow.parquet
    from datasets import Dataset, DatasetDict

    files = {split: folder / f"{split}.parquet" for split in ("train", "validation", "test")}
    # Dataset reads its features (ClassLabel, Image) from the table's schema.
    tables = {split: pyarrow.parquet.read_table(path) for split, path in files.items() if path.exists()}
    return DatasetDict({split: Dataset(table, info=info) for split, table in tables.items()})
