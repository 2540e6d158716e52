"""How far a training moves when the same batch is split over micro-batches and processes.

    python benchmarks/invariance.py                              # about two minutes on two cores
    python benchmarks/invariance.py --models bert --steps 5      # a quick look
    python benchmarks/invariance.py --output invariance.md       # write the table to a file as well

Tiny random models without dropout and BatchNorm, float32, constant learning rate, effective batch of 8 rows (32 for
the paper preset), every seventh row without a label and three of ten labels random, so that there is something to
learn. Each split is compared with one process and one batch per step: the logged losses, the gradient of the first
step, all weights, the label table (label vectors, class means, counts) and the logits of test rows, as
max|a - b| / max(max|a|, 1e-3) per tensor. AdamW is compared by losses and logits only: it turns weights whose true
gradient is zero, such as the biases of attention keys, into noise of the size of the learning rate.

Two processes are really two: this file is started again by torchrun with gloo. Exits with 1 if any difference is above
1e-5, or if a training did not move the weights.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import torch.distributed as dist
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))  # the tiny models and toy data of the tests

from launchers import TORCHRUN, launch, two_processes
from trajectory import WORLD_SIZE, Trajectory, arguments, build, differences, rows_for, train

MODELS = ("bert", "distilbert", "roberta", "vit", "convnext")
BOUND = 1e-5
LEAST_MOVE = 1e-3
OPTIMIZERS = {"SGD": {"optim": "sgd", "learning_rate": 0.05}, "AdamW": {"optim": "adamw_torch", "learning_rate": 1e-3}}


class Split(NamedTuple):
    """How the rows of an optimizer step are spread."""

    processes: int
    rows: int
    accumulation: int

    def __str__(self) -> str:
        processes = "1 process" if self.processes == 1 else f"{self.processes} processes"
        return f"{processes}, batch {self.rows}, accumulation {self.accumulation}"


class Case(NamedTuple):
    """A training whose splits must not matter."""

    method: str
    optimizer: str
    reference: Split
    others: tuple[Split, ...]
    models: tuple[str, ...]

    @property
    def splits(self) -> tuple[Split, ...]:
        """The reference first."""
        return (self.reference, *self.others)


SPLITS = (Split(1, 4, 2), Split(1, 2, 4), Split(2, 4, 1), Split(2, 2, 2))
CASES = (
    Case("default", "SGD", Split(1, 8, 1), SPLITS, MODELS),
    Case("default", "AdamW", Split(1, 8, 1), SPLITS, MODELS),
    Case("paper", "SGD", Split(1, 32, 1), (Split(2, 16, 1),), MODELS),
    Case(
        "paper, exact accumulation",
        "SGD",
        Split(1, 32, 1),
        (Split(1, 8, 4), Split(2, 8, 2)),
        MODELS,
    ),
    Case("paper, repel 10", "SGD", Split(1, 32, 1), (Split(2, 16, 1),), MODELS),
    Case("one_hot", "SGD", Split(1, 8, 1), SPLITS, ("bert",)),
    Case("one_hot from class means", "SGD", Split(1, 8, 1), SPLITS, ("bert",)),
)


class Job(NamedTuple):
    """One training."""

    method: str
    optimizer: str
    model: str
    split: Split

    @property
    def file(self) -> str:
        """Name of its result."""
        return f"{self.method}-{self.optimizer}-{self.model}-{'-'.join(map(str, self.split))}.pt"


def jobs(models: list[str]) -> Iterator[Job]:
    """All trainings of all cases."""
    for case in CASES:
        for model in (name for name in case.models if name in models):
            for split in case.splits:
                yield Job(case.method, case.optimizer, model, split)


def run(job: Job, steps: int, folder: Path) -> Trajectory:
    """Train a job in this process, one of ``job.split.processes``."""
    rows = job.split.processes * job.split.rows * job.split.accumulation
    args = arguments(
        folder,
        job.method,
        max_steps=steps,
        per_device_train_batch_size=job.split.rows,
        gradient_accumulation_steps=job.split.accumulation,
        **OPTIMIZERS[job.optimizer],
    )
    data = rows_for(job.model, rows * max(1, steps // 2))  # two epochs, so that the order changes in between
    _, trajectory = train(build(job.model, job.method), args, data, rows_for(job.model, 40, seed=1))
    return trajectory


def run_all(models: list[str], steps: int, folder: Path) -> None:
    """Train the jobs that belong to this number of processes and write their results."""
    torch.set_num_threads(1)
    for job in jobs(models):
        if job.split.processes != WORLD_SIZE:
            continue
        trajectory = run(job, steps, folder / "out")
        if WORLD_SIZE > 1:
            refuse_unequal_ranks(job, trajectory.tensors)
        if WORLD_SIZE == 1 or dist.get_rank() == 0:
            torch.save(trajectory._asdict(), folder / job.file)


def refuse_unequal_ranks(job: Job, tensors: dict[str, Tensor]) -> None:
    """Raise unless this rank ended with the same bits as rank 0."""
    for name, tensor in tensors.items():
        first = tensor.clone()
        dist.broadcast(first, src=0)
        if not torch.equal(first, tensor):
            raise RuntimeError(f"{job.file}: rank {dist.get_rank()} has another {name} than rank 0.")


def result(case: Case, model: str, split: Split, folder: Path) -> dict[str, Any]:
    """The trajectory of a training that has run."""
    return torch.load(folder / Job(case.method, case.optimizer, model, split).file)


def compare(case: Case, model: str, split: Split, folder: Path) -> dict[str, float]:
    """Differences of a split to the reference, by tensor; infinite where the reference did not move."""
    reference, other = (result(case, model, wanted, folder) for wanted in (case.reference, split))
    if not reference["moved"] > LEAST_MOVE:
        return {"(no weight moved)": float("inf")}
    found = differences(reference["tensors"], other["tensors"])
    return {name: found[name] for name in ("loss", "logits")} if case.optimizer == "AdamW" else found


def table(models: list[str], folder: Path) -> tuple[str, bool]:
    """The Markdown table, and whether every difference is within the bound; tensors beyond it are printed."""
    lines = [f"| method | optimizer | split | {' | '.join(models)} |", "|" + "---|" * (3 + len(models))]
    good = True
    for case in CASES:
        for split in case.others:
            cells = []
            for model in models:
                found = compare(case, model, split, folder) if model in case.models else {}
                beyond = {name: value for name, value in found.items() if not value <= BOUND}  # NaN is beyond
                for name, value in beyond.items():
                    print(f"{case.method}, {case.optimizer}, {model}, {split}: {name} differs by {value:.1e}")
                good = good and not beyond
                largest = max(found.values(), default=None)
                cells.append("" if largest is None else f"{largest:.0e}" if largest else "same bits")
            lines.append(f"| {case.method} | {case.optimizer} | {split} | {' | '.join(cells)} |")
    return "\n".join(lines), good


def same_bits(models: list[str], folder: Path) -> str:
    """Two sentences on what is equal bit for bit: some tensors to the reference, some splits to one another."""
    equal: set[str] | None = None
    twins: dict[tuple[Split, Split], bool] = {}
    for case in CASES:
        for model in (name for name in case.models if name in models):
            for split in case.others:
                same = {name for name, value in compare(case, model, split, folder).items() if value == 0}
                if case.method == "default" and case.optimizer == "SGD":
                    equal = same if equal is None else equal & same
            for pair in itertools.combinations(case.others, 2):
                one, other = (result(case, model, split, folder)["tensors"] for split in pair)
                same_pair = all(torch.equal(tensor, other[name]) for name, tensor in one.items())
                twins[pair] = twins.get(pair, True) and same_pair
    names = ", ".join(sorted(name.removeprefix("weight ") for name in equal or ())) or "no tensor"
    pairs = "; ".join(f"{one} and {other}" for (one, other), same in twins.items() if same) or "no two splits"
    return (
        f"Bit for bit as in the reference in every split of the default preset with SGD: {names}. "
        f"Bit for bit as one another, in all methods and models: {pairs}."
    )


def parse_arguments() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS), help="which tiny models")
    parser.add_argument("--steps", type=int, default=20, help="optimizer steps of every training")
    parser.add_argument("--output", type=Path, help="also write the table to this file")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)  # folder of results; set for torchrun's copies
    return parser.parse_args()


def main() -> int:
    """Run everything and print the table; returns the exit code."""
    options = parse_arguments()
    if options.worker is not None:
        with two_processes():
            run_all(options.models, options.steps, options.worker)
        return 0
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        settings = ["--models", *options.models, "--steps", str(options.steps), "--worker", folder]
        launch(TORCHRUN, Path(__file__), *settings, timeout=3600)
        run_all(options.models, options.steps, Path(folder))
        text, good = table(options.models, Path(folder))
        equal = same_bits(options.models, Path(folder))
    verdict = f"{options.steps} steps; largest difference to one process with one batch per step. {equal}"
    print(f"{text}\n\n{verdict}\n\n{time.perf_counter() - started:.0f} seconds.")
    if options.output is not None:
        options.output.write_text(f"{text}\n\n{verdict}\n", encoding="utf-8")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
