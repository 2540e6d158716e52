"""Classes with few rows among classes with many: what a log prior in the training loss does for them.

    python benchmarks/long_tail.py --data-root DATA --output long_tail.jsonl     # half an hour a seed on a shared core
    python benchmarks/long_tail.py --summarise long_tail.jsonl                   # the table alone

A random order of the classes gets 64, …, 2 training rows, in a geometric series; test rows are as many of each class.
MiniLM, pooled as it was trained to be, is fine-tuned on them with and without ``lwal_prior train`` (Menon et al., ICLR
2021), with balanced class weights, and with one-hot labels from the same fitted start; beside them a logistic
regression on the frozen features, as it is, with balanced weights, and with the log prior taken from its logits.
Every training has the same rows in the same order. A finished line is not measured again.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import PrinterCallback

from hf_lwal.bench.datasets import Data, load_data
from hf_lwal.bench.frozen_regression import fit_regression
from hf_lwal.bench.models import build_model, model_spec
from hf_lwal.bench.report import markdown_table, spread
from hf_lwal.bench.rows import Rows
from hf_lwal.bench.trainers import comparison_arguments, comparison_trainer
from hf_lwal.data.labels import log_frequencies
from hf_lwal.data.selection import rank_in_class
from hf_lwal.metrics import mean_and_sd
from hf_lwal.modeling.heads import run_without_head
from hf_lwal.objectives.stock import stock_head

ONE_HOT = {"label_method": "one_hot", "lwal_init": "class_means", "lwal_initial_head": "probe"}
METHODS: dict[str, dict[str, Any]] = {
    "LwAL": {"label_method": "lwal"},
    "LwAL, lwal_class_weights balanced": {"label_method": "lwal", "lwal_class_weights": "balanced"},
    "LwAL, lwal_prior train": {"label_method": "lwal", "lwal_prior": "train"},
    "one-hot, fitted start": ONE_HOT,
    "one-hot, fitted start, balanced weights": {**ONE_HOT, "lwal_class_weights": "balanced"},
    "one-hot, fitted start, lwal_prior train": {**ONE_HOT, "lwal_prior": "train"},
}
REGRESSIONS = ("frozen regression", "frozen regression, balanced weights", "frozen regression, less the log prior")
PARTS = ("all", "frequent third", "middle third", "rarest third")


def tailed(data: Data, most: int, least: int, seed: int) -> tuple[Data, np.ndarray]:
    """The data with ``most`` to ``least`` training rows per class, and the place of each class in that order."""
    generator = np.random.default_rng(seed)
    place = generator.permutation(len(data.names))
    wanted = np.rint(most * (least / most) ** (place / (len(place) - 1)))
    labels = np.asarray(data.train["label"][:])
    order = generator.permutation(len(labels))
    rows = order[rank_in_class(labels[order]) < wanted[labels[order]]]
    return data._replace(train=data.train.select(np.sort(rows))), place


def by_part(predicted: Tensor, labels: Tensor, place: np.ndarray) -> dict[str, float]:
    """Mean accuracy of the classes in percent, of all of them and of each third by rows."""
    hits = torch.zeros(len(place)).index_add(0, labels, (predicted == labels).float())
    shares = 100 * hits / torch.bincount(labels, minlength=len(place))
    third = torch.from_numpy(np.minimum(3 * place // len(place), 2))
    return {PARTS[0]: float(shares.mean())} | {PARTS[i + 1]: float(shares[third == i].mean()) for i in range(3)}


def regressions(rows: Rows, names: list[str]) -> Iterable[tuple[str, Tensor]]:
    """Logits (N, C) of the test rows by each of `REGRESSIONS`."""
    model = build_model("minilm_pooled", rows, names, 0, False).eval()
    head = stock_head(model).name
    with torch.no_grad():
        parts = [
            torch.cat(
                [
                    run_without_head(model, head, {k: v for k, v in batch.items() if k != "labels"}).logits
                    for batch in DataLoader(part, 128, collate_fn=rows.collator)
                ]
            )
            for part in (rows.train, rows.test)
        ]
    labels = torch.as_tensor(rows.train["labels"][:])
    prior = log_frequencies(labels.numpy(), len(names))
    plain, balanced, _ = REGRESSIONS
    for name in (plain, balanced):
        found = fit_regression(parts[0], labels, len(names), balanced=name == balanced)
        logits = parts[1] @ found.weight.T + found.bias
        yield name, logits
        if name == plain:
            yield REGRESSIONS[2], logits - prior


def trained(method: dict[str, Any], rows: Rows, names: list[str], seed: int, args: argparse.Namespace) -> Tensor:
    """Logits (N, C) of the test rows after fine-tuning."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = comparison_arguments(
            folder,
            method,
            steps=args.steps,
            batch_size=32,
            learning_rate=args.learning_rate,
            evaluations=1,
            seed=seed,
            disable_tqdm=True,
            remove_unused_columns=False,
            **({"use_cpu": True} if not torch.accelerator.is_available() else {}),
        )
        arguments.eval_strategy, arguments.eval_on_start = "no", False
        model = build_model("minilm_pooled", rows, names, seed, False)
        trainer = comparison_trainer(model, arguments, method, train_dataset=rows.train, data_collator=rows.collator)
        trainer.remove_callback(PrinterCallback)
        trainer.train()
        return torch.as_tensor(trainer.predict(rows.test).predictions)


