"""A figure of the validation error that each method reaches with a number of bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from cnfgnn.studies.drawing import axis_margin, colour, dash, figure, name_methods, styled

Curve = Sequence[tuple[float, float]]
"""Bytes of one node so far, and the validation error then, round by round."""


@styled
def error_by_bytes(curves: Mapping[str, Sequence[Curve]], title: str) -> Figure:
    """The lowest validation error so far against the bytes of a node; a dot marks the best round."""
    fig = figure()
    axes = fig.subplots()
    lows, highs = [], []
    for k, seeds in enumerate(curves.values()):
        for curve in seeds:
            moved, errors = (np.array(column, dtype=float) for column in zip(*curve, strict=True))
            least = np.minimum.accumulate(errors)
            best = int(np.nanargmin(errors))
            axes.step(moved, least, where="post", color=colour(k), linestyle=dash(k), linewidth=1.3)
            axes.plot(moved[best], least[best], "o", color=colour(k), markersize=4.5, markeredgecolor="white")
            lows.append(least[best])
            highs.append(least[0])
    # Not the highest value: the first rounds of the slowest method would flatten all curves.
    top = float(max(np.median(highs), *lows))
    low = float(min(lows))
    axes.set_ylim(low - axis_margin(low, top, 0.08), top + axis_margin(low, top, 0.08))
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(numticks=12))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: _amount(x)))
    axes.set(title=title, xlabel="bytes per node in training", ylabel="lowest validation RMSE so far")
    name_methods(fig, curves)
    return fig


def _amount(moved: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if moved >= 0.999 * size:
            return f"{moved / size:,.3g} {unit}"
    return f"{moved:,.3g} B"
