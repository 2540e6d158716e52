"""A hundred thousand steps on data that drift: memory, counts, and the label table beside a copy in float64.

    python benchmarks/stress.py                       # a loop of one's own, some minutes
    python benchmarks/stress.py --loop trainer        # LwALTrainer

Two dense layers on rows whose class centres go round in circles, so that every class is somewhere else after a quarter
of `PERIOD`. The copy gets the features of every step and follows Algorithm 1 by itself, in float64 and with whole
numbers. Each line is JSON: how far the table is from it, relative to how far label vectors lie apart.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset
from transformers import TrainerCallback, set_seed

from hf_lwal import AutoModelForLwALClassification, LabelTable, LwALTrainer, LwALTrainingArguments
from hf_lwal.bench.nets import DenseConfig

LABELS, WIDTH, ROWS = 10, 16, 32
PERIOD = 20_000
MEMORY = 50
FOLLOWS = {"plain": 1.0, "trainer": 0.3}
"""Share of the common drift that label vectors follow."""


class Drifting:
    """Rows of classes whose centres go round in circles; each call is a step later.

    Args:
        seed: of the rows; the centres are the same for all.
    """

    def __init__(self, seed: int) -> None:
        fixed = torch.Generator().manual_seed(1_000)
        self.here, self.there = torch.randn(2, LABELS, WIDTH, generator=fixed)
        self.generator, self.step = torch.Generator().manual_seed(seed), 0

    def rows(self, number: int = ROWS) -> dict[str, Tensor]:
        """Rows of the present step."""
        labels = torch.randint(LABELS, (number,), generator=self.generator)
        angle = torch.tensor(2.0 * np.pi * self.step / PERIOD)
        centres = self.here * angle.cos() + self.there * angle.sin()
        noise = torch.randn(number, WIDTH, generator=self.generator)
        return {"inputs_embeds": centres[labels] + noise, "labels": labels}


class Stream(IterableDataset[dict[str, Tensor]]):
    """The same rows for a trainer, one by one.

    Args:
        drifting: the rows.
    """

    def __init__(self, drifting: Drifting) -> None:
        self.drifting = drifting

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        while True:
            batch = self.drifting.rows()
            self.drifting.step += 1
            for row in range(ROWS):
                yield {name: values[row] for name, values in batch.items()}


class Shadow:
    """The label table as it would be without rounding: running class means, and the offset that is re-anchored.

    Args:
        table: as it is before the first step.
        follow: share of the common drift.
    """

    def __init__(self, table: LabelTable, follow: float) -> None:
        self.means, self.offset = table.class_features.double(), table.offset_bias.detach().double()
        self.counts = table.counts.tolist()
        self.follow = follow

    def optimizer_step(self, before: Tensor, after: Tensor) -> None:
        """Take the gradient's change of the offset, the only thing that is not its own."""
        self.offset += after.double() - before.double()

    def end_step(self, features: Tensor, labels: Tensor, weight: Tensor) -> None:
        """Algorithm 1 with a memory, for rows (B, H), labels (B,) and the head's weight (D, H)."""
        rows = torch.bincount(labels, minlength=LABELS)
        sums = torch.zeros_like(self.means).index_add_(0, labels, features.double())
        drift = (sums - rows.unsqueeze(1) * self.means).sum(dim=0) / rows.sum()
        self.means += self.follow * drift
        before = self.means.clone()
        for label, number in enumerate(rows.tolist()):
            if number:
                kept = min(self.counts[label], MEMORY)
                self.means[label] = (kept * self.means[label] + sums[label]) / (kept + number)
                self.counts[label] += number
        self.offset += (before - self.means) @ weight.double().T

    def errors(self, table: LabelTable, weight: Tensor, bias: Tensor) -> dict[str, Any]:
        """How far the table is from this, in units of how far means and label vectors lie apart."""
        vectors = self.means @ weight.double().T + bias.double() + self.offset
        derived = table.class_features @ weight.T + bias + table.offset_bias.detach()
        finite = all(bool(value.isfinite().all()) for value in table.state_dict().values())
        return {
            "means_error": _distance(table.class_features, self.means),
            "vectors_error": _distance(derived, vectors),
            "counts_equal": table.counts.tolist() == self.counts,
            "finite": finite,
        }


def _distance(found: Tensor, wanted: Tensor) -> float:
    apart = (wanted - wanted.mean(dim=0)).norm(dim=1).mean()
    return float((found.double() - wanted).norm(dim=1).max() / apart)


