"""The pictures of docs/results.md and of inductive learning, from experiments/records and, for figures that
have no records, from pictures.toml beside this file.

    python studies/pictures.py      # docs/figures/results-{bytes,blur,graph}.svg and metr-la-29-inductive.svg
"""

from __future__ import annotations

import json
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
from cnfgnn.studies.figures import Inductive, inductive
from cnfgnn.studies.tables import Mean

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "experiments" / "records"
TITLES = {"metr-la-29": "METR-LA, 29 sensors", "pems-bay-74": "PEMS-BAY, 74 sensors"}
MEASURED = Path(__file__).with_suffix(".toml")
MB_OF_A_GIB = 2**30 / 1e6


@styled
def against_bytes(panels: list[dict[str, Any]]) -> Figure:
    """Test RMSE against the bytes of one node, a panel for each data set."""
    fig = figure((SIZE[0], 3.3))
    for axes, panel in zip(fig.subplots(1, len(panels)), panels, strict=True):
        points = []
        for point in panel["points"]:
            if "records" in point:
                found = records(point["records"])
                mb = Mean.of(one["bytes"]["per_node"] / one["data"]["sensors"] / 1e6 for one in found).mean
                errors = Mean.of(one["errors"]["overall"]["rmse"] for one in found)
                rmse, spread = errors.mean, errors.spread or 0.0
            else:
                mb = point["gib"] * MB_OF_A_GIB / panel["nodes"]
                rmse, spread = point["rmse"], point["spread"]
            ink = colour(1 if point.get("ours") else 0)
            axes.errorbar(mb, rmse, yerr=spread, fmt="o", color=ink, markersize=6, capsize=2.5)
            points.append(LabelledPoint(mb, rmse, spread, point["method"], ink))
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
def against_blur(records: list[dict[str, Any]]) -> Figure:
    """What a blur costs in forecasts, and how far off the nearest attacker is; without a blur comes first."""
    fig = figure((SIZE[0], 3.6))
    cost, attacked = fig.subplots(1, 2)
    for k, name in enumerate(sorted({one["data"]["name"] for one in records})):
        of_data = sorted((one for one in records if one["data"]["name"] == name), key=lambda one: one["blur"])
        blurs, errors = (
            [one["blur"] for one in of_data],
            [one["errors"]["overall"]["rmse"] for one in of_data],
        )
        changes = [100 * (rmse / errors[0] - 1) for rmse in errors]
        cost.plot(blurs, changes, "o-", color=colour(k), markersize=4.5, label=TITLES[name])
        attacked.plot(blurs, [nearest(one) for one in of_data], "o-", color=colour(k), markersize=4.5)
    most = max(one["blur"] for one in records)
    attacked.plot([0, most], [0, most], "--", color=INK, linewidth=0.9, label="the copy itself: the blur")
    cost.set(title="Forecasts", ylabel="test RMSE, change from no blur, %", ylim=(-1, 6))
    attacked.set(title="Nearest attack", ylabel="RMSE of the readings it finds, mph", ylim=(0, 10))
    for axes in (cost, attacked):
        axes.set_xlabel("blur, mph")
    fig.legend(loc="outside lower center", ncols=4)
    return fig


def nearest(record: dict[str, Any]) -> float:
    """How near an attack came to the readings of the test split by what was sent."""
    of_sent = [line for line in record["attacks"] if line["attack"] not in ("guess", "copy")]
    return min(line["all"]["rmse"] for line in of_sent if line["split"] == "test")


def by_share(records: list[dict[str, Any]]) -> Figure:
    """Errors of inductive learning: the means over seeds of each method and share of the sensors."""
    found: dict[str, dict[float, list[dict[str, Any]]]] = {}
    for one in records:
        found.setdefault(one["method"], {}).setdefault(one["settings"]["training.seen"], []).append(one)

    def mean(of_share: list[dict[str, Any]], kind: str) -> float:
        return sum(one["errors"][kind]["rmse"] for one in of_share) / len(of_share)

    rows = {
        method: [
            Inductive(share, *(mean(of_share, kind) for kind in ("overall", "seen", "unseen")))
            for share, of_share in sorted(shares.items())
        ]
        for method, shares in found.items()
    }
    return inductive(rows, "Inductive learning on METR-LA, 29 sensors")


@styled
def of_the_graph(rows: list[dict[str, Any]]) -> Figure:
    """By how many per cent an error is lower with the Graph Network than without."""
    fig = figure((SIZE[0], 2.6))
    axes = fig.subplots()
    for k, (key, name) in enumerate(
        (("metr_la", "METR-LA, 29 sensors"), ("pems_bay", "PEMS-BAY, 74 sensors"))
    ):
        at = [place + 0.36 * k for place in range(len(rows))]
        errors = [[error(one, row["error"]) for one in row[key]] for row in rows]
        gains = [100 * (1 - with_graph / without) for without, with_graph in errors]
        axes.barh(at, gains, height=0.34, color=colour(k), label=name)
        for place, gain, (without, with_graph) in zip(at, gains, errors, strict=True):
            text = f" {gain:.1f} %  ({without:.3f} → {with_graph:.3f})"
            axes.text(gain, place, text, va="center", fontsize=8, color=INK)
    axes.set_yticks([place + 0.18 for place in range(len(rows))], [row["methods"] for row in rows])
    axes.invert_yaxis()
    axes.grid(False, axis="y")
    axes.set(xlabel="lower error with the Graph Network, %", xlim=(0, 14))
    axes.set_title("What the graph is worth")
    axes.legend(loc="lower right")
    return fig


def error(measured: float | str, kind: str) -> float:
    """An error as such, or the mean of records."""
    if not isinstance(measured, str):
        return measured
    return Mean.of(one["errors"]["overall"][kind] for one in records(measured)).mean


def records(pattern: str) -> list[dict[str, Any]]:
    """The records of some files; there are some."""
    paths = sorted(RECORDS.glob(pattern))
    if not paths:
        raise SystemExit(f"experiments/records/ has no {pattern}")
    return [json.loads(path.read_text()) for path in paths]


def pictures() -> dict[Path, str]:
    """What each file should hold."""
    measured = tomllib.loads(MEASURED.read_text())
    drawn = {
        "results-bytes": against_bytes(measured["bytes"]),
        "results-blur": against_blur(records("attacks/*.json")),
        "results-graph": of_the_graph(measured["graph"]),
        "metr-la-29-inductive": by_share(records("inductive/*.json")),
    }
    return {ROOT / "docs" / "figures" / f"{name}.svg": svg(one) + "\n" for name, one in drawn.items()}


def main() -> None:
    for path, picture in pictures().items():
        write_whole(path, picture.encode())
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
