"""One HTML file that shows runs: markup, style, script and numbers, readable offline in any browser."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from string import Template
from typing import Any

import numpy as np
import numpy.typing as npt

from cnfgnn.data.prepared_series import SUMS
from cnfgnn.forecasters.intervals import REPORTED
from cnfgnn.report.packing import Pack, gzip_base64
from cnfgnn.report.predictions import Predictions
from cnfgnn.report.selection import MANY, sensors_in_full
from cnfgnn.report.views import RunView
from cnfgnn.runs.events import plain
from cnfgnn.version import __version__

ASSETS = files("cnfgnn.report") / "assets"
# Concatenated in this order into one module.
SCRIPTS = (
    "colours",
    "numbers",
    "charts",
    "overview",
    "sensor_map",
    "map",
    "sensor",
    "search",
    "training",
    "main",
)
FIGURES = ("masked_mae", "masked_rmse", "rmse", "mae")
MOST_BYTES = 4_200_000  # of all arrays, uncompressed: keeps the page below 8 MB
# The same if a data set has many sensors, where the page should stay below 5 MB: of the series that are shown
# in full, uncompressed, and of everything, compressed.
MOST_IN_SERIES, MOST_COMPRESSED = 600_000, 2_150_000


@dataclass(frozen=True)
class Section:
    """A heading with HTML below it."""

    title: str
    html: str


def page(
    title: str, runs: Sequence[RunView], sections: Sequence[Section] = (), named: Sequence[str] = ()
) -> str:
    """The whole page: the sections, then the runs side by side, if any. Where there are too many sensors to
    show all of them in full, those in `named` are among the ones that are."""
    made = "".join(
        f'<section class="card prose"><h2>{html.escape(section.title)}</h2>{section.html}</section>'
        for section in sections
    )
    return Template(_asset("template.html")).substitute(
        title=html.escape(title),
        style=_asset("page.css"),
        theme=_asset("theme.js"),
        sections=made,
        runs=_shown(runs, named) if runs else "",
        version=__version__,
    )


def _shown(runs: Sequence[RunView], named: Sequence[str]) -> str:
    """The part of the page that shows runs: markup, numbers and script."""
    from plotly.offline import get_plotlyjs  # late: only pages need it

    pack = Pack()
    content = json.dumps(plain(_content(runs, named, pack)), allow_nan=False, separators=(",", ":"))
    return Template(_asset("runs.html")).substitute(
        content=content.replace("<", "\\u003c"),  # otherwise a name could end the script element
        arrays=pack.text(),
        plotly=gzip_base64(get_plotlyjs().encode()),
        script="\n".join(_asset(f"{name}.js") for name in SCRIPTS),
    )


def _content(runs: Sequence[RunView], named: Sequence[str], pack: Pack) -> dict[str, Any]:
    """What the script reads, without long arrays, which go into the pack; runs on the same data share it."""
    kept = {run.fingerprint: _kinds_in_full(run, named) for run in reversed(runs)}
    full = {data: None if kinds is None else _rows_of(kinds) for data, kinds in kept.items()}
    rows = _rows_that_fit(runs, full)
    data: dict[str, dict[str, Any]] = {}
    shown = []
    for run in runs:
        if run.fingerprint not in data:
            data[run.fingerprint] = _data(run, kept[run.fingerprint], pack)
        own, in_full = data[run.fingerprint], full[run.fingerprint]
        if run.predictions is not None and "truth" not in own:
            own |= _truth(run.predictions, rows, in_full, pack)
        shown.append(_run(run, list(data).index(run.fingerprint), rows, in_full, pack))
    for run, one in zip(runs, shown, strict=True):
        if full[run.fingerprint] is not None:
            _add_if_there_is_room(run, data[run.fingerprint], one, pack)
    return {"figures": FIGURES, "data": list(data.values()), "runs": shown}


def _kinds_in_full(run: RunView, named: Sequence[str]) -> dict[str, list[int]] | None:
    """The sensors that the page shows in full, by kind; None if all."""
    if len(run.sensors) <= MANY:
        return None
    row_of = {sensor: row for row, sensor in enumerate(run.sensors)}
    errors = _errors_by_sensor(run)[0] if run.test is not None else np.full(len(run.sensors), np.nan)
    return sensors_in_full(errors, [row_of[sensor] for sensor in named if sensor in row_of])


def _rows_of(kinds: Mapping[str, Sequence[int]]) -> npt.NDArray[np.int64]:
    return np.unique(np.array([row for rows in kinds.values() for row in rows], dtype=np.int64))


def _data(run: RunView, kinds: Mapping[str, Sequence[int]] | None, pack: Pack) -> dict[str, Any]:
    shown = {
        **run.data,
        "step_seconds": run.step_seconds,
        "located": run.located,
        "pairs": len(run.edges),
    }
    if kinds is None:
        return shown | {
            "sensors": list(run.sensors),
            "x": [round(float(x), 6) for x in run.points[:, 0]],
            "y": [round(float(y), 6) for y in run.points[:, 1]],
            "edges": run.edges.T.tolist(),
        }
    return shown | {
        "many": {"kinds": kinds, "full": _rows_of(kinds).tolist()},
        "sensors": pack.json(list(run.sensors)),
        "x": pack.fine(run.points[:, 0]),
        "y": pack.fine(run.points[:, 1]),
        "edges": [[], []],
    }


def _add_if_there_is_room(run: RunView, data: dict[str, Any], shown: dict[str, Any], pack: Pack) -> None:
    """Of many sensors: edges, intervals of every sensor, errors of every sensor at every step."""
    if data["edges"] == [[], []]:
        data["edges"] = pack.if_it_fits(MOST_COMPRESSED, lambda p: [p.whole(ends) for ends in run.edges.T])
        data["edges"] = data["edges"] or []
    for level, found in (shown["test"] or {}).get("intervals", {}).items():
        add = partial(Pack.coarse, values=_intervals_by_sensor(run, level))
        found["packed"] = pack.if_it_fits(MOST_COMPRESSED, add)
    if run.predictions is not None:
        by_step = figures(run.predictions.sums).swapaxes(1, 2)  # (4, t, n)
        shown["steps_of_all"] = pack.if_it_fits(
            MOST_COMPRESSED, lambda p: [p.relative(figure) for figure in by_step]
        )


def _truth(
    predictions: Predictions, rows: int, full: npt.NDArray[np.int64] | None, pack: Pack
) -> dict[str, Any]:
    times = predictions.times[-rows:]
    return {
        "truth": pack.rounded(_some(predictions.truth[:, -rows:], full, 0)),
        "first": int(times[0].astype("datetime64[s]").astype(np.int64)),
    }


def _some(values: npt.NDArray[np.float64], full: npt.NDArray[np.int64] | None, axis: int) -> npt.NDArray[Any]:
    """Those of the sensors that are shown in full."""
    return values if full is None else values.take(full, axis)


def _run(
    run: RunView, data: int, rows: int, full: npt.NDArray[np.int64] | None, pack: Pack
) -> dict[str, Any]:
    test = None
    if run.test is not None:
        test = {name: run.test[name] for name in ("overall", "per_step", "seen", "unseen")}
        if full is None:
            test["per_node"] = [run.test["per_node"][sensor] for sensor in run.sensors]
        else:
            test["errors"] = pack.coarse(_errors_by_sensor(run))
        test["intervals"] = _intervals(run, full is None)
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
        "seen": run.seen if full is None or run.seen is None else pack.json(list(run.seen)),
        "data": data,
        "no_predictions": run.no_predictions,
        "baselines": [{"name": name, **errors} for name, errors in run.baselines.items()],
    }
    if run.predictions is not None:
        found = run.predictions
        shown |= {
            "steps": found.steps,
            "by_step": pack.exact(figures(found.sums)) if full is None else None,
            "by_hour": pack.coarse(figures(_some(found.hours, full, 0))),
            "forecasts": pack.rounded(_some(found.forecasts[:, :, -rows:], full, 1)),
        }
        if found.bands is not None:
            bands = pack.rounded(_some(found.bands[..., -rows:], full, 2))
            shown |= {"levels": REPORTED, "bands": bands}
    return shown


def _errors_by_sensor(run: RunView) -> npt.NDArray[np.float64]:
    """(4, n): each sensor's test errors over all steps, NaN where nothing was evaluated."""
    per_node = (run.test or {})["per_node"]
    return np.array([[per_node[sensor][figure] for sensor in run.sensors] for figure in FIGURES], np.float64)


