"""Pictures are complete files of a readable size; layout is checked on the numbers behind them."""

import sys
from itertools import combinations

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.transforms import Bbox

from hf_lwal import plots
from hf_lwal.hierarchy import label_distances, label_drift, leaf_order, linkage
from hf_lwal.plots import curves, figures, maps, trees

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def label_vectors():
    return np.random.default_rng(0).normal(size=(12, 4))


@pytest.fixture
def names():
    return [f"label {i}" for i in range(12)]


def png_size(path):
    """Width and height in pixels, read from the file's header."""
    header = path.read_bytes()[:24]
    assert header.startswith(PNG)
    return int.from_bytes(header[16:20], "big"), int.from_bytes(header[20:24], "big")


def drawn(monkeypatch, module, plot, *args, **keywords):
    """The axes of a picture, instead of its file."""
    seen = {}
    monkeypatch.setattr(module, "save_figure", lambda figure, path: seen.update(axes=figure.axes[0]))
    plot(*args, **keywords)
    return seen["axes"]


def test_learning_curves(tmp_path):
    path = plots.plot_learning_curves({"a": [(0, 1.0), (10, 50.0)], "b": [(0, 2.0)]}, tmp_path / "new" / "curves.png")
    assert png_size(path) == (1050, 675)
    assert [child.name for child in path.parent.iterdir()] == ["curves.png"], "temporary files were left behind"


def test_dendrogram_grows_with_the_number_of_labels(tmp_path, label_vectors, names):
    few = plots.plot_dendrogram(label_vectors, names, tmp_path / "few.png", groups=["x", "y", "z"] * 4)
    many = plots.plot_dendrogram(label_vectors.repeat(5, axis=0), names * 5, tmp_path / "many.png")
    assert png_size(few)[1] < png_size(many)[1]


def test_dendrogram_leaves_carry_their_own_names_and_group_colours(tmp_path, label_vectors, names, monkeypatch):
    """Names in the table's order instead of the tree's would label every branch wrongly, with no visible sign."""
    groups = [f"group {i % 3}" if i else None for i in range(12)]
    axes = drawn(monkeypatch, trees, plots.plot_dendrogram, label_vectors, names, "tree.png", groups=groups)
    ticks = axes.get_yticklabels()
    order = leaf_order(linkage(label_distances(label_vectors)))
    assert [tick.get_text() for tick in ticks] == [names[leaf] for leaf in order]
    colours = figures.group_colours(sorted({*groups} - {None}))
    assert colours[None] not in [colours[group] for group in groups if group]
    assert [tick.get_color() for tick in ticks] == [colours[groups[leaf]] for leaf in order]


def test_tree_segments_join_at_the_merge_distance():
    merges = linkage(label_distances([[0.0], [1.0], [5.0]]))
    segments = trees.tree_segments(merges, [2, 0, 1])
    assert segments[0] == [(0.0, 1.0), (1.0, 1.0), (1.0, 2.0), (0.0, 2.0)]  # labels 0 and 1 meet at distance 1
    assert sorted({x for x, _ in segments[1]}) == [0.0, 1.0, 4.5]  # the leaf 2, the first merge, their own distance


def test_a_deep_tree_does_not_recurse():
    """A chain of 3,000 labels is 3,000 levels deep, more than Python's recursion limit."""
    order = list(range(3000))
    merges = np.array([[0 if i == 0 else 2999 + i, i + 1, float(i + 1), i + 2] for i in range(2999)])
    assert len(trees.tree_segments(merges, order)) == 2999


def test_heat_map(tmp_path, label_vectors, names):
    width, height = png_size(plots.plot_label_distances(label_vectors, names, tmp_path / "map.png", metric="cosine"))
    assert width > height > 300


def test_every_group_has_its_own_colour_that_can_be_read_on_white():
    for number in (3, 10, 25):
        colours = figures.group_colours([str(i) for i in range(number)])
        assert len({tuple(np.round(to_rgb(colour), 3)) for colour in colours.values()}) == number + 1
    assert max(to_rgb(colour) @ figures.LUMINANCE for colour in colours.values()) < 0.5


def test_many_curves_differ_in_colour_or_dashes(monkeypatch):
    """The eleventh line has the first one's colour again."""
    lines = {f"method {i}": [(0, 0.0), (1, float(i))] for i in range(14)}
    axes = drawn(monkeypatch, curves, plots.plot_learning_curves, lines, "curves.png")
    styles = [(line.get_color(), line.get_linestyle()) for line in axes.get_lines()]
    assert len(set(styles)) == 14


def test_the_reference_line_marks_where_each_method_gets_there(monkeypatch):
    lines = {"one-hot": [(0, 1.0), (10, 60.0), (20, 50.0)], "fast": [(0, 30.0), (10, 70.0)], "slow": [(0, 0.0)]}
    axes = drawn(monkeypatch, curves, plots.plot_learning_curves, lines, "curves.png", reference="one-hot")
    level = [line for line in axes.get_lines() if line.get_label().startswith("best of one-hot: 60.0")]
    assert list(level[0].get_ydata()) == [60.0, 60.0]
    rings = [line.get_xydata()[0].tolist() for line in axes.get_lines() if line.get_fillstyle() == "none"]
    assert rings == [[10.0, 60.0], [10.0, 70.0]], "the slow method never gets there"
    assert axes.get_ylim()[0] > -10.0, "marks must not stretch the picture"


