"""What a training is refused, stopped or warned for, in one sentence each."""

from __future__ import annotations

import logging
import os
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from ..data.labels import balanced_weights, check_labels, check_numbering, ids_of, label_column, log_frequencies
from ..modeling.distributed import all_reduce_sum, differs_between_ranks
from ..modeling.functional import IGNORE_INDEX
from .own_loss import ignores_items
from .transformers_internals import HookedTrainer

logger = logging.getLogger(__name__)

ROWS_PER_LABEL = 2
"""Rows of a batch for each label below which the paper's class means say little of their classes."""


def check_settings(trainer: HookedTrainer, loss_is_replaced: bool = False) -> None:
    """Refuse and warn of settings that do not go together, before the first step.

    Args:
        trainer: about to train.
        loss_is_replaced: a subclass has a ``compute_loss`` of its own, which never calls the trainer's.
    """
    args, accumulates = trainer.args, trainer.args.gradient_accumulation_steps > 1
    _warn_of_training_apart(args.world_size, started_processes())
    if trainer.label_objective.accumulation_caveat is not None and accumulates:
        logger.warning(trainer.label_objective.accumulation_caveat)
    if accumulates and ignores_items(trainer.compute_loss_func):
        logger.warning(
            "compute_loss_func does not use num_items_in_batch, so its gradient is multiplied by the %d "
            "micro-batches of a step: divide the sum over rows by num_items_in_batch.",
            args.gradient_accumulation_steps,
        )
    model = trainer.lwal_model
    if trainer.lwal_settings.noisy_labels == "downweight":
        _refuse_weights(trainer, model is not None and model.label_update.of_batch, loss_is_replaced)
    if model is None:
        return
    of_batch = model.label_update.of_batch
    if of_batch and args.n_gpu > 1:
        raise ValueError(
            "The paper preset needs all rows of a step in one place, which nn.DataParallel does not give: start "
            "one process per GPU with `accelerate launch` or `torchrun`."
        )
    if of_batch and model.config.refresh_every > 0:
        _warn_of_small_steps(trainer, model.config.num_labels)
    if not accumulates or (of_batch and trainer.lwal_settings.exact_accumulation):
        return
    if of_batch:
        logger.warning(
            "With gradient accumulation the paper preset takes its centroids from each micro-batch of %d rows "
            "per process, not from the whole step: set lwal_exact_accumulation=True for those of the step.",
            args.per_device_train_batch_size,
        )
    if model.config.repel_weight > 0:
        logger.warning("With gradient accumulation the repel loss compares rows within a micro-batch only.")


def started_processes() -> int:
    """How many processes a launcher says that it has started together; 1 without one."""
    found = os.environ.get("WORLD_SIZE", "1")
    return int(found) if found.isdecimal() and "RANK" in os.environ else 1


def _warn_of_training_apart(joined: int, started: int) -> None:
    """Without GPUs accelerate joins processes only where it is told that a CPU is meant; nothing else says so."""
    if joined == 1 < started:
        logger.warning(
            "%d processes were started together (WORLD_SIZE), but this one trains alone: each reads all rows, and "
            "they overwrite each other's checkpoints. Without GPUs set use_cpu=True in the arguments.",
            started,
        )


def _refuse_weights(trainer: HookedTrainer, of_batch: bool, loss_is_replaced: bool) -> None:
    if of_batch:
        reason = "the paper preset takes the label vectors from all rows of a batch alike"
    elif trainer.compute_loss_func is not None:
        reason = "compute_loss_func gives one loss for all rows of a batch"
    elif loss_is_replaced:
        reason = f"{type(trainer).__name__}.compute_loss replaces the loss, and would not know"
    else:
        return
    raise ValueError(
        f"lwal_noisy_labels='downweight' lets rows count for less, but {reason}: use lwal_noisy_labels='drop'."
    )


def _warn_of_small_steps(trainer: HookedTrainer, num_labels: int) -> None:
    args = trainer.args
    parts = args.gradient_accumulation_steps if trainer.lwal_settings.exact_accumulation else 1
    rows = args.train_batch_size * args.world_size * parts
    if rows < ROWS_PER_LABEL * num_labels:
        logger.warning(
            "The paper preset takes the label vectors from the %d rows of one batch, few for %d labels: "
            "with 32 rows for 150 labels it ended at 59.6 %% where one-hot reaches 93.6 %%. Use batches of at "
            "least %d rows, or the default preset, whose class means remember rows of earlier steps.",
            rows,
            num_labels,
            ROWS_PER_LABEL * num_labels,
        )


