"""The judge of the default preset: real fine-tuning of all weights, against one-hot and the honest controls.

    python benchmarks/default_preset.py --part text --data-root DATA --processes 2
    python benchmarks/default_preset.py --part full --dry-run

Appends a JSON line per training to ``benchmarks/results/default_preset.jsonl`` and leaves out what is there, so a
stopped run continues. ``hf-lwal report benchmarks/results/default_preset.jsonl`` makes the tables. Clinc150 and
Fashion-MNIST are embedded in the package; other data sets are read from folders of parquet files in ``--data-root``.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from hf_lwal.bench.grid import Grid, unique_cells
from hf_lwal.bench.runner import run_grid

MAIN = ["one_hot", "one_hot_class_means", "default"]
ABLATIONS: list[Any] = [
    "default_no_offset",
    "default_frozen_means",
    "default_no_reanchor",
    {"name": "default_class_means_head", "like": "default", "lwal_initial_head": "class_means"},
    {"name": "default_random_head", "like": "default", "lwal_initial_head": "random"},
]
TEXT: dict[str, Any] = {
    "models": ["minilm_first_token"],
    "batch_sizes": [32],
    "steps": 240,
    "evaluations": 6,
    "test_rows": 1000,
    "seeds": [12, 123],
}
MANY_CLASSES, FEW_CLASSES = ["clinc150", "banking77", "trec"], ["ag_news", "sst2"]
RATES = [2e-5, 5e-5, 2e-4, 5e-4]
IMAGES: dict[str, Any] = {
    "datasets": ["fashion_mnist"],
    "models": ["mlp"],
    "learning_rates": [1e-4, 1e-3, 5e-3],
    "methods": [*MAIN, "paper:lwal", "default_no_reanchor", "default_frozen_means"],
    "seeds": [12, 123],
    "evaluations": 12,
}

PARTS: dict[str, list[Grid]] = {
    "text": [
        Grid(datasets=MANY_CLASSES, learning_rates=[5e-5, 5e-4], methods=[*MAIN, "paper:lwal"], **TEXT),
        Grid(datasets=MANY_CLASSES, learning_rates=RATES, methods=[*MAIN, "one_hot_whitened"], **TEXT),
        Grid(datasets=FEW_CLASSES, learning_rates=RATES, methods=MAIN, **TEXT),
        Grid(datasets=MANY_CLASSES, learning_rates=[5e-5, 5e-4], methods=["one_hot_head10", *ABLATIONS], **TEXT),
    ],
    "images": [Grid(batch_sizes=[64], steps=480, **IMAGES), Grid(batch_sizes=[500], steps=200, **IMAGES)],
    "full": [
        Grid(
            **{
                **TEXT,
                "datasets": [*MANY_CLASSES, *FEW_CLASSES],
                "batch_sizes": [8, 32],
                "learning_rates": RATES,
                "methods": [*MAIN, "one_hot_head10", "one_hot_whitened", "paper:lwal", *ABLATIONS],
                "seeds": [12, 123, 1234],
            }
        ),
        Grid(
            **{
                **IMAGES,
                "datasets": ["fashion_mnist", "cifar100"],
                "models": ["mlp", "convnet"],
                "batch_sizes": [64, 500],
                "methods": [*MAIN, "one_hot_head10", "one_hot_whitened", "paper:lwal", *ABLATIONS],
                "seeds": [12, 123, 1234],
                "steps": 480,
                "train_rows": 10_000,
            }
        ),
    ],
}
"""Name → grids, in the order in which they run."""


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=[*PARTS], default="text")
    parser.add_argument("--data-root", help="folder with one folder per data set")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "default_preset.jsonl")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--dry-run", action="store_true", help="print the trainings only")
    options = parser.parse_args()
    cells = unique_cells(PARTS[options.part], options.data_root)
    if options.dry_run:
        print(*cells, sep="\n")
        return
    for error in run_grid(cells, options.output, options.data_root, options.processes):
        print(error)


if __name__ == "__main__":
    main()