def _intervals(run: RunView, every_sensor: bool) -> dict[str, Any]:
    """How good the intervals of each level were in the test; empty if it has none."""
    levels = (run.test or {}).get("intervals") or {}
    return {
        level: {
            **found,
            "per_node": [found["per_node"][sensor] for sensor in run.sensors] if every_sensor else None,
        }
        for level, found in levels.items()
    }


def _intervals_by_sensor(run: RunView, level: str) -> npt.NDArray[np.float64]:
    """(2, n): coverage and width of each sensor's intervals."""
    per_node = (run.test or {})["intervals"][level]["per_node"]
    parts = [[per_node[sensor][part] for sensor in run.sensors] for part in ("coverage", "width")]
    return np.array(parts, np.float64)


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


def _rows_that_fit(runs: Sequence[RunView], full: Mapping[str, npt.NDArray[np.int64] | None]) -> int:
    """How many of the last rows of each series fit on the page beside the errors; `full` has the sensors that
    are shown in full, None for all."""
    shown = [run for run in runs if run.predictions is not None]
    errors, a_row, most, room = 0, 0, 1, MOST_BYTES
    for run in shown:
        assert run.predictions is not None
        rows, found = full[run.fingerprint], run.predictions
        if rows is None:
            errors += 4 * found.sums[..., 0].size * 8 + 4 * found.hours[..., 0].size * 4
        else:
            room = MOST_IN_SERIES
        sensors = len(found.truth) if rows is None else len(rows)
        a_row += 2 * sensors * _series(found)  # as if no readings were shared
        most = max(most, len(found.times))
    return max(1, min(most, (room - errors) // max(1, a_row)))


def _series(predictions: Predictions) -> int:
    """How many series of each sensor are shown: readings, forecasts and the bounds of intervals."""
    bounds = 0 if predictions.bands is None else predictions.bands.shape[0] * predictions.bands.shape[1]
    return 1 + len(predictions.steps) + bounds


def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")
