"""Names of labels as start samples: what counts, what does not, and a start without any sample."""

import json
import logging

import pytest
import torch
from tiny_models import tiny_config
from toy import separable_images, separable_text, word_tokenizer
from trajectory import arguments
from transformers import AutoModelForSequenceClassification, TrainerCallback

from hf_lwal import AutoModelForLwALClassification, LwALTrainer, LwALTrainingArguments
from hf_lwal.functional import class_sums
from hf_lwal.modeling.head_start import held_out_distances
from hf_lwal.modeling.name_start import (
    agreement,
    check_descriptions,
    check_label_names,
    in_words,
    is_generic,
    name_texts,
    with_names,
)
from hf_lwal.modeling.probe_start import fit_start
from hf_lwal.modeling.start import StartSamples
from hf_lwal.objectives.one_hot import nearest_mean_head

C, H = 12, 24


@pytest.fixture
def words():
    return word_tokenizer()


def model_of(num_labels=6, names=None, kind="bert", **options):
    torch.manual_seed(0)
    names = [f"key{index}" for index in range(num_labels)] if names is None else names
    labels = {"id2label": dict(enumerate(names)), "label2id": {name: index for index, name in enumerate(names)}}
    return AutoModelForLwALClassification.from_config(tiny_config(kind, **labels), **options)


