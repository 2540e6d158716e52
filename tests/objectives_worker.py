"""Short trainings with each label-learning method; started by test_objectives in two processes."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
import trajectory
from tiny_models import tiny_config
from toy import separable_images, separable_text
from trajectory import WORLD_SIZE
from transformers import AutoModelForImageClassification, AutoModelForSequenceClassification, set_seed

from hf_lwal import LwALTrainer
from hf_lwal.objectives import StaticLabel

LABELS = 5
METHODS = ("label_smoothing", "max_entropy", "teacher_free", "lwr", "label_embed", "static_label")


def options_of(method):
    return {"label_method": method, **({"label_lwr_every": 2} if method == "lwr" else {})}


def build(name):
    set_seed(0)
    auto = AutoModelForSequenceClassification if name == "bert" else AutoModelForImageClassification
    return auto.from_config(tiny_config(name, num_labels=LABELS))


def rows_of(name, rows, seed=0):
    return (separable_text if name == "bert" else separable_images)(LABELS, rows, seed)


def arguments(folder, method=None, **options):
    own = {"per_device_train_batch_size": 8, "per_device_eval_batch_size": 64, "max_steps": 9, "seed": 42}
    chosen = {} if method is None else options_of(method)
    return trajectory.arguments(folder, **{**own, **chosen, **options})


def train(name, method, folder, rows=24, data=None, checkpoint=None, **options):
    """Three epochs of 24 rows in steps of 8, unless the options say otherwise; returns the trainer."""
    objective = None
    if method == "static_label":
        vectors = torch.randn(LABELS, 12, generator=torch.Generator().manual_seed(0))
        objective = StaticLabel(vectors)
    args = arguments(folder, method, **options)
    data = rows_of(name, rows) if data is None else data
    trainer = LwALTrainer(build(name), args, objective=objective, train_dataset=data)
    trainer.train(resume_from_checkpoint=checkpoint)
    return trainer


def main(folder):
    report = {"world_size": WORLD_SIZE}
    for method in ("lwr", "label_embed", "static_label"):
        trainer = train("bert", method, folder / "two", per_device_train_batch_size=4)
        assert dist.get_world_size() == 2
        report[method] = {**trainer.model.state_dict(), **trainer.label_objective.state_dict()}
    torch.save(report, folder / f"rank{dist.get_rank()}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
