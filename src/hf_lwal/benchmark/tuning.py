"""Choose learning rates with the first seed, so that the other seeds cost one training per method."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .grid import Cell


def first_seed(cells: Sequence[Cell]) -> list[Cell]:
    """The cells with the seed that comes first."""
    return [cell for cell in cells if cell.seed == cells[0].seed]


def at_best_rate(cells: Sequence[Cell], records: Iterable[Mapping[str, Any]]) -> list[Cell]:
    """The cells of the other seeds, each method only at the learning rate at which the first seed was best.

    Args:
        cells: all of a grid.
        records: lines of the file of results; of those with one key the last finished one counts.

    Returns:
        Cells in their order; none of a method whose trainings all failed with the first seed.
    """
    accuracies = {
        record["key"]: max(accuracy for _, accuracy in record["curve"][1:])
        for record in records
        if "error" not in record
    }
    rates: dict[str, float] = {}
    best: dict[str, float] = {}
    for cell in first_seed(cells):
        accuracy = accuracies.get(cell.key, -1.0)
        if accuracy > best.get(_method(cell), -1.0):
            best[_method(cell)], rates[_method(cell)] = accuracy, cell.learning_rate
    return [cell for cell in cells if cell.seed != cells[0].seed and cell.learning_rate == rates.get(_method(cell))]


def _method(cell: Cell) -> str:
    """All settings but the two that differ."""
    return json.dumps({**cell.settings, "learning_rate": None, "seed": None}, sort_keys=True)
