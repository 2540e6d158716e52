"""Share of a fine-tune that the start pass takes, by how much of the training's work it may read rows for.

    python benchmarks/start_share.py --data-root DATA                # CLINC150, MiniLM, three epochs of batches of 32
    python benchmarks/start_share.py --data-root DATA --budgets 0.05

Measured are the start as its log says, and the median of the first steps; the rest of the training would be more of
the same, and is computed from their number.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from typing import Any

from transformers import TrainerCallback

from hf_lwal import LwALTrainer, LwALTrainingArguments
from hf_lwal.bench.datasets import load_data
from hf_lwal.bench.models import build_model, model_rows
from hf_lwal.data.start_budget import SHARE_OF_TRAINING

STEPS = 60


class Clock(TrainerCallback):
    """Notes when each step ends, and stops the training after `STEPS`."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Note the time."""
        self.ends.append(time.perf_counter())
        control.should_training_stop = state.global_step >= STEPS


def measure(dataset: str, data_root: str | None, model: str, budget: float, epochs: int) -> tuple[int, float, float]:
    """Start rows, seconds of the start, and seconds of all steps."""
    data = load_data(dataset, data_root, None, None)
    rows = model_rows(model, dataset, data_root, None, None, False)
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        args = LwALTrainingArguments(
            folder,
            per_device_train_batch_size=32,
            num_train_epochs=epochs,
            learning_rate=5e-5,
            lwal_start_budget=budget,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
            logging_steps=10_000,
        )
        trainer = LwALTrainer(
            build_model(model, rows, data.names, 0, False), args, train_dataset=rows.train, data_collator=rows.collator
        )
        trainer.add_callback(clock)
        trainer.train()
    start = next(entry for entry in trainer.state.log_history if "start_seconds" in entry)
    step = statistics.median(end - begin for begin, end in zip(clock.ends, clock.ends[1:], strict=False))
    return start["start_samples"], start["start_seconds"], step * trainer.state.max_steps


def main() -> None:
    """Parse the arguments, measure, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", help="folder with one folder of parquet files per data set")
    parser.add_argument("--dataset", default="clinc150")
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--budgets", type=float, nargs="+", default=[0.03, 0.05, SHARE_OF_TRAINING])
    args = parser.parse_args()
    print("| `lwal_start_budget` | start rows | start, s | steps, s | share |\n|---|---|---|---|---|")
    for budget in args.budgets:
        rows, start, steps = measure(args.dataset, args.data_root, args.model, budget, args.epochs)
        print(f"| {budget} | {rows} | {start:.1f} | {steps:.0f} | {100 * start / (start + steps):.1f} % |", flush=True)


if __name__ == "__main__":
    main()
