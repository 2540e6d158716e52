"""Measures: against the authors' numbers, SciPy, and cases one can work out by hand."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.distance import pdist, squareform

from hf_lwal import metrics
from hf_lwal.hierarchy import group_distances, label_distances

ORACLE = json.loads((Path(__file__).parent / "oracle" / "wordnet_tau.json").read_text())
LINE = np.array([0.0, 1.0, 3.0, 7.0])
"""Places on a line whose distances are all different."""


def distances_of(points):
    return squareform(pdist(np.asarray(points).reshape(len(points), -1)))


# -- structure ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ORACLE)
def test_structure_correlation_is_the_authors(name):
    case = ORACLE[name]
    distances, reference = label_distances(case["label_vectors"]), case["wordnet_shortest_path"]
    np.testing.assert_allclose(
        metrics.class_correlations(distances, reference), case["tau_b_per_class"], rtol=0, atol=1e-6
    )
    assert metrics.structure_correlation(distances, reference) == pytest.approx(
        case["structure_correlation"], abs=1e-6
    )


def test_correlation_by_hand():
    """Class 0 orders the others 1, 2, 3 and the reference 1, 3, 2: two pairs agree, one does not, tau = 1/3."""
    label, reference = np.zeros((4, 4)), np.zeros((4, 4))
    label[0], reference[0] = [0, 1, 2, 3], [0, 1, 3, 2]
    assert metrics.class_correlations(label, reference)[0] == pytest.approx(1 / 3)


def test_ties_count_as_in_tau_b():
    """Two concordant pairs, one tied in the reference alone: 2 / sqrt(3 · 2)."""
    label, reference = np.zeros((4, 4)), np.zeros((4, 4))
    label[0], reference[0] = [0, 1, 2, 3], [0, 5, 5, 6]
    assert metrics.class_correlations(label, reference)[0] == pytest.approx(2 / math.sqrt(6))


def test_the_distance_to_oneself_is_not_compared():
    """It is the least on both sides and would raise every score."""
    label = distances_of(LINE)
    shifted = label + 100.0 * np.eye(4)
    assert metrics.structure_correlation(shifted, label) == metrics.structure_correlation(label, label) == 1.0


def test_unknown_classes_are_left_out_on_both_sides():
    label, reference = distances_of(np.arange(36).reshape(6, 6) ** 1.5), distances_of([0, 5, 1, 2, 9, 4])
    kept = [0, 1, 3, 5]
    expected = metrics.structure_correlation(label[np.ix_(kept, kept)], reference[np.ix_(kept, kept)])
    reference[2], reference[:, 2] = np.nan, np.nan  # no reference
    label[4], label[:, 4] = np.nan, np.nan  # no label vector
    label[4, 4] = 0.0  # whatever the diagonal says
    assert metrics.structure_correlation(label, reference) == pytest.approx(expected)
    missing = np.isnan(metrics.class_correlations(label, reference))
    assert missing.tolist() == [False, False, True, False, True, False]


def test_labels_without_structure_score_zero_and_a_reference_without_structure_nothing():
    corners, line = 1.0 - np.eye(4), distances_of(LINE)
    assert metrics.structure_correlation(corners, line) == 0.0
    assert math.isnan(metrics.structure_correlation(line, corners))


def test_largest_correlation_is_reached_and_not_passed():
    """Label distances without ties cannot reach 1 against a reference with ties."""
    reference = group_distances(["a", "a", "a", "b", "b", "c", None])
    largest = metrics.largest_correlation(reference)
    generator = np.random.default_rng(0)
    agreeing = reference + 1e-3 * distances_of(generator.normal(size=(7, 3)))
    assert metrics.structure_correlation(agreeing, reference) == pytest.approx(largest)
    assert 0.5 < largest < 0.9
    assert metrics.structure_correlation(distances_of(generator.normal(size=(7, 3))), reference) < largest


@pytest.mark.parametrize(
    ("label", "reference", "message"),
    [
        (np.zeros((3, 4)), np.zeros((3, 3)), r"label_distances must have the shape \(C, C\), got \(3, 4\)"),
        (np.zeros((3, 3)), np.zeros((4, 4)), r"same classes in the same order.*\(3, 3\) and \(4, 4\)"),
        (np.zeros((2, 2)), np.zeros((2, 2)), r"at least 3 classes .* there are 2"),
        (np.full((3, 3), np.inf), np.zeros((3, 3)), r"label_distances must be finite"),
    ],
)
def test_bad_matrices_are_one_clear_sentence(label, reference, message):
    with pytest.raises(ValueError, match=message):
        metrics.structure_correlation(label, reference)


# -- maps -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plane():
    return np.random.default_rng(1).normal(size=(12, 2))


def test_a_map_of_points_in_the_plane_keeps_their_distances(plane):
    positions = metrics.map_positions(distances_of(plane))
    np.testing.assert_allclose(distances_of(positions), distances_of(plane), atol=0.02)


def test_disparity_ignores_shift_scale_turn_and_mirror(plane):
    turned = 5.0 * plane @ np.array([[0.6, 0.8], [0.8, -0.6]]) + 3.0
    assert metrics.mds_disparity(distances_of(turned), distances_of(plane)) < 1e-6


def test_disparity_of_planar_points_is_procrustes_own(plane):
    """Where MDS has nothing to lose, the measure must be the Procrustes distance of the points themselves."""
    from scipy.spatial import procrustes

    other = plane + 0.5 * np.random.default_rng(2).normal(size=plane.shape)
    expected = procrustes(plane, other)[2]
    assert metrics.mds_disparity(distances_of(other), distances_of(plane)) == pytest.approx(expected, rel=0.05)


def test_disparity_leaves_unknown_classes_out(plane):
    label, reference = distances_of(plane), distances_of(plane**3)
    expected = metrics.mds_disparity(label[1:, 1:], reference[1:, 1:])
    reference[0], reference[:, 0] = np.nan, np.nan
    assert metrics.mds_disparity(label, reference) == pytest.approx(expected)


def test_labels_on_one_point_have_no_map(plane):
    with pytest.raises(ValueError, match="All labels lie on one point"):
        metrics.mds_disparity(np.zeros((12, 12)), distances_of(plane))


# -- curves ---------------------------------------------------------------------------------------------------------


def test_steps_to_accuracy_takes_the_first_point_not_the_best():
    curve = [(0, 0.1), (10, 0.8), (20, 0.7), (30, 0.9)]
    assert metrics.steps_to_accuracy(curve, 0.75) == 10.0
    assert metrics.steps_to_accuracy(curve, 0.1) == 0.0
    assert metrics.steps_to_accuracy(curve, 0.95) is None
    assert metrics.steps_to_accuracy([(0, math.nan), (5, 0.5)], 0.2) == 5.0
    assert metrics.steps_to_accuracy([], 0.2) is None


def test_percent_reduced():
    assert metrics.percent_reduced(20, 8) == pytest.approx(60.0)
    assert metrics.percent_reduced(20, 30) == pytest.approx(-50.0)
    assert metrics.percent_reduced(20, 0) == 100.0
    assert metrics.percent_reduced(20, None) is None
    assert metrics.percent_reduced(None, 3) is None
    assert metrics.percent_reduced(0, 3) is None
    with pytest.raises(ValueError, match="cannot be negative: got reference 20 and own -1"):
        metrics.percent_reduced(20, -1)


def test_mean_and_sd_is_the_sample_deviation():
    values = [88.1, 87.4, 89.3]
    assert metrics.mean_and_sd(values) == (pytest.approx(np.mean(values)), pytest.approx(np.std(values, ddof=1)))
    assert metrics.mean_and_sd([5]) == (5.0, None)
    assert math.isnan(metrics.mean_and_sd([1.0, math.nan]).sd)


@pytest.mark.parametrize("measure", [metrics.auac, metrics.mean_and_sd])
def test_nothing_has_no_mean(measure):
    with pytest.raises(ValueError, match="is empty"):
        measure([])


# -- evaluate -------------------------------------------------------------------------------------------------------

OFFLINE = """
import json, evaluate, numpy as np
from hf_lwal import metrics
case = json.load(open({oracle!r}))["cifar10"]
vectors = np.asarray(case["label_vectors"])
distances = np.linalg.norm(vectors[:, None] - vectors, axis=2)
pair = dict(predictions=distances, references=np.asarray(case["wordnet_shortest_path"], dtype=float))
load = lambda name: evaluate.load(metrics.path(name))
print(json.dumps({{
    **load("auac").compute(predictions=[0.25, 0.5, 0.75]),
    **load("learning_speed").compute(predictions=[0.2, 0.6], references=[0.3, 0.5], x=[10, 40]),
    **load("structure_correlation").compute(**pair),
    **load("mds_disparity").compute(**pair),
    **load("expected_calibration_error").compute(predictions=[[0.8, 0.2], [0.2, 0.8]], references=[0, 0]),
}}))
"""


def test_evaluate_loads_the_measures_from_the_package_offline(tmp_path):
    """With an empty cache and no network, as on a cluster node."""
    environment = {**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", "HF_EVALUATE_OFFLINE": "1"}
    code = OFFLINE.format(oracle=str(Path(__file__).parent / "oracle" / "wordnet_tau.json"))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    values = json.loads(done.stdout.splitlines()[-1])
    case = ORACLE["cifar10"]
    disparity = metrics.mds_disparity(label_distances(case["label_vectors"]), case["wordnet_shortest_path"])
    assert values == {
        "auac": 0.5,
        "target_accuracy": 0.5,
        "reached": 40.0,
        "reference_reached": 40.0,
        "percent_reduced": 0.0,
        "structure_correlation": pytest.approx(case["structure_correlation"], abs=1e-6),
        "mds_disparity": pytest.approx(disparity, abs=1e-3),
        "expected_calibration_error": pytest.approx(0.3),
    }


def test_every_measure_of_the_list_has_its_file_and_others_are_named():
    for name in metrics.modules.MODULES:
        assert Path(metrics.path(name)).is_file()
    with pytest.raises(
        ValueError, match=r"no measure 'f1': choose one of auac, expected_calibration_error, learning_speed"
    ):
        metrics.path("f1")
