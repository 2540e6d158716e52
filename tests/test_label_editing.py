"""Labels added, removed, renamed, merged and aligned: names, table, files and predictions stay one thing."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from datasets import ClassLabel
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from test_modeling import LABELS, build, inputs_for, trained
from torch import nn
from toy import separable_text
from transformers import TrainerCallback, pipeline, set_seed

from hf_lwal import AutoModelForLwALClassification, LabelTable, LwALTrainer, LwALTrainingArguments
from hf_lwal.settings.applying import apply_config, apply_settings

NAMES = ["zero", "one", "two", "three", "four"]
EXAMPLES = ["key7 word1", "word2 key7 key7", "key7"]
TEXTS = ["key1 word2", "word3 key2 key2", "key7 word5"]


def named(model):
    model.config.id2label = dict(enumerate(NAMES))
    model.config.label2id = {name: index for index, name in enumerate(NAMES)}
    return model


@pytest.fixture(scope="module")
def models(tiny_config):
    """``models(kind)``: a trained model of its own, in one of three ways of keeping class means."""

    def make(kind):
        model = build(tiny_config, "bert", embedding_dim=LABELS if kind == "paper" else None)
        if kind == "embeddings":
            apply_config(model, {"space": "embeddings"})
        if kind == "paper":
            apply_settings(model, LwALTrainingArguments("out", lwal_preset="paper").resolve_lwal())
        return named(trained(model))

    made = {kind: make(kind) for kind in ("features", "embeddings", "paper")}
    return lambda kind="features": copy.deepcopy(made[kind])


EDITS = {
    "add": (lambda m, t: m.add_label("new", EXAMPLES, t), [*NAMES, "new"]),
    "remove": (lambda m, _: m.remove_label("one"), ["zero", "two", "three", "four"]),
    "rename": (lambda m, _: m.rename_label("one", "eins"), ["zero", "eins", "two", "three", "four"]),
    "merge": (lambda m, _: m.merge_labels(["three", "one"], "odd"), ["zero", "odd", "two", "four"]),
    "align": (lambda m, _: m.align(ClassLabel(names=sorted(NAMES))), sorted(NAMES)),
}


@pytest.mark.parametrize("kind", ["features", "embeddings", "paper"])
@pytest.mark.parametrize("edit", EDITS)
def test_everything_agrees_after_an_edit(models, tokenizer, tmp_path, kind, edit):
    """A table that grew while config.json did not (or the reverse) loads as garbage or not at all."""
    model = models(kind)
    dim = model.config.embedding_dim
    change, names = EDITS[edit]
    change(model, tokenizer)
    assert list(model.config.id2label.items()) == list(enumerate(names))
    assert model.config.label2id == {name: index for index, name in enumerate(names)}
    assert model.config.num_labels == model.label_table.num_labels == len(names)
    assert model.config.embedding_dim == model.label_table.embedding_dim == dim
    predictions = model.predict(TEXTS, tokenizer, top_k=len(names))
    assert {entry["label"] for entry in predictions[0]} == set(names)
    model.save_pretrained(tmp_path)
    again = AutoModelForLwALClassification.from_pretrained(tmp_path)
    assert again.config.id2label == model.config.id2label
    stored = model.state_dict()
    assert all(torch.equal(value, stored[key]) for key, value in again.state_dict().items())
    described = json.loads((tmp_path / "label_table.json").read_text())["labels"]
    assert [(entry["name"], entry["count"]) for entry in described] == [
        *zip(names, model.label_table.counts.tolist(), strict=True)
    ]
    served = pipeline("text-classification", model=again, tokenizer=tokenizer, device="cpu")(TEXTS, top_k=None)
    for ours, theirs in zip(predictions, served, strict=True):
        assert [entry["label"] for entry in ours] == [entry["label"] for entry in theirs]
        assert [e["score"] for e in ours] == pytest.approx([e["score"] for e in theirs], abs=1e-5)


@pytest.mark.parametrize("kind", ["features", "embeddings", "paper"])
def test_a_new_labels_vector_is_the_head_of_the_mean_of_its_examples(models, tokenizer, kind):
    """Rows that the new label was made of must win it, and nothing may change for the others."""
    model = models(kind)
    before = model.label_table.label_vectors.clone()
    assert model.add_label("new", EXAMPLES, tokenizer) == LABELS
    table = model.label_table
    with torch.no_grad():
        rows = [model(**tokenizer([text], return_tensors="pt")) for text in EXAMPLES]
        means = torch.cat([row.features if kind == "features" else row.embeddings for row in rows]).mean(dim=0)
        expected = model.head_module(means) if kind == "features" else means
    assert torch.allclose(table.label_vectors[-1], expected, atol=1e-5)
    assert torch.equal(table.label_vectors[:-1], before)
    assert int(table.counts[-1]) == len(EXAMPLES)
    assert not table.offset_bias[-1].any()
    assert model.predict(EXAMPLES, tokenizer)[0][0]["label"] == "new"


def test_features_and_an_offset_of_ones_own(models):
    """Who has features at hand should not need the raw inputs again; a given offset moves the vector by just that."""
    model = models()
    with torch.no_grad():
        features = model(**inputs_for(model, 7)).features
    offset = torch.arange(model.config.embedding_dim, dtype=torch.float32)
    model.add_label("new", features=features, offset=offset)
    with torch.no_grad():
        expected = model.head_module(features.mean(dim=0, keepdim=True))[0] + offset
    assert torch.equal(model.label_table.label_vectors[-1], expected)
    assert torch.allclose(model.current_label_vectors()[-1], expected, atol=1e-5)


def test_merged_labels_are_weighted_by_their_rows(models):
    """An unweighted mean of a class of 100 rows and one of 2 lies where no row of the merged class is."""
    model = models()
    table = model.label_table
    with torch.no_grad():
        table.counts[1], table.counts[3] = 30, 10
        model.materialize()
    old = {name: value.clone() for name, value in table.state_dict().items()}
    assert model.merge_labels(["one", "three"], "odd") == 1
    for name in ("class_features", "offset_bias", "label_vectors"):
        expected = (30 * old[name][1].double() + 10 * old[name][3].double()) / 40
        assert torch.allclose(getattr(table, name)[1].double(), expected, atol=1e-6), name
    assert table.counts.tolist() == [*old["counts"][:1].tolist(), 40, *old["counts"][[2, 4]].tolist()]
    assert torch.allclose(model.current_label_vectors(), table.label_vectors, atol=1e-5)


def rows_of(seed, rows):
    return torch.randn(rows, 3, generator=torch.Generator().manual_seed(seed))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_sequence_of_edits_equals_a_dictionary_of_rows(data):
    """The oracle keeps every class's rows in a list, in which adding, removing, merging and sorting are trivial."""
    set_seed(0)
    head = nn.Linear(3, 4)
    classes = [rows_of(index, index + 1) for index in range(4)]
    table = LabelTable(4, 4, 3)
    table.start(torch.cat(classes), torch.repeat_interleave(torch.arange(4), torch.arange(1, 5)), head)
    for step in range(data.draw(st.integers(1, 6))):
        kinds = ["add", "permute", *(["remove", "merge"] if len(classes) > 2 else [])]
        kind = data.draw(st.sampled_from(kinds))
        ids = data.draw(st.permutations(range(len(classes))))
        if kind == "add":
            classes.append(rows_of(100 + step, data.draw(st.integers(1, 5))))
            assert table.add_label(classes[-1], head) == len(classes) - 1
        elif kind == "permute":
            classes = [classes[index] for index in ids]
            table.take_labels(ids)
        elif kind == "remove":
            classes.pop(ids[0])
            table.take_labels([index for index in range(len(classes) + 1) if index != ids[0]])
        else:
            chosen = ids[: data.draw(st.integers(2, len(classes) - 1))]
            merged = torch.cat([classes[index] for index in chosen])
            assert table.merge_labels(chosen) == min(chosen)
            kept = [rows for index, rows in enumerate(classes) if index not in chosen]
            classes = [*kept[: min(chosen)], merged, *kept[min(chosen) :]]
    means = torch.stack([rows.double().mean(dim=0) for rows in classes])
    assert table.counts.tolist() == [len(rows) for rows in classes]
    assert torch.allclose(table.class_features.double(), means, atol=1e-5)
    assert torch.allclose(table.label_vectors.double(), copy.deepcopy(head).double()(means), atol=1e-5)
    assert isinstance(table.offset_bias, nn.Parameter)
    assert table.pending_sums.shape == (len(classes), 4)


