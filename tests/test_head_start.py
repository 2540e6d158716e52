"""The head's start: which directions it keeps, how large it is, and that the trainer uses it."""

import math
from collections import Counter
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from trajectory import arguments, build, rows_for

from hf_lwal import LwALTrainer
from hf_lwal.functional import calibrated_scale
from hf_lwal.modeling.head_start import (
    FOLDS,
    LARGEST_RELATIVE_STEP,
    LEAST_SHRINKAGE,
    can_start,
    class_mean_projection,
    held_out_distances,
    shrinkage,
    size_for_offset,
    suited_size,
    write_linear,
)
from hf_lwal.objectives.one_hot import nearest_mean_head


def rows_of(num_labels, per_class, width, seed=0):
    """Clusters with the same correlated noise in every class."""
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(width, width, generator=generator, dtype=torch.float64)
    centres = 2.0 * torch.randn(num_labels, width, generator=generator, dtype=torch.float64)
    labels = torch.arange(num_labels).repeat_interleave(per_class)
    noise = torch.randn(len(labels), width, generator=generator, dtype=torch.float64) @ mixing
    return centres[labels] + noise, labels


def nearest(features, labels, queries, num_labels, weight, bias):
    means = torch.stack([features[labels == label].mean(0) for label in range(num_labels)])
    return torch.cdist(queries @ weight.T + bias, means @ weight.T + bias).argmin(1)


def test_with_rows_to_spare_the_nearest_mean_is_that_of_discriminant_analysis():
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

    features, labels = rows_of(num_labels=7, per_class=40, width=12)
    queries, _ = rows_of(num_labels=7, per_class=60, width=12, seed=3)
    weight, bias = class_mean_projection(features, labels, 7, embedding_dim=9)
    reference = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=LEAST_SHRINKAGE, priors=[1 / 7] * 7)
    expected = torch.as_tensor(reference.fit(features.numpy(), labels.numpy()).predict(queries.numpy()))
    assert torch.equal(nearest(features, labels, queries, 7, weight, bias), expected)
    plain = class_mean_projection(features, labels, 7, embedding_dim=9, whiten=False)
    assert not torch.equal(nearest(features, labels, queries, 7, *plain), expected), "the noise must matter here"


