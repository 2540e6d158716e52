"""Wrong labels found from features: measured without the row itself, how many there are, and what is said of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from test_modeling import LABELS, build
from toy import separable_text

from hf_lwal.modeling.held_out_logits import IDENTITY, left_out_logits, principal, regression_logits
from hf_lwal.modeling.label_errors import label_errors


def clusters(num_labels, rows, features=12, spread=1.0, seed=0):
    """Features (N, H) around far-apart class means, and their labels."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.arange(rows) % num_labels
    means = 3.0 * torch.randn(num_labels, features, generator=draw)
    return means[labels] + spread * torch.randn(rows, features, generator=draw), labels


def with_errors(labels, num_labels, share, kind="symmetric", seed=0):
    """A share of the labels replaced by any other, or by the next one."""
    draw, given = np.random.default_rng(seed), labels.numpy().copy()
    chosen = draw.permutation(len(given))[: round(share * len(given))]
    steps = draw.integers(1, num_labels, len(chosen)) if kind == "symmetric" else 1
    given[chosen] = (given[chosen] + steps) % num_labels
    return torch.from_numpy(given)


def left_out_by_hand(rows, labels, num_labels):
    """Distances of each row to class means, whitened by a covariance, that were computed anew without it."""
    found = torch.empty(len(rows), num_labels, dtype=torch.float64)
    rows = rows.double()
    whole = torch.stack([rows[labels == label].mean(dim=0) for label in range(num_labels)])
    level = float((rows - whole[labels]).square().sum() / len(rows) / rows.shape[1])
    for row in range(len(rows)):
        rest = torch.arange(len(rows)) != row
        others, own = rows[rest], labels[rest]
        means = torch.stack([others[own == label].mean(dim=0) for label in range(num_labels)])
        residuals = others - means[own]
        covariance = residuals.T @ residuals / len(rows)
        shrunken = (1.0 - IDENTITY) * covariance + IDENTITY * level * torch.eye(rows.shape[1])
        apart = rows[row] - means
        found[row] = (apart * torch.linalg.solve(shrunken, apart.T).T).sum(dim=1).sqrt()
    return found


def test_leaving_a_row_out_equals_computing_everything_without_it():
    """A row that its own class mean contains lies too close to a wrong label, and few rows are never suspected."""
    features, labels = clusters(3, 23, features=5)
    rows = principal(features)
    found = torch.empty(len(rows), 3)
    for block, logits in left_out_logits(rows, labels, 3):
        found[block] = -logits
    torch.testing.assert_close(found.double(), left_out_by_hand(rows, labels, 3), rtol=2e-3, atol=1e-4)


def test_the_regression_of_a_row_never_saw_it():
    """Features of a fold, moved far away, must change nothing that is said of the other rows of that fold."""
    features, labels = clusters(3, 40)
    rows, weights = principal(features), torch.ones(40)
    found = dict.fromkeys(range(40))
    for block, logits in regression_logits(rows, labels, weights, 3):
        found |= dict(zip(block.tolist(), logits, strict=True))
    assert all(value is not None for value in found.values()), "every row once"
    changed = rows.clone()
    changed[0] += 50.0
    blocks = regression_logits(changed, labels, weights, 3)
    same_fold = next(block for block, _ in blocks if 0 in block.tolist())
    again = {
        row: logits
        for block, values in regression_logits(changed, labels, weights, 3)
        for row, logits in zip(block.tolist(), values, strict=True)
    }
    for row in set(same_fold.tolist()) - {0}:
        assert torch.equal(again[row], found[row])
    others = set(range(40)) - set(same_fold.tolist())
    assert any(not torch.equal(again[row], found[row]) for row in others), "which were made with that row"


@pytest.mark.parametrize("kind", ["symmetric", "next"])
@pytest.mark.parametrize("share", [0.0, 0.05, 0.1, 0.2, 0.4])
def test_the_share_of_wrong_labels_is_estimated(kind, share):
    """A fixed threshold finds too many errors in clean data and too few in bad data."""
    features, labels = clusters(8, 1600)
    given = with_errors(labels, 8, share, kind)
    found = label_errors(features, given, 8)
    assert found.share == pytest.approx(share, abs=0.02)
    assert int(found.suspicious.sum()) == round(found.share * 1600)
    wrong = given != labels
    if share:
        assert float((found.suspicious & wrong).sum() / wrong.sum()) > 0.95
        assert float((found.likelier[wrong] == labels[wrong]).float().mean()) > 0.98
        assert float(found.margins[wrong].max()) < float(found.margins[~wrong].median())


def test_classes_that_overlap_are_no_wrong_labels():
    """Rows between two classes are hard, not wrong: as many suspects as the model has errors would drown the true."""
    features, labels = clusters(6, 1200, features=4, spread=2.5)
    found = label_errors(features, labels, 6)
    nearest = (found.margins < 0).float().mean()
    assert found.share < 0.05
    assert float(nearest) < 0.05


