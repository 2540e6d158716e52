"""What training goes wrong by without failing: each is one line in the log, with what to try, and said once."""

import math

import pytest
import torch
from test_training_stops import ROWS, trainer_of
from transformers import AutoConfig

from hf_lwal import LabelTable
from hf_lwal.modeling.start import StartSamples, classes_are_close


def warnings_of(caplog, trainer):
    """What was logged as a warning by this package while training."""
    caplog.clear()
    trainer.train()
    return [record.getMessage() for record in caplog.records if record.name.startswith("hf_lwal")]


@pytest.mark.parametrize(
    "options", [{"learning_rate": 10}, {"learning_rate": 10, "optim": "sgd"}, {"learning_rate": 3.0}], ids=str
)
def test_a_learning_rate_that_flattens_the_logits(tmp_path, caplog, options):
    """The scale went to 0 and the loss to ln C, to the end of the training, without a word."""
    trainer = trainer_of(tmp_path, logging_steps=5, max_steps=20, **options)
    said = [line for line in warnings_of(caplog, trainer) if "collapsed" in line]
    assert len(said) == 1
    assert "learning rate ten times lower" in said[0]
    assert "ln 5 = 1.61" in said[0]
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] == pytest.approx(math.log(5), rel=0.01)


def test_processes_that_train_apart(tmp_path, caplog, monkeypatch):
    """Without GPUs two processes of torchrun train on all rows each, and write into one folder, without a word."""
    trainer = trainer_of(tmp_path, max_steps=1)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    said = [line for line in warnings_of(caplog, trainer) if "trains alone" in line]
    assert len(said) == 1
    assert "set use_cpu=True" in said[0]


@pytest.mark.parametrize("options", [{}, {"lwal_preset": "paper"}, {"label_method": "one_hot"}], ids=str)
def test_rows_without_labels(tmp_path, caplog, options):
    """All labels -100: the loss was 0 to the end, which looks like success."""
    nothing = ROWS.remove_columns("labels").add_column("labels", [-100] * len(ROWS))
    with pytest.raises(ValueError, match="All 40 training rows have the label -100, which is not learned"):
        trainer_of(tmp_path, data=nothing, **options).train()
    for data in (list(nothing), nothing.to_iterable_dataset()):
        lines = warnings_of(caplog, trainer_of(tmp_path, data=data, logging_steps=2, **options))
        assert len([line for line in lines if "No row of the last 2 steps has a label" in line]) == 1


def constant(token, length):
    return ROWS.map(lambda row: {"input_ids": [token] * length, "attention_mask": [1] * length})


@pytest.mark.parametrize("options", [{}, {"label_method": "one_hot", "lwal_init": "class_means"}], ids=str)
@pytest.mark.parametrize(("token", "length"), [(3, 2), (2, 1), (9, 12)])
def test_inputs_that_are_all_alike(tmp_path, caplog, options, token, length):
    """A max_length that leaves two special tokens trained to the end, with losses up to 900."""
    trainer = trainer_of(tmp_path, data=constant(token, length), logging_steps=2, **options)
    lines = warnings_of(caplog, trainer)
    assert len(lines) == 1
    assert "all 40 start rows alike" in lines[0]
    assert "max_length" in lines[0]


def test_a_training_that_goes_well_says_nothing(tmp_path, caplog):
    few = torch.arange(len(ROWS)) % 3 == 0
    some = [{**row, "labels": -100 if skip else row["labels"]} for row, skip in zip(ROWS, few.tolist(), strict=True)]
    for data in (ROWS, some):
        assert warnings_of(caplog, trainer_of(tmp_path, data=data, logging_steps=1)) == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"per_device_train_batch_size": 4}, "the 4 rows of one batch, few for 5 labels"),
        ({"per_device_train_batch_size": 9}, "batches of at least 10 rows"),
        ({"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4}, "the 4 rows of one batch"),
        ({"per_device_train_batch_size": 10}, None),
        (
            {
                "per_device_train_batch_size": 4,
                "gradient_accumulation_steps": 4,
                "lwal_exact_accumulation": True,
            },
            None,
        ),
        ({"per_device_train_batch_size": 4, "lwal_refresh_every": 0}, None),
    ],
    ids=str,
)
def test_batches_too_small_for_the_paper(tmp_path, caplog, options, said):
    """Class means of a batch in which most labels do not occur end far below one-hot labels, at a loss near 0."""
    trainer = trainer_of(tmp_path, lwal_preset="paper", max_steps=2, **options)
    lines = [line for line in warnings_of(caplog, trainer) if "few for 5 labels" in line]
    assert len(lines) == (said is not None)
    assert said is None or (said in lines[0] and "59.6 %" in lines[0])


