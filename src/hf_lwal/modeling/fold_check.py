"""Two models on the same inputs: the one with a label table and the folded one, and what differs between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from .core import LabelTableModel
from .heads import scores_of
from .linear_fold import UNSEEN_BIAS, fit_temperature, rankings
from .probes import Batch

NEAR_TIES = {torch.float64: 1e-5, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""Precision of the model → relative difference of a row's two smallest distances at which rounding may decide."""

AT_A_TIME = 64
"""Rows whose probabilities are in memory at once."""
MOST_FITTED, LEAST_FITTED = 1_000_000, 16
"""Logits that a temperature is fitted to, and rows at least: of very many labels it is every second row, or third."""
TOLERANCE = 1e-4
"""Largest difference of a logit between the folded model and another form of it, relative to the largest logit."""


@dataclass(frozen=True)
class FoldReport:
    """What was compared before a folded model was given out.

    Attributes:
        architecture: class of the folded model.
        num_labels: C.
        random_rows: random inputs compared.
        given_rows: inputs of the caller compared.
        near_ties: rows whose two smallest distances are so close that rounding may decide.
        differing: rows that got another label, all of them near ties.
        temperature: what the linear logits were divided by, so that probabilities come as close as they can.
        mean_difference: mean over rows of the largest difference of a probability, on the given rows or, without any,
            on the random ones.
        max_difference: the largest over all rows.
    """

    architecture: str
    num_labels: int
    random_rows: int
    given_rows: int
    near_ties: int
    differing: int
    temperature: float
    mean_difference: float
    max_difference: float

    def __str__(self) -> str:
        """Say it in two sentences."""
        rows = f"{self.random_rows + self.given_rows:,} rows ({self.random_rows:,} random, {self.given_rows:,} given)"
        ties = f"{self.near_ties} near ties, {self.differing} of them decided otherwise"
        source = "given" if self.given_rows else "random"
        return (
            f"{self.architecture} with {self.num_labels} labels, compared on {rows}: the same label everywhere but at "
            f"near ties ({ties}). Probabilities differ by {self.mean_difference:.3f} on average and "
            f"{self.max_difference:.3f} at most, with temperature {self.temperature:.4g} fitted on the {source} rows."
        )


class Observed(NamedTuple):
    """Float64 on the CPU: embeddings (N, D) and logits (N, C) of the model with a label table."""

    embeddings: Tensor
    logits: Tensor


def observe(model: LabelTableModel, batches: list[Batch]) -> Observed:
    """Run the model with a label table on all batches."""
    outputs = [model(**batch) for batch in batches]
    parts = [(output.embeddings.double().cpu(), output.logits.double().cpu()) for output in outputs]
    if not parts:
        return Observed(torch.zeros(0, model.config.embedding_dim), torch.zeros(0, model.config.num_labels))
    return Observed(*(torch.cat(list(column)) for column in zip(*parts, strict=True)))


def best_temperature(model: LabelTableModel, observed: Observed) -> float:
    """Fitted on the columns of the usable classes, of which there must be two."""
    usable = usable_classes(model)
    if int(usable.sum()) < 2:
        return 1.0
    every = max(1, min(observed.logits.numel() // MOST_FITTED, len(observed.logits) // LEAST_FITTED))
    embeddings, logits = (part[::every].double() for part in observed)
    table = model.label_table
    values = rankings(embeddings, table.label_vectors.cpu(), usable, table.distance_bias.cpu())
    return fit_temperature(values[:, usable], logits[:, usable].log_softmax(dim=1))


def compare(
    model: LabelTableModel,
    stock: PreTrainedModel,
    batches: tuple[list[Batch], list[Batch]],
    observed: tuple[Observed, Observed],
    temperature: float,
) -> FoldReport:
    """Run the folded model on the same batches; raise ValueError where it predicts otherwise without a reason."""
    folded = [torch.cat([torch.zeros(0, model.config.num_labels), *_logits(stock, part)]) for part in batches]
    ours, theirs = torch.cat([part.logits for part in observed]), torch.cat(folded)
    if not bool(ours.isfinite().all() and theirs.isfinite().all()):
        raise ValueError("Some logits are not finite, so predictions cannot be compared: pass real inputs.")
    bound = NEAR_TIES[model.encoder.dtype]
    near = relative_gaps(model, torch.cat([part.embeddings for part in observed])) <= bound  # (N,)
    differs = ours.argmax(dim=1) != theirs.argmax(dim=1)  # (N,)
    if bool((differs & ~near).any()):
        raise ValueError(
            f"The folded model gives another label for {int((differs & ~near).sum())} of {len(near)} rows whose two "
            f"best distances differ by more than {bound:g} of the distance: rounding in {model.encoder.dtype} is too "
            "coarse. Fold it in a higher precision (model.float() or model.double() first)."
        )
    rows = len(observed[0].logits) or len(ours)
    pairs = zip(*(torch.split(logits[:rows], AT_A_TIME) for logits in (ours, theirs)), strict=True)
    moved = torch.cat([(one.softmax(dim=1) - other.softmax(dim=1)).abs().amax(dim=1) for one, other in pairs])  # (N,)
    return FoldReport(
        architecture=type(stock).__name__,
        num_labels=model.config.num_labels,
        random_rows=len(observed[1].logits),
        given_rows=len(observed[0].logits),
        near_ties=int(near.sum()),
        differing=int(differs.sum()),
        temperature=temperature,
        mean_difference=float(moved.mean()),
        max_difference=float(moved.max()),
    )


def _logits(stock: PreTrainedModel, batches: list[Batch]) -> list[Tensor]:
    return [scores_of(stock(**batch, return_dict=True)).double().cpu() for batch in batches]


def largest_difference(ours: Tensor, theirs: Tensor) -> tuple[float, float]:
    """Largest difference of two forms' logits (N, C), and the largest that rounding in float32 explains.

    Logits of classes without a mean are a constant far below the others, rounded in half precision, and say nothing
    about how exact those are.
    """
    largest = float(ours.masked_fill(ours <= 0.99 * UNSEEN_BIAS, 0.0).abs().max())
    return float((ours - theirs).abs().max()), TOLERANCE * max(1.0, largest)


def relative_gaps(model: LabelTableModel, embeddings: Tensor) -> Tensor:
    """(N,) float64: how much farther the second nearest label vector is, relative to its distance."""
    table, usable = model.label_table, usable_classes(model)
    vectors = torch.cat([table.label_vectors, table.heights.unsqueeze(1)], dim=1).cpu().double()[usable]
    if len(vectors) < 2:
        return torch.ones(len(embeddings))
    embeddings = F.pad(embeddings, (0, 1))
    distances = torch.cdist(embeddings, vectors, compute_mode="donot_use_mm_for_euclid_dist")
    nearest = distances.topk(2, dim=1, largest=False).values  # (N, 2)
    return (nearest[:, 1] - nearest[:, 0]) / nearest[:, 1].clamp(min=1e-30)


def usable_classes(model: LabelTableModel) -> Tensor:
    """(C,) bool on the CPU: classes that the table lets win."""
    table = model.label_table
    seen = table.seen.cpu()
    return seen if table.mask_unseen and bool(seen.any()) else torch.ones_like(seen)
