"""Read a folder of tables, or of one folder of pictures or sounds per label, split by split."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import CommandError
from .media import ENDINGS, WORDS, files_as_rows, kind_of, undecoded, visible_files, with_media
from .tables import FILES, Tell, ending, first_line, read_table

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

METADATA = "metadata"
"""Name, without ending, of a table beside pictures or sounds that says what they are."""
FILE_NAME = "file_name"
"""Column of such a table with their paths."""
TABLE = "table"
_KINDS = {**dict.fromkeys(FILES, TABLE), **{end: kind for kind, ends in ENDINGS.items() for end in ends}}


def load_folder(folder: Path, tell: Tell) -> DatasetDict:
    """Read every split of a folder on its own, so that one may lack columns or labels that another has.

    Args:
        folder: with files or folders called train, validation and test, or whose files are all for training.
        tell: takes notes.
    """
    import datasets

    if (folder / "dataset_dict.json").exists():
        return datasets.DatasetDict.load_from_disk(str(folder))
    if (folder / "state.json").exists():
        return datasets.DatasetDict(train=datasets.Dataset.load_from_disk(str(folder)))
    splits = {name: _sorted_by_kind(files) for name, files in _files_of_splits(folder).items()}
    counts = Counter(kind for files in splits.values() for kind, paths in files.items() for _ in paths)
    if not counts:
        return _whatever_datasets_reads(folder)
    kind = counts.most_common(1)[0][0]
    described = [path for path in visible_files(folder) if _is_metadata(path) and path.parent == folder]
    if kind != TABLE and described:
        found = _described(_table(described[0], tell), {name: files.get(kind, []) for name, files in splits.items()})
    elif kind == TABLE or any(_is_metadata(path) for files in splits.values() for path in files.get(TABLE, [])):
        found = _tables(splits, tell)
    else:
        found = _labelled_by_folders(splits, kind, folder, tell)
        if TABLE in counts and len(_labels(found.get("train"))) < 2:  # the folders say nothing: a table must
            found = _tables(splits, tell)
    for name, rows in found.items():
        rows._split = datasets.NamedSplit(name)
    return datasets.DatasetDict(found)


def _files_of_splits(folder: Path) -> dict[str, list[Path]]:
    """Visible files of each split, by the names of files and folders that the datasets library knows."""
    from datasets.data_files import DataFilesDict, EmptyDatasetError, get_data_patterns

    own = _splits_in_capitals(folder)
    if own:
        return own
    base = str(folder.absolute())
    try:
        chosen = DataFilesDict.from_patterns(get_data_patterns(base), base_path=base)
    except (EmptyDatasetError, FileNotFoundError) as error:
        raise CommandError(f"The folder {str(folder)!r} holds no files to read.") from error
    visible = {path.resolve(): path for path in visible_files(folder)}
    return {
        str(name): sorted({visible[path] for path in (Path(file).resolve() for file in files) if path in visible})
        for name, files in chosen.items()
    }


def _splits_in_capitals(folder: Path) -> dict[str, list[Path]]:
    """Files of each split where Train or TEST names one, which the datasets library overlooks; else nothing.

    One split alone is none: Train may be a label, beside Bus and Car.
    """
    from datasets.data_files import SPLIT_KEYWORDS

    found: dict[str, list[Path]] = {}
    capitals = False
    for path in visible_files(folder):
        parts = path.relative_to(folder).parts
        for name, words in SPLIT_KEYWORDS.items():
            part = next((part for part in parts if _named(words).fullmatch(part.lower())), None)
            if part is not None:
                found.setdefault(str(name), []).append(path)
                capitals = capitals or _named(words).fullmatch(part) is None
                break
    return {name: sorted(files) for name, files in found.items()} if capitals and {"train"} < {*found} else {}


def _named(words: list[str]) -> re.Pattern[str]:
    """What the name of a split's file or folder looks like."""
    return re.compile(rf"(?:.*[-._ 0-9])?(?:{'|'.join(words)})(?:[-._ 0-9].*)?", re.DOTALL)


def _sorted_by_kind(files: list[Path]) -> dict[str, list[Path]]:
    """Files by what they hold; others are left out."""
    found: dict[str, list[Path]] = {}
    for path in files:
        kind = _KINDS.get(ending(path))
        if kind is not None:
            found.setdefault(kind, []).append(path)
    return found


def _is_metadata(path: Path) -> bool:
    return path.name.split(".")[0] == METADATA and ending(path) in FILES


def _tables(splits: dict[str, dict[str, list[Path]]], tell: Tell) -> dict[str, Dataset]:
    """Splits made of tables."""
    return {
        name: _joined([_table(path, tell) for path in files[TABLE]], files[TABLE])
        for name, files in splits.items()
        if TABLE in files
    }


