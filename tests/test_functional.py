"""Properties of `hf_lwal.functional` against independent references (named ``_reference_*``), mostly in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hf_lwal.functional import (
    IGNORE_INDEX,
    calibrated_scale,
    class_sums,
    common_drift,
    leave_one_out,
    pairwise_distances,
    pull_loss,
    refreshed_label_vectors,
    repel_loss,
)

SEEDS = st.integers(0, 2**31 - 1)
EPSILON = torch.finfo(torch.float32).eps
SMALLEST_DISTANCE = 1e-6


def _normal(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def _clusters(
    seed: int, labels: Tensor, num_labels: int, dim: int, noise: float, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor]:
    """Embeddings (B, D) scattered around label vectors (C, D); rows with -100 scatter around the last one."""
    label_vectors = _normal(seed, num_labels, dim)
    embeddings = label_vectors[labels.clamp(min=-1)] + noise * _normal(seed + 1, len(labels), dim)
    return embeddings.to(dtype), label_vectors.to(dtype)


@st.composite
def label_lists(draw: st.DrawFn, min_size: int = 1, ignored: bool = False) -> tuple[Tensor, int]:
    """Labels (B,) and C: with absent classes, single rows and, on demand, ignored rows, as they come."""
    num_labels = draw(st.integers(2, 7))
    values = [*range(num_labels), IGNORE_INDEX] if ignored else list(range(num_labels))
    return torch.tensor(draw(st.lists(st.sampled_from(values), min_size=min_size, max_size=24))), num_labels


def _reference_distances(embeddings: Tensor, label_vectors: Tensor) -> Tensor:
    return torch.cdist(embeddings.double(), label_vectors.double(), compute_mode="donot_use_mm_for_euclid_dist")


def _reference_class_sums(embeddings: Tensor, labels: Tensor, num_labels: int) -> tuple[Tensor, Tensor]:
    members = [embeddings[labels == label].double() for label in range(num_labels)]
    return torch.stack([rows.sum(dim=0) for rows in members]), torch.tensor([float(len(rows)) for rows in members])


def _reference_repel(embeddings: Tensor, labels: Tensor) -> Tensor:
    """Mean over the B x B pairs of the cosine, 0 where the labels agree."""
    cosines = F.cosine_similarity(embeddings[:, None], embeddings[None], dim=-1)  # (B, B)
    return (cosines * (labels[:, None] != labels[None])).mean()


def _reference_running_means(batches: list[tuple[Tensor, Tensor]], start: Tensor, memory: float) -> np.ndarray:
    """Each class mean as an average of all its rows: at each merge the old rows' weights shrink to ``memory``."""
    means = start.numpy().copy()
    for label in range(len(means)):
        rows, weights = np.zeros((0, means.shape[1])), np.zeros(0)
        for embeddings, labels in batches:
            new = embeddings[labels == label].numpy()
            if len(new):
                if len(rows):
                    weights *= min(len(rows), memory) / weights.sum() if memory else 0.0
                rows, weights = np.concatenate([rows, new]), np.concatenate([weights, np.ones(len(new))])
                means[label] = np.average(rows, axis=0, weights=weights)
    return means


def _reference_held_out(embeddings: Tensor, labels: Tensor, num_labels: int) -> Tensor:
    """Distances (B, C) to class means computed without the row itself; inf to a class with no other row."""
    distances = torch.full((len(labels), num_labels), torch.inf, dtype=torch.float64)
    for row in range(len(labels)):
        others = torch.arange(len(labels)) != row
        for label in range(num_labels):
            members = embeddings[others & (labels == label)]
            if len(members):
                distances[row, label] = (embeddings[row] - members.mean(dim=0)).norm()
    return distances


def _reference_scale_losses(embeddings: Tensor, labels: Tensor, num_labels: int, power: int = 1) -> dict[float, float]:
    """Leave-one-out cross-entropy for every scale of the documented grid."""
    means = [embeddings[labels == c].mean(dim=0) for c in range(num_labels) if (labels == c).any()]
    mean_distance = float((_reference_distances(embeddings, torch.stack(means)) ** power).mean())
    held_out = _reference_held_out(embeddings, labels, num_labels) ** power
    usable = labels.bincount(minlength=num_labels)[labels] > 1
    grid = [math.sqrt(2.0) ** k / mean_distance for k in range(-2, 20)]
    return {s: float(F.cross_entropy(-s * held_out[usable], labels[usable])) for s in grid}


