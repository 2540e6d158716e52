"""The examples run as their opening lines say."""

import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.slow
@pytest.mark.parametrize("model", ["convnext", "vit"])
def test_image_classification_from_scratch(model, tmp_path, monkeypatch, capsys):
    script = str(EXAMPLES / "image_classification_from_scratch.py")
    monkeypatch.setattr(sys, "argv", [script, "--smoke", "--model", model, "--output-dir", str(tmp_path)])
    runpy.run_path(script, run_name="__main__")
    *_, header, first, second = capsys.readouterr().out.strip().splitlines()
    assert header.split() == ["steps", "one_hot", "lwal"]
    assert [row.split()[0] for row in (first, second)] == ["2", "4"]