def _table(path: Path, tell: Tell) -> Dataset:
    """A table with the files that it names; its column of file names is called after what they hold."""
    rows = with_media(read_table(path, tell), path.parent)
    if _is_metadata(path) and FILE_NAME in rows.column_names:
        kind = kind_of(rows.features[FILE_NAME])
        if kind != "text" and kind not in rows.column_names:
            rows = rows.rename_column(FILE_NAME, kind)
    return rows


def _described(rows: Dataset, splits: dict[str, list[Path]]) -> dict[str, Dataset]:
    """Rows of one table for several splits, each with those whose file lies in it."""
    column = next((name for name in rows.column_names if kind_of(rows.features[name]) != "text"), None)
    if column is None:
        return {"train": rows}
    paths = [Path(cell["path"]).resolve() if cell else None for cell in undecoded(rows, column)[column]]
    inside = {name: {path.resolve() for path in files} for name, files in splits.items()}
    return {
        name: rows.select([number for number, path in enumerate(paths) if path in files])
        for name, files in inside.items()
    }


def _joined(parts: list[Dataset], paths: list[Path]) -> Dataset:
    """The rows of several tables one after another; labels may be numbers in one and words in another."""
    import datasets
    from datasets import Value

    for part, path in zip(parts, paths, strict=True):
        if set(part.column_names) != set(parts[0].column_names):
            raise CommandError(
                f"{str(paths[0])!r} and {str(path)!r} are read as one split, but their columns differ: "
                f"{', '.join(parts[0].column_names)}; and {', '.join(part.column_names)}. Call files of other splits "
                "train, validation and test."
            )
    for name in parts[0].column_names:
        kinds = [part.features[name] for part in parts]
        if any(kind != kinds[0] for kind in kinds) and all(isinstance(kind, Value) for kind in kinds):
            parts = [part.cast_column(name, Value("string")) for part in parts]
    try:
        return datasets.concatenate_datasets(parts) if len(parts) > 1 else parts[0]
    except (ValueError, TypeError) as error:
        raise CommandError(
            f"The tables of {str(paths[0].parent)!r} do not fit together: {first_line(error)}"
        ) from error


def _labelled_by_folders(
    splits: dict[str, dict[str, list[Path]]], kind: str, folder: Path, tell: Tell
) -> dict[str, Dataset]:
    """Splits of pictures or sounds; a split with no folder that names a label of the training split is unlabelled."""
    for files in splits.values():
        for path in files.get(TABLE, []):
            tell(f"{path} is not read, since the folder is taken for one of {WORDS[kind][1]}")
    found = {
        name: _by_folder(files[kind], kind, _root(folder, name, files[kind][0]), tell)
        for name, files in splits.items()
        if kind in files
    }
    known = _labels(found.get("train"))
    return {
        name: rows.remove_columns("label") if _labels(rows) and not _labels(rows) & known else rows
        for name, rows in found.items()
    }


def _labels(rows: Dataset | None) -> set[str]:
    return set() if rows is None or "label" not in rows.column_names else {*rows.unique("label")} - {None}


def _root(folder: Path, split: str, file: Path) -> Path:
    """The folder of a split: the first on the way to its files whose name says so, or else the whole."""
    from datasets.data_files import SPLIT_KEYWORDS

    words = next((words for name, words in SPLIT_KEYWORDS.items() if str(name) == split), [split])
    named = _named(words)
    parts = file.relative_to(folder).parts[:-1]
    place = next((place for place, part in enumerate(parts) if named.fullmatch(part)), None)
    return folder if place is None else folder.joinpath(*parts[: place + 1])


def _by_folder(files: list[Path], kind: str, root: Path, tell: Tell) -> Dataset:
    """Pictures or sounds with the name of their folder as label; files beside the folders have none."""
    inside = [path.relative_to(root).parts[:-1] if path.is_relative_to(root) else () for path in files]
    labels: list[str | None] = [parts[-1] if parts else None for parts in inside]
    if len({len(parts) for parts in inside if parts}) > 1:
        labels = [parts[0] if parts else None for parts in inside]
        tell(f"{root}: {WORDS[kind][1]} lie at unlike depths, so the first folder is taken for their label")
    rows = files_as_rows(kind, [str(path.absolute()) for path in files], kind)
    return rows.add_column("label", labels) if any(labels) else rows


def _whatever_datasets_reads(folder: Path) -> DatasetDict:
    """Leave other kinds of files, such as archives, to the datasets library."""
    import datasets

    try:
        return datasets.load_dataset(str(folder))
    except (OSError, ValueError, ImportError, datasets.exceptions.DatasetsError) as error:
        endings = ", ".join(sorted({path.suffix or path.name for path in visible_files(folder)}))
        raise CommandError(
            f"The folder {str(folder)!r} holds nothing that can be read: it needs tables ({', '.join(FILES)}), "
            f"pictures or sounds, but it has {endings}, of which datasets says: {first_line(error.__cause__ or error)}"
        ) from error
