"""One vector per label from a model trained with any method, so that what methods learn about labels can be compared.

The label table where there is one; the eigenvectors of the similarities that ``label_embed`` learns; for every other
method the class means of the features that the head classifies, as the paper takes them for its baselines, here also
for one-hot training and in evaluation mode.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from ..modeling.functional import class_sums
from ..modeling.heads import run_without_head
from ..modeling.label_table import LabelTable
from ..modeling.modeling_lwal import LwALPreTrainedModel
from ..modeling.start import collect
from ..objectives.base import Objective
from ..objectives.label_embed import LabelEmbedding, core_of, eigen_embedding
from ..objectives.stock import stock_head


def label_vectors(
    model: nn.Module,
    dataloader: Iterable[dict[str, Any]] | None = None,
    objective: Objective | None = None,
    progress: bool = True,
) -> Tensor:
    """Vectors that stand for the labels of a trained model.

    Args:
        model: an LwAL model (also of ``static_label``) or a stock classifier, with or without adapter.
        dataloader: for stock classifiers, batches (dicts with "labels") to take class means of, such as the training
            rows; iterated twice for models with BatchNorm layers that never ran.
        objective: the trainer's, which holds what ``label_embed`` learned: ``trainer.label_objective``.
        progress: show a progress bar.

    Returns:
        (C, D) float32 on the CPU. Rows of NaN for labels of which nothing is known: never seen in training, or not in
        the data loader.

    Raises:
        ValueError: a stock classifier and no data loader.
    """
    core = core_of(model)
    if isinstance(core, LwALPreTrainedModel):
        core.bring_labels_up_to_date()
        return of_table(core.label_table)
    if isinstance(objective, LabelEmbedding):
        return eigen_embedding(objective.similarities).float().cpu()
    if dataloader is None:
        raise ValueError(
            f"{type(core).__name__} has no label vectors of its own: give a dataloader with rows of every label, "
            "whose class means stand for them."
        )
    return class_means(core, dataloader, progress)


def of_table(table: LabelTable) -> Tensor:
    """What a label table predicts with, (C, D) float32 on the CPU; NaN for labels never seen, if any were seen."""
    vectors, seen = table.label_vectors.detach().float().cpu(), table.seen.cpu()
    return torch.where(seen.unsqueeze(1) | ~seen.any(), vectors, torch.nan)


def class_means(model: Any, dataloader: Iterable[dict[str, Any]], progress: bool = True) -> Tensor:
    """Mean input of the head over the rows of each class, in evaluation mode.

    Args:
        model: a stock classifier with one linear head; its mode and the caller's random streams are left as they were.
        dataloader: batches (dicts with "labels"); rows with -100 count for nothing.
        progress: show a progress bar.

    Returns:
        (C, H) float32 on the CPU; NaN for classes without rows.

    Raises:
        ValueError: the head is not a single linear layer.
    """
    name = stock_head(model).name

    def values(inputs: dict[str, Any]) -> Tensor:
        features: Tensor = run_without_head(model, name, inputs).logits
        return features

    samples = collect(model, values, dataloader, model.device, progress)
    sums, counts = class_sums(samples.values.double(), samples.labels, model.config.num_labels)
    return (sums / counts.unsqueeze(1)).float().cpu()  # 0 / 0 is NaN
