"""Trainings that test_distributed compares: the same function runs in one process there and in two processes here.

    torchrun --nproc_per_node 2 tests/distributed_worker.py results default ragged paper

Every scenario takes an empty folder, trains on rows that depend on nothing but its code, and returns what is compared.
Rank r writes it to ``results/<scenario>/rank<r>.pt``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from accelerate import Accelerator, PartialState
from datasets import IterableDataset
from launchers import two_processes
from torch.utils.data import DataLoader
from trajectory import WORLD_SIZE, arguments, build, checksum, logits_of, rows_for, train
from transformers import Trainer, default_data_collator

from hf_lwal.modeling import step_sums
from hf_lwal.modeling.distributed import all_reduce_sum

TEST = rows_for("bert", 40, seed=1)
# Without it DistributedDataParallel would overwrite the tables of the other ranks by rank 0's at every step, and hide
# that they differ.
UNCORRECTED = {"ddp_broadcast_buffers": False}


def split(rows: int, accumulation: int = 1) -> dict[str, int]:
    """Arguments for ``rows`` per optimizer step: one batch in one process; so many micro-batches in each of two."""
    parts = 1 if WORLD_SIZE == 1 else accumulation
    return {"per_device_train_batch_size": rows // (WORLD_SIZE * parts), "gradient_accumulation_steps": parts}


def run(
    folder: Path, method: str = "default", data: Any = None, checkpoint: str | None = None, **options: Any
) -> dict[str, Any]:
    """Train a tiny BERT on 32 rows, unless other ``data`` is given, and return its trajectory."""
    data = rows_for("bert", 32) if data is None else data
    args = arguments(folder, method, **{**UNCORRECTED, "max_steps": 6, **options})
    trainer, trajectory = train(build("bert", method), args, data, TEST, checkpoint)
    return {**trajectory._asdict(), "steps": trainer.state.global_step}


def default(folder: Path) -> dict[str, Any]:
    """The default preset with accumulation, saved at every second step."""
    return run(folder, save_strategy="steps", save_steps=2, **split(8, accumulation=2))


def ragged(folder: Path) -> dict[str, Any]:
    """Two epochs on numbers of rows that the rows of a step do not divide."""
    epochs = {"max_steps": -1, "num_train_epochs": 2}
    return {
        # The last step of an epoch has one micro-batch of two rows per rank.
        "short step": run(folder, data=rows_for("bert", 20), **epochs, **split(8, accumulation=2)),
        "dropped": run(folder, data=rows_for("bert", 22), **epochs, **split(8), dataloader_drop_last=True),
        "padded": run(folder, data=rows_for("bert", 22), **epochs, **split(8)),
    }


def touched_rows(folder: Path) -> dict[str, Any]:
    """What many labels would have the ranks do: send rows to each other, and touch only the means of their classes."""
    before, step_sums.CLASSES_PER_ROW = step_sums.CLASSES_PER_ROW, 0
    try:
        return {
            "accumulation": default(folder),
            "short step": run(folder, data=rows_for("bert", 20), max_steps=5, **split(8, accumulation=2)),
            "every third step": run(folder, lwal_refresh_every=3, lwal_warmup_steps=1, **split(8)),
            "fixed means": run(folder, lwal_refresh_every=0, **split(8)),
            "unlike ranks": unlike_ranks(folder),
        }
    finally:
        step_sums.CLASSES_PER_ROW = before


def unlike_ranks(folder: Path) -> dict[str, Any]:
    """Steps in which the ranks have unlike classes, or no labelled row at all."""
    rows = rows_for("bert", 200)
    by_class = [np.flatnonzero(np.array(rows["labels"]) == label).tolist() for label in range(-100, 5)]
    of = {label: iter(by_class[label + 100]) for label in (-100, *range(5))}
    halves = [  # the four rows of rank 0, those of rank 1
        ((0, 0, 1, 1), (2, 3, 4, 4)),
        ((0, 1, 2, 3), (-100, -100, -100, -100)),
        ((-100, -100, -100, -100), (-100, -100, -100, -100)),
        ((4, 4, 4, 4), (4, 4, 4, -100)),
    ]
    order = [next(of[label]) for step in halves for half in step for label in half]
    data = rows.select(order)
    return run(folder, data=data, max_steps=4, train_sampling_strategy="sequential", **split(8))


def starts(folder: Path) -> dict[str, Any]:
    """The start pass over the three kinds of data sets."""
    rows = rows_for("bert", 200)
    kinds = {"columns": rows, "list": list(rows), "stream": IterableDataset.from_generator(lambda: iter(rows))}
    return {
        kind: run(folder, data=data, max_steps=1, lwal_init_samples=4, **split(8))["checksums"]["start"]
        for kind, data in kinds.items()
    }


def evaluation(folder: Path) -> dict[str, Any]:
    """Evaluate and predict, with numbers of rows that the processes divide and do not divide evenly."""
    args = arguments(folder, max_steps=4, per_device_eval_batch_size=4, **split(8), **UNCORRECTED)
    trainer, _ = train(build("bert"), args, rows_for("bert", 32), TEST)
    uneven = rows_for("bert", 37, seed=2)
    return {
        "even": trainer.evaluate(),
        "uneven": trainer.evaluate(uneven),
        "predictions": torch.tensor(trainer.predict(uneven).predictions),
        "direct": logits_of(trainer.core_model, uneven),
    }


def paper(folder: Path) -> dict[str, Any]:
    """The paper's algorithm with repel loss, plain and with exact accumulation."""
    data, more = rows_for("bert", 64), {"max_steps": 4, "max_grad_norm": 0.0}
    return {
        "plain": run(folder, "paper, repel 10", data, **more, **split(32)),
        "accumulated": run(
            folder, "paper, repel 10", data, **more, **split(32, accumulation=2), lwal_exact_accumulation=True
        ),
    }


