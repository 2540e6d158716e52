"""The hierarchy says what the label vectors say: checked against SciPy and against hand-made geometry."""

import tracemalloc
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.cluster.hierarchy import dendrogram, fcluster
from scipy.spatial.distance import pdist, squareform

from hf_lwal.hierarchy import (
    as_matrix,
    cluster_names,
    group_distances,
    label_distances,
    label_drift,
    leaf_order,
    linkage,
    nearest_labels,
    reference_clusters,
)
from hf_lwal.hierarchy import tree as hierarchy
from hf_lwal.modeling import functional, label_table_file


@pytest.fixture
def label_vectors():
    """Three tight groups of four labels: (12, 5)."""
    generator = np.random.default_rng(0)
    centres = 10.0 * generator.normal(size=(3, 1, 5))
    return (centres + generator.normal(size=(3, 4, 5))).reshape(12, 5)


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_distances_are_scipys(label_vectors, metric):
    np.testing.assert_allclose(
        label_distances(label_vectors, metric), squareform(pdist(label_vectors, metric)), atol=1e-9
    )


def test_distances_keep_their_digits_under_a_common_offset(label_vectors):
    """Label vectors share an offset in practice; expanding the square without centring would return noise."""
    np.testing.assert_allclose(label_distances(label_vectors + 1e6), label_distances(label_vectors), rtol=1e-6)


