"""Labels that are added, merged and removed after training, beside what a user would do instead: train anew.

    python benchmarks/held_out_classes.py --models FOLDER --dataset clinc150 --held-out 75 --seeds 0 1 2
    python benchmarks/held_out_classes.py --models FOLDER --dataset banking77 --data-root DATA --held-out 38
    python benchmarks/held_out_classes.py --models FOLDER --edits merge remove --seeds 0 1 2

MiniLM (extra ``quickstart``, mean pooling) is trained on all samples of the known classes; then each held-out class is
added from a few samples of it. Beside ``add_label`` stand: the same without the bias for few samples and the name; a
fine-tuning of the edited model that goes on for a third of the steps with as many samples of every class; a training
from the pretrained weights on all samples of the known classes and the same few of the new ones; and a logistic
regression on the pretrained features of those samples. With ``--edits merge`` the pairs of labels that a model of all
classes confuses most are merged, with ``remove`` as many labels are removed as ``--held-out`` says; trained anew means
on the edited data. The models are kept in a folder, which `open_set.py` shares. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import copy
import functools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from datasets import ClassLabel, Dataset
from torch import Tensor
from transformers import AutoModelForSequenceClassification, AutoTokenizer, PrinterCallback, set_seed

from hf_lwal import AutoModelForLwALClassification, LwALTrainer, LwALTrainingArguments
from hf_lwal.bench.comparison import embedded_model_path
from hf_lwal.bench.frozen_regression import fit_regression
from hf_lwal.data import load_embedded, parquet_splits
from hf_lwal.data.labels import log_frequencies, rows_per_class

METHODS: dict[str, dict[str, Any]] = {
    "one-hot from the same start": {
        "label_method": "one_hot",
        "lwal_init": "class_means",
        "lwal_initial_head": "probe",
    },
    "LwAL": {"label_method": "lwal"},
}
MAX_TOKENS = 48
REGRESSION_ROWS = 40
"""Samples per class of the logistic regression, which would take minutes with all of them."""
STRENGTHS = (10.0, 100.0)
MERGED_PAIRS = 10


class Split(NamedTuple):
    """Rows of one split: texts, and labels (N,) int64, ids of ``Data.names``."""

    texts: list[str]
    labels: np.ndarray

    def take(self, rows: Any) -> Split:
        """Some rows."""
        return Split([self.texts[row] for row in rows], self.labels[rows])

    def and_also(self, other: Split) -> Split:
        """These rows, and those of another split."""
        return Split([*self.texts, *other.texts], np.r_[self.labels, other.labels])


class Data(NamedTuple):
    """Known and held-out rows. Known classes come first: ids 0…C-1 are the trained labels, the rest was held out."""

    names: list[str]
    num_known: int
    known: dict[str, Split]
    held_out: dict[str, Split]


def load_data(dataset: str, held_out: int, seed: int, data_root: Path | None = None) -> Data:
    """A data set with ``held_out`` random classes taken out of every split."""
    splits = load_embedded(dataset) if data_root is None else parquet_splits(data_root / dataset)
    names = splits["train"].features["label"].names
    chosen = np.random.default_rng(seed).choice(len(names), held_out, replace=False)
    order = np.r_[np.setdiff1d(np.arange(len(names)), chosen), np.sort(chosen)].astype(int)
    new_id, known = np.argsort(order), len(names) - held_out
    parts: dict[bool, dict[str, Split]] = {True: {}, False: {}}
    for name, rows in splits.items():
        labels, texts = new_id[np.asarray(rows["label"][:])], np.asarray(rows["text"][:], dtype=object)
        for inside in (True, False):
            keep = (labels < known) == inside
            parts[inside][name] = Split(texts[keep].tolist(), labels[keep])
    return Data([names[i] for i in order], known, parts[True], parts[False])


def add_training_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments that say what was trained, the same for the scripts that share models."""
    parser.add_argument("--models", type=Path, required=True, help="folder of the trained models; trained if missing")
    parser.add_argument("--dataset", default="clinc150", help="clinc150 comes with the package")
    parser.add_argument("--data-root", type=Path, help="folder of parquet data sets with columns text and label")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--held-out", type=int, default=5, help="classes left out of the training")
    parser.add_argument("--rows-per-class", type=int, default=15, help="test and validation rows to measure on")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--output", type=Path, help="append the figures to this file, one JSON object per line")


