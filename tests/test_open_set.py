"""Open-set rejection: radii of the classes, the score, what is kept with the model and when it is forgotten."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from scipy.stats import rankdata
from test_modeling import LABELS, build, inputs_for, trained
from toy import separable_text

from hf_lwal import AutoModelForLwALClassification
from hf_lwal.modeling.open_set import class_quantiles, class_radii, rejection_scores

CASES = st.tuples(
    st.integers(1, 5),
    st.lists(st.tuples(st.integers(0, 4), st.floats(0.0, 50.0, width=32)), min_size=1, max_size=60),
    st.floats(0.05, 1.0),
)


@settings(max_examples=150, deadline=None)
@given(CASES)
def test_quantiles_and_radii_equal_numpy_class_by_class(case):
    """Sorting all rows once must give what a loop over the classes gives, classes of no or one row included."""
    num_labels, rows, quantile = case
    labels = torch.tensor([label % num_labels for label, _ in rows])
    values = torch.tensor([value for _, value in rows], dtype=torch.float64)
    found, counts = class_quantiles(values, labels, num_labels, quantile)
    radii = class_radii(values, labels, num_labels, quantile, shrinkage=4.0)
    pooled = np.quantile(values.numpy(), quantile)
    for label in range(num_labels):
        own = values[labels == label].numpy()
        expected = np.quantile(own, quantile) if len(own) else 0.0
        assert int(counts[label]) == len(own)
        assert float(found[label]) == pytest.approx(expected, abs=1e-9)
        shrunk = (len(own) * expected + 4.0 * pooled) / (len(own) + 4.0)
        assert float(radii[label]) == pytest.approx(max(shrunk, 1e-6), abs=1e-9)


def test_without_shrinkage_a_radius_covers_its_share_of_the_rows():
    """A quantile taken over all classes at once would cover nearly all of a tight class and little of a loose one."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(2000) % 2
    distances = torch.rand(2000, generator=generator) * (1.0 + 9.0 * labels)
    radii = class_radii(distances, labels, 2, 0.9, shrinkage=0.0)
    for label in (0, 1):
        assert float((distances[labels == label] <= radii[label]).float().mean()) == pytest.approx(0.9, abs=2e-3)


def test_a_score_of_1_is_the_edge_of_some_class():
    distances = torch.tensor([[1.0, 9.0], [4.0, 3.0], [4.0, 6.5]])
    assert rejection_scores(distances, torch.tensor([2.0, 6.0])).tolist() == [0.5, 0.5, pytest.approx(6.5 / 6.0)]


@pytest.fixture(scope="module")
def fitted_once(tiny_config, tokenizer):
    """A model that knows keywords 0…4, its radii measured on rows it was not trained on."""
    model = build(tiny_config, "bert")
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    model.train()
    for _ in range(6):
        for batch in separable_text(LABELS, 640, 0).with_format("torch").iter(32):
            model(**batch).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    model.eval()
    model.fit_rejection([separable_text(LABELS, 200, 2).with_format("torch")[:]], progress=False)
    return model


@pytest.fixture
def fitted(fitted_once):
    return copy.deepcopy(fitted_once)


def scores(model, rows):
    with torch.no_grad():
        return model.rejection_scores(model(**{k: v for k, v in rows.items() if k != "labels"}).features)


def texts_of(keywords, count=40):
    return [
        f"word1 key{keywords[i % len(keywords)]} word{i % 9} key{keywords[i % len(keywords)]}" for i in range(count)
    ]


def test_unknown_classes_score_higher_than_known_ones(fitted, tokenizer):
    """Rejection must tell rows of classes that were never trained from new rows of known ones."""
    known, unknown = texts_of(range(LABELS)), texts_of(range(20, 30))
    answers = fitted.predict_with_rejection([*known, *unknown], tokenizer, batch_size=16)
    found = np.asarray([answer["rejection_score"] for answer in answers])
    ranks = rankdata(found)
    area = (ranks[len(known) :].sum() - len(unknown) * (len(unknown) + 1) / 2) / (len(known) * len(unknown))
    assert area > 0.9
    plain = [entry[0] for entry in fitted.predict([*known, *unknown], tokenizer)]
    for answer, usual in zip(answers, plain, strict=True):
        assert answer["label"] == ("unknown" if answer["rejection_score"] > 1.0 else usual["label"])
        assert answer["nearest"] == usual["label"]
        assert answer["score"] == pytest.approx(usual["score"], abs=1e-5)
    assert {answer["label"] for answer in answers} > {"unknown"}
    accepted = fitted.predict_with_rejection(unknown, tokenizer, reject="?", threshold=1e9)
    assert "?" not in {answer["label"] for answer in accepted}


def test_the_score_equals_its_definition(fitted):
    """Checked with torch's cosine similarity; a label never seen is never predicted and must take no row in."""
    rows = separable_text(LABELS, 30, 3).with_format("torch")[:]
    table = fitted.label_table
    with torch.no_grad():
        features = fitted(input_ids=rows["input_ids"]).features
    cosines = torch.cosine_similarity(features[:, None].double(), table.class_features[None].double(), dim=2)
    embeddings = fitted.head_module(features).double()
    squares = torch.cdist(embeddings, table.label_vectors.double()) ** 2
    unit, edge = table.rejection_edges.double()
    distances = ((1.0 - cosines) / table.rejection_radii + squares / unit) / edge
    assert torch.allclose(fitted.rejection_scores(features).double(), distances.amin(dim=1), atol=1e-4)
    table.counts[2] = 0
    without = distances[:, [0, 1, 3, 4]].amin(dim=1)
    assert torch.allclose(fitted.rejection_scores(features).double(), without, atol=1e-4)
    assert not torch.allclose(without, distances.amin(dim=1), atol=1e-4)


