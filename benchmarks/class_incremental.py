"""Classes over time: CLINC150's ten domains one after the other, without keeping samples of those before.

    python benchmarks/class_incremental.py --output class_incremental.jsonl       # 40 minutes an order, shared core
    python benchmarks/class_incremental.py --methods frozen --orders 3            # what trains nothing: a minute each
    python benchmarks/class_incremental.py --summarise class_incremental.jsonl    # the table alone

Each domain brings 15 intents. After each, all test rows of the intents seen so far are classified among these. MiniLM,
pooled as it was trained to be, 30 training rows per intent; a seed decides the order of the domains and the rows.
Average: mean of the ten accuracies; forgetting: mean over the first nine domains of the highest accuracy that their
rows ever had (among the classes of that time) less the one at the end. A finished line is not measured again.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from long_tail import read
from torch import Tensor
from transformers import AutoTokenizer, PrinterCallback, set_seed

from hf_lwal import AutoModelForLwALClassification, LwALTrainer, LwALTrainingArguments
from hf_lwal.bench.comparison import embedded_model_path, quiet
from hf_lwal.bench.frozen_regression import fit_regression
from hf_lwal.bench.report import markdown_table, spread
from hf_lwal.data import load_embedded
from hf_lwal.data.selection import rank_in_class
from hf_lwal.functional import pairwise_distances
from hf_lwal.metrics import mean_and_sd
from hf_lwal.modeling.class_moments import moments
from hf_lwal.modeling.heads import run_without_head
from hf_lwal.objectives.stock import stock_head

DOMAINS = 10
SHRINKAGE = 0.1
"""Share of the identity in the covariance; from 0.01 to 0.3 accuracies at the end differ by half a point."""
Predict = Callable[[Tensor], Tensor]


class Rows(NamedTuple):
    """Token ids of texts, one row each, and labels (N,), in the order in which classes come."""

    inputs: list[dict[str, Any]]
    labels: Tensor

    def of(self, first: int, last: int) -> Rows:
        """Rows of the classes from ``first`` to before ``last``."""
        kept = ((self.labels >= first) & (self.labels < last)).nonzero()[:, 0].tolist()
        return Rows([self.inputs[row] for row in kept], self.labels[kept])


class Stream(NamedTuple):
    """Training and test rows whose labels are numbered in the order of their domains; classes per domain."""

    train: Rows
    test: Rows
    width: int
    names: list[str]
    tokenizer: Any


def load_stream(seed: int, train_rows: int, test_rows: int) -> Stream:
    """CLINC150 with its domains in a random order."""
    splits, generator = load_embedded("clinc150"), np.random.default_rng(seed)
    names = splits["train"].features["label"].names
    domain_of = dict(zip(splits["train"]["label"], splits["train"]["domain"], strict=True))
    rank = generator.permutation(DOMAINS)
    order = sorted(range(len(names)), key=lambda label: (rank[domain_of[label]], label))
    new_id = np.argsort(order)
    tokenizer = AutoTokenizer.from_pretrained(embedded_model_path(), model_max_length=32)

    def rows(split: str, per_class: int) -> Rows:
        labels = new_id[np.asarray(splits[split]["label"][:])]
        shuffled = generator.permutation(len(labels))
        chosen = shuffled[rank_in_class(labels[shuffled]) < per_class]
        texts = [splits[split][int(row)]["text"] for row in chosen]
        ids = tokenizer(texts, truncation=True)["input_ids"]
        return Rows([{"input_ids": row} for row in ids], torch.from_numpy(labels[chosen]))

    named = [names[label] for label in order]
    return Stream(rows("train", train_rows), rows("test", test_rows), len(names) // DOMAINS, named, tokenizer)


@torch.no_grad()
def passed(stream: Stream, rows: Rows, forward: Predict, size: int = 128) -> Tensor:
    """What ``forward`` gives for the rows, in their order; rows of like length share a batch."""
    order = sorted(range(len(rows.inputs)), key=lambda row: len(rows.inputs[row]["input_ids"]))
    parts = [
        forward(stream.tokenizer.pad([rows.inputs[row] for row in order[i : i + size]], return_tensors="pt"))
        for i in range(0, len(order), size)
    ]
    return torch.cat(parts)[torch.tensor(order).argsort()]


class Lda:
    """Streaming linear discriminant analysis: class means, and one covariance for all (Hayes & Kanan, 2020)."""

    def __init__(self) -> None:
        self.means, self.covariance, self.rows = torch.zeros(0), torch.zeros(0), 0

    def add(self, features: Tensor, labels: Tensor) -> None:
        """Classes that follow on those before."""
        first = len(self.means)
        number = int(labels.max()) + 1 - first
        found = moments(features, labels - first, number, torch.arange(len(labels)), covariance=True)
        assert found.covariance is not None
        self.means = torch.cat([self.means, found.means]) if first else found.means
        share = len(labels) / (self.rows + len(labels))
        self.covariance = share * found.covariance + ((1 - share) * self.covariance if first else 0.0)
        self.rows += len(labels)

    def scores(self, features: Tensor) -> Tensor:
        """(N, C) float64, highest for the likeliest class."""
        size = self.covariance.trace() / len(self.covariance)
        shrunk = torch.lerp(self.covariance, size * torch.eye(len(self.covariance)).double(), SHRINKAGE)
        weight = torch.linalg.solve(shrunk, self.means.T.double())  # (H, C)
        return features.double() @ weight - 0.5 * (self.means.T * weight).sum(dim=0)


class Record:
    """Accuracies (after domain t, of domain k)."""

    def __init__(self, stream: Stream) -> None:
        self.stream, self.cells = stream, np.full((DOMAINS, DOMAINS), np.nan)

    def add(self, domain: int, scores: Predict, given: Callable[[Rows], Tensor]) -> None:
        """Measure after a domain; ``given`` makes of rows what ``scores`` takes, which sees the classes so far."""
        rows = self.stream.test.of(0, (domain + 1) * self.stream.width)
        right = (scores(given(rows))[:, : (domain + 1) * self.stream.width].argmax(dim=1) == rows.labels).double()
        for k in range(domain + 1):
            self.cells[domain, k] = float(right[rows.labels // self.stream.width == k].mean())

    def summary(self) -> dict[str, Any]:
        """Average, last, forgetting, and the curve, in percent."""
        measured = bool(np.isfinite(self.cells[0, 0]))  # joint training is measured at the end alone
        curve = [100 * float(np.nanmean(row)) for row in (self.cells if measured else self.cells[-1:])]
        found: dict[str, Any] = {"last": round(curve[-1], 3), "curve": [round(value, 2) for value in curve]}
        if measured:
            lost = np.nanmax(self.cells[:-1, :-1], axis=0) - self.cells[-1, :-1]
            found |= {"average": round(float(np.mean(curve)), 3), "forgetting": round(100 * float(lost.mean()), 3)}
        return found


# -- nothing is trained, or the first domain alone ------------------------------------------------------------------


def growing(stream: Stream, features_of: Predict, kinds: tuple[str, ...]) -> dict[str, Record]:
    """Classifiers on features that stay as they are."""
    test = passed(stream, stream.test, features_of)
    train = passed(stream, stream.train, features_of)
    labels, width = stream.train.labels, stream.width
    lda = Lda()
    records = {kind: Record(stream) for kind in kinds}
    for domain in range(DOMAINS):
        last = (domain + 1) * width
        new = (labels >= domain * width) & (labels < last)
        lda.add(train[new], labels[new])
        scores: dict[str, Predict] = {
            "streaming LDA": lda.scores,
            "nearest class mean, cosine": lambda h: F.normalize(h) @ F.normalize(lda.means.float()).T,
        }
        if "joint regression" in kinds:
            seen = labels < last
            found = fit_regression(train[seen], labels[seen], last, strengths=(30.0,))
            scores["joint regression"] = lambda h, found=found: h @ found.weight.T + found.bias  # type: ignore[misc]
        for kind in kinds:
            kept = stream.test.labels < last
            records[kind].add(domain, scores[kind], lambda _, kept=kept: test[kept])  # type: ignore[misc]
    return records


def build(stream: Stream, seed: int) -> Any:
    """MiniLM with an empty label table of all classes; those without a mean are never predicted."""
    set_seed(seed)
    with quiet():
        return AutoModelForLwALClassification.from_pretrained(
            embedded_model_path(), id2label=dict(enumerate(stream.names))
        )


def trained_on(stream: Stream, rows: Rows, steps: int, seed: int, method: str = "lwal") -> Any:
    """A model fine-tuned on rows by the trainer."""
    data = [{**row, "labels": int(label)} for row, label in zip(*rows, strict=True)]
    with tempfile.TemporaryDirectory() as folder:
        args = LwALTrainingArguments(
            folder,
            label_method=method,
            lwal_init="class_means",
            max_steps=steps,
            learning_rate=1e-4,
            per_device_train_batch_size=32,
            per_device_eval_batch_size=128,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
            seed=seed,
            use_cpu=not torch.accelerator.is_available(),
        )
        from datasets import Dataset

        trainer = LwALTrainer(
            build(stream, seed), args, train_dataset=Dataset.from_list(data), processing_class=stream.tokenizer
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return trainer.core_model.eval()


def table_grows(stream: Stream, model: Any) -> Record:
    """The label table with a new row for each class of a new domain, from all its samples, and no training."""
    record, table = Record(stream), model.label_table
    for domain in range(DOMAINS):
        if domain:
            rows = stream.train.of(domain * stream.width, (domain + 1) * stream.width)
            put_means(model, passed(stream, rows, lambda batch: model.start_values(dict(batch))), rows.labels)
        record.add(domain, table, lambda rows: passed(stream, rows, lambda batch: model.embed(dict(batch))))
    return record


@torch.no_grad()
def put_means(model: Any, features: Tensor, labels: Tensor) -> None:
    """New classes of the table get the mean of their features."""
    table = model.label_table
    for label in labels.unique().tolist():
        own = features[labels == label]
        table.class_features[label] = own.mean(dim=0)
        table.counts[label] = len(own)
        table.offset_bias[label] = 0.0
    model.materialize()


# -- fine-tuning goes on --------------------------------------------------------------------------------------------


def batches(stream: Stream, rows: Rows, steps: int, generator: torch.Generator) -> Any:
    """Random batches of 32 rows with labels."""
    order: list[int] = []
    for _ in range(steps):
        while len(order) < 32:
            order += torch.randperm(len(rows.labels), generator=generator).tolist()
        chosen, order = order[:32], order[32:]
        batch = stream.tokenizer.pad([rows.inputs[row] for row in chosen], return_tensors="pt")
        yield {**batch, "labels": rows.labels[chosen]}


def stepped(model: Any, losses: Any, rate: float) -> None:
    """Train on losses that a generator computes, with a rate that falls linearly."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    for loss, left in losses:
        for group in optimizer.param_groups:
            group["lr"] = rate * left
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def gaussian_replay(stream: Stream, model: Any, drift: str, steps: int, rate: float, seed: int) -> dict[str, Record]:
    """Fine-tuning that goes on; old classes are Gaussians of the table, moved by what the new rows' features moved.

    Args:
        stream: the domains.
        model: trained on the first.
        drift: "constant", the mean displacement, or "linear", a map fitted to the new rows' features by ridge.
        steps: of each domain.
        rate: learning rate.
        seed: of the order of the rows and of the Gaussians.
    """
    generator = torch.Generator().manual_seed(seed)
    records = {name: Record(stream) for name in ("through the head", "LDA")}
    table, width = model.label_table, stream.width
    model.label_tracking = "off"

    def features_of(rows: Rows) -> Tensor:
        model.eval()
        return passed(stream, rows, lambda batch: model.start_values(dict(batch)))

    lda = Lda()
    for domain in range(DOMAINS):
        new = stream.train.of(domain * width, (domain + 1) * width)
        before = features_of(new)
        if domain:
            put_means(model, before, new.labels)
            root = torch.linalg.cholesky(lda.covariance + 1e-4 * lda.covariance.trace() / 384 * torch.eye(384)).float()

            def losses(first: int = domain * width, root: Tensor = root, new: Rows = new) -> Any:
                for step, batch in enumerate(batches(stream, new, steps, generator)):
                    model.train()
                    output = model(**{k: v for k, v in batch.items() if k != "labels"})
                    vectors = table.derived(model.head)
                    old = torch.randint(first, (64,), generator=generator)
                    noise = torch.randn(64, 384, generator=generator) @ root.T
                    replayed = model.head(table.class_features[old] + noise)
                    embeddings = torch.cat([output.embeddings, replayed])
                    labels = torch.cat([batch["labels"], old])
                    logits = -table.scale * pairwise_distances(embeddings, vectors[: first + width], labels)
                    yield F.cross_entropy(logits, labels), 1 - step / steps

            stepped(model, losses(), rate)
            after = features_of(new)
            move(table, before, after, domain * width, drift)
            lda.means = table.class_features[: domain * width].double()
            put_means_only(model, after, new.labels)
            lda.add(after, new.labels)
        else:
            lda.add(before, new.labels)
        model.materialize()
        model.eval()
        test = features_of(stream.test.of(0, (domain + 1) * width))
        records["through the head"].add(domain, lambda h: table(model.head(h).float()), lambda _, test=test: test)
        records["LDA"].add(domain, lda.scores, lambda _, test=test: test)
    return records


