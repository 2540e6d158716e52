"""How well inputs of no known class are told from known ones: CLINC150 against its out-of-scope sentences, AUROC.

    python benchmarks/open_set.py --models held-out-models --data-root data     # about ten minutes on one core

``--data-root`` holds ``clinc150_oos/oos_test.parquet`` with a column ``text``: the 1,000 out-of-scope sentences of
CLINC150 (github.com/clinc/oos-eval), which the package does not carry. MiniLM is trained on CLINC150 without some
classes three ways with the same number of steps. The held-out classes are the validation set: scores are compared, and
the one that `predict_with_rejection` uses was chosen, by how well they tell rows of held-out classes (which are nearer
to the known ones than out-of-scope sentences) from validation rows of known ones. Out-of-scope sentences only test.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet
import torch
from held_out_classes import (
    METHODS,
    Data,
    Split,
    add_training_arguments,
    load_data,
    outputs,
    sample,
    trained,
    write_json,
)
from sklearn.metrics import roc_auc_score
from torch import Tensor

from hf_lwal.functional import cosine_distances, pairwise_distances
from hf_lwal.modeling.open_set import class_radii, rejection_scores

Score = Callable[[Tensor, Tensor], Tensor]
RADII_ROWS = 40
"""Training rows per class for the radii."""


def max_softmax(_: Tensor, logits: Tensor) -> Tensor:
    """Hendrycks & Gimpel 2017."""
    return -logits.softmax(dim=1).amax(dim=1)


def energy(_: Tensor, logits: Tensor) -> Tensor:
    """Liu et al. 2020."""
    return -logits.logsumexp(dim=1)


def max_logit(_: Tensor, logits: Tensor) -> Tensor:
    """For a label table the distance to the nearest label vector."""
    return -logits.amax(dim=1)


def split_texts(data: Data, args: argparse.Namespace) -> dict[str, Split]:
    """The rows to measure on; "unknown" ones have labels that no model knows."""
    out_of_scope = pyarrow.parquet.read_table(args.data_root / "clinc150_oos" / "oos_test.parquet")["text"].to_pylist()
    unknown = [*data.held_out["train"].texts, *data.held_out["validation"].texts]
    return {
        "train": sample(data.known["train"], RADII_ROWS),
        "validation": sample(data.known["validation"], args.rows_per_class),
        "validation, unknown": Split(unknown, data.held_out["train"].labels[:0]),
        "test": sample(data.known["test"], args.rows_per_class),
        "test, unknown": Split(out_of_scope, data.held_out["train"].labels[:0]),
    }


def label_table_scores(model: Any, features: Tensor, embeddings: Tensor, labels: Tensor) -> dict[str, Score]:
    """Scores that need the label table; radii come from training rows (features, embeddings and their labels)."""
    table, own = model.label_table, labels.unsqueeze(1)
    cosine = cosine_distances(features, table.class_features).gather(1, own)[:, 0]
    euclidean = pairwise_distances(embeddings, table.label_vectors).gather(1, own)[:, 0]
    around_means = class_radii(cosine, labels, table.num_labels)
    around_vectors = class_radii(euclidean, labels, table.num_labels)
    return {
        "cosine to class mean": lambda h, _: cosine_distances(h, table.class_features).amin(dim=1),
        "cosine to class mean / radius": lambda h, _: rejection_scores(
            cosine_distances(h, table.class_features), around_means
        ),
        "distance to class mean": lambda h, _: pairwise_distances(h, table.class_features).amin(dim=1),
        "distance to label vector / radius": lambda _, logits: rejection_scores(-logits / table.scale, around_vectors),
    }


def measure(method: str, data: Data, splits: dict[str, Split], args: argparse.Namespace) -> dict[str, Any]:
    """Accuracy of one method, AUROC of its scores, and what `predict_with_rejection` would reject."""
    model = trained(method, data, args)

    @torch.no_grad()
    def forward(batch: Any) -> tuple[Tensor, ...]:
        output = model(**batch)
        return (output.features, output.embeddings, output.logits) if method == "LwAL" else (output.logits,) * 3

    found = {name: outputs(forward, split.texts) for name, split in splits.items()}
    scores: dict[str, Score] = {"max softmax": max_softmax, "energy": energy, "max logit": max_logit}
    labels = {name: torch.from_numpy(split.labels) for name, split in splits.items()}
    result: dict[str, Any] = {
        "accuracy": 100 * float((found["test"][2].argmax(dim=1) == labels["test"]).float().mean()),
    }
    with torch.no_grad():
        if method == "LwAL":
            scores |= label_table_scores(model, *found["train"][:2], labels["train"])
        values = {
            name: {part: score(rows[0], rows[2]) for part, rows in found.items()} for name, score in scores.items()
        }
    result["auroc"] = {
        name: {part: auroc(parts[part], parts[f"{part}, unknown"]) for part in ("validation", "test")}
        for name, parts in values.items()
    }
    if method == "LwAL":
        result["rejected"] = {
            part: 100 * float((rows > 1.0).float().mean())
            for part, rows in values["cosine to class mean / radius"].items()
        }
    return result


def auroc(known: Tensor, unknown: Tensor) -> float:
    """Chance in percent that an unknown row has the higher score."""
    truth = [0] * len(known) + [1] * len(unknown)
    return 100 * float(roc_auc_score(truth, torch.cat([known, unknown]).numpy()))


def main() -> None:
    """Parse the arguments, train if need be, measure, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_training_arguments(parser)
    parser.add_argument("--data-root", type=Path, required=True, help="folder that holds clinc150_oos")
    args = parser.parse_args()
    torch.set_num_threads(1)
    data = load_data(args.held_out, args.seed)
    splits = split_texts(data, args)
    results = {method: measure(method, data, splits, args) for method in METHODS}
    print(f"{'AUROC in %':60s}  held-out classes  out of scope")
    for method, result in results.items():
        for score, parts in result["auroc"].items():
            name = f"{method} ({result['accuracy']:.1f} % accuracy): {score}"
            print(f"{name:60s}  {parts['validation']:16.1f}  {parts['test']:12.1f}")
    shares = ", ".join(f"{part} {share:.1f} %" for part, share in results["LwAL"]["rejected"].items())
    print(f"rejected at a score above 1: {shares}")
    write_json(args.output, results)


if __name__ == "__main__":
    main()
