"""Many labels: nothing of the size of all rows by all labels, nor of all labels by all labels, is ever made."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import BertConfig

from hf_lwal import AutoModelForLwALClassification
from hf_lwal.functional import calibrated_scale, cosine_distances, pairwise_distances
from hf_lwal.modeling import head_start, probe_start, row_blocks
from hf_lwal.modeling.class_moments import class_means, moments
from hf_lwal.modeling.distances import DistancesInParts
from hf_lwal.modeling.name_start import agreement
from hf_lwal.modeling.start import StartSamples
from hf_lwal.objectives.one_hot import fit_head, nearest_mean_head


class LargestTensor(TorchDispatchMode):
    """Remembers the numbers of the largest tensor that any operation gave out."""

    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self.largest = max(self.largest, tensor.numel())
        return result


def samples_of(num_labels, per_class, width=12, noise=0.6, seed=0):
    """Rows around class centres, classes in turn; the last label has a single row."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(num_labels).repeat(per_class)
    labels = torch.cat([labels[labels != num_labels - 1], torch.tensor([num_labels - 1])])
    centres = torch.randn(num_labels, width, generator=generator)
    return StartSamples(centres[labels] + noise * torch.randn(len(labels), width, generator=generator), labels, 0.0)


def text_model(num_labels, width, kind="probe"):
    names = {index: f"name {index}" for index in range(num_labels)}
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=8,
        hidden_size=width,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=8,
        id2label=names,
        label2id={name: index for index, name in names.items()},
    )
    model = AutoModelForLwALClassification.from_config(config)
    model.config.initial_head = kind
    return model