@torch.no_grad()
def put_means_only(model: Any, features: Tensor, labels: Tensor) -> None:
    """Means of the new rows' features as they are now; what was learned beside them, the offset, stays."""
    for label in labels.unique().tolist():
        model.label_table.class_features[label] = features[labels == label].mean(dim=0)


@torch.no_grad()
def move(table: Any, before: Tensor, after: Tensor, first: int, drift: str) -> None:
    """Move the means of the classes before ``first`` as rows of the new classes moved."""
    means = table.class_features[:first]
    if drift == "constant":
        means += (after - before).mean(dim=0)
        return
    centre, target = before.mean(dim=0), after.mean(dim=0)
    x, y = (before - centre).double(), (after - before - (target - centre)).double()
    ridge = 0.1 * x.square().sum() / x.shape[1]
    weight = torch.linalg.solve(x.T @ x + ridge * torch.eye(x.shape[1]).double(), x.T @ y)  # (H, H)
    means += (target - centre) + ((means - centre).double() @ weight).float()


def one_hot(stream: Stream, kept: int, steps: int, rate: float, seed: int) -> Record:
    """A linear head on all classes, fine-tuned on each new domain and on ``kept`` samples of each class before.

    The rows of the head for new classes start from their class means (weight imprinting).
    """
    from hf_lwal.bench.datasets import load_data
    from hf_lwal.bench.models import build_model, model_spec

    generator = torch.Generator().manual_seed(seed)
    rows = model_spec("minilm_pooled").rows(load_data("clinc150", None, 150, 150), False)
    model: Any = build_model("minilm_pooled", rows, stream.names, seed, False)
    name, width, record = stock_head(model).name, stream.width, Record(stream)
    layer = model.get_submodule(name)
    memory = Rows([], torch.zeros(0, dtype=torch.int64))
    with torch.no_grad():
        layer.weight.zero_()
        layer.bias.zero_()
    for domain in range(DOMAINS):
        model.eval()
        new, last = stream.train.of(domain * width, (domain + 1) * width), (domain + 1) * width
        features = passed(stream, new, lambda batch: run_without_head(model, name, dict(batch)).logits)
        with torch.no_grad():
            for label in range(domain * width, last):
                layer.weight[label] = 10.0 * F.normalize(features[new.labels == label].mean(dim=0), dim=0)
        together = Rows([*new.inputs, *memory.inputs], torch.cat([new.labels, memory.labels]))

        def losses(last: int = last, together: Rows = together) -> Any:
            for step, batch in enumerate(batches(stream, together, steps, generator)):
                model.train()
                labels = batch.pop("labels")
                yield F.cross_entropy(model(**batch).logits[:, :last], labels), 1 - step / steps

        stepped(model, losses(), rate)
        chosen = [row for row, rank in enumerate(rank_in_class(new.labels.numpy())) if rank < kept]
        memory = Rows(
            [*memory.inputs, *(new.inputs[row] for row in chosen)], torch.cat([memory.labels, new.labels[chosen]])
        )
        model.eval()
        record.add(
            domain, lambda logits: logits, lambda part: passed(stream, part, lambda batch: model(**batch).logits)
        )
    return record


