"""Label names as a start: accuracy before the first step with few rows per label or none, with and without names.

    python benchmarks/label_names.py --data-root DATA                   # about ten minutes on two cores
    python benchmarks/label_names.py --data-root DATA --cache FOLDER    # keeps the features
    python benchmarks/label_names.py --data-root DATA --output benchmarks/results/label_names.jsonl
    python benchmarks/label_names.py --data-root DATA --datasets clinc150 --rows 1 4 --regression

Frozen MiniLM, pooled as it was trained, several draws of the rows, whole test sets of Banking77 and CLINC150. "means"
is the nearest class mean, "start" the nearest label vector after the default start; each without names, with names
(`lwal_label_names="auto"`), and with names that were shuffled, which must change nothing. All by the functions that
training calls. With --regression also a logistic regression on the same rows, its strength chosen by cross-validation.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from typing import Any

import torch
from start_probe import cached, features_of
from torch import Tensor

from hf_lwal.bench.datasets import dataset_spec, load_data
from hf_lwal.bench.frozen_regression import fit_regression
from hf_lwal.data.sources import stratified_indices
from hf_lwal.functional import class_sums, pairwise_distances
from hf_lwal.modeling.name_start import agreement, name_texts, with_names
from hf_lwal.modeling.start import StartSamples
from hf_lwal.objectives.one_hot import fit_head

VARIANTS = ("without", "with", "shuffled")


def nearest_mean(samples: StartSamples, num_labels: int) -> Callable[[Tensor], Tensor]:
    """Function from features (N, H) to the nearest class mean (N,)."""
    sums, counts = class_sums(samples.values.double(), samples.labels, num_labels)
    means = sums / counts.clamp(min=1.0).unsqueeze(1)
    return lambda features: pairwise_distances(features.double(), means).argmin(dim=1)


def after_start(samples: StartSamples, num_labels: int) -> Callable[[Tensor], Tensor]:
    """Function from features (N, H) to the nearest label vector (N,) of the default start."""
    weight, bias, _ = fit_head(samples.values, samples.labels, num_labels, names=samples.names)
    return lambda features: (features @ weight.T + bias).argmax(dim=1)


def regression(samples: StartSamples, num_labels: int) -> Callable[[Tensor], Tensor]:
    """Function from features (N, H) to the likeliest label (N,) of a logistic regression."""
    found = fit_regression(samples.values, samples.labels, num_labels)
    return lambda features: (features @ found.weight.T + found.bias).argmax(dim=1)


KINDS: dict[str, Callable[[StartSamples, int], Callable[[Tensor], Tensor]]] = {
    "means": nearest_mean,
    "start": after_start,
    "regression": regression,
}


def measured(
    kinds: Sequence[str],
    samples: StartSamples,
    named: StartSamples,
    names: dict[int, str],
    draw: int,
    test: Tensor,
    truth: Tensor,
) -> dict[str, Any]:
    """Percent right of every start, and of the names on the rows."""
    order = torch.randperm(len(names), generator=torch.Generator().manual_seed(draw))
    starts = {
        "without": samples,
        "with": with_names(samples, named, "auto", names),
        "shuffled": with_names(samples, StartSamples(named.values[order], named.labels, 0.0), "auto", names),
    }
    found: dict[str, Any] = {"names_on_rows": round(100 * agreement(*samples[:2], named)[0], 2)}
    for variant in VARIANTS:
        start = starts[variant]
        found[f"counted_{variant}"] = start.names
        for kind in kinds:
            if not start.names and variant != VARIANTS[0]:  # the rows alone again
                found[f"{kind}_{variant}"] = found[f"{kind}_{VARIANTS[0]}"]
                continue
            predicted = KINDS[kind](start, len(names))(test)
            found[f"{kind}_{variant}"] = round(100 * float((predicted == truth).double().mean()), 2)
    return found


def mean(cells: list[dict[str, Any]], name: str) -> float:
    """Mean of a figure over draws."""
    return float(sum(cell[name] for cell in cells)) / len(cells)


def main() -> None:
    """Measure every cell and print the mean over the draws."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", help="folder with one folder per data set; default: embedded, or the Hub")
    parser.add_argument("--datasets", nargs="+", default=["clinc150", "banking77"])
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 2, 4, 8, 15, 16], help="rows per label")
    parser.add_argument("--draws", type=int, default=3, help="draws of the rows")
    parser.add_argument("--cache", help="folder for the features; default: none")
    parser.add_argument("--output", help="file of JSON lines to append to; default: none")
    parser.add_argument("--regression", action="store_true", help="a logistic regression on the same rows, too: slow")
    args = parser.parse_args()
    kinds = [kind for kind in KINDS if args.regression or kind != "regression"]
    print("data set   rows  " + "  ".join(f"{kind}: {' / '.join(VARIANTS)}" for kind in kinds))
    for dataset in args.datasets:
        data, length = load_data(dataset, args.data_root, None, None), dataset_spec(dataset).max_length
        labels, truth = torch.tensor(data.train["label"][:]), torch.tensor(data.test["label"][:])
        names = dict(enumerate(data.names))
        texts = name_texts("auto", names)

        def features(split: str, rows: list[str], dataset: str = dataset, length: int = length) -> Tensor:
            made: Tensor = cached(args.cache, f"{dataset}_{split}_auto", lambda: features_of(rows, "auto", length))
            return made

        train, test = features("train", data.train[data.input][:]), features("test", data.test[data.input][:])
        named = StartSamples(features_of(list(texts.values()), "auto", length), torch.tensor(list(texts)), 0.0)
        alone = float((nearest_mean(named, len(names))(test) == truth).double().mean())
        print(f"{dataset:10} {0:4}  the name alone: {100 * alone:.1f}", flush=True)
        lines = [{"dataset": dataset, "rows": 0, "means_with": round(100 * alone, 2)}]
        for rows in args.rows:
            cells = []
            for draw in range(args.draws):
                chosen = torch.tensor(stratified_indices(labels.tolist(), rows * len(names), draw))
                samples = StartSamples(train[chosen], labels[chosen], 0.0)
                cells.append(measured(kinds, samples, named, names, draw, test, truth))
                lines.append({"dataset": dataset, "rows": rows, "draw": draw, **cells[-1]})
            shown = [" / ".join(f"{mean(cells, f'{kind}_{one}'):.1f}" for one in VARIANTS) for kind in kinds]
            print(f"{dataset:10} {rows:4}  {'    '.join(shown)}", flush=True)
        if args.output:
            with open(args.output, "a", encoding="utf-8") as file:
                file.writelines(json.dumps(line) + "\n" for line in lines)


if __name__ == "__main__":
    main()
