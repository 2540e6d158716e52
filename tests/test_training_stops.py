"""What went wrong in training without a word: weights of NaN, labels that are never learned, half a checkpoint."""

import shutil

import pytest
from tiny_models import tiny_config
from toy import separable_text

from hf_lwal import AutoModelForLwALClassification, LwALTrainer, LwALTrainingArguments
from hf_lwal.training.checkpoints import checkpoint_to_resume

ROWS = separable_text(5, 40)


def trainer_of(folder, data=ROWS, **options):
    defaults = {"report_to": "none", "use_cpu": True, "disable_tqdm": True, "save_strategy": "no", "max_steps": 6}
    return LwALTrainer(
        AutoModelForLwALClassification.from_config(tiny_config("bert", num_labels=5)),
        args=LwALTrainingArguments(str(folder), **(defaults | options)),
        train_dataset=data,
        eval_dataset=ROWS,
    )


@pytest.mark.parametrize("options", [{}, {"lwal_preset": "paper"}, {"label_method": "one_hot"}], ids=str)
def test_weights_of_nan_end_the_training(tmp_path, options):
    """A rate of 1e10 ended normally, with a logged loss of 0.0 and an accuracy, from weights of NaN."""
    trainer = trainer_of(tmp_path, learning_rate=1e38, max_grad_norm=0.0, logging_steps=500, **options)
    with pytest.raises(FloatingPointError, match=r"After step \d .* hold NaN or infinity, .*lower the learning rate"):
        trainer.train()


def test_weights_of_nan_are_neither_measured_nor_saved(tmp_path):
    options = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2}
    trainer = trainer_of(tmp_path, learning_rate=1e38, max_grad_norm=0.0, logging_steps=500, **options)
    with pytest.raises(FloatingPointError):
        trainer.train()
    assert not [entry for entry in trainer.state.log_history if "eval_accuracy" in entry]
    assert not list(tmp_path.glob("checkpoint-*"))


def test_a_label_that_comes_late_is_learned_without_refreshes(tmp_path):
    """With lwal_refresh_every=0 its rows were left out of the loss for ever, and sums grew that nobody used."""
    late = [row for row in ROWS if row["labels"] != 4]
    model = trainer_of(tmp_path, data=late * 2, lwal_refresh_every=0, max_steps=1)
    model.train()
    table = model.model.label_table
    assert table.seen.tolist() == [True] * 4 + [False]
    means = table.class_features.clone()
    model.train_dataset = ROWS
    model.train()
    assert table.seen.all()
    assert (table.class_features[:4] == means[:4]).all(), "means that exist stay with k = 0"
    assert table.pending_sums.abs().sum() == 0


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (["scheduler.pt"], "learning rate schedule, which starts anew"),
        (["rng_state.pth"], "random generators, which"),
        (["scheduler.pt", "rng_state.pth"], "learning rate schedule and the random generators"),
        (["optimizer.pt", "scheduler.pt", "rng_state.pth"], "state of the optimizer and the learning rate"),
    ],
)
def test_states_that_start_anew_are_said(tmp_path, caplog, files, said):
    """transformers goes on without them and without a word, and the run is another one."""
    trainer_of(tmp_path, save_strategy="steps", save_steps=1, max_steps=1).train()
    checkpoint_to_resume(True, str(tmp_path), 1)
    assert "starts anew" not in caplog.text
    copy = shutil.copytree(tmp_path / "checkpoint-1", tmp_path / "checkpoint-2")
    for file in files:
        (copy / file).unlink()
    checkpoint_to_resume(copy, str(tmp_path), 1)
    assert said in caplog.text
