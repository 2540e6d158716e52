"""Labels become ids in one order, whatever they are and wherever they come from."""

import json

import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value
from PIL import Image

from hf_lwal.cli.train_data import load_rows
from hf_lwal.data.label_names import encode_labels
from hf_lwal.data.sources import load_splits
from hf_lwal.errors import CommandError

NUMBERS = [*range(12), -3]


def encoded(values, notes, **others):
    """The training split of a table with one label column, and columns besides."""
    rows = Dataset.from_dict({"text": [f"t{row}" for row in range(len(values))], "label": values, **others})
    return encode_labels(DatasetDict(train=rows), "label", notes.append)["train"]


def label_source(kind, folder):
    """The same whole-number labels by another door."""
    texts = [f"text {number}" for number in NUMBERS]
    if kind == "csv":
        (folder / "rows.csv").write_text(
            "text,label\n" + "".join(f"{text},{label}\n" for text, label in zip(texts, NUMBERS, strict=True)), "utf-8"
        )
    elif kind == "float csv":  # what a column of numbers with a gap is written as
        (folder / "rows.csv").write_text(
            "text,label\n" + "".join(f"{t},{label}.0\n" for t, label in zip(texts, NUMBERS, strict=True)) + "gap,\n"
        )
    elif kind == "jsonl":
        rows = [json.dumps({"text": text, "label": label}) for text, label in zip(texts, NUMBERS, strict=True)]
        (folder / "rows.jsonl").write_text("\n".join(rows), "utf-8")
    elif kind == "parquet":
        Dataset.from_dict({"text": texts, "label": NUMBERS}).to_parquet(folder / "rows.parquet")
    else:
        for label in NUMBERS:
            (folder / str(label)).mkdir()
            Image.new("RGB", (4, 4)).save(folder / str(label) / "a.png")
        return str(folder)
    return str(next(folder.iterdir()))


