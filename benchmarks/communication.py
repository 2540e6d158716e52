"""What ranks send each other in a training step with a label table, counted, beside the stock Trainer's.

    python benchmarks/communication.py
    python benchmarks/communication.py --labels 10000 --rows 32 --hidden 384 --plot communication.png

Two processes (gloo, CPU) train a tiny BERT for a few steps, with `LwALTrainer` and with transformers' `Trainer`, and
every collective is counted with the bytes of its tensors. From these follow the bytes that a rank sends and receives
on more ranks: ``2 (n - 1) / n`` times the tensor for an all-reduce in a ring, ``(n - 1)`` times one rank's part for an
all-gather.
"""

from __future__ import annotations

import argparse
import os
import socket
import tempfile
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

from hf_lwal import LwALTrainer, LwALTrainingArguments

STEPS = 4
RANKS = (2, 8, 64)


class Collectives(TorchDispatchMode):
    """Counts collectives and the bytes of the tensors that one rank gives them, by operation."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            name = func._schema.name.removeprefix("c10d::").strip("_")
            given = args[1] if name.startswith("allgather") else args[0]
            tensors = given if isinstance(given, (list, tuple)) else [given]
            flat = [part for part in tensors for part in (part if isinstance(part, (list, tuple)) else [part])]
            self.calls[name] += 1
            self.bytes[name] += sum(part.numel() * part.element_size() for part in flat)
        return func(*args, **(kwargs or {}))


class Steps(TrainerCallback):
    """Counts from the end of the second step to that of the last: the first ones also agree on buckets and sizes."""

    def __init__(self) -> None:
        self.collectives = Collectives()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin and end counting; added last, so that the step's own collectives are over."""
        if state.global_step == 2:
            self.collectives.__enter__()
        if state.global_step == state.max_steps:
            self.collectives.__exit__(None, None, None)


def counted(ours: bool, num_labels: int, rows: int, hidden: int, folder: str) -> dict[str, tuple[float, float]]:
    """Operation → calls and bytes per step, on this rank."""
    set_seed(0)
    config = BertConfig(
        vocab_size=100, hidden_size=hidden, num_hidden_layers=1, num_attention_heads=4, intermediate_size=hidden
    )
    config.num_labels = num_labels
    model = AutoModelForSequenceClassification.from_config(config)
    # Each row its own label, over and over: the start pass then has few rows.
    data = [
        {"input_ids": torch.randint(100, (8,)), "labels": row % num_labels} for row in range(2 * rows * (STEPS + 2))
    ]
    common: dict[str, Any] = {
        "output_dir": folder,
        "per_device_train_batch_size": rows,
        "max_steps": STEPS + 2,
        "use_cpu": True,
        "report_to": "none",
        "save_strategy": "no",
        "logging_steps": 10_000,
        "disable_tqdm": True,
        "ddp_broadcast_buffers": False,
    }
    trainer: Trainer = (
        LwALTrainer(model, LwALTrainingArguments(**common, lwal_init_samples=1), train_dataset=data)
        if ours
        else Trainer(model, TrainingArguments(**common), train_dataset=data)
    )
    steps = Steps()
    trainer.add_callback(steps)
    trainer.train()
    found = steps.collectives
    return {name: (found.calls[name] / STEPS, found.bytes[name] / STEPS) for name in found.calls}


def work(rank: int, port: int, labels: Sequence[int], rows: int, hidden: int, results: Any) -> None:
    """One of two processes."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        found = [
            {ours: counted(ours, num_labels, rows, hidden, folder) for ours in (False, True)} for num_labels in labels
        ]
    if rank == 0:
        results.put(found)
    dist.barrier()
    dist.destroy_process_group()


def measure(labels: Sequence[int], rows: int, hidden: int) -> list[dict[bool, dict[str, tuple[float, float]]]]:
    """Per number of labels: whether a label table is there → operation → calls and bytes per step of one rank."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["hf_lwal.training.trainer"])  # or each process would import for seconds
    results = context.SimpleQueue()
    arguments = (port, tuple(labels), rows, hidden, results)
    multiprocessing.start_processes(work, arguments, nprocs=2, start_method="forkserver")
    found: list[dict[bool, dict[str, tuple[float, float]]]] = results.get()
    return found


def on_ranks(found: dict[str, tuple[float, float]], ranks: int) -> float:
    """Bytes that a rank sends per step when so many take part."""
    share = 2.0 * (ranks - 1) / ranks
    return sum(number * ((ranks - 1) if "gather" in name else share) for name, (_, number) in found.items())


def plot(file: str, counted: list[tuple[str, dict[str, tuple[float, float]]]]) -> None:
    """MiB that a rank sends per step against the number of ranks."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 3.6))
    ranks = [2, 4, 8, 16, 32, 64]
    for number, (name, operations) in enumerate(counted):
        sent = [on_ranks(operations, many) / 2**20 for many in ranks]
        axes.loglog(ranks, sent, marker="o", linestyle="-" if number % 2 else "--", label=name)
    axes.set(xlabel="ranks", ylabel="MiB sent per rank and step")
    axes.set_xticks(ranks, map(str, ranks))
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(file, dpi=110)


def main() -> None:
    """Parse the arguments, count, print tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--labels", type=int, nargs="+", default=[150, 10_000])
    parser.add_argument("--rows", type=int, default=32, help="per rank and step")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--plot", metavar="FILE", help="also plot what a rank sends against the number of ranks")
    args = parser.parse_args()
    print("| labels | trainer | operation | calls per step | KiB per step |\n|---|---|---|---|---|")
    scaled, counted_as = [], []
    for num_labels, found in zip(args.labels, measure(args.labels, args.rows, args.hidden), strict=True):
        for ours, operations in found.items():
            who = "LwALTrainer" if ours else "Trainer"
            for name, (calls, number) in sorted(operations.items()):
                print(f"| {num_labels} | {who} | {name} | {calls:g} | {number / 1024:.1f} |")
            counted_as.append((f"{who}, {num_labels:,} labels", operations))
            scaled.append([num_labels, who, *(f"{on_ranks(operations, ranks) / 2**20:.2f}" for ranks in RANKS)])
    print(f"\n| labels | trainer | {' | '.join(f'MiB sent, {ranks} ranks' for ranks in RANKS)} |")
    print("|---|---|" + "---|" * len(RANKS))
    for row in scaled:
        print(f"| {' | '.join(map(str, row))} |")

    if args.plot:
        plot(args.plot, counted_as)


if __name__ == "__main__":
    main()
