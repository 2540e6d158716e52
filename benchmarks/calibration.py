"""Expected calibration error before and after one temperature, of adaptive labels and of one-hot controls.

    python benchmarks/calibration.py --data-root DATA --output calibration.jsonl     # 20 minutes a seed, shared core
    python benchmarks/calibration.py --summarise calibration.jsonl                   # the table alone

MiniLM, pooled as it was trained to be, on a few training rows per label; the temperature is fitted to validation rows
that are in no training and chose nothing, and everything is measured on test rows. "folded" is the stock classifier
that ``model.fold`` makes, whose own temperature fits its probabilities to the model's on the validation rows. A
finished line is not measured again.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from long_tail import read
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import PrinterCallback

from hf_lwal.bench.datasets import Data, load_data
from hf_lwal.bench.models import build_model, model_spec
from hf_lwal.bench.report import markdown_table, spread
from hf_lwal.bench.rows import Rows
from hf_lwal.bench.trainers import comparison_arguments, comparison_trainer
from hf_lwal.data.selection import rank_in_class
from hf_lwal.metrics import expected_calibration_error, mean_and_sd
from hf_lwal.modeling.linear_fold import fit_label_temperature

FROZEN = "frozen regression"
METHODS: dict[str, dict[str, Any]] = {
    FROZEN: {"label_method": "one_hot", "head_start": "regression", "lwal_init_samples": 100},
    "LP-FT": {"label_method": "one_hot", "head_start": "regression", "lwal_init_samples": 100},
    "one-hot, fitted start": {"label_method": "one_hot", "lwal_init": "class_means", "lwal_initial_head": "probe"},
    "LwAL": {"label_method": "lwal"},
}
COLUMNS = {"accuracy": "accuracy", "before": "ECE", "after": "ECE, calibrated", "temperature": "temperature"}


def parted(data: Data, train: int, validation: int, seed: int) -> tuple[Data, Data]:
    """The data with so many training rows of each label, and with as many others in place of the test rows."""
    labels = np.asarray(data.train["label"][:])
    order = np.random.default_rng(seed).permutation(len(labels))
    rank = rank_in_class(labels[order])
    parts = [order[rank < train], order[(rank >= train) & (rank < train + validation)]]
    own, held = (data.train.select(np.sort(part)) for part in parts)
    return data._replace(train=own), data._replace(train=own, test=held)


def arguments_of(name: str, folder: str, seed: int, steps: int) -> Any:
    """Training arguments of one of `METHODS`, without evaluations; a frozen one takes a step that changes nothing."""
    arguments = comparison_arguments(
        folder,
        METHODS[name],
        steps=1 if name == FROZEN else steps,
        batch_size=32,
        learning_rate=0.0 if name == FROZEN else 1e-4,
        evaluations=1,
        seed=seed,
        disable_tqdm=True,
        remove_unused_columns=False,
        use_cpu=not torch.accelerator.is_available(),
    )
    arguments.eval_strategy, arguments.eval_on_start = "no", False
    return arguments


def measures(parts: dict[str, Tensor], labels: dict[str, Tensor]) -> dict[str, float]:
    """Accuracy and errors in percent on test rows, and the temperature that validation rows ask for."""
    temperature = fit_label_temperature(parts["validation"].double(), labels["validation"])
    logits, own = parts["test"].double(), labels["test"]
    errors = [expected_calibration_error((logits / t).softmax(dim=1).numpy(), own.numpy()) for t in (1.0, temperature)]
    return {
        "accuracy": 100 * float((logits.argmax(dim=1) == own).double().mean()),
        "before": 100 * errors[0],
        "after": 100 * errors[1],
        "temperature": temperature,
    }


def folded(model: Any, rows: dict[str, Rows], size: int = 64) -> dict[str, Tensor]:
    """Logits of the folded model."""
    loaders = {name: list(DataLoader(part.test, size, collate_fn=part.collator)) for name, part in rows.items()}
    inputs = [{k: v for k, v in batch.items() if k != "labels"} for batch in loaders["validation"]]
    stock = model.eval().fold(inputs).eval()
    with torch.no_grad():
        return {
            name: torch.cat([stock(**{k: v for k, v in b.items() if k != "labels"}).logits for b in batches])
            for name, batches in loaders.items()
        }


def measure(args: argparse.Namespace) -> None:
    """Run what is not in the file yet, and append a line for each."""
    done = {(line["dataset"], line["method"], line["seed"]) for line in read(args.output)}

    def note(dataset: str, method: str, seed: int, found: dict[str, float]) -> None:
        line = {"dataset": dataset, "method": method, "seed": seed, "steps": args.steps}
        line |= {name: round(value, 4) for name, value in found.items()}
        print(json.dumps(line), flush=True)
        with args.output.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    for seed in range(args.seeds):
        for dataset in args.datasets:
            whole = load_data(dataset, args.data_root, None, args.test_rows)
            sets = dict(zip(("test", "validation"), parted(whole, args.rows, args.validation, seed), strict=True))
            rows = {name: model_spec("minilm_pooled").rows(data, False) for name, data in sets.items()}
            labels = {name: torch.as_tensor(part.test["labels"][:]) for name, part in rows.items()}
            for name, method in METHODS.items():
                if (dataset, name, seed) in done:
                    continue
                with tempfile.TemporaryDirectory() as folder:
                    arguments = arguments_of(name, folder, seed, args.steps)
                    model = build_model("minilm_pooled", rows["test"], whole.names, seed, False)
                    own = rows["test"]
                    trainer = comparison_trainer(
                        model, arguments, method, train_dataset=own.train, data_collator=own.collator
                    )
                    trainer.remove_callback(PrinterCallback)
                    trainer.train()
                    found = {
                        part: torch.as_tensor(trainer.predict(data.test).predictions) for part, data in rows.items()
                    }
                    note(dataset, name, seed, measures(found, labels))
                    if name == "LwAL":
                        core = trainer.core_model
                        note(dataset, "LwAL, folded", seed, measures(folded(core, rows), labels))
                        loader = DataLoader(rows["validation"].test, 64, collate_fn=own.collator)
                        core.calibrate(loader, progress=False)
                        note(dataset, "LwAL, calibrated, then folded", seed, measures(folded(core, rows), labels))


def summary(lines: list[dict[str, Any]]) -> str:
    """A table per data set."""
    parts = []
    for dataset in dict.fromkeys(line["dataset"] for line in lines):
        own = [line for line in lines if line["dataset"] == dataset]
        table = []
        for method in dict.fromkeys(line["method"] for line in own):
            found = [line for line in own if line["method"] == method]
            digits = {"temperature": 2}
            cells = [spread(mean_and_sd([line[key] for line in found]), digits.get(key, 1)) for key in COLUMNS]
            table.append([method, *cells, str(len(found))])
        parts.append(f"{dataset}\n\n{markdown_table(['method', *COLUMNS.values(), 'seeds'], table)}")
    return "\n\n".join(parts)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", help="folder that holds clinc150 and banking77")
    parser.add_argument("--datasets", nargs="+", default=["clinc150", "banking77"])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rows", type=int, default=8, help="training rows per label")
    parser.add_argument("--validation", type=int, default=4, help="validation rows per label")
    parser.add_argument("--test-rows", type=int, default=1540)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "calibration.jsonl")
    parser.add_argument("--summarise", type=Path, help="print the tables of a file of results and run nothing")
    args = parser.parse_args()
    if args.summarise is None:
        measure(args)
    print(summary(read(args.summarise or args.output)))


if __name__ == "__main__":
    main()