def one_hot(folder: Path) -> dict[str, Any]:
    """The control, from its own head and from class means."""
    return {name: run(folder, name, **split(8, accumulation=2)) for name in ("one_hot", "one_hot from class means")}


def pooled(folder: Path) -> dict[str, Any]:
    """Label vectors and one-hot labels from the fitted start, on a classifier that is exchanged for one that pools."""
    options = {"lwal_pooling": "mean", "lwal_initial_head": "probe", **split(8, accumulation=2)}
    return {name: run(folder, name, **options) for name in ("default", "one_hot from class means")}


def batch_norm(folder: Path) -> dict[str, Any]:
    """A model with BatchNorm: its statistics differ between ranks, its label vectors must not."""
    options = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2, "eval_strategy": "steps", "eval_steps": 2}
    test = rows_for("resnet", 40, seed=1)
    args = arguments(folder, **options, **split(8), **UNCORRECTED, learning_rate=0.01)
    trainer, trajectory = train(build("resnet"), args, rows_for("resnet", 32), test)
    state = trainer.core_model.state_dict()
    return {
        "checksums": trajectory.checksums,
        "metrics": [log for log in trainer.state.log_history if "eval_accuracy" in log],
        "statistics": next(value for name, value in state.items() if name.endswith("running_mean")),
        "loss": trajectory.tensors["loss"],
    }


def resume(folder: Path) -> dict[str, Any]:
    """Six steps at once, and the same training resumed in its first epoch and in its second; with dropout."""

    def six_steps(checkpoint: str | None) -> dict[str, Any]:
        model = build("bert", hidden_dropout_prob=0.1)
        saves = {"save_strategy": "steps", "save_steps": 1}
        args = arguments(folder, max_steps=6, **saves, **split(8, accumulation=2), **UNCORRECTED)
        return train(model, args, rows_for("bert", 32), TEST, checkpoint)[1]._asdict()

    whole = six_steps(None)
    return {"whole": whole, **{f"resumed at {step}": six_steps(str(folder / f"checkpoint-{step}")) for step in (3, 5)}}


def plain_trainer(folder: Path) -> dict[str, Any]:
    """transformers' own Trainer: the model itself tracks its labels."""
    args = arguments(folder, max_steps=6, **split(8), **UNCORRECTED)
    _, trajectory = train(build("bert"), args, rows_for("bert", 32), TEST, trainer_class=Trainer)
    return trajectory._asdict()