def test_batches_and_raw_rows_give_the_same_radii(fitted, tokenizer):
    """Labels as ids, as names, and in prepared batches with rows left out are the same rows."""
    texts = texts_of(range(LABELS))
    ids = [index % LABELS for index in range(len(texts))]
    by_id = fitted.fit_rejection(texts, tokenizer, ids, batch_size=7, progress=False)
    by_name = fitted.fit_rejection(texts, tokenizer, [f"LABEL_{i}" for i in ids], progress=False)
    batch = dict(tokenizer([*texts, "key9"], padding=True, return_tensors="pt"))
    prepared = fitted.fit_rejection([{**batch, "labels": torch.tensor([*ids, -100])}], progress=False)
    assert torch.allclose(by_id, by_name, atol=1e-5)
    assert torch.allclose(by_id, prepared, atol=1e-5)
    assert torch.equal(fitted.label_table.rejection_radii, prepared)
    assert (by_id > 0).all()


def test_saved_with_the_model_and_shown_to_people(fitted, tmp_path):
    rows = separable_text(LABELS, 30, 3).with_format("torch")[:]
    fitted.save_pretrained(tmp_path)
    again = AutoModelForLwALClassification.from_pretrained(tmp_path)
    assert torch.equal(again.label_table.rejection_radii, fitted.label_table.rejection_radii)
    assert torch.equal(scores(again, rows), scores(again, rows))
    shown = json.loads((tmp_path / "label_table.json").read_text())["labels"]
    assert [entry["radius"] for entry in shown] == pytest.approx(fitted.label_table.rejection_radii.tolist(), abs=1e-4)
    half = copy.deepcopy(again).to(torch.bfloat16)
    assert torch.equal(half.label_table.rejection_radii, fitted.label_table.rejection_radii)
    fitted.to(torch.bfloat16).save_pretrained(tmp_path)
    loaded = AutoModelForLwALClassification.from_pretrained(tmp_path)
    assert torch.equal(loaded.label_table.rejection_radii, fitted.label_table.rejection_radii)


def test_a_checkpoint_from_before_there_were_radii_loads(fitted, tmp_path, caplog):
    """A missing buffer is uninitialised memory after loading: random radii instead of none."""
    fitted.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["classifier.rejection_radii"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    again = AutoModelForLwALClassification.from_pretrained(tmp_path)
    assert torch.equal(again.label_table.rejection_radii, torch.zeros(LABELS))
    assert torch.equal(again.label_table.label_vectors, fitted.label_table.label_vectors)
    assert "rejection_radii" not in caplog.text
    again.save_pretrained(tmp_path)
    assert {e["radius"] for e in json.loads((tmp_path / "label_table.json").read_text())["labels"]} == {None}
    with pytest.raises(ValueError, match=r"radii of the labels are not known.*fit_rejection"):
        scores(again, separable_text(LABELS, 5, 3).with_format("torch")[:])


def test_training_forgets_the_radii(fitted):
    """Label vectors move in training; radii around the old ones would reject at random."""
    trained(fitted, 1)
    assert not fitted.label_table.rejection_radii.any()


def test_edits_of_labels_keep_the_radii_useful(fitted, tokenizer):
    """A new label gets the usual radius, a merged one reaches what its parts did; the others keep theirs."""
    before, means = fitted.label_table.rejection_radii.clone(), fitted.label_table.class_features.clone()
    fitted.add_label("new", ["key7 key7"], tokenizer)
    assert fitted.label_table.rejection_radii.tolist() == [*before.tolist(), float(before.median())]
    assert fitted.predict_with_rejection(["key7 key7"], tokenizer)[0]["label"] == "new"
    fitted.remove_label("new")
    fitted.merge_labels(["LABEL_1", "LABEL_3"], "odd")
    after = fitted.label_table.rejection_radii
    assert torch.equal(after[[0, 2, 3]], before[[0, 2, 4]])
    merged = fitted.label_table.class_features[1]
    reach = [before[part] + 1.0 - torch.cosine_similarity(means[part], merged, dim=0) for part in (1, 3)]
    assert float(after[1]) == pytest.approx(float(max(reach)), abs=1e-5)
    fitted.label_table.rejection_radii[2] = 0.0
    fitted.merge_labels(["LABEL_2", "LABEL_4"], "even")
    assert float(fitted.label_table.rejection_radii[2]) == 0.0


def test_mistakes(fitted, tokenizer):
    """Each ends in a sentence with the value; the radii stay as they were."""
    before = fitted.label_table.rejection_radii.clone()
    batch = {**inputs_for(fitted, 3), "labels": torch.tensor([0, 1, 5])}
    for call, sentence in (
        (lambda: fitted.fit_rejection([batch], progress=False), r"A row has label 5, but the model's labels are 0…4"),
        (lambda: fitted.fit_rejection(["key1"], tokenizer, ["six"]), r"no label 'six'"),
        (lambda: fitted.fit_rejection(["key1"], tokenizer), r"There are 1 inputs, but 0 labels"),
        (lambda: fitted.fit_rejection(["key1"], tokenizer, [1], quantile=95, progress=False), r"quantile is 95"),
        (lambda: fitted.fit_rejection(["key1"], tokenizer, [-100], progress=False), r"there are none"),
        (lambda: fitted.predict_with_rejection(["key1"], tokenizer, "LABEL_1"), r"reject is 'LABEL_1', which is"),
    ):
        with pytest.raises(ValueError, match=sentence):
            call()
    assert torch.equal(fitted.label_table.rejection_radii, before)


def test_a_class_whose_rows_all_lie_on_its_mean_still_has_a_radius():
    """A radius of 0 means "not measured"."""
    assert (class_radii(torch.zeros(4), torch.tensor([0, 0, 1, 1]), 2) > 0).all()