def _refreshed_from_nothing(embeddings: Tensor, labels: Tensor, num_labels: int, memory: float = 0) -> Tensor:
    sums, counts = class_sums(embeddings, labels, num_labels)
    zeros = embeddings.new_zeros(num_labels)
    return refreshed_label_vectors(torch.zeros_like(sums), zeros, sums, counts, memory)


def _step_loss(embeddings: Tensor, labels: Tensor, num_labels: int) -> Tensor:
    """Algorithm 1's loss with the gradient through the centroids."""
    distances = pairwise_distances(embeddings, _refreshed_from_nothing(embeddings, labels, num_labels), labels)
    return pull_loss(distances, labels) + 10.0 * repel_loss(embeddings, labels, num_labels)


def _assert_float32_accuracy(
    distances: Tensor, embeddings: Tensor, label_vectors: Tensor, labels: Tensor | None
) -> None:
    """Squares within a few roundings of the centred operands' size; own distances, with labels, of their own size."""
    exact = _reference_distances(embeddings, label_vectors)
    centre = label_vectors.double().mean(dim=0)
    sizes = (embeddings - centre).norm(dim=1)[:, None] + (label_vectors - centre).norm(dim=1)  # (B, C)
    assert ((distances.double().square() - exact.square()).abs() <= 8 * EPSILON * sizes.square() + 1e-12).all()
    if labels is not None:
        own = F.one_hot(labels.clamp(min=0), exact.shape[1]).bool() & (labels != IGNORE_INDEX)[:, None]
        torch.testing.assert_close(distances[own].double(), exact[own], rtol=1e-6, atol=SMALLEST_DISTANCE)


# --- class sums ------------------------------------------------------------------------------------------------------


@given(label_lists(ignored=True), SEEDS)
def test_class_sums_equal_a_loop_over_classes(case: tuple[Tensor, int], seed: int) -> None:
    """A row counted for another class, or an ignored row counted for the last one."""
    labels, num_labels = case
    embeddings = _normal(seed, len(labels), 3)
    sums, counts = class_sums(embeddings, labels, num_labels)
    expected_sums, expected_counts = _reference_class_sums(embeddings, labels, num_labels)
    torch.testing.assert_close(sums, expected_sums)
    assert counts.tolist() == expected_counts.tolist()


@given(label_lists(), SEEDS)
def test_row_order_does_not_matter(case: tuple[Tensor, int], seed: int) -> None:
    """Statistics paired with the wrong rows: results that depend on the data loader's order."""
    labels, num_labels = case
    embeddings, label_vectors = _clusters(seed, labels, num_labels, 4, noise=1.0)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    shuffled, shuffled_labels = embeddings[order], labels[order]
    for actual, expected in zip(
        class_sums(shuffled, shuffled_labels, num_labels), class_sums(embeddings, labels, num_labels), strict=True
    ):
        torch.testing.assert_close(actual, expected)
    distances = pairwise_distances(embeddings, label_vectors, labels)
    torch.testing.assert_close(pairwise_distances(shuffled, label_vectors, shuffled_labels), distances[order])
    torch.testing.assert_close(
        _step_loss(shuffled, shuffled_labels, num_labels), _step_loss(embeddings, labels, num_labels)
    )


@given(label_lists(), SEEDS, st.sampled_from([math.nan, math.inf, -math.inf, 1e30, 0.0]))
def test_ignored_rows_have_no_influence_on_class_sums(case: tuple[Tensor, int], seed: int, content: float) -> None:
    """One NaN in a padding row that turns a label vector into NaN for good."""
    labels, num_labels = case
    embeddings = _normal(seed, len(labels), 3)
    padded = torch.cat([embeddings, torch.full((2, 3), content)]).requires_grad_()
    padded_labels = torch.cat([labels, torch.tensor([IGNORE_INDEX] * 2)])
    sums, counts = class_sums(padded, padded_labels, num_labels)
    expected_sums, expected_counts = class_sums(embeddings, labels, num_labels)
    assert torch.equal(sums, expected_sums)
    assert torch.equal(counts, expected_counts)
    (gradient,) = torch.autograd.grad(sums.sum(), padded)
    assert gradient[-2:].eq(0).all()
    assert gradient[:-2].eq(1).all()


