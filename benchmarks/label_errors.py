"""Wrong labels: how well they are found before training, and what training without them is worth.

    python benchmarks/label_errors.py detection --data-root DATA --output benchmarks/results/label_errors.jsonl
    python benchmarks/label_errors.py training --data-root DATA --output benchmarks/results/label_errors_training.jsonl
    python benchmarks/label_errors.py table benchmarks/results/label_errors.jsonl

A share of the training labels is replaced, either by any other label ("symmetric") or by the one whose class mean is
nearest to that of the true one ("nearest": labels that people confuse). Features are those of frozen MiniLM, its
tokens pooled as it was trained, and for Fashion-MNIST of EfficientNet-lite0.

Detection: AUROC, and precision among as many rows as are wrong, of `label_errors` and of cleanlab (extra ``peers``) as
its documentation has it: out-of-sample probabilities from five-fold cross-validation of scikit-learn's logistic regression
on the same features, ranked by self-confidence, and the number of errors from its confident joint. Seconds are
processor time of one thread, without the features, which both need.

Training: the test accuracy after the same steps for every method, on MiniLM and on a small ConvNet from scratch.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from start_probe import cached, features_of
from torch import Tensor

from hf_lwal.bench.datasets import dataset_spec, load_data
from hf_lwal.bench.models import MODELS
from hf_lwal.modeling.heads import find_head, run_without_head
from hf_lwal.modeling.label_errors import label_errors

DATASETS = ("banking77", "clinc150", "fashion_mnist")
CELLS = (("none", 0.0), ("symmetric", 0.1), ("symmetric", 0.4), ("nearest", 0.1), ("nearest", 0.4))
MORE_SHARES = (("symmetric", 0.05), ("symmetric", 0.2), ("nearest", 0.05), ("nearest", 0.2))
"""Shares of which only the estimate is measured, beside `CELLS`."""


def noisy(labels: Tensor, features: Tensor, num_labels: int, kind: str, share: float, seed: int) -> Tensor:
    """Labels (N,) of which a share was replaced."""
    given, draw = labels.numpy().copy(), np.random.default_rng(seed)
    number = round(share * len(given))
    rows = draw.permutation(len(given))[:number]
    if kind == "symmetric":
        given[rows] = (given[rows] + draw.integers(1, num_labels, number)) % num_labels
    elif kind == "nearest":
        means = torch.stack([features[labels == label].double().mean(dim=0) for label in range(num_labels)])
        apart = torch.cdist(means, means).fill_diagonal_(torch.inf)
        given[rows] = apart.argmin(dim=1).numpy()[given[rows]]
    return torch.from_numpy(given)


@torch.no_grad()
def picture_features(dataset: str, root: str) -> Tensor:
    """(N, H) input of the classifier of frozen EfficientNet-lite0 for the training rows."""
    spec = MODELS["efficientnet_lite0"]
    rows = spec.rows(load_data(dataset, root, None, None), False)
    model = spec.build(rows, False).eval()
    head = find_head(model.config, "image")
    parts = []
    for start in range(0, len(rows.train), 128):
        batch = rows.collator([rows.train[row] for row in range(start, min(start + 128, len(rows.train)))])
        parts.append(run_without_head(model, head.name, {"pixel_values": batch["pixel_values"]}).logits)
    return torch.cat(parts)


class Found(NamedTuple):
    """What a method says: scores (N,), higher for more suspicious rows, and the share that it takes for wrong."""

    scores: Tensor
    share: float


def ours(features: Tensor, given: Tensor, num_labels: int) -> Found:
    """`label_errors`."""
    found = label_errors(features, given, num_labels)
    return Found(-found.margins.double(), found.share)


def cleanlab(features: Tensor, given: Tensor, num_labels: int) -> Found:
    """Cleanlab with five-fold cross-validated logistic regression on features of root mean square length 1."""
    from cleanlab.filter import find_label_issues
    from cleanlab.rank import get_label_quality_scores
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_predict

    rows = features - features.mean(dim=0)
    rows = (rows / rows.square().sum(dim=1).mean().sqrt()).numpy()
    labels = given.numpy()
    found = cross_val_predict(LogisticRegression(max_iter=400), rows, labels, method="predict_proba", cv=5)
    issues = find_label_issues(labels, found, n_jobs=1)
    return Found(-torch.from_numpy(get_label_quality_scores(labels, found)), float(issues.mean()))


METHODS: dict[str, Callable[[Tensor, Tensor, int], Found]] = {"label_errors": ours, "cleanlab": cleanlab}


def measured(method: str, features: Tensor, given: Tensor, wrong: Tensor, num_labels: int) -> dict[str, Any]:
    """Percent and seconds of a method; AUROC and precision where labels were replaced."""
    from sklearn.metrics import roc_auc_score

    began = time.process_time()
    found = METHODS[method](features, given, num_labels)
    result: dict[str, Any] = {
        "seconds": round(time.process_time() - began, 2),
        "estimate": round(100 * found.share, 2),
    }
    number = int(wrong.sum())
    if number:
        top = found.scores.argsort(descending=True)[:number]
        result["auroc"] = round(100 * float(roc_auc_score(wrong.numpy(), found.scores.numpy())), 2)
        result["precision"] = round(100 * float(wrong[top].double().mean()), 2)
    return result


def detection(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Every cell."""
    for dataset in args.datasets:
        data = load_data(dataset, args.data_root, None, None)
        labels, number = torch.tensor(data.train["label"][:]), len(data.names)
        if data.kind == "text":
            features = cached(
                args.cache,
                f"{dataset}_train_auto",
                lambda data=data, dataset=dataset: features_of(
                    data.train[data.input][:], "auto", dataset_spec(dataset).max_length
                ),
            )
        else:
            features = cached(
                args.cache, f"{dataset}_train_lite0", lambda dataset=dataset: picture_features(dataset, args.data_root)
            )
        for seed in range(args.seeds):
            for kind, share in (*CELLS, *MORE_SHARES):
                given = noisy(labels, features, number, kind, share, seed)
                for method in args.methods:
                    if method != "label_errors" and (kind, share) in MORE_SHARES:
                        continue
                    if kind == "none" and seed:
                        continue
                    found = measured(method, features, given, given != labels, number)
                    yield {
                        "part": "detection",
                        "dataset": dataset,
                        "noise": kind,
                        "share": share,
                        "seed": seed,
                        "method": method,
                        **found,
                    }


def main() -> None:
    """Measure and print, line by line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["detection"])
    parser.add_argument("--data-root", help="folder with one folder per data set; default: embedded, or the Hub")
    parser.add_argument("--datasets", nargs="+", default=list(DATASETS))
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--cache", help="folder for the features; default: none")
    parser.add_argument("--output", type=Path, help="file of JSON lines to append to")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for line in detection(args):
        print(json.dumps(line), flush=True)
        if args.output:
            with args.output.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