def test_distances_are_symmetric_with_an_exact_zero_diagonal(label_vectors):
    distances = label_distances(label_vectors.repeat(2, axis=0))
    assert (distances == distances.T).all()
    assert (np.diag(distances) == 0.0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tensors_of_a_model_are_accepted(dtype):
    """A parameter that requires grad, or a dtype NumPy lacks, must not fail."""
    vectors = torch.nn.Parameter(torch.eye(3, dtype=dtype))
    np.testing.assert_allclose(label_distances(vectors)[0, 1], np.sqrt(2.0))


def test_average_linkage_finds_the_groups(label_vectors):
    merges = linkage(label_distances(label_vectors))
    assert merges.shape == (11, 4)
    clusters = fcluster(merges, 3, criterion="maxclust").reshape(3, 4)
    assert (clusters == clusters[:, :1]).all()
    assert len(set(clusters[:, 0])) == 3


def test_leaf_order_keeps_groups_together(label_vectors):
    groups = [leaf // 4 for leaf in leaf_order(linkage(label_distances(label_vectors)))]
    assert sum(a != b for a, b in pairwise(groups)) == 2


def test_nearest_labels_of_duplicates_are_each_other_not_themselves():
    nearest = nearest_labels(label_distances([[0.0], [0.0], [9.0]]), ["a", "b", "c"], top_k=5)
    assert nearest[:2] == [[("b", 0.0), ("c", 9.0)], [("a", 0.0), ("c", 9.0)]]


def test_clusters_are_those_that_scipy_colours():
    """Figure 3 of the paper colours leaves as SciPy's dendrogram of the reference does."""
    points = np.random.default_rng(3).normal(size=(40, 6))
    distances = squareform(pdist(points))
    found = reference_clusters(distances)
    picture = dendrogram(linkage(distances), no_plot=True)
    coloured = dict(zip(picture["leaves"], picture["leaves_color_list"], strict=True))
    alone = [label for label in range(40) if found[label] is None]
    assert all(coloured[label] == "C0" for label in alone), "C0 is SciPy's colour of what is in no cluster"
    assert len(set(found) - {None}) > 2
    for label, cluster in enumerate(found):
        # SciPy's leaves with one colour side by side are one cluster
        if cluster is not None:
            assert {coloured[other] for other in range(40) if found[other] == cluster} == {coloured[label]} != {"C0"}


def test_a_branch_at_the_threshold_itself_is_not_cut_off():
    """Path lengths are whole numbers and meet the threshold often; SciPy colours what is strictly below it."""
    distances = label_distances([[0.0], [7.0], [10.0 + 3.5]])  # 0 and 1 would meet at 7, 1 and 2 meet first at 6.5
    assert linkage(distances)[:, 2].tolist() == [6.5, 10.25]
    assert reference_clusters(distances, threshold=6.5 / 10.25) == [None, None, None]
    assert reference_clusters(distances, threshold=0.64) == [None, 0, 0]


def test_labels_without_reference_are_in_no_cluster():
    distances = np.full((4, 4), np.nan)
    distances[np.ix_([0, 2, 3], [0, 2, 3])] = [[0, 1, 9], [1, 0, 9], [9, 9, 0]]
    assert reference_clusters(distances) == [0, None, 0, None]
    assert reference_clusters(np.full((3, 3), np.nan)) == [None, None, None]


def test_clusters_are_called_by_their_labels():
    names = cluster_names([0, 1, 0, None, 0, 0], list("abcdef"), most=2)
    assert names == ["a, c +2", "b", "a, c +2", None, "a, c +2", "a, c +2"]


def test_group_distances_of_labels_that_belong_nowhere_are_missing():
    distances = group_distances(["x", None, "y", "x"])
    np.testing.assert_array_equal(distances[0], [0.0, np.nan, 1.0, 0.0])
    assert np.isnan(distances[1]).all()
    assert np.isnan(distances[:, 1]).all()


def test_labels_without_vector_have_no_distances_where_that_is_allowed(label_vectors):
    with_gap = label_vectors.copy()
    with_gap[5] = np.nan
    distances = label_distances(with_gap, allow_missing=True)
    kept = np.delete(np.arange(12), 5)
    np.testing.assert_allclose(distances[np.ix_(kept, kept)], label_distances(label_vectors[kept]))
    assert np.isnan(distances[5]).all()
    with_gap[5, 0] = 1.0  # half a vector is a mistake
    with pytest.raises(ValueError, match=r"rows \[5\] hold NaN"):
        label_distances(with_gap, allow_missing=True)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: label_distances(np.eye(2), "manhattan"), r"metric must be one of euclidean, cosine, got 'manhattan'"),
        (lambda: label_distances(np.ones(3)), r"shape \(C, D\), got \(3,\)"),
        (lambda: as_matrix([[0.0], [float("nan")]]), r"rows \[1\] hold NaN"),
        (lambda: linkage(np.eye(3), "ward"), r"method must be one of average.*got 'ward'"),
        (lambda: linkage(np.ones((2, 3))), r"shape \(C, C\), got \(2, 3\)"),
        (lambda: linkage(np.zeros((1, 1))), r"at least 2 labels"),
        (lambda: label_drift([(0, np.eye(2)), (1, np.eye(3))]), r"one shape, got \(2, 2\) and then \(3, 3\)"),
        (lambda: nearest_labels(np.zeros((2, 2)), ["a"]), r"shape \(1, 1\) for 1 names, got \(2, 2\)"),
    ],
)
def test_bad_input_is_one_clear_sentence(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
@pytest.mark.parametrize(("number", "block"), [(2, 8), (7, 1), (40, 100), (40, 10**6)])
def test_neighbours_block_by_block_are_those_of_the_whole_matrix(monkeypatch, metric, number, block):
    monkeypatch.setattr(hierarchy, "BLOCK", block)
    vectors = np.random.default_rng(number).normal(size=(number, 3)) + 100.0
    vectors[-1] = vectors[0]  # a duplicate is a neighbour, a label itself is not
    names = [str(i) for i in range(number)]
    distances = label_distances(vectors, metric)
    found = hierarchy.neighbourhood(vectors, 5, metric)
    for row, (ours, whole) in enumerate(zip(found.of(names), nearest_labels(distances, names, 5), strict=True)):
        others = [int(name) for name, _ in ours]
        assert row not in others
        assert distances[row, others] == pytest.approx([far for _, far in whole], abs=1e-6)
        assert [far for _, far in ours] == pytest.approx([far for _, far in whole], abs=1e-6)
    above = distances[np.triu_indices(number, 1)]
    assert found.mean == pytest.approx(above.mean(), rel=1e-9)
    assert [far for *_, far in found.closest(5)] == pytest.approx(np.sort(above)[:5], abs=1e-6)


def test_neighbours_of_many_labels_need_no_matrix_of_all():
    """Cards and saved label tables of 20,000 labels took gigabytes."""
    vectors = np.random.default_rng(0).normal(size=(3000, 4))
    tracemalloc.start()
    hierarchy.neighbourhood(vectors, 5)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3000 * 3000 * 8, "not even one matrix"


def test_the_saved_table_needs_no_matrix_of_all(monkeypatch):
    vectors, shapes = torch.randn(50, 4), []
    names, counts = {i: str(i) for i in range(50)}, torch.ones(50, dtype=torch.long)
    whole = label_table_file.label_table_facts(vectors, counts, names)
    exact = functional.pairwise_distances
    monkeypatch.setattr(label_table_file, "BLOCK", 200)
    monkeypatch.setattr(functional, "pairwise_distances", lambda *a: shapes.append(len(a[0])) or exact(*a))
    assert label_table_file.label_table_facts(vectors, counts, names) == whole
    assert set(shapes) == {4, 2}


def test_drift_is_counted_in_root_mean_square_distances():
    """The same number without a look at each pair; twice the variance is the mean square over all of them."""
    before, after = np.random.default_rng(0).normal(size=(2, 30, 4))
    ((_, way),) = label_drift([(0, before), (1, after)])
    pairs = label_distances(after)[np.triu_indices(30, 1)]
    assert way == pytest.approx(np.linalg.norm(after - before, axis=1) / np.sqrt(np.square(pairs).mean()))