def plain_loop(folder: Path) -> dict[str, Any]:
    """A loop with accelerate, without any trainer."""
    accelerator, model = Accelerator(cpu=True), build("bert")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    rows = DataLoader(list(rows_for("bert", 32)), batch_size=8 // WORLD_SIZE, collate_fn=default_data_collator)
    model, optimizer, rows = accelerator.prepare(model, optimizer, rows)
    model.train()
    for batch in rows:
        accelerator.backward(model(**batch).loss)
        optimizer.step()
        optimizer.zero_grad()
    core = accelerator.unwrap_model(model).eval()
    counts = core.label_table.counts.clone()
    return {"counts": counts, "table": checksum(core.label_table.state_dict()), "logits": logits_of(core, TEST)}


def sum_over_ranks(folder: Path) -> dict[str, Any]:
    """Value and gradient of a function of a sum over ranks, each of which has its own part and its own loss."""
    rank = dist.get_rank()
    part = torch.arange(6.0).reshape(3, 2).add(10.0 * rank).requires_grad_()
    total = all_reduce_sum(part.square().sum(dim=0))  # (2,)
    ((rank + 1.0) * total.sqrt().sum()).backward()
    return {"total": total.detach(), "gradient": part.grad}


def rejection(folder: Path) -> dict[str, Any]:
    """Radii, scatter and temperatures from rows of which the ranks have unlike numbers and classes, and from all."""
    model, rows = build("bert"), rows_for("bert", 61, seed=3).sort("labels")
    model.initialize_labels([rows_for("bert", 40).with_format("torch")[:]], progress=False)
    parts = [rows] if WORLD_SIZE == 1 else [rows.select(range(23)), rows.select(range(23, 61))]
    given = {"parts": parts[dist.get_rank() if len(parts) > 1 else 0], "whole": rows}
    batches = {name: list(part.with_format("torch").iter(8)) for name, part in given.items()}
    radii, temperatures, table = {}, {}, model.label_table
    for name, part in batches.items():
        measured = model.fit_rejection(part, progress=False)
        radii[name] = torch.cat([measured, table.rejection_edges, table.row_scatter])
        model.label_table.set_scale(30.0)
        temperatures[f"{name}, temperature"] = torch.tensor(model.calibrate(part, progress=False))
    return radii | temperatures


def suspicious_labels(folder: Path) -> dict[str, Any]:
    """Labels judged from rows of which the ranks have unlike numbers, and from all rows on every rank."""
    model, rows = build("bert"), rows_for("bert", 61, seed=3)
    parts = [rows] if WORLD_SIZE == 1 else [rows.select(range(23)), rows.select(range(23, 61))]
    given = {"parts": parts[dist.get_rank() if len(parts) > 1 else 0], "whole": rows}
    batches = {name: list(part.with_format("torch").iter(8)) for name, part in given.items()}
    return {name: model.suspicious_labels(part, progress=False) for name, part in batches.items()}


def noisy_labels(folder: Path) -> dict[str, Any]:
    """Rows with wrong labels left out, and counted for less, under accumulation."""
    data = rows_for("bert", 64)
    return {
        mode: run(folder, data=data, lwal_noisy_labels=mode, **split(8, accumulation=2))
        for mode in ("drop", "downweight")
    }


def unlike_starts(folder: Path) -> dict[str, Any]:
    """Ranks with seeds of their own; with unlike numbers of start rows; with a table that one of them altered."""
    rank, rows = dist.get_rank(), rows_for("bert", 64)
    shares = [rows.select(range(0, 64, 2)), rows.select(range(1, 20, 2))]
    stream = IterableDataset.from_generator(lambda: iter(shares[rank]))
    options = {"max_steps": 2, "per_device_train_batch_size": 4, **UNCORRECTED}
    seeds = arguments(folder, seed=rank, **options)
    apart = arguments(folder, accelerator_config={"dispatch_batches": False}, **options)
    found: dict[str, Any] = {}
    for name, args, data in (("seeds", seeds, rows), ("shares", apart, stream)):
        trainer, trajectory = train(build("bert"), args, data, TEST)
        found[name] = {"checksums": trajectory.checksums, "end": checksum(trainer.core_model.label_table.state_dict())}
    trainer.core_model.label_table.class_features.data.add_(rank)
    try:
        trainer.check_ranks()
    except RuntimeError as error:
        found["altered"] = str(error)
    return found


SCENARIOS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "default": default,
    "ragged": ragged,
    "unlike_ranks": unlike_ranks,
    "starts": starts,
    "evaluation": evaluation,
    "paper": paper,
    "one_hot": one_hot,
    "pooled": pooled,
    "batch_norm": batch_norm,
    "resume": resume,
    "touched_rows": touched_rows,
    "plain_trainer": plain_trainer,
    "plain_loop": plain_loop,
    "sum_over_ranks": sum_over_ranks,
    "rejection": rejection,
    "suspicious_labels": suspicious_labels,
    "noisy_labels": noisy_labels,
    "unlike_starts": unlike_starts,
}


def in_one_process(name: str, folder: Path) -> dict[str, Any]:
    """The reference: a scenario in this process."""
    if WORLD_SIZE != 1:
        raise RuntimeError(f"WORLD_SIZE is {WORLD_SIZE}, but a reference runs in one process.")
    return SCENARIOS[name](folder)


def parse_arguments() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where results go")
    parser.add_argument("scenarios", nargs="+", choices=SCENARIOS, help="what to run, in this order")
    return parser.parse_args()


def main() -> None:
    """Run the scenarios in this process, one of two."""
    options = parse_arguments()
    PartialState(cpu=True)  # forms the group
    torch.set_num_threads(1)
    for name in options.scenarios:
        folder = options.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        results = SCENARIOS[name](folder / "training")
        torch.save(results, folder / f"rank{dist.get_rank()}.pt")


if __name__ == "__main__":
    with two_processes():
        main()
