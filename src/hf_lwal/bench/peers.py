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
from torch import Tensor

from ..errors import CommandError
from ..metrics.running_time import Times
from .datasets import dataset_spec, load_data
from .frozen_regression import fit_regression
from .grid import Cell, batch_rows, check_encoder
from .methods import HEADS

MOST_SAMPLES = 2
"""Multiple of the texts that the other methods read after which SetFit's epoch over its pairs ends."""


class Vectors(NamedTuple):
    """Sentence vectors before and after training.

    Attributes:
        before: (N, H) of the rows to learn from and (M, H) of those to measure on.
        after: the same after training.
        steps: of training.
        samples: texts that training read, two of each pair.
        start_seconds: of reading the rows to learn from before training.
        seconds: of training, and of reading these rows once more for the head.
    """

    before: tuple[Tensor, Tensor]
    after: tuple[Tensor, Tensor]
    steps: int
    samples: int
    start_seconds: float
    seconds: float


class PeerResult(NamedTuple):
    """What a peer reached.

    Attributes:
        curve: (step, accuracy in 0…1) before and after training; a step reads as many rows as those of the others.
        f1_macro: 0…1, after training.
        times: seconds.
        facts: samples that training read, its own steps, and the strength of the head where one was chosen.
    """

    curve: list[tuple[int, float]]
    f1_macro: float
    times: Times
    facts: dict[str, float]


def run_peer(cell: Cell, data_root: str | None, on_accuracy: Callable[[int, float], None] | None = None) -> PeerResult:
    """Train the rows of a cell with the library that its method names.

    Raises:
        CommandError: the library is missing, or cannot train this cell.
    """
    encoder = check_encoder(cell.method, cell.model, cell.steps, cell.from_config)
    kind = cell.method.get("peer_head", HEADS[0])
    if find_spec("setfit") is None:
        raise CommandError('SetFit is not installed: pip install "hf-lwal[peers]".')
    from sklearn.metrics import f1_score

    data = load_data(cell.dataset, data_root, cell.train_rows, cell.test_rows, *cell.draw)
    size = batch_rows(cell.batch_size, len(data.names))
    samples = MOST_SAMPLES * (cell.steps or 0) * size
    limits = (cell.train_rows, cell.test_rows, cell.draw)
    vectors = _trained(cell.dataset, data_root, *limits, encoder(), samples, cell.seed)
    labels = tuple(torch.as_tensor(rows["label"][:]) for rows in (data.train, data.test))
    begin = time.perf_counter()
    first, _ = _predicted(kind, vectors.before, labels[0], len(data.names))
    middle = time.perf_counter()
    last, strength = _predicted(kind, vectors.after, labels[0], len(data.names))
    end = time.perf_counter()
    steps = math.ceil(vectors.samples / size)
    curve = [(step, float((found == labels[1]).double().mean())) for step, found in ((0, first), (steps, last))]
    if on_accuracy is not None:
        for point in curve:
            on_accuracy(*point)
    # SetFit fits its head once, after training. The one before is what the first point of the curve takes, so it is
    # the start; training is the rest, so that both together are what SetFit takes.
    start = vectors.start_seconds + middle - begin
    whole = vectors.seconds + end - middle
    return PeerResult(
        curve,
        float(f1_score(labels[1].numpy(), last.numpy(), average="macro")),
        Times(max(whole - start, 0.0), min(start, whole), 0.0, whole, len(data.train)),
        {"samples": vectors.samples, "steps": vectors.steps} | ({} if strength is None else {"strength": strength}),
    )


def _predicted(
    kind: str, vectors: tuple[Tensor, Tensor], labels: Tensor, num_labels: int
) -> tuple[Tensor, float | None]:
    """Classes (M,) of the rows to measure on, by a regression on the rows to learn from, and its chosen strength."""
    if kind == HEADS[0]:
        from sklearn.linear_model import LogisticRegression

        head = LogisticRegression().fit(vectors[0].numpy(), labels.numpy())
        return torch.as_tensor(head.predict(vectors[1].numpy())), None
    found = fit_regression(vectors[0], labels, num_labels)
    return (vectors[1].float() @ found.weight.T + found.bias).argmax(dim=1), found.strength


@functools.lru_cache(maxsize=1)
def _trained(
    dataset: str,
    data_root: str | None,
    train_rows: int | None,
    test_rows: int | None,
    draw: tuple[int | None, int],
    encoder: str,
    most_samples: int,
    seed: int,
) -> Vectors:
    """Vectors before and after training; kept for the next cell, which may differ in the head alone."""
    from datasets import Dataset
    from sentence_transformers import SentenceTransformer
    from setfit import SetFitModel, Trainer, TrainingArguments
    from sklearn.linear_model import LogisticRegression
    from transformers import PrinterCallback

    logging.getLogger("setfit").setLevel(logging.WARNING)
    data = load_data(dataset, data_root, train_rows, test_rows, *draw)
    body = SentenceTransformer(encoder, local_files_only=True)
    body.max_seq_length = min(
        body.max_seq_length or dataset_spec(dataset).max_length, dataset_spec(dataset).max_length
    )
    texts = data.train[data.input][:], data.test[data.input][:]

    def encoded(part: list[str]) -> Tensor:
        return body.encode(part, convert_to_tensor=True).float().cpu()

    begin = time.perf_counter()
    start = encoded(texts[0])
    start_seconds = time.perf_counter() - begin
    before = start, encoded(texts[1])
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            seed=seed,
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
        most_steps = math.ceil(most_samples / (2 * size))
        pairs, _ = trainer.get_dataset(texts[0], labels, args=arguments, max_pairs=most_steps * size)
        arguments.max_steps = min(most_steps, math.ceil(len(pairs) / size))
        trainer.st_trainer.setfit_args = arguments
        trainer.st_trainer.args.max_steps = arguments.max_steps
        begin = time.perf_counter()
        trainer.train_embeddings(texts[0], labels, args=arguments)
        learned = encoded(texts[0])
        seconds = time.perf_counter() - begin
    steps = trainer.st_trainer.state.global_step
    return Vectors(
        before, (learned, encoded(texts[1])), steps, 2 * min(steps * size, len(pairs)), start_seconds, seconds
    )