def loop(model, steps=3):
    batch = {name: torch.tensor(ROWS[name][:10]) for name in ("input_ids", "attention_mask", "labels")}
    for _ in range(steps):
        model(**batch).loss.backward()
    return batch


def test_a_plain_loop_without_a_start_from_data(tmp_path, caplog):
    """Examples in which only the class of the model was changed stayed at 50 % where the stock classifier learned."""
    model = trainer_of(tmp_path).model.train()
    batch = loop(model)
    assert caplog.text.count("model.initialize_labels(dataloader)") == 1
    caplog.clear()
    model.eval()(**batch)
    loop(model.train())
    started = trainer_of(tmp_path).model.train()
    started.initialize_labels([batch], progress=False)
    loop(started)
    paper = trainer_of(tmp_path, lwal_preset="paper").model.train()
    loop(paper)
    trainer_of(tmp_path).train()
    assert "initialize_labels" not in caplog.text


def samples(apart, norm=1.0):
    """Four classes of features of this norm whose means lie so far from their centre, with some noise."""
    generator, labels = torch.Generator().manual_seed(0), torch.arange(64) % 4
    common, own = torch.randn(32, generator=generator), torch.randn(4, 32, generator=generator)
    own = own - own.mean(dim=0)
    own = own / own.norm(dim=1).mean()
    noise = torch.randn(64, 32, generator=generator) / 32**0.5
    return StartSamples(norm * (common / common.norm() + apart * (own[labels] + noise)), labels, 0.0)


@pytest.mark.parametrize("norm", [1e-3, 1.0, 300.0])
@pytest.mark.parametrize(("apart", "warns"), [(1e-3, True), (3e-4, True), (0.02, False), (0.5, False)])
def test_classes_that_lie_close_together(caplog, apart, warns, norm):
    """Features of two layers fell from 91 % to chance within four steps; their length says nothing."""
    assert classes_are_close(samples(apart, norm), 4) == warns
    assert caplog.text.count("measured anew before each evaluation") == warns


def test_close_classes_are_said_at_train_begin(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("hf_lwal.modeling.start.CLOSE_CLASSES", 100.0)
    for options, count in (
        ({}, 1),
        ({"lwal_follow_drift": 0.0}, 1),
        ({"lwal_offset": False}, 1),
        ({"lwal_preset": "paper"}, 0),
        ({"label_method": "one_hot"}, 0),
    ):
        lines = warnings_of(caplog, trainer_of(tmp_path, max_steps=2, **options))
        assert len([line for line in lines if "class means lie only" in line]) == count


@pytest.mark.parametrize(("wanted", "refreshed"), [(None, [2, 4]), ("no", []), ("epoch", [])])
def test_close_classes_are_measured_anew_before_each_evaluation(tmp_path, monkeypatch, wanted, refreshed):
    """Label vectors of the step before answered at chance, where one step moves all features past all of them."""
    monkeypatch.setattr("hf_lwal.modeling.start.CLOSE_CLASSES", 100.0)
    options = {"max_steps": 4, "eval_strategy": "steps", "eval_steps": 2, "lwal_eval_refresh": wanted}
    trainer = trainer_of(tmp_path, **options)
    trainer.train()
    assert trainer.model.config.close_classes
    assert [log["step"] for log in trainer.state.log_history if "eval_refresh_seconds" in log] == refreshed
    trainer.save_model()
    assert AutoConfig.from_pretrained(tmp_path).close_classes, "a training that resumes must go on like that"


def test_what_classifies_best_is_kept():
    """The offset of a training whose features have moved since is of another place than evaluation-mode means."""
    torch.manual_seed(0)
    table, labels = LabelTable(4, 6, 6), torch.arange(4).repeat(10)
    values = 3 * torch.eye(4, 6)[labels] + 0.1 * torch.randn(40, 6)
    table.start(values, labels, None)
    moved = values + 50 * torch.randn(6)
    for offset, choose, right in ((10.0, False, False), (10.0, True, True), (0.0, True, True)):
        table.offset_bias.data = offset * torch.randn(4, 6)
        table.refresh_for_evaluation(moved, labels, None, choose=choose)
        assert bool((table(moved).argmax(1) == labels).all()) == right
    table.offset_bias.data.zero_()
    table.refresh_for_evaluation(values.roll(1, 1), labels, None, choose=True)
    assert (table(values.roll(1, 1)).argmax(1) == labels).all()
