"""Which stock classifiers of transformers work with a label table, and why the others do not.

    python benchmarks/architectures.py                                # all of them, about five minutes on one core
    python benchmarks/architectures.py --only llama image/vit         # names that contain one of these
    python benchmarks/architectures.py --results architectures.jsonl  # a line each; a second run goes on from there
    python benchmarks/architectures.py --output architectures.md      # the tables to a file as well

Every configuration class in transformers' mappings for sequence, image and audio classification, and a few timm
backbones, tiny and random (timm's of full size): the embeddings are the stock class's outputs; a step of
`LwALTrainer` moves the encoder, its head and the label table; saved and loaded it is bit for bit the same; a
fine-tuned stock checkpoint is taken over; the stock pipeline gives the model's probabilities; the folded model
predicts the same labels. Exits with 1 if an architecture that is not excluded by name breaks one of these promises.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))  # the tiny models of the tests

from architecture_checks import CHECKS, build
from architectures import EXCLUDED, MAPPINGS, Architecture, architectures

SUMMARY = ("stock classes", "work", "fold to a checkpoint", "fold in memory", "no single linear head", "excluded")
HOW_FOLDED = {"checkpoint": "fold to a checkpoint", "memory": "fold in memory", "none": "no single linear head"}


def sentence(error: BaseException) -> str:
    """First line of the message, and where the error came from."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    message = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {message} ({Path(last.filename).name}:{last.lineno})"


def tried(architecture: Architecture) -> dict[str, Any]:
    """Run all checks; one JSON-serialisable record."""
    record: dict[str, Any] = {**architecture._asdict(), "name": architecture.name, "failures": {}}
    started = time.perf_counter()
    try:
        subject = build(architecture)
    except Exception as error:
        return record | {"failures": {"build": sentence(error)}}
    record["parameters"] = sum(parameter.numel() for parameter in subject.model.parameters())
    record["head"] = subject.model.config.head_name
    with tempfile.TemporaryDirectory() as folder:
        for name, check in CHECKS.items():
            try:
                record[name] = check(subject, Path(folder))
            except Exception as error:
                record["failures"][name] = sentence(error)
    return record | {"seconds": round(time.perf_counter() - started, 2)}


def sweep(only: list[str], results: Path | None) -> list[dict[str, Any]]:
    """Records of all architectures that are not excluded; those in ``results`` are not run again."""
    lines = results.read_text(encoding="utf-8").splitlines() if results and results.exists() else []
    done = {record["name"]: record for record in map(json.loads, lines)}
    records = []
    for architecture in architectures():
        if architecture.model_type in EXCLUDED or not any(part in architecture.name for part in only):
            continue
        record = done.get(architecture.name)
        if record is None:
            record = tried(architecture)
            print(f"{architecture.name}: {record['failures'] or 'works'}", flush=True)
            if results is not None:
                with results.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(record) + "\n")
        records.append(record)
    return records


def table(header: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    """A Markdown table."""
    lines = [header, tuple("---" for _ in header), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def counts(records: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """One row per mapping, and one for timm's backbones."""
    rows = []
    for label, task, timm in [*((task, task, False) for task in MAPPINGS), ("image, timm backbones", "image", True)]:
        mine = [r for r in records if r["task"] == task and (r["backbone"] is not None) == timm]
        number = Counter(HOW_FOLDED[r["fold"]] for r in mine if "fold" in r)
        number["work"] = sum(not r["failures"] for r in mine)
        number["excluded"] = 0 if timm else sum(a.task == task and a.model_type in EXCLUDED for a in architectures())
        number["stock classes"] = len(mine) + number["excluded"]
        rows.append((label, *(number[column] for column in SUMMARY)))
    return rows


def report(records: list[dict[str, Any]]) -> str:
    """The tables in Markdown."""
    failed = [(r["name"], check, why) for r in records for check, why in r["failures"].items()]
    without = [f"`{r['backbone'] or r['class_name']}`" for r in records if r.get("fold") == "none"]
    parts = [
        f"transformers {transformers.__version__}, PyTorch {torch.__version__.partition('+')[0]}.",
        table(("mapping", *SUMMARY), counts(records)),
        "What does not work:\n\n" + (table(("architecture", "promise", "why"), failed) if failed else "nothing."),
        "Excluded by name:\n\n" + table(("model type", "why"), [(f"`{name}`", why) for name, why in EXCLUDED.items()]),
        f"Without a single linear head, so class means are kept of the embeddings: {', '.join(without) or 'none'}.",
    ]
    for task in MAPPINGS:
        names = [f"`{r['backbone'] or r['model_type']}`" for r in records if r["task"] == task and not r["failures"]]
        parts.append(f"Work, {task}: {', '.join(dict.fromkeys(names)) or 'none'}.")
    return "\n\n".join(parts) + "\n"


def main() -> None:
    """Parse the arguments, run the sweep, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[""], metavar="PART", help="names that contain one of these")
    parser.add_argument("--results", type=Path, help="JSON lines, kept and gone on from")
    parser.add_argument("--output", type=Path, help="Markdown file for the tables")
    args = parser.parse_args()
    logging.disable(logging.WARNING)  # every architecture has its own advice on sizes that nobody would use
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    records = sweep(args.only, args.results)
    text = report(records)
    print("\n" + text)
    if args.output is not None:
        args.output.write_text(text, encoding="utf-8")
    sys.exit(any(record["failures"] for record in records))


if __name__ == "__main__":
    main()