@pytest.mark.parametrize("kind", ["csv", "float csv", "jsonl", "parquet", "folders"])
def test_whole_numbers_keep_their_order(kind, tmp_path, monkeypatch):
    """Sorted as words, label 2 gets id 4: whoever takes argmax for the label is wrong without a word."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "data").mkdir()
    source = label_source(kind, tmp_path / "data")
    rows = encode_labels(load_splits(source), "label", [].append)["train"]
    assert rows.features["label"].names == [str(number) for number in sorted(NUMBERS)]
    names = rows.features["label"].names
    if kind != "folders":
        assert [names[label] for label in rows["label"]] == [str(number) for number in NUMBERS]


def test_words_and_numbers_with_zeros_stay_what_they_are():
    """007 read as 7 would be another name than the one that was given."""
    assert encoded(["10", "9", "x", "B", "a"], []).features["label"].names == ["9", "10", "B", "a", "x"]
    assert encoded(["010", "007", "2"], []).features["label"].names == ["2", "007", "010"]
    assert encoded([True, False], []).features["label"].names == ["False", "True"]


@pytest.mark.parametrize("missing", [None, "", "  ", "-100"])
def test_rows_without_a_label_are_left_out_and_said(missing):
    """A −100 or a blank would become a class of its own, one blank would refuse thousands of rows."""
    notes = []
    rows = encoded(["b", missing, "a", missing], notes)
    assert rows["text"][:] == ["t0", "t2"]
    assert rows.features["label"].names == ["a", "b"]
    assert notes == ["2 rows of split 'train' without a label are left out, the first is row 2"], "from 1"


def test_a_row_without_a_label_has_its_number_in_the_file(tmp_path):
    """Counted from 0, and without the rows that were left out before, the note led to another row of the table."""
    lines = ["text,label", "one,a", ",a", "three,b", "four,", "five,a", "six,b"]
    (tmp_path / "rows.csv").write_text("\n".join(lines), "utf-8")
    rows = load_rows(str(tmp_path / "rows.csv"))
    assert rows.notes[:2] == (
        "1 row of split 'train' without input is left out",
        "1 row of split 'train' without a label is left out: row 4",
    )
    assert rows.train.column_names == ["text", "label"], "the numbers are for the notes alone"


def test_the_number_minus_100_is_no_class():
    notes = []
    rows = encoded([3, -100, -1], notes)
    assert rows.features["label"].names == ["-1", "3"], "-1 is a label where the training rows have it"
    assert len(notes) == 1


def test_labels_withheld_as_minus_1_are_no_unknown_labels():
    train = Dataset.from_dict({"text": ["a", "b"], "label": [0, 1]})
    test = Dataset.from_dict({"text": ["c"], "label": [-1]})
    assert encode_labels(DatasetDict(train=train, test=test), "label")["test"]["label"][:] == [-1]


@pytest.mark.parametrize("pair", [("yes", "Yes"), ("yes", "yes "), ("caf\u00e9", "cafe\u0301"), ("1", "01")])
def test_labels_that_look_alike_are_named(pair):
    """Two spellings of one label are two classes that nothing can tell apart."""
    notes = []
    assert encoded([*pair, "other"], notes).features["label"].num_classes == 3
    assert len(notes) == 1
    assert "look alike" in notes[0]
    assert all(ascii(name) in notes[0] for name in pair)


@pytest.mark.parametrize("typo", ["age_limiz", "age_limi", "age_limitt", "age_lmiit"])
def test_a_label_that_is_misspelt_once_is_named(typo):
    """It is a class of one row, of which no validation row is made, and nothing said so."""
    notes = []
    assert encoded(["age_limit"] * 9 + [typo] + ["lost_card"] * 2, notes).features["label"].num_classes == 3
    assert notes == [
        f"column 'label' has labels that may be misspelt, and count as different: '{typo}' (1 row) for 'age_limit' (9)"
    ]


@pytest.mark.parametrize(
    "labels",
    [
        ["route_1"] * 9 + ["route_2"],  # numbered
        ["card"] * 9 + ["cart"],  # short
        ["lost_card"] * 9 + ["lost_cards"] * 9,  # both usual
        ["lost_card"] * 3 + ["lost_cars"],  # hardly rarer
    ],
)
def test_labels_that_differ_by_a_letter_on_purpose_are_not_named(labels):
    notes = []
    encoded(labels, notes)
    assert notes == []


def test_another_column_called_label_is_kept():
    """Prepared data has numbers in "label" and names in "label_text"; the numbers were in the way."""
    notes = []
    rows = Dataset.from_dict({"text": ["x", "y"], "label": [1, 0], "label_text": ["no", "yes"]})
    train = encode_labels(DatasetDict(train=rows), "label_text", notes.append)["train"]
    assert train["label"][:] == [0, 1]
    assert train.features["label"].names == ["no", "yes"]
    assert train["label_of_data"][:] == [1, 0]
    assert notes == []


def test_the_training_splits_numbering_wins():
    """Names of the data's own ClassLabel sorted anew would number labels otherwise than its papers do."""
    own, other = (Features({"text": Value("string"), "label": ClassLabel(names=names)}) for names in ("zab", "ba"))
    train = Dataset.from_dict({"text": ["p", "q"], "label": [0, 2]}, own)
    test = Dataset.from_dict({"text": ["r", "s"], "label": [0, 1]}, other)
    splits = encode_labels(DatasetDict(train=train, test=test), "label")
    assert splits["train"].features["label"].names == ["z", "a", "b"]
    assert splits["test"]["label"][:] == [2, 1]


def test_numbers_in_one_split_and_words_in_the_other(tmp_path):
    """The whole folder was refused as none, and the Hub was blamed."""
    (tmp_path / "train.csv").write_text("text,label\na,0\nb,1\nc,1\nd,0\n", "utf-8")
    (tmp_path / "test.csv").write_text("text,label\ne,zero\n", "utf-8")
    with pytest.raises(CommandError, match=r"labels that the training split lacks: zero\. Those of .* are 0, 1\."):
        load_rows(str(tmp_path))
    (tmp_path / "test.csv").write_text("text,label\ne,0\nf,\n", "utf-8")
    rows = load_rows(str(tmp_path))
    assert rows.test["text"][:] == ["e"]
    assert any("'test' without a label" in note for note in rows.notes)
