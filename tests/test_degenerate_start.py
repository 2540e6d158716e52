"""The start pass on rows that tell little or nothing: a plainer start with one line in the log, never a traceback."""

import math

import pytest
import torch
import torch.nn.functional as F
from datasets import Dataset
from tiny_models import tiny_config
from transformers import set_seed

from hf_lwal import AutoModelForLwALClassification, LwALTrainer, LwALTrainingArguments
from hf_lwal.functional import calibrated_scale
from hf_lwal.modeling.start import StartSamples
from hf_lwal.objectives import OneHot

LABELS = torch.arange(64) % 4
NOISE = torch.randn(64, 32, generator=torch.Generator().manual_seed(0))
CENTRES = 3.0 * torch.randn(4, 32, generator=torch.Generator().manual_seed(1))[LABELS]
FEATURES = {
    "alike within labels": CENTRES,
    "alike but for rounding": CENTRES * (1.0 + 1e-7 * NOISE),
    "constant": torch.ones(64, 32),
    "zero": torch.zeros(64, 32),
    "two labels alike": CENTRES[torch.arange(64) // 4 * 4 % 64],
    "half of the labels": torch.where((LABELS < 2).unsqueeze(1), CENTRES, CENTRES + NOISE),
    "dead features": torch.cat([(CENTRES + NOISE)[:, :16], torch.zeros(64, 16)], dim=1),
    "tiny": 1e-6 * (CENTRES + NOISE),
    "tinier": 1e-30 * (CENTRES + NOISE),
    "huge": 1e6 * (CENTRES + NOISE),
    "one NaN": torch.where((torch.arange(64) == 5).unsqueeze(1), torch.nan, CENTRES + NOISE),
    "one infinity": torch.where((torch.arange(64) == 6).unsqueeze(1), -torch.inf, CENTRES + NOISE),
}
TELLING = [name for name in FEATURES if name not in ("constant", "zero", "two labels alike")]


def model_of(dtype=torch.float32, head="auto", offset=True):
    set_seed(0)
    model = AutoModelForLwALClassification.from_config(tiny_config("bert", num_labels=4, hidden_size=32)).to(dtype)
    model.config.initial_head, model.config.offset = head, offset
    return model


@pytest.mark.parametrize(("head", "offset"), [("whitened", True), ("probe", True), ("probe", False)])
@pytest.mark.parametrize("name", FEATURES)
def test_any_features_give_a_finite_start(name, head, offset):
    """Rows all alike within labels ended in 'the scale of the logits is nan', small features in chance."""
    model, features = model_of(head=head, offset=offset), FEATURES[name]
    scale = model.start_from(StartSamples(features, LABELS, 0.0), learning_rate=5e-5)
    assert math.isfinite(scale)
    assert all(value.isfinite().all() for value in model.state_dict().values())
    logits = model.label_table(model.head(features))
    rows = features.isfinite().all(1)
    assert logits[rows].isfinite().all()
    if name in TELLING:
        assert (logits.argmax(1) == LABELS)[rows].float().mean() > 0.9
    control = AutoModelForLwALClassification.from_config(tiny_config("bert", num_labels=4, hidden_size=32))
    control = OneHot(init="class_means", initial_head="whitened").prepare_model(control)
    OneHot(init="class_means", initial_head="whitened").start(control, StartSamples(features, LABELS, 0.0))
    assert control.classifier.weight.isfinite().all()
    if name in TELLING:
        predicted = control.classifier(features).argmax(1)
        assert (predicted == LABELS)[rows].float().mean() > 0.9


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["alike within labels", "one NaN"])
def test_low_precision(name, dtype):
    model = model_of(dtype)
    model.start_from(StartSamples(FEATURES[name], LABELS, 0.0), learning_rate=5e-5)
    assert all(value.isfinite().all() for value in model.state_dict().values())


def test_each_step_down_is_said_once(caplog):
    model_of(head="whitened").start_from(StartSamples(CENTRES, LABELS, 0.0))
    assert caplog.text.count("all alike") == 1
    caplog.clear()
    model_of().start_from(StartSamples(CENTRES, LABELS, 0.0))
    assert caplog.text == "", "a fitted head needs no scatter"
    model_of().start_from(StartSamples(CENTRES + NOISE, LABELS, 0.0))
    assert caplog.text == ""
    model_of().start_from(StartSamples(FEATURES["one NaN"], LABELS, 0.0))
    assert caplog.text.count("1 of 64 start rows hold NaN") == 1
    with pytest.raises(ValueError, match="all 64 start rows hold NaN or infinity"):
        model_of().start_from(StartSamples(torch.full((64, 32), torch.nan), LABELS, 0.0))


def test_repeated_texts_train(tmp_path):
    """One text per label, repeated: what people try first. Stock classifiers learn it."""
    rows = Dataset.from_list([{"input_ids": [i % 4 + 4, 20, 21], "label": i % 4} for i in range(64)])
    trainer = LwALTrainer(
        model_of(),
        args=LwALTrainingArguments(
            str(tmp_path), max_steps=4, report_to="none", use_cpu=True, disable_tqdm=True, save_strategy="no"
        ),
        train_dataset=rows,
        eval_dataset=rows,
    )
    trainer.train()
    assert trainer.evaluate()["eval_accuracy"] == 1.0


def test_calibration_in_blocks_is_that_of_all_rows_at_once():
    """Distances of 1,000 labels to 16,000 rows took gigabytes; blocks must not change the scale."""
    generator = torch.Generator().manual_seed(2)
    labels = torch.arange(3000) % 60
    held_out = torch.rand(3000, 60, generator=generator) + 0.5
    held_out[torch.arange(3000), labels] -= 0.4
    counts = torch.full((60,), 50.0)
    mean = float(held_out.double().mean())
    grid = [2.0 ** (k / 2) / mean for k in range(-2, 20)]
    losses = [float(F.cross_entropy(-scale * held_out.double(), labels)) for scale in grid]
    best = grid[min(range(len(grid)), key=losses.__getitem__)]
    assert calibrated_scale(held_out, labels, counts, held_out=held_out) == pytest.approx(best, rel=1e-12)
    assert grid[0] < best < grid[-1]