def resident_mb() -> float:
    """Memory of this process in use, in MB (Linux)."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 2**20


class Watch:
    """Measures now and then.

    Args:
        model: that trains.
        drifting: its rows.
        every: steps between two measurements.
        follow: share of the common drift.
    """

    def __init__(self, model: Any, drifting: Drifting, every: int, follow: float) -> None:
        self.model, self.drifting, self.every = model, drifting, every
        self.shadow, self.test = Shadow(model.label_table, follow), Drifting(seed=7)
        self.start, self.lines = time.perf_counter(), list[dict[str, Any]]()

    def measure(self, step: int) -> None:
        """Keep and print a line."""
        head, table = self.model.head_module, self.model.label_table
        line = {"step": step, **self.shadow.errors(table, head.weight.detach(), head.bias.detach())}
        line |= {"accuracy": self.accuracy(), "rss_mb": round(resident_mb(), 1)}
        line |= {"seconds": round(time.perf_counter() - self.start, 1), "rows": sum(self.shadow.counts)}
        self.lines.append(line)
        print(json.dumps(line), flush=True)

    @torch.no_grad()
    def accuracy(self) -> float:
        """Share of right answers among 500 new rows of the present step."""
        self.test.step = self.drifting.step
        batch, training = self.test.rows(500), self.model.training
        found = self.model.eval()(inputs_embeds=batch["inputs_embeds"]).logits.argmax(dim=1)
        self.model.train(training)
        return float((found == batch["labels"]).float().mean())


def new_model() -> Any:
    """Two dense layers with a label table."""
    set_seed(0)
    config = DenseConfig(input_size=WIDTH, hidden_sizes=[32], num_labels=LABELS)
    return AutoModelForLwALClassification.from_config(config, embedding_dim=16)


def plain(steps: int, every: int) -> list[dict[str, Any]]:
    """A loop of one's own, in which the model ends each step at the next forward."""
    model, drifting = new_model(), Drifting(seed=0)
    model.train()
    model.initialize_labels([drifting.rows() for _ in range(8)], progress=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    watch = Watch(model, drifting, every, FOLLOWS["plain"])
    table, weight = model.label_table, model.head_module.weight
    for step in range(1, steps + 1):
        batch = drifting.rows()
        output = model(**batch)
        output.loss.backward()
        before = table.offset_bias.detach().clone()
        optimizer.step()
        optimizer.zero_grad()
        drifting.step += 1
        watch.shadow.optimizer_step(before, table.offset_bias.detach())
        model.bring_labels_up_to_date()  # ends the step now, so that both stand at the same place
        watch.shadow.end_step(output.features.detach(), batch["labels"], weight.detach())
        if step % every == 0:
            watch.measure(step)
    return watch.lines


class Follows(TrainerCallback):
    """Leads the shadow beside a trainer.

    Args:
        drifting: the rows.
        every: steps between two measurements.
    """

    def __init__(self, drifting: Drifting, every: int) -> None:
        self.drifting, self.every = drifting, every

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """The table was filled by the start pass."""
        self.watch = Watch(model, self.drifting, self.every, FOLLOWS["trainer"])
        model.register_forward_hook(self._seen, with_kwargs=True)

    def _seen(self, model: Any, args: Any, inputs: Any, output: Any) -> None:
        if model.training:
            self.step = output.features.detach(), inputs["labels"]

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Remember the offset."""
        self.before = model.label_table.offset_bias.detach().clone()

    def on_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """See how the gradient moved it."""
        self.watch.shadow.optimizer_step(self.before, model.label_table.offset_bias.detach())

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """After the trainer's own callback: the table has taken the step."""
        self.watch.shadow.end_step(*self.step, model.head_module.weight.detach())
        if state.global_step % self.every == 0:
            self.watch.measure(state.global_step)


def trainer(steps: int, every: int) -> list[dict[str, Any]]:
    """`LwALTrainer` on a stream."""
    model, drifting = new_model(), Drifting(seed=0)
    follows = Follows(drifting, every)
    with tempfile.TemporaryDirectory() as folder:
        args = LwALTrainingArguments(
            folder,
            max_steps=steps,
            per_device_train_batch_size=ROWS,
            learning_rate=1e-3,
            lr_scheduler_type="constant",
            logging_steps=10_000,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
        )
        found = LwALTrainer(model, args, train_dataset=Stream(drifting))
        found.add_callback(follows)  # after the trainer's own, which changes the table
        found.train()
    return follows.watch.lines


LOOPS = {"plain": plain, "trainer": trainer}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loop", choices=LOOPS, default="plain")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--every", type=int, default=10_000, help="steps between two measurements")
    given = parser.parse_args()
    torch.set_num_threads(1)
    LOOPS[given.loop](given.steps, given.every)
