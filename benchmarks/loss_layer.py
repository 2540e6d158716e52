"""Time of the layer behind the features, as a ratio to a linear layer with cross-entropy.

    python benchmarks/loss_layer.py
    python benchmarks/loss_layer.py --sizes 1024,1000,1000 --dims 128,1000

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

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hf_lwal.modeling.label_table import LabelTable

SIZES = "32,150,384;512,100,1000;1024,1000,1000"
PROXY_LOSSES = ("NormalizedSoftmaxLoss", "ProxyAnchorLoss", "ProxyNCALoss", "SoftTripleLoss")

Step = Callable[[], Tensor]


def linear_step(features: Tensor, labels: Tensor, num_labels: int) -> Step:
    """What the stock classifier does with its features."""
    layer = nn.Linear(features.shape[1], num_labels, device=features.device)
    return lambda: F.cross_entropy(layer(features), labels)


def table_step(features: Tensor, labels: Tensor, num_labels: int, embedding_dim: int) -> Step:
    """What a model with a label table does with them."""
    head = nn.Linear(features.shape[1], embedding_dim, device=features.device)
    table = LabelTable(num_labels, embedding_dim, features.shape[1]).to(features.device)
    with torch.no_grad():
        table.class_features.copy_(torch.randn_like(table.class_features))
        table.counts.fill_(5)
    return lambda: F.cross_entropy(table(head(features), table.derived(head), labels), labels)


def proxy_step(kind: str, features: Tensor, labels: Tensor, num_labels: int, embedding_dim: int) -> Step:
    """A loss of pytorch-metric-learning with one learned proxy per label."""
    from pytorch_metric_learning import losses  # type: ignore[import-not-found]

    head = nn.Linear(features.shape[1], embedding_dim, device=features.device)
    loss: Any = getattr(losses, kind)(num_labels, embedding_dim).to(features.device)
    return lambda: loss(head(features), labels)


def measure(rows: int, num_labels: int, width: int, embedding_dim: int, rounds: int, device: str) -> None:
    """Print one table row per layer."""
    torch.manual_seed(0)
    features = torch.randn(rows, width, device=device, requires_grad=True)
    labels = torch.randint(num_labels, (rows,), device=device)
    steps: dict[str, Step] = {
        "linear + cross-entropy": linear_step(features, labels, num_labels),
        "label table": table_step(features, labels, num_labels, embedding_dim),
    }
    if importlib.util.find_spec("pytorch_metric_learning"):
        steps |= {kind: proxy_step(kind, features, labels, num_labels, embedding_dim) for kind in PROXY_LOSSES}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(rounds + 3):
        for name, step in steps.items():
            features.grad = None
            begin = time.perf_counter()
            step().backward()  # type: ignore[no-untyped-call]
            if device != "cpu":
                torch.cuda.synchronize()
            if number >= 3:  # the first rounds allocate
                seconds[name].append(time.perf_counter() - begin)
    reference = seconds["linear + cross-entropy"]
    for name, own in seconds.items():
        ratio = statistics.median(one / other for one, other in zip(own, reference, strict=True))
        milliseconds = 1e3 * statistics.median(own)
        print(f"| {rows} | {num_labels} | {width} | {embedding_dim} | {name} | {milliseconds:.2f} | {ratio:.2f} |")


def main() -> None:
    """Parse the arguments, measure, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default=SIZES, help="B,C,H, several with ; between them")
    parser.add_argument("--dims", help="D, several with commas; default: min(H, max(128, C)), the default of a model")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    print("| B | C | H | D | layer | ms | ratio |\n|---|---|---|---|---|---|---|")
    for size in args.sizes.split(";"):
        rows, num_labels, width = map(int, size.split(","))
        usual = str(min(width, max(128, num_labels)))
        for embedding_dim in map(int, (args.dims or usual).split(",")):
            measure(rows, num_labels, width, embedding_dim, args.rounds, args.device)


if __name__ == "__main__":
    main()
