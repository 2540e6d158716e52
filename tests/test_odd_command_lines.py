"""Command lines that nobody meant: values of other kinds, words in wrong places, devices as files."""

from __future__ import annotations

import contextlib
import io
import json
import random
from collections import Counter

import pytest
from damage_judge import TooLong, bounded
from test_modeling import trained
from tiny_models import tiny_config
from toy import word_tokenizer

from hf_lwal import AutoModelForLwALClassification
from hf_lwal.cli.main import build_parser, main

NAMES = ["angry", "bored", "calm", "dull", "eager"]
VALUES = [
    *("", " ", "\t", "a\nb", "x", "a" * 5000, "ß\u202e\U0001f600", "\udcff", "%s", "@x", "a,b", "key=value", "*"),
    *("-1", "0", "1", "3", "0.5", "1e400", "nan", "inf", "-inf", "9" * 20, "None", "true", "null", "[]", "{}"),
    *("-", "--", "=", "/", "..", "~", "/dev/null", "/dev/full", "/proc/self/mem", "http://x.invalid/y.csv"),
    *("rows.csv", "one.csv", "empty.csv", "bytes.csv", "deep.json", "model", "model/config.json", "missing.csv"),
]
LINES = {
    "predict": ["model", "key1"],
    "fold": ["model", "--output", "folded"],
    "hierarchy": ["model", "--output", "tree"],
    "card": ["model"],
    "train": ["--data", "missing.csv", "--model", "model", "--output-dir", "trained", "--max-steps", "1"],
    "audit": ["rows.csv", "--model", "model"],
    "compare": ["--output", "compared"],
    "report": ["model"],
    "completion": ["bash"],
}
"""Command → words that work, but for data that is missing: to train takes long."""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a model and files of many kinds."""
    folder = tmp_path_factory.mktemp("place")
    config = tiny_config("bert", id2label=dict(enumerate(NAMES)), label2id=None)
    trained(AutoModelForLwALClassification.from_config(config, pooling="mean")).save_pretrained(folder / "model")
    word_tokenizer().save_pretrained(folder / "model")
    rows = [f"key{index % 5} word{index % 9},{NAMES[index % 5]}\n" for index in range(20)]
    (folder / "rows.csv").write_text("text,label\n" + "".join(rows))
    (folder / "one.csv").write_text("text\nkey1\n")
    (folder / "empty.csv").write_text("")
    (folder / "bytes.csv").write_bytes(bytes(range(256)))
    (folder / "deep.json").write_text("[" * 100_000)
    return folder


def drawn(generator, parsers):
    """Words of a command line with one or two faults."""
    command = generator.choice(list(LINES))
    words, actions = list(LINES[command]), parsers[command]._actions
    flags = [
        action for action in actions if action.option_strings and action.dest not in ("help", "onnx", "traceback")
    ]

    def with_flag():
        action = generator.choice(flags)
        name, value = generator.choice(action.option_strings), generator.choice(VALUES)
        return [name] if action.nargs == 0 else generator.choice([[name, value], [f"{name}={value}"], [name]])

    faults = ["flag", "flag", "flag", "two"] if flags else []
    how = generator.choice([*faults, "gone", "place", "more", "twice"])
    if how in ("flag", "two"):
        words += with_flag() + (with_flag() if how == "two" else [])
    elif how == "gone":
        words.pop(generator.randrange(len(words)))
    elif how == "place":
        words[generator.randrange(len(words))] = generator.choice(VALUES)
    elif how == "more":
        words.insert(generator.randrange(len(words) + 1), generator.choice(VALUES))
    else:
        words += words
    return [command, *words]


def called(words):
    """Exit code and what was printed on standard error."""
    out, err = io.StringIO(), io.StringIO()
    try:
        with bounded(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(words)
    except SystemExit as ended:
        code = ended.code
    except TooLong:
        code = "too long"
    return code, err.getvalue()


def test_each_ends_in_a_sentence_or_works(place, monkeypatch):
    """Tracebacks in the middle of a run, or "this may be a bug in hf-lwal" for a word in the wrong place."""
    monkeypatch.chdir(place)
    commands = build_parser("train")._subparsers._group_actions[0].choices
    codes, wrong = Counter(), []
    for case in range(80):
        words = drawn(random.Random(f"line-{case}"), commands)
        code, errors = called(words)
        codes[code] += 1
        said = not code or f"hf-lwal {words[0]}: " in errors
        if code not in (0, 1, 2) or "may be a bug" in errors or not said:
            wrong.append(f"{[word[:50] for word in words]}: {code} {errors[-300:]}")
    assert not wrong, "\n".join(wrong)
    assert codes[0] > 5, codes
    assert codes[2] > 40, codes


@pytest.mark.parametrize(
    "words", [["predict", "model", "key1", "--batch-size=--"], ["hierarchy", "model", "--metric=--"]]
)
def test_a_value_of_two_hyphens(place, monkeypatch, words):
    """argparse makes an empty list of it, which no command expects."""
    monkeypatch.chdir(place)
    code, errors = called(words)
    assert code == 2
    assert f"{words[-1].removesuffix('=--')} has the value '--', which is none" in errors


def test_lists_nested_too_deeply(place, monkeypatch):
    """The parser of JSON gives up with a RecursionError, which is no ValueError."""
    monkeypatch.chdir(place)
    for words in (["predict", "model", "deep.json"], ["audit", "deep.json", "--model", "model"]):
        code, errors = called(words)
        assert code == 2
        assert "nested too deeply" in errors


def test_rows_that_fill_no_batch(place, monkeypatch):
    """The training did no step, and ended in a KeyError of a metric that nothing had measured."""
    monkeypatch.chdir(place)
    words = ["--data", "rows.csv", "--model", "model", "--output-dir", "dropped", "--max-steps", "1"]
    code, errors = called(["train", *words, "--dataloader-drop-last", "--per-device-train-batch-size=64"])
    assert code == 2
    assert "--dataloader-drop-last leaves out what does not fill a batch of 64, and so all" in errors


def test_weights_of_labels_are_finite():
    """The smallest of nan and 1 is nan, which is not below 0: the loss was NaN from the first step."""
    from hf_lwal import LwALTrainingArguments

    for value in ("NaN,1", "Infinity,1", "1,-Infinity", [0.5, float("nan")]):
        with pytest.raises(ValueError, match="every weight must be above 0 and finite"):
            LwALTrainingArguments("out", lwal_class_weights=value).resolve_lwal()
    kept = LwALTrainingArguments("out", lwal_class_weights=json.dumps([1.0, 2.5])).resolve_lwal()
    assert list(kept.class_weights) == [1.0, 2.5]