# -- the command ----------------------------------------------------------------------------------------------------


def results(stream: Stream, wanted: str, seed: int, args: argparse.Namespace) -> dict[str, Record]:
    """Records of one group of methods."""
    first = stream.train.of(0, stream.width)
    if wanted == "frozen":
        model = build(stream, seed).eval()
        kinds = ("nearest class mean, cosine", "streaming LDA", "joint regression")
        found = growing(stream, lambda batch: model.start_values(dict(batch)), kinds)
        return {f"frozen features: {kind}": record for kind, record in found.items()}
    if wanted == "first":
        model = trained_on(stream, first, args.first_steps, seed)
        lda = growing(stream, lambda batch: model.start_values(dict(batch)), ("streaming LDA",))
        return {
            "first domain trained: streaming LDA": lda["streaming LDA"],
            "first domain trained: the label table grows": table_grows(stream, model),
        }
    if wanted in ("constant", "linear"):
        model = trained_on(stream, first, args.first_steps, seed)
        found = gaussian_replay(stream, model, wanted, args.steps, args.learning_rate, seed)
        return {f"training goes on, Gaussians, {wanted} drift: {kind}": record for kind, record in found.items()}
    if wanted == "joint":
        model = trained_on(stream, stream.train, DOMAINS * args.steps, seed)
        record = Record(stream)
        record.add(
            DOMAINS - 1,
            model.label_table,
            lambda rows: passed(stream, rows, lambda batch: model.embed(dict(batch))),
        )
        return {"joint training, measured at the end": record}
    kept = {"naive": 0, "replay": 5}[wanted]
    name = "training goes on, one-hot" + (f", {kept} samples kept per class" if kept else "")
    return {name: one_hot(stream, kept, args.steps, args.learning_rate, seed)}


