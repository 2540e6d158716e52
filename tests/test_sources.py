"""Data sets of any make end as one input column and labels 0…C-1 with names, or in one clear sentence."""

from collections import Counter

import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Image, Sequence, Value

from hf_lwal.data import EMBEDDED, embedded_folder, load_embedded
from hf_lwal.data.sources import (
    Columns,
    encode_labels,
    evaluation_split,
    find_columns,
    label_groups,
    load_splits,
    stratified_indices,
)
from hf_lwal.errors import CommandError

CLASSES = ClassLabel(names=["no", "yes"])


def splits_of(train, test, **features):
    """A data set with the given columns in both splits."""
    schema = Features(features)
    return DatasetDict(train=Dataset.from_dict(train, schema), test=Dataset.from_dict(test, schema))


@pytest.mark.parametrize(
    ("name", "rows", "num_labels"),
    [
        ("clinc150", {"train": 15000, "validation": 3000, "test": 4500}, 150),
        ("fashion_mnist", {"train": 2000, "test": 1000}, 10),
    ],
)
def test_embedded_data(name, rows, num_labels):
    splits = load_embedded(name)
    assert {split: len(splits[split]) for split in splits} == rows
    for split in splits.values():
        assert isinstance(split.features["label"], ClassLabel)
        counts = Counter(split["label"])
        assert set(counts) == set(range(num_labels))
        assert len(set(counts.values())) == 1, "every class has the same number of rows"


@pytest.mark.parametrize("name", EMBEDDED)
def test_embedded_data_carries_its_licence_and_citation(name):
    folder = embedded_folder(name)
    assert (folder / "LICENSE").stat().st_size > 1000
    assert "author" in (folder / "README.md").read_text(encoding="utf-8")


def test_embedded_names_are_listed():
    with pytest.raises(ValueError, match=r"called 'mnist'; there are clinc150, fashion_mnist"):
        load_embedded("mnist")


@pytest.mark.parametrize(
    ("features", "expected"),
    [
        ({"text": Value("string"), "label": CLASSES}, Columns("text", "label", "text")),
        ({"id": Value("string"), "sentence": Value("string"), "label": CLASSES}, Columns("sentence", "label", "text")),
        ({"body": Value("string"), "intent": Value("string")}, Columns("body", "intent", "text")),
        ({"img": Image(), "fine_label": CLASSES}, Columns("img", "fine_label", "image")),
        ({"name": Value("string"), "image": Image(), "label": CLASSES}, Columns("image", "label", "image")),
    ],
)
def test_columns_are_found(features, expected):
    assert find_columns(Features(features)) == expected


def test_given_columns_win():
    features = Features({"text": Value("string"), "title": Value("string"), "label": CLASSES, "topic": CLASSES})
    assert find_columns(features, "title", "topic") == Columns("title", "topic", "text")


@pytest.mark.parametrize(
    ("features", "given", "message"),
    [
        ({"a": Value("string"), "b": Value("string"), "label": CLASSES}, {}, "--text-column; there are a, b, label"),
        ({"text": Value("string"), "x": CLASSES, "y": CLASSES}, {}, "--label-column; there are text, x, y"),
        (
            {"text": Value("string"), "label": CLASSES},
            {"input_column": "txt"},
            "--text-column: there is no column 'txt'",
        ),
        ({"text": Value("string"), "label": CLASSES}, {"label_column": "y"}, "--label-column: there is no column 'y'"),
    ],
)
def test_unclear_columns_name_the_flag(features, given, message):
    with pytest.raises(CommandError, match=message):
        find_columns(Features(features), **given)


