"""The hierarchy says what the label vectors say: checked against SciPy and against hand-made geometry."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.cluster.hierarchy import fcluster
from scipy.spatial.distance import pdist, squareform

from hf_lwal.hierarchy import as_matrix, label_distances, leaf_order, linkage, nearest_labels


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


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: label_distances(np.eye(2), "manhattan"), r"metric must be one of euclidean, cosine, got 'manhattan'"),
        (lambda: label_distances(np.ones(3)), r"shape \(C, D\), got \(3,\)"),
        (lambda: as_matrix([[0.0], [float("nan")]]), r"rows \[1\] hold NaN"),
        (lambda: linkage(np.eye(3), "ward"), r"method must be one of average.*got 'ward'"),
        (lambda: linkage(np.ones((2, 3))), r"shape \(C, C\), got \(2, 3\)"),
        (lambda: linkage(np.zeros((1, 1))), r"at least 2 labels"),
        (lambda: nearest_labels(np.zeros((2, 2)), ["a"]), r"shape \(1, 1\) for 1 names, got \(2, 2\)"),
    ],
)
def test_bad_input_is_one_clear_sentence(call, message):
    with pytest.raises(ValueError, match=message):
        call()
