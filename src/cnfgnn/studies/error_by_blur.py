"""A figure of errors against the blur of the copies: of forecasts, and of attackers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from cnfgnn.studies.drawing import INK, SIZE, Floats, axis_margin, colour, dash, figure, styled

FIRST = 0.25  # share of an axis that the first curve takes at least, whatever the others do


@dataclass(frozen=True)
class BlurredError:
    """An error at a blur: its mean over seeds, and their standard deviation if there are several."""

    blur: float
    error: float
    spread: float | None = None


@dataclass(frozen=True)
class Panel:
    """Curves over the blur.

    constant     errors that do not depend on the blur, drawn as horizontal lines
    legend       what the names have in common
    copy_itself  whether to draw the error of somebody who takes each copy for the reading: the blur
    """

    label: str
    curves: Mapping[str, Sequence[BlurredError]]
    constant: Mapping[str, float] = field(default_factory=dict)
    legend: str = ""
    copy_itself: bool = False


@styled
def error_by_blur(panels: Sequence[Panel], title: str, unit: str) -> Figure:
    """Panels one above the other, with the same blurs: a curve for each name, its spread over seeds as a
    band."""
    wide, high = SIZE
    fig = figure((wide, (high + 1.0) * len(panels)))
    blurs = sorted({point.blur for panel in panels for points in panel.curves.values() for point in points})
    numbers = count()  # every curve has a colour of its own, across panels
    below: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (-0.02, -0.12), "alignment": "left"}
    for axes, panel in zip(fig.subplots(len(panels), squeeze=False).ravel(), panels, strict=True):
        _draw(axes, panel, numbers)
        _scale(axes, blurs)
        axes.set(ylabel=panel.label, xlabel=f"blur: standard deviation of the noise on each reading, {unit}")
        axes.legend(**below, ncols=2, title=panel.legend, title_fontsize="medium")
    fig.axes[0].set_title(title)
    return fig


def _draw(axes: Axes, panel: Panel, numbers: count[int]) -> None:
    bands: list[tuple[Floats, Floats]] = []
    for name, points in panel.curves.items():
        k = next(numbers)
        blurs, errors = (np.array([getattr(p, what) for p in points]) for what in ("blur", "error"))
        spreads = np.array([p.spread or 0.0 for p in points])
        axes.plot(blurs, errors, "o", linestyle=dash(k), color=colour(k), markersize=4.5, label=name)
        axes.fill_between(blurs, errors - spreads, errors + spreads, color=colour(k), alpha=0.15, linewidth=0)
        bands.append((errors - spreads, errors + spreads))
    for name, error in panel.constant.items():
        axes.axhline(error, color=INK, linewidth=0.9, linestyle=":", label=name)
        bands.append((np.array([error]), np.array([error])))
    if panel.copy_itself:
        blurs = np.linspace(0, max(p.blur for points in panel.curves.values() for p in points), 100)
        axes.plot(blurs, blurs, color=INK, linewidth=0.9, linestyle="--", label="the copy itself: the blur")
    else:
        _crop(axes, bands)


def _scale(axes: Axes, blurs: Sequence[float]) -> None:
    """Square roots of blurs: on a linear axis small ones would lie on top of each other, and a logarithmic
    one has no 0."""
    axes.set_xscale(
        "function", functions=(lambda x: np.sign(x) * np.sqrt(np.abs(x)), lambda x: np.sign(x) * np.square(x))
    )
    axes.xaxis.set_major_locator(FixedLocator(list(blurs)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    most = max(blurs) or 1.0
    axes.set_xlim(-0.001 * most, 1.06 * most)


def _crop(axes: Axes, bands: Sequence[tuple[Floats, Floats]]) -> None:
    """Cut off what would flatten the first curve, and say so in the figure."""
    low = float(min(below.min() for below, _ in bands))
    most = float(max(above.max() for _, above in bands))
    first = float(bands[0][1].max()) - low
    top = min(most, low + first / FIRST) if first > 0 else most
    margin = axis_margin(low, top, 0.06)
    axes.set_ylim(low - margin, top + margin)
    if most > top + margin:
        note: dict[str, Any] = {"ha": "right", "va": "top", "fontsize": 8, "color": "#666666"}
        axes.text(0.99, 0.985, f"↑ up to {most:.3g}", transform=axes.transAxes, **note)