def test_edits_survive_until_the_next_training_step(models, tokenizer, tmp_path):
    """A table derived anew at every eval() or save would undo an edit made by hand; training must go on from it."""
    model = models()
    with torch.no_grad():
        model.label_table.label_vectors[2] = 3.0
    model.add_label("new", EXAMPLES, tokenizer)
    edited = model.label_table.label_vectors.clone()
    model.train()
    model.eval()
    model.save_pretrained(tmp_path)
    assert torch.equal(load_file(tmp_path / "model.safetensors")["classifier.label_vectors"], edited)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model.train()
    for _ in range(2):
        model(**inputs_for(model, 12), labels=torch.arange(12) % 6).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    assert model.label_table.offset_bias[-1].any()
    assert not torch.equal(model.label_table.label_vectors[-1], edited[-1])
    assert int(model.label_table.counts[-1]) == len(EXAMPLES) + 2 * 2
    assert torch.equal(model.label_table.label_vectors, model.current_label_vectors())


def test_an_edit_in_the_middle_of_a_plain_loop(models, tokenizer, caplog):
    """The label vectors of the moment, not those of the last eval(), must be what is edited; and the user is told."""
    model = models().train()
    model(**inputs_for(model, 8), labels=torch.arange(8) % LABELS).loss.backward()
    with torch.no_grad():
        model.label_table.offset_bias += 1.0
    model.tracker.end_step(model._tracked)  # an edit ends the step that is under way, as evaluation does
    expected = model.current_label_vectors()[[0, 1, 3, 4]].detach()
    model.remove_label("two")
    assert torch.equal(model.label_table.label_vectors, expected)
    assert "Make a new one before training goes on" in caplog.text
    model(**inputs_for(model, 8), labels=torch.arange(8) % 4).loss.backward()
    assert model.label_table.offset_bias.grad.shape == (4, model.config.embedding_dim)


