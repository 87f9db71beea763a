"""The figures of the paper and of our own measurements, from plain data.

Each function returns a Figure; `save` writes it to files, `svg` returns it for a page.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator, PercentFormatter

from cnfgnn.algorithm.messages.cost import GIB
from cnfgnn.data.dataset import Dataset
from cnfgnn.errors import DataError
from cnfgnn.runs.simulation import seen_sensors
from cnfgnn.studies.drawing import (
    COLOURS,
    FAINT,
    SIZE,
    Floats,
    LabelledPoint,
    axis_margin,
    colour,
    dash,
    figure,
    label_points,
    name_methods,
    styled,
)
from cnfgnn.studies.drawing import save as save
from cnfgnn.studies.drawing import svg as svg

SHOWN = 0.9  # share of a curve's rounds that the axis must cover; extreme ones may be cut off
FEW = 3  # curves of fewer rounds are never cut off
COLUMNS = 10  # of small multiples


@styled
def validation_curves(curves: Mapping[str, Sequence[Sequence[float]]], title: str) -> Figure:
    """Validation RMSE by global round: thin for each seed, thick for the mean while all seeds last.

    A dot marks the best round of each seed.
    """
    fig = figure()
    axes = fig.subplots()
    for k, seeds in enumerate(curves.values()):
        ink, line = colour(k), dash(k)
        for values in seeds:
            rounds = np.arange(1, len(values) + 1)
            thin: dict[str, Any] = {"linewidth": 0.7, "alpha": 0.45} if len(seeds) > 1 else {"linewidth": 1.8}
            axes.plot(rounds, values, color=ink, linestyle=line, **thin)
            best = int(np.nanargmin(values))
            axes.plot(
                best + 1, values[best], "o", color=ink, markersize=4.5, markeredgecolor="white", zorder=3
            )
        if len(seeds) > 1:
            together = min(map(len, seeds))
            mean = np.mean([values[:together] for values in seeds], axis=0)
            axes.plot(np.arange(1, together + 1), mean, color=ink, linestyle=line, linewidth=1.9)
    _crop(axes, [np.asarray(values, dtype=float) for seeds in curves.values() for values in seeds])
    longest = max(len(values) for seeds in curves.values() for values in seeds)
    axes.set(title=title, xlabel="global round", ylabel="validation RMSE", xlim=(0.7, 1.02 * longest + 0.3))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    name_methods(fig, curves)
    return fig


def _crop(axes: Axes, curves: Sequence[Floats]) -> None:
    """Cut off extreme rounds, which would flatten all curves, and say so in the figure."""
    curves = [values[np.isfinite(values)] for values in curves if np.isfinite(values).any()]
    low, most = min(v.min() for v in curves), max(v.max() for v in curves)
    top = max(float(np.quantile(v, SHOWN, method="lower")) if len(v) >= FEW else v.max() for v in curves)
    top = min(most, top + axis_margin(low, top, 0.2))
    margin = axis_margin(low, top, 0.04)
    axes.set_ylim(low - margin, top + margin)
    if most > top + margin:
        first = "the first rounds reach" if _early(curves, top) else "up to"
        note: dict[str, Any] = {"ha": "right", "va": "top", "fontsize": 8, "color": "#666666"}
        axes.text(0.99, 0.985, f"↑ {first} {most:.3g}", transform=axes.transAxes, **note)


def _early(curves: Sequence[Floats], top: float) -> bool:
    """Whether everything that is cut off lies in the first tenth of its curve."""
    return all(np.flatnonzero(v > top).max(initial=0) <= len(v) // 10 + 1 for v in curves)


@dataclass(frozen=True)
class Point:
    """The cost and error of a method; `spread` is half the length of its error bar, `bytes` may be 0."""

    label: str
    group: str
    bytes: float
    rmse: float
    spread: float | None = None


@styled
def error_against_bytes(points: Sequence[Point], title: str) -> Figure:
    """RMSE against the bytes that training moved, one colour per group; 0 bytes have their own tick."""
    fig = figure()
    axes = fig.subplots()
    axes.set_xscale("log")
    moved = [p.bytes / GIB for p in points if p.bytes > 0]
    free = 10.0 ** (math.floor(math.log10(min(moved, default=1.0))) - 1)  # the position of 0
    groups = list(dict.fromkeys(p.group for p in points))
    places = [(p.bytes / GIB if p.bytes > 0 else free, p.rmse) for p in points]
    for k, group in enumerate(groups):
        rows = [i for i, p in enumerate(points) if p.group == group]
        axes.errorbar(
            [places[i][0] for i in rows],
            [places[i][1] for i in rows],
            yerr=[points[i].spread or 0.0 for i in rows],
            fmt="o",
            color=colour(k),
            markersize=6,
            elinewidth=1.2,
            capsize=2.5,
            label=group,
        )
    axes.set(title=title, xlabel="bytes moved in training until the best round", ylabel="test RMSE, unmasked")
    ends = 10 ** (0.12 * (math.log10(max(moved, default=1.0) / free) or 1.0))
    axes.set_xlim(free / ends**0.5, max(moved, default=1.0) * ends)
    low, high = min(p.rmse - (p.spread or 0) for p in points), max(p.rmse + (p.spread or 0) for p in points)
    axes.set_ylim(low - axis_margin(low, high, 0.12), high + axis_margin(low, high, 0.12))
    axes.xaxis.set_major_locator(LogLocator(numticks=12))
    axes.xaxis.set_minor_locator(NullLocator())
    nothing = any(p.bytes <= 0 for p in points)
    if nothing:  # a logarithmic axis has no 0: mark the break
        axes.text(free * 10**0.5, 0, "//", transform=axes.get_xaxis_transform(), ha="center", va="center")
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda x, _: "0" if nothing and x <= 1.001 * free else _gib(x))
    )
    if len(groups) > 1:
        fig.legend(loc="outside right upper")
    inks = {group: colour(k) for k, group in enumerate(groups)}
    both = zip(places, points, strict=True)
    label_points(
        fig, axes, [LabelledPoint(*place, p.spread or 0.0, p.label, inks[p.group]) for place, p in both]
    )
    return fig


def _gib(gib: float) -> str:
    for unit, size in (("GiB", 1.0), ("MiB", 2.0**-10)):
        if gib >= 0.0999 * size:
            return f"{gib / size:,.3g} {unit}" if gib < 999 * size else f"{gib / size:,.0f} {unit}"
    return f"{gib * 2**20:,.3g} KiB"


@styled
def histograms(data: Dataset, title: str, limit: int = 100) -> Figure:
    """Histograms of the observed readings of the first sensors by id, on shared axes."""
    readings = data.readings
    ids = readings.ids
    numbers = all(sensor.isdigit() for sensor in ids)
    order = sorted(range(len(ids)), key=lambda i: (int(ids[i]) if numbers else 0, ids[i]))[:limit]
    observed = readings.values[~readings.missing]
    if not len(observed):
        raise DataError(data.name, "there are no readings to draw")
    bins = np.histogram_bin_edges(observed, bins=32)
    columns = min(COLUMNS, len(order))
    rows = -(-len(order) // columns)
    fig = figure((SIZE[0], 0.9 + 0.6 * rows))
    grid = fig.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
    for axes, k in zip(grid, order, strict=False):
        values = readings.values[:, k][~readings.missing[:, k]]
        counts = np.histogram(values, bins)[0] / max(1, len(values))
        axes.stairs(counts, bins, fill=True, color=COLOURS[0])
        axes.text(0.05, 0.95, ids[k], transform=axes.transAxes, fontsize=6, va="top", color="#444444")
    for place, axes in enumerate(grid):
        axes.set_visible(place < len(order))
        axes.grid(False)
        axes.spines["left"].set_visible(False)
        axes.tick_params(left=False, labelleft=False, labelsize=7, length=2, pad=1.5)
        axes.tick_params(labelbottom=place + columns >= len(order))
        axes.xaxis.set_major_locator(MaxNLocator(2))
    shares = np.concatenate([axes.patches[0].get_data()[0] for axes in grid[: len(order)]])
    # Ignore the tall bars of sensors whose readings hardly change.
    grid[0].set_ylim(0, 1.25 * float(np.quantile(shares, 0.998)))
    fig.set_layout_engine("constrained", w_pad=0.01, h_pad=0.01, wspace=0.03, hspace=0.02)
    fig.suptitle(title, x=0.01, ha="left", fontsize=10, fontweight="bold")
    fig.supxlabel("reading", fontsize=9)
    fig.supylabel("share of the sensor's readings", fontsize=9)
    return fig


@styled
def subgraphs(data: Dataset, shares: Sequence[float], title: str) -> Figure:
    """The sensors that train at each share, with the edges among them; all others are faint."""
    positions, graph = data.readings.positions, data.graph
    if positions is None:
        raise DataError(data.name, "a map needs positions: add sensors.csv (id, latitude, longitude)")
    places = positions[:, ::-1]  # longitude to the right
    ends = np.sort(np.stack([graph.senders, graph.receivers]), axis=0)
    senders, receivers = np.unique(ends[:, ends[0] != ends[1]], axis=1)  # both directions as one line
    stretch = 1 / math.cos(math.radians(float(positions[:, 0].mean())))  # of a degree of latitude
    width, height = np.ptp(places, axis=0)
    columns = min(3, len(shares))
    rows = -(-len(shares) // columns)
    tall = min(1.4, max(0.5, 1.08 * stretch * height / max(width, 1e-9)))
    fig = figure((SIZE[0], 0.8 + rows * (0.25 + SIZE[0] / columns * tall)))
    grid = fig.subplots(rows, columns, squeeze=False).ravel()
    for axes, share in zip(grid, shares, strict=False):
        found = seen_sensors(data, share)
        seen = np.ones(len(places), dtype=np.bool_) if found is None else found.numpy()
        among = seen[senders] & seen[receivers]
        for these, ink, line in ((~among, FAINT, 0.4), (among, COLOURS[5], 0.7)):
            axes.plot(*_joined(places[senders[these]], places[receivers[these]]), color=ink, linewidth=line)
        axes.scatter(*places[~seen].T, s=6, color=FAINT, linewidths=0, zorder=3)
        axes.scatter(*places[seen].T, s=9, color=COLOURS[0], linewidths=0, zorder=4)
        axes.set_title(f"{share:.0%}: {seen.sum()} of {len(seen)} sensors", fontsize=9, fontweight="normal")
        axes.set_aspect(stretch, adjustable="datalim")
    for place, axes in enumerate(grid):
        axes.set_visible(place < len(shares))
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(True)
        axes.spines[:].set_color(FAINT)
    fig.suptitle(title, x=0.01, ha="left", fontsize=10, fontweight="bold")
    marks = (("trained on, with the edges among them", COLOURS[0]), ("only evaluated", FAINT))
    fig.legend(
        handles=[Line2D([], [], color=ink, marker="o", markersize=4, label=text) for text, ink in marks],
        loc="outside lower left",
        ncols=2,
    )
    return fig


def _joined(starts: Floats, ends: Floats) -> Floats:
    """Lines between points (e 2) as one line with gaps (2 3e), which keeps files small."""
    return np.stack([starts, ends, np.full_like(starts, np.nan)], axis=1).reshape(-1, 2).T


@dataclass(frozen=True)
class Inductive:
    """Test RMSE of a method that trained on a share of the sensors: of all, of seen and of unseen ones."""

    share: float
    rmse: float
    seen: float | None = None
    unseen: float | None = None


@styled
def inductive(rows: Mapping[str, Sequence[Inductive]], title: str) -> Figure:
    """Test RMSE against the share of sensors that trained: of all sensors, of unseen and of seen ones."""
    kinds: dict[str, tuple[str, Any, str]] = {
        "rmse": ("all sensors", "-", "o"),
        "unseen": ("unseen", "--", "^"),
        "seen": ("seen", ":", "s"),
    }
    fig = figure()
    axes = fig.subplots()
    drawn: set[str] = set()
    for k, points in enumerate(rows.values()):
        for kind, (_, line, marker) in kinds.items():
            found = [(p.share, value) for p in points if (value := getattr(p, kind)) is not None]
            if found:
                drawn.add(kind)
                width = 1.9 if kind == "rmse" else 1.2
                axes.plot(
                    *zip(*sorted(found), strict=True),
                    color=colour(k),
                    linestyle=line,
                    marker=marker,
                    markersize=5 if kind == "rmse" else 4,
                    linewidth=width,
                )
    axes.set(title=title, xlabel="share of sensors that trained", ylabel="test RMSE, unmasked")
    axes.set_xticks(sorted({p.share for points in rows.values() for p in points}))
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    handles = [Line2D([], [], color=colour(k), linewidth=1.9, label=name) for k, name in enumerate(rows)]
    if len(drawn) > 1:
        handles += [
            Line2D([], [], color="#666666", linestyle=line, marker=marker, markersize=4, label=name)
            for kind, (name, line, marker) in kinds.items()
            if kind in drawn
        ]
    fig.legend(handles=handles, loc="outside right upper")
    return fig
