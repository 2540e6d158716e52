"""Wrong labels: how well they are found before training, and what training without them is worth.

    python benchmarks/label_errors.py detection --data-root DATA --output benchmarks/results/label_errors.jsonl
    python benchmarks/label_errors.py training --data-root DATA --output benchmarks/results/label_errors_training.jsonl

A share of the training labels is replaced, either by any other label ("symmetric") or by the one whose class mean is
nearest to that of the true one ("nearest": labels that people confuse). Features are those of frozen MiniLM, its
tokens pooled as it was trained, and for Fashion-MNIST of EfficientNet-lite0.

Detection: AUROC, and precision among as many rows as are wrong, of `label_errors` and of cleanlab (extra ``peers``) as
its documentation has it: out-of-sample probabilities from five-fold cross-validation of scikit-learn's logistic
regression on the same features, ranked by self-confidence, and the number of errors from its confident joint. Seconds
are processor time of one thread, without the features, which both need.

Training: test accuracy after the same steps for every method, of MiniLM on 20 rows per label, and of a small ConvNet
from scratch on 200. One-hot labels start from class means, as those of ELR (Liu et al. 2020, early-learning
regularisation) and GCE (Zhang & Sabuncu 2018, generalised cross-entropy) do; "one-hot, random head" does not.
"""

from __future__ import annotations

import argparse
import functools
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from start_probe import cached, features_of
from torch import Tensor

from hf_lwal import LwALTrainer, LwALTrainingArguments
from hf_lwal.bench.datasets import Data, dataset_spec, load_data
from hf_lwal.bench.frozen_regression import fit_regression
from hf_lwal.bench.models import MODELS, build_model
from hf_lwal.modeling.heads import find_head, run_without_head
from hf_lwal.modeling.label_errors import label_errors
from hf_lwal.objectives import LossContext
from hf_lwal.objectives.base import ObjectiveLoss
from hf_lwal.objectives.one_hot import OneHot

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
def frozen_features(data: Data, split: str = "train") -> Tensor:
    """(N, H) input of the classifier of frozen MiniLM, or of frozen EfficientNet-lite0, for the rows of a split."""
    part = data.train if split == "train" else data.test
    if data.kind == "text":
        return features_of(part[data.input][:], "auto", dataset_spec(data.name).max_length)
    spec = MODELS["efficientnet_lite0"]
    rows = spec.rows(data._replace(train=part), False)
    model = spec.build(rows, False).eval()
    head = find_head(model.config, "image")
    parts = []
    for start in range(0, len(rows.train), 128):
        batch = rows.collator([rows.train[row] for row in range(start, min(start + 128, len(rows.train)))])
        parts.append(run_without_head(model, head.name, {"pixel_values": batch["pixel_values"]}).logits)
    return torch.cat(parts)


class Found(NamedTuple):
    """What a method says: scores (N,), higher for more suspicious rows; which it takes for wrong, and their share."""

    scores: Tensor
    share: float
    issues: Tensor


def ours(features: Tensor, given: Tensor, num_labels: int) -> Found:
    """`label_errors`."""
    found = label_errors(features, given, num_labels)
    return Found(-found.margins.double(), found.share, found.suspicious)


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
    scores = -torch.from_numpy(get_label_quality_scores(labels, found))
    return Found(scores, float(issues.mean()), torch.from_numpy(issues))


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


def asked(args: argparse.Namespace, cells: Sequence[tuple[str, float]]) -> list[tuple[str, float]]:
    """Those of ``cells`` that --noise names."""
    found = [(kind, share) for kind, share in cells if f"{kind}{share:g}" in args.noise]
    if not found:
        raise SystemExit(f"--noise {' '.join(args.noise)}: this part has {' '.join(f'{k}{s:g}' for k, s in cells)}.")
    return found


