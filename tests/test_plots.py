"""Pictures are complete files of a readable size; layout is checked on the numbers behind them."""

import itertools
import sys
import warnings
from itertools import combinations

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.transforms import Bbox

from hf_lwal import plots
from hf_lwal.hierarchy import label_distances, label_drift, leaf_order, linkage
from hf_lwal.metrics import reliability_curve
from hf_lwal.plots import curves, figures, maps, reliability, trees

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
    monkeypatch.setattr(module, "save_figure", lambda figure, path, tight=False: seen.update(axes=figure.axes[0]))
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


SEEN_WITHOUT = {  # Machado, Oliveira and Fernandes (2009), severity 1: linear RGB of people without red or green cones
    "nothing": np.eye(3),
    "red": np.array([[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]]),
    "green": np.array([[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]]),
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def lab(colour, matrix):
    """CIE L*a*b* of a colour as somebody sees it; 2 apart is the least that one can tell."""
    rgb = np.asarray(to_rgb(colour))
    linear = np.clip(matrix @ np.where(rgb > 0.04045, ((rgb + 0.055) / 1.055) ** 2.4, rgb / 12.92), 0.0, 1.0)
    x, y, z = np.cbrt(TO_XYZ @ linear / (0.9505, 1.0, 1.089))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("sight", SEEN_WITHOUT)
@pytest.mark.parametrize("colours", [(*figures.GROUP_COLOURS, figures.GREY), (*curves.CYCLE, "black")])
def test_colours_are_told_apart_without_red_or_green(colours, sight):
    """One reader in twelve saw two methods, or two groups, as one."""
    seen = [lab(colour, SEEN_WITHOUT[sight]) for colour in colours]
    assert min(np.linalg.norm(one - other) for one, other in combinations(seen, 2)) > 12.0


def test_every_group_has_its_own_colour_that_can_be_read_on_white():
    for number in (3, 10, 25):
        colours = figures.group_colours([str(i) for i in range(number)])
        assert len({tuple(np.round(to_rgb(colour), 3)) for colour in colours.values()}) == number + 1
    assert max(to_rgb(colour) @ figures.LUMINANCE for colour in colours.values()) < 0.5


def test_many_curves_differ_in_more_than_colour(monkeypatch):
    """The eleventh line had the first one's colour; in print, or without red and green, others looked the same."""
    lines = {f"method {i}": [(0, 0.0), (1, float(i))] for i in range(24)}
    axes = drawn(monkeypatch, curves, plots.plot_learning_curves, lines, "curves.png")
    styles = [(line.get_linestyle(), line.get_marker(), line.get_color()) for line in axes.get_lines()]
    assert len(set(styles)) == 24
    assert len({style[:2] for style in styles[:12]}) == 12
    assert all(one[0] != other[0] for one, other in itertools.pairwise(styles)), "gaps in which the one below shows"


@pytest.mark.parametrize("values", [(97.8, 95.6), (100.0, 100.0), (50.0, 51.0), (0.5, 0.0)])
def test_a_row_more_or_less_does_not_fill_the_picture(monkeypatch, values):
    """One of 45 validation rows was drawn as the fall of a cliff."""
    lines = {"a": [(1, values[0]), (2, values[1])]}
    bottom, top = drawn(monkeypatch, curves, plots.plot_learning_curves, lines, "curves.png").get_ylim()
    assert top - bottom >= 10.0
    assert bottom < min(values)
    assert max(values) < top < 101.0, "there is nothing above 100 %"


def test_what_is_no_percentage_keeps_its_height(monkeypatch):
    lines = {"a": [(1, 0.5), (2, 0.7)]}
    bottom, top = drawn(monkeypatch, curves, plots.plot_learning_curves, lines, "a.png", ylabel="loss").get_ylim()
    assert top - bottom < 0.3


def test_the_reference_is_seen_where_another_line_lies_on_it(monkeypatch):
    points = [(0, 10.0), (10, 60.0)]
    lines = {"one-hot": points, "same": points}
    axes = drawn(monkeypatch, curves, plots.plot_learning_curves, lines, "curves.png", reference="one-hot")
    reference, same = axes.get_lines()[:2]
    assert reference.get_zorder() > same.get_zorder(), "on top"
    assert reference.is_dashed()
    assert not same.is_dashed(), "which shows in the gaps"


@pytest.mark.parametrize("last", [2, 3, 5, 9])
def test_steps_are_whole_numbers(monkeypatch, last):
    """A training of three steps had ticks at 0.5 and 1.5."""
    lines = {"a": [(0.0, 1.0), (last + 1 / 3, 2.0)]}
    axes = drawn(monkeypatch, curves, plots.plot_learning_curves, lines, "curves.png")
    assert all(float(tick).is_integer() for tick in axes.get_xticks())
    axes = drawn(monkeypatch, curves, plots.plot_label_drift, [(1, 0.5), (last, 0.25)], "drift.png")
    assert all(float(tick).is_integer() for tick in axes.get_xticks())


def test_colours_of_a_heat_map_span_the_distances_between_labels(monkeypatch):
    """With each label's 0 to itself among them, labels at distances 9 to 10 all had one colour."""
    vectors = np.array([[0.0, 0.0], [9.0, 0.0], [0.0, 10.0]])
    heat = drawn(monkeypatch, maps, plots.plot_label_distances, vectors, ["a", "b", "c"], "heat.png")
    assert heat.images[0].get_clim() == pytest.approx((9.0, 181.0**0.5))


def test_heat_map_and_dendrogram_have_one_order(monkeypatch, label_vectors, names):
    """Read side by side, the rows of one were the branches of the other upside down."""
    tree = drawn(monkeypatch, trees, plots.plot_dendrogram, label_vectors, names, "tree.png")
    heat = drawn(monkeypatch, maps, plots.plot_label_distances, label_vectors, names, "heat.png")

    def from_above(axes):
        def height(tick):
            return axes.transData.transform(tick.get_position())[1]

        return [tick.get_text() for tick in sorted(axes.get_yticklabels(), key=height, reverse=True)]

    assert from_above(tree) == from_above(heat)


@pytest.mark.parametrize("number", [1000, 2500])
@pytest.mark.parametrize(
    ("module", "plot"),
    [(trees, plots.plot_dendrogram), (maps, plots.plot_label_distances), (maps, plots.plot_label_map)],
    ids=["tree", "heat map", "map"],
)
def test_pictures_of_many_labels_are_bounded(monkeypatch, number, module, plot):
    """A heat map of 600 labels took 7 GiB, one of 1,000 ended the process, and trees had no end either."""
    monkeypatch.setattr(
        maps, "map_positions", lambda distances: np.random.default_rng(0).normal(size=(len(distances), 2))
    )
    monkeypatch.setattr(maps, "_place_names", lambda *_: None)
    vectors = np.random.default_rng(0).normal(size=(number, 3))
    axes = drawn(monkeypatch, module, plot, vectors, [f"label {i}" for i in range(number)], "many.png")
    width, height = axes.figure.get_size_inches()
    assert max(width, height) < 100
    assert len(axes.get_yticklabels()) <= 600
    most = maps.MOST_ON_MAP if plot is plots.plot_label_map else figures.MOST_DRAWN
    assert (f"{most:,} of {number:,} labels, evenly spaced" in axes.get_title()) == (number > most)


@pytest.mark.parametrize("name", ["long " * 1000, "W" * 4000, "a name of $5 or $6_{", "two\nlines"])
def test_a_strange_name_leaves_room_for_the_picture(tmp_path, name):
    """A label of a whole page gave a map of 64,000 pixels and a tree of none; a dollar started a formula."""
    vectors, names = np.random.default_rng(0).normal(size=(8, 3)), [*map(str, range(7)), name]
    for plot in (plots.plot_dendrogram, plots.plot_label_distances, plots.plot_label_map):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            path = plot(vectors, names, tmp_path / f"{plot.__name__}.png")
        width, height = png_size(path)
        assert max(width, height) < 3000


@pytest.mark.parametrize(("number", "more"), [(40, None), (41, "and 1 more groups"), (300, "and 260 more groups")])
def test_a_legend_of_many_groups_is_bounded(monkeypatch, number, more):
    """1,500 groups took a legend of 7,000 pixels below the map, and nothing was left for the tree."""
    groups = [f"group {index // 2:03}" for index in range(2 * number)] + [None]
    vectors = np.random.default_rng(0).normal(size=(len(groups), 3))
    names = [str(index) for index in range(len(groups))]
    axes = drawn(monkeypatch, trees, plots.plot_dendrogram, vectors, names, "tree.png", groups)
    (legend,) = axes.figure.legends
    shown = [text.get_text() for text in legend.get_texts()]
    assert shown == [f"group {index:03}" for index in range(40)] + ["no group"] + ([more] if more else [])


def test_a_large_picture_has_fewer_dots_per_inch(tmp_path):
    figure, _ = figures.new_figure(60.0, 60.0)
    width, height = png_size(figures.save_figure(figure, tmp_path / "large.png"))
    assert width * height <= 1.01 * figures.MOST_PIXELS


def test_long_names_at_the_edge_of_a_map_are_whole(tmp_path, monkeypatch):
    """The page ended in the middle of a name."""
    saved = {}
    monkeypatch.setattr(maps, "save_figure", lambda figure, path, tight: saved.update(figure=figure, tight=tight))
    names = [f"a very long name of a label that nobody can read at a glance {i}" for i in range(8)]
    plots.plot_label_map(np.random.default_rng(0).normal(size=(8, 3)), names, tmp_path / "map.png")
    figures.save_figure(saved["figure"], tmp_path / "map.png", saved["tight"])
    shown = saved["figure"].get_tightbbox(saved["figure"].canvas.get_renderer())
    width, _ = png_size(tmp_path / "map.png")
    assert width >= 150 * shown.width
    assert shown.width > saved["figure"].get_figwidth(), "the names do stick out"


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


def test_labels_that_drift_are_told_apart_without_red_or_green(monkeypatch):
    """Lines in red and green, dashed alike, were one line to some readers, and the legend lay on top of them."""
    drift = [(step, [0.1 * step, 0.2, 0.3, 0.4]) for step in range(3)]
    axes = drawn(monkeypatch, curves, plots.plot_label_drift, drift, "drift.png", top=["a", "b", "c", "d"])
    lines = axes.get_lines()
    assert len(lines) == 4
    assert [line.get_color() for line in lines] == list(curves.CYCLE[:4]), "whose colours are apart for all"
    assert len({line.get_marker() for line in lines}) == 4
    assert axes.get_legend() is None, "it is the figure's, below"


def test_logged_drift_is_what_the_trainer_logged(tmp_path):
    history = [{"step": 5, "loss": 1.0, "label_drift": 0.2}, {"step": 5, "eval_loss": 1.0}]
    assert plots.logged_drift(history) == [(5.0, 0.2)]
    path = plots.plot_label_drift(plots.logged_drift(history), tmp_path / "drift.svg")
    assert "<svg" in path.read_text(encoding="utf-8")


def test_a_reliability_diagram_shows_the_bins_that_have_rows(monkeypatch, tmp_path):
    """An empty bin drawn at 0 would look like the worst there is; a small point must not look like a large one."""
    curve = reliability_curve([[0.9, 0.1]] * 8 + [[0.6, 0.4]], [0] * 6 + [1] * 2 + [0])
    axes = drawn(monkeypatch, reliability, plots.plot_reliability, {"a": curve, "none": _NO_ROWS}, "r.png")
    upper, lower = axes.figure.axes
    diagonal, line = upper.get_lines()
    assert diagonal.get_xdata().tolist() == diagonal.get_ydata().tolist() == [0.0, 1.0]
    np.testing.assert_allclose(line.get_xydata(), [[0.6, 1.0], [0.9, 0.75]])
    small, large = upper.collections[0].get_sizes()
    assert large > 2 * small
    assert line.get_label() == f"a: error {100 * curve.error:.1f} %"
    assert lower.patches[0].get_data().values.sum() == pytest.approx(100.0)


_NO_ROWS = reliability_curve([[1.0, 0.0]], [-100])


@pytest.mark.parametrize(("number", "tight"), [(8, 0.0), (100, 0.0), (150, 20.0)])
def test_names_on_a_map_do_not_cover_each_other(monkeypatch, number, tight):
    """Groups as tight as trained labels form them left names on top of each other."""
    generator = np.random.default_rng(5)
    vectors = tight * generator.normal(size=(10, 16))[np.arange(number) % 10] + generator.normal(size=(number, 16))
    names = [f"a_usual_label_{i}" for i in range(number)]
    axes = drawn(monkeypatch, maps, plots.plot_label_map, vectors, names, "map.png", groups=["x"] * number)
    assert sorted(text.get_text() for text in axes.texts) == sorted(names)
    renderer = axes.figure.canvas.get_renderer()
    boxes = [text.get_window_extent(renderer) for text in axes.texts]
    for one, other in combinations(boxes, 2):
        common = Bbox.intersection(one, other)
        assert common is None or common.width * common.height < 0.1 * one.width * one.height


def test_boxes_are_moved_apart_and_no_further():
    """A box that is moved past its neighbour, or where nothing lies beside it, is a name far from its point."""
    boxes = np.array([[[x, y], [x + 10.0, y + 2.0]] for x, y in ((0, 0), (5, 1), (20, 1), (0, 5), (5, 1), (12, 6))])
    shifts = maps.heights_apart(boxes)
    heights = boxes[:, 0, 1] + shifts
    assert shifts[2] == 0.0, "nothing beside it but what lies higher"
    assert shifts[5] == 0.0
    assert heights[0] + 2.0 <= heights[1] + 1e-9 <= heights[4] - 2.0 + 2e-9 <= heights[3] - 4.0 + 3e-9
    assert np.abs(shifts).max() <= 2.0
    assert maps.heights_apart(boxes[:1]).tolist() == [0.0]


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
        (lambda path: plots.plot_reliability({"a": _NO_ROWS}, path), "there are no rows to draw"),
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