@given(label_lists(), SEEDS, st.sampled_from([-1e4, 0.0, 1e4]))
def test_ignored_rows_have_no_influence_on_losses(case: tuple[Tensor, int], seed: int, content: float) -> None:
    """Padding rows in the denominator of a mean, or pulled towards the first class."""
    labels, num_labels = case
    embeddings, label_vectors = _clusters(seed, labels, num_labels, 3, noise=1.0)
    padded = torch.cat([embeddings, torch.full((2, 3), content, dtype=embeddings.dtype)]).requires_grad_()
    padded_labels = torch.cat([labels, torch.tensor([IGNORE_INDEX] * 2)])
    distances = pairwise_distances(padded, label_vectors, padded_labels)
    expected_distances = pairwise_distances(embeddings, label_vectors, labels)
    torch.testing.assert_close(distances[:-2], expected_distances)
    pairs = [
        (repel_loss(padded, padded_labels, num_labels), repel_loss(embeddings, labels, num_labels)),
        (pull_loss(distances, padded_labels), pull_loss(expected_distances, labels)),
        (
            pull_loss(distances, padded_labels, reduction="sum", label_smoothing=0.1),
            pull_loss(expected_distances, labels, reduction="sum", label_smoothing=0.1),
        ),
    ]
    for actual, expected in pairs:
        torch.testing.assert_close(actual, expected)
        (gradient,) = torch.autograd.grad(actual, padded, retain_graph=True)
        assert gradient[-2:].eq(0).all()


# --- label vectors ---------------------------------------------------------------------------------------------------


@given(label_lists(), SEEDS, st.sampled_from([0, 1, 50, math.inf]), st.sampled_from([torch.float32, torch.int64]))
def test_absent_classes_keep_their_mean_bit_for_bit(
    case: tuple[Tensor, int], seed: int, memory: float, count_dtype: torch.dtype
) -> None:
    """Label vectors of rare classes that drift, or fall to zero, at every batch without them."""
    labels, num_labels = case
    means = _normal(seed, num_labels + 1, 3, dtype=torch.float32) * 1e-3
    counts = torch.randint(0, 100, (num_labels + 1,), generator=torch.Generator().manual_seed(seed)).to(count_dtype)
    embeddings = 5.0 + _normal(seed + 1, len(labels), 3, dtype=torch.float32)
    sums, batch_counts = class_sums(embeddings, labels, num_labels + 1)  # the last class is absent in any case
    refreshed = refreshed_label_vectors(means, counts, sums, batch_counts.to(count_dtype), memory)
    absent = batch_counts == 0
    assert torch.equal(refreshed[absent].view(torch.int32), means[absent].view(torch.int32))
    assert (refreshed[~absent] != means[~absent]).any(dim=1).all()


@given(
    st.lists(st.tuples(label_lists(min_size=0), SEEDS), min_size=1, max_size=4),
    st.sampled_from([0, 1, 3, 7.5, 50, math.inf]),
)
def test_refreshed_means_follow_the_memory(cases: list[tuple[tuple[Tensor, int], int]], memory: float) -> None:
    """Means that never forget, forget at once, or weigh a batch instead of its rows."""
    num_labels = max(size for (_, size), _ in cases)
    batches = [(_normal(seed, len(labels), 2), labels.long()) for (labels, _), seed in cases]
    start = _normal(0, num_labels, 2)
    means, counts = start, torch.zeros(num_labels, dtype=torch.int64)
    for embeddings, labels in batches:
        sums, batch_counts = class_sums(embeddings, labels, num_labels)
        means = refreshed_label_vectors(means, counts, sums, batch_counts, memory)
        counts = counts + batch_counts.long()
    np.testing.assert_allclose(means, _reference_running_means(batches, start, memory), rtol=1e-9, atol=1e-12)


