"""What `cnfgnn live demo` says about its forecasts, beside the last value."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cnfgnn.live.clock import Zone
from cnfgnn.live.demo import Comparison
from cnfgnn.live.forecasts import Forecast
from tests.conftest import network

AHEAD = 3


def test_forecasts_and_the_last_value_are_compared_on_the_same_readings_by_rmse() -> None:
    readings = network(rows=8, dropout=0).readings
    values, missing = np.array(readings.values), np.array(readings.missing)
    values[0], values[AHEAD] = 60.0, 50.0
    values[AHEAD, 0] = 56.0
    missing[:] = False
    missing[0, 1] = True  # no last value: its forecast, which is far off, does not count either
    compared = Comparison(replace(readings, values=values, missing=missing), AHEAD)
    n, step = values.shape[1], int(readings.times[0].astype("datetime64[s]").astype(np.int64))
    forecasts = np.full((n, AHEAD), 53.0)
    forecasts[1] = 500.0
    made = Forecast(
        ids=readings.ids,
        zone=Zone(utc=True),
        step_seconds=300,
        step=step,
        made=step,
        valid_until=step + 600,
        values=forecasts,
        quality=np.zeros(n, dtype=np.int64),
        last_reading=np.full(n, step),
        ranges={},
    )
    assert str(compared) == ""
    compared.add(made)
    others = n - 2  # sensors that read 50 instead of 60; all forecasts are off by 3
    of_last = ((4.0**2 + others * 10.0**2) / (n - 1)) ** 0.5
    assert str(compared) == f"RMSE 15 min ahead 3.00 (last value {of_last:.2f})"
