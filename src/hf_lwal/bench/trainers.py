"""The trainer of every comparison: all methods get the same budget, schedule and order of samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from transformers import PreTrainedModel

from ..metrics import AccuracyAndF1
from ..metrics.running_time import Times, running_times
from ..modeling.heads import find_head
from ..modeling.modeling_lwal import LwALPreTrainedModel
from ..objectives.stock import stock_task
from ..settings.training_args import LwALTrainingArguments
from ..training.trainer import LwALTrainer
from .frozen_regression import RegressionStart
from .methods import OWN_FIELDS


class ComparisonTrainer(LwALTrainer):
    """`LwALTrainer` that keeps its curve, and can let the head learn faster than the rest.

    Args:
        head_rate: multiple of the learning rate for the head.
        on_accuracy: called with the step and the accuracy of every evaluation.
        **keywords: those of `LwALTrainer`.
    """

    def __init__(
        self, head_rate: float = 1.0, on_accuracy: Callable[[int, float], None] | None = None, **keywords: Any
    ) -> None:
        super().__init__(**{"compute_metrics": AccuracyAndF1(calibration=True), **keywords})
        self.head_rate = head_rate
        self.on_accuracy = on_accuracy
        self.curve: list[tuple[int, float]] = []
        self.f1_macro = math.nan
        self.calibration_error: float | None = None

    def create_optimizer(self, model: torch.nn.Module | None = None) -> torch.optim.Optimizer:
        """The optimizer, with the head's parameters in groups of their own where they have a rate of their own."""
        optimizer = super().create_optimizer(model)
        if self.head_rate != 1.0:
            head = {id(parameter) for parameter in head_of(self.core_model).parameters()}
            for group in list(optimizer.param_groups):
                own = [parameter for parameter in group["params"] if id(parameter) in head]
                if own:
                    group["params"] = [parameter for parameter in group["params"] if id(parameter) not in head]
                    optimizer.add_param_group({**group, "params": own, "lr": self.head_rate * self.args.learning_rate})
        return optimizer

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Evaluate, and note the accuracy; work of the steps before, which is no evaluation's, is waited for first."""
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()
        numbers: dict[str, float] = super().evaluate(*args, **kwargs)
        self.curve.append((self.state.global_step, numbers["eval_accuracy"]))
        self.f1_macro = numbers["eval_f1_macro"]
        self.calibration_error = numbers.get("eval_calibration_error")
        if self.on_accuracy is not None:
            self.on_accuracy(*self.curve[-1])
        return numbers

    def train_to_end(self) -> Times:
        """Train, and measure after the last step too; returns what it took."""
        self.train()
        times = running_times(self.state.log_history)
        if self.curve[-1][0] != self.state.global_step:
            self.evaluate()
        return times


def head_of(model: PreTrainedModel) -> torch.nn.Module:
    """The last linear layer of a stock classifier or of an LwAL model's encoder."""
    if isinstance(model, LwALPreTrainedModel):
        return model.encoder.get_submodule(str(model.config.head_name))
    head = find_head(model.config, stock_task(model))
    if head is None:
        raise ValueError(f"{type(model).__name__} has no single linear head, so head_rate has nothing to act on.")
    return model.get_submodule(head.name)


def comparison_arguments(
    folder: str,
    method: Mapping[str, Any],
    *,
    steps: int,
    batch_size: int,
    learning_rate: float,
    evaluations: int,
    seed: int,
    **more: Any,
) -> LwALTrainingArguments:
    """Training arguments that differ between methods in what the method is alone.

    Args:
        folder: the trainer's; nothing is written to it.
        method: its fields, with or without those of `OWN_FIELDS` and its name.
        steps: optimizer steps.
        batch_size: samples per step.
        learning_rate: at the start; it decays linearly to 0.
        evaluations: during training, besides the one before the first step.
        seed: of the order of the samples.
        **more: other training arguments.
    """
    chosen: dict[str, Any] = {
        "max_steps": steps,
        "per_device_train_batch_size": batch_size,
        "per_device_eval_batch_size": 256,
        "learning_rate": learning_rate,
        "lr_scheduler_type": "linear",
        "eval_strategy": "steps",
        "eval_steps": math.ceil(steps / evaluations),
        "eval_on_start": True,
        "save_strategy": "no",
        "logging_strategy": "no",
        "report_to": "none",
        "dataloader_pin_memory": torch.accelerator.is_available(),  # PyTorch warns about it on a CPU alone
        "seed": seed,
        "data_seed": seed,
        **more,
        **{name: value for name, value in method.items() if name not in (*OWN_FIELDS, "name")},
    }
    return LwALTrainingArguments(folder, **chosen)


def comparison_trainer(
    model: PreTrainedModel, arguments: LwALTrainingArguments, method: Mapping[str, Any], **keywords: Any
) -> ComparisonTrainer:
    """Build the trainer of a method.

    Args:
        model: a fresh one.
        arguments: from `comparison_arguments`.
        method: its fields, of which those of `OWN_FIELDS` count here.
        **keywords: data sets and the like, and ``on_accuracy``.
    """
    return ComparisonTrainer(
        head_rate=float(method.get("head_rate", 1.0)),
        objective=RegressionStart() if method.get("head_start") == "regression" else None,
        model=model,
        args=arguments,
        **keywords,
    )
