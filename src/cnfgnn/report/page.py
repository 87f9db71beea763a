"""One HTML file that shows runs and opens anywhere, offline: markup, style, script and numbers in one."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from string import Template
from typing import Any

import numpy as np
import numpy.typing as npt

from cnfgnn.data.series import SUMS
from cnfgnn.report.packing import Pack, squeezed
from cnfgnn.report.predictions import Look
from cnfgnn.report.views import RunView
from cnfgnn.runs.events import plain
from cnfgnn.version import __version__

ASSETS = files("cnfgnn.report") / "assets"
SCRIPTS = ("numbers", "charts", "overview", "map", "sensor", "training", "main")  # in this order, one module
FIGURES = ("masked_mae", "masked_rmse", "rmse", "mae")
MOST_BYTES = 4_200_000  # of all arrays before they are compressed: the page stays below 8 MB in any case


@dataclass(frozen=True)
class Section:
    """Ready-made HTML under a heading."""

    title: str
    html: str


def page(title: str, runs: Sequence[RunView], sections: Sequence[Section] = ()) -> str:
    """The whole page: sections first, then the runs side by side; without runs only the sections."""
    made = "".join(
        f'<section class="card prose"><h2>{html.escape(section.title)}</h2>{section.html}</section>'
        for section in sections
    )
    return Template(_asset("template.html")).substitute(
        title=html.escape(title),
        style=_asset("page.css"),
        theme=_asset("theme.js"),
        sections=made,
        runs=_shown(runs) if runs else "",
        version=__version__,
    )


def _shown(runs: Sequence[RunView]) -> str:
    """The part of the page that needs runs: its markup, their numbers, and what draws them."""
    from plotly.offline import get_plotlyjs  # late: only a page needs it

    pack = Pack()
    content = json.dumps(plain(_content(runs, pack)), allow_nan=False, separators=(",", ":"))
    return Template(_asset("runs.html")).substitute(
        content=content.replace("<", "\\u003c"),  # or a name could end the script
        arrays=pack.text(),
        plotly=squeezed(get_plotlyjs().encode()),
        script="\n".join(_asset(f"{name}.js") for name in SCRIPTS),
    )


def _content(runs: Sequence[RunView], pack: Pack) -> dict[str, Any]:
    """What the script reads; long arrays go to the pack. Runs on the same data share sensors and truth."""
    rows = _rows_that_fit(runs)
    data: dict[str, dict[str, Any]] = {}
    shown = []
    for run in runs:
        if run.fingerprint not in data:
            data[run.fingerprint] = _data(run)
        own = data[run.fingerprint]
        if run.look is not None and "truth" not in own:
            own |= _truth(run.look, rows, pack)
        shown.append(_run(run, list(data).index(run.fingerprint), rows, pack))
    return {"figures": FIGURES, "data": list(data.values()), "runs": shown}


def _data(run: RunView) -> dict[str, Any]:
    return {
        **run.data,
        "step_seconds": run.step_seconds,
        "sensors": list(run.sensors),
        "x": [round(float(x), 6) for x in run.places[:, 0]],
        "y": [round(float(y), 6) for y in run.places[:, 1]],
        "located": run.located,
        "edges": run.edges.T.tolist(),
    }


def _truth(look: Look, rows: int, pack: Pack) -> dict[str, Any]:
    times = look.times[-rows:]
    return {
        "truth": pack.rounded(look.truth[:, -rows:]),
        "first": int(times[0].astype("datetime64[s]").astype(np.int64)),
    }


def _run(run: RunView, data: int, rows: int, pack: Pack) -> dict[str, Any]:
    test = None
    if run.test is not None:
        test = {name: run.test[name] for name in ("overall", "per_step", "seen", "unseen")}
        test["per_node"] = [run.test["per_node"][sensor] for sensor in run.sensors]
    shown = {
        "name": run.name,
        "method": run.method,
        "finished": run.finished,
        "best": run.best_round,
        "rounds": list(run.rounds),
        "test": test,
        "ledger": list(run.ledger),
        "settings": run.settings,
        "seen": run.seen,
        "data": data,
        "without": run.without,
    }
    if run.look is not None:
        shown |= {
            "steps": run.look.steps,
            "by_step": pack.exact(figures(run.look.sums)),
            "by_hour": pack.coarse(figures(run.look.hours)),
            "forecasts": pack.rounded(run.look.forecasts[:, :, -rows:]),
        }
    return shown


def figures(sums: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """(n, ., 8) sums -> (4, n, .) errors in the order of FIGURES, NaN where there is nothing."""
    s = dict(zip(SUMS, np.moveaxis(sums, -1, 0), strict=True))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.stack(
            [
                s["masked_absolute"] / s["masked_count"],
                np.sqrt(s["masked_square"] / s["masked_count"]),
                np.sqrt(s["square"] / s["count"]),
                s["absolute"] / s["count"],
            ]
        )


def _rows_that_fit(runs: Sequence[RunView]) -> int:
    """How many of the last rows of each series the page has room for, after the errors."""
    looks = [run.look for run in runs if run.look is not None]
    errors = sum(4 * look.sums[..., 0].size * 8 + 4 * look.hours[..., 0].size * 4 for look in looks)
    a_row = sum(2 * len(look.truth) * (1 + len(look.steps)) for look in looks)  # truth as if never shared
    most = max((len(look.times) for look in looks), default=1)
    return max(1, min(most, (MOST_BYTES - errors) // max(1, a_row)))


def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")
