"""``hf-lwal compare``: a grid of trainings that compare ways of learning from labels, resumable."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import CommandError, harmless
from ..training.folder_lock import FolderLock
from .flags import check_above_0, option
from .writing import check_output_file, writing

if TYPE_CHECKING:
    from ..bench.grid import Cell, Grid

OVERRIDES = {
    "method": "methods",
    "batch_size": "batch_sizes",
    "learning_rate": "learning_rates",
    "seed": "seeds",
    "evaluations": "evaluations",
    "optimizer": "optimizer",
    "train_rows": "train_rows",
    "test_rows": "test_rows",
    "rows_per_label": "rows_per_label",
}
"""Flag → setting of the grid that it replaces where it is given."""


@dataclass(frozen=True)
class CompareOptions:
    """Train models with several ways of learning from labels, on several data sets and seeds.

    Every training appends one line to the file of results; what is in the file is not run again. `hf-lwal report`
    makes tables and pictures of it.
    """

    preset: str | None = option(
        None,
        "named grid: paper (the paper's settings), fair (tuned rates, with controls) or peers (few rows per label, "
        "with SetFit and other controls)",
    )
    grid: str | None = option(None, "YAML file with a grid, instead of a preset")
    dataset: list[str] | None = option(None, "data sets; with a preset or a file, only these")
    model: list[str] | None = option(None, "models; with a preset or a file, only these")
    method: list[str] | None = option(
        None, 'methods, by name, also one that the file gives, or as JSON such as {"name": "m9", "lwal_memory": 9}'
    )
    batch_size: list[str] | None = option(None, "rows per step, or multiples of the number of labels such as 50x")
    learning_rate: list[float] | None = option(None, "learning rates")
    seed: list[int] | None = option(None, "seeds (12 123 1234 without a preset)")
    steps: int | None = option(None, "optimizer steps of each training")
    epochs: int | None = option(None, "passes over the rows, instead of --steps")
    evaluations: int | None = option(None, "evaluations after the first step; default: one per epoch, or 10")
    optimizer: str | None = option(None, "adamw_torch (linear decay) or adam (constant rate, no clipping)")
    train_rows: int | None = option(None, "rows to learn from, of every class its share; default: all")
    test_rows: int | None = option(None, "rows to measure on, of every class its share; default: all")
    rows_per_label: int | None = option(None, "rows of each label to learn from, drawn anew by every seed")
    from_config: bool = option(False, "random weights instead of pretrained ones; every line says so")
    data_root: str | None = option(None, "folder with one folder per data set: train.parquet and test.parquet")
    output: str = option("results.jsonl", "file of results, one JSON line per training")
    processes: int = option(1, "trainings at a time; they share the GPUs there are")
    structure: bool = option(
        False, "also measure how far label distances agree with WordNet or known groups, and keep the label vectors"
    )
    tune_first: bool = option(
        False,
        "choose each method's learning rate with its grid's first seed; the other seeds run at that rate only",
    )
    dry_run: bool = option(False, "list the trainings that are missing, note them as planned, and run none")


def run(options: CompareOptions) -> int:
    """Run the grid; returns the exit code, 1 where a training failed."""
    from ..bench.grid import unique_cells

    check_above_0(options, "processes")
    if options.data_root is not None and not Path(options.data_root).expanduser().is_dir():
        raise CommandError(f"--data-root: there is no folder {options.data_root!r}.")
    cells = unique_cells(chosen_grids(options), options.data_root)
    output = check_output_file(options.output)
    if options.structure:
        from ..bench.structure import check_structure

        check_structure((cell.dataset for cell in cells), options.data_root)
    lock = results_lock(output)
    with writing(output):
        free = lock.take()
        if not free and not options.dry_run:
            raise CommandError(
                f"Another `hf-lwal compare` is writing to {options.output!r}: wait for its end, or give this one "
                "another --output. --dry-run lists what is still missing there."
            )
        try:
            return _list_cells(cells, output, options, free) if options.dry_run else _run_cells(cells, output, options)
        finally:
            lock.release()


def results_lock(output: Path) -> FolderLock:
    """The right to write to a file of results: of two commands, the plan of one would replace the other's."""
    file = output.resolve()
    return FolderLock(file.parent, f".{file.name}.lock")


