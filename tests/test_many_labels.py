"""Many labels: what is done around the table grows with their number, not with its square, and says no less."""

from __future__ import annotations

import json
import pickle
import random
import re
import sys

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from toy import separable_text
from transformers import PreTrainedConfig, default_data_collator

import hf_lwal.modeling.configuration_lwal as configuration
from hf_lwal import AutoModelForLwALClassification, LabelTable, LwALConfig, LwALTrainer, LwALTrainingArguments
from hf_lwal.cli import hierarchy as hierarchy_command
from hf_lwal.cli import main as cli
from hf_lwal.data.labels import CheckedCollator
from hf_lwal.hierarchy import label_distances, neighbourhood, tree
from hf_lwal.model_card import gathering, rendering
from hf_lwal.modeling import fold_check, label_table, label_table_file
from hf_lwal.modeling.configuration_lwal import match_label_names, parse_label_names
from hf_lwal.modeling.export import fold_with_report
from hf_lwal.modeling.loading import check_label_table
from hf_lwal.training import trainer

MANY = 8000
"""More than any limit below which all pairs are looked at."""
TEXTS = ["key1 word2", "word3 key2 key2"]


def named(number):
    return {index: f"label {index}" for index in range(number)}


def build(tiny_config, number):
    names = named(number)
    config = tiny_config("bert", id2label=names, label2id={name: index for index, name in names.items()})
    torch.manual_seed(0)
    model = AutoModelForLwALClassification.from_config(config).eval()
    with torch.no_grad():
        model.label_table.class_features.normal_()
        model.label_table.counts.fill_(3)
        model.label_table.materialize(model.head)
    return model


@pytest.fixture(scope="module")
def many(tiny_config, tmp_path_factory):
    """A saved model with many labels, made once."""
    folder = tmp_path_factory.mktemp("many")
    build(tiny_config, MANY).save_pretrained(folder)
    return folder