def test_what_nothing_can_be_said_of():
    """A label of one row would be compared with nothing, and NaN features would make all margins NaN."""
    features, labels = clusters(4, 81)
    labels[80] = 4  # the only one
    labels[3], labels[7] = -100, -100
    features[5, 2] = math.nan
    found = label_errors(features, labels, 6)
    unknown = found.margins.isnan().nonzero()[:, 0].tolist()
    assert unknown == [3, 5, 7, 80]
    assert found.likelier[unknown].tolist() == [-100] * 4
    assert not found.suspicious[unknown].any()
    assert found.wrong[unknown].tolist() == [0.0] * 4
    assert sorted(found.order.tolist() + unknown) == list(range(81))
    assert 4 not in found.likelier.tolist(), "a label of one row is no other row's likelier label"


@pytest.mark.parametrize(
    ("features", "labels"),
    [
        (torch.ones(6, 3), [0, 0, 0, 1, 1, 1]),
        (torch.randn(4, 3), [0, 0, 0, 0]),
        (torch.randn(3, 3), [0, 1, 2]),
        (torch.randn(2, 3), [-100, -100]),
        (torch.full((4, 3), math.inf), [0, 0, 1, 1]),
        (torch.zeros(0, 3), []),
    ],
)
def test_data_without_anything_to_compare(features, labels):
    """Rows that are all alike, one class, no second row: no row is suspected, and nothing fails."""
    found = label_errors(features, torch.tensor(labels, dtype=torch.int64), 3)
    assert found.share == 0.0
    assert not found.suspicious.any()
    assert found.margins.isnan().all()


@pytest.mark.parametrize("num_labels", [2, 3, 40])
def test_few_and_many_labels(num_labels):
    """Two labels leave one candidate, and many leave labels that are only counted together."""
    features, labels = clusters(num_labels, 30 * num_labels, features=24)
    given = with_errors(labels, num_labels, 0.1)
    found = label_errors(features, given, num_labels)
    wrong = given != labels
    assert float((found.suspicious & wrong).sum() / wrong.sum()) > 0.9
    assert found.share == pytest.approx(0.1, abs=0.03)


def test_rows_that_do_not_differ_within_a_class():
    """Without any scatter within classes, a covariance has no inverse."""
    labels = torch.arange(40) % 4
    features = torch.eye(4)[labels]
    given = labels.clone()
    given[0] = 1
    found = label_errors(features, given, 4)
    assert found.order[0] == 0
    assert found.suspicious.tolist() == [True] + [False] * 39


@pytest.fixture(scope="module")
def model(tiny_config):
    return build(tiny_config, "bert").eval()


@pytest.fixture(scope="module")
def rows():
    data = separable_text(LABELS, 200, 1)
    labels = list(data["labels"])
    labels[0], labels[50] = (labels[0] + 1) % LABELS, (labels[50] + 1) % LABELS
    labels[7] = -100
    return data.remove_columns("labels").add_column("labels", labels)


def test_suspicious_labels_of_a_model(model, rows):
    """What pandas is given: one line per row with a label, the worst first, and the model as it was."""
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    found = model.suspicious_labels([rows.with_format("torch")[:]], progress=False)
    assert len(found) == 199
    assert {entry["row"] for entry in found} == set(range(200)) - {7}
    assert {entry["row"] for entry in found[:2]} == {0, 50}
    assert [entry["margin"] for entry in found] == sorted(entry["margin"] for entry in found)
    names = model.config.label_names
    right = separable_text(LABELS, 200, 1)["labels"]
    for entry in found[:2]:
        assert entry["label"] == names[rows["labels"][entry["row"]]]
        assert entry["likelier"] == names[right[entry["row"]]]
    assert found[0]["margin"] < 0.0
    assert found[0]["wrong"] > 0.5
    assert [entry["suspicious"] for entry in found] == [True] + [False] * 198
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not model.training


def test_texts_with_names_or_ids(model, tokenizer):
    """Labels as people have them, in any batches, must give what ids in batches give."""
    draw = np.random.default_rng(0)
    labels = [row % LABELS for row in range(60)]
    texts = [" ".join([f"key{label}"] * 3 + [f"w{draw.integers(9)}"]) for label in labels]
    names = [model.config.label_names[label] for label in labels]
    ids = model.suspicious_labels(texts, tokenizer, labels, progress=False)
    by_name = model.suspicious_labels(texts, tokenizer, names, batch_size=7, progress=False)
    assert [entry["row"] for entry in ids] == [entry["row"] for entry in by_name]
    np.testing.assert_allclose(
        [entry["margin"] for entry in ids], [entry["margin"] for entry in by_name], rtol=1e-3, atol=1e-3
    )
    with pytest.raises(ValueError, match="no label 'nonsense'"):
        model.suspicious_labels(texts, tokenizer, ["nonsense"] * 60, progress=False)
    with pytest.raises(ValueError, match="60 inputs, but 59 labels"):
        model.suspicious_labels(texts, tokenizer, labels[1:], progress=False)
    with pytest.raises(ValueError, match=f"label {LABELS}, but the labels are"):
        model.suspicious_labels(texts, tokenizer, [LABELS] * 60, progress=False)


def test_a_label_of_one_row_comes_last(model, tokenizer):
    """It must not vanish from the list, nor stand among rows that were judged."""
    labels = [0, 1] * 10 + [2]
    found = model.suspicious_labels([f"key{label} w1 w{row}" for row, label in enumerate(labels)], tokenizer, labels)
    assert found[-1]["row"] == 20
    assert found[-1]["likelier"] is None
    assert math.isnan(found[-1]["margin"])
    assert math.isnan(found[-1]["wrong"])
    assert not found[-1]["suspicious"]
