"""One HTML file that shows runs: markup, style, script and numbers, readable offline in any browser."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from string import Template
from typing import Any

import numpy as np
import numpy.typing as npt

from cnfgnn.algorithm.intervals import REPORTED
from cnfgnn.data.series import SUMS
from cnfgnn.report.packing import Pack, gzip_base64
from cnfgnn.report.predictions import Predictions
from cnfgnn.report.views import RunView
from cnfgnn.runs.events import plain
from cnfgnn.version import __version__

ASSETS = files("cnfgnn.report") / "assets"
# Concatenated in this order into one module.
SCRIPTS = ("colours", "numbers", "charts", "overview", "map", "sensor", "training", "main")
FIGURES = ("masked_mae", "masked_rmse", "rmse", "mae")
MOST_BYTES = 4_200_000  # of all arrays, uncompressed: keeps the page below 8 MB


@dataclass(frozen=True)
class Section:
    """A heading with HTML below it."""

    title: str
    html: str


def page(title: str, runs: Sequence[RunView], sections: Sequence[Section] = ()) -> str:
    """The whole page: the sections, then the runs side by side, if any."""
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
    """The part of the page that shows runs: markup, numbers and script."""
    from plotly.offline import get_plotlyjs  # late: only pages need it

    pack = Pack()
    content = json.dumps(plain(_content(runs, pack)), allow_nan=False, separators=(",", ":"))
    return Template(_asset("runs.html")).substitute(
        content=content.replace("<", "\\u003c"),  # otherwise a name could end the script element
        arrays=pack.text(),
        plotly=gzip_base64(get_plotlyjs().encode()),
        script="\n".join(_asset(f"{name}.js") for name in SCRIPTS),
    )


def _content(runs: Sequence[RunView], pack: Pack) -> dict[str, Any]:
    """What the script reads, without long arrays, which go into the pack; runs on the same data share it."""
    rows = _rows_that_fit(runs)
    data: dict[str, dict[str, Any]] = {}
    shown = []
    for run in runs:
        if run.fingerprint not in data:
            data[run.fingerprint] = _data(run)
        own = data[run.fingerprint]
        if run.predictions is not None and "truth" not in own:
            own |= _truth(run.predictions, rows, pack)
        shown.append(_run(run, list(data).index(run.fingerprint), rows, pack))
    return {"figures": FIGURES, "data": list(data.values()), "runs": shown}


def _data(run: RunView) -> dict[str, Any]:
    return {
        **run.data,
        "step_seconds": run.step_seconds,
        "sensors": list(run.sensors),
        "x": [round(float(x), 6) for x in run.points[:, 0]],
        "y": [round(float(y), 6) for y in run.points[:, 1]],
        "located": run.located,
        "edges": run.edges.T.tolist(),
    }


def _truth(predictions: Predictions, rows: int, pack: Pack) -> dict[str, Any]:
    times = predictions.times[-rows:]
    return {
        "truth": pack.rounded(predictions.truth[:, -rows:]),
        "first": int(times[0].astype("datetime64[s]").astype(np.int64)),
    }


def _run(run: RunView, data: int, rows: int, pack: Pack) -> dict[str, Any]:
    test = None
    if run.test is not None:
        test = {name: run.test[name] for name in ("overall", "per_step", "seen", "unseen")}
        test["per_node"] = [run.test["per_node"][sensor] for sensor in run.sensors]
        test["intervals"] = _intervals(run)
    shown = {
        "name": run.name,
        "method": run.method,
        "finished": run.finished,
        "best": run.best_round,
        "rounds": list(run.rounds),
        "loss_name": _loss_name(run.settings),
        "test": test,
        "ledger": list(run.ledger),
        "settings": run.settings,
        "seen": run.seen,
        "data": data,
        "no_predictions": run.no_predictions,
        "baselines": [{"name": name, **errors} for name, errors in run.baselines.items()],
    }
    if run.predictions is not None:
        shown |= {
            "steps": run.predictions.steps,
            "by_step": pack.exact(figures(run.predictions.sums)),
            "by_hour": pack.coarse(figures(run.predictions.hours)),
            "forecasts": pack.rounded(run.predictions.forecasts[:, :, -rows:]),
        }
        if run.predictions.bands is not None:
            shown |= {"levels": REPORTED, "bands": pack.rounded(run.predictions.bands[..., -rows:])}
    return shown


def _intervals(run: RunView) -> dict[str, Any]:
    """How good the intervals of each level were in the test; empty for a run of an older version."""
    levels = (run.test or {}).get("intervals") or {}
    return {
        level: {**found, "per_node": [found["per_node"][sensor] for sensor in run.sensors]}
        for level, found in levels.items()
    }


def _loss_name(settings: Mapping[str, Any]) -> str:
    """The kind of loss that a run is trained on, for the axis of a chart."""
    mask = "masked" if settings["data.missing"] == "masked" else "unmasked"
    error = "absolute" if settings["training.loss"] == "absolute" else "squared"
    return f"{mask} mean {error} error"


def figures(sums: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """(n, ., 8) sums -> (4, n, .) errors in the order of FIGURES, NaN where nothing was evaluated."""
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
    """How many of the last rows of each series fit on the page beside the errors."""
    shown = [run.predictions for run in runs if run.predictions is not None]
    errors = sum(
        4 * predictions.sums[..., 0].size * 8 + 4 * predictions.hours[..., 0].size * 4
        for predictions in shown
    )
    # As if no readings were shared.
    a_row = sum(2 * len(predictions.truth) * _series(predictions) for predictions in shown)
    most = max((len(predictions.times) for predictions in shown), default=1)
    return max(1, min(most, (MOST_BYTES - errors) // max(1, a_row)))


def _series(predictions: Predictions) -> int:
    """How many series of each sensor are shown: readings, forecasts and the bounds of intervals."""
    bounds = 0 if predictions.bands is None else predictions.bands.shape[0] * predictions.bands.shape[1]
    return 1 + len(predictions.steps) + bounds


def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")