@given(label_lists(min_size=2), SEEDS, st.sampled_from([1_000, math.inf]))
def test_large_memory_is_the_exact_mean_of_all_rows(case: tuple[Tensor, int], seed: int, memory: float) -> None:
    """A running mean that depends on how the rows were cut into batches: 1 x 8 rows unlike 2 x 4."""
    labels, num_labels = case
    embeddings, cut = _normal(seed, len(labels), 3), len(labels) // 2
    means, counts = torch.zeros(num_labels, 3, dtype=torch.float64), torch.zeros(num_labels)
    for part in (slice(None, cut), slice(cut, None)):
        sums, batch_counts = class_sums(embeddings[part], labels[part], num_labels)
        means = refreshed_label_vectors(means, counts, sums, batch_counts, memory)
        counts = counts + batch_counts
    torch.testing.assert_close(means, _refreshed_from_nothing(embeddings, labels, num_labels, memory))
    for label in labels.unique():
        torch.testing.assert_close(means[label], embeddings[labels == label].mean(dim=0))


@given(SEEDS, st.integers(2, 8), st.booleans())
def test_single_row_class_has_its_row_as_centroid(seed: int, num_labels: int, with_labels: bool) -> None:
    """NaN gradients or a wrong prediction when a class has one row in the batch: its distance is exactly 0."""
    embeddings = _normal(seed, num_labels, 16, dtype=torch.float32).requires_grad_()
    labels = torch.randperm(num_labels, generator=torch.Generator().manual_seed(seed))
    label_vectors = _refreshed_from_nothing(embeddings, labels, num_labels)
    assert torch.equal(label_vectors[labels], embeddings)
    distances = pairwise_distances(embeddings, label_vectors, labels if with_labels else None)
    assert distances.argmin(dim=1).tolist() == labels.tolist()
    if with_labels:
        assert distances.gather(1, labels[:, None]).eq(SMALLEST_DISTANCE).all()
    (gradient,) = torch.autograd.grad(pull_loss(distances, labels), embeddings)
    assert gradient.isfinite().all()
    assert gradient.abs().max() > 0


# --- distances -------------------------------------------------------------------------------------------------------


@given(label_lists(ignored=True), SEEDS, st.sampled_from([0.01, 1.0, 30.0]), st.booleans())
def test_distances_equal_float64_cdist(case: tuple[Tensor, int], seed: int, noise: float, with_labels: bool) -> None:
    """Distances that are plausible and wrong: a lost factor, a transposed matrix, labels scattered elsewhere."""
    labels, num_labels = case
    embeddings, label_vectors = _clusters(seed, labels, num_labels, 8, noise)
    expected = _reference_distances(embeddings, label_vectors)
    given_labels = labels if with_labels else None
    torch.testing.assert_close(pairwise_distances(embeddings, label_vectors, given_labels), expected)
    embeddings, label_vectors = embeddings.float(), label_vectors.float()
    single = pairwise_distances(embeddings, label_vectors, given_labels)
    _assert_float32_accuracy(single, embeddings, label_vectors, given_labels)


@given(label_lists(), SEEDS)
def test_labels_only_sharpen_the_own_distance(case: tuple[Tensor, int], seed: int) -> None:
    """The exact own distance written into another row or column."""
    labels, num_labels = case
    embeddings, label_vectors = _clusters(seed, labels, num_labels, 8, noise=1e-3, dtype=torch.float32)
    plain, sharp = pairwise_distances(embeddings, label_vectors), pairwise_distances(embeddings, label_vectors, labels)
    own = F.one_hot(labels, num_labels).bool()
    assert torch.equal(plain[~own], sharp[~own])
    exact = _reference_distances(embeddings, label_vectors)[own]
    torch.testing.assert_close(sharp[own].double(), exact, rtol=1e-6, atol=SMALLEST_DISTANCE)


@given(label_lists(), SEEDS, st.sampled_from([0.01, 1.0]), st.sampled_from([4, 64]), st.booleans())
def test_common_offset_does_not_change_distances(
    case: tuple[Tensor, int], seed: int, noise: float, dim: int, with_labels: bool
) -> None:
    """Embeddings behind a bias or a ReLU, whose common offset eats all digits of the expanded square."""
    labels, num_labels = case
    embeddings, label_vectors = _clusters(seed, labels, num_labels, dim, noise, dtype=torch.float32)
    given_labels = labels if with_labels else None
    moved_rows, moved_columns = embeddings + 1_000, label_vectors + 1_000
    distances = pairwise_distances(embeddings, label_vectors, given_labels)
    moved = pairwise_distances(moved_rows, moved_columns, given_labels)
    far = distances >= 1.0
    assert ((moved - distances).abs() < 1e-4 * distances)[far].all()

    _assert_float32_accuracy(moved, moved_rows, moved_columns, given_labels)
    if with_labels:
        own = F.one_hot(labels, num_labels).bool()
        rounding = math.sqrt(dim) * 2 * (moved_rows.abs().max() * EPSILON / 2)  # of a difference of two inputs
        assert ((moved - distances).abs()[own] <= rounding + SMALLEST_DISTANCE).all()