def check_train_labels(trainer: HookedTrainer, names: dict[int, str]) -> Tensor | None:
    """Check the labels of the training rows and their numbering; returns the class weights (C,), None for none."""
    labels, weights = label_column(trainer.train_dataset), trainer.lwal_settings.class_weights
    if labels is not None and len(labels):
        check_labels(labels, names)
        if bool((labels == IGNORE_INDEX).all()):
            raise ValueError(
                f"All {len(labels)} training rows have the label {IGNORE_INDEX}, which is not learned, so nothing "
                "could be trained: give the rows the ids or names of their labels."
            )
    several: Any = trainer.eval_dataset if isinstance(trainer.eval_dataset, dict) else {"": trainer.eval_dataset}
    for dataset in (trainer.train_dataset, *several.values()):
        check_numbering(dataset, names)
    if weights is None:
        return None
    if weights == "balanced":
        if labels is None:
            raise ValueError(
                "lwal_class_weights='balanced' needs a datasets.Dataset with a label column: give the weights as "
                "numbers instead."
            )
        return balanced_weights(ids_of(labels, names), len(names)).to(trainer.args.device)
    if len(weights) != len(names):
        raise ValueError(f"lwal_class_weights has {len(weights)} numbers, but the model has {len(names)} labels.")
    return torch.tensor(weights, dtype=torch.float32, device=trainer.args.device)


def log_prior(trainer: HookedTrainer, names: dict[int, str], labels: np.ndarray | None) -> Tensor | None:
    """What the training loss adds to the logits (C,); None for nothing.

    Args:
        trainer: about to train.
        names: id to name.
        labels: (N,) checked labels of the training rows that count; None where they are not known.
    """
    if trainer.lwal_settings.prior == "uniform":
        return None
    if trainer.compute_loss_func is not None:
        logger.warning(
            "compute_loss_func replaces the cross-entropy, so lwal_prior='train' changes nothing: add the log class "
            "frequencies to the logits there."
        )
        return None
    if labels is None:
        kind = type(trainer.train_dataset).__name__
        raise ValueError(
            f"lwal_prior='train' counts the labels of all training rows, which {kind} does not tell: give a "
            "datasets.Dataset with a label column, or leave lwal_prior out."
        )
    return log_frequencies(ids_of(labels, names), len(names)).to(trainer.args.device)


def untrained_parts(trainer: HookedTrainer) -> str | None:
    """Sentence where a subclass's ``create_optimizer`` left out what the objective learns itself; None if not."""
    if trainer.optimizer is None or trainer.shards_weights:
        return None
    held = {id(parameter) for group in trainer.optimizer.param_groups for parameter in group["params"]}
    left = [name for name, parameter in trainer.label_objective.named_parameters() if id(parameter) not in held]
    if not left:
        return None
    return (
        f"{type(trainer).__name__}.create_optimizer leaves out {', '.join(left)} of "
        f"{type(trainer.label_objective).__name__}, which stay as they are: add "
        "self.label_objective.parameters() to the optimizer, or pass it as optimizers=(optimizer, None)."
    )


def labels_were_edited(trainer: HookedTrainer) -> bool:
    """Whether the optimizer of an earlier training holds a label table that is no more."""
    if trainer.shards_weights:
        return False
    alive = {id(parameter) for part in (trainer.model, trainer.label_objective) for parameter in part.parameters()}
    return any(id(parameter) not in alive for group in trainer.optimizer.param_groups for parameter in group["params"])


def check_finite(trainer: HookedTrainer) -> None:
    """Raise FloatingPointError where a weight is NaN or infinite: nothing more can be learned, nor measured."""
    if not trainer.reads_weights:
        return
    parts = {**dict(trainer.model.named_parameters()), **dict(trainer.label_objective.named_parameters())}
    trained = {name: part for name, part in parts.items() if part.requires_grad}
    if not trained:
        return
    finite = torch.stack([_own_part(part).isfinite().all() for part in trained.values()])
    if trainer.shards_by_fsdp2:  # all ranks end, or none
        finite = all_reduce_sum((~finite).long()) == 0
    if not bool(finite.all()):
        name = list(trained)[int((~finite).nonzero()[0])]
        raise FloatingPointError(
            f"After step {trainer.state.global_step} {int((~finite).sum())} of {len(trained)} weights hold NaN or "
            f"infinity, {name} first: lower the learning rate, set max_grad_norm, or train in bf16 or float32 "
            "instead of fp16."
        )


def _own_part(parameter: Tensor) -> Tensor:
    """What this rank holds of a parameter."""
    parameter = parameter.detach()
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


def check_ranks(trainer: HookedTrainer) -> None:
    """Raise RuntimeError, on all ranks, where they hold unlike label tables: each would train towards its own."""
    model = trainer.lwal_model
    if model is None or not trainer.reads_weights:
        return
    table = model.label_table
    if differs_between_ranks([table.class_features, table.counts, table.offset_bias, table.log_scale_bias]):
        raise RuntimeError(
            "The processes of this training hold unlike label tables: give all of them the same seed and the same "
            "model, and resume all of them from the same checkpoint."
        )
