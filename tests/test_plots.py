"""Pictures are complete PNG files of a readable size; layout is checked on the numbers behind them."""

import sys

import numpy as np
import pytest

from hf_lwal import plots
from hf_lwal.hierarchy import label_distances, leaf_order, linkage

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
    seen = {}
    monkeypatch.setattr(plots, "save_figure", lambda figure, path: seen.update(axes=figure.axes[0]))
    groups = [f"group {i % 3}" for i in range(12)]
    plots.plot_dendrogram(label_vectors, names, tmp_path / "tree.png", groups=groups)
    ticks = seen["axes"].get_yticklabels()
    order = leaf_order(linkage(label_distances(label_vectors)))
    assert [tick.get_text() for tick in ticks] == [names[leaf] for leaf in order]
    colours = plots.group_colours(sorted(set(groups)))
    assert [tick.get_color() for tick in ticks] == [colours[groups[leaf]] for leaf in order]


def test_tree_segments_join_at_the_merge_distance():
    merges = linkage(label_distances([[0.0], [1.0], [5.0]]))
    segments = plots.tree_segments(merges, [2, 0, 1])
    assert segments[0] == [(0.0, 1.0), (1.0, 1.0), (1.0, 2.0), (0.0, 2.0)]  # labels 0 and 1 meet at distance 1
    assert sorted({x for x, _ in segments[1]}) == [0.0, 1.0, 4.5]  # the leaf 2, the first merge, their own distance


def test_a_deep_tree_does_not_recurse():
    """A chain of 3,000 labels is 3,000 levels deep, more than Python's recursion limit."""
    order = list(range(3000))
    merges = np.array([[0 if i == 0 else 2999 + i, i + 1, float(i + 1), i + 2] for i in range(2999)])
    assert len(plots.tree_segments(merges, order)) == 2999


def test_heat_map(tmp_path, label_vectors, names):
    width, height = png_size(plots.plot_label_distances(label_vectors, names, tmp_path / "map.png", metric="cosine"))
    assert width > height > 300


def test_more_groups_than_the_palette_still_differ():
    colours = plots.group_colours([str(i) for i in range(25)])
    assert len({tuple(colour) for colour in colours.values()}) == 25


def test_a_failed_save_leaves_the_old_picture(tmp_path, monkeypatch):
    path = plots.plot_learning_curves({"a": [(0, 1.0)]}, tmp_path / "curves.png")
    before = path.read_bytes()
    figure, _ = plots.new_figure(2.0, 2.0)
    monkeypatch.setattr(figure, "savefig", lambda *args, **kwargs: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        plots.save_figure(figure, path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda path: plots.plot_learning_curves({}, path), "curves is empty"),
        (lambda path: plots.plot_dendrogram(np.eye(3), ["a"], path), "names .* expected 3, got 1"),
        (lambda path: plots.plot_dendrogram(np.eye(2), ["a", "b"], path, groups=["x"]), "groups .* expected 2, got 1"),
        (lambda path: plots.plot_label_distances(np.eye(3), ["a"], path), "names .* expected 3, got 1"),
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