@pytest.mark.parametrize("with_labels", [False, True])
def test_gradient_is_finite_at_zero_distance(with_labels: bool) -> None:
    """The infinite slope of the square root at 0: one row on its label vector turns every weight into NaN."""
    label_vectors = _normal(0, 3, 8, dtype=torch.float32).requires_grad_()
    embeddings = torch.cat([label_vectors.detach(), torch.zeros(1, 8)]).requires_grad_()
    labels = torch.tensor([0, 1, 2, 1])
    distances = pairwise_distances(embeddings, label_vectors, labels if with_labels else None)
    assert distances.min() >= SMALLEST_DISTANCE
    loss = distances.sum() + pull_loss(distances, labels, scale=30.0)
    for gradient in torch.autograd.grad(loss, [embeddings, label_vectors]):
        assert gradient.isfinite().all()
        assert gradient.abs().max() > 0


@given(SEEDS, st.sampled_from([1e-5, 1e-4, 1e-2, 1.0]))
def test_own_distance_has_unit_gradient(seed: int, noise: float) -> None:
    """Rounding noise under the square root, which multiplies the pull on rows close to their label vector."""
    labels = torch.arange(4)
    embeddings, label_vectors = _clusters(seed, labels, 4, 16, noise, dtype=torch.float32)
    embeddings.requires_grad_()
    own = pairwise_distances(embeddings, label_vectors, labels).gather(1, labels[:, None])
    (gradient,) = torch.autograd.grad(own.sum(), embeddings)
    torch.testing.assert_close(gradient.norm(dim=1), torch.ones(4), rtol=1e-4, atol=0.0)


# --- losses ----------------------------------------------------------------------------------------------------------


@given(
    label_lists(ignored=True),
    SEEDS,
    st.sampled_from([0.0, 0.1, 0.9]),
    st.booleans(),
    st.sampled_from(["mean", "sum", "none"]),
)
def test_pull_loss_equals_cross_entropy(
    case: tuple[Tensor, int], seed: int, smoothing: float, weighted: bool, reduction: str
) -> None:
    """A mean over the wrong rows or weights: the loss of another learning rate."""
    labels, num_labels = case
    if (labels == IGNORE_INDEX).all():
        labels = torch.cat([labels, torch.tensor([0])])
    distances = _normal(seed, len(labels), num_labels).abs().requires_grad_()
    weights = _normal(seed + 1, num_labels).abs() + 0.1 if weighted else None
    options = {"label_smoothing": smoothing, "reduction": reduction}
    actual = pull_loss(distances, labels, 2.5, class_weights=weights, **options)
    expected = F.cross_entropy(-2.5 * distances, labels, weight=weights, **options)
    torch.testing.assert_close(actual, expected)
    gradients = [torch.autograd.grad(loss.sum(), distances)[0] for loss in (actual, expected)]
    torch.testing.assert_close(*gradients)


