"""Answers of ``hf-lwal predict`` as a line for people, a record for programs, or a file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..data.tables import quoting
from ..errors import harmless
from .predict_inputs import Input


def record_of(entry: Input, answers: Sequence[dict[str, Any]], fault: str | None) -> dict[str, Any]:
    """What programs get: the label is None where there is no answer."""
    record: dict[str, Any] = {} if entry.id is None else {"id": entry.id}
    record |= {"input": entry.shown, **(answers[0] if answers else {"label": None, "score": None})}
    if len(answers) > 1:
        record["top"] = list(answers)
    return record if fault is None else {**record, "error": fault}


def as_file(records: Sequence[dict[str, Any]], name: str) -> str:
    """All records in the format that the name of the file ends in."""
    kind = Path(name).suffix.lower()
    if kind == ".json":
        return json.dumps(list(records), ensure_ascii=False, indent=2) + "\n"
    if kind == ".jsonl":
        return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    import pandas

    table = pandas.DataFrame(map(_flat, records), dtype=object)  # which leaves numbers beside gaps what they are
    separator, quoted = "," if kind == ".csv" else "\t", quoting(table.to_numpy().flat)
    return str(table.to_csv(index=False, sep=separator, lineterminator="\n", quoting=quoted))


def _flat(record: dict[str, Any]) -> dict[str, Any]:
    """A record as one row with the columns label, score, label_2, score_2 and so on."""
    more = {
        f"{name}_{place}": answer[name]
        for place, answer in enumerate(record.get("top", [])[1:], start=2)
        for name in ("label", "score")
    }
    return {name: value for name, value in record.items() if name != "top"} | more


def as_text(name: str, answers: Sequence[dict[str, Any]]) -> str:
    """One line: labels with their probabilities, a tab, and what was classified."""
    labels = ", ".join(
        f"{answer['label']} (nearest: {answer['nearest']} {answer['score']:.3f})"
        if answer.get("nearest", answer["label"]) != answer["label"]
        else f"{answer['label']} {answer['score']:.3f}"
        for answer in answers
    )
    return harmless(f"{' '.join(labels.split())}\t{' '.join(name.split())}")
