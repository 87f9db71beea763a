"""The daily average is what a plain computation gives, and falls back where a sensor was silent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cnfgnn
from cnfgnn.algorithm.methods import preset
from cnfgnn.config.settings import DataConfig, Missing
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.graph import Graph
from cnfgnn.data.readings import Readings
from cnfgnn.data.series import SUMS
from cnfgnn.runs.baselines import daily_average, last_value

HOUR = np.timedelta64(3600, "s")
ABSOLUTE, SQUARE, COUNT = (SUMS.index(name) for name in ("absolute", "masked_square", "masked_count"))


def hourly(values: Any, missing: Any = None) -> Dataset:
    """One reading an hour from midnight on; (T n), NaN and whatever `missing` says is no reading."""
    values = np.asarray(values, dtype=np.float32)
    rows, n = values.shape
    missing = np.isnan(values) if missing is None else np.asarray(missing) | np.isnan(values)
    times = np.datetime64("2024-01-01T00:00:00") + HOUR * np.arange(rows)
    readings = Readings(times, tuple(f"s{i}" for i in range(n)), values, missing)
    return Dataset("hourly", readings, Graph(n, np.arange(n), np.arange(n), np.ones(n)))


def settings(missing: Missing = "masked") -> DataConfig:
    return DataConfig(history=2, horizon=2, shares=(0.5, 0.25, 0.25), missing=missing)


def days(count: int, n: int = 2) -> np.ndarray:
    """The same day over and over: what every average is right about."""
    day = 40 + 10 * np.sin(np.arange(24) / 24 * 2 * np.pi)[:, None] + np.arange(n)
    return np.tile(day, (count, 1))


def test_a_day_that_repeats_is_forecast_without_error() -> None:
    assert daily_average(hourly(days(8)), settings()).overall.rmse == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_it_is_judged_as_a_plain_computation_would(split: Any) -> None:
    data = cnfgnn.city(sensors=3, days=6, dropout=0.0)
    values, total = data.readings.values.astype(float), len(data.readings.times) - 23
    train, test = round(0.7 * total), round(0.2 * total)
    slot = np.arange(len(values)) % 288
    seen = train + 11  # rows that inputs of training windows take in
    average = np.stack([values[:seen][slot[:seen] == k].mean(0) for k in range(288)])
    starts = {"train": range(train), "validation": range(train, total - test), "test": range(total)[-test:]}
    errors = [values[s + 12 : s + 24] - average[slot[s + 12 : s + 24]] for s in starts[split]]
    scores = daily_average(data, preset().data, split)
    assert scores.overall.rmse == pytest.approx(np.sqrt(np.mean(np.square(errors))))
    assert scores.at(3).mae == pytest.approx(np.mean([np.abs(e[2]) for e in errors]))


def test_missing_readings_are_skipped_or_zeros_are_the_truth() -> None:
    values = days(8)
    zero = np.zeros(values.shape, dtype=bool)
    zero[24 + 7, 0] = True  # of the four days that train, the second at seven
    values[zero] = 0
    data = hourly(values, zero)
    masked, as_truth = daily_average(data, settings()), daily_average(data, settings("as-truth"))
    assert masked.overall.masked_rmse == pytest.approx(0, abs=1e-4)
    starts = np.arange(189)[-round(0.25 * 189) :]
    at_seven = ((starts + 2) % 24 == 7).sum()
    assert as_truth.sums[0, 0, ABSOLUTE].item() == pytest.approx(at_seven * values[7, 0] / 4)  # of four days
    assert as_truth.per_node[1].rmse == pytest.approx(0, abs=1e-4)


def test_a_time_of_day_without_a_reading_takes_the_sensor_s_mean_and_then_everybody_s() -> None:
    values = days(8, n=3)
    values[:96, 2] = np.nan  # silent while others train
    values[np.arange(192) % 24 == 5, 1] = np.nan
    values[24 * 7 + 5, 1] = 50.0  # a time of day at which it never trained
    data = hourly(values)
    scores = daily_average(data, settings())
    own, overall = np.nanmean(values[:95, 1]), np.nanmean(values[:95])
    errors = scores.sums[:, :, SQUARE] / scores.sums[:, :, COUNT]
    rows = len(values) - 4 + 1
    starts = np.arange(rows)[-round(0.25 * rows) :]
    ahead = np.square(values[starts + 2, 2] - overall)
    assert errors[2, 0].item() == pytest.approx(ahead.mean(), rel=1e-2)
    assert scores.sums[1, 0, SQUARE].item() == pytest.approx((50.0 - own) ** 2, rel=1e-3)
    assert scores.sums[0, 0, SQUARE].item() == pytest.approx(0, abs=1e-3)


def test_both_floors_are_judged_on_the_same_windows() -> None:
    data = cnfgnn.city(sensors=4, days=3)
    one, two = (floor(data, preset().data).sums for floor in (last_value, daily_average))
    for k in (2, 5, 7):
        assert (one[..., k] == two[..., k]).all()