def small_blocks(monkeypatch, block):
    monkeypatch.setattr(row_blocks, "BLOCK", block)
    monkeypatch.setattr(row_blocks, "PART_OF_A_BLOCK", block // 4)
    monkeypatch.setattr(row_blocks, "LEAST_ROWS", 2)


def started(kind, samples, num_labels):
    model = text_model(num_labels, samples.values.shape[1], kind)
    scale = model.start_from(samples, learning_rate=1e-3)
    table = model.label_table
    table.refresh_for_evaluation(samples.values, samples.labels, model.head, choose=True)
    return scale, [model.head_module.weight, table.label_vectors, table.offset_bias, table.class_features]


@pytest.mark.parametrize(
    ("kind", "block"),
    [("probe", 200), ("probe", 1100), ("whitened", 1), ("whitened", 333), ("class_means", 40), ("random", 40)],
)
def test_a_start_in_blocks_is_that_of_all_rows_at_once(kind, block, monkeypatch):
    """A block that is left out, counted twice, or divided by the wrong number of rows: a wrong scale or head."""
    samples = samples_of(14, 7)
    samples.labels[3::10] = -100
    whole = started(kind, samples, 14)
    small_blocks(monkeypatch, block)
    scale, tensors = started(kind, samples, 14)
    assert scale == pytest.approx(whole[0], rel=1e-4)
    for found, expected in zip(tensors, whole[1], strict=True):
        torch.testing.assert_close(found, expected, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize(("build", "block"), [(nearest_mean_head, 1), (nearest_mean_head, 300), (fit_head, 250)])
def test_a_one_hot_start_in_blocks_is_that_of_all_rows_at_once(build, block, monkeypatch):
    samples = samples_of(9, 8)
    whole = build(*samples[:2], 9, True)
    small_blocks(monkeypatch, block)
    for found, expected in zip(build(*samples[:2], 9, True), whole, strict=True):
        torch.testing.assert_close(torch.as_tensor(found), torch.as_tensor(expected), rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("names", [0, 5])
@pytest.mark.parametrize("block", [1, 60, 300])
def test_held_out_distances_in_blocks_are_the_same_distances(names, block, monkeypatch):
    """Also in another order of the rows, and once the head has another size."""
    samples = samples_of(8, 6)
    samples.labels[4] = -100
    whole = head_start.held_out_distances(*samples[:2], 8, 5, names=names)
    small_blocks(monkeypatch, block)
    found = head_start.held_out_distances(*samples[:2], 8, 5, names=names)
    assert isinstance(found, DistancesInParts)
    assert found.shape == whole.shape
    assert torch.equal(found.known, whole.isfinite().any(dim=1))
    stored = torch.full_like(whole, torch.inf)
    for rows, distances in (found * 3.0).blocks(torch.arange(len(whole)).flip(0)):
        stored[rows] = distances
    torch.testing.assert_close(stored, 3.0 * whole, rtol=1e-9, atol=1e-9)
    visible = head_start.visible_size(1e-9, whole)
    assert head_start.visible_size(1e-9, found) == pytest.approx(visible, rel=1e-9)


def test_moments_in_blocks_are_those_of_all_rows(monkeypatch):
    samples = samples_of(6, 9)
    rows = torch.arange(0, len(samples.labels), 2)
    values, labels = samples.values[rows].double(), samples.labels[rows]
    means = torch.stack([values[labels == label].sum(0) / max((labels == label).sum(), 1) for label in range(6)])
    small_blocks(monkeypatch, 30)
    found = moments(*samples[:2], 6, rows, covariance=True)
    residuals = values - means[labels]
    torch.testing.assert_close(found.means, means)
    torch.testing.assert_close(found.covariance, residuals.T @ residuals / len(rows))
    assert found.within == pytest.approx(float(residuals.square().sum()))
    assert found.spread == pytest.approx(float((values - values.mean(0)).square().sum()))
    assert found.size == pytest.approx(float(values.square().sum()))
    torch.testing.assert_close(class_means(values, labels, 6)[0], means)


def test_some_rows_stand_for_all_where_distances_are_very_many(monkeypatch):
    """The scale of a tenth of the rows is the one of all, give or take a step of the grid, and always the same."""
    samples = samples_of(20, 100)
    labels, counts = samples.labels, samples.labels.bincount()
    distances = pairwise_distances(samples.values, class_means(*samples[:2], 20)[0].float(), labels)
    every = calibrated_scale(distances, labels, counts)
    monkeypatch.setattr(row_blocks, "MOST_DISTANCES", 20 * len(labels) // 10)
    state = torch.get_rng_state()
    some = calibrated_scale(distances, labels, counts)
    assert some == calibrated_scale(distances, labels, counts) != every
    assert 0.65 < some / every < 1.55
    assert torch.equal(state, torch.get_rng_state())
    chosen = row_blocks.some_of(torch.arange(len(labels)), 20)
    assert len(chosen.unique()) == len(labels) // 10
    assert len(labels[chosen].unique()) >= 19  # rows of classes in turn, which every tenth row would have missed


@pytest.mark.parametrize("block", [1, 64, 1000])
def test_radii_and_rejection_scores_in_blocks_are_those_of_all_labels(block, monkeypatch):
    samples = samples_of(10, 6)
    model = text_model(11, 12, "random")  # the last label has no row
    model.label_table.start(*samples[:2], model.head)
    model.start_values = lambda inputs: inputs["values"]
    batches = [{"values": samples.values, "labels": samples.labels}]
    means = model.label_table.class_features
    own = cosine_distances(samples.values, means)[torch.arange(len(samples.labels)), samples.labels]
    small_blocks(monkeypatch, block)
    radii = model.fit_rejection(batches, quantile=1.0, progress=False)
    first = samples.labels == 0
    expected = (first.sum() * own[first].max() + 10.0 * own.max()) / (first.sum() + 10.0)
    torch.testing.assert_close(radii[0], expected, rtol=0, atol=1e-6)
    with torch.no_grad():
        embeddings = model.head(samples.values).double()
    squares = torch.cdist(embeddings, model.label_table.label_vectors.double()).square()
    unit, edge = model.label_table.rejection_edges.double()
    assert float(unit) == pytest.approx(float(squares[torch.arange(len(squares)), samples.labels].max()), rel=1e-5)
    sums = (cosine_distances(samples.values, means) / radii).double() + squares / unit
    assert float(edge) == pytest.approx(float(sums[torch.arange(len(sums)), samples.labels].max()), rel=1e-5)
    scores = (sums[:, :10] / edge).amin(dim=1)
    torch.testing.assert_close(model.rejection_scores(samples.values).double(), scores, rtol=1e-4, atol=1e-4)


def test_names_are_believed_in_blocks_as_of_all_rows_at_once(monkeypatch):
    samples = samples_of(12, 5)
    generator = torch.Generator().manual_seed(3)
    means = class_means(*samples[:2], 12)[0].float()
    order = torch.randperm(12, generator=generator)
    for values in (means, torch.randn(12, 12, generator=generator)):
        named = StartSamples(values[order], order, 0.0)
        whole = agreement(*samples[:2], named)
        nearest = torch.cdist((samples.values - means.mean(0)), values - values.mean(0)).argmin(1)
        assert whole[0] == pytest.approx(float((nearest == samples.labels).double().mean()), abs=0.02)
        with monkeypatch.context() as patch:
            small_blocks(patch, 24)
            assert agreement(*samples[:2], named) == whole
        assert whole[2] == (values is means)


@pytest.mark.parametrize("kind", ["probe", "class_means"])
def test_a_start_with_many_labels_makes_no_matrix_of_rows_by_labels(kind, monkeypatch):
    """Rows by labels were gigabytes at 3,000 labels. Here that is 800 million numbers, and labels by labels 400."""
    num_labels, width = 20_000, 16
    samples, model = samples_of(num_labels, 2, width), text_model(num_labels, width, kind)
    monkeypatch.setattr(row_blocks, "MOST_DISTANCES", 2**21)
    model.start_values = lambda inputs: inputs["values"]
    with LargestTensor() as seen:
        model.start_from(samples, learning_rate=1e-3)
        model.label_table.refresh_for_evaluation(samples.values, samples.labels, model.head, choose=True)
        model.fit_rejection([{"values": samples.values, "labels": samples.labels}], progress=False)
        model.rejection_scores(samples.values[:300])
        named = StartSamples(samples.values[:num_labels], samples.labels[:num_labels], 0.0)
        agreement(*samples[:2], named)
    assert num_labels * width < seen.largest <= row_blocks.BLOCK
    assert bool((model.label_table.rejection_radii > 0).all())


def test_a_fit_of_many_rows_and_labels_makes_no_matrix_of_them(monkeypatch):
    """Few dimensions make the work small and the distances many: the gradient took several times their memory."""
    values, labels = samples_of(40, 12, 8)[:2]
    values = values * values.abs().sqrt()  # of other shapes than a mean suits, so that there is something to fit
    small_blocks(monkeypatch, 2**13)
    with LargestTensor() as seen:
        assert probe_start.fit_start(values, labels, 40, 8) is not None
    assert values.numel() <= seen.largest <= 2**13 < 40 * len(labels)


def test_what_takes_too_long_to_fit_is_refused_before_anything_is_made(caplog):
    samples = samples_of(20_000, 3, 32)
    with LargestTensor() as seen, caplog.at_level("INFO", "hf_lwal.modeling.probe_start"):
        assert probe_start.fit_start(*samples[:2], 20_000, 32) is None
    assert "would take too long" in caplog.text
    assert seen.largest <= samples.values.numel()
