"""Distances between labels in WordNet, the hierarchy that the paper compares learned labels with.

WordNet's nouns are read with nltk (``pip install "hf-lwal[wordnet]"``); its data comes from nltk's own corpus or from
a file that the user gives.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tarfile
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Senses = Mapping[str, str | None]
"""Label → name of its synset such as ``otter.n.02``; None for a label to leave out."""

_AWA2_LEFT_OUT = (
    *("antelope", "bat", "beaver", "blue_whale", "buffalo", "cow", "deer", "dolphin", "giraffe", "grizzly_bear"),
    *("hamster", "hippopotamus", "horse", "humpback_whale", "killer_whale", "mole", "moose", "mouse", "ox", "pig"),
    *("polar_bear", "rat", "rhinoceros", "seal", "sheep", "walrus", "zebra"),
)

SENSES: dict[str, Senses] = {
    "awa2": {  # the paper compares 23 of the 50 animals
        "chihuahua": "chihuahua.n.03",
        "dalmatian": "dalmatian.n.02",
        "leopard": "leopard.n.02",
        "otter": "otter.n.02",
        "raccoon": "raccoon.n.02",
        "skunk": "skunk.n.04",
        "tiger": "tiger.n.02",
        "weasel": "weasel.n.02",
        **dict.fromkeys(_AWA2_LEFT_OUT),
    },
    "cifar10": {},
    "cifar100": {  # whose first senses are furs, dishes and people
        "aquarium_fish": "goldfish.n.01",
        "beaver": "beaver.n.07",
        "castle": "castle.n.02",
        "dolphin": "dolphin.n.02",
        "flatfish": "flatfish.n.02",
        "leopard": "leopard.n.02",
        "lobster": "lobster.n.02",
        "maple_tree": "maple.n.02",
        "otter": "otter.n.02",
        "plate": "plate.n.04",
        "raccoon": "raccoon.n.02",
        "ray": "ray.n.07",
        "seal": "seal.n.09",
        "shrew": "shrew.n.02",
        "skunk": "skunk.n.04",
        "sweet_pepper": "sweet_pepper.n.02",
        "table": "table.n.02",
        "television": "television_receiver.n.01",
        "tiger": "tiger.n.02",
        "trout": "trout.n.02",
        "turtle": "turtle.n.02",
        "whale": "whale.n.02",
    },
    "fashion_mnist": {"t_shirt_top": None, "ankle_boot": None},  # the paper compares the other 8
}
"""Data set → senses of its labels where they are not the first noun sense."""


class WordNetMissingError(RuntimeError):
    """nltk or WordNet's data is not there; the message says how to get it."""


def senses_of(name: str | os.PathLike[str] | None) -> Senses:
    """Senses by name of a data set, or from a JSON file that maps labels to synset names or null.

    Args:
        name: a key of `SENSES`, a file, or None for the first noun sense of every label.
    """
    if name is None:
        return {}
    if str(name) in SENSES:
        return SENSES[str(name)]
    path = Path(name)
    if not path.is_file():
        raise ValueError(f"Senses {str(name)!r} are neither one of {', '.join(SENSES)} nor a JSON file.")
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        well_formed = isinstance(table, dict) and all(isinstance(value, str | None) for value in table.values())
    except ValueError:
        well_formed = False
    if not well_formed:
        raise ValueError(
            f'{path} must hold one JSON object of labels and synset names or null, such as {{"otter": "otter.n.02"}}.'
        )
    return dict(table)


def normalised(label: str) -> str:
    """A label as WordNet writes a noun: lower case, words joined by underscores.

    >>> normalised("Spider+Monkey")
    'spider_monkey'
    """
    return re.sub(r"[^\w']+", "_", label.strip().lower()).strip("_")


def choose_synsets(reader: Any, labels: Sequence[str], senses: Senses | None = None) -> list[Any]:
    """The noun synset that each label stands for.

    Args:
        reader: from `open_wordnet`.
        labels: names of the labels.
        senses: for the labels whose first noun sense is not the one meant; keys are compared in `normalised` form.

    Returns:
        One synset per label; None where WordNet has no such noun, or where ``senses`` says None.

    Raises:
        ValueError: ``senses`` names a synset that WordNet lacks.
    """
    chosen = {normalised(label): sense for label, sense in (senses or {}).items()}
    return [_choose(reader, normalised(label), chosen) for label in labels]


