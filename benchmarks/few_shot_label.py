"""Accuracy of labels added from a few examples, on classes of CLINC150 that were held out of the training.

    python benchmarks/few_shot_label.py --models held-out-models            # about ten minutes on one core
    python benchmarks/few_shot_label.py --models held-out-models --examples 1 --output few_shot.json

MiniLM is trained with a label table without the held-out classes; then each is added with ``model.add_label`` from a
few examples, several times with other examples. Beside it stands the nearest class mean, of the trained features and
of the pretrained ones (mean over tokens, which this model was made for), with the same examples and with the same
rows for the means of the known classes.
"""

from __future__ import annotations

import argparse
import copy
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from held_out_classes import Data, Split, add_training_arguments, load_data, outputs, sample, trained, write_json
from torch import Tensor
from transformers import AutoModel

from hf_lwal.bench.comparison import embedded_model_path

MEAN_ROWS = 40
"""Rows per known class for the nearest class mean."""


def pretrained_features(texts: list[str]) -> Tensor:
    """(N, H) mean of the last hidden states over the tokens."""
    encoder = AutoModel.from_pretrained(embedded_model_path()).eval()

    def forward(batch: Any) -> tuple[Tensor]:
        mask = batch["attention_mask"].unsqueeze(2)  # (B, T, 1)
        return ((encoder(**batch).last_hidden_state * mask).sum(dim=1) / mask.sum(dim=1),)

    return outputs(forward, texts)[0]


def drawn(labels: np.ndarray, classes: range, examples: int, seed: int) -> list[np.ndarray]:
    """Rows of the examples of each class."""
    generator = np.random.default_rng(seed)
    return [generator.choice(np.flatnonzero(labels == label), examples, replace=False) for label in classes]


def accuracies(predicted: Tensor, labels: np.ndarray, known: int) -> tuple[float, float]:
    """Percent right of the rows of added labels, and of all others."""
    right = predicted.numpy() == labels
    return 100 * right[labels >= known].mean(), 100 * right[labels < known].mean()


def nearest_mean(features: dict[str, Tensor], labels: np.ndarray, draw: list[np.ndarray], cosine: bool) -> Tensor:
    """Predictions (N,) of the test rows; ``features`` of the rows for means, of the examples, and of the test."""
    known = torch.stack([features["means"][labels == label].mean(dim=0) for label in range(labels.max() + 1)])
    means = torch.cat([known, torch.stack([features["examples"][rows].mean(dim=0) for rows in draw])])
    test = features["test"]
    if cosine:
        means, test = F.normalize(means, dim=1), F.normalize(test, dim=1)
    return torch.cdist(test.double(), means.double()).argmin(dim=1)


def with_added_labels(model: Any, data: Data, examples: Tensor, draw: list[np.ndarray], embeddings: Tensor) -> Tensor:
    """Predictions (N,) of the test rows after each held-out class was added."""
    model = copy.deepcopy(model)
    for name, rows in zip(data.names[data.num_known :], draw, strict=True):
        model.add_label(name, features=examples[rows])
    with torch.no_grad():
        return model.label_table(embeddings).argmax(dim=1)


def measure(data: Data, args: argparse.Namespace) -> dict[str, list[tuple[float, float]]]:
    """Method -> (percent of the added labels, percent of the others), one pair per draw of examples."""
    model = trained("LwAL", data, args)
    known_test = sample(data.known["test"], args.rows_per_class)
    test = Split(
        [*known_test.texts, *data.held_out["test"].texts], np.r_[known_test.labels, data.held_out["test"].labels]
    )
    means, examples = sample(data.known["train"], MEAN_ROWS), data.held_out["train"]
    texts = {"means": means.texts, "examples": examples.texts, "test": test.texts}

    def forward(batch: Any) -> tuple[Tensor, Tensor]:
        output = model(**batch)
        return output.features, output.embeddings

    both = {name: outputs(forward, rows) for name, rows in texts.items()}
    trained_features = {name: pair[0] for name, pair in both.items()}
    pretrained = {name: pretrained_features(rows) for name, rows in texts.items()}
    with torch.no_grad():
        before = model.label_table(both["test"][1]).argmax(dim=1)
    found = {"before: 5 labels less": [(0.0, accuracies(before, test.labels, data.num_known)[1])]}
    for seed in range(args.draws):
        draw = drawn(examples.labels, range(data.num_known, len(data.names)), args.examples, seed)
        predictions = {
            "add_label": with_added_labels(model, data, trained_features["examples"], draw, both["test"][1]),
            "nearest class mean, trained features": nearest_mean(trained_features, means.labels, draw, False),
            "nearest class mean, trained, cosine": nearest_mean(trained_features, means.labels, draw, True),
            "nearest class mean, pretrained": nearest_mean(pretrained, means.labels, draw, False),
            "nearest class mean, pretrained, cosine": nearest_mean(pretrained, means.labels, draw, True),
        }
        for method, predicted in predictions.items():
            found.setdefault(method, []).append(accuracies(predicted, test.labels, data.num_known))
    return found


def main() -> None:
    """Parse the arguments, train if need be, measure, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_training_arguments(parser)
    parser.add_argument("--examples", type=int, default=5, help="examples per added label")
    parser.add_argument("--draws", type=int, default=10, help="times that other examples are drawn")
    args = parser.parse_args()
    torch.set_num_threads(1)
    data = load_data(args.held_out, args.seed)
    found = measure(data, args)
    print(f"held out: {', '.join(data.names[data.num_known :])}; {args.examples} examples each, {args.draws} draws")
    print(f"{'accuracy in %, mean (sd over draws)':42s}  added labels    all others")
    for method, pairs in found.items():
        (new, old), (new_sd, old_sd) = np.mean(pairs, axis=0), np.std(pairs, axis=0)
        print(f"{method:42s}  {new:5.1f} ({new_sd:.1f})    {old:5.1f} ({old_sd:.1f})")
    write_json(args.output, {"held_out": data.names[data.num_known :], "accuracies": found})


if __name__ == "__main__":
    main()
