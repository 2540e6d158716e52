"""Choose learning rates with one seed each, so that the other seeds cost one training per method."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .grid import Cell, key_of


def first_seed(cells: Sequence[Cell]) -> list[Cell]:
    """The cells with the seed that comes first for their method and learning rate: each grid has its own seeds."""
    seeds: dict[tuple[str, float], int] = {}
    for cell in cells:
        seeds.setdefault((_method(cell), cell.learning_rate), cell.seed)
    return [cell for cell in cells if cell.seed == seeds[_method(cell), cell.learning_rate]]


def at_best_rate(cells: Sequence[Cell], records: Iterable[Mapping[str, Any]]) -> list[Cell]:
    """The other cells, each method only at the learning rate at which the first seed was best; of equals the smaller.

    Returns:
        Cells in their order; none of a method whose trainings all failed with the first seed.
    """
    accuracies = {
        record["key"]: max(accuracy for _, accuracy in record["curve"][1:])
        for record in records
        if "error" not in record
    }
    tried = first_seed(cells)
    best: dict[str, tuple[float, float]] = {}
    for cell in tried:
        if cell.key in accuracies:
            found = (accuracies[cell.key], -cell.learning_rate)
            best[_method(cell)] = max(found, best.get(_method(cell), found))
    done = {cell.key for cell in tried}
    return [
        cell
        for cell in cells
        if cell.key not in done and _method(cell) in best and cell.learning_rate == -best[_method(cell)][1]
    ]


def _method(cell: Cell) -> str:
    """All settings but the two that differ."""
    return key_of({**cell.settings, "learning_rate": None, "seed": None})