def trained(method: str, data: Data, seed: int, args: argparse.Namespace) -> Any:
    """The model of one of `METHODS`, from its folder or trained now on the known classes, in evaluation mode."""
    folder = args.models / f"{args.dataset}-{len(data.names) - data.num_known}-{seed}-{method.replace(' ', '-')}"
    recipe = {name: getattr(args, name) for name in ("steps", "batch_size", "learning_rate")}
    loader = AutoModelForLwALClassification if method == "LwAL" else AutoModelForSequenceClassification
    stored = folder / "recipe.json"
    if stored.exists():
        if json.loads(stored.read_text()) != recipe:
            raise SystemExit(f"{folder} was trained with {stored.read_text()}, not {recipe}: give another --models.")
        return loader.from_pretrained(folder).eval()
    model, seconds = train_anew(method, data.known["train"], data.names[: data.num_known], seed, args)
    print(f"{folder.name}: {args.steps} steps in {seconds:.0f} s", flush=True)
    model.save_pretrained(folder)
    stored.write_text(json.dumps(recipe))
    return model


def train_anew(method: str, rows: Split, names: list[str], seed: int, args: argparse.Namespace) -> tuple[Any, float]:
    """A model trained from the pretrained weights, in evaluation mode, and the seconds that took."""
    set_seed(seed)
    started = time.perf_counter()
    model = AutoModelForLwALClassification.from_pretrained(embedded_model_path(), id2label=dict(enumerate(names)))
    return train(model, rows, names, args.steps, seed, args, **METHODS[method]), time.perf_counter() - started


def train(
    model: Any, rows: Split, names: list[str], steps: int, seed: int, args: argparse.Namespace, **keywords: Any
) -> Any:
    """Train a model that has these labels; returned in evaluation mode."""
    encoded = dict(tokenizer()(rows.texts, truncation=True))
    dataset = Dataset.from_dict({**encoded, "label": rows.labels}).cast_column("label", ClassLabel(names=names))
    arguments = LwALTrainingArguments(
        output_dir=str(args.models / "trainer"),
        max_steps=steps,
        per_device_train_batch_size=args.batch_size,
        per_device_eval_batch_size=128,
        learning_rate=args.learning_rate,
        lr_scheduler_type="linear",
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=not torch.accelerator.is_available(),
        dataloader_pin_memory=torch.accelerator.is_available(),
        seed=seed,
        data_seed=seed,
        **keywords,
    )
    trainer = LwALTrainer(model, arguments, train_dataset=dataset, processing_class=tokenizer())
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return trainer.core_model.eval()


def sample(split: Split, per_class: int, seed: int = 0) -> Split:
    """Up to ``per_class`` random rows of every class."""
    return split.take(rows_per_class(split.labels, per_class, seed))


@torch.no_grad()
def outputs(forward: Callable[[Any], tuple[Tensor, ...]], texts: list[str], size: int = 128) -> tuple[Tensor, ...]:
    """What ``forward`` gives for tokenized batches, row by row in the order of ``texts``.

    Texts of similar length share a batch, which needs little padding then.
    """
    order = np.argsort([len(text) for text in texts], kind="stable")
    encode = tokenizer()
    parts = []
    for start in range(0, len(texts), size):
        batch = [texts[row] for row in order[start : start + size]]
        parts.append(forward(encode(batch, padding=True, truncation=True, return_tensors="pt")))
    back = torch.from_numpy(np.argsort(order))
    return tuple(torch.cat(column)[back] for column in zip(*parts, strict=True))


def write_line(path: Path | None, record: dict[str, Any]) -> None:
    """Append the figures, where a file was asked for."""
    if path is not None:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")


@functools.cache
def tokenizer() -> Any:
    """MiniLM's tokenizer, cutting texts as the training does."""
    return AutoTokenizer.from_pretrained(embedded_model_path(), model_max_length=MAX_TOKENS)


# -- the edits and what they are compared with ------------------------------------------------------------------------


class Found(NamedTuple):
    """Predictions (N,) of the test rows, and the seconds until they could be made."""

    predicted: np.ndarray
    seconds: float


