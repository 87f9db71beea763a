"""Each baseline is what a plain computation gives; the daily average falls back where a sensor was silent."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import cnfgnn
from cnfgnn.algorithm.methods import preset
from cnfgnn.config.settings import DataConfig, Missing
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.graph import Graph
from cnfgnn.data.prepared_series import SUMS, PreparedSeries
from cnfgnn.data.readings import Readings
from cnfgnn.runs import baselines
from cnfgnn.runs.baselines import PENALTIES, all_baselines
from tests.one_baseline import daily_average, last_value, ridge

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


# ---- the same time before -------------------------------------------------------------------------------


def test_what_was_read_a_day_and_a_week_before_is_as_a_plain_computation_says() -> None:
    data = hourly(np.random.default_rng(0).normal(size=(24 * 40, 3)))
    values, total = data.readings.values.astype(float), len(data.readings.times) - 3
    tested = range(total)[-round(0.25 * total) :]
    found = all_baselines(data, settings())
    for name, rows in {"yesterday": 24, "last week": 168}.items():
        errors = [values[s + 2 : s + 4] - values[s + 2 - rows : s + 4 - rows] for s in tested]
        assert found[name].overall.rmse == pytest.approx(np.sqrt(np.mean(np.square(errors))))


def test_a_horizon_longer_than_a_day_uses_the_last_day_that_is_known() -> None:
    rising = np.repeat(np.arange(20), 24)[:, None]  # each day is 1 higher than the one before
    config = DataConfig(history=2, horizon=30, shares=(0.5, 0.25, 0.25), missing="masked")
    found = all_baselines(hourly(days(20) + rising), config)
    assert found["yesterday"].overall.mae == pytest.approx(2, abs=1e-4)


def test_a_baseline_that_does_not_suit_the_data_is_left_out() -> None:
    assert "last week" not in all_baselines(hourly(days(6)), settings())
    long = hourly(days(60))
    names = ["last value", "yesterday", "last week", "daily average", "ridge"]
    assert list(all_baselines(long, settings())) == names
    times = np.datetime64("2024-01-01T00:00:00") + 7 * HOUR * np.arange(len(long.readings.times))
    odd = all_baselines(replace(long, readings=replace(long.readings, times=times)), settings())
    assert "yesterday" not in odd  # a day is no whole number of 7 hours, and a week is
    assert "last week" in odd


# ---- ridge ----------------------------------------------------------------------------------------------


def test_readings_that_follow_a_linear_rule_are_forecast_almost_without_error() -> None:
    rows = np.zeros((24 * 30, 2))
    rows[:2] = [[1.0, 2.0], [1.5, 1.0]]
    for t in range(2, len(rows)):  # an oscillation, of another period for each sensor
        rows[t] = 2 * np.cos([0.3, 0.5]) * rows[t - 1] - rows[t - 2]
    data, config = hourly(rows), settings()
    assert ridge(data, config).overall.rmse < 0.01 * last_value(data, config).overall.rmse


def test_ridge_is_what_a_plain_computation_gives() -> None:
    data, config = hourly(np.cumsum(np.random.default_rng(1).normal(size=(480, 1)), axis=0)), settings()
    values = data.readings.values[:, 0].astype(float)
    total = len(values) - 3
    train, test = round(0.5 * total), round(0.25 * total)
    seen = values[: train + 1]
    scaled = (values - seen.mean()) / seen.std()

    def windows(starts: range) -> tuple[np.ndarray, np.ndarray]:
        hours = np.eye(24)[[(s + 1) % 24 for s in starts]]
        last = scaled[[s + 1 for s in starts]]
        change = np.stack([scaled[s + 2 : s + 4] for s in starts]) - last[:, None]
        return np.column_stack([scaled[list(starts)] - last, last, hours]), change

    x, y = windows(range(train))
    x_validation, y_validation = windows(range(train, total - test))
    x_test, y_test = windows(range(total - test, total))
    tried = [np.linalg.solve(x.T @ x + penalty * np.eye(26), x.T @ y) for penalty in PENALTIES]
    best = min(tried, key=lambda w: float(np.square(x_validation @ w - y_validation).sum()))
    expected = np.sqrt(np.mean(np.square(x_test @ best - y_test))) * seen.std()
    assert ridge(data, config).overall.rmse == pytest.approx(expected, rel=1e-5)


def test_ridge_needs_no_complete_sensor() -> None:
    values = days(30)
    values[:, 1] = np.nan  # a sensor that never reported
    values[5::7, 0] = np.nan
    assert np.isfinite(ridge(hourly(values), settings()).overall.masked_rmse)


# ---- many sensors ---------------------------------------------------------------------------------------


def walks(n: int, rows: int = 24 * 12) -> Dataset:
    """Random walks with gaps."""
    rng = np.random.default_rng(5)
    values = 50 + np.cumsum(rng.normal(size=(rows, n)), axis=0)
    values[rng.random((rows, n)) < 0.03] = np.nan
    values[:, n // 2] = np.nan
    return hourly(values)


def test_sensors_in_groups_get_the_errors_that_all_at_once_get(monkeypatch: pytest.MonkeyPatch) -> None:
    data = walks(23)
    at_once = all_baselines(data, settings())
    monkeypatch.setattr(baselines, "NODES_AT_ONCE", 5)
    in_groups = all_baselines(data, settings())
    assert list(in_groups) == ["last value", "yesterday", "last week", "daily average", "ridge"]
    for name, scores in in_groups.items():
        np.testing.assert_allclose(scores.sums, at_once[name].sums, rtol=1e-9, atol=1e-9)


def test_many_sensors_are_taken_in_groups_of_which_each_takes_many_windows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken = []
    whole = PreparedSeries.batch

    def batch(self: PreparedSeries, split: Any, windows: Any, h_G: Any = None) -> Any:
        taken.append((split, self.nodes, windows.stop - windows.start))
        return whole(self, split, windows, h_G)

    monkeypatch.setattr(PreparedSeries, "batch", batch)
    data = walks(1300, rows=24 * 9)  # all at once, there would be room for 25 windows
    ridge(data, settings())
    assert {nodes for _, nodes, _ in taken} == {256, 1300 - 5 * 256}
    assert {windows for split, _, windows in taken if split == "train"} == {106}  # all of them