def detection(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Every cell."""
    cells = asked(args, (*CELLS, *MORE_SHARES))
    for dataset in args.datasets:
        data = load_data(dataset, args.data_root, None, None)
        labels, number = torch.tensor(data.train["label"][:]), len(data.names)
        name = f"{dataset}_train_{'auto' if data.kind == 'text' else 'lite0'}"
        features = cached(args.cache, name, functools.partial(frozen_features, data))
        for seed in range(args.seeds):
            for kind, share in cells:
                given = noisy(labels, features, number, kind, share, seed)
                for method in args.methods or METHODS:
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


class GeneralisedCrossEntropy(OneHot):
    """``(1 - p_y^q) / q``: between cross-entropy (q to 0) and mean absolute error (q = 1)."""

    citation = "Zhang & Sabuncu, NeurIPS 2018, arXiv:1805.07836"
    q = 0.7

    def __init__(self) -> None:
        super().__init__(init="class_means", initial_head="auto")

    def loss(self, outputs: Any, labels: Tensor, context: LossContext) -> ObjectiveLoss:
        """Mean over the rows of the step."""
        own = outputs["logits"].softmax(dim=1).gather(1, labels.clamp(min=0).unsqueeze(1))[:, 0]
        return ObjectiveLoss(context.mean((1.0 - own**self.q) / self.q * (labels != -100), labels), {})


class EarlyLearningRegularisation(OneHot):
    """Cross-entropy plus ``lambda * log(1 - <p, t>)``, t the running mean of what the model said of the row."""

    citation = "Liu et al., NeurIPS 2020, arXiv:2007.00151"
    needs_sample_ids = True
    momentum, strength = 0.7, 3.0
    targets: Tensor

    def __init__(self) -> None:
        super().__init__(init="class_means", initial_head="auto")

    def allocate(self, rows: int, num_labels: int) -> None:
        """Targets of all rows start at 0."""
        self.register_buffer("targets", torch.zeros(rows, num_labels))

    def loss(self, outputs: Any, labels: Tensor, context: LossContext) -> ObjectiveLoss:
        """Mean over the rows of the step."""
        loss = context.classification_loss(outputs, labels, labels)
        if not context.training:
            return ObjectiveLoss(loss, {})
        said = outputs["logits"].softmax(dim=1).clamp(1e-4, 1.0 - 1e-4)
        fresh = (said / said.sum(dim=1, keepdim=True)).detach()
        targets = self.momentum * self.targets[context.sample_ids] + (1.0 - self.momentum) * fresh
        self.targets[context.sample_ids] = targets
        rows = (1.0 - (targets * said).sum(dim=1)).log()
        return ObjectiveLoss(loss + self.strength * context.mean(rows * (labels != -100), labels), {})


FROM_MEANS = {"label_method": "one_hot", "lwal_init": "class_means", "lwal_initial_head": "auto"}
TRAININGS: dict[str, dict[str, Any]] = {
    "LwAL": {},
    "LwAL, drop": {"lwal_noisy_labels": "drop"},
    "LwAL, downweight": {"lwal_noisy_labels": "downweight"},
    "one-hot": FROM_MEANS,
    "one-hot, drop": {**FROM_MEANS, "lwal_noisy_labels": "drop"},
    "GCE": {"objective": GeneralisedCrossEntropy},
    "ELR": {"objective": EarlyLearningRegularisation},
    "one-hot, random head": {"label_method": "one_hot"},
}
REGRESSIONS = ("regression", "regression, label_errors", "regression, cleanlab")
"""Logistic regression on the frozen features, all rows or without those that a method takes for wrong."""
SIZES = {"text": ("minilm", 20, 60, 1e-4), "image": ("convnet", 200, 300, 1e-3)}
"""Kind → model, training rows per label, steps of 32 rows, learning rate."""


def with_labels(rows: Any, given: Tensor) -> Any:
    """The rows with other labels."""
    return rows.remove_columns("labels").add_column("labels", given.tolist())


def trained(data: Data, given: Tensor, method: str, seed: int) -> dict[str, Any]:
    """Test accuracy in percent after a training, and its seconds."""
    fields = dict(TRAININGS[method])
    objective = fields.pop("objective", None)
    model_name, _, steps, rate = SIZES[data.kind]
    spec = MODELS[model_name]
    rows = spec.rows(data, False)
    began = time.perf_counter()
    model = build_model(model_name, rows, data.names, seed, False)
    with tempfile.TemporaryDirectory() as folder:
        arguments = LwALTrainingArguments(
            folder,
            max_steps=steps,
            per_device_train_batch_size=32,
            per_device_eval_batch_size=128,
            learning_rate=rate,
            seed=seed,
            save_strategy="no",
            report_to="none",
            logging_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
            remove_unused_columns=data.kind == "text",
            **fields,
        )
        trainer = LwALTrainer(
            model,
            arguments,
            objective=None if objective is None else objective(),
            train_dataset=with_labels(rows.train, given),
            eval_dataset=rows.test,
            data_collator=rows.collator,
        )
        trainer.train()
        accuracy = trainer.evaluate()["eval_accuracy"]
        logged = next((entry for entry in trainer.state.log_history if "suspicious_rows" in entry), {})
    found = {"accuracy": round(100 * accuracy, 2), "seconds": round(time.perf_counter() - began, 1)}
    return found | {name: logged[name] for name in ("suspicious_rows", "wrong_share") if name in logged}


def regressed(data: Data, features: Tensor, test: Tensor, given: Tensor, method: str) -> dict[str, Any]:
    """Test accuracy in percent of a regression on frozen features."""
    began, labels = time.perf_counter(), given.clone()
    if method == "regression, label_errors":
        labels[label_errors(features, given, len(data.names)).suspicious] = -100
    elif method == "regression, cleanlab":
        labels[cleanlab(features, given, len(data.names)).issues] = -100
    truth = torch.tensor(data.test["label"][:])
    accuracy = fit_regression(features, labels, len(data.names)).accuracy(test, truth)
    return {"accuracy": round(100 * accuracy, 2), "seconds": round(time.perf_counter() - began, 1)}


def training(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Every cell, the methods of one after the other."""
    cells = asked(args, CELLS)
    for dataset in args.datasets:
        kind = load_data(dataset, args.data_root, None, None).kind
        for seed in range(args.first_seed, args.seeds):
            per_label = SIZES[kind][1]
            data = load_data(dataset, args.data_root, None, args.test_rows, rows_per_label=per_label, draw=seed)
            name = f"{dataset}_{per_label}_{seed}"
            features = cached(args.cache, f"{name}_train", functools.partial(frozen_features, data))
            test = cached(
                args.cache, f"{name}_test_{args.test_rows}", functools.partial(frozen_features, data, "test")
            )
            labels = torch.tensor(data.train["label"][:])
            for noise, share in cells:
                given = noisy(labels, features, len(data.names), noise, share, seed)
                for method in args.methods or (*REGRESSIONS, *TRAININGS):
                    cell = {"part": "training", "dataset": dataset, "noise": noise, "share": share, "seed": seed}
                    cell["method"] = method
                    if any(cell.items() <= line.items() for line in finished(args.output)):
                        continue
                    found = (
                        regressed(data, features, test, given, method)
                        if method in REGRESSIONS
                        else trained(data, given, method, seed)
                    )
                    yield {**cell, **found}


def finished(output: Path | None) -> list[dict[str, Any]]:
    """Lines of a file of results."""
    if output is None or not output.exists():
        return []
    return [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]


PARTS = {"detection": detection, "training": training}


def main() -> None:
    """Measure and print, line by line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["detection", "training"])
    parser.add_argument("--data-root", help="folder with one folder per data set; default: embedded, or the Hub")
    parser.add_argument("--datasets", nargs="+", default=list(DATASETS))
    parser.add_argument("--methods", nargs="+", help="default: all of the part")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0, help="of the trainings")
    noise = [f"{kind}{share:g}" for kind, share in (*CELLS, *MORE_SHARES)]
    parser.add_argument(
        "--noise", nargs="+", choices=noise, default=noise, help="trainings have no shares of 5 and 20 %%"
    )
    parser.add_argument("--test-rows", type=int, default=1000, help="of the trainings")
    parser.add_argument("--cache", help="folder for the features; default: none")
    parser.add_argument("--output", type=Path, help="JSON lines to append to; trainings in it are not run again")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for line in PARTS[args.part](args):
        print(json.dumps(line), flush=True)
        if args.output:
            with args.output.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
