"""What a training says about its labels: loss terms, scale, classes seen, drift; and when it must stop.

Everything is kept on the device and read at logging steps only.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping

import torch
from torch import Tensor

from ..modeling.distributed import all_reduce_sum, world_size
from ..modeling.functional import IGNORE_INDEX, SQUARED_DISTANCE_FLOOR
from ..modeling.modeling_lwal import LwALPreTrainedModel

logger = logging.getLogger(__name__)

FLAT_LOGITS = 0.05
"""Scale times distance between label vectors, by which logits of two labels can differ, that is next to nothing."""
NON_FINITE_LIMIT = 3
"""Batches in a row with NaN or infinity after which training stops."""


class LabelLog:
    """Collects between two logs."""

    def __init__(self) -> None:
        self._terms: dict[str, Tensor] = {}
        self._steps = 0
        self._non_finite: Tensor | None = None
        self._vectors: Tensor | None = None
        self._rows: Tensor | None = None
        self._said: set[str] = set()

    @torch.no_grad()
    def resume(self, model: LwALPreTrainedModel) -> None:
        """Count the drift from the present label vectors: those of the last log, if the checkpoint was saved then."""
        self._vectors = model.current_label_vectors().clone()

    def add(self, terms: Mapping[str, Tensor]) -> None:
        """Add a micro-batch's share of the loss terms; the shares of a step add up to its value."""
        for name, value in terms.items():
            self._terms[name] = self._terms.get(name, 0.0) + value

    def finite(self, sums: Tensor) -> Tensor:
        """Return class sums, or zeros where they hold NaN or infinity, which is counted."""
        is_finite = sums.isfinite().all()
        before = 0 if self._non_finite is None else self._non_finite
        self._non_finite = torch.where(is_finite, 0, before + 1)
        return torch.where(is_finite, sums, 0.0)

    def count(self, rows: Tensor) -> None:
        """Count the rows with a label of an optimizer step, of all ranks."""
        self._rows = rows if self._rows is None else self._rows + rows

    def end_step(self) -> None:
        """Count an optimizer step."""
        self._steps += 1

    def read(self, model: LwALPreTrainedModel | None) -> dict[str, float]:
        """Numbers to log, averaged over the steps since the last call; all ranks must call it.

        Raises:
            FloatingPointError: the last batches held NaN or infinity.
        """
        steps, self._steps = self._steps, 0
        terms, self._terms = self._terms, {}
        numbers: dict[str, float] = {}
        if not steps:
            return numbers
        self._warn_without_rows(steps)
        if terms:
            total = all_reduce_sum(torch.stack([value.float() for value in terms.values()]))
            numbers = dict(zip(terms, (total / (world_size() * steps)).tolist(), strict=True))
        if model is None:
            return numbers
        self._stop_on_non_finite()
        numbers["label_scale"] = model.label_table.scale.item()
        numbers["classes_seen"] = model.label_table.seen.float().mean().item()
        between = self._distance_between(model)
        numbers["label_drift"] = self._drift(model, between)
        self._warn_of_collapse(model, numbers["label_scale"], between)
        return numbers

    def _warn_of_collapse(self, model: LwALPreTrainedModel, scale: float, between: float) -> None:
        # Without a calibrated start, as in the paper, flat logits are where training begins; and where the vectors are
        # one, the start pass has said why.
        if model.label_update.of_batch or scale * between >= FLAT_LOGITS or between < SQUARED_DISTANCE_FLOOR**0.5:
            return
        number = model.label_table.num_labels
        self._warn_once(
            f"The logits have collapsed: label_scale is {scale:.3g} and the label vectors lie {between:.3g} apart, so "
            f"all {number} labels are equally probable and the loss stays at ln {number} = {math.log(number):.3g}. "
            "Start anew with a learning rate ten times lower, or set max_grad_norm."
        )

    def _warn_without_rows(self, steps: int) -> None:
        rows, self._rows = self._rows, None
        if rows is not None and int(rows) == 0:
            self._warn_once(
                f"No row of the last {steps} steps has a label (all are {IGNORE_INDEX}), so nothing is learned and "
                "the loss is 0: look at the labels of the training data."
            )

    def _warn_once(self, sentence: str) -> None:
        kind = sentence[:20]
        if kind not in self._said:
            self._said.add(kind)
            logger.warning(sentence)

    @torch.no_grad()
    def _distance_between(self, model: LwALPreTrainedModel) -> float:
        """Root mean square distance of two label vectors, which is twice the variance: the pairs would be (C, C)."""
        vectors = model.current_label_vectors()
        return float((2.0 * vectors.var(dim=0).sum()).sqrt()) if len(vectors) > 1 else math.inf

    @torch.no_grad()
    def _drift(self, model: LwALPreTrainedModel, between: float) -> float:
        """Mean distance that label vectors moved since the last log, as a share of how far two of them are apart."""
        vectors = model.current_label_vectors()
        before, self._vectors = self._vectors, vectors.clone()
        if before is None or before.shape != vectors.shape or len(vectors) < 2:
            return 0.0
        return float((vectors - before).norm(dim=1).mean()) / between if between else math.nan

    def _stop_on_non_finite(self) -> None:
        if self._non_finite is not None and self._non_finite.item() >= NON_FINITE_LIMIT:
            raise FloatingPointError(
                f"The embeddings of the last {int(self._non_finite)} batches contain NaN or infinity: lower the "
                "learning rate, set max_grad_norm, or train in bf16 or float32 instead of fp16."
            )
