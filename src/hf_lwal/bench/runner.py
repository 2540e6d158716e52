"""Run the cells of a grid that are not in the file of results yet, one after the other or in several processes."""

from __future__ import annotations

import logging
import multiprocessing
import os
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import CommandError
from .grid import Cell
from .results import append_line, drop_torn_line, finished_keys, read_lines, write_plan

logger = logging.getLogger(__name__)


def pending_cells(cells: Sequence[Cell], output: Path, structure: bool = False, tidy: bool = True) -> list[Cell]:
    """The cells without a finished line in the file of results.

    Args:
        cells: that are wanted.
        output: file of results.
        structure: as in `run_grid`.
        tidy: cut off a torn last line first, which may be one that another process is writing.
    """
    if tidy:
        drop_torn_line(output)
    done = finished_keys(read_lines(output), structure) if output.exists() else set()
    return [cell for cell in cells if cell.key not in done]


def run_grid(
    cells: Sequence[Cell],
    output: Path,
    data_root: str | None = None,
    processes: int = 1,
    structure: bool = False,
) -> list[str]:
    """Run cells and append a line for each; those that are finished in ``output`` are left out.

    A cell that fails gets a line with "error", does not stop the others, and runs again at the next call.

    Args:
        cells: what to run, in this order.
        output: file of results; the plan is written beside it.
        data_root: folder with one folder per data set, or None.
        processes: number of worker processes; they share the GPUs there are.
        structure: also measure what the label vectors say about the labels, and keep them beside the results; cells
            that ran without run again.

    Returns:
        One sentence for each cell that failed.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    waiting = pending_cells(cells, output, structure)  # first: it refuses a file that is no file of results
    write_plan(output, {cell.key: cell.settings for cell in cells})
    place = Place(output, data_root, vectors_folder(output) if structure else None)
    run = _in_this_process if processes == 1 else _in_workers
    errors = []
    # The generator is closed at once when interrupted, so that no worker outlives the command.
    with (
        _bar(len(cells), len(cells) - len(waiting)) as bar,
        closing(run(waiting, place, processes, bar)) as finished,
    ):
        for cell, record in finished:
            bar.update()
            if "error" in record:
                errors.append(f"{cell}: {record['error']}")
            bar.write(f"{cell}: {_outcome(record)}")
    return errors


def vectors_folder(output: Path) -> Path:
    """The folder beside the results with a table of label vectors per training."""
    return output.with_suffix(".vectors")


class Place(NamedTuple):
    """Where a worker reads and writes.

    Attributes:
        output: file of results.
        data_root: folder with one folder per data set, or None.
        vectors: folder for label vectors, or None.
    """

    output: Path
    data_root: str | None
    vectors: Path | None


def run_and_append(
    cell: Cell, place: Place, on_accuracy: Callable[[int, float], None] | None = None
) -> dict[str, Any]:
    """Run one cell and append its line; returns the line."""
    from .training import run_cell

    try:
        result = run_cell(cell, place.data_root, on_accuracy, place.vectors)
    except Exception as error:  # whatever stopped this cell, the others can still run
        logger.debug("A cell failed.", exc_info=True)
        kind = "" if isinstance(error, CommandError) else f"{type(error).__name__}: "
        result = {"error": kind + " ".join(str(error).split())}
    record = {"key": cell.key, "settings": cell.settings, **result}
    append_line(place.output, record)
    return record


def _outcome(record: dict[str, Any]) -> str:
    """What a line says, in a few words."""
    if "error" in record:
        return f"failed: {record['error']}"
    random = ", random weights" if record["weights"] == "random" and record["settings"]["from_config"] else ""
    strength = f", C {record['strength']:g}" if "strength" in record else ""
    return f"{100.0 * record['curve'][-1][1]:.1f} % ({record['seconds']['with_evaluation']:.0f} s{strength}{random})"


def _bar(total: int, done: int) -> Any:
    from tqdm.auto import tqdm  # type: ignore[import-untyped]

    return tqdm(total=total, initial=done, desc="Cells", unit="cell", dynamic_ncols=True)


def _in_this_process(
    cells: Sequence[Cell], place: Place, _: int, bar: Any
) -> Generator[tuple[Cell, dict[str, Any]], None, None]:
    _quieten()
    _choose_gpu(0)
    for cell in cells:
        bar.set_description(f"{cell.dataset} {cell.model} {cell.method['name']}")
        yield (
            cell,
            run_and_append(cell, place, lambda step, accuracy: bar.set_postfix_str(f"step {step}: {accuracy:.1%}")),
        )


def _in_workers(
    cells: Sequence[Cell], place: Place, processes: int, bar: Any
) -> Generator[tuple[Cell, dict[str, Any]], None, None]:
    context = multiprocessing.get_context("spawn")  # a fork would inherit threads and the GPU's state
    turns = context.Value("i", 0)
    threads = max(1, (os.cpu_count() or 1) // processes)
    workers = ProcessPoolExecutor(processes, context, _start_worker, (turns, threads))
    try:
        running = {workers.submit(run_and_append, cell, place): cell for cell in cells}
        for future in as_completed(running):
            yield running[future], future.result()
    except BrokenProcessPool as error:
        raise CommandError(
            "A worker process was ended from outside, perhaps because memory ran out: run the same command again with "
            "fewer --processes; finished cells are kept."
        ) from error
    except BaseException:
        for process in list((workers._processes or {}).values()):
            process.terminate()  # after Ctrl-C nobody waits for the cells that were under way
        raise
    finally:
        workers.shutdown(cancel_futures=True)


def _start_worker(turns: Any, threads: int) -> None:
    """First thing in a worker process: a share of the cores, its GPU, and an end when the command's process ends."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the command ends its workers itself
    parent = multiprocessing.parent_process()
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    with turns.get_lock():
        turn, turns.value = turns.value, turns.value + 1
    os.environ["OMP_NUM_THREADS"] = str(threads)
    import torch

    torch.set_num_threads(threads)
    _choose_gpu(turn)
    _quieten()


def _end_with(parent: Any) -> None:
    parent.join()
    os._exit(1)


def _choose_gpu(turn: int) -> None:
    """Show this process one GPU only: with several, the trainer would split every batch over all of them."""
    import torch

    number = torch.cuda.device_count()
    if number > 1:
        shown = os.environ.get("CUDA_VISIBLE_DEVICES")
        places = shown.split(",") if shown else [str(place) for place in range(number)]
        os.environ["CUDA_VISIBLE_DEVICES"] = places[turn % number]


def _quieten() -> None:
    """Hide what transformers reports at every start of a training; warnings of this library stay."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
