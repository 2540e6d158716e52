"""Two processes train with FSDP2 as accelerate's example configuration asks for it. Started by test_fsdp2.

    accelerate launch --config_file examples/accelerate_configs/fsdp2.yaml --num_processes 2 tests/fsdp2_worker.py DIR

On a CPU accelerate would silently take DistributedDataParallel. Here it is told that it has GPUs, and nothing else:
the sharding, the collectives and the checkpoints are those of a real run.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from accelerate import PartialState
from accelerate.utils import DistributedType
from launchers import two_processes
from torch.distributed.tensor import DTensor
from trajectory import LABELS, WORLD_SIZE, arguments, build, rows_for
from transformers import set_seed

from hf_lwal import AutoModelForLwALClassification, LwALTrainer

STEPS, ROWS = 6, 8
ADAM = {"optim": "adamw_torch_fused", "learning_rate": 2e-3, "max_grad_norm": 0.5}
CASES = {
    "default": ("bert", "default", ADAM),
    "image": ("vit", "default", {**ADAM, "activation_checkpointing": True}),
    "paper": ("bert", "paper, exact accumulation", {"optim_args": "momentum=0.9"}),
}
"""Name → model, method, arguments."""
SHARDED = ("paper",)
"""Whose checkpoints in between hold each rank's parts."""


def claim_gpus():
    """Let accelerate believe that the processes have GPUs."""
    settle = PartialState.__init__

    def settled(self, *args, **kwargs):
        settle(self, *args, **kwargs)
        if self.distributed_type == DistributedType.MULTI_CPU:
            PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU

    PartialState.__init__ = settled


class OneGroup(LwALTrainer):
    """Makes its own optimizer, in which parameters of the label table stand beside sharded ones."""

    def create_optimizer(self, model=None):
        self.optimizer = torch.optim.AdamW(self.model.parameters(), self.args.learning_rate, foreach=True)
        return super().create_optimizer(model)


def trainer_for(folder, name, model=None, **options):
    kind, method, own = CASES[name]
    parts = 1 if WORLD_SIZE == 1 else 2
    split = {"per_device_train_batch_size": ROWS // (WORLD_SIZE * parts), "gradient_accumulation_steps": parts}
    saves = {"save_strategy": "steps", "save_steps": 3}
    args = arguments(folder, method, **{**split, **saves, "max_steps": STEPS, "seed": 3, **own, **options})
    model = build(kind, method) if model is None else model
    rows = {"train_dataset": rows_for(kind, 32), "eval_dataset": rows_for(kind, 32, seed=1)}
    return (OneGroup if kind == "vit" else LwALTrainer)(model, args, **rows)


def losses_of(trainer):
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def numbers_of(trainer):
    """What two trainings are compared by; the model is sharded or not."""
    weights = {key: whole(value) for key, value in trainer.model.state_dict().items()}
    metrics = trainer.evaluate()
    return {
        "losses": losses_of(trainer),
        "weights": weights,
        "loss": metrics["eval_loss"],
        "f1": metrics["eval_f1_macro"],
    }


def whole(tensor):
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def run(folder, name):
    """Evaluate, train, save, and train the second half again from the checkpoint in the middle."""
    os.environ["FSDP_STATE_DICT_TYPE"] = "SHARDED_STATE_DICT" if name in SHARDED else "FULL_STATE_DICT"
    trainer = trainer_for(folder / name, name)
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    kinds = {key: type(value).__name__ for key, value in trainer.model.named_parameters()}
    trainer.save_model(folder / name / "final")
    trainer.save_model(_internal_call=True)  # as a push does, into the output folder
    resumed = trainer_for(folder / name, name)
    resumed.train(resume_from_checkpoint=str(folder / name / "checkpoint-3"))
    return {"before": before, **numbers_of(trainer), "resumed": numbers_of(resumed), "kinds": kinds}


def in_bfloat16(folder):
    trainer = trainer_for(folder / "bf16", "default", bf16=True, save_strategy="no")
    trainer.train()
    output = trainer.model(**next(iter(trainer.get_eval_dataloader())))
    table = {key: value.dtype for key, value in trainer.core_model.label_table.state_dict().items()}
    return {"losses": losses_of(trainer), "logits": output.logits.dtype, "table": table}


def from_stock_weights(folder, saving_memory):
    """With ``fsdp_cpu_ram_efficient_loading`` only the first process makes the layers that a checkpoint lacks."""
    os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] = str(saving_memory).lower()
    set_seed(0)
    model = AutoModelForLwALClassification.from_pretrained(folder / "stock", num_labels=LABELS)
    meta = sorted(key for key, value in model.state_dict().items() if value.is_meta)
    trainer = trainer_for(folder / f"read{saving_memory}", "default", model, save_strategy="no")
    trainer.train()
    return {"losses": losses_of(trainer), "meta": meta}


def main(folder):
    claim_gpus()
    with two_processes():
        report = {name: run(folder, name) for name in CASES}
        report["bf16"] = in_bfloat16(folder)
        if dist.get_rank() == 0:
            build("bert").encoder.bert.save_pretrained(folder / "stock")
        dist.barrier()
        report["read"] = [from_stock_weights(folder, saving) for saving in (False, True)]
        torch.save(report, folder / f"rank{dist.get_rank()}.pt")
        dist.barrier()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
