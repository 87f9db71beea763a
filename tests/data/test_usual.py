"""Usual readings: what of earlier days and weeks comes back, and that live forecasts know the same."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cnfgnn.config.settings import ModelConfig
from cnfgnn.data.prepared_series import PreparedSeries
from cnfgnn.data.readings import Readings
from cnfgnn.data.series import Scaler, Series
from cnfgnn.data.windows import Windows
from cnfgnn.forecasters.usual import DAY_S, LAGS, MOST_ROWS, fit_lags, rows_before, usual_readings
from cnfgnn.live.forecasting.predictor import window_of

HOUR = 3600
LAST_WEEK = LAGS.tolist().index(7 * DAY_S)


def test_the_rows_of_lags_are_found_by_time() -> None:
    seconds = np.delete(np.arange(0.0, 30 * DAY_S, HOUR), 100)  # one hour is missing, as in spring
    rows = rows_before(seconds, seconds, HOUR, horizon=12)
    for lag, found in zip(LAGS, rows, strict=True):
        for row in np.flatnonzero(found >= 0):
            assert seconds[found[row]] == seconds[row] - lag
    assert rows[0, 123] == -1  # the day after the missing hour
    assert (rows[0] >= 0).sum() == len(seconds) - 25


@pytest.mark.parametrize(
    ("step", "horizon", "days"),
    [
        (300, 12, [1, 2, 3, 4, 5, 6, 7]),  # older readings than a week are not at hand
        (HOUR, 12, [1, 2, 3, 4, 5, 6, 7, 14, 21, 28]),
        (HOUR, 30, [2, 3, 4, 5, 6, 7, 14, 21, 28]),  # yesterday's is in the future of the last steps
        (86_400, 12, [14, 21, 28, 364]),
        (7 * 86_400, 4, [28, 364]),
        (600.1, 12, []),
    ],
)
def test_lags_are_known_in_time_and_at_hand(step: float, horizon: int, days: list[int]) -> None:
    seconds = np.arange(MOST_ROWS + 40) * step
    rows = rows_before(seconds, seconds, step, horizon)
    assert [lag / DAY_S for lag, found in zip(LAGS, rows, strict=True) if (found >= 0).any()] == days
    assert ((np.arange(len(seconds)) - rows)[rows >= 0] >= horizon).all()


def days_of_readings(rng: np.random.Generator, days: int = 60) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Hourly readings whose course of the day comes back after a week, with noise; their profile, zero."""
    seconds = np.arange(days * 24) * float(HOUR)
    values = rng.standard_normal(len(seconds))
    for row in range(168, len(seconds)):
        values[row] = 0.9 * values[row - 168] + 0.3 * values[row]
    return seconds, values, np.zeros(len(seconds))


def test_what_comes_back_after_a_week_is_found() -> None:
    seconds, values, profile = days_of_readings(np.random.default_rng(0))
    rows = rows_before(seconds, seconds, HOUR, 12)
    weights = fit_lags(values, profile, rows, ahead=6)
    assert weights[LAST_WEEK] == pytest.approx(0.9, abs=0.1)
    assert np.abs(np.delete(weights, LAST_WEEK)).max() < 0.15
    usual = usual_readings(profile[None], weights[None], values[None], np.isnan(values)[None], rows)[0]
    assert np.std(values[800:] - usual[800:]) < 0.5 * np.std(values[800:])


def test_the_level_of_earlier_days_does_not_come_back() -> None:
    """After a shift all earlier anomalies have another level; the course of the day tells nothing of it."""
    rng = np.random.default_rng(1)
    seconds = np.arange(60 * 24) * float(HOUR)
    values = rng.standard_normal(len(seconds)) * 0.1 + np.where(seconds > 30 * DAY_S, 5.0, 0.0)
    weights = fit_lags(values, np.zeros(len(seconds)), rows_before(seconds, seconds, HOUR, 12), ahead=6)
    assert np.abs(weights).max() < 0.05


def test_without_enough_readings_the_profile_stays() -> None:
    seconds, values, profile = days_of_readings(np.random.default_rng(2), days=3)
    rows = rows_before(seconds, seconds, HOUR, 12)
    assert not fit_lags(np.full_like(values, np.nan), profile, rows, ahead=6).any()
    assert not fit_lags(values, profile, rows, ahead=6)[1:].any()  # only yesterday's is there often enough
    assert not fit_lags(values[:5], profile[:5], rows[:, :5], ahead=6).any()


def test_a_missing_reading_leaves_the_profile() -> None:
    seconds = np.arange(400) * float(HOUR)
    rows = rows_before(seconds, seconds, HOUR, 12)
    values, absent = np.full((1, 400), 3.0), np.zeros((1, 400), dtype=bool)
    absent[0, 10] = True
    weights = np.zeros((1, len(LAGS)))
    weights[0, 0] = 0.5
    usual = usual_readings(np.ones((1, 400)), weights, values, absent, rows)[0]
    assert (usual[:24] == 1).all()  # nothing was read a day before
    assert usual[34] == 1
    assert (np.delete(usual[24:], 10) == 2).all()


def test_a_live_window_has_the_usual_readings_of_the_whole_series() -> None:
    seconds, values, _ = days_of_readings(np.random.default_rng(3))
    both = np.stack([values, np.roll(values, 5)], axis=1).astype(np.float32)
    both[-200:-150, 1] = np.nan
    times = seconds.astype("datetime64[s]")
    readings = Readings(times, ("a", "b"), both, np.isnan(both))
    history, horizon, n = 12, 12, len(times)
    model = ModelConfig(profile=True, linear=True)
    place = torch.float64, torch.device("cpu")
    windows = Windows.of(n, history, horizon)
    trained = PreparedSeries(Series.of(readings), Scaler(0.0, 1.0), "masked", windows, *place, model)
    assert trained.lags is not None
    assert trained.lags[0, LAST_WEEK] > 0.5
    trained.use(trained.state())  # profiles of all days, as when the next readings are forecast
    live = window_of(readings, trained)
    assert live.usual is not None
    assert trained.usual is not None
    assert torch.equal(live.usual[:, : 2 * history], trained.usual[:, -2 * history :])
    assert torch.equal(live.inputs[:, : 2 * history], trained.inputs[:, -2 * history :])
    ahead = live.usual[:, 2 * history :]
    assert ahead.isfinite().all()
    assert (ahead - trained.usual[:, -horizon:]).abs().max() > 0  # what the week before adds, for other times
