"""What went wrong in training without a word: weights of NaN, labels that are never learned, half a checkpoint."""

import errno
import shutil
import signal

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
    trainer = trainer_of(tmp_path, learning_rate=1e37, max_grad_norm=0.0, logging_steps=500, **options)
    with pytest.raises(FloatingPointError, match=r"After step \d .* hold NaN or infinity, .*lower the learning rate"):
        trainer.train()


def test_weights_of_nan_are_neither_measured_nor_saved(tmp_path):
    options = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2}
    trainer = trainer_of(tmp_path, learning_rate=1e37, max_grad_norm=0.0, logging_steps=500, **options)
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


@pytest.mark.parametrize("saved", [True, False])
def test_a_process_whose_peer_died_says_so(tmp_path, monkeypatch, saved):
    """gloo's message names a file of its own sources and a port, and a command called it a bug of this package."""
    options = {"save_strategy": "steps", "save_steps": 1 if saved else 5, "max_steps": 6}
    trainer, step = trainer_of(tmp_path, **options), LwALTrainer.training_step

    def dies(self, *args, **kwargs):
        if self.state.global_step == 2:
            raise RuntimeError("[/x/gloo/transport/tcp/pair.cc:561] Connection closed by peer [127.0.0.1]:31138.")
        return step(self, *args, **kwargs)

    monkeypatch.setattr(LwALTrainer, "training_step", dies)
    left = "The last complete checkpoint is .*checkpoint-2" if saved else "No checkpoint in .* is complete"
    with pytest.raises(RuntimeError, match=f"Another process of this training ended after step 2, .* go on .*{left}"):
        trainer.train()


def test_other_errors_stay_as_they_are(tmp_path, monkeypatch):
    def fails(*args, **kwargs):
        raise RuntimeError("shapes do not fit")

    monkeypatch.setattr(LwALTrainer, "training_step", fails)
    with pytest.raises(RuntimeError, match=r"^shapes do not fit$"):
        trainer_of(tmp_path).train()


def test_an_interruption_says_what_is_left_and_leaves_nothing_half(tmp_path, monkeypatch, caplog):
    """Ctrl-C in the middle of a save left half a checkpoint, and nobody said which one counts."""
    trainer = trainer_of(tmp_path, save_strategy="steps", save_steps=1, max_steps=6)
    save = LwALTrainer._save_optimizer_and_scheduler
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]

    def interrupted(self, folder):
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
        if folder.endswith("checkpoint-3"):
            raise KeyboardInterrupt
        save(self, folder)

    monkeypatch.setattr(LwALTrainer, "_save_optimizer_and_scheduler", interrupted)
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert f"interrupted after step 3. The last complete checkpoint is {tmp_path / 'checkpoint-2'}" in caplog.text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-1", "checkpoint-2"]
    monkeypatch.undo()
    again = trainer_of(tmp_path, save_strategy="steps", save_steps=1, max_steps=6)
    again.train(resume_from_checkpoint=True)
    assert again.state.global_step == 6


def test_an_error_in_a_save_that_was_whole_keeps_it(tmp_path, monkeypatch):
    """What fails afterwards, such as deleting an older checkpoint, must not take the new one with it."""

    def fails(*args, **kwargs):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("transformers.trainer.rotate_checkpoints", fails)
    with pytest.raises(OSError, match=r"checkpoint-1 could not be written .*The last complete checkpoint is"):
        trainer_of(tmp_path, save_strategy="steps", save_steps=1, max_steps=2).train()
    assert (tmp_path / "checkpoint-1" / "trainer_state.json").exists()
