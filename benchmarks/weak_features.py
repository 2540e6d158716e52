"""Backbones whose classes lie close together: accuracy from the first step on, beside one-hot at the same steps.

    python benchmarks/weak_features.py --data-root DATA                          # all cells
    python benchmarks/weak_features.py --data-root DATA --backbones two-layer --rates 1e-4 --labels 8 --batches 8

MiniLM read as BERT (first token, through its pooler), whole and cut to two layers, and a tiny random BERT, on a few
rows of some intents of CLINC150, with the trainer's default and in a plain loop that was started from data. Each cell
prints accuracy at its own start, the lowest one, the largest deficit against one-hot at the same step, and the end.
"""

from __future__ import annotations

import argparse
import json
import logging
import tempfile
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
    TrainerCallback,
    get_linear_schedule_with_warmup,
    set_seed,
)

from hf_lwal import AutoModelForLwALClassification, LwALTrainer, LwALTrainingArguments
from hf_lwal.bench.comparison import embedded_model_path, quiet
from hf_lwal.bench.datasets import load_data

BACKBONES: dict[str, dict[str, int]] = {
    "whole": {},
    "two-layer": {"num_hidden_layers": 2},
    "random": {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 128},
}
Batch = dict[str, Tensor]


def rows_of(root: str, num_labels: int, per_label: int, test_rows: int) -> tuple[list[Batch], Batch]:
    """Training rows, in random order, and one batch of test rows of the first intents of a fixed shuffle."""
    data = load_data("clinc150", root, None, None)
    order = torch.randperm(len(data.names), generator=torch.Generator().manual_seed(0))[:num_labels].tolist()
    tokenizer = AutoTokenizer.from_pretrained(embedded_model_path())

    def encoded(split: Any, count: int) -> Batch:
        labels = torch.tensor(split["label"])
        picked = torch.cat([(labels == intent).nonzero()[:count, 0] for intent in order])
        picked = picked[torch.randperm(len(picked), generator=torch.Generator().manual_seed(1))]
        texts = [split[data.input][index] for index in picked.tolist()]
        inputs = tokenizer(texts, padding=True, truncation=True, max_length=32, return_tensors="pt")
        own = torch.tensor([order.index(int(labels[index])) for index in picked])
        return {"input_ids": inputs["input_ids"], "attention_mask": inputs["attention_mask"], "labels": own}

    train = encoded(data.train, per_label)
    rows = [{name: column[i] for name, column in train.items()} for i in range(len(train["labels"]))]
    return rows, encoded(data.test, max(1, test_rows // num_labels))


def build(backbone: str, auto: Any, num_labels: int) -> PreTrainedModel:
    """A classifier on that backbone."""
    source = embedded_model_path()
    config = AutoConfig.from_pretrained(source, num_labels=num_labels, **BACKBONES[backbone])
    pooling = {"pooling": "model"} if auto is AutoModelForLwALClassification else {}
    set_seed(0)
    with quiet():
        model: PreTrainedModel = (
            auto.from_config(config)
            if backbone == "random"
            else auto.from_pretrained(source, config=config, **pooling)
        )
    return model


@torch.no_grad()
def accuracy(model: PreTrainedModel, test: Batch) -> float:
    """Percent of the test rows that the model gets right."""
    training = model.training
    model.eval()
    logits = model(input_ids=test["input_ids"], attention_mask=test["attention_mask"]).logits
    model.train(training)
    return round(100 * float((logits.argmax(-1) == test["labels"]).double().mean()), 1)


class Curve(TrainerCallback):
    """Accuracy at the start of a training and every few steps."""

    def __init__(self, measure: Callable[[], float], every: int) -> None:
        self.measure, self.every, self.values = measure, every, list[float]()

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Before a step that follows as many as wanted."""
        if state.global_step % self.every == 0:
            self.values.append(self.measure())

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The end."""
        self.values.append(self.measure())


def stacked(rows: list[Batch]) -> Batch:
    """Rows of one length as a batch."""
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def with_trainer(
    model: PreTrainedModel,
    rows: list[Batch],
    test: Batch,
    rate: float,
    batch: int,
    steps: int,
    every: int,
    **more: Any,
) -> list[float]:
    """Curve of a training with `LwALTrainer`; label vectors are those that an evaluation would use."""
    with tempfile.TemporaryDirectory() as folder:
        args = LwALTrainingArguments(
            folder,
            learning_rate=rate,
            per_device_train_batch_size=batch,
            per_device_eval_batch_size=200,
            max_steps=steps,
            eval_strategy="steps",
            eval_steps=every,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            seed=0,
            **more,
        )
        evaluated = [{name: column[i] for name, column in test.items()} for i in range(len(test["labels"]))]
        trainer = LwALTrainer(model, args, train_dataset=rows, eval_dataset=evaluated)
        start = Curve(lambda: accuracy(model, test), steps + 1)
        trainer.add_callback(start)
        trainer.train()
        history = [entry["eval_accuracy"] for entry in trainer.state.log_history if "eval_accuracy" in entry]
    return [start.values[0], *(round(100 * value, 1) for value in history)]


def in_a_loop(
    model: Any, rows: list[Batch], test: Batch, rate: float, batch: int, steps: int, every: int
) -> list[float]:
    """Curve of a loop as in any tutorial, after a start from data."""
    starts = [stacked(rows[i : i + 32]) for i in range(0, len(rows), 32)]
    model.initialize_labels(starts, progress=False, learning_rate=rate)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    schedule = get_linear_schedule_with_warmup(optimizer, 0, steps)
    torch.manual_seed(0)

    def endless() -> Iterator[Batch]:
        while True:
            order = torch.randperm(len(rows)).tolist()
            for i in range(0, len(rows), batch):
                yield stacked([rows[j] for j in order[i : i + batch]])

    curve, batches = [accuracy(model, test)], endless()
    model.train()
    for step in range(1, steps + 1):
        model(**next(batches)).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % every == 0:
            curve.append(accuracy(model, test))
    return curve


def summary(curve: list[float], one_hot: list[float]) -> dict[str, float]:
    """Start, lowest accuracy, largest deficit against one-hot at the same step, and end."""
    deficit = max(theirs - ours for ours, theirs in zip(curve, one_hot, strict=True))
    return {"start": curve[0], "lowest": min(curve), "deficit": round(deficit, 1), "end": curve[-1]}


def main() -> None:
    """Run the cells and print one line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", required=True, help="folder of the data sets")
    parser.add_argument("--backbones", nargs="+", choices=BACKBONES, default=list(BACKBONES))
    parser.add_argument("--rates", nargs="+", type=float, default=[2e-5, 1e-4, 1e-3])
    parser.add_argument("--batches", nargs="+", type=int, default=[8, 32])
    parser.add_argument("--labels", nargs="+", type=int, default=[2, 8, 20])
    parser.add_argument("--loops", nargs="+", choices=["trainer", "plain"], default=["trainer", "plain"])
    parser.add_argument("--rows", type=int, default=48, help="training rows in all, at least 4 per label")
    parser.add_argument("--test-rows", type=int, default=200)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--every", type=int, default=5, help="steps between evaluations")
    parser.add_argument("--settings", type=json.loads, default={}, help="JSON of training arguments of the trainer")
    parser.add_argument("--output", type=Path, help="JSONL of curves, appended to")
    options = parser.parse_args()
    logging.getLogger("hf_lwal").setLevel(logging.ERROR)
    for labels, backbone, rate, batch in product(options.labels, options.backbones, options.rates, options.batches):
        rows, test = rows_of(options.data_root, labels, max(4, options.rows // labels), options.test_rows)
        work = (rows, test, rate, batch, options.steps, options.every)
        stock = build(backbone, AutoModelForSequenceClassification, labels)
        one_hot = with_trainer(stock, *work, label_method="one_hot")
        for loop in options.loops:
            model = build(backbone, AutoModelForLwALClassification, labels)
            curve = in_a_loop(model, *work) if loop == "plain" else with_trainer(model, *work, **options.settings)
            cell = {"backbone": backbone, "labels": labels, "rate": rate, "batch": batch, "loop": loop}
            line = {**cell, **summary(curve, one_hot), "curve": curve, "one_hot": one_hot}
            print(json.dumps(line), flush=True)
            if options.output:
                with options.output.open("a") as file:
                    file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
