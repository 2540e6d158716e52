"""What practitioners fine-tune few samples with instead: SetFit, through its own trainer and with its own settings.

Tunstall et al., "Efficient Few-Shot Learning Without Prompts" (2022), arXiv:2209.11055: pairs of samples pull the
sentence vectors of a class together, then a logistic regression is fitted to them.
"""

from __future__ import annotations

import functools
import logging
import math
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import NamedTuple

import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from torch import Tensor

from ..errors import CommandError
from ..frozen_regression import fitted_regression
from ..running_time import Times
from .datasets import dataset_spec, load_data
from .grid import Cell
from .models import model_spec

PEERS = ("setfit",)
HEADS = ("default", "cross_validated")
"""SetFit's own logistic regression; one whose strength was chosen by cross-validation on the same vectors."""
MOST_STEPS = 2
"""Multiple of the other methods' steps after which SetFit's epoch over its pairs ends; a step reads as many rows."""


class Vectors(NamedTuple):
    """Sentence vectors before and after training.

    Attributes:
        before: (N, H) of the rows to learn from and (M, H) of those to measure on.
        after: the same after training.
        steps: of training.
        seconds: of training.
    """

    before: tuple[Tensor, Tensor]
    after: tuple[Tensor, Tensor]
    steps: int
    seconds: float


class PeerResult(NamedTuple):
    """What a peer reached.

    Attributes:
        curve: (step, accuracy in 0…1) before and after training.
        f1_macro: 0…1, after training.
        times: seconds.
    """

    curve: list[tuple[int, float]]
    f1_macro: float
    times: Times


def run_peer(cell: Cell, data_root: str | None, on_accuracy: Callable[[int, float], None] | None = None) -> PeerResult:
    """Train the rows of a cell with the library that its method names.

    Args:
        cell: its settings.
        data_root: folder with one folder per data set, or None.
        on_accuracy: called with the step and the accuracy before and after training.

    Raises:
        CommandError: the library is missing, or the model is no sentence encoder.
    """
    kind = cell.method.get("peer_head", HEADS[0])
    if cell.method["peer"] not in PEERS or kind not in HEADS:
        raise CommandError(
            f"Unknown peer {cell.method['peer']!r} with head {kind!r}: choose of {', '.join(PEERS)} and "
            f"{', '.join(HEADS)}."
        )
    if find_spec("setfit") is None:
        raise CommandError('SetFit is not installed: pip install "hf-lwal[peers]".')
    data = load_data(cell.dataset, data_root, cell.train_rows, cell.test_rows, *cell.draw)
    vectors = _trained(cell.dataset, data_root, cell.train_rows, cell.test_rows, cell.draw, cell.model, _steps(cell))
    labels = tuple(torch.as_tensor(rows["label"][:]) for rows in (data.train, data.test))
    begin = time.perf_counter()
    first = _predicted(kind, vectors.before, labels[0], len(data.names))
    seconds = time.perf_counter() - begin
    last = _predicted(kind, vectors.after, labels[0], len(data.names))
    curve = [
        (step, float((found == labels[1]).double().mean())) for step, found in ((0, first), (vectors.steps, last))
    ]
    for point in curve if on_accuracy is not None else ():
        on_accuracy(*point)  # type: ignore[misc]
    whole = time.perf_counter() - begin + vectors.seconds
    return PeerResult(
        curve,
        float(f1_score(labels[1].numpy(), last.numpy(), average="macro")),
        Times(training=whole - seconds, start=0.0, evaluation=seconds, whole=whole, start_samples=0),
    )


def _steps(cell: Cell) -> int:
    if cell.steps is None:
        raise CommandError(f"{cell.method['name']} counts in steps: give the grid steps instead of epochs.")
    return MOST_STEPS * cell.steps


def _predicted(kind: str, vectors: tuple[Tensor, Tensor], labels: Tensor, num_labels: int) -> Tensor:
    """Classes (M,) of the rows to measure on, by a regression on the rows to learn from."""
    if kind == HEADS[0]:
        head = LogisticRegression().fit(vectors[0].numpy(), labels.numpy())
        return torch.as_tensor(head.predict(vectors[1].numpy()))
    found = fitted_regression(vectors[0], labels, num_labels)
    return (vectors[1].float() @ found.weight.T + found.bias).argmax(dim=1)


@functools.lru_cache(maxsize=1)
def _trained(
    dataset: str,
    data_root: str | None,
    train_rows: int | None,
    test_rows: int | None,
    draw: tuple[int | None, int],
    model: str,
    most_steps: int,
) -> Vectors:
    """Vectors before and after training; kept for the next cell, which may differ in the head alone."""
    from datasets import Dataset
    from sentence_transformers import SentenceTransformer
    from setfit import SetFitModel, Trainer, TrainingArguments
    from transformers import PrinterCallback

    logging.getLogger("setfit").setLevel(logging.WARNING)
    source = model_spec(model).sentence_encoder
    if source is None:
        raise CommandError(f"SetFit needs a sentence encoder, which {model} is not: choose minilm.")
    data = load_data(dataset, data_root, train_rows, test_rows, *draw)
    body = SentenceTransformer(source(), local_files_only=True)
    body.max_seq_length = min(
        body.max_seq_length or dataset_spec(dataset).max_length, dataset_spec(dataset).max_length
    )
    texts = data.train[data.input][:], data.test[data.input][:]

    def encoded() -> tuple[Tensor, Tensor]:
        return tuple(body.encode(part, convert_to_tensor=True).float().cpu() for part in texts)  # type: ignore[return-value]

    before = encoded()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            seed=draw[1],
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
            show_progress_bar=False,
        )
        labels = data.train["label"][:]
        rows = Dataset.from_dict({"text": texts[0], "label": labels})
        trainer = Trainer(SetFitModel(body, LogisticRegression()), arguments, train_dataset=rows)
        trainer.st_trainer.remove_callback(PrinterCallback)
        size = arguments.embedding_batch_size
        pairs, _ = trainer.get_dataset(texts[0], labels, args=arguments, max_pairs=most_steps * size)
        arguments.max_steps = min(most_steps, math.ceil(len(pairs) / size))
        trainer.st_trainer.setfit_args = arguments
        trainer.st_trainer.args.max_steps = arguments.max_steps
        begin = time.perf_counter()
        trainer.train_embeddings(texts[0], labels, args=arguments)
        seconds = time.perf_counter() - begin
    return Vectors(before, encoded(), trainer.st_trainer.state.global_step, seconds)