@pytest.mark.parametrize("kind", ["string", "int64"])
def test_plain_labels_get_one_order_in_all_splits(kind):
    """Encoding each split alone would number the same label differently in train and test."""
    values = {"string": ["b", "c", "a", "c"], "int64": [7, 9, 5, 9]}[kind]
    splits = splits_of(
        {"text": list("wxyz"), "intent": values},
        {"text": ["v"], "intent": values[1:2]},
        text=Value("string"),
        intent=Value(kind),
    )
    encoded = encode_labels(splits, "intent")
    assert encoded["train"]["label"][:] == [1, 2, 0, 2]
    assert encoded["test"]["label"][:] == [2]
    assert encoded["train"].features["label"].names == sorted(map(str, set(values)))


@pytest.mark.parametrize(
    ("feature", "train", "test", "message"),
    [
        (Value("float32"), [0.5], [0.5], "one class per row is needed"),
        (Sequence(Value("int64")), [[0, 1]], [[0]], "one class per row is needed"),
        (Value("string"), ["a", "b"], ["a", "zebra"], "Split 'test' has labels that the training split lacks: zebra"),
        (Value("string"), [None, None], ["a", "a"], "holds no label"),
        (CLASSES, [-1, -1], [0, 1], "holds no label"),
    ],
)
def test_bad_labels_are_one_clear_sentence(feature, train, test, message):
    columns = {"text": Value("string"), "label": feature}
    rows = [{"text": ["x"] * len(labels), "label": labels} for labels in (train, test)]
    with pytest.raises(CommandError, match=message):
        encode_labels(splits_of(*rows, **columns), "label")


def test_withheld_test_labels_fall_back_to_validation():
    """Accuracy on a test split whose labels are all -1 would be 0, whatever the model."""
    rows = Dataset.from_dict({"label": [0, 1]}, Features({"label": CLASSES}))
    withheld = Dataset.from_dict({"label": [-1, -1]}, Features({"label": CLASSES}))
    assert evaluation_split(DatasetDict(train=rows, validation=rows, test=withheld)) is rows
    with pytest.raises(CommandError, match=r"no labelled split .* has train, test"):
        evaluation_split(DatasetDict(train=rows, test=withheld))


def test_stratified_rows_are_balanced_and_repeatable():
    labels = [0] * 50 + [1] * 30 + [2] * 3
    chosen = stratified_indices(labels, 20, seed=1)
    counts = Counter(labels[row] for row in chosen)
    assert counts[2] == 3
    assert {counts[0], counts[1]} == {8, 9}
    assert chosen == stratified_indices(labels, 20, seed=1) != stratified_indices(labels, 20, seed=2)
    assert stratified_indices(labels, 1000, seed=1) == list(range(83))


def test_label_groups_find_the_coarser_column():
    splits = load_embedded("clinc150")
    groups = label_groups(splits["train"])
    names = splits["train"].features["label"].names
    assert dict(zip(names, groups, strict=True))["book_flight"] == "travel"
    assert label_groups(load_embedded("fashion_mnist")["train"]) is None


def test_a_column_that_splits_labels_is_no_grouping():
    features = Features({"label": ClassLabel(names=["a", "b", "c"]), "coarse": CLASSES})
    rows = Dataset.from_dict({"label": [0, 1, 2, 0], "coarse": [0, 1, 1, 1]}, features)
    assert label_groups(rows) is None


def test_a_local_folder_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "rows"
    folder.mkdir()
    Dataset.from_dict({"text": ["x", "y"], "label": ["a", "b"]}).to_parquet(folder / "train.parquet")
    assert load_splits(str(folder))["train"]["text"][:] == ["x", "y"]


def test_an_unknown_data_set_is_one_clear_sentence():
    with pytest.raises(
        CommandError, match=r"^Data set 'nobody/nothing' is neither embedded \(clinc150, fashion_mnist\)"
    ) as e:
        load_splits("nobody/nothing")
    assert "\n" not in str(e.value)


def test_a_data_set_without_a_training_split_is_one_clear_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "rows").mkdir()
    Dataset.from_dict({"text": ["x"]}).to_parquet(tmp_path / "rows" / "test.parquet")
    with pytest.raises(CommandError, match="no split called 'train', only test"):
        load_splits(str(tmp_path / "rows"))
