"""Two processes train a sharded model; one-process training beside it is the reference. Started by test_sharding."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy
from trajectory import build, rows_for

from hf_lwal.modeling.start import collect
from hf_lwal.training.sharding import fsdp_units, shard

STEPS, ROWS, LABELS = 6, 8, 5


def inputs_of(name, rows):
    columns = rows_for(name, rows).with_format("torch")[:]
    return {key: value for key, value in columns.items() if key != "labels"}


def batches(name):
    inputs = inputs_of(name, STEPS * ROWS)
    for step in range(STEPS):
        part = slice(step * ROWS, (step + 1) * ROWS)
        yield {**{key: value[part] for key, value in inputs.items()}, "labels": (torch.arange(ROWS) + step) % LABELS}


def start(model, name):
    rows = list(batches(name))
    model.start_from(collect(model, model.start_values, rows, torch.device("cpu"), progress=False))


def train(model, name, rank=0, world=1):
    """Plain loop with accumulation of two; with ``world`` > 1 every rank takes its share of the rows."""
    model.train()
    model.label_tracking = "trainer"
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses, sums = [], 0.0
    for step, batch in enumerate(batches(name)):
        part = {key: value[rank::world] for key, value in batch.items()}
        output = model(**part)
        (output.loss / 2).backward()
        sums = sums + model.label_table.sums_of(output.features, part["labels"])
        loss = output.loss.detach().clone()
        if world > 1:
            dist.all_reduce(loss)
        losses.append(loss / world)
        if step % 2:
            if world > 1:
                dist.all_reduce(sums)
            optimizer.step()
            optimizer.zero_grad()
            model.commit(sums)
            sums = 0.0
    return torch.stack(losses)


def main(folder):
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    assert world == 2
    mesh = init_device_mesh("cpu", (world,))
    report = {}
    for name, policy in (("bert", None), ("vit", None), ("bert", torch.bfloat16)):
        model = build(name)
        start(model, name)
        units = [type(unit).__name__ for unit in fsdp_units(model)]
        options = {"mp_policy": MixedPrecisionPolicy(param_dtype=policy)} if policy else {}
        shard(model, mesh=mesh, **options)
        whole = sorted(key for key, value in model.named_parameters() if not hasattr(value, "full_tensor"))
        losses = train(model, name, rank, world)
        full = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
        target = folder / f"{name}-{policy or 'float32'}"
        model.save_pretrained(target, state_dict=full, is_main_process=rank == 0)
        model.eval()
        with torch.no_grad():
            logits = model(**inputs_of(name, 16)).logits
        report[target.name] = {
            "losses": losses,
            "logits": logits,
            "units": units,
            "whole": whole,
            "table": {key: value.clone() for key, value in model.label_table.state_dict().items()},
        }
    torch.save(report, folder / f"rank{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
