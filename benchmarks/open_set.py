"""How well inputs of no known class are told from known ones: AUROC, and false positives with 95 % of those kept.

    python benchmarks/open_set.py --models FOLDER --data-root DATA --held-out 75 --seeds 0 1 2      # CLINC150
    python benchmarks/open_set.py --models FOLDER --data-root DATA --dataset banking77 --held-out 38 --seeds 0 1 2

``--data-root`` holds the data sets as parquet, also ``clinc150_oos/oos_test.parquet`` with a column ``text``: the
1,000 out-of-scope sentences of CLINC150 (github.com/clinc/oos-eval), which the package does not carry. MiniLM with its
mean pooling is trained without some classes twice with the same number of steps: with a label table, and one-hot from
the same start, a head fitted to the start samples. The held-out classes are the validation set: scores are compared
and the one that `predict_with_rejection` uses was chosen, by how well they tell samples of held-out classes (which are
nearer to the known ones than out-of-scope sentences) from test samples of known ones; out-of-scope sentences test.
The models are those of `held_out_classes.py`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow.parquet
import torch
import torch.nn.functional as F
from held_out_classes import METHODS, Data, add_training_arguments, load_data, outputs, sample, trained, write_line
from sklearn.metrics import roc_auc_score
from torch import Tensor

from hf_lwal.functional import cosine_distances
from hf_lwal.modeling.class_moments import moments
from hf_lwal.modeling.open_set import class_radii
from hf_lwal.objectives.stock import stock_head

Score = Callable[[Tensor, Tensor], Tensor]
"""From features (N, H) and logits (N, C)."""
ROWS = 40
"""Training rows per class for radii, covariances and neighbours."""
SHARES = (0.1, 0.3)
"""Of the identity in the covariance of the Mahalanobis distances; more loses less on few rows, less tells more."""
ONE_HOT = "one-hot from the same start"


def max_softmax(_: Tensor, logits: Tensor) -> Tensor:
    """Hendrycks & Gimpel 2017."""
    return -logits.softmax(dim=1).amax(dim=1)


def energy(_: Tensor, logits: Tensor) -> Tensor:
    """Liu et al. 2020."""
    return -logits.logsumexp(dim=1)


def max_logit(_: Tensor, logits: Tensor) -> Tensor:
    """For a label table the distance to the nearest label vector."""
    return -logits.amax(dim=1)


def neighbours(features: Tensor, _: Tensor, rows: Tensor, number: int = 5) -> Tensor:
    """Distance to the ``number``-th nearest training row of unit length (Sun et al. 2022)."""
    distances = torch.cdist(F.normalize(features, dim=1), F.normalize(rows, dim=1))
    return distances.topk(number, dim=1, largest=False).values[:, -1]


def mahalanobis(features: Tensor, _: Tensor, rows: Tensor, labels: Tensor, share: float, relative: bool) -> Tensor:
    """Squared Mahalanobis distance to the nearest class mean (Lee et al. 2018), or less that to the mean of all rows.

    The latter is relative (Ren et al. 2021).
    """
    within = moments(rows, labels, int(labels.max()) + 1, torch.arange(len(labels)), covariance=True)
    assert within.covariance is not None
    root = _inverse_root(within.covariance, share)
    found = torch.cdist(features.double() @ root, within.means @ root).square().amin(dim=1)
    if not relative:
        return found
    centre, spread = rows.double().mean(dim=0), _inverse_root(torch.cov(rows.double().T), share)
    return found - ((features.double() - centre) @ spread).square().sum(dim=1)


def _inverse_root(covariance: Tensor, share: float) -> Tensor:
    values, vectors = torch.linalg.eigh(covariance)
    values = values.clamp(min=0.0)
    return vectors * ((1.0 - share) * values + share * values.mean()).rsqrt()


def scores_of(model: Any, method: str, rows: Tensor, labels: Tensor) -> dict[str, Score]:
    """All scores of a model; radii, covariances and neighbours are those of training rows (N, H) and their labels."""
    scores: dict[str, Score] = {"max softmax": max_softmax, "energy": energy, "max logit": max_logit}
    scores["5 nearest neighbours"] = partial(neighbours, rows=rows)
    for share in SHARES:
        kinds = partial(mahalanobis, rows=rows, labels=labels, share=share)
        scores[f"Mahalanobis, {share:g} of the identity"] = partial(kinds, relative=False)
        scores[f"relative Mahalanobis, {share:g} of the identity"] = partial(kinds, relative=True)
    if method == "LwAL":
        means = model.label_table.class_features
        radii = class_radii(cosine_distances(rows, means).gather(1, labels.unsqueeze(1))[:, 0], labels, len(means))
        scores["cosine to class mean"] = lambda features, _: cosine_distances(features, means).amin(dim=1)
        scores["cosine to class mean, in radii"] = lambda features, _: (
            cosine_distances(features, means) / radii
        ).amin(dim=1)
        scores["rejection_scores"] = lambda features, _: model.rejection_scores(features)
    return scores


def features_and_logits(model: Any, method: str) -> Callable[[Any], tuple[Tensor, ...]]:
    """Function from a batch to features (B, H) and logits (B, C)."""
    if method == "LwAL":
        return lambda batch: (lambda output: (output.features, output.logits))(model(**batch))
    seen: list[Tensor] = []
    model.get_submodule(stock_head(model).name).register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))

    def forward(batch: Any) -> tuple[Tensor, ...]:
        logits = model(**batch).logits
        return seen.pop(), logits

    return forward


def measure(method: str, data: Data, seed: int, args: argparse.Namespace) -> None:
    """One line per score: accuracy of the model, AUROC, false positives, and what `predict_with_rejection` rejects."""
    model = trained(method, data, seed, args)
    train, test = sample(data.known["train"], ROWS, seed), sample(data.known["test"], args.rows_per_class, seed)
    texts = {"train": train.texts, "known": test.texts, "held out": data.held_out["test"].texts}
    if args.dataset == "clinc150":
        path = args.data_root / "clinc150_oos" / "oos_test.parquet"
        texts["out of scope"] = pyarrow.parquet.read_table(path)["text"].to_pylist()
    forward = features_and_logits(model, method)
    found = {name: outputs(forward, part) for name, part in texts.items()}
    labels = torch.from_numpy(train.labels)
    if method == "LwAL":
        batches = [{**tokens, "labels": own} for tokens, own in _batches(train)]
        model.fit_rejection(batches, progress=False)
    accuracy = float((found["known"][1].argmax(dim=1).numpy() == test.labels).mean())
    base = {"dataset": args.dataset, "held_out": len(data.names) - data.num_known, "seed": seed, "steps": args.steps}
    for name, score in scores_of(model, method, found["train"][0], labels).items():
        with torch.no_grad():
            values = {part: score(*rows).double() for part, rows in found.items() if part != "train"}
        line = base | {"model": method, "accuracy": round(100 * accuracy, 2), "score": name}
        for part in list(values)[1:]:
            line[f"auroc, {part}"] = auroc(values["known"], values[part])
            line[f"fpr95, {part}"] = false_positives(values["known"], values[part])
        if name == "rejection_scores":
            line |= {
                f"rejected, {part}": round(100 * float((v > 1.0).double().mean()), 1) for part, v in values.items()
            }
        print({key: value for key, value in line.items() if key not in ("dataset", "seed", "steps")}, flush=True)
        write_line(args.output, line)


def _batches(rows: Any) -> Any:
    from held_out_classes import tokenizer

    for start in range(0, len(rows.texts), 128):
        part = rows.texts[start : start + 128]
        own = torch.from_numpy(rows.labels[start : start + 128])
        yield dict(tokenizer()(part, padding=True, truncation=True, return_tensors="pt")), own


def auroc(known: Tensor, unknown: Tensor) -> float:
    """Chance in percent that an unknown row has the higher score."""
    truth = [0] * len(known) + [1] * len(unknown)
    return round(100 * float(roc_auc_score(truth, torch.cat([known, unknown]).numpy())), 2)


def false_positives(known: Tensor, unknown: Tensor) -> float:
    """Percent of the unknown rows that a threshold lets through which keeps 95 % of the known ones."""
    return round(100 * float((unknown <= torch.quantile(known, 0.95)).double().mean()), 2)


def main() -> None:
    """Parse the arguments, train if need be, measure, print the lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_training_arguments(parser)
    parser.add_argument("--ways", nargs="+", default=[ONE_HOT, "LwAL"], choices=list(METHODS))
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.data_root is None:
        parser.error("--data-root is needed: the folder that holds clinc150_oos and the data sets")
    for seed in args.seeds:
        data = load_data(args.dataset, args.held_out, seed, args.data_root)
        for method in args.ways:
            measure(method, data, seed, args)


if __name__ == "__main__":
    main()
