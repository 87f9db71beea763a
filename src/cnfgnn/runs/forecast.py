"""Forecast the readings that follow the last ones, with a trained run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import torch

from cnfgnn.data.dataset import Dataset
from cnfgnn.data.inputs import ending_covariates, seconds_of
from cnfgnn.data.quality import Finding, clean, out_of_range
from cnfgnn.data.readings import Readings
from cnfgnn.data.windows import Windows
from cnfgnn.errors import DataError, RunError
from cnfgnn.runs.evaluate import restore_best
from cnfgnn.runs.folder import Run


def forecast_run(run: Run, data: Dataset) -> pd.DataFrame:
    """The next readings of every sensor: a row per time after the last reading, a column per sensor.

    A sensor without any reading in the history has no forecast (NaN).
    """
    d, rows = run.config.data, len(data.readings.times)
    if rows < d.history:
        problem = f"has {rows} rows, but a forecast needs the last {d.history}"
        raise DataError(data.readings.source, problem)
    extended = replace(data, readings=_extended(data.readings, d.horizon))
    experiment = restore_best(run, extended, Windows.next(rows, d.history, d.horizon))
    experiment.strategy.forecast()
    values = torch.full((len(data.readings.ids), d.horizon), torch.nan, dtype=torch.float64)
    for nodes, owner in experiment.owners:
        assert owner.forecasts is not None
        values[nodes] = owner.forecasts.cpu()
    times = pd.DatetimeIndex(
        extended.readings.times[rows:], name="time", tz="UTC" if data.readings.utc else None
    )
    return pd.DataFrame(values.T.numpy(), index=times, columns=list(data.readings.ids))


def unusual_inputs(run: Run, data: Dataset) -> tuple[Finding, ...]:
    """Sensors whose newest readings lie far outside their range in training, so that forecasts are
    unreliable.

    Runs of a federation, and runs begun before ranges were recorded, have no ranges to compare with: nothing
    is found.
    """
    used = clean(data.readings, run.config.data)
    last = slice(len(used.times) - run.config.data.history, None)
    newest = replace(used, times=used.times[last], values=used.values[last], missing=used.missing[last])
    return out_of_range(newest, _recorded_ranges(run), run.scaler.std)


def unknown_ahead(run: Run, data: Dataset) -> list[str]:
    """A sentence for each covariate that is not known for all times of the forecast."""
    if not run.config.model.takes_inputs:
        return []
    ahead = _extended(data.readings, run.config.data.horizon)
    used = [one for one in ahead.others if one.name in run.data.inputs.covariates]
    return ending_covariates(replace(ahead, others=tuple(used)), int(seconds_of(ahead)[-1]))


def _recorded_ranges(run: Run) -> dict[str, tuple[float, float] | None]:
    """The lowest and the highest training reading of each sensor that has one."""
    try:
        recorded = run.events()[0]["data"]
        ranges: dict[str, tuple[float, float] | None] = {}
        for sensor, bounds in zip(recorded["sensors"], recorded.get("ranges") or [], strict=False):
            if bounds:
                low, high = bounds
                ranges[sensor] = (float(low), float(high))
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise RunError(run.folder, "its events are damaged") from error
    return ranges


def _extended(readings: Readings, horizon: int) -> Readings:
    """The readings followed by `horizon` empty rows."""
    n = len(readings.ids)
    future = readings.times[-1] + readings.step * np.arange(1, horizon + 1)
    return replace(
        readings,
        times=np.concatenate([readings.times, future.astype(readings.times.dtype)]),
        values=np.concatenate([readings.values, np.full((horizon, n), np.nan, dtype=np.float32)]),
        missing=np.concatenate([readings.missing, np.ones((horizon, n), dtype=np.bool_)]),
    )