GROUPS = ("frozen", "first", "constant", "linear", "naive", "replay", "joint")


def measure(args: argparse.Namespace) -> None:
    """Run what is not in the file yet, and append a line for each record."""
    done = {(line["group"], line["seed"]) for line in read(args.output)}
    for seed in range(args.orders):
        stream = load_stream(seed, args.rows, args.test_rows)
        for group in args.methods:
            if (group, seed) in done:
                continue
            started = time.perf_counter()
            records = results(stream, group, seed, args)
            seconds = round(time.perf_counter() - started, 1)
            for name, record in records.items():
                line = {"group": group, "method": name, "seed": seed, "seconds": seconds, **record.summary()}
                print(json.dumps(line), flush=True)
                with args.output.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")


def summary(lines: list[dict[str, Any]]) -> str:
    """The table."""
    rows = []
    for method in dict.fromkeys(line["method"] for line in lines):
        found = [line for line in lines if line["method"] == method]
        keys = ("average", "last", "forgetting")
        cells = [spread(mean_and_sd([line[key] for line in found])) if key in found[0] else "–" for key in keys]
        rows.append([method, *cells, str(len(found))])
    return markdown_table(["method", "average", "at the end", "forgetting", "orders"], rows)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", choices=GROUPS, default=GROUPS)
    parser.add_argument("--orders", type=int, default=1, help="orders of the domains, each with rows of its own")
    parser.add_argument("--rows", type=int, default=30, help="training rows per class")
    parser.add_argument("--test-rows", type=int, default=10, help="test rows per class")
    parser.add_argument("--first-steps", type=int, default=60, help="steps of 32 rows on the first domain")
    parser.add_argument("--steps", type=int, default=20, help="steps of 32 rows on each further domain")
    parser.add_argument("--learning-rate", type=float, default=5e-5, help="of training that goes on")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "class_incremental.jsonl")
    parser.add_argument("--summarise", type=Path, help="print the table of a file of results and run nothing")
    args = parser.parse_args()
    if args.summarise is None:
        measure(args)
    print(summary(read(args.summarise or args.output)))


if __name__ == "__main__":
    main()
