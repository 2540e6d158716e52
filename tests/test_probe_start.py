"""The fitted start: what it minimises, what it chooses on held-out rows, and when it steps down to the class means."""

import logging

import pytest
import torch
import torch.nn.functional as F
from tiny_models import tiny_config
from toy import separable_text
from trajectory import arguments

from hf_lwal import AutoModelForLwALClassification, LwALTrainer
from hf_lwal.modeling.head_start import class_mean_projection
from hf_lwal.modeling.probe_start import FittedStart, fit, fit_start
from hf_lwal.modeling.start import StartSamples
from hf_lwal.objectives.one_hot import fit_head, nearest_mean_head


def rows_of(per_class, num_labels=6, width=24, noise=1.0, seed=0, spread=1.0):
    """Clusters whose noise is far larger in some directions than in others."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(num_labels, width, generator=torch.Generator().manual_seed(99))
    labels = torch.arange(num_labels).repeat_interleave(per_class)
    directions = torch.linspace(0.2, 4.0, width) * noise
    return spread * (centres[labels] + directions * torch.randn(len(labels), width, generator=generator)), labels


def predicted(found: FittedStart, features, labels, queries):
    """Nearest label vector, with class means computed one class at a time."""
    means = torch.stack([features[labels == label].double().mean(0) for label in range(len(found.offset))])
    vectors = means @ found.weight.T + found.bias + found.offset
    return torch.cdist(queries.double() @ found.weight.T + found.bias, vectors).argmin(1)


@pytest.mark.parametrize("spread", [1.0, 1e-3, 1e3])
@pytest.mark.parametrize("per_class", [8, 40])
def test_it_predicts_new_rows_better_than_the_class_means_and_no_worse_than_a_regression(per_class, spread):
    """Features of any size: a fit in the units of the features fits nothing, or too much, when they are small."""
    from sklearn.linear_model import LogisticRegression

    features, labels = rows_of(per_class, spread=spread)
    queries, truth = rows_of(300, seed=1, spread=spread)
    found = fit_start(features, labels, 6, 12)
    accuracy = (predicted(found, features, labels, queries) == truth).double().mean()
    scaled = features / features.std()
    regression = max(
        LogisticRegression(C=strength, max_iter=500).fit(scaled, labels).score(queries / features.std(), truth)
        for strength in (0.01, 0.1, 1.0)
    )
    weight, bias = class_mean_projection(features, labels, 6, 12)
    means = torch.stack([features[labels == label].double().mean(0) for label in range(6)])
    plain = torch.cdist(queries.double() @ weight.T + bias, means @ weight.T + bias).argmin(1)
    assert accuracy > (plain == truth).double().mean()
    assert accuracy > regression - 0.03
    if per_class == 40:
        assert abs(found.accuracy - float(accuracy)) < 0.06, "the accuracy on held-out rows must be that of new rows"


def test_the_fit_lowers_the_loss_of_the_label_table_itself():
    features, labels = rows_of(20)
    features = features / features.square().sum(1).mean().sqrt()
    means = torch.stack([features[labels == label].mean(0) for label in range(6)])
    head = torch.eye(24, dtype=torch.float64)[:12]

    def loss(change, offset):
        now = (head + change).float()
        return F.cross_entropy(-8.0 * torch.cdist(features @ now.T, means @ now.T + offset.float()), labels)

    change, offset = fit(features, labels, means, head, 8.0)
    alone, none = fit(features, labels, means, head, 8.0, learn_offset=False)
    start = loss(torch.zeros(12, 24), torch.zeros(6, 12))
    assert loss(change, offset) < loss(alone, none) < start
    assert none.eq(0).all()


def test_held_out_distances_know_nothing_of_their_own_rows():
    """Distances of rows that were fitted make the scale far too steep: here labels are noise, and nothing helps."""
    generator = torch.Generator().manual_seed(3)
    features, labels = torch.randn(200, 24, generator=generator), torch.randint(5, (200,), generator=generator)
    found = fit_start(features, labels, 5, 8)
    assert found is None or found.accuracy < 0.35


def test_wrong_labels_ask_for_more_weight_decay_or_for_no_fit():
    """With a third of the labels wrong an unchecked fit learns them by heart, far below the class means."""
    features, labels = rows_of(20, noise=0.5)
    generator = torch.Generator().manual_seed(4)
    wrong = torch.rand(len(labels), generator=generator) < 0.33
    given = torch.where(wrong, torch.randint(6, (len(labels),), generator=generator), labels)
    queries, truth = rows_of(200, noise=0.5, seed=1)
    weight, bias = class_mean_projection(features, given, 6, 12)
    means = torch.stack([features[given == label].double().mean(0) for label in range(6)])
    plain = torch.cdist(queries.double() @ weight.T + bias, means @ weight.T + bias).argmin(1)
    found = fit_start(features, given, 6, 12)
    after = plain if found is None else predicted(found, features, given, queries)
    assert (after == truth).double().mean() > (plain == truth).double().mean() - 0.02


def test_rows_without_label_and_labels_without_rows_change_nothing():
    features, labels = rows_of(10)
    expected = fit_start(features, labels, 6, 12)
    more = torch.cat([features, torch.full((3, 24), torch.nan)])
    found = fit_start(more, torch.cat([2 * labels, torch.full((3,), -100)]), 12, 12)
    torch.testing.assert_close(found.weight, expected.weight)
    torch.testing.assert_close(found.offset[::2], expected.offset)
    assert found.offset[1::2].eq(0).all()
    assert found.held_out[-3:].isinf().all()
    assert found.held_out[:-3, 1::2].isinf().all()
    torch.testing.assert_close(found.held_out[:-3, ::2], expected.held_out)


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("not finite", "not finite"),
        ("one class", "of 1 classes"),
        ("few rows", "3 rows of 3 classes"),
        ("singletons", "no class has a second row"),
    ],
)
def test_it_steps_down_with_one_line_in_the_log(case, reason, caplog):
    features, labels = rows_of(8)
    if case == "not finite":
        features[3, 2] = torch.inf
    elif case == "one class":
        labels = torch.zeros_like(labels)
    elif case == "few rows":
        features, labels = features[[0, 8, 16]], labels[[0, 8, 16]]
    else:
        features, labels = features[::8], labels[::8]
    with caplog.at_level(logging.INFO, "hf_lwal.modeling.probe_start"):
        assert fit_start(features, labels, 6, 12) is None
    assert len(caplog.records) == 1
    assert reason in caplog.text


@pytest.mark.parametrize("per_class", [2, 3])
def test_few_rows_per_class_and_constant_features_stay_finite(per_class):
    features, labels = rows_of(per_class, noise=0.1)
    for values in (features, torch.ones_like(features)):
        found = fit_start(values, labels, 6, 12)
        assert found is None or all(part.isfinite().all() for part in found[:3])


def test_the_callers_random_stream_and_gradients_stay_as_they_are():
    features, labels = rows_of(8)
    torch.manual_seed(5)
    state = torch.get_rng_state()
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        inside = fit_start(features, labels, 6, 12)
    assert torch.equal(state, torch.get_rng_state())
    torch.testing.assert_close(inside.weight, fit_start(features, labels, 6, 12).weight)


@pytest.mark.parametrize("rate", [None, 1e-5])
def test_a_model_starts_with_the_label_vectors_that_were_fitted(rate):
    """The head is made smaller for small rates; an offset that was not would drown it."""
    features, labels = rows_of(8, width=32)
    queries, _ = rows_of(100, width=32, seed=1)
    model = AutoModelForLwALClassification.from_config(tiny_config("bert", num_labels=6), embedding_dim=12).eval()
    model.config.initial_head = "probe"
    model.start_from(StartSamples(features, labels, 0.0), learning_rate=rate)
    found = fit_start(features, labels, 6, 12)
    with torch.no_grad():
        logits = model.label_table(model.head_module(queries))
    assert (logits.argmax(1) == predicted(found, features, labels, queries)).double().mean() > 0.99
    scale = model.label_table.scale.item() * float(model.head_module.weight.detach().norm() / found.weight.norm())
    losses = [float(F.cross_entropy(-factor * scale * found.held_out, labels)) for factor in (0.5, 1.0, 2.0)]
    assert losses[1] == min(losses), "the scale must suit rows held out"


def test_without_a_learned_offset_only_the_head_is_fitted():
    features, labels = rows_of(8, width=32)
    model = AutoModelForLwALClassification.from_config(tiny_config("bert", num_labels=6), embedding_dim=12)
    model.config.initial_head, model.config.offset = "probe", False
    model.start_from(StartSamples(features, labels, 0.0))
    assert model.label_table.offset_bias.eq(0).all()


def test_one_hot_gets_the_same_start():
    """A control with another start would compare starts, not methods."""
    features, labels = rows_of(8)
    queries, _ = rows_of(200, seed=1)
    weight, bias, scale = fit_head(features, labels, 6)
    expected = predicted(fit_start(features, labels, 6, 24), features, labels, queries)
    assert torch.equal((queries @ weight.T + bias).argmax(1), expected)
    assert scale > 0
    singletons = features[::8], labels[::8], 6
    for mine, plain in zip(fit_head(*singletons), nearest_mean_head(*singletons, whiten=True), strict=True):
        assert torch.equal(torch.as_tensor(mine), torch.as_tensor(plain))


@pytest.mark.parametrize("method", ["lwal", "one_hot"])
def test_the_trainer_starts_by_it(tmp_path, method, caplog):
    options = {"lwal_init": "class_means"} if method == "one_hot" else {}
    model = AutoModelForLwALClassification.from_config(tiny_config("bert", num_labels=5))
    options |= {"label_method": method, "lwal_initial_head": "probe", "max_steps": 1, "optim": "adamw_torch"}
    trainer = LwALTrainer(model, arguments(tmp_path, **options), train_dataset=separable_text(5, 60, 0))
    with caplog.at_level(logging.INFO, "hf_lwal.modeling.probe_start"):
        trainer.train()
    assert "Start fitted to" in caplog.text
    assert "accuracy on rows held out" in caplog.text
