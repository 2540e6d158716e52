"""What transformers does to a custom head without a word: the damage without the protection, and none with it."""

from __future__ import annotations

import pytest
import torch
from releases import DIVIDES_TWICE
from test_training_stops import ROWS, trainer_of
from tiny_models import tiny_config
from torch import nn
from toy import separable_text
from transformers import Trainer, TrainingArguments, set_seed

from hf_lwal import AutoModelForLwALClassification, LabelTable
from hf_lwal.modeling.core import LabelTableModel

OFF = [False, True]


def new_model():
    set_seed(0)
    return AutoModelForLwALClassification.from_config(tiny_config("bert", num_labels=5))


def stepped(model, steps=3, rate=1e-2):
    """After steps of a plain loop, still in training mode."""
    optimizer, batch = torch.optim.AdamW(model.parameters(), lr=rate), ROWS.with_format("torch")[:]
    model.train()
    for _ in range(steps):
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


@pytest.mark.parametrize("off", OFF)
def test_micro_batches_of_the_plain_trainer(tmp_path, monkeypatch, off):
    """A model that seems to take `num_items_in_batch` gets its gradient multiplied by the micro-batches of a step."""
    if off:
        monkeypatch.setattr(LabelTableModel, "accepts_loss_kwargs", True)
    norms = []
    for rows, parts in ((16, 1), (4, 4)):
        options = {"max_steps": 1, "per_device_train_batch_size": rows, "gradient_accumulation_steps": parts}
        model = new_model()
        model.initialize_labels([ROWS.with_format("torch")[:]], progress=False)
        model.label_tracking = "off"  # the same label vectors for each micro-batch
        args = TrainingArguments(
            str(tmp_path), logging_steps=1, report_to="none", use_cpu=True, save_strategy="no", **options
        )
        trainer = Trainer(model, args, train_dataset=separable_text(5, 16))
        trainer.train()
        norms.append(next(entry["grad_norm"] for entry in trainer.state.log_history if "grad_norm" in entry))
    expected = (4.0 if off else 1.0) / (4.0 if DIVIDES_TWICE else 1.0)
    assert norms[1] / norms[0] == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("off", OFF)
def test_a_model_that_is_cast(monkeypatch, off):
    """`bf16_full_eval` and `.half()` cast buffers and parameters alike; the digits do not come back."""
    model = stepped(new_model()).eval()
    before = model.label_table.label_vectors.clone()
    if off:
        monkeypatch.setattr(LabelTable, "_apply", nn.Module._apply)
    model.to(torch.bfloat16).to(torch.float32)
    assert torch.equal(model.label_table.label_vectors, before) != off


@pytest.mark.parametrize("off", OFF)
def test_an_evaluation_after_a_step(monkeypatch, off):
    """Evaluation reads a buffer, which lags behind the head that it derives from until it is written anew."""
    model = stepped(new_model())
    if off:
        monkeypatch.setattr(LabelTableModel, "bring_labels_up_to_date", lambda self: None)
    table = model.eval().label_table
    assert torch.allclose(table.label_vectors, table.derived(model.head), atol=1e-5) != off


@pytest.mark.parametrize("off", OFF)
def test_weights_of_nan_in_a_log_without_them(tmp_path, monkeypatch, off):
    """`logging_nan_inf_filter` hides a loss of NaN, so that a ruined training ended like any other."""
    options = {"learning_rate": 1e37, "max_grad_norm": 0.0, "logging_steps": 500, "label_method": "one_hot"}
    trainer = trainer_of(tmp_path, **options)
    if off:
        monkeypatch.setattr(type(trainer), "check_finite", lambda self: None)
        trainer.train()
        assert not all(part.isfinite().all() for part in trainer.model.parameters())
        return
    with pytest.raises(FloatingPointError, match="lower the learning rate"):
        trainer.train()