def embeddings_of(model: Any, texts: list[str]) -> Tensor:
    """(N, D)."""
    return outputs(lambda batch: (model.embed(dict(batch)),), texts)[0]


@torch.no_grad()
def with_added(model: Any, data: Data, samples: Split, embeddings: Tensor, plain: bool) -> tuple[Any, Found]:
    """The model after each held-out class was added; ``plain``: at the mean of the samples, and no more."""
    model, started = copy.deepcopy(model), time.perf_counter()
    if plain:
        model.label_table.row_scatter.zero_()
    for label in range(data.num_known, len(data.names)):
        texts = [text for text, own in zip(samples.texts, samples.labels, strict=True) if own == label]
        model.add_label(data.names[label], texts, tokenizer(), count_name=False if plain else None)
    seconds = time.perf_counter() - started
    return model, Found(model.label_table(embeddings).argmax(dim=1).numpy(), seconds)


def predicted_by(model: Any, texts: list[str]) -> np.ndarray:
    """(N,) ids."""
    return outputs(lambda batch: (model(**batch).logits.argmax(dim=1),), texts)[0].numpy()


def regressions(features: dict[str, Tensor], rows: Split, num_labels: int) -> dict[str, Found]:
    """A logistic regression on pretrained features of the rows, as it is and with their frequencies taken off."""
    fitted = fit_regression(features["train"], torch.as_tensor(rows.labels), num_labels, STRENGTHS)
    scores = features["test"] @ fitted.weight.T + fitted.bias
    ways = {"": scores, ", less the log prior": scores - log_frequencies(rows.labels, num_labels)}
    return {
        f"logistic regression, pretrained features{way}": Found(found.argmax(dim=1).numpy(), fitted.seconds)
        for way, found in ways.items()
    }


