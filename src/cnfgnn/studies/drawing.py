"""Common parts of all figures: style, labels that do not overlap, and files."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.text import Annotation
from matplotlib.transforms import Bbox

from cnfgnn.files import make_folder, write_whole

Floats = npt.NDArray[np.float64]
SIZE = (7.0, 4.0)  # inches
DPI = 160
HALF_MARK = 7  # pixels from the centre of a mark to its edge
INK, FAINT = "#222222", "#c4c8cc"
# The colour-blind safe palette of Okabe and Ito, without yellow, which is faint on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", (0, (5, 2)), (0, (1.5, 1.5)))  # if there are more lines than colours
STYLE: Any = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 9,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e8ea",
    "grid.linewidth": 0.7,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "svg.hashsalt": "cnfgnn",  # makes the ids in SVG files reproducible
    "svg.fonttype": "path",
}
styled = matplotlib.rc_context(STYLE)  # a decorator: the style holds while the function runs


def figure(size: tuple[float, float] = SIZE) -> Figure:
    return Figure(figsize=size, dpi=DPI, layout="constrained", facecolor="white")


def name_methods(figure: Figure, methods: Iterable[str]) -> None:
    """A legend beside the axes: the line of each method in this order, and the dot of its best round."""
    handles = [
        Line2D([], [], color=colour(k), linestyle=dash(k), label=name) for k, name in enumerate(methods)
    ]
    handles.append(Line2D([], [], color=INK, marker="o", markersize=4.5, linestyle="", label="best round"))
    figure.legend(handles=handles, loc="outside right upper")


def colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def dash(number: int) -> Any:
    return DASHES[number // len(COLOURS) % len(DASHES)]


@styled
def svg(figure: Figure) -> str:
    """The figure as an <svg> element for an HTML page."""
    text = _written(figure, "svg", {"Date": None, "Creator": None}).decode()
    return text[text.index("<svg") :]


@styled
def save(figure: Figure, path: Path) -> tuple[Path, Path]:
    """Write `path`.png and `path`.svg, each atomically."""
    make_folder(path.parent)
    png, vector = (path.with_name(f"{path.name}.{kind}") for kind in ("png", "svg"))
    write_whole(png, _written(figure, "png", {"Software": None}))
    write_whole(vector, _written(figure, "svg", {"Date": None, "Creator": None}))
    return png, vector


def freeze_layout(figure: Figure) -> None:
    """Fix the layout: otherwise each file format would compute a slightly different one."""
    if isinstance(figure.get_layout_engine(), ConstrainedLayoutEngine):
        figure.draw_without_rendering()
        figure.set_layout_engine("none")


def _written(figure: Figure, kind: str, metadata: Mapping[str, str | None]) -> bytes:
    freeze_layout(figure)
    content = io.BytesIO()
    figure.savefig(content, format=kind, dpi=DPI, metadata=dict(metadata))
    return content.getvalue()


# Offsets of a label from its point, in points: near ones first, to the right before other sides.
PLACES = [
    (round(r * np.cos(angle), 1), round(r * np.sin(angle), 1))
    for r in (8.0, 16.0, 26.0, 38.0)
    for angle in np.radians([0, 45, -45, 90, -90, 180, 135, -135])
]


@dataclass(frozen=True)
class LabelledPoint:
    """A point with an error bar from y - spread to y + spread, and its label."""

    x: float
    y: float
    spread: float
    text: str
    colour: str


def label_points(figure: Figure, axes: Axes, points: Sequence[LabelledPoint]) -> list[Annotation]:
    """Place each label beside its point where it covers no point, error bar or other label, if possible."""
    freeze_layout(figure)  # overlaps are known only once the layout is fixed
    at = axes.transData.transform([(p.x, p.y) for p in points])
    tops = axes.transData.transform([(p.x, p.y + p.spread) for p in points])[:, 1]
    bars = [max(HALF_MARK, top - y) for (_, y), top in zip(at, tops, strict=True)]
    taken = [
        Bbox.from_extents(x - HALF_MARK, y - bar, x + HALF_MARK, y + bar)
        for (x, y), bar in zip(at, bars, strict=True)
    ]
    inside = axes.get_window_extent()
    labels = []
    for k in np.argsort(-at[:, 0], kind="stable"):  # from the right, where room is scarce
        p = points[k]
        label = axes.annotate(
            p.text, (p.x, p.y), (0, 0), textcoords="offset points", color=p.colour, fontsize=8.5, va="center"
        )
        crowding = []
        for place in PLACES:
            _move(label, place)
            box = label.get_window_extent()
            crowding.append(_overlap(box, taken) + 4 * _outside(box, inside))
            if crowding[-1] == 0:
                break
        best = int(np.argmin(crowding))
        _move(label, PLACES[best])
        taken.append(label.get_window_extent().padded(1))
        labels.append(label)
    return labels


def _move(label: Annotation, place: tuple[float, float]) -> None:
    label.set_position(place)
    if place[0] > 1:
        label.set_horizontalalignment("left")
    elif place[0] < -1:
        label.set_horizontalalignment("right")
    else:
        label.set_horizontalalignment("center")


def _overlap(box: Bbox, taken: Sequence[Bbox]) -> float:
    shared = (Bbox.intersection(box, other) for other in taken)
    return float(sum(part.width * part.height for part in shared if part is not None))


def _outside(box: Bbox, frame: Bbox) -> float:
    kept = Bbox.intersection(box, frame)
    return float(box.width * box.height - (0 if kept is None else kept.width * kept.height))


def axis_margin(low: float, high: float, share: float) -> float:
    """The margin of an axis from low to high; not zero even if they are equal."""
    return share * (high - low) or 0.02 * abs(high) or 1.0
