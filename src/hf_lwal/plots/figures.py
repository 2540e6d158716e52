"""What all pictures share: figures, files and colours."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import harmless, shortened
from ..modeling.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INCHES_PER_LABEL = 0.15
"""Room for one label name at font size 7: 150 labels stay readable."""
LABEL_FONT_SIZE = 7
GREY = "#666666"
LUMINANCE = np.array([0.2126, 0.7152, 0.0722])
"""How bright red, green and blue look (Rec. 709)."""
MOST_LUMINANCE = 0.45
FORMATS = ("png", "svg", "pdf")
DPI = 150
MOST_PIXELS = 16_000_000
"""Of a picture, which takes some 28 bytes each while it is drawn; a larger figure gets fewer dots per inch."""
MOST_DRAWN = 1000
"""Labels in a picture; of more, evenly spaced ones are drawn, which the picture says."""
LONGEST_NAME = 80
"""Characters of a name that are drawn: a longer one would leave no room for the picture."""
MOST_IN_LEGEND = 40
"""Groups that a legend explains; hundreds of entries would be larger than the picture."""
GROUP_COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#332288", "#7766FF"),
    *("#663300", "#000011", "#0000FF", "#003355", "#3311BB"),
)
"""Dark enough for text on white, and apart for people who see no red or no green, from the grey of no group too."""
Colour = Any
Groups = Sequence[str | None]
"""For each label the group it belongs to, None for a label that belongs nowhere."""


def require_matplotlib() -> None:
    """Fail with the install command when matplotlib is missing; commands call this before their long work."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ImportError('Plots need matplotlib, which is not installed: pip install "hf-lwal[plots]".') from error


def new_figure(width: float, height: float) -> tuple[Figure, Axes]:
    """Return a figure of the given size in inches with one set of axes."""
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.add_subplot()


def save_figure(figure: Figure, path: str | os.PathLike[str], tight: bool = False) -> Path:
    """Write a figure: to a temporary name first, so that a crash never leaves half a picture.

    Args:
        figure: with all that is drawn.
        path: file to write.
        tight: cut the page to what is drawn, or extend it: nothing at the edge is lost.
    """
    path = Path(path)
    kind = path.suffix.removeprefix(".").lower()
    if kind not in FORMATS:
        raise ValueError(f"A picture's name must end in one of .{', .'.join(FORMATS)}, got {path.name!r}.")
    path.parent.mkdir(parents=True, exist_ok=True)
    inches = figure.get_figwidth() * figure.get_figheight()
    with replacing(path) as temporary:
        figure.savefig(
            temporary, format=kind, dpi=min(DPI, (MOST_PIXELS / inches) ** 0.5), bbox_inches="tight" if tight else None
        )
    return path


def evenly_spaced(number: int, most: int) -> list[int]:
    """At most ``most`` of the numbers below ``number``, the first and the last among them.

    >>> evenly_spaced(7, 4)
    [0, 2, 4, 6]
    """
    if number <= most:
        return list(range(number))
    return np.linspace(0, number - 1, most).round().astype(int).tolist()


def drawn_labels(number: int, title: str, most: int = MOST_DRAWN) -> tuple[list[int], str]:
    """The labels to draw, and the picture's title, which says so where some are left out."""
    kept = evenly_spaced(number, most)
    note = f"{len(kept):,} of {number:,} labels, evenly spaced" if len(kept) < number else ""
    return kept, "\n".join(filter(None, [title, note]))


def drawn_name(name: str) -> str:
    r"""A name as a picture shows it: one line, without its middle where it is too long; a dollar starts no formula.

    >>> drawn_name("5 $\n or 6 $")
    '5 \\$ or 6 \\$'
    """
    return drawn_text(shortened(" ".join(str(name).split()), LONGEST_NAME))


def metric_name(metric: str) -> str:
    """A distance as a picture calls it.

    >>> metric_name("euclidean"), metric_name("cosine")
    ('Euclidean', 'cosine')
    """
    return "Euclidean" if metric == "euclidean" else metric


def drawn_text(text: str) -> str:
    r"""A text of which a picture shows every letter.

    >>> drawn_text("_5 $"), drawn_text("half \ud83d")
    (' _5 \\$', 'half �')
    """
    shown = harmless(text).replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown  # which hides a line from the legend


def room_beyond(names: Sequence[str], usual: float) -> float:
    """Inches by which the widest of some names along an axis is wider than what is usually there for them."""
    require_matplotlib()
    from matplotlib.backends.backend_agg import RendererAgg
    from matplotlib.font_manager import FontProperties

    renderer: Any = RendererAgg(1, 1, 72)  # type: ignore[no-untyped-call]
    font = FontProperties(size=LABEL_FONT_SIZE)
    longest = sorted(names, key=len)[-5:]
    widths = [renderer.get_text_width_height_descent(name, font, ismath=False)[0] for name in longest]
    return max(max(widths, default=0.0) / 72 - usual, 0.0)


def group_colours(groups: Groups) -> dict[str | None, Colour]:
    """Give every group its own colour, dark enough for text on white; labels without group are grey.

    Up to 10 groups get `GROUP_COLOURS`, more get evenly spaced hues, darker and lighter in turn.
    """
    require_matplotlib()
    names = list(dict.fromkeys(group for group in groups if group is not None))
    colours: Sequence[Colour] = GROUP_COLOURS if len(names) <= len(GROUP_COLOURS) else _spaced_colours(len(names))
    return {None: GREY, **dict(zip(names, colours, strict=False))}


def _spaced_colours(number: int) -> list[Colour]:
    """Evenly spaced hues, every second one darker, all of them dimmed until they can be read on white."""
    from matplotlib.colors import hsv_to_rgb

    colours = []
    for place in range(number):
        colour = hsv_to_rgb((place / number, 1.0, (0.9, 0.55)[place % 2]))
        colours.append(tuple(colour * min(1.0, MOST_LUMINANCE / float(colour @ LUMINANCE))))
    return colours


def add_group_legend(figure: Figure, groups: Groups) -> None:
    """Explain the colours of groups below the picture."""
    from matplotlib.patches import Patch

    colours = group_colours(sorted_groups(groups))
    rest = [None] if None in groups else []
    named = sorted_groups(groups)
    shown = [*named[:MOST_IN_LEGEND], *rest]
    names = ["no group" if group is None else drawn_name(group) for group in shown]
    patches = [Patch(color=colours[group], label=name) for group, name in zip(shown, names, strict=True)]
    if len(named) > MOST_IN_LEGEND:
        names.append(f"and {len(named) - MOST_IN_LEGEND:,} more groups")
        patches.append(Patch(color="none", label=names[-1]))
    inches = 0.06 * max(map(len, names)) + 0.5  # of one entry at font size 8
    columns = max(1, min(5, len(names), int(figure.get_figwidth() / inches)))
    figure.legend(handles=patches, loc="outside lower center", ncols=columns, fontsize=8)


def sorted_groups(groups: Groups) -> list[str]:
    """The groups that occur, in the order in which they get their colours."""
    return sorted({group for group in groups if group is not None})


def check_names(what: str, names: Sequence[Any], num_labels: int) -> None:
    """Raise unless there is one name per label."""
    if len(names) != num_labels:
        raise ValueError(f"{what} must have one entry per label vector: expected {num_labels}, got {len(names)}.")