class Largest(TorchDispatchMode):
    """The most numbers that a tensor held which an operation returned."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(found) if isinstance(leaf, torch.Tensor)]
        self.numbers = max([self.numbers, *sizes])
        return found


def loaded_and_saved(folder, tokenizer, to):
    AutoModelForLwALClassification.from_pretrained(folder).save_pretrained(to)


def edited(folder, tokenizer, to):
    model = AutoModelForLwALClassification.from_pretrained(folder)
    model.predict(TEXTS, tokenizer, top_k=3)
    model.add_label("new", ["key7 word1"], tokenizer)
    model.rename_label("label 1", "one")
    model.remove_label("label 2")
    model.merge_labels(["label 3", "label 4", "one"], "merged")
    model.align(sorted(model.config.label_names.values()))


def folded(folder, tokenizer, to):
    assert AutoModelForLwALClassification.from_pretrained(folder).fold().config.num_labels == MANY


def described(folder, tokenizer, to):
    gathering.label_facts(AutoModelForLwALClassification.from_pretrained(folder))


@pytest.mark.parametrize("action", [loaded_and_saved, edited, folded, described])
def test_no_tensor_grows_with_the_square(many, tokenizer, tmp_path, monkeypatch, action):
    """At 100,000 labels a matrix of all pairs is 40 GB: the process ends without a word."""
    monkeypatch.setattr(fold_check, "MOST_FITTED", 10_000)  # as exact as it needs to be here
    with Largest() as largest:
        action(many, tokenizer, tmp_path)
    assert MANY * 32 <= largest.numbers <= 16 * MANY * 32 < MANY**2


def test_a_table_of_many_labels_lists_all_of_them_without_neighbours(many, caplog):
    text = (many / "label_table.json").read_text(encoding="utf-8")
    table = json.loads(text)
    assert [(entry["id"], entry["name"], entry["count"]) for entry in table["labels"]] == [
        (index, f"label {index}", 3) for index in range(MANY)
    ]
    assert {len(entry["nearest"]) for entry in table["labels"]} == {0}
    assert len(text.splitlines()) == MANY + 2, "one label per line"
    assert list(table) == ["schema_version", "checksums", "embedding_dim", "labels"]
    AutoModelForLwALClassification.from_pretrained(many)
    assert "does not describe" not in caplog.text


@pytest.mark.parametrize("number", [7, 8, 9])
def test_neighbours_end_where_the_limit_is(tmp_path, monkeypatch, number):
    """Names with quotes, breaks and brackets at their end must come back from either form of the file."""
    monkeypatch.setattr(label_table_file, "MOST_WITH_NEIGHBOURS", 8)
    names = {index: f'"{index}"\n]}}' for index in range(number)}
    label_table_file.write_label_table_file(
        tmp_path, torch.randn(number, 4), torch.arange(number), names, torch.rand(number)
    )
    labels = json.loads((tmp_path / "label_table.json").read_text(encoding="utf-8"))["labels"]
    assert [entry["name"] for entry in labels] == list(names.values())
    assert {len(entry["nearest"]) for entry in labels} == {5 if number <= 8 else 0}
    assert all(entry["radius"] > 0 for entry in labels)


# -- names -------------------------------------------------------------------------------------------------------


class Counting(dict):
    """Id to name that counts how often it is gone through."""

    passes = 0

    def items(self):
        self.passes += 1
        return super().items()


def test_a_collator_goes_through_the_names_once():
    """Every row made a dictionary of all names anew: 0.01 s each with 100,000 labels."""
    names = Counting(named(50))
    collate = CheckedCollator(default_data_collator, names)
    rows = [{"input_ids": [1, 2], "labels": f"label {index}"} for index in range(40)]
    for _ in range(3):
        assert collate(rows)["labels"].tolist() == list(range(40))
    assert names.passes == 1
    collate.names = {0: "label 1", 1: "label 0"}
    assert collate(rows[:2])["labels"].tolist() == [1, 0], "names that are set later count"
    assert pickle.loads(pickle.dumps(collate))(rows[:2])["labels"].tolist() == [1, 0]
    with pytest.raises(ValueError, match="Label 'label 2' in row 0 of a batch is not in the model's label2id"):
        collate(rows[2:3])


def calls_of(monkeypatch, action):
    """How often an action brings names to one form."""
    found, whole = [], configuration.match_label_names
    with monkeypatch.context() as patch:
        for user in (configuration, trainer):
            patch.setattr(user, "match_label_names", lambda *args: found.append(1) or whole(*args))
        action()
    return len(found)


def test_predictions_look_names_up_once(tiny_config, tokenizer, monkeypatch):
    model = build(tiny_config, 10)
    few = calls_of(monkeypatch, lambda: model.predict(TEXTS, tokenizer, batch_size=2))
    assert few <= 2
    assert calls_of(monkeypatch, lambda: model.predict(TEXTS * 8, tokenizer, batch_size=2)) == few
    assert calls_of(monkeypatch, lambda: model.encode(TEXTS * 8, tokenizer, batch_size=2)) <= 1


def test_steps_do_not_look_at_names(tiny_config, tmp_path, monkeypatch):
    """A training of more steps must not go through all names more often."""

    def trained(steps):
        args = LwALTrainingArguments(str(tmp_path), max_steps=steps, report_to=[], save_strategy="no", use_cpu=True)
        rows = separable_text(10, 40)
        return lambda: LwALTrainer(build(tiny_config, 10), args, train_dataset=rows).train()

    assert calls_of(monkeypatch, trained(2)) == calls_of(monkeypatch, trained(7))


def test_damage_is_reported_without_going_through_all_names_for_every_row(tiny_config, monkeypatch):
    model = build(tiny_config, 30)
    model.label_table.label_vectors.fill_(torch.nan)

    def refused():
        with pytest.raises(ValueError, match=r"label_vectors of 'label 0', .* more is not finite"):
            check_label_table(model, "it")

    assert calls_of(monkeypatch, refused) == 1


def test_aligning_searches_no_list(tiny_config):
    """A list was searched for every name: hours with 100,000 labels."""
    model, searches = build(tiny_config, 60), []
    wanted = list(model.config.label_names.values())
    random.Random(0).shuffle(wanted)
    before = {name: model.label_table.label_vectors[index].clone() for index, name in model.config.label_names.items()}
    index = [].index.__name__
    profiled = sys.getprofile()
    sys.setprofile(lambda frame, event, called: searches.append(1) if getattr(called, "__name__", "") == index else 0)
    try:
        model.align(wanted)
    finally:
        sys.setprofile(profiled)
    assert list(model.config.label_names.values()) == wanted
    for place, name in enumerate(wanted):
        assert torch.equal(model.label_table.label_vectors[place], before[name])
    assert len(searches) < 10


@pytest.mark.parametrize(
    "given",
    [
        {0: "a", 1: "b", 2: "c"},
        {"0": "a", "1": "b", "2": "c"},
        {2: "c", 0: "a", 1: "b"},
        ["a", "b", "c"],
        {0: "a", True: "b", 2: "c"},
        {np.int64(0): "a", np.int64(1): np.str_("b"), np.int64(2): "c"},
    ],
)
def test_names_of_any_form_are_the_same_names(given):
    """Names that have the right form already are taken as they are, without the caller's dictionary."""
    names, ids = match_label_names(given, None)
    assert (names, ids) == ({0: "a", 1: "b", 2: "c"}, {"a": 0, "b": 1, "c": 2})
    assert {type(index) for index in (*names, *ids.values())} == {int}
    assert {type(name) for name in (*names.values(), *ids)} == {str}
    assert list(names) == [0, 1, 2]
    assert names is not given


def test_names_changed_in_place_are_noticed():
    """A cache would answer with the names of before."""
    config = LwALConfig(id2label=named(5))
    assert config.label_names[3] == "label 3"
    config.id2label[3] = "three"
    assert config.label_names[3] == "three"
    config.id2label[5] = "label 5"
    assert len(config.label_names) == 6
    config.label_names[0] = "nobody's"
    assert config.label_names[0] == "label 0"