def clusters(rows, noise=0.1, seed=0):
    """Rows of C classes far apart, and names near their classes."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.eye(C, H)
    labels = torch.arange(C).repeat(rows)
    values = centres[labels] + noise * torch.randn(len(labels), H, generator=generator)
    names = centres + 0.3 + noise * torch.randn(C, H, generator=generator)
    return StartSamples(values, labels, 0.0), StartSamples(names, torch.arange(C), 0.0)


LABELS = {index: f"name {chr(97 + index)}" for index in range(C)}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("card_arrival", "card arrival"),
        ("cardArrival", "card arrival"),
        ("CARD_ARRIVAL", "card arrival"),
        ("HTTPError", "HTTP error"),
        ("comp.sys.mac", "comp sys mac"),
        ("Sci/Tech", "Sci Tech"),
        ("iPhone", "iPhone"),
        ("McDonald", "McDonald"),
        ("version 2.0", "version 2.0"),
        ("größe_ändern", "größe ändern"),
        ("取消", "取消"),
        ("  two   spaces ", "two spaces"),
    ],
)
def test_names_are_read_as_words(name, text):
    assert in_words(name) == text


def test_numbers_and_placeholders_tell_nothing():
    assert all(map(is_generic, ["LABEL_0", "label-12", "7", "-1", "Class 3", "category_4", "c5", "", "__"]))
    assert not any(map(is_generic, ["refund", "5 stars", "1 star", "classic", "label maker", "取消", "ab3"]))
    assert name_texts({"7": "seven"}, {0: "7", 1: "8", 2: "nine_lives"}) == {0: "seven", 2: "nine lives"}


def test_only_names_that_predict_the_samples_count(caplog):
    """Names that say nothing of the classes must not move the class means; shuffled ones are right by accident."""
    for rows in (1, 3, 15):
        samples, named = clusters(rows)
        found = with_names(samples, named, "auto", LABELS)
        assert (found.names, len(found.labels)) == (C, C * (rows + 1))
        order = torch.randperm(C, generator=torch.Generator().manual_seed(rows))
        shuffled = StartSamples(named.values[order], named.labels, 0.0)
        noise = StartSamples(torch.randn(C, H, generator=torch.Generator().manual_seed(rows)), named.labels, 0.0)
        with caplog.at_level(logging.INFO, logger="hf_lwal"):
            for wrong in (shuffled, noise):
                caplog.clear()
                assert with_names(samples, wrong, "auto", LABELS) is samples
                assert ["no better than chance" in record.message for record in caplog.records] == [True]


def test_accidents_are_not_believed():
    """Rows of a class lie together: a random name that is nearest to one is so to all 15 of them."""
    believed = 0
    for seed in range(200):
        samples, _ = clusters(15, seed=seed)
        names = torch.randn(C, H, generator=torch.Generator().manual_seed(1000 + seed))
        believed += agreement(samples.values, samples.labels, StartSamples(names, torch.arange(C), 0.0))[2]
    assert believed <= 4


@pytest.mark.parametrize("classes", [2, 3, 4])
def test_few_classes_can_be_believed(classes):
    samples, named = clusters(12)
    rows = samples.labels < classes
    few = StartSamples(named.values[:classes], named.labels[:classes], 0.0)
    turned = StartSamples(few.values.roll(1, 0), few.labels, 0.0)
    assert agreement(samples.values[rows], samples.labels[rows], few)[2]
    assert not agreement(samples.values[rows], samples.labels[rows], turned)[2]


def test_classes_with_enough_samples_keep_their_means():
    samples, named = clusters(16)
    rows = (samples.labels != 3) | (torch.arange(len(samples.labels)) < 2 * C)
    rows &= samples.labels != 5  # no sample at all
    samples = StartSamples(samples.values[rows], samples.labels[rows], 0.0)
    found = with_names(samples, named, "auto", LABELS)
    assert found.labels[-found.names :].tolist() == [3, 5]
    assert torch.equal(found.values[-1], named.values[5])
    full = clusters(16)[0]
    assert with_names(full, named, "auto", LABELS) is full


def test_names_stand_for_no_new_row():
    """A name as a row held out would make the scale that of names, which lie elsewhere than samples do."""
    samples, named = clusters(3)
    found = with_names(samples, named, "auto", LABELS)
    held_out = held_out_distances(*found[:2], C, H, names=found.names)
    assert held_out[-C:].isinf().all()
    assert held_out[:-C].isfinite().all()
    fitted = fit_start(*found[:2], C, H, names=found.names)
    assert fitted is None or fitted.held_out[-C:].isinf().all()
    samples, _ = clusters(15)
    wrong = samples.values[:C].roll(1, 0)  # next to another class
    values, labels = torch.cat([samples.values, wrong]), torch.cat([samples.labels, torch.arange(C)])
    for whiten in (False, True):
        scale = nearest_mean_head(values, labels, C, whiten, names=C)[2]
        as_rows = nearest_mean_head(values, labels, C, whiten)[2]
        assert scale > 2.0 * as_rows, "names that count as rows to predict make the logits flat"


@pytest.mark.parametrize("head", ["auto", "whitened", "class_means", "random"])
def test_a_training_counts_a_name_as_one_sample(tmp_path, words, head):
    model = model_of()
    data = separable_text(6, 18)
    setting = {f"key{index}": f"key{index} key{index}" for index in range(6)}
    expected = class_sums(*start_rows(model, data, words, list(setting.values())), 6)
    options = {"lwal_initial_head": head, "lwal_label_names": json.dumps(setting), "learning_rate": 0.0}
    trainer = LwALTrainer(
        model, arguments(tmp_path, max_steps=1, **options), train_dataset=data, processing_class=words
    )
    trainer.add_callback(keeper := Keeper())
    trainer.train()
    means = expected[0] / expected[1].unsqueeze(1)
    assert torch.equal(expected[1], torch.full((6,), 4.0))
    torch.testing.assert_close(keeper.means, means.float(), rtol=1e-4, atol=1e-5)
    assert any(entry.get("start_label_names") == 6 for entry in trainer.state.log_history)


class Keeper(TrainerCallback):
    """Keeps the class means that training starts from."""

    def on_step_begin(self, args, state, control, model=None, **kwargs):
        if state.global_step == 0:
            self.means = model.label_table.class_features.clone()
            self.counts = model.label_table.counts.clone()


def start_rows(model, data, tokenizer, texts):
    """What `model.start_values` makes of all rows and of texts, one after the other, and their labels."""
    names = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        model.eval()
        rows = model.start_values({name: torch.tensor(data[name][:]) for name in ("input_ids", "attention_mask")})
        found = torch.cat([rows, model.start_values(dict(names))])
        model.train()
    return found.double(), torch.cat([torch.tensor(data["labels"][:]), torch.arange(len(texts))])


def trained(tmp_path, model, data, tokenizer, **options):
    """The class means and counts that training starts from, and what was logged."""
    args = arguments(tmp_path, max_steps=1, learning_rate=0.0, **options)
    trainer = LwALTrainer(model, args, train_dataset=data, processing_class=tokenizer)
    trainer.add_callback(keeper := Keeper())
    trainer.train()
    return keeper, trainer


def test_nothing_changes_where_names_are_off_or_not_needed(tmp_path, words):
    """Long trainings and those without a tokenizer start as they did before names were read at all."""
    data, many = separable_text(6, 18), separable_text(6, 6 * 16)
    off, _ = trained(tmp_path / "a", model_of(), data, words, lwal_label_names="off")
    for name, model, tokenizer in (
        ("no tokenizer", model_of(), None),
        ("generic", model_of(names=[f"LABEL_{index}" for index in range(6)]), words),
        ("nothing the tokenizer knows", model_of(names=list("uvwxyz")), words),
    ):
        keeper, _ = trained(tmp_path / name, model, data, tokenizer)
        assert torch.equal(keeper.means, off.means), name
    starts = [
        trained(tmp_path / setting, model_of(), many, words, lwal_label_names=setting, lwal_start_budget=0.0)[0]
        for setting in ("auto", "off")
    ]
    assert torch.equal(starts[0].means, starts[1].means)


def test_a_class_without_rows_starts_from_its_name(tmp_path, words, caplog):
    """It would otherwise rank last until a row of it is seen, which in such data never happens."""
    data = separable_text(6, 240).filter(lambda row: row["labels"] != 4)
    setting = {"key4": "key4 key4"}
    with caplog.at_level(logging.INFO, logger="hf_lwal"):
        keeper, trainer = trained(tmp_path, model_of(), data, words, lwal_label_names=setting)
    assert keeper.counts[4] == 1
    assert "there is nothing else: key4" in caplog.text
    assert "rank last" not in caplog.text
    expected, _ = start_rows(trainer.model, data.select([0]), words, ["key4 key4"])
    torch.testing.assert_close(keeper.means[4], expected[1].float(), rtol=1e-4, atol=1e-5)


def test_the_control_gets_the_same_start(tmp_path, words):
    """One-hot training is no fair control where only label vectors start from names."""
    config = tiny_config("bert", id2label={index: f"key{index}" for index in range(6)})
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_config(config)
    options = {"label_method": "one_hot", "lwal_init": "class_means", "lwal_initial_head": "class_means"}
    data, setting = separable_text(6, 18), {f"key{index}": f"key{index} key{index}" for index in range(6)}
    args = arguments(tmp_path, max_steps=1, lwal_label_names=setting, **options)
    trainer = LwALTrainer(model, args, train_dataset=data, processing_class=words)
    trainer.train()
    assert any(entry.get("start_label_names") == 6 for entry in trainer.state.log_history)


def test_start_without_data(words, tmp_path):
    model = model_of(names=["key0", "key_1", "LABEL_2"])
    with pytest.raises(ValueError, match=r"'LABEL_2' tell nothing of their labels.*descriptions"):
        model.initialize_labels_from_names(words)
    model.initialize_labels_from_names(words, {"LABEL_2": "key2 key2", "key_1": "key1"})
    texts = ["key0", "key1", "key2 key2"]
    assert [best[0]["label"] for best in model.predict(texts, words)] == ["key0", "key_1", "LABEL_2"]
    model.save_pretrained(tmp_path)
    again = AutoModelForLwALClassification.from_pretrained(tmp_path)
    assert again.predict(texts, words) == model.predict(texts, words)


def test_initialize_labels_takes_names(words):
    data = separable_text(6, 240).filter(lambda row: row["labels"] != 2).with_format("torch")
    batches = [data[start : start + 50] for start in range(0, len(data), 50)]
    model = model_of()
    model.initialize_labels(batches, progress=False, processing_class=words, label_names={"key2": "key2"})
    assert model.label_table.counts.tolist() == [40, 40, 1, 40, 40, 40]
    model = model_of()
    model.initialize_labels(batches, progress=False)
    assert model.label_table.counts.tolist() == [40, 40, 0, 40, 40, 40]


def test_labels_are_added_by_name_alone(words, caplog):
    model = model_of(3)
    model.initialize_labels_from_names(words)
    with caplog.at_level(logging.INFO, logger="hf_lwal"):
        assert model.add_label("key_9", processing_class=words) == 3
    assert [record.levelname for record in caplog.records] == ["INFO"]
    model.add_label("seven", processing_class=words, description="key7 key7")
    assert [best[0]["label"] for best in model.predict(["key 9", "key7 key7"], words)] == ["key_9", "seven"]
    with pytest.raises(ValueError, match="'LABEL_5' tells nothing"):
        model.add_label("LABEL_5", processing_class=words)
    with pytest.raises(ValueError, match="beside or in place of examples"):
        model.add_label("eight", ["key8"], description="key8")
    with pytest.raises(ValueError, match="processing_class alone"):
        model.add_label("eight")
    with pytest.raises(ValueError, match="at least one text"):
        model.add_label("eight", [], words)
    assert model.config.num_labels == 5


def test_other_models_say_that_they_cannot_read(tmp_path, words):
    model = model_of(3, kind="vit")
    with pytest.raises(ValueError, match="image model, which cannot read the names"):
        model.initialize_labels_from_names(words)
    options = {"lwal_label_names": {"key1": "a cat"}}
    trainer = LwALTrainer(model, arguments(tmp_path, max_steps=1, **options), train_dataset=separable_images(3, 12))
    with pytest.raises(ValueError, match="image model, which cannot read them"):
        trainer.train()


@pytest.mark.parametrize(
    ("value", "meaning"),
    [(None, "auto"), ("off", "off"), (False, "off"), ("False", "off"), (' {"a": "b"}', {"a": "b"})],
)
def test_settings_from_settings_files(tmp_path, value, meaning):
    """YAML reads off as false, and command lines pass that on as a word."""
    assert LwALTrainingArguments(str(tmp_path), lwal_label_names=value).resolve_lwal().label_names == meaning


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("on", r"'on', but it must be auto, off or a mapping"),
        ("{key0: no json}", "no valid JSON"),
        ({}, "must be auto, off or a mapping"),
        (["key0"], "must be auto, off or a mapping"),
        (True, "must be auto, off or a mapping"),
        ({"key0": ""}, "describes 'key0' by ''"),
        ({"key0": 3}, "describes 'key0' by 3"),
    ],
)
def test_settings_that_make_no_sense(tmp_path, value, message):
    with pytest.raises(ValueError, match=message):
        LwALTrainingArguments(str(tmp_path), lwal_label_names=value).resolve_lwal()


def test_descriptions_of_unknown_labels_are_named(tmp_path, words):
    setting = check_label_names('{"key1": "one", "kye2": "two"}')
    with pytest.raises(ValueError, match="describes 'kye2', but the model has no such label"):
        check_descriptions(setting, {0: "key1", 1: "key2"}, "text")
    args = arguments(tmp_path, max_steps=1, lwal_label_names=setting)
    trainer = LwALTrainer(model_of(), args, train_dataset=separable_text(6, 12), processing_class=words)
    with pytest.raises(ValueError, match="'kye2'"):
        trainer.train()
    args = arguments(tmp_path, max_steps=1, lwal_label_names={"key1": "one"})
    with pytest.raises(ValueError, match="need a tokenizer"):
        LwALTrainer(model_of(), args, train_dataset=separable_text(6, 12)).train()