def quiet(folder, **options):
    defaults = {"max_steps": 3, "report_to": "none", "disable_tqdm": True, "save_strategy": "no", "use_cpu": True}
    return LwALTrainingArguments(str(folder), learning_rate=1e-2, **{**defaults, **options})


@pytest.mark.parametrize("preset", ["default", "paper"])
def test_training_goes_on_after_an_edit(models, tokenizer, tmp_path, preset):
    """A trainer keeps its optimizer between trainings: it would train a table that is no more, without a word."""
    model = models("paper" if preset == "paper" else "features")
    args = quiet(tmp_path, lwal_preset=preset)
    trainer = LwALTrainer(model, args, train_dataset=separable_text(LABELS, 32))
    trainer.train()
    model.add_label("new", EXAMPLES, tokenizer)
    before = {name: value.clone() for name, value in model.label_table.state_dict().items()}
    trainer.train_dataset = separable_text(LABELS + 1, 48)
    trainer.train()
    after = model.label_table.state_dict()
    assert after["label_vectors"].shape == (LABELS + 1, model.config.embedding_dim)
    assert not torch.equal(after["label_vectors"][-1], before["label_vectors"][-1])
    held = {id(parameter) for group in trainer.optimizer.param_groups for parameter in group["params"]}
    assert {id(parameter) for parameter in model.parameters()} == held
    again = LwALTrainer(model, args, train_dataset=separable_text(LABELS + 1, 48))  # "1x" means the 5 it started with
    assert again.model.config.embedding_dim == model.config.embedding_dim


class Edits(TrainerCallback):
    def on_step_end(self, args, state, control, model=None, **kwargs):
        model.remove_label("one")


def test_refused_while_a_trainer_trains(models, tmp_path):
    """The optimizer at work holds the table's parameters, and the batch at hand the old ids."""
    model = models()
    trainer = LwALTrainer(model, quiet(tmp_path), train_dataset=separable_text(LABELS, 32), callbacks=[Edits()])
    with pytest.raises(ValueError, match=r"A training is in progress.*before or after it"):
        trainer.train()
    assert model.label_table.num_labels == LABELS
    model.remove_label("one")  # it is over
    assert model.label_table.num_labels == LABELS - 1