def _choose(reader: Any, noun: str, senses: Senses) -> Any:
    if noun not in senses:
        return next(iter(reader.synsets(noun, pos="n")), None)
    sense = senses[noun]
    if sense is None:
        return None
    from nltk.corpus.reader.wordnet import WordNetError

    try:
        return reader.synset(sense)
    except (WordNetError, ValueError) as error:
        raise ValueError(f"WordNet has no synset {sense!r}, which the senses give for {noun!r}.") from error


def path_distances(synsets: Sequence[Any]) -> NDArray[np.float64]:
    """Edges on the shortest path between every two synsets through a common hypernym.

    Args:
        synsets: one per label, None for a label without.

    Returns:
        (C, C) float64, symmetric with a zero diagonal; NaN in the rows and columns of labels without synset.
    """
    distances = np.full((len(synsets), len(synsets)), np.nan)
    for row, synset in enumerate(synsets):
        for column, other in enumerate(synsets[: row + 1]):
            if synset is not None and other is not None:
                steps = synset.shortest_path_distance(other)
                distances[row, column] = distances[column, row] = np.nan if steps is None else steps
    return distances


def wordnet_distances(
    labels: Sequence[str],
    wordnet: str | os.PathLike[str] | None = None,
    senses: Senses | None = None,
) -> tuple[NDArray[np.float64], list[str | None]]:
    """Distances between labels in WordNet, and the synset that each stands for.

    Args:
        labels: names of the labels.
        wordnet: see `open_wordnet`.
        senses: see `choose_synsets`; ready ones are in `SENSES`.

    Returns:
        (C, C) float64 of `path_distances`, and the C names of synsets, None where there is none.
    """
    with open_wordnet(wordnet) as reader:
        synsets = choose_synsets(reader, labels, senses)
        return path_distances(synsets), [None if synset is None else synset.name() for synset in synsets]


@contextmanager
def open_wordnet(wordnet: str | os.PathLike[str] | None = None) -> Iterator[Any]:
    """Give nltk's reader of WordNet; its synsets can be used inside the context only.

    Args:
        wordnet: a tar archive or a folder with WordNet's files (``data.noun`` and so on); None for nltk's corpus.

    Raises:
        WordNetMissingError: nltk or the data is missing.
    """
    try:
        import nltk
        from nltk.corpus.reader.wordnet import WordNetCorpusReader
    except ImportError as error:
        raise WordNetMissingError(
            'WordNet is read with nltk, which is not installed: pip install "hf-lwal[wordnet]".'
        ) from error
    with tempfile.TemporaryDirectory() as temporary:
        if wordnet is not None:
            _stage(Path(wordnet), Path(temporary) / "corpora" / "wordnet")
            nltk.data.path.insert(0, temporary)  # nltk opens no file outside of these folders
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=".*multilingual functions")
                reader = WordNetCorpusReader(_corpus(nltk), None)
            yield reader
        finally:
            if wordnet is not None:
                nltk.data.path.remove(temporary)


def _corpus(nltk: Any) -> Any:
    """Where nltk has WordNet: unpacked, or in the archive that its downloader leaves."""
    for place in ("corpora/wordnet", "corpora/wordnet.zip/wordnet/"):
        try:
            return nltk.data.find(place)
        except LookupError:
            continue
    raise WordNetMissingError(
        "WordNet's data is missing: get it with `python -m nltk.downloader wordnet`, or give a folder or tar archive "
        "that holds its files with --wordnet PATH (in Python: wordnet=PATH)."
    )


def _stage(source: Path, target: Path) -> None:
    """Put WordNet's files, from a folder or an archive, into the folder ``target``."""
    if not source.exists():
        raise WordNetMissingError(f"WordNet: there is no file or folder {str(source)!r}.")
    if source.is_dir():
        shutil.copytree(_folder_with_nouns(source), target)
        return
    unpacked = target.parents[1] / "unpacked"
    try:
        with tarfile.open(source) as archive:
            archive.extractall(unpacked, filter="data")
    except (tarfile.TarError, EOFError) as error:
        raise WordNetMissingError(f"WordNet: {str(source)!r} is not a whole tar archive: {error}.") from error
    shutil.move(_folder_with_nouns(unpacked, source), target)


def _folder_with_nouns(folder: Path, source: Path | None = None) -> Path:
    """The folder, or the first one below it, that holds ``data.noun``."""
    found = min(folder.rglob("data.noun"), default=None)
    if found is None:
        raise WordNetMissingError(f"WordNet: {str(source or folder)!r} holds no file called data.noun.")
    return found.parent
