"""Time of a training step with a label table, as a ratio to the stock Trainer with cross-entropy.

    python benchmarks/step_time.py                                  # all rows of the table in docs/performance.md
    python benchmarks/step_time.py --model bert-2x128 --labels 150 --preset paper

Two processes train the same rows from the same random backbone, one with `LwALTrainer`, one with transformers'
`Trainer`, and take turns step by step: everything that happens between the ends of two steps counts, callbacks and
data loading included. The ratio is the median over pairs of steps. The start pass is not a part of a step.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from large_label_sets import resident_bytes
from torch import Tensor
from transformers import (
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
    BertConfig,
    ConvNextConfig,
    PreTrainedConfig,
    ResNetConfig,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    ViTConfig,
    set_seed,
)

from hf_lwal import LwALTrainer, LwALTrainingArguments


def bert(layers: int, hidden: int, **options: int) -> Callable[[], PreTrainedConfig]:
    """BERT with heads of 32 dimensions, as MiniLM has them."""
    return lambda: BertConfig(
        **options,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 32,
        intermediate_size=4 * hidden,
    )


class Setting(NamedTuple):
    """A model, its batch, the size of its inputs (tokens, or pixels along an edge), and how many pairs say enough."""

    config: Callable[[], PreTrainedConfig]
    rows: int
    size: int
    pairs: int = 30


MODELS = {
    "bert-2x128": Setting(bert(2, 128), 32, 64, 120),
    "convnext-small": Setting(
        lambda: ConvNextConfig(hidden_sizes=[32, 64, 128, 256], depths=[1, 1, 2, 1], image_size=32, patch_size=2),
        64,
        32,
        120,
    ),
    "bert-4x256": Setting(bert(4, 256), 32, 64),
    "minilm": Setting(bert(6, 384), 32, 64),
    "bert-base": Setting(BertConfig, 32, 128),
    "many-labels": Setting(bert(1, 128, vocab_size=2000), 256, 16),
    "resnet50": Setting(ResNetConfig, 256, 224),
    "vit-base": Setting(ViTConfig, 64, 224),
}
TABLE = [
    *((name, labels, "default") for name in ("bert-2x128", "convnext-small") for labels in (2, 150, 1000)),
    *((name, 10, "paper") for name in ("bert-2x128", "convnext-small")),
    *((name, labels, "default") for name in ("bert-4x256", "minilm") for labels in (2, 150, 1000)),
]
"""What is measured without ``--model``."""
WARM_UP = 5
"""First steps, which allocate, are not counted."""


class Turns(TrainerCallback):
    """Says how long each step took, and waits for its turn to do the next."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.began = 0.0

    def _wait(self) -> None:
        self.connection.recv()
        self.began = time.perf_counter()

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Wait before the first step."""
        if state.global_step == 0:
            self.connection.send(0.0)
            self._wait()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Tell the time of this step; the last one in the order of callbacks."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.connection.send(time.perf_counter() - self.began)
        if state.global_step < state.max_steps:
            self._wait()


def random_batch(config: PreTrainedConfig, rows: int, size: int, labels: int) -> dict[str, Tensor]:
    """Random texts of ``size`` tokens or images of ``size`` x ``size`` pixels, with labels."""
    batch = {"labels": torch.arange(rows) % labels}
    if config.model_type == "bert":
        ids = torch.randint(1000, 2000, (rows, size))
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **batch}
    return {"pixel_values": torch.randn(rows, 3, size, size), **batch}


def train(connection: Any, ours: bool, name: str, labels: int, preset: str, steps: int, dtype: str) -> None:
    """Train one of the two models, in turns."""
    setting = MODELS[name]
    config = setting.config()
    config.num_labels = labels
    text = config.model_type == "bert"
    set_seed(0)
    model = (AutoModelForSequenceClassification if text else AutoModelForImageClassification).from_config(config)
    amount = max(4 * setting.rows, labels)
    batch = random_batch(config, amount, setting.size, labels)
    rows = [{key: value[index] for key, value in batch.items()} for index in range(amount)]
    with tempfile.TemporaryDirectory() as folder:
        common: dict[str, Any] = {
            "output_dir": folder,
            "per_device_train_batch_size": setting.rows,
            "max_steps": steps,
            "learning_rate": 1e-5,
            "report_to": "none",
            "save_strategy": "no",
            "disable_tqdm": True,
            "logging_steps": 10_000,
            "bf16": dtype == "bfloat16",
        }
        trainer = (
            LwALTrainer(model, LwALTrainingArguments(**common, lwal_preset=preset), train_dataset=rows)
            if ours
            else Trainer(model, TrainingArguments(**common), train_dataset=rows)
        )
        trainer.add_callback(Turns(connection))
        before = resident_bytes()
        trainer.train()
    connection.send((1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20)
    connection.close()


class Measurement(NamedTuple):
    """Median milliseconds of a stock step and of ours, median ratio of pairs, and MiB that training took at most."""

    stock: float
    ours: float
    ratio: float
    stock_memory: float
    our_memory: float


def measure(name: str, labels: int, preset: str, steps: int, dtype: str, control: bool = False) -> Measurement:
    """Train both in turns; as a control, the stock model twice."""
    context = multiprocessing.get_context("spawn")
    ends, workers = [], []
    for ours in (False, True):
        here, there = context.Pipe()
        worker = context.Process(target=train, args=(there, ours and not control, name, labels, preset, steps, dtype))
        worker.start()
        there.close()  # so that a worker that fails is noticed
        here.recv()  # one after the other: the start pass of one must not disturb the other's
        ends.append(here)
        workers.append(worker)
    pairs = []
    for pair in range(steps):
        seconds = [0.0, 0.0]
        for index in (0, 1) if pair % 2 else (1, 0):
            ends[index].send(None)
            seconds[index] = ends[index].recv()
        pairs.append(seconds)
    memory = [end.recv() for end in ends]
    for worker in workers:
        worker.join()
    pairs = pairs[WARM_UP:]
    times = [1e3 * statistics.median(column) for column in zip(*pairs, strict=True)]
    return Measurement(*times, statistics.median(our / reference for reference, our in pairs), *memory)


def main() -> None:
    """Parse the arguments, measure, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=sorted(MODELS), help="default: all rows of the table")
    parser.add_argument("--labels", type=int, default=150)
    parser.add_argument("--preset", choices=["default", "paper"], default="default")
    parser.add_argument("--steps", type=int, help="pairs of steps; default: 120 for the two small models, else 30")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32", help="of autocast")
    parser.add_argument("--control", action="store_true", help="train the stock model twice: what the machine adds")
    args = parser.parse_args()
    todo = TABLE if args.model is None else [(args.model, args.labels, args.preset)]
    print("| model | rows | labels | preset | stock, ms | hf-lwal, ms | ratio | stock, MiB | hf-lwal, MiB |")
    print("|" + "---|" * 9)
    for name, labels, preset in todo:
        found = measure(name, labels, preset, args.steps or MODELS[name].pairs, args.dtype, args.control)
        figures = f"{found.stock:.1f} | {found.ours:.1f} | {found.ratio:.3f}"
        memory = f"{found.stock_memory:.0f} | {found.our_memory:.0f}"
        print(f"| {name} | {MODELS[name].rows} | {labels} | {preset} | {figures} | {memory} |", flush=True)


if __name__ == "__main__":
    main()
