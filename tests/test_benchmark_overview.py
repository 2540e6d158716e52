"""The table of all settings in a report: every cell equals the figures computed by hand from the lines."""

import pytest
from test_benchmark_report import line, settings_of

from hf_lwal.bench.report import OVERVIEW_EXPLANATION, markdown, overview_parts
from hf_lwal.bench.summary import tables


def few(method, seed, accuracies, dataset="banking77", rows_per_label=4, **changes):
    """A finished line of a grid with few rows per label."""
    found = line(method, 0.1, seed, accuracies, dataset=dataset, rows_per_label=rows_per_label, **changes)
    return {**found, "key": f"{method} {seed} {dataset} {rows_per_label} {changes}"}


def overview(lines, plan=None):
    """Header and rows of the table, by the setting of a row."""
    _, explanation, table = overview_parts(tables(lines, plan or {}))
    header, _, *rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()]
    return explanation, header, {row[0]: row[1:] for row in rows}


LINES = [
    few("one_hot", 1, [0.1, 0.5, 0.7]),
    few("one_hot", 2, [0.1, 0.5, 0.9]),
    few("default", 1, [0.4, 0.6, 0.6]),
    few("default", 2, [0.4, 0.6, 0.6]),
    few("one_hot", 1, [0.2, 0.3, 0.4], rows_per_label=8),
    few("one_hot", 1, [0.2, 0.3, 0.4], dataset="trec", rows_per_label=8),
]


def test_a_row_for_each_setting_and_a_column_for_each_method():
    """Settings that share a row would show the mean of different tasks as one method's."""
    explanation, header, rows = overview(LINES)
    assert header == ["setting", "one_hot", "default"]
    assert rows == {
        "banking77, 4 rows per label": [
            "10.0 ± 0.0 / **65.0 ± 7.1** / **80.0 ± 14.1**, 5 ± 0 s",
            "**40.0 ± 0.0** / 60.0 ± 0.0 / 60.0 ± 0.0, 5 ± 0 s",
        ],
        "banking77, 8 rows per label": ["**20.0** / **35.0** / **40.0**, 5 s", ""],
        "trec, 8 rows per label": ["**20.0** / **35.0** / **40.0**, 5 s", ""],
    }
    assert explanation.endswith("All have: mlp, batch 32, 20 steps, adamw_torch.")


def test_what_all_settings_share_is_said_once():
    explanation, _, rows = overview(LINES[4:])
    assert set(rows) == {"banking77", "trec"}
    assert "All have: 8 rows per label, mlp," in explanation


def test_seeds_that_are_missing_are_counted():
    """One lucky draw of three would look like a finished column."""
    plan = {f"later {seed}": settings_of("one_hot", 0.1, seed, dataset="trec", rows_per_label=8) for seed in (2, 3)}
    absent = {"absent": settings_of("setfit", 0.1, 1, dataset="trec", rows_per_label=8)}
    broken = {
        "key": "broken",
        "settings": settings_of("lp_ft", 0.1, 1, dataset="trec", rows_per_label=8),
        "error": "no",
    }
    _, header, rows = overview([*LINES, broken], {**plan, **absent})
    cells = dict(zip(header[1:], rows["trec, 8 rows per label"], strict=True))
    assert cells["one_hot"] == "**20.0** / **35.0** / **40.0**, 5 s (1/3)"
    assert (cells["setfit"], cells["lp_ft"], cells["default"]) == ("not run", "failed", "")


@pytest.mark.parametrize("lines", [LINES[:4], []])
def test_a_single_setting_has_no_table_of_settings(lines):
    found = tables(lines, {})
    assert overview_parts(found) == []
    assert OVERVIEW_EXPLANATION not in markdown(found, {})
