"""Forecast the readings that follow the last ones, with a trained run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import torch

from cnfgnn.algorithm.experiment import Experiment
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.inputs import ending_covariates
from cnfgnn.data.quality import Finding, clean, out_of_range
from cnfgnn.data.readings import Readings, rows_of
from cnfgnn.data.windows import Windows
from cnfgnn.errors import DataError, RunError
from cnfgnn.forecasters.intervals import LEVELS, Floats, bounds_of, check_levels
from cnfgnn.runs.evaluate import restore_best
from cnfgnn.runs.folder import Run

# The errors that adapt the intervals of a forecast: those of so many steps before it at most, two weeks of
# five minutes, and of so many forecasts at most, which bounds the time that thousands of sensors take.
ADAPTING, ADAPTING_FORECASTS = 4032, 6_000_000


def forecast_run(run: Run, data: Dataset, levels: Sequence[int] = ()) -> pd.DataFrame:
    """The next readings of every sensor: a row per time after the last reading, a column per sensor.

    Each level, in per cent, adds two columns per sensor: the bounds between which that share of readings
    should lie, for example "773869 low 80" and "773869 high 80". A sensor of which nothing is known has no
    forecast (NaN).
    """
    d, rows = run.config.data, len(data.readings.times)
    if rows < d.history:
        problem = f"has {rows} rows, but a forecast needs the last {d.history}"
        raise DataError(data.readings.source, problem)
    levels = check_levels(levels, "intervals")
    extended = replace(data, readings=with_rows_ahead(data.readings, d.horizon))
    experiment = restore_best(run, extended, Windows.next(rows, d.history, d.horizon))
    if levels:
        adapt_intervals(run, extended, rows, experiment)
    experiment.strategy.forecast()
    n = len(data.readings.ids)
    values = torch.full((n, d.horizon), torch.nan, dtype=torch.float64)
    bounds = np.full((2, len(LEVELS), n, d.horizon), np.nan)
    for nodes, owner in experiment.owners:
        assert owner.forecasts is not None
        values[nodes] = owner.forecasts.cpu()
        if owner.bounds is not None:
            bounds[:, :, nodes.numpy()] = owner.bounds
    times = pd.DatetimeIndex(
        extended.readings.times[rows:], name="time", tz="UTC" if data.readings.utc else None
    )
    return forecast_frame(times, data.readings.ids, values.numpy(), bounds, levels)


def forecast_frame(
    times: pd.DatetimeIndex,
    sensors: Sequence[str],
    values: Floats,
    bounds: Floats | None,
    levels: Sequence[int],
) -> pd.DataFrame:
    """Forecasts (n t) and bounds (2 l n t) as a table: first a column per sensor, then two for each of its
    levels, which are empty if there are no bounds."""
    n, t = values.shape
    found = np.full((n, len(levels), 2, t), np.nan)
    if bounds is not None:
        for place, level in enumerate(levels):
            found[:, place] = bounds_of(bounds, level).swapaxes(0, 1)
    names = [f"{sensor} {end} {level}" for sensor in sensors for level in levels for end in ("low", "high")]
    # One array of all columns: tens of thousands of them would each take their time.
    table = np.concatenate([values, found.reshape(-1, t)]).T
    return pd.DataFrame(table, index=times, columns=[*sensors, *names])


def adapting_steps(sensors: int) -> int:
    """The number of steps before a forecast whose errors adapt its intervals, at most."""
    return max(1, min(ADAPTING, ADAPTING_FORECASTS // sensors))


def adapt_intervals(run: Run, extended: Dataset, rows: int, experiment: Experiment) -> None:
    """Give the owners of an experiment intervals that have followed all errors since the validation split.

    The model forecasts again what it forecast at each step since then, each by itself. Readings that it was
    trained on do not count.
    """
    d = run.config.data
    steps = adapting_steps(len(extended.readings.ids))
    first = max(first_row_after_training(run, extended.readings), rows - d.history - steps, 0)
    starts = np.arange(first, rows - d.history, dtype=np.int64)
    windows = Windows.next(rows, d.history, d.horizon)
    repeated = replace(windows, starts={**windows.starts, "test": starts})
    past = restore_best(run, extended, repeated, one_by_one=True)
    if len(starts):
        past.strategy.ready("test")
    for (_, owner), (_, before) in zip(experiment.owners, past.owners, strict=True):
        if before.intervals is None:
            raise RunError(run.folder, f"has no intervals, because {_why_none(run)}")
        before.follow_test_split()
        before.intervals.catch_up(rows - 1, before.truth.values, ~before.truth.missing)
        owner.intervals = before.intervals


def _why_none(run: Run) -> str:
    if run.data.federation is not None:
        return "the sites of its federation keep them: use cnfgnn federation forecast --intervals"
    return "its validation split had no reading to learn them from"


def first_row_after_training(run: Run, readings: Readings) -> int:
    """The row of these readings at which the first test window of the run's training begins."""
    with run.reading_events():
        began = np.datetime64(run.events()[0]["data"]["from"])
    passed = (began - readings.times[0]) / readings.step
    return round(float(passed)) + int(run.windows.starts["test"][0])


def unusual_inputs(run: Run, data: Dataset) -> tuple[Finding, ...]:
    """Sensors whose newest readings lie far outside their range in training, so that forecasts are
    unreliable.

    Runs of a federation have no ranges to compare with: nothing is found.
    """
    used = clean(data.readings, run.config.data)
    last = slice(len(used.times) - run.config.data.history, None)
    newest = rows_of(used, last)
    return out_of_range(newest, _recorded_ranges(run), run.scaler.std)


def unknown_ahead(run: Run, data: Dataset) -> list[str]:
    """A sentence for each covariate that is not known for all times of the forecast."""
    if not run.config.model.takes_inputs:
        return []
    ahead = with_rows_ahead(data.readings, run.config.data.horizon)
    used = [one for one in ahead.others if one.name in run.data.inputs.covariates]
    return ending_covariates(replace(ahead, others=tuple(used)), int(ahead.seconds[-1]))


def _recorded_ranges(run: Run) -> dict[str, tuple[float, float] | None]:
    """The lowest and the highest training reading of each sensor that has one."""
    ranges: dict[str, tuple[float, float] | None] = {}
    with run.reading_events():
        recorded = run.events()[0]["data"]
        for sensor, bounds in zip(recorded["sensors"], recorded.get("ranges") or [], strict=False):
            if bounds:
                low, high = bounds
                ranges[sensor] = (float(low), float(high))
    return ranges


def with_rows_ahead(readings: Readings, horizon: int) -> Readings:
    """The readings followed by `horizon` empty rows."""
    n = len(readings.ids)
    future = readings.times[-1] + readings.step * np.arange(1, horizon + 1)
    return replace(
        readings,
        times=np.concatenate([readings.times, future.astype(readings.times.dtype)]),
        values=np.concatenate([readings.values, np.full((horizon, n), np.nan, dtype=np.float32)]),
        missing=np.concatenate([readings.missing, np.ones((horizon, n), dtype=np.bool_)]),
    )
