"""The pictures of docs/results.md, from the measured figures in pictures.toml beside this file.

python studies/pictures.py              writes docs/figures/results-{bytes,blur,graph}.svg
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from cnfgnn.files import write_whole
from cnfgnn.studies.drawing import (
    INK,
    SIZE,
    LabelledPoint,
    axis_margin,
    colour,
    figure,
    label_points,
    styled,
    svg,
)

ROOT = Path(__file__).parents[1]
MEASURED = Path(__file__).with_suffix(".toml")
MB_OF_A_GIB = 2**30 / 1e6


@styled
def against_bytes(panels: list[dict[str, Any]]) -> Figure:
    """Test RMSE against the bytes of one node, a panel for each data set."""
    fig = figure((SIZE[0], 3.3))
    for axes, panel in zip(fig.subplots(1, len(panels)), panels, strict=True):
        points = []
        for point in panel["points"]:
            mb = point.get("mb") or point["gib"] * MB_OF_A_GIB / panel["nodes"]
            spread = point.get("spread", 0.0)
            ink = colour(1 if point.get("ours") else 0)
            axes.errorbar(mb, point["rmse"], yerr=spread, fmt="o", color=ink, markersize=6, capsize=2.5)
            points.append(LabelledPoint(mb, point["rmse"], spread, point["method"], ink))
        axes.set_xscale("log")
        axes.set(title=panel["data"], xlabel="MB of one node, until the best round", xlim=(15, 12000))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda mb, _: f"{mb:,.0f}"))
        low, high = min(p.y - p.spread for p in points), max(p.y + p.spread for p in points)
        margin = axis_margin(low, high, 0.12)
        axes.set_ylim(low - margin, high + margin)
        panel["labels"] = points
    fig.axes[0].set_ylabel("test RMSE, mph, unmasked")
    for axes, panel in zip(fig.axes, panels, strict=True):
        label_points(fig, axes, panel["labels"])
    return fig


@styled
def against_blur(sets: list[dict[str, Any]]) -> Figure:
    """What a blur costs in forecasts, and how far off an attacker is."""
    fig = figure((SIZE[0], 3.6))
    cost, attacked = fig.subplots(1, 2)
    for k, one in enumerate(sets):
        changes = [100 * (rmse / one["rmse"][0] - 1) for rmse in one["rmse"]]
        cost.plot(one["blurs"], changes, "o-", color=colour(k), markersize=4.5, label=one["data"])
        attacked.plot(one["blurs"], one["attack"], "o-", color=colour(k), markersize=4.5)
        for blur, error in one.get("later_attack", []):
            attacked.plot(blur, error, "*", color=colour(k), markersize=9, label="a later attack")
    most = max(max(one["blurs"]) for one in sets)
    attacked.plot([0, most], [0, most], "--", color=INK, linewidth=0.9, label="the copy itself: the blur")
    cost.set(title="Forecasts", ylabel="test RMSE, change from no blur, %", ylim=(-5, 5))
    attacked.set(
        title="Strongest attack of version 0.3.0", ylabel="RMSE of the readings it finds, mph", ylim=(0, 10)
    )
    for axes in (cost, attacked):
        axes.set_xlabel("blur, mph")
    fig.legend(loc="outside lower center", ncols=4)
    return fig


@styled
def of_the_graph(rows: list[dict[str, Any]]) -> Figure:
    """By how many per cent an error is lower with the Graph Network than without."""
    fig = figure((SIZE[0], 2.6))
    axes = fig.subplots()
    for k, (key, name) in enumerate(
        (("metr_la", "METR-LA, 29 sensors"), ("pems_bay", "PEMS-BAY, 74 sensors"))
    ):
        at = [place + 0.36 * k for place in range(len(rows))]
        gains = [100 * (1 - row[key][1] / row[key][0]) for row in rows]
        axes.barh(at, gains, height=0.34, color=colour(k), label=name)
        for place, gain, row in zip(at, gains, rows, strict=True):
            without, with_graph = row[key]
            text = f" {gain:.1f} %  ({without:.3f} → {with_graph:.3f})"
            axes.text(gain, place, text, va="center", fontsize=8, color=INK)
    axes.set_yticks([place + 0.18 for place in range(len(rows))], [row["methods"] for row in rows])
    axes.invert_yaxis()
    axes.grid(False, axis="y")
    axes.set(xlabel="lower error with the Graph Network, %", xlim=(0, 14))
    axes.set_title("What the graph is worth")
    axes.legend(loc="lower right")
    return fig


def main() -> None:
    measured = tomllib.loads(MEASURED.read_text())
    drawn = {
        "bytes": against_bytes(measured["bytes"]),
        "blur": against_blur(measured["blur"]),
        "graph": of_the_graph(measured["graph"]),
    }
    for name, picture in drawn.items():
        path = ROOT / "docs" / "figures" / f"results-{name}.svg"
        write_whole(path, (svg(picture) + "\n").encode())
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