def measure_added(data: Data, examples: list[int], seed: int, args: argparse.Namespace) -> None:
    """One line per number of samples and way."""
    held_out = len(data.names) - data.num_known
    model = trained("LwAL", data, seed, args)
    test = sample(data.known["test"].and_also(data.held_out["test"]), args.rows_per_class)
    embeddings = embeddings_of(model, test.texts)
    known_rows = sample(data.known["train"], REGRESSION_ROWS, seed)
    new_rows = sample(data.held_out["train"], max(examples), seed)
    pretrained = AutoModelForLwALClassification.from_pretrained(
        embedded_model_path(), id2label=dict(enumerate(data.names))
    ).eval()
    features = {
        name: outputs(lambda batch: (pretrained(**batch).features,), part.texts)[0]
        for name, part in (("known", known_rows), ("new", new_rows), ("test", test))
    }
    base = {"dataset": args.dataset, "held_out": held_out, "seed": seed, "steps": args.steps}

    def report(way: str, number: int, found: Found) -> None:
        right, new = found.predicted == test.labels, test.labels >= data.num_known
        parts = {"new": right[new].mean(), "old": right[~new].mean(), "all": right.mean()}
        line = base | {"examples": number, "way": way, "seconds": round(found.seconds, 1)}
        line |= {name: round(100 * float(share), 2) for name, share in parts.items()}
        print(json.dumps(line), flush=True)
        write_line(args.output, line)

    for number in examples:
        few_places = rows_per_class(new_rows.labels, number, seed)
        few = new_rows.take(few_places)
        edited, found = with_added(model, data, few, embeddings, plain=False)
        report("add_label", number, found)
        report("add_label, the mean alone", number, with_added(model, data, few, embeddings, plain=True)[1])
        both = known_rows.and_also(few)
        pair = {"train": torch.cat([features["known"], features["new"][few_places]]), "test": features["test"]}
        for way, control in regressions(pair, both, len(data.names)).items():
            report(way, number, control)
        if number in args.trained:
            same = sample(known_rows, number, seed).and_also(few)
            started = time.perf_counter()
            further = train(edited, same, data.names, args.steps // 3, seed, args)
            seconds = found.seconds + time.perf_counter() - started
            report(
                "add_label, then a third of the training", number, Found(predicted_by(further, test.texts), seconds)
            )
            anew, seconds = train_anew("LwAL", data.known["train"].and_also(few), data.names, seed, args)
            report("trained anew", number, Found(predicted_by(anew, test.texts), seconds))


def measure_edited(edit: str, seed: int, args: argparse.Namespace) -> None:
    """Labels merged or removed, beside a training on data that was edited alike."""
    everything = load_data(args.dataset, 0, seed, args.data_root)
    model = trained("LwAL", everything, seed, args)
    test = sample(everything.known["test"], args.rows_per_class)
    model.eval()
    started = time.perf_counter()
    if edit == "merge":
        validation = sample(everything.known["validation" if "validation" in everything.known else "train"], 20, seed)
        groups = confused_pairs(predicted_by(model, validation.texts), validation.labels, len(everything.names))
        started = time.perf_counter()
        for first, second in groups:
            names = [everything.names[index] for index in (first, second)]
            model.merge_labels(names, " or ".join(names))
        to_new = merged_ids(groups, len(everything.names))
    else:
        gone = np.random.default_rng(seed).choice(len(everything.names), args.held_out, replace=False)
        for index in gone:
            model.remove_label(everything.names[index])
        to_new = np.full(len(everything.names), -1)
        to_new[np.setdiff1d(np.arange(len(everything.names)), gone)] = np.arange(len(everything.names) - len(gone))
    edited = Found(np.empty(0), time.perf_counter() - started)
    kept = to_new[test.labels] >= 0
    texts, truth = [text for text, keep in zip(test.texts, kept, strict=True) if keep], to_new[test.labels][kept]
    base = {"dataset": args.dataset, "edit": edit, "seed": seed, "steps": args.steps}

    def report(way: str, predicted: np.ndarray, seconds: float) -> None:
        line = base | {
            "way": way,
            "seconds": round(seconds, 2),
            "all": round(100 * float((predicted == truth).mean()), 2),
        }
        print(json.dumps(line), flush=True)
        write_line(args.output, line)

    report("edited", predicted_by(model, texts), edited.seconds)
    train_rows = everything.known["train"]
    left = np.flatnonzero(to_new[train_rows.labels] >= 0)
    rows = train_rows.take(left)
    names = list(model.config.label_names.values())
    anew, seconds = train_anew("LwAL", Split(rows.texts, to_new[rows.labels]), names, seed, args)
    report("trained anew", predicted_by(anew, texts), seconds)


def confused_pairs(predicted: np.ndarray, labels: np.ndarray, num_labels: int) -> list[tuple[int, int]]:
    """The pairs of labels that are most often taken for each other, each label in one pair at most."""
    confusion = np.zeros((num_labels, num_labels), dtype=int)
    np.add.at(confusion, (labels, predicted), 1)
    both = np.triu(confusion + confusion.T, 1)
    pairs: list[tuple[int, int]] = []
    for place in np.argsort(-both, axis=None, kind="stable"):
        first, second = divmod(int(place), num_labels)
        if both[first, second] == 0 or len(pairs) == MERGED_PAIRS:
            break
        if not {first, second} & {index for pair in pairs for index in pair}:
            pairs.append((first, second))
    return pairs


def merged_ids(pairs: list[tuple[int, int]], num_labels: int) -> np.ndarray:
    """(C,) id of each label after the pairs were merged, which take the place of their first."""
    into = {second: first for first, second in pairs}
    kept = [index for index in range(num_labels) if index not in into]
    places = {index: place for place, index in enumerate(kept)}
    return np.asarray([places[into.get(index, index)] for index in range(num_labels)])


def main() -> None:
    """Parse the arguments, train if need be, measure, print and write the lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_training_arguments(parser)
    parser.add_argument("--examples", type=int, nargs="+", default=[1, 5, 20], help="samples per added label")
    parser.add_argument("--trained", type=int, nargs="*", default=[1, 5, 20], help="train anew with these of them")
    parser.add_argument("--edits", nargs="+", choices=("add", "merge", "remove"), default=["add"])
    args = parser.parse_args()
    torch.set_num_threads(1)
    for seed in args.seeds:
        for edit in args.edits:
            if edit == "add":
                measure_added(load_data(args.dataset, args.held_out, seed, args.data_root), args.examples, seed, args)
            else:
                measure_edited(edit, seed, args)


if __name__ == "__main__":
    main()
