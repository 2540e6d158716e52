"""``hf-lwal audit``: rows of a data set whose label is probably wrong, in the terminal, as HTML or as csv."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..bench.comparison import label_maps, load_part
from ..data.columns import Columns
from ..data.label_names import encode_labels
from ..data.media import cell_name, undecoded
from ..data.sources import load_splits
from ..data.usable import usable
from ..errors import CommandError, shortened
from ..modeling.files import write_text_atomically
from .audit_report import Audit, Judged, as_csv, as_html, one_line, share_sentence, swaps
from .flags import argument, check_above_0, option
from .train_data import Rows, choose_columns, fit_tokenizer
from .train_model import Start, agree_on_padding, choose_start
from .verbosity import note
from .writing import check_output_file, writing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from datasets import Dataset
    from torch import Tensor

    from ..modeling.label_errors import LabelErrors

OUTPUTS = {".html": as_html, ".csv": as_csv}
ROW = "hf_lwal_row"
"""Column that numbers the rows before any is left out."""
SIDE = 24
"""Pixels of a side to which small pictures are scaled where they are compared without a model."""
SHOWN_SWAPS = 5
"""Pairs of labels in the terminal."""


@dataclass(frozen=True)
class AuditOptions:
    """List the rows of a data set whose label is probably wrong.

    Every row is compared with all others by what a model makes of it; nothing is trained, and nothing of the data is
    changed. How many labels are wrong is estimated.
    """

    data: str = argument(
        "embedded data set (clinc150, fashion_mnist), file (csv, tsv, json, jsonl, parquet), folder of such files or "
        "with one folder of images or sounds per label, or Hub name (NAME or NAME:CONFIGURATION)"
    )
    model: str | None = option(
        None,
        "folder or Hub name of the model that reads the rows; default: MiniLM for texts (extra `quickstart`), the "
        "pixels themselves for images of up to 64 of them",
    )
    text_column: str | None = option(None, "column with the text, or with the image; default: found by name and type")
    pair_column: str | None = option(None, "column with the second text of a pair; default: found by name")
    label_column: str | None = option(None, "column with the label; default: found by name and type")
    split: str = option("train", "split whose rows are looked at")
    output: str | None = option(
        None, "report: a file .html, with the most suspicious rows and pictures, or .csv, with all rows"
    )
    limit: int = option(20, "rows to print, the most suspicious first")
    max_length: int | None = option(
        None, "tokens of a text beyond this number are cut off; default: the model's limit"
    )
    batch_size: int = option(64, "rows per forward pass")

    def check(self) -> None:
        """Raise for values that cannot work, before anything is loaded."""
        check_above_0(self, "limit", "max_length", "batch_size")
        if self.output is None:
            return
        if Path(self.output).suffix.lower() not in OUTPUTS:
            raise CommandError(f"--output: {self.output!r} must end in {' or '.join(OUTPUTS)}.")
        file, source = check_output_file(self.output), Path(self.data).expanduser()
        if file.exists() and source.is_file() and file.samefile(source):
            raise CommandError(f"--output: {self.output!r} is the data itself; name another file.")


def run(options: AuditOptions) -> int:
    """Judge, print and write; returns the exit code."""
    options.check()
    rows = load_rows(options)
    start = choose_start(options.model, rows)
    name = start.title if start.path is not None else "none (the pixels themselves; --model takes an image model)"
    note(
        f"Data: {len(rows.train):,} rows of {rows.columns.kind} in {rows.columns.input!r}"
        + (f" and {rows.second!r}" if rows.second else "")
        + f", {len(rows.names)} labels in {rows.columns.label!r}.\nModel: {name}.",
        *(f"Note: {found}." for found in rows.notes),
    )
    found = judge(options, rows, start)
    audit = Audit(Path(options.data).name, rows.names, listed(rows, found), found.share, rows.columns.kind)
    if not audit.judged:
        raise CommandError(
            f"Nothing can be said of the labels in {rows.columns.label!r}: no two rows with the same label, or rows "
            "that the model cannot tell apart. Is this the column of the labels? Choose another with --label-column."
        )
    print("", *as_text(audit, options.limit, shutil.get_terminal_size((110, 24)).columns), sep="\n")
    if options.output is not None:
        file = Path(options.output).expanduser()
        with writing(file):
            file.parent.mkdir(parents=True, exist_ok=True)
            write_text_atomically(file, OUTPUTS[file.suffix.lower()](audit, options.limit))
        print(f"\nWritten: {options.output}")
    return 0


def load_rows(options: AuditOptions) -> Rows:
    """The rows of the split as `hf-lwal train` reads them, each with its number in the column `ROW`."""
    from datasets import DatasetDict

    notes: list[str] = []
    splits = load_splits(options.data, notes.append)
    if options.split not in splits:
        raise CommandError(f"--split: there is no split {options.split!r}; there are {', '.join(map(str, splits))}.")
    rows = splits[options.split]
    numbered = DatasetDict(train=rows.add_column(ROW, list(range(1, len(rows) + 1))))
    features = rows.features
    columns, second = choose_columns(features, options.text_column, options.pair_column, options.label_column)
    kept = usable(numbered, columns, notes.append, second, named=options.text_column is not None)
    labelled = encode_labels(kept, columns.label, notes.append)["train"]
    names = labelled.features["label"].names
    if len(set(labelled["label"][:])) < 2:
        raise CommandError(f"Column {columns.label!r} has only one label, {names[0]!r}: nothing to tell apart.")
    notes = [note.replace("split 'train'", f"split {options.split!r}") for note in notes]
    return Rows(labelled, labelled, None, names, columns, second, tuple(notes))


def judge(options: AuditOptions, rows: Rows, start: Start) -> LabelErrors:
    """What is found of the rows."""
    import torch

    from ..modeling.label_errors import label_errors

    ids = torch.tensor(rows.train["label"][:])
    features = pixels(rows) if start.path is None else features_of_rows(options, rows, start, ids)
    return label_errors(features, ids, len(rows.names))


def features_of_rows(options: AuditOptions, rows: Rows, start: Start, ids: Tensor) -> Tensor:
    """(N, H) on the CPU: what the model makes of every row."""
    import torch

    from ..modeling.label_audit import features_of
    from ..modeling.labelled_inputs import LabelledBatches
    from ..modeling.start import collect_any

    model = load_model(start, rows, options.max_length)
    order = list(range(len(rows.train)))
    if rows.columns.kind == "text":  # texts of similar length in a batch need little padding
        order.sort(key=[len(text) for text in rows.train[rows.columns.input]].__getitem__)
    inputs: Any = inputs_of(rows.train.select(order), rows.columns, rows.second)
    batches = LabelledBatches(model, inputs, start.processing_class, ids[order], options.batch_size)
    found = collect_any(model, features_of(model), batches, model.device, True, "Labels", False).values.cpu()
    return found[torch.tensor(order).argsort()]


def load_model(start: Start, rows: Rows, max_length: int | None) -> Any:
    """The model that reads the rows, on the fastest device; its own labels, if it has some, are of no matter."""
    import torch
    from transformers import AutoConfig

    from ..modeling.auto import AutoModelForLwALClassification
    from ..modeling.configuration_lwal import LwALConfig

    path, kind = str(start.path), rows.columns.kind
    trained = isinstance(load_part(AutoConfig, path), LwALConfig)
    labels = {} if trained else label_maps(rows.names)
    model = load_part(AutoModelForLwALClassification, path, task=kind, **labels)
    agree_on_padding(model, start.processing_class)
    fit_tokenizer(model, start.processing_class, max_length)
    if max_length is not None and kind == "text":
        start.processing_class.model_max_length = min(start.processing_class.model_max_length, max_length)
    return model.to(torch.accelerator.current_accelerator()) if torch.accelerator.is_available() else model


def inputs_of(rows: Dataset, columns: Columns, second: str | None) -> Sequence[Any]:
    """Texts, pairs of them, or pictures and sounds that are read batch by batch."""
    if second is not None:
        return list(zip(rows[columns.input][:], rows[second][:], strict=True))
    column: Sequence[Any] = undecoded(rows, columns.input)[columns.input]
    return column[:] if columns.kind == "text" else column


def pixels(rows: Rows) -> Tensor:
    """(N, 3 · side²) float32 values of small pictures."""
    import numpy as np
    import torch
    from tqdm.auto import tqdm  # type: ignore[import-untyped]

    from ..modeling.pictures import read_picture

    cells = undecoded(rows.train, rows.columns.input)[rows.columns.input]
    pictures = (read_picture(cell).resize((SIDE, SIDE)) for cell in tqdm(cells, desc="Labels", leave=False))
    return torch.from_numpy(np.stack([np.asarray(picture, dtype=np.float32).ravel() / 255.0 for picture in pictures]))


def listed(rows: Rows, found: LabelErrors) -> list[Judged]:
    """Every row with what was found, the most suspicious first, those of which nothing can be said last."""
    data, inputs = rows.train, inputs_of(rows.train, rows.columns, rows.second)
    numbers, labels = data[ROW][:], data["label"][:]
    unjudged = found.margins.isnan().nonzero()[:, 0].tolist()
    margins, likelier, suspicious = (part.tolist() for part in (found.margins, found.likelier, found.suspicious))
    judged = []
    for row in (*found.order.tolist(), *unjudged):
        known = likelier[row] >= 0
        judged.append(
            Judged(
                row=numbers[row],
                label=rows.names[labels[row]],
                likelier=rows.names[likelier[row]] if known else None,
                margin=margins[row] if known else None,
                suspicious=suspicious[row],
                shown=shown_of(inputs[row], rows.columns.kind),
                cell=inputs[row] if rows.columns.kind == "image" else None,
            )
        )
    return judged


def shown_of(value: Any, kind: str) -> str:
    """What stands for an input in a table: its text, or the name of its file."""
    if kind == "text":
        return " | ".join(value) if isinstance(value, tuple) else str(value)
    name = cell_name(value)
    return Path(name).name if name else ""


def as_text(audit: Audit, limit: int, width: int) -> list[str]:
    """The lines of the terminal: the estimate, the first rows, and the labels that are most often swapped."""
    rows = [row for row in audit.rows if row.margin is not None][:limit]
    cells = [
        (
            f"{row.row}{'*' if row.suspicious else ' '}",
            one_line(row.label),
            one_line(str(row.likelier)),
            f"{row.margin:.1f}",
        )
        for row in rows
    ]
    header = ("row ", "given label", "likelier label", "margin")
    longest = max((width - 30) // 3, 12)
    table = [tuple(shortened(cell, longest) for cell in line) for line in (header, *cells)]
    widths = [max(len(line[column]) for line in table) for column in range(4)]
    shown = [audit.what, *(one_line(row.shown) for row in rows)]
    lines = []
    for line, text in zip(table, shown, strict=True):
        number, margin = line[0].rjust(widths[0]), line[3].rjust(widths[3])
        lines.append(
            cut(f"{number}  {line[1]:<{widths[1]}}  {line[2]:<{widths[2]}}  {margin}  {text}".rstrip(), width)
        )
    more = [
        f"  {count:,} × {one_line(given)} → {one_line(likelier)}"
        for given, likelier, count in swaps(audit)[:SHOWN_SWAPS]
    ]
    star = "*: its label is probably wrong. " if any(row.suspicious for row in rows) else ""
    return [
        share_sentence(audit),
        "",
        *lines,
        "",
        f"{star}margin: logarithm of the odds that the given label is right.",
        "Rows are counted from 1, without a header.",
        *(["", "Most often, by estimate (given → likelier):", *more] if more else []),
    ]


def cut(text: str, width: int) -> str:
    """The beginning of a text that is too long.

    >>> cut("abcdef", 4), cut("abcd", 4)
    ('abc…', 'abcd')
    """
    return text if len(text) <= width else f"{text[: width - 1]}…"