@given(label_lists(), SEEDS)
def test_class_weights_are_cast_to_the_loss(case: tuple[Tensor, int], seed: int) -> None:
    """Weights in float64 from numpy, or in half precision from a cast model, that stop or coarsen the loss."""
    labels, num_labels = case
    distances = _normal(seed, len(labels), num_labels, dtype=torch.float32).abs()
    weights = torch.arange(1, num_labels + 1)
    expected = F.cross_entropy(-distances, labels, weight=weights.float())
    for dtype in (torch.float64, torch.bfloat16):
        torch.testing.assert_close(pull_loss(distances, labels, class_weights=weights.to(dtype)), expected)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_batch_without_labels_gives_zero(reduction: str, weighted: bool, smoothing: float) -> None:
    """0 / 0 on a batch of padding only: NaN in every weight at the next step."""
    embeddings = _normal(0, 3, 4, dtype=torch.float32).requires_grad_()
    labels = torch.full((3,), IGNORE_INDEX)
    label_vectors = _normal(1, 2, 4, dtype=torch.float32)
    weights = torch.tensor([1.0, 2.0]) if weighted else None
    loss = pull_loss(
        pairwise_distances(embeddings, label_vectors, labels),
        labels,
        label_smoothing=smoothing,
        class_weights=weights,
        reduction=reduction,
    )
    loss = loss + repel_loss(embeddings, labels, 2)
    assert loss == 0
    (gradient,) = torch.autograd.grad(loss, embeddings)
    assert gradient.eq(0).all()
    sums, counts = class_sums(embeddings, labels, 2)
    assert torch.equal(refreshed_label_vectors(label_vectors, counts, sums, counts, memory=0), label_vectors)


@given(label_lists(), SEEDS, st.sampled_from([1e-3, 1.0, 1e3]))
def test_repel_closed_form_equals_all_pairs(case: tuple[Tensor, int], seed: int, size: float) -> None:
    """The O(BD) form of another loss: a sum for a mean, pairs of one class kept, directions not normalised."""
    labels, num_labels = case
    embeddings = (size * _normal(seed, len(labels), 5)).requires_grad_()
    actual, expected = repel_loss(embeddings, labels, num_labels), _reference_repel(embeddings, labels)
    torch.testing.assert_close(actual, expected)
    gradients = [torch.autograd.grad(loss, embeddings)[0] for loss in (actual, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-6, atol=1e-9 / size)


def test_repel_is_finite_for_a_zero_embedding() -> None:
    """0 / 0 in the direction of an embedding that a ReLU switched off."""
    embeddings = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0]]).requires_grad_()
    loss = repel_loss(embeddings, torch.tensor([0, 1, 2]), 3)
    torch.testing.assert_close(loss.detach(), torch.tensor(2 * math.sqrt(0.5) / 9))
    (gradient,) = torch.autograd.grad(loss, embeddings)
    assert gradient.isfinite().all()


# --- precision -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_reduced_in_float32(dtype: torch.dtype) -> None:
    """Sums that stall at 256 (bfloat16) or 2,048 (float16), and squares that overflow at 65,504."""
    ones, labels = torch.ones(3_000, 1, dtype=dtype), torch.zeros(3_000, dtype=torch.int64)
    sums, counts = class_sums(ones, labels, 1)
    assert (sums.item(), counts.item(), sums.dtype, counts.dtype) == (3_000, 3_000, torch.float32, torch.float32)

    rows, columns = (200 * _normal(0, 6, 32)).to(dtype), (200 * _normal(1, 4, 32)).to(dtype)
    targets = torch.tensor([0, 1, 2, 3, 0, 1])
    for given_labels in (None, targets):
        distances = pairwise_distances(rows, columns, given_labels)
        assert distances.dtype == torch.float32
        torch.testing.assert_close(distances.double(), _reference_distances(rows, columns), rtol=1e-5, atol=0.0)
    torch.testing.assert_close(repel_loss(rows, targets, 4), _reference_repel(rows.float(), targets))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_distances_are_scaled_in_float32(dtype: torch.dtype) -> None:
    """Logits rounded to three digits, or overflowing at 65,504, by the multiplication with the scale."""
    targets = torch.tensor([0, 1, 2, 0])
    for size, scale in ((1.0, 7.3), (900.0, 100.0)):
        distances = (size * (1.0 + _normal(0, 4, 3).abs() / 100)).to(dtype)
        loss = pull_loss(distances, targets, scale)
        assert loss.dtype == torch.float32
        torch.testing.assert_close(loss, F.cross_entropy(-scale * distances.float(), targets))


