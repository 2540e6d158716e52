"""Lower precision, checkpointed activations, compilation and replicas: the same training, within stated bounds."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from releases import CHECKPOINTING, ONE_GRAPH
from test_modeling import LABELS, build, inputs_for
from test_trainer import TEST, TRAIN, arguments, lwal
from torch._dynamo.utils import counters

from hf_lwal import LwALTrainer, LwALTrainingArguments
from hf_lwal.settings import apply_settings
from hf_lwal.settings.training_args import resolve

FLOATS = ("label_vectors", "class_features", "pending_sums", "offset_bias", "log_scale_bias")


def started(tiny_config, name, **kwargs):
    """A model in the trainer's hands, with class means from 40 rows; and a batch."""
    model = build(tiny_config, name, **kwargs)
    batch = {**inputs_for(model, 40), "labels": torch.arange(40) % LABELS}
    model.initialize_labels([batch], progress=False)
    model.train()
    model.label_tracking = "trainer"
    return model, batch


@pytest.mark.parametrize("name", ["bert", "vit"])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.bfloat16, 0.05), (torch.float16, 0.01)])
@pytest.mark.parametrize("weights", [False, True], ids=["autocast", "weights"])
def test_low_precision_stays_near_float32(tiny_config, name, dtype, bound, weights):
    """Distances or tables in half precision lose close labels: only the encoder and its head may run in it."""
    model, batch = started(tiny_config, name)
    with torch.no_grad():
        exact = model(**batch)
    if weights:
        model = model.to(dtype)
        batch = {key: value.to(dtype) if value.is_floating_point() else value for key, value in batch.items()}
    with torch.autocast("cpu", dtype, enabled=not weights):
        output = model(**batch)
    assert output.logits.dtype == output.embeddings.dtype == output.loss.dtype == torch.float32
    assert {getattr(model.label_table, part).dtype for part in FLOATS} == {torch.float32}
    error = (output.logits.detach() - exact.logits).norm() / exact.logits.norm()
    assert 0 < error < bound
    assert output.loss.item() == pytest.approx(exact.loss.item(), abs=5 * bound)
    output.loss.backward()
    assert model.label_table.offset_bias.grad.isfinite().all()


@pytest.mark.parametrize("mode", ["bf16", "bf16_full_eval"])
def test_trainer_in_bfloat16(tiny_config, tmp_path, mode):
    """`bf16_full_eval` casts the whole model for an evaluation: the table must not be cast, not even for it."""
    model = lwal(tiny_config)
    args = arguments(tmp_path, max_steps=60, use_cpu=True, eval_strategy="steps", eval_steps=30, **{mode: True})
    trainer = LwALTrainer(model, args, train_dataset=TRAIN, eval_dataset=TEST)
    trainer.train()
    assert trainer.evaluate()["eval_accuracy"] > 0.95
    assert {getattr(model.label_table, part).dtype for part in FLOATS} == {torch.float32}
    # Class means of a cast table would be multiples of a bfloat16 step.
    means = model.label_table.class_features
    assert not torch.equal(means, means.bfloat16().float())


def test_checkpointed_activations_count_rows_once(tiny_config, tmp_path):
    """A recomputed forward must neither add its rows to the class means again nor change the gradient."""
    states = []
    for checkpointing in (False, True):
        model = lwal(tiny_config)
        args = arguments(tmp_path, max_steps=4, **{f"{CHECKPOINTING}_checkpointing": checkpointing})
        LwALTrainer(model, args, train_dataset=TRAIN).train()
        assert getattr(model, f"is_{CHECKPOINTING}_checkpointing") == checkpointing
        assert int(model.label_table.counts.sum()) == 16 * LABELS + 4 * 16
        states.append(model.state_dict())
    for key, value in states[0].items():
        assert torch.allclose(value.double(), states[1][key].double(), atol=1e-5), key


@pytest.mark.parametrize(("preset", "name"), [("default", "bert"), ("paper", "vit")])
def test_compiled_forward(tiny_config, name, preset):
    """Host-side counters in the forward would compile it anew at every step; a broken graph would hide the gain."""
    one_layer = partial(tiny_config, num_hidden_layers=1)  # each is traced, and none of them is ours
    model, batch = started(one_layer, name)
    if preset == "paper":
        model = build(one_layer, name)
        apply_settings(model, resolve(LwALTrainingArguments(lwal_preset="paper", report_to="none")))
    plain = copy.deepcopy(model)
    for module in (model, plain):
        module.train()
        module.label_tracking = "trainer"
        module.optimizer_step = 0
    torch._dynamo.reset()
    counters.clear()
    compiled = torch.compile(model, backend="aot_eager")
    optimizers = [torch.optim.SGD(module.parameters(), lr=0.05) for module in (model, plain)]
    for step in range(6):
        losses = []
        for module, owner, optimizer in zip((compiled, plain), (model, plain), optimizers, strict=True):
            output = module(**batch)
            output.loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            owner.commit(owner.label_table.sums_of(owner.values(output.embeddings, output.features), batch["labels"]))
            losses.append(output.loss.item())
        assert losses[0] == pytest.approx(losses[1], rel=1e-4), step
        if step == 1:
            graphs = counters["stats"]["unique_graphs"]
    if ONE_GRAPH:
        assert counters["stats"]["unique_graphs"] == graphs
        assert sum(counters["graph_break"].values()) <= 1


def replica_of(module):
    """What nn.DataParallel makes of a module on another device, without needing one: own object, shared tensors."""
    replica = module._replicate_for_data_parallel()
    replica._parameters = dict(module._parameters)
    replica._buffers = dict(module._buffers)
    replica._modules = {name: child and replica_of(child) for name, child in module._modules.items()}
    return replica


def test_replicas_compute_what_one_model_does(tiny_config):
    """Under nn.DataParallel each replica sees a part of the batch: logits and features gathered are those of all."""
    model, batch = started(tiny_config, "bert")
    whole = model(**batch)
    parts = [
        replica_of(model)(**{key: value[part] for key, value in batch.items()}) for part in (slice(24), slice(24, 40))
    ]
    for field in ("logits", "embeddings", "features"):
        gathered = torch.cat([getattr(part, field) for part in parts])
        assert torch.allclose(gathered, getattr(whole, field), atol=1e-5)
    head = model.head_module
    (gradient,) = torch.autograd.grad(whole.logits.square().sum(), head.weight)
    (split,) = torch.autograd.grad(sum(part.logits.square().sum() for part in parts), head.weight)
    assert torch.allclose(gradient, split, rtol=1e-4, atol=1e-3)


def test_replicas_that_track_their_own_labels_are_refused(tiny_config):
    """A plain loop over nn.DataParallel would write class means into replicas that are thrown away."""
    model = build(tiny_config, "bert").train()
    with pytest.raises(RuntimeError, match="one process per GPU"):
        replica_of(model)(**inputs_for(model, 5), labels=torch.arange(5))
