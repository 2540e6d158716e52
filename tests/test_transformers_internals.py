"""The private methods of transformers' Trainer that are overridden or called: each must still be what it was."""

import ast
import inspect
from pathlib import Path

import pytest
from transformers import Trainer

from hf_lwal.training import transformers_internals
from hf_lwal.training.transformers_internals import INTERNALS, HookedTrainer

PACKAGE = Path(transformers_internals.__file__).parents[1]


@pytest.mark.parametrize("name", INTERNALS)
def test_transformers_still_has_what_is_relied_on(name):
    """A release that renames one of them would otherwise leave out a save, a load or a check without a word."""
    method, (relied_on, reason) = getattr(Trainer, name), INTERNALS[name]
    assert set(relied_on) <= set(inspect.signature(method).parameters)
    assert reason
    if name in vars(HookedTrainer):
        own = inspect.signature(vars(HookedTrainer)[name]).parameters
        takes_any = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in own.values())
        assert takes_any or set(inspect.signature(method).parameters) == set(own)


def test_every_override_and_every_call_is_listed():
    """What is used elsewhere, and not listed, would break where no test looks."""
    private = {name for name in dir(Trainer) if name.startswith("_") and not name.startswith("__")}
    used = {}
    for folder in ("training", "bench", "cli", "model_card"):
        for path in (PACKAGE / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                names = {getattr(node, "attr", None), node.name if isinstance(node, ast.FunctionDef) else None}
                for name in names & private:
                    used.setdefault(name, set()).add(path.name)
    assert used == {name: {"transformers_internals.py"} for name in INTERNALS}
