"""`lwal_exact_accumulation`: the paper's step in micro-batches equals the paper's step in one batch."""

from __future__ import annotations

import pytest
import torch
from test_trainer import LABELS, TRAIN, arguments, lwal
from toy import separable_images

from hf_lwal import LwALTrainer
from hf_lwal.training.exact_accumulation import WholeStep

PAPER = {"lwal_preset": "paper:lwal10+rpl", "optim": "sgd", "learning_rate": 0.01, "max_grad_norm": 0.0}


def run(tiny_config, folder, data=TRAIN, name="bert", **options):
    trainer = LwALTrainer(
        lwal(tiny_config, name),
        arguments(folder, **PAPER, max_steps=4, logging_steps=1, **options),
        train_dataset=data,
    )
    trainer.train()
    logs = [log for log in trainer.state.log_history if "loss" in log]
    return trainer, [(log["loss"], log["pull_loss"], log.get("repel_loss", 0.0)) for log in logs]


@pytest.mark.parametrize(("micro", "steps"), [(4, 4), (8, 2), (5, 3)])
@pytest.mark.parametrize("refresh", [{}, {"lwal_refresh_every": 2, "lwal_warmup_steps": 1}])
def test_micro_batches_equal_one_batch(tiny_config, tmp_path, micro, steps, refresh):
    """Centroids of a micro-batch, or a gradient through only one part of them, train another algorithm."""
    data = TRAIN.map(lambda row, i: {"labels": -100 if i % 5 == 0 else row["labels"]}, with_indices=True)
    whole, whole_losses = run(tiny_config, tmp_path, data, per_device_train_batch_size=micro * steps, **refresh)
    split, split_losses = run(
        tiny_config,
        tmp_path,
        data,
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=steps,
        lwal_exact_accumulation=True,
        **refresh,
    )
    for ours, theirs in zip(split_losses, whole_losses, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5)
    for key, value in whole.model.state_dict().items():
        assert torch.allclose(split.model.state_dict()[key], value, rtol=1e-4, atol=2e-6), key


def test_it_matters(tiny_config, tmp_path, caplog):
    """Without it the result is another one, and a warning says so: else the test above would prove nothing."""
    whole, _ = run(tiny_config, tmp_path, per_device_train_batch_size=16)
    split, _ = run(tiny_config, tmp_path, per_device_train_batch_size=4, gradient_accumulation_steps=4)
    assert "centroids from each micro-batch of 4 rows per process" in caplog.text
    difference = (whole.model.head_module.weight - split.model.head_module.weight).abs().max()
    assert difference > 1e-4  # fifty times what the test above allows


def test_both_passes_draw_the_same_dropout(tiny_config):
    """With other dropout masks in pass 2, the centroids would belong to other embeddings."""
    model = lwal(tiny_config)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.3
    batches = [
        {name: column[start : start + 4] for name, column in TRAIN.with_format("torch")[:8].items()}
        for start in (0, 4)
    ]
    torch.manual_seed(3)
    step = WholeStep.collect(model, batches)
    again = [model.embed({k: v for k, v in batch.items() if k != "labels"}) for batch in batches]
    for first, second in zip(step.embeddings, again, strict=True):
        assert torch.equal(first, second)
    assert not torch.equal(model.embed({k: v for k, v in batches[1].items() if k != "labels"}), again[1])


def test_batchnorm_statistics_count_each_row_once(tiny_config, tmp_path):
    """Two passes over a batch would move BatchNorm's running statistics twice."""
    data = separable_images(LABELS, 64, 0)
    trainer, _ = run(
        tiny_config,
        tmp_path,
        data,
        "resnet",
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        lwal_exact_accumulation=True,
    )
    counts = {int(m.num_batches_tracked) for m in trainer.model.modules() if isinstance(m, torch.nn.BatchNorm2d)}
    assert counts == {8}


def test_a_loss_function_of_ones_own_reads_the_outputs_as_ever(tiny_config, tmp_path):
    """It got a plain dict where it gets a model's outputs everywhere else."""

    def own(outputs, labels, num_items_in_batch=None):
        assert outputs.embeddings.shape[0] == len(labels)
        return torch.nn.functional.cross_entropy(outputs.logits, labels, reduction="sum") / num_items_in_batch

    losses = []
    for function in (None, own):
        trainer = LwALTrainer(
            lwal(tiny_config),
            arguments(
                tmp_path,
                **{**PAPER, "lwal_preset": "paper"},
                max_steps=1,
                logging_steps=1,
                per_device_train_batch_size=8,
                gradient_accumulation_steps=2,
                lwal_exact_accumulation=True,
            ),
            train_dataset=TRAIN,
            compute_loss_func=function,
        )
        losses.append(trainer.train().training_loss)
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