def test_refused_inside_an_adapter(models, tokenizer):
    """The adapter's file would not fit the base model's table when it is loaded."""
    peft = pytest.importorskip("peft")
    model = models()
    config = peft.LoraConfig(target_modules=["query"], modules_to_save=model.peft_modules_to_save())
    wrapped = peft.get_peft_model(model, config)
    with pytest.raises(ValueError, match=r"An adapter holds a copy.*merge_and_unload"):
        wrapped.add_label("new", EXAMPLES, tokenizer)
    merged = wrapped.merge_and_unload()
    merged.add_label("new", EXAMPLES, tokenizer)
    assert merged.predict(EXAMPLES, tokenizer)[0][0]["label"] == "new"


def test_mistakes(models, tokenizer, tiny_config):
    """Each ends in a sentence with the value, and leaves names and table as they were."""
    model = models()
    before = {name: value.clone() for name, value in model.label_table.state_dict().items()}
    for call, sentence in (
        (lambda: model.add_label("one", EXAMPLES, tokenizer), r"already a label 'one'"),
        (lambda: model.add_label(" ", EXAMPLES, tokenizer), r"must be a text that is not empty, but it is ' '"),
        (lambda: model.add_label("new"), r"needs either examples"),
        (lambda: model.add_label("new", [], tokenizer), r"inputs must be a list of at least one text"),
        (lambda: model.add_label("new", features=torch.ones(2, 3)), r"shape \(n, 32\).*but have \(2, 3\)"),
        (lambda: model.add_label("new", features=torch.full((2, 32), torch.nan)), r"must be finite"),
        (lambda: model.add_label("n", features=torch.ones(2, 32), offset=torch.ones(3)), r"offset must have shape"),
        (lambda: model.remove_label("six"), r"no label 'six'; the model has 'four', 'one'"),
        (lambda: model.rename_label("one", "two"), r"already a label 'two'"),
        (lambda: model.merge_labels(["one"], "x"), r"at least two different labels"),
        (lambda: model.merge_labels(["one", "two"], "four"), r"already a label 'four'"),
        (lambda: model.merge_labels(NAMES, "all"), r"would leave one"),
        (lambda: model.align({"zero": 0, "uno": 1}), r"only the model has 'four', 'one', .*only the data has 'uno'"),
        (lambda: model.align("one"), r"label2id, a list of names or a ClassLabel"),
        (lambda: model.label_table.take_labels([0, 0]), r"different numbers in 0…4"),
    ):
        with pytest.raises(ValueError, match=sentence):
            call()
    assert all(torch.equal(value, before[name]) for name, value in model.label_table.state_dict().items())
    assert list(model.config.id2label.values()) == NAMES
    model.merge_labels(["zero", "one", "two", "three"], "four or less")
    with pytest.raises(ValueError, match=r"at least two labels, but 1 would be left"):
        model.remove_label("four")
    with pytest.raises(ValueError, match=r"no class means yet"):
        build(tiny_config, "bert").add_label("new", EXAMPLES, tokenizer)


def test_a_kept_head_is_refused(tiny_config, tokenizer, tmp_path):
    """Beside label vectors 100 units away from every row, a class mean would win every row."""
    stock = build(tiny_config, "bert", embedding_dim=LABELS).encoder
    stock.save_pretrained(tmp_path)
    model = AutoModelForLwALClassification.from_pretrained(tmp_path, num_labels=LABELS, keep_head=True)
    model.initialize_labels([{**inputs_for(model, 10), "labels": torch.arange(10) % LABELS}], progress=False)
    with pytest.raises(ValueError, match=r"kept its classifier's head"):
        model.add_label("new", EXAMPLES, tokenizer)


def test_alignment_follows_a_data_sets_order(models, tokenizer):
    """Ids of another data set with the same names: predictions keep their names and change their ids."""
    model = models()
    before = model.predict(TEXTS, tokenizer, top_k=LABELS)
    old = model.label_table.class_features.clone()
    model.align({"four": 0, "three": "1", "two": 2, "one": 3, "zero": 4})
    assert torch.equal(model.label_table.class_features, old.flip(0))
    after = model.predict(TEXTS, tokenizer, top_k=LABELS)
    assert [[e["label"] for e in row] for row in after] == [[e["label"] for e in row] for row in before]
