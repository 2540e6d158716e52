"""Two processes train with DeepSpeed on a CPU. Started by test_deepspeed.

DS_ACCELERATOR=cpu torchrun --nproc_per_node 2 tests/deepspeed_worker.py DIR
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import torch
import torch.distributed as dist
from launchers import two_processes
from trajectory import WORLD_SIZE, arguments, build, rows_for

from hf_lwal import LwALTrainer

WITHOUT_PARAMETERS = {"lwal_offset": False, "lwal_learn_scale": False}
"""Of the label table."""


def trainer_for(folder, stage, **options):
    """A trainer, its model built after the arguments, as in a script; stage 0 is without DeepSpeed."""
    parts = 1 if WORLD_SIZE == 1 else 2
    split = {"per_device_train_batch_size": 8 // (WORLD_SIZE * parts), "gradient_accumulation_steps": parts}
    auto = ("gradient_accumulation_steps", "gradient_clipping", "train_batch_size", "train_micro_batch_size_per_gpu")
    engine = {
        **dict.fromkeys(auto, "auto"),
        "zero_optimization": {"stage": stage, "stage3_gather_16bit_weights_on_model_save": True},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    ours = {"optim": "adamw_torch", "learning_rate": 2e-3, "max_grad_norm": 0.5, "max_steps": 6, "seed": 3}
    saves = {"save_strategy": "steps", "save_steps": 3, "deepspeed": engine if stage else None}
    args = arguments(folder, **{**split, **ours, **saves, **(WITHOUT_PARAMETERS if stage == 3 else {}), **options})
    if stage:
        import_module("deepspeed").init_distributed("gloo")  # not among the packages of the tests
    return LwALTrainer(
        build("bert"), args, train_dataset=rows_for("bert", 32), eval_dataset=rows_for("bert", 32, seed=1)
    )


def losses_of(trainer):
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def run(folder, stage):
    trainer = trainer_for(folder, stage)
    trainer.train()
    metrics = trainer.evaluate()
    trainer.save_model(folder / "final")
    resumed = trainer_for(folder, stage)
    resumed.train(resume_from_checkpoint=str(folder / "checkpoint-3"))
    return {"losses": losses_of(trainer), "loss": metrics["eval_loss"], "resumed": losses_of(resumed)}


def refused(folder):
    try:
        trainer_for(folder, 3, lwal_offset=True).train()
    except ValueError as error:
        return str(error)
    return None


def main(folder):
    with two_processes():
        report = {stage: run(folder / str(stage), stage) for stage in (2, 3)}
        report["refused"] = refused(folder / "refused")
        torch.save(report, folder / f"rank{dist.get_rank()}.pt")
        dist.barrier()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
