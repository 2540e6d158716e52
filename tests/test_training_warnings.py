"""What training goes wrong by without failing: each is one line in the log, with what to try, and said once."""

import math

import pytest
import torch
from test_training_stops import ROWS, trainer_of


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