MANY_NAMES = named(2000)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ((MANY_NAMES | {1999: "label 7"}, None), "repeats 'label 7'."),
        (({index + 1: name for index, name in MANY_NAMES.items()}, None), "and 2000 is none of those."),
        ((None, {name: index // 2 for index, name in MANY_NAMES.items()}), "0 is that of 'label 0', 'label 1'."),
        ((MANY_NAMES, {name: i for i, name in (MANY_NAMES | {1500: "x"}).items()}), "'label 1500' with id 1500"),
        ((MANY_NAMES, {name: i for i, name in named(1999).items()}), "of 1999, None with that id"),
    ],
)
def test_a_message_about_many_names_names_the_wrong_one(asked, said):
    """All 2,000 were listed, twice, and which of them was wrong was left to the reader."""
    with pytest.raises(ValueError, match=re.escape(said)) as raised:
        parse_label_names(*asked)
    assert len(str(raised.value)) < 400


@pytest.mark.parametrize(("ids", "said"), [([0, 1, 1], "1 is there twice"), ([0, 7], "7 is none of them")])
def test_ids_that_cannot_be_taken_are_named(ids, said):
    with pytest.raises(ValueError, match=said):
        LabelTable(5, 4, 4).take_labels(ids)


# -- distances ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
@pytest.mark.parametrize("block", [1, 100, 10**6])
def test_neighbours_of_some_labels_are_those_among_all(monkeypatch, metric, block):
    monkeypatch.setattr(tree, "BLOCK", block)
    vectors = np.random.default_rng(0).normal(size=(30, 4)) + 50.0
    whole, some = neighbourhood(vectors, 4, metric), neighbourhood(vectors, 4, metric, of=[29, 3, 11])
    assert some.nearest.tolist() == whole.nearest[[29, 3, 11]].tolist()
    np.testing.assert_allclose(some.distances, whole.distances[[29, 3, 11]], atol=1e-6)
    rows = label_distances(vectors, metric)[[29, 3, 11]]
    assert some.mean == pytest.approx(rows.sum() / (3 * 29), rel=1e-6)
    assert neighbourhood(vectors, 99, metric, of=[5]).nearest.shape == (1, 29)


def test_a_card_of_many_labels_compares_its_excerpt_with_all(tiny_config, monkeypatch):
    """What it shows must be what a comparison of all pairs says, and it must say what it compared."""
    model = build(tiny_config, 40)
    whole = gathering.label_facts(model)
    monkeypatch.setattr(gathering, "MOST_COMPARED", 39)
    excerpt = gathering.label_facts(model)
    assert [(name, count, [other for other, _ in near]) for name, count, near in excerpt.rows] == [
        (name, count, [other for other, _ in near]) for name, count, near in whole.rows
    ]
    assert whole.closest
    assert excerpt.closest == []
    assert excerpt.mean_distance == pytest.approx(whole.mean_distance, rel=0.2)
    facts = gathering.facts_of_model(model, "a name")
    text = rendering.render(facts)
    assert "on average (those listed here, each compared with all others)" in text
    assert "Closest together" not in text


def test_all_distances_of_too_many_labels_are_refused(monkeypatch):
    """They were asked of the system as 80 GB, which ends the process."""
    monkeypatch.setattr(tree, "MOST_PAIRWISE", 10)
    monkeypatch.setattr(label_table, "MOST_PAIRWISE", 10)
    table = LabelTable(10, 12, 12)
    assert table.distances().shape == label_distances(table.label_vectors).shape == (10, 10)
    table = LabelTable(11, 12, 12)
    for refused in (table.distances, lambda: label_distances(table.label_vectors)):
        with pytest.raises(ValueError, match=r"of 11 labels would take .* up to 10: .*neighbourhood"):
            refused()


def test_a_reference_for_too_many_labels_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(hierarchy_command, "MOST_COMPARED", 3)
    table = tmp_path / "table.csv"
    table.write_text("label,group,x,y\n" + "".join(f"l{i},g{i % 2},{i},{i * i}\n" for i in range(4)))
    words = ["hierarchy", str(table), "--output", str(tmp_path / "out"), "--reference", "groups"]
    assert cli.main(words) != 0
    assert "--reference compares all pairs of labels, of up to 3, but there are 4" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


# -- folding -----------------------------------------------------------------------------------------------------


def test_folding_compares_fewer_rows_of_many_labels(many):
    model = AutoModelForLwALClassification.from_pretrained(many)
    _, report = fold_with_report(model)
    assert report.random_rows == 1_000_000 // MANY
    assert report.differing == 0
    assert report.max_difference < 1.0


def test_a_fold_in_parts_is_the_same_fold(tiny_config, monkeypatch):
    """Rows looked at in parts, and a temperature of every second row, must not change what is reported."""
    model = build(tiny_config, 12)
    stock, whole = fold_with_report(model)
    monkeypatch.setattr(fold_check, "AT_A_TIME", 7)
    assert fold_with_report(model)[1] == whole
    monkeypatch.setattr(fold_check, "MOST_FITTED", 3000)
    thinned, fitted = fold_with_report(model)
    assert fitted.temperature != whole.temperature
    assert fitted.temperature == pytest.approx(whole.temperature, rel=0.2)
    assert isinstance(thinned.config, PreTrainedConfig)
    assert thinned.config.id2label == stock.config.id2label
