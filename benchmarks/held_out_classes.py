"""CLINC150 without some of its classes: the training that the benchmarks of label edits and rejection share.

Not a script: `few_shot_label.py` and `open_set.py` import it, and whichever runs first leaves the models in a folder
for the other. MiniLM comes with the extra ``quickstart``, CLINC150 with the package; nothing is downloaded.
"""

from __future__ import annotations

import argparse
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
from hf_lwal.data import load_embedded
from hf_lwal.data.labels import rows_per_class

METHODS: dict[str, dict[str, Any]] = {
    "one-hot": {"label_method": "one_hot"},
    "one-hot from class means": {"label_method": "one_hot", "lwal_init": "class_means"},
    "LwAL": {"label_method": "lwal"},
}
MAX_TOKENS = 32


class Split(NamedTuple):
    """Rows of one split: texts, and labels (N,) int64, ids of ``Data.names``."""

    texts: list[str]
    labels: np.ndarray


class Data(NamedTuple):
    """Known and held-out rows. Known classes come first: ids 0…C-1 are the trained labels, the rest was held out."""

    names: list[str]
    num_known: int
    known: dict[str, Split]
    held_out: dict[str, Split]


def load_data(held_out: int, seed: int) -> Data:
    """CLINC150 with ``held_out`` random classes taken out of every split."""
    splits = load_embedded("clinc150")
    names = splits["train"].features["label"].names
    chosen = np.random.default_rng(seed).choice(len(names), held_out, replace=False)
    order = np.r_[np.setdiff1d(np.arange(len(names)), chosen), np.sort(chosen)]
    new_id, known = np.argsort(order), len(names) - held_out
    parts: dict[bool, dict[str, Split]] = {True: {}, False: {}}
    for name, rows in splits.items():
        labels, texts = new_id[np.asarray(rows["label"][:])], np.asarray(rows["text"][:], dtype=object)
        for inside in (True, False):
            keep = (labels < known) == inside
            parts[inside][name] = Split(texts[keep].tolist(), labels[keep])
    return Data([names[i] for i in order], known, parts[True], parts[False])


def add_training_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments that say what was trained, the same for both scripts."""
    parser.add_argument("--models", type=Path, required=True, help="folder of the trained models; trained if missing")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--held-out", type=int, default=5, help="classes left out of the training")
    parser.add_argument("--rows-per-class", type=int, default=30, help="test and validation rows to measure on")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="also write the figures to this JSON file")


def trained(method: str, data: Data, args: argparse.Namespace) -> Any:
    """The model of one of `METHODS`, from its folder or trained now, in evaluation mode."""
    folder = args.models / method.replace(" ", "-")
    recipe = {name: getattr(args, name) for name in ("steps", "batch_size", "learning_rate", "held_out", "seed")}
    loader = AutoModelForLwALClassification if method == "LwAL" else AutoModelForSequenceClassification
    stored = folder / "recipe.json"
    if stored.exists():
        if json.loads(stored.read_text()) != recipe:
            raise SystemExit(f"{folder} was trained with {stored.read_text()}, not {recipe}: give another --models.")
        return loader.from_pretrained(folder).eval()
    set_seed(args.seed)
    names = data.names[: data.num_known]
    pooling = {"pooling": "model"} if method == "LwAL" else {}  # one-hot labels read the first token, too
    model = loader.from_pretrained(embedded_model_path(), id2label=dict(enumerate(names)), **pooling)
    started = time.perf_counter()
    model = _train(model, method, data, args)
    print(f"{method}: {args.steps} steps in {time.perf_counter() - started:.0f} s", flush=True)
    model.save_pretrained(folder)
    stored.write_text(json.dumps(recipe))
    return model.eval()


def sample(split: Split, per_class: int, seed: int = 0) -> Split:
    """Up to ``per_class`` random rows of every class."""
    rows = rows_per_class(split.labels, per_class, seed)
    return Split([split.texts[row] for row in rows], split.labels[rows])


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


def write_json(path: Path | None, record: dict[str, Any]) -> None:
    """Write the figures, where a file was asked for."""
    if path is not None:
        path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def tokenizer() -> Any:
    """MiniLM's tokenizer, cutting texts as the training does."""
    return AutoTokenizer.from_pretrained(embedded_model_path(), model_max_length=MAX_TOKENS)


def _train(model: Any, method: str, data: Data, args: argparse.Namespace) -> Any:
    texts, labels = data.known["train"]
    encoded = dict(tokenizer()(texts, truncation=True))
    rows = Dataset.from_dict({**encoded, "label": labels})
    rows = rows.cast_column("label", ClassLabel(names=data.names[: data.num_known]))
    arguments = LwALTrainingArguments(
        output_dir=str(args.models / "trainer"),
        max_steps=args.steps,
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
        seed=args.seed,
        data_seed=args.seed,
        **METHODS[method],
    )
    trainer = LwALTrainer(model, arguments, train_dataset=rows, processing_class=tokenizer())
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return trainer.core_model