def _list_cells(cells: list[Cell], output: Path, options: CompareOptions, free: bool) -> int:
    """List what is missing and note it as planned, unless another command is at work there; returns the exit code."""
    from ..bench.results import write_plan
    from ..bench.runner import pending_cells
    from ..bench.tuning import first_seed

    cells = first_seed(cells) if options.tune_first else cells
    waiting = pending_cells(cells, output, options.structure, tidy=free)
    if free:
        write_plan(output, {cell.key: cell.settings for cell in cells})
    for cell in waiting:
        print(harmless(str(cell)))
    print(f"{len(waiting)} of {len(cells)} trainings are missing in {output}.")
    if options.tune_first:
        print("The other seeds follow, each method at the learning rate at which these are best.")
    if not free:
        print("Another `hf-lwal compare` is writing there, so nothing was noted as planned.")
    return 0


def _run_cells(cells: list[Cell], output: Path, options: CompareOptions) -> int:
    """Run the cells; returns the exit code."""
    from ..bench.results import read_lines
    from ..bench.runner import run_grid
    from ..bench.tuning import at_best_rate, first_seed

    every = cells
    if options.tune_first:
        cells = first_seed(every)
    errors = run_grid(cells, output, options.data_root, options.processes, options.structure)
    if options.tune_first:
        others = at_best_rate(every, read_lines(output))
        errors += run_grid(others, output, options.data_root, options.processes, options.structure)
        cells = [*cells, *others]
    print(f"{len(cells) - len(errors)} of {len(cells)} trainings are in {output}.")
    for error in errors:
        print(f"Failed: {error}")
    return 1 if errors else 0


def chosen_grids(options: CompareOptions) -> list[Grid]:
    """The grids of preset, file or flags, with the flags' settings in them."""
    from ..bench.grid import PRESETS, Grid, load_grids, select

    if options.preset is not None and options.grid is not None:
        raise CommandError("--preset and --grid both name a grid: give one of them.")
    if options.preset is not None and options.preset not in PRESETS:
        raise CommandError(f"Unknown preset {options.preset!r}: choose one of {', '.join(PRESETS)}.")
    source = options.preset or options.grid
    if source is not None:
        grids = select(load_grids(source), options.dataset or (), options.model or ())
    else:
        grids = [Grid(datasets=options.dataset or (), models=options.model or ())]
    return [replace(grid, **overrides(options, grid)) for grid in grids]


def overrides(options: CompareOptions, grid: Grid) -> dict[str, Any]:
    """Settings that flags give, for one grid."""
    given = {setting: getattr(options, flag) for flag, setting in OVERRIDES.items()}
    values = {setting: value for setting, value in given.items() if value is not None}
    if "methods" in values:
        values["methods"] = parsed_methods(values["methods"], grid.methods)
    if options.steps is not None or options.epochs is not None:
        values |= {"steps": options.steps, "epochs": options.epochs}
        if options.steps is not None and options.evaluations is None and grid.evaluations is None:
            values["evaluations"] = 10
    return values | ({"from_config": True} if options.from_config else {})


def parsed_methods(words: Sequence[str], own: Sequence[str | Mapping[str, Any]]) -> list[Any]:
    """Names as they are, those of a grid's own methods as it defines them, JSON objects read."""
    known = {method["name"]: method for method in own if not isinstance(method, str) and "name" in method}
    methods = []
    for word in words:
        try:
            methods.append(json.loads(word) if word.lstrip().startswith("{") else known.get(word, word))
        except (ValueError, RecursionError) as error:
            raise CommandError(f"--method: {word!r} is neither a name nor JSON: {error}.") from error
    return methods
