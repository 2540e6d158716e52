"""Accuracy before the first step: class means, the fitted start, and a logistic regression on the same features.

    python benchmarks/start_probe.py --data-root DATA                     # about five minutes on two cores
    python benchmarks/start_probe.py --data-root DATA --draws 3 --output benchmarks/results/start_probe.jsonl
    python benchmarks/start_probe.py --data-root DATA --rows 16 32 64 100 --no-regression   # what more rows are worth

Frozen MiniLM, read as the stock classifier reads it (first token, through its pooler) and as it was trained (mean over
the tokens, scaled to length 1), with a few rows per label of Banking77 and CLINC150, several draws of them. "whitened"
is the nearest class mean of the default start, "probe" the nearest label vector after ``lwal_initial_head="probe"``,
both by the functions that training calls; "regression" is scikit-learn's, its strength chosen by cross-validation.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

from hf_lwal.bench.comparison import embedded_model_path, quiet
from hf_lwal.bench.datasets import dataset_spec, load_data
from hf_lwal.bench.frozen_regression import fit_regression
from hf_lwal.data.sources import stratified_indices
from hf_lwal.functional import class_sums, pairwise_distances
from hf_lwal.modeling.configuration_pooled import config_with_pooling
from hf_lwal.modeling.head_start import class_mean_projection
from hf_lwal.modeling.heads import run_without_head
from hf_lwal.modeling.probe_start import fit_start

POOLINGS = {"first token": "model", "mean": "auto"}


@torch.no_grad()
def features_of(texts: list[str], pooling: str, max_length: int) -> Tensor:
    """(N, H) input of the classifier of frozen MiniLM."""
    source = embedded_model_path()
    config = config_with_pooling(AutoConfig.from_pretrained(source), "text", source, pooling)
    with quiet():
        model = AutoModelForSequenceClassification.from_pretrained(source, config=config).eval()
    tokenizer = AutoTokenizer.from_pretrained(source)
    order = sorted(range(len(texts)), key=lambda row: len(texts[row]))
    parts = []
    for start in tqdm(range(0, len(texts), 128), desc=pooling, leave=False):
        batch = [texts[row] for row in order[start : start + 128]]
        inputs = tokenizer(batch, padding=True, truncation=True, max_length=max_length, return_tensors="pt")
        parts.append(run_without_head(model, "classifier", inputs).logits)
    return torch.cat(parts)[torch.tensor(order).argsort()]


def cached(folder: str | None, name: str, make: Any) -> Any:
    """What ``make`` returns, kept in a folder where one is given."""
    if folder is None:
        return make()
    path = Path(folder) / f"{name}.pt"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(make(), path)
    return torch.load(path)


def nearest(features: Tensor, labels: Tensor, test: Tensor, head: tuple[Tensor, Tensor], offset: Tensor) -> Tensor:
    """Nearest label vector (M,) of test features, with class means of ``features`` through a head."""
    weight, bias = head
    sums, counts = class_sums(features.double(), labels, len(offset))
    vectors = sums / counts.clamp(min=1.0).unsqueeze(1) @ weight.T + bias + offset
    return pairwise_distances(test.double() @ weight.T + bias, vectors).argmin(dim=1)


def measured(
    features: Tensor, labels: Tensor, test: Tensor, truth: Tensor, num_labels: int, with_regression: bool
) -> dict[str, Any]:
    """Percent right and seconds of every start."""
    dim = min(features.shape[1], max(128, num_labels))
    began = time.perf_counter()
    head = class_mean_projection(features, labels, num_labels, dim)
    plain = nearest(features, labels, test, head, torch.zeros(num_labels, dim))
    middle = time.perf_counter()
    fitted = fit_start(features, labels, num_labels, dim)
    ended = time.perf_counter()
    probe = plain if fitted is None else nearest(features, labels, test, fitted[:2], fitted.offset)

    def percent(predicted: Tensor) -> float:
        return round(100 * float((predicted == truth).double().mean()), 2)

    found: dict[str, Any] = {
        "whitened": percent(plain),
        "probe": percent(probe),
        "held_out": None if fitted is None else round(100 * fitted.accuracy, 2),
        "share": None if fitted is None else fitted.share,
        "seconds": {"whitened": round(middle - began, 2), "probe": round(ended - middle, 2)},
    }
    if with_regression:
        regression = fit_regression(features, labels, num_labels)
        found |= {"regression": round(100 * regression.accuracy(test, truth), 2), "strength": regression.strength}
        found["seconds"]["regression"] = round(regression.seconds, 2)
    return found


def main() -> None:
    """Measure every cell and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", help="folder with one folder per data set; default: embedded, or the Hub")
    parser.add_argument("--datasets", nargs="+", default=["banking77", "clinc150"])
    parser.add_argument("--rows", nargs="+", type=int, default=[8, 16], help="rows per label")
    parser.add_argument("--draws", type=int, default=1, help="draws of the rows")
    parser.add_argument(
        "--no-regression", action="store_true", help="with many rows it takes far longer than the rest"
    )
    parser.add_argument("--cache", help="folder for the features; default: none")
    parser.add_argument("--output", help="file of JSON lines to append to; default: none")
    args = parser.parse_args()
    print(f"{'data set':10} {'pooling':12} rows draw  whitened  probe  regression  seconds (probe, regression)")
    for dataset in args.datasets:
        data, length = load_data(dataset, args.data_root, None, None), dataset_spec(dataset).max_length
        labels, truth = torch.tensor(data.train["label"][:]), torch.tensor(data.test["label"][:])
        for shown, pooling in POOLINGS.items():
            train, test = (
                cached(
                    args.cache,
                    f"{dataset}_{split}_{pooling}",
                    functools.partial(features_of, rows[data.input][:], pooling, length),
                )
                for split, rows in (("train", data.train), ("test", data.test))
            )
            for rows in args.rows:
                for draw in range(args.draws):
                    chosen = torch.tensor(stratified_indices(labels.tolist(), rows * len(data.names), draw))
                    found = measured(
                        *(train[chosen], labels[chosen], test, truth, len(data.names)), not args.no_regression
                    )
                    seconds = found["seconds"]
                    print(
                        f"{dataset:10} {shown:12} {rows:4} {draw:4}  {found['whitened']:8.1f}  {found['probe']:5.1f}  "
                        f"{found.get('regression', math.nan):10.1f}  {seconds['probe']:.1f}, "
                        f"{seconds.get('regression', math.nan):.1f}",
                        flush=True,
                    )
                    if args.output:
                        line = {"dataset": dataset, "pooling": shown, "rows": rows, "draw": draw, **found}
                        with open(args.output, "a", encoding="utf-8") as file:
                            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