@pytest.mark.parametrize("embedding_dim", [4, 6, 20])
def test_distances_between_class_means_survive(embedding_dim):
    """With five classes four dimensions hold them all; more dimensions than features change no distance at all."""
    features, labels = rows_of(num_labels=5, per_class=2, width=11)
    weight, bias = class_mean_projection(features, labels, 5, embedding_dim)
    assert weight.shape == (embedding_dim, 11)
    means = torch.stack([features[labels == label].mean(0) for label in range(5)])
    mapped = means @ weight.T + bias
    torch.testing.assert_close(torch.pdist(mapped), torch.pdist(means), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(mapped.mean(0), torch.zeros(embedding_dim, dtype=torch.float64), atol=1e-9, rtol=0)
    if embedding_dim > 11:
        torch.testing.assert_close(torch.pdist(features @ weight.T), torch.pdist(features), rtol=1e-9, atol=1e-9)


def test_ignored_rows_and_missing_classes_do_not_count():
    features, labels = rows_of(num_labels=4, per_class=30, width=6)
    expected = class_mean_projection(features, labels, 4, 5)
    noise = torch.full((3, 6), 1e3, dtype=torch.float64)
    more = class_mean_projection(torch.cat([features, noise]), torch.cat([labels, torch.full((3,), -100)]), 6, 5)
    for mine, other in zip(more, expected, strict=True):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize(("per_class", "whiten"), [(3, False), (9, True), (40, True)])
def test_held_out_distances_are_those_of_new_rows(per_class, whiten):
    """Each quarter of the rows is as if it had come after head and class means were made from the others."""
    features, labels = rows_of(num_labels=4, per_class=per_class, width=7)
    labels[5] = -100
    seen = Counter()
    folds = [seen.update([label]) or (seen[label] - 1) % FOLDS for label in labels.tolist()]
    found = held_out_distances(features, labels, 4, 5, whiten=whiten)
    assert found[5].isinf().all()
    share = shrinkage(4 * per_class - 1, 4, 7) if whiten else 1.0
    for row in (index for index in range(len(labels)) if index != 5):
        rest = [index for index in range(len(labels)) if index != 5 and folds[index] != folds[row]]
        with mock.patch("hf_lwal.modeling.head_start.shrinkage", return_value=share):  # that of all rows
            weight, bias = class_mean_projection(features[rest], labels[rest], 4, 5, whiten=whiten)
        means = torch.stack([features[rest][labels[rest] == label].mean(0) for label in range(4)])
        expected = torch.cdist(features[row : row + 1] @ weight.T + bias, means @ weight.T + bias)[0]
        torch.testing.assert_close(found[row], expected, rtol=1e-9, atol=1e-9)


def test_a_label_with_a_single_row_is_no_candidate_for_that_row():
    features, labels = rows_of(num_labels=3, per_class=4, width=6)
    kept = [0, 4, 5, 6, 7, 8, 9, 10, 11]
    found = held_out_distances(features[kept], labels[kept], 3, 3)
    assert found[0, 0].isinf()
    assert found[1:, 1:].isfinite().all()


@pytest.mark.parametrize("noise", [5.0, 10.0, 30.0])
def test_few_rows_of_many_features_do_not_promise_too_much(noise):
    """Sixteen rows of two labels lie apart in some direction of a hundred, whatever they are; new rows do not."""

    def losses(held_out):
        scale = calibrated_scale(torch.cdist(start, means), labels, labels.bincount(), held_out=held_out)
        return F.cross_entropy(-scale * torch.cdist(new @ weight.T + bias, means), new_labels)

    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(2, 100, generator=generator, dtype=torch.float64)

    def rows(per_class):
        labels = torch.arange(2).repeat_interleave(per_class)
        spread = torch.randn(2 * per_class, 100, generator=generator, dtype=torch.float64)
        return centres[labels] + noise * spread, labels

    (features, labels), (new, new_labels) = rows(16), rows(500)
    weight, bias = class_mean_projection(features, labels, 2, 2)
    start = features @ weight.T + bias
    means = torch.stack([start[labels == label].mean(0) for label in range(2)])
    fitted = losses(held_out_distances(features, labels, 2, 2))
    assert fitted < losses(None)
    assert fitted < math.log(2) * 1.1


@pytest.mark.parametrize("case", ["one row", "one class", "constant"])
def test_degenerate_rows_give_finite_weights(case):
    features, labels = rows_of(num_labels=3, per_class=30, width=4)
    if case == "one row":
        features, labels = features[:1], labels[:1]
    elif case == "one class":
        labels = torch.zeros_like(labels)
    else:
        features = torch.ones_like(features)
    weight, bias = class_mean_projection(features, labels, 3, 3)
    assert weight.isfinite().all()
    assert bias.isfinite().all()
    assert not held_out_distances(features, labels, 3, 3).isnan().any()


@given(rows=st.integers(1, 5000), classes=st.integers(1, 200), width=st.integers(2, 800))
def test_shrinkage_falls_from_one_to_its_least(rows, classes, width):
    share = shrinkage(rows, classes, width)
    assert LEAST_SHRINKAGE <= share <= 1.0
    assert shrinkage(rows + width, classes, width) <= share
    if rows - classes <= width:
        assert share == 1.0
    if rows - classes >= 3 * width:
        assert share == pytest.approx(LEAST_SHRINKAGE)


@given(rate=st.floats(1e-7, 1.0), spread=st.floats(1e-3, 10.0))
def test_the_head_is_as_large_as_the_learning_rate_asks_and_never_enlarged(rate, spread):
    weight = torch.full((4, 4), spread, dtype=torch.float64)
    factor = suited_size(weight, rate)
    assert 0.0 < factor <= 1.0
    if factor < 1.0:
        size = factor * spread
        assert rate / size <= LARGEST_RELATIVE_STEP * (1 + 1e-9)
        assert size == pytest.approx(max(0.003 * (rate / 2e-5) ** 1.5, 100 * rate))
    assert suited_size(weight, None) == 1.0


@pytest.mark.parametrize("rate", [2e-5, 1e-3])
@pytest.mark.parametrize("apart", [1e-5, 0.03, 50.0])
@pytest.mark.parametrize(("labels", "dim"), [(2, 16), (20, 128)])
def test_a_step_of_the_offset_is_small_against_the_distance_of_label_vectors(rate, apart, labels, dim):
    """Label vectors closer than a step of Adam moves the offset lost a start of 91 % to chance in four steps."""
    torch.manual_seed(0)
    vectors = torch.randn(labels, dim, dtype=torch.float64) + 3.0
    vectors = vectors * apart / (vectors - vectors.mean(dim=0)).norm(dim=1).mean()
    size = size_for_offset(0.5, vectors, rate)
    step = math.sqrt(dim * rate**2)  # every entry by the learning rate
    distance = size * float((vectors - vectors.mean(dim=0)).norm(dim=1).mean())
    assert step / distance <= 0.01 * (1 + 1e-9)
    assert size == 0.5 or step / distance == pytest.approx(0.01)  # no larger than it needs to be
    assert size >= 0.5


@pytest.mark.parametrize(
    ("vectors", "rate"), [(torch.ones(4, 8), 1e-3), (torch.ones(1, 8), 1e-3), (torch.randn(4, 8), None)]
)
def test_no_size_helps_where_nothing_lies_apart_or_no_rate_is_known(vectors, rate):
    """Rounding between label vectors that are alike would have made the head huge."""
    assert size_for_offset(0.5, vectors.double(), rate) == 0.5


def test_what_is_no_plain_linear_layer_is_left_alone():
    frozen = nn.Linear(3, 2)
    frozen.weight.requires_grad_(False)
    flattened = nn.Linear(3, 2)
    flattened.weight = nn.Parameter(torch.zeros(0))
    assert can_start(nn.Linear(3, 2))
    assert not any(map(can_start, (frozen, flattened, nn.Sequential(nn.Linear(3, 2)), nn.Bilinear(3, 3, 2))))


def test_a_layer_without_bias_and_of_low_precision_can_be_written():
    layer = nn.Linear(3, 2, bias=False, dtype=torch.bfloat16)
    write_linear(layer, torch.full((2, 3), 0.5, dtype=torch.float64), torch.ones(2))
    assert torch.equal(layer.weight, torch.full((2, 3), 0.5, dtype=torch.bfloat16))


def test_the_whitened_control_is_the_nearest_mean_in_the_whitened_space():
    features, labels = rows_of(num_labels=5, per_class=30, width=8)
    queries, _ = rows_of(num_labels=5, per_class=50, width=8, seed=5)
    weight, bias, _ = nearest_mean_head(features, labels, 5, whiten=True)
    expected = nearest(features, labels, queries, 5, *class_mean_projection(features, labels, 5, 8))
    assert torch.equal((queries.float() @ weight.T + bias).argmax(1), expected)


def trained(tmp_path, **options):
    """The head before and after one step, and its width."""
    model = build("bert")
    before = model.head_module.weight.detach().clone()
    options = {"max_steps": 1, "optim": "adamw_torch", "learning_rate": 1e-5, **options}
    trainer = LwALTrainer(model, arguments(tmp_path, **options), train_dataset=rows_for("bert", 40))
    trainer.train()
    return before, trainer.model.head_module.weight.detach()


@pytest.mark.parametrize(("kind", "changes"), [("whitened", True), ("class_means", True), ("random", False)])
def test_the_trainer_starts_the_head_in_the_size_that_suits_the_learning_rate(tmp_path, kind, changes):
    before, after = trained(tmp_path, lwal_initial_head=kind, lwal_offset=False)
    assert ((after - before).abs().max() > 1e-3) == changes
    size = float(after.square().mean().sqrt())
    assert (size == pytest.approx(0.003 * 0.5**1.5, rel=0.05)) == changes


def test_the_peak_of_the_schedule_counts_not_its_first_step(tmp_path):
    _, after = trained(tmp_path, warmup_steps=10, lr_scheduler_type="linear", lwal_offset=False)
    assert float(after.square().mean().sqrt()) == pytest.approx(0.003 * 0.5**1.5, rel=0.05)


@pytest.mark.parametrize("kind", ["whitened", "class_means", "probe"])
def test_a_trainer_leaves_the_offset_a_hundred_steps(tmp_path, kind):
    """The floor must reach the head of a training, whatever made the head: one step of the offset lost the labels."""
    options = {"max_steps": 1, "optim": "adamw_torch", "learning_rate": 1e-3, "lwal_initial_head": kind}
    trainer = LwALTrainer(build("bert"), arguments(tmp_path, **options), train_dataset=rows_for("bert", 40))
    trainer.create_optimizer_and_scheduler(1)
    trainer.callback_handler.on_train_begin(trainer.args, trainer.state, trainer.control)
    model = trainer.model
    with torch.no_grad():
        vectors = model.head(model.label_table.class_features)
    apart = float((vectors - vectors.mean(dim=0)).norm(dim=1).mean())
    assert 1e-3 * math.sqrt(vectors.shape[1]) <= 0.0101 * apart


def test_plain_gradient_descent_gets_the_natural_size(tmp_path):
    _, after = trained(tmp_path, optim="sgd", lwal_initial_head="class_means")
    assert float(after.square().mean().sqrt()) == pytest.approx(1 / math.sqrt(after.shape[1]), rel=0.1)


def test_the_embeddings_space_keeps_its_head(tmp_path):
    before, after = trained(tmp_path, lwal_space="embeddings")
    assert (after - before).abs().max() < 1e-4