def test_an_untrained_start_does_not_flatten_the_picture(monkeypatch):
    late = {"a": [(0, 1.0), (5, 80.0), (10, 90.0)], "b": [(0, 0.5), (5, 82.0), (10, 91.0)]}
    bottom, top = drawn(monkeypatch, curves, plots.plot_learning_curves, late, "curves.png").get_ylim()
    assert 75.0 < bottom < 80.0
    assert 91.0 < top < 95.0
    early = {"a": [(0, 75.0), (5, 85.0), (10, 90.0)], "b": [(0, 1.0), (5, 30.0), (10, 60.0)]}
    bottom, _ = drawn(monkeypatch, curves, plots.plot_learning_curves, early, "curves.png").get_ylim()
    assert bottom < 1.0


def test_spread_is_drawn_around_its_own_curve(monkeypatch):
    lines = {"a": [(0, 10.0), (5, 20.0)], "b": [(0, 1.0), (5, 2.0)]}
    axes = drawn(monkeypatch, curves, plots.plot_learning_curves, lines, "curves.png", spread={"a": [1.0, 3.0]})
    (band,) = axes.collections
    assert band.get_datalim(axes.transData).extents.tolist() == [0.0, 9.0, 5.0, 23.0]


def test_drift_of_every_label_against_the_mean_distance(monkeypatch):
    """Two labels 2 apart; the second moves by 1, a half of the mean distance between labels, then neither moves."""
    snapshots = [(0, [[0.0], [1.0]]), (10, [[0.0], [2.0]]), (20, [[0.0], [2.0]])]
    drift = label_drift(snapshots)
    assert [(step, moved.tolist()) for step, moved in drift] == [(10, [0.0, 0.5]), (20, [0.0, 0.0])]
    axes = drawn(monkeypatch, curves, plots.plot_label_drift, drift, "drift.png", top=["still", "moving"])
    lines = {line.get_label(): line.get_ydata().tolist() for line in axes.get_lines()}
    assert lines == {"mean": [25.0, 0.0], "moving": [50.0, 0.0], "still": [0.0, 0.0]}


def test_logged_drift_is_what_the_trainer_logged(tmp_path):
    history = [{"step": 5, "loss": 1.0, "label_drift": 0.2}, {"step": 5, "eval_loss": 1.0}]
    assert plots.logged_drift(history) == [(5.0, 0.2)]
    path = plots.plot_label_drift(plots.logged_drift(history), tmp_path / "drift.svg")
    assert "<svg" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("number", [8, 100])
def test_names_on_a_map_do_not_cover_each_other(monkeypatch, number):
    vectors = np.random.default_rng(0).normal(size=(number, 16))
    names = [f"a_usual_label_{i}" for i in range(number)]
    axes = drawn(monkeypatch, maps, plots.plot_label_map, vectors, names, "map.png", groups=["x"] * number)
    assert sorted(text.get_text() for text in axes.texts) == sorted(names)
    renderer = axes.figure.canvas.get_renderer()
    boxes = [text.get_window_extent(renderer) for text in axes.texts]
    for one, other in combinations(boxes, 2):
        common = Bbox.intersection(one, other)
        assert common is None or common.width * common.height < 0.1 * one.width * one.height


def test_a_map_has_the_distances_of_the_labels(monkeypatch):
    vectors = np.random.default_rng(0).normal(size=(9, 2))
    axes = drawn(monkeypatch, maps, plots.plot_label_map, vectors, list("abcdefghi"), "map.png")
    np.testing.assert_allclose(label_distances(axes.collections[0].get_offsets()), label_distances(vectors), atol=0.02)


def test_a_failed_save_leaves_the_old_picture(tmp_path, monkeypatch):
    path = plots.plot_learning_curves({"a": [(0, 1.0)]}, tmp_path / "curves.png")
    before = path.read_bytes()
    figure, _ = figures.new_figure(2.0, 2.0)
    monkeypatch.setattr(figure, "savefig", lambda *args, **kwargs: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        figures.save_figure(figure, path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda path: plots.plot_learning_curves({}, path), "curves is empty"),
        (lambda path: plots.plot_dendrogram(np.eye(3), ["a"], path), "names .* expected 3, got 1"),
        (lambda path: plots.plot_dendrogram(np.eye(2), ["a", "b"], path, groups=["x"]), "groups .* expected 2, got 1"),
        (lambda path: plots.plot_label_distances(np.eye(3), ["a"], path), "names .* expected 3, got 1"),
        (lambda path: plots.plot_label_map(np.eye(3), ["a"], path), "names .* expected 3, got 1"),
        (lambda path: plots.plot_label_map(np.eye(2), ["a", "b"], path, groups=["x"]), "groups .* expected 2, got 1"),
        (lambda path: plots.plot_learning_curves({"a": [(0, 1.0)]}, path, reference="b"), "reference .* got 'b'"),
        (lambda path: plots.plot_label_drift([], path), "drift is empty"),
        (lambda path: plots.plot_learning_curves({"a": [(0, 1.0)]}, path.with_suffix(".bmp")), "end in one of .png"),
    ],
)
def test_bad_input_is_one_clear_sentence(tmp_path, call, message):
    with pytest.raises(ValueError, match=message):
        call(tmp_path / "out.png")
    assert not list(tmp_path.iterdir())


def test_a_missing_matplotlib_names_the_install_command(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r'pip install "hf-lwal\[plots\]"'):
        plots.plot_learning_curves({"a": [(0, 1.0)]}, tmp_path / "curves.png")
