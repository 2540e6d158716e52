"""Time of the layer behind the features, as a ratio to a linear layer with cross-entropy.

    python benchmarks/loss_layer.py
    python benchmarks/loss_layer.py --sizes 1024,1000,1000 --dims 128,1000
    python benchmarks/loss_layer.py --growth docs/images/loss_layer.png

A step is forward and backward from features (B, H) to a loss over C labels: the head, the label vectors from class
means, distances and cross-entropy, with gradients of features, head, offset and scale. All layers take turns on the
same rows in one process; ratios are medians over rounds. With pytorch-metric-learning installed
(``pip install pytorch-metric-learning``), its proxy losses behind a linear head of the same D are measured as well.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hf_lwal.modeling.blockwise_loss import LEAST_LOGITS
from hf_lwal.modeling.label_table import LabelTable

SIZES = "32,150,384;512,100,1000;1024,1000,1000"
PROXY_LOSSES = ("NormalizedSoftmaxLoss", "ProxyAnchorLoss", "ProxyNCALoss", "SoftTripleLoss")

GROWTH = {
    "B": [16, 32, 64, 128, 256, 512, 1024, 2048],
    "C": [100, 300, 1000, 3000, 10_000, 30_000, 100_000],
    "D": [16, 32, 64, 128, 256, 512, 1024],
}
"""What grows, from 256 rows, 1,000 labels and 128 dimensions."""

Step = Callable[[], Tensor]


def linear_step(features: Tensor, labels: Tensor, num_labels: int) -> Step:
    """What the stock classifier does with its features."""
    layer = nn.Linear(features.shape[1], num_labels, device=features.device)
    return lambda: F.cross_entropy(layer(features), labels)


def table_step(features: Tensor, labels: Tensor, num_labels: int, embedding_dim: int, matrix: bool = False) -> Step:
    """What a model with a label table does with them; ``matrix`` makes all logits however many there are."""
    head = nn.Linear(features.shape[1], embedding_dim, device=features.device)
    table = LabelTable(num_labels, embedding_dim, features.shape[1]).to(features.device)
    with torch.no_grad():
        table.class_features.copy_(torch.randn_like(table.class_features))
        table.counts.fill_(5)
    if not matrix and len(features) * num_labels >= LEAST_LOGITS:  # as LwALTrainer decides
        return lambda: table.row_losses(head(features), table.derived(head), labels).mean()
    return lambda: F.cross_entropy(table(head(features), table.derived(head), labels), labels)


def proxy_step(kind: str, features: Tensor, labels: Tensor, num_labels: int, embedding_dim: int) -> Step:
    """A loss of pytorch-metric-learning with one learned proxy per label."""
    from pytorch_metric_learning import losses  # type: ignore[import-not-found]

    head = nn.Linear(features.shape[1], embedding_dim, device=features.device)
    loss: Any = getattr(losses, kind)(num_labels, embedding_dim).to(features.device)
    return lambda: loss(head(features), labels)


def timed(steps: dict[str, Step], features: Tensor, rounds: int) -> dict[str, list[float]]:
    """Seconds of each step in each round, in turns."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(rounds + 3):
        for name, step in steps.items():
            features.grad = None
            begin = time.perf_counter()
            step().backward()  # type: ignore[no-untyped-call]
            if features.is_cuda:
                torch.cuda.synchronize()
            if number >= 3:  # the first rounds allocate
                seconds[name].append(time.perf_counter() - begin)
    return seconds


def both(rows: int, num_labels: int, width: int, embedding_dim: int, device: str) -> tuple[Tensor, dict[str, Step]]:
    """Features, and the two layers behind them."""
    torch.manual_seed(0)
    features = torch.randn(rows, width, device=device, requires_grad=True)
    labels = torch.randint(num_labels, (rows,), device=device)
    steps = {
        "linear + cross-entropy": linear_step(features, labels, num_labels),
        "label table": table_step(features, labels, num_labels, embedding_dim),
    }
    if rows * num_labels >= LEAST_LOGITS:
        steps["label table, all logits"] = table_step(features, labels, num_labels, embedding_dim, matrix=True)
    if importlib.util.find_spec("pytorch_metric_learning"):
        steps |= {kind: proxy_step(kind, features, labels, num_labels, embedding_dim) for kind in PROXY_LOSSES}
    return features, steps


def measure(rows: int, num_labels: int, width: int, embedding_dim: int, rounds: int, device: str) -> None:
    """Print one table row per layer."""
    features, steps = both(rows, num_labels, width, embedding_dim, device)
    seconds = timed(steps, features, rounds)
    reference = seconds["linear + cross-entropy"]
    for name, own in seconds.items():
        ratio = statistics.median(one / other for one, other in zip(own, reference, strict=True))
        milliseconds = 1e3 * statistics.median(own)
        print(f"| {rows} | {num_labels} | {width} | {embedding_dim} | {name} | {milliseconds:.2f} | {ratio:.2f} |")


def growth(file: str, rounds: int, device: str) -> None:
    """Time against B, C and D, one at a time; prints the exponent that fits the larger half, and plots."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(12, 3.6), sharey=True)
    print("| grows | from | to | layer | exponent |\n|---|---|---|---|---|")
    for axis, (letter, values) in zip(axes, GROWTH.items(), strict=True):
        times: dict[str, list[float]] = {}
        for value in values:
            size = {"B": 256, "C": 1000, "D": 128} | {letter: value}
            features, steps = both(size["B"], size["C"], size["D"], size["D"], device)
            steps = dict(list(steps.items())[:2])
            for name, seconds in timed(steps, features, rounds).items():
                times.setdefault(name, []).append(statistics.median(seconds))
        for name, seconds in times.items():
            half = len(values) // 2
            exponent = np.polyfit(np.log(values[half:]), np.log(seconds[half:]), 1)[0]
            print(f"| {letter} | {values[half]} | {values[-1]} | {name} | {exponent:.2f} |", flush=True)
            axis.loglog(values, 1e3 * np.array(seconds), marker="o", label=f"{name}: ∝ {letter}^{exponent:.2f}")
        axis.set_xlabel({"B": "rows B", "C": "labels C", "D": "dimensions D = H"}[letter])
        axis.legend(fontsize=8)
    axes[0].set_ylabel("forward and backward, ms")
    figure.tight_layout()
    figure.savefig(file, dpi=110)


def main() -> None:
    """Parse the arguments, measure, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default=SIZES, help="B,C,H, several with ; between them")
    parser.add_argument("--dims", help="D, several with commas; default: min(H, max(128, C)), the default of a model")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--growth", metavar="FILE", help="measure growth instead, and plot it into this file")
    args = parser.parse_args()
    if args.growth:
        growth(args.growth, max(args.rounds // 4, 3), args.device)
        return
    print("| B | C | H | D | layer | ms | ratio |\n|---|---|---|---|---|---|---|")
    for size in args.sizes.split(";"):
        rows, num_labels, width = map(int, size.split(","))
        usual = str(min(width, max(128, num_labels)))
        for embedding_dim in map(int, (args.dims or usual).split(",")):
            measure(rows, num_labels, width, embedding_dim, args.rounds, args.device)


if __name__ == "__main__":
    main()