def measure(args: argparse.Namespace) -> None:
    """Run what is not in the file yet, and append a line for each."""
    done = {key_of(line) for line in read(args.output)}
    for seed in range(args.seeds):
        for dataset in args.datasets:
            whole = load_data(dataset, args.data_root, None, args.test_rows)
            data, place = tailed(whole, args.most, args.least, seed)
            rows = model_spec("minilm_pooled").rows(data, False)
            labels = torch.as_tensor(rows.test["labels"][:])
            missing = [name for name in (*REGRESSIONS, *METHODS) if (dataset, name, seed, args.steps) not in done]
            for name, logits, seconds in results(missing, rows, data.names, seed, args):
                line = {"dataset": dataset, "method": name, "seed": seed, "steps": args.steps}
                line |= {"rows": len(rows.train), "seconds": round(seconds, 1)}
                line |= {part: round(value, 3) for part, value in by_part(logits.argmax(dim=1), labels, place).items()}
                print(json.dumps(line), flush=True)
                with args.output.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")


def results(
    missing: list[str], rows: Rows, names: list[str], seed: int, args: argparse.Namespace
) -> Iterable[tuple[str, Tensor, float]]:
    """Method, logits (N, C) of the test rows, and seconds of training; regressions count none."""
    if not set(missing).isdisjoint(REGRESSIONS):
        yield from ((name, logits, 0.0) for name, logits in regressions(rows, names) if name in missing)
    for name in (name for name in METHODS if name in missing):
        started = time.perf_counter()
        logits = trained(METHODS[name], rows, names, seed, args)
        yield name, logits, time.perf_counter() - started


def key_of(line: dict[str, Any]) -> tuple[str, str, int, int]:
    """What tells lines apart."""
    return line["dataset"], line["method"], line["seed"], line["steps"]


def read(path: Path | None) -> list[dict[str, Any]]:
    """Lines of a file of results, none where there is no such file."""
    if path is None or not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def summary(lines: list[dict[str, Any]]) -> str:
    """A table per data set."""
    parts = []
    for dataset in dict.fromkeys(line["dataset"] for line in lines):
        own = [line for line in lines if line["dataset"] == dataset]
        rows = []
        for name in (*REGRESSIONS, *METHODS):
            found = [line for line in own if line["method"] == name]
            if found:
                cells = [spread(mean_and_sd([line[part] for line in found])) for part in PARTS]
                rows.append([name, *cells, str(len(found))])
        parts.append(f"{dataset}\n\n{markdown_table(['method', *PARTS, 'seeds'], rows)}")
    return "\n\n".join(parts)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", help="folder that holds clinc150 and banking77")
    parser.add_argument("--datasets", nargs="+", default=["clinc150", "banking77"])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--most", type=int, default=64, help="training rows of the most frequent class")
    parser.add_argument("--least", type=int, default=2, help="of the rarest")
    parser.add_argument("--test-rows", type=int, default=1540, help="rows to measure on, of every class as many")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "long_tail.jsonl")
    parser.add_argument("--summarise", type=Path, help="print the tables of a file of results and run nothing")
    args = parser.parse_args()
    if args.summarise is None:
        measure(args)
    print(summary(read(args.summarise or args.output)))


if __name__ == "__main__":
    main()