def test_autocast_does_not_reach_the_distances() -> None:
    """Mixed precision that turns the expanded square's product into bfloat16: errors of 0.1 % to 100 %, silently."""
    labels = torch.arange(8) % 4
    embeddings, label_vectors = _clusters(0, labels, 4, 32, noise=0.1, dtype=torch.float32)
    weights = torch.ones(4)
    expected = pairwise_distances(embeddings, label_vectors)
    expected_loss = pull_loss(expected, labels, 20.0, class_weights=weights)
    expected_repel = repel_loss(embeddings, labels, 4)
    expected_means = _refreshed_from_nothing(embeddings, labels, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        distances = pairwise_distances(embeddings, label_vectors)
        loss = pull_loss(distances, labels, 20.0, class_weights=weights)
        repel, means = repel_loss(embeddings, labels, 4), _refreshed_from_nothing(embeddings, labels, 4)
    torch.testing.assert_close(means, expected_means)
    torch.testing.assert_close(repel, expected_repel)
    torch.testing.assert_close(distances, expected)
    torch.testing.assert_close(loss, expected_loss)


@given(label_lists(min_size=2), SEEDS)
def test_gradients_are_those_of_the_values(case: tuple[Tensor, int], seed: int) -> None:
    """A detached factor: the loss falls, but along a direction that is not its gradient."""
    labels, num_labels = case
    embeddings, label_vectors = _clusters(seed, labels, num_labels, 2, noise=1.0)
    embeddings.requires_grad_()
    label_vectors.requires_grad_()
    scale = torch.tensor(1.7, dtype=torch.float64, requires_grad=True)

    def merged(means: Tensor, rows: Tensor) -> Tensor:
        sums, batch_counts = class_sums(rows, labels, num_labels)
        return refreshed_label_vectors(means, torch.arange(num_labels), sums, batch_counts, memory=2)

    def pulled(rows: Tensor, columns: Tensor, factor: Tensor) -> Tensor:
        return pull_loss(pairwise_distances(rows, columns, labels), labels, factor, label_smoothing=0.1)

    assert torch.autograd.gradcheck(merged, (label_vectors, embeddings))
    assert torch.autograd.gradcheck(pairwise_distances, (embeddings, label_vectors))
    assert torch.autograd.gradcheck(pulled, (embeddings, label_vectors, scale))
    assert torch.autograd.gradcheck(lambda rows: repel_loss(rows, labels, num_labels), (embeddings,))
    # Rows that are alone in their class sit on a kink (distance 0), where finite differences mean nothing.
    twice = torch.cat([labels, labels])
    doubled = torch.cat([embeddings.detach(), embeddings.detach() + _normal(seed + 2, len(labels), 2)])
    assert torch.autograd.gradcheck(lambda rows: _step_loss(rows, twice, num_labels), (doubled.requires_grad_(),))


# --- calibration -----------------------------------------------------------------------------------------------------


@given(label_lists(min_size=4), SEEDS, st.sampled_from([0.05, 0.5, 3.0]), st.sampled_from([1, 2]))
def test_calibrated_scale_has_the_least_leave_one_out_loss(
    case: tuple[Tensor, int], seed: int, noise: float, power: int
) -> None:
    """A scale fitted to rows that are part of their own mean: far too large, and training starts overconfident."""
    labels, num_labels = case
    embeddings, _ = _clusters(seed, labels, num_labels, 4, noise)
    means = _refreshed_from_nothing(embeddings, labels, num_labels)
    seen = labels.bincount(minlength=num_labels) > 0
    labels, means = (torch.cumsum(seen, dim=0) - 1)[labels], means[seen]  # absent classes have a test of their own
    counts = labels.bincount()
    distances = pairwise_distances(embeddings, means, labels)
    if (counts == 1).all():
        expected = 1.0 / float((distances**power).mean())
        assert calibrated_scale(distances, labels, counts, power) == pytest.approx(expected)
        return
    losses = _reference_scale_losses(embeddings, labels, len(counts), power)
    scale = calibrated_scale(distances, labels, counts, power)
    nearest = min(losses, key=lambda candidate: abs(candidate - scale))
    assert scale == pytest.approx(nearest, rel=1e-6)  # it is on the grid
    assert losses[nearest] <= min(losses.values()) + 1e-9


@given(label_lists(min_size=4), SEEDS)
def test_leave_one_out_equals_recomputed_means(case: tuple[Tensor, int], seed: int) -> None:
    """A stretch of n - 1 over n, or one applied to another class's distance."""
    labels, num_labels = case
    labels = torch.cat([labels, torch.arange(num_labels), torch.arange(num_labels)])  # two rows each at least
    embeddings = _normal(seed, len(labels), 4)
    means = _refreshed_from_nothing(embeddings, labels, num_labels)
    actual = leave_one_out(pairwise_distances(embeddings, means, labels), labels, labels.bincount())
    torch.testing.assert_close(actual, _reference_held_out(embeddings, labels, num_labels))


def test_single_rows_do_not_push_the_scale_up() -> None:
    """Singletons, at distance 0 to their own mean, that vote for the largest scale of the grid."""
    labels = torch.tensor([0, 0, 0, 1, 1, 1, 2, 3, 4, 5, 6, 7])
    embeddings = _normal(3, len(labels), 4)
    means = _refreshed_from_nothing(embeddings, labels, 8)
    distances = pairwise_distances(embeddings, means, labels)
    losses = _reference_scale_losses(embeddings, labels, 8)
    scale = calibrated_scale(distances, labels, labels.bincount())
    assert scale == pytest.approx(min(losses, key=losses.__getitem__), rel=1e-6)
    naive = {s: float(F.cross_entropy(-s * distances, labels)) for s in losses}
    assert min(naive, key=naive.__getitem__) > 2 * scale  # what the test guards against would show


def test_all_single_rows_give_the_inverse_mean_distance() -> None:
    """An empty mean, NaN, as the scale of a data set with one example per class."""
    embeddings = _normal(0, 5, 4, dtype=torch.float32)
    distances = pairwise_distances(embeddings, embeddings, torch.arange(5))
    scale = calibrated_scale(distances, torch.arange(5), torch.ones(5))
    assert scale == pytest.approx(1.0 / float(_reference_distances(embeddings, embeddings).mean()), rel=1e-5)


@given(SEEDS, st.sampled_from([1e3, math.nan]))
def test_ignored_rows_do_not_change_the_scale(seed: int, content: float) -> None:
    """A padding row that shifts the whole grid of scales, or makes the scale NaN."""
    labels = torch.tensor([0, 0, 1, 1, 2, 2])
    embeddings, label_vectors = _clusters(seed, labels, 3, 4, noise=0.5)
    distances, counts = pairwise_distances(embeddings, label_vectors, labels), torch.tensor([2, 2, 2])
    padded = torch.cat([distances, torch.full((2, 3), content, dtype=torch.float64)])
    padded_labels = torch.cat([labels, torch.tensor([IGNORE_INDEX] * 2)])
    expected = calibrated_scale(distances, labels, counts)
    assert calibrated_scale(padded, padded_labels, counts) == pytest.approx(expected, rel=1e-9)


@given(SEEDS, st.sampled_from([0.0, 1e3]))
def test_classes_without_a_mean_do_not_change_the_scale(seed: int, content: float) -> None:
    """Distances to the placeholder of an unseen class that shift the grid, or make it a candidate."""
    labels = torch.tensor([0, 0, 1, 1, 2, 2])
    embeddings, label_vectors = _clusters(seed, labels, 3, 4, noise=0.5)
    distances, counts = pairwise_distances(embeddings, label_vectors, labels), torch.tensor([2, 2, 2])
    wider = torch.cat([distances, torch.full((6, 1), content, dtype=torch.float64)], dim=1)
    wider_counts = torch.tensor([2, 2, 2, 0])
    expected = calibrated_scale(distances, labels, counts)
    assert calibrated_scale(wider, labels, wider_counts) == pytest.approx(expected, rel=1e-9)


@given(seed=st.integers(0, 2**31 - 1), rows=st.integers(1, 40))
def test_common_drift_is_the_mean_residual_however_rows_are_split(seed, rows):
    """Class sums are added over processes, so the drift must come from sums alone."""
    generator = torch.Generator().manual_seed(seed)
    means = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    values = torch.randn(rows, 4, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 5, (rows,), generator=generator)  # the last class has no rows
    residual = (values - means[labels]).mean(dim=0)
    parts = [class_sums(values[part], labels[part], 6) for part in (slice(0, rows // 2), slice(rows // 2, None))]
    sums, counts = (sum(pieces) for pieces in zip(*parts, strict=True))
    torch.testing.assert_close(common_drift(means, sums, counts), residual)
    assert common_drift(means, torch.zeros_like(sums), torch.zeros_like(counts)).eq(0).all()
