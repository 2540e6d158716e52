"""A method of the user's own by name, where a flag or a file cannot hold an object."""

import re
import sys

import pytest
from objectives_worker import build, rows_of

from hf_lwal import LwALTrainer, LwALTrainingArguments
from hf_lwal.bench.methods import parse_method
from hf_lwal.errors import CommandError
from hf_lwal.objectives import MaxEntropy, Objective, build_objective
from hf_lwal.objectives.own import own_objective


class Mine(MaxEntropy):
    """Built without arguments."""


class NeedsAnArgument(Objective):
    """Cannot be built from its name."""

    def __init__(self, beta):
        super().__init__()
        self.beta = beta


def test_a_method_of_ones_own_is_found_by_its_name(tmp_path, monkeypatch):
    """A flag, a grid and a settings file hold names only; the working folder is where people keep their module."""
    code = "from hf_lwal.objectives import StockObjective\n\n\nclass Mine(StockObjective):\n    citation = 'me'\n"
    (tmp_path / "methods_of_mine.py").write_text(code, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    objective = build_objective(LwALTrainingArguments("out", label_method="methods_of_mine:Mine").resolve_lwal())
    assert type(objective).__name__ == "Mine"
    assert parse_method("methods_of_mine:Mine")["label_method"] == "methods_of_mine:Mine"
    trainer = LwALTrainer(
        build("bert"),
        LwALTrainingArguments(str(tmp_path), label_method=f"{__name__}:Mine", max_steps=1, use_cpu=True),
        train_dataset=rows_of("bert", 16),
    )
    assert isinstance(trainer.label_objective, Objective)
    assert trainer.train().global_step == 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module:Mine", "'no_such_module' cannot be imported"),
        ("torch:NoSuchClass", "the module 'torch' has no 'NoSuchClass'"),
        ("torch:", "the module 'torch' has no ''"),
        (":Mine", "cannot be imported"),
        ("torch.nn:Linear", "Linear is no subclass of hf_lwal.objectives.Objective"),
        (f"{__name__}:NeedsAnArgument", "must be built without arguments"),
    ],
)
def test_a_name_that_is_no_method_is_refused(name, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        own_objective(name)
    with pytest.raises(CommandError, match=re.escape(message)):
        parse_method(name)
