"""Gaps: what stands for a missing reading, how old it is, and that every observed target counts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cnfgnn.config.settings import ModelConfig
from cnfgnn.data.prepared_series import PreparedSeries
from cnfgnn.data.series import NEVER, LastReadings, Scaler, Series, ages_of
from cnfgnn.data.windows import Windows
from cnfgnn.forecasters.linear import Normal, Sample
from cnfgnn.forecasters.usual import HALF_LIVES, fit_half_life

CPU = torch.device("cpu")
NAN = np.nan
HOURS = 24 * 28
PLUS = ModelConfig(profile=True, linear=True, gaps=True)


def hourly(values: np.ndarray, before: LastReadings | None = None) -> Series:
    rows = np.arange(values.shape[1])
    place = (rows % 24) / 24, rows // 24 % 7
    return Series(values, np.isnan(values), *place, seconds=rows * 3600.0, before=before)


def daily_course(seed: int = 0) -> np.ndarray:
    """(2 T): a clear course of the day, and anomalies that fade within hours."""
    rng, rows = np.random.default_rng(seed), np.arange(HOURS)
    anomaly = np.zeros((2, HOURS))
    for t in range(1, HOURS):
        anomaly[:, t] = 0.8 * anomaly[:, t - 1] + 0.3 * rng.normal(size=2)
    return 10 + 5 * np.sin(2 * np.pi * rows / 24) + anomaly


def prepared(values: np.ndarray, model: ModelConfig = PLUS) -> PreparedSeries:
    windows = Windows.of(values.shape[1], 12, 12)
    return PreparedSeries(hourly(values), Scaler(10.0, 4.0), "masked", windows, torch.float64, CPU, model)


def test_ages_count_the_steps_since_the_last_reading() -> None:
    absent = np.array([[True, False, True, True, False], [True, True, False, False, False]])
    assert ages_of(absent).tolist() == [[NEVER, 0, 1, 2, 0], [NEVER, NEVER + 1, 0, 0, 0]]
    assert ages_of(absent, np.array([3, 7])).tolist() == [[3, 0, 1, 2, 0], [7, 8, 0, 0, 0]]


def test_half_lives_are_those_of_the_anomalies() -> None:
    rng = np.random.default_rng(1)
    for half_life in (2.0, 16.0):
        anomaly, keep = np.zeros(20_000), 0.5 ** (1 / half_life)
        for t in range(1, len(anomaly)):
            anomaly[t] = keep * anomaly[t - 1] + rng.normal()
        assert fit_half_life(anomaly, 12) == half_life
    assert fit_half_life(np.full(5, NAN), 12) == HALF_LIVES[-1]


def test_a_short_gap_is_filled_with_almost_the_last_reading_and_a_long_one_with_the_usual_reading() -> None:
    values = daily_course()
    truth = values.copy()
    values[0, 600:601] = NAN
    values[0, 610:660] = NAN
    filled = prepared(values).inputs[0].numpy() * 4 + 10
    last = values[0, 609]
    assert filled[600] == pytest.approx(truth[0, 600], abs=1.5)
    gap = slice(620, 660)
    assert np.abs(filled[gap] - truth[0, gap]).mean() < 0.3 * np.abs(last - truth[0, gap]).mean()
    known = ~np.isnan(values[0])
    np.testing.assert_allclose(filled[known], values[0, known])


def test_a_gap_before_the_first_row_is_filled_as_in_the_whole_series() -> None:
    values = daily_course()
    values[0, 600:640] = NAN
    whole = prepared(values)
    assert whole.weekly_profiles is not None
    assert whole.half_lives is not None
    weeks, half_lives = whole.weekly_profiles, whole.half_lives
    profile = whole.calendar.look_up(weeks)
    expected = hourly(values).filled_with_usual("masked", profile, weeks, half_lives)
    part = hourly(values)
    cut = Series(
        values[:, 612:],
        np.isnan(values[:, 612:]),
        part.time_of_day[612:],
        part.weekday[612:],
        seconds=part.seconds[612:],
        before=LastReadings(np.array([values[0, 599], NAN]), np.array([13, NEVER])),
    )
    # Day 0 of these seconds is a Thursday; the weekdays of the series are counted from it.
    weeks = np.roll(weeks, 3, axis=1)
    found = cut.filled_with_usual("masked", profile[:, 612:], weeks, half_lives)
    np.testing.assert_allclose(found, expected[:, 612:])
    assert (cut.ages("masked")[0] == hourly(values).ages("masked")[0, 612:]).all()


def test_a_sensor_that_was_never_read_and_has_no_profile_is_unknown() -> None:
    values = daily_course()
    values[1] = NAN
    assert prepared(values).unknown.tolist() == [False, True]


def test_every_observed_target_counts_even_after_hours_of_silence() -> None:
    values = daily_course()
    values[0, 590:640] = NAN
    data = prepared(values)
    ones = torch.zeros(2, len(data.starts["test"]), 12, dtype=torch.float64)
    sums = data.errors(ones, "test", slice(None))
    rows = data.starts["test"].numpy()[:, None] + 12 + np.arange(12)
    assert sums[0, :, 5].sum() == (~np.isnan(values[0, rows])).sum()
    heard = data.heard["test"]
    assert heard is not None
    assert not heard[0].all()


def test_a_sensor_with_gaps_is_fitted_to_each_step_it_was_observed_at() -> None:
    """As a regression for each step by itself; one of a sensor without gaps needs one for all steps."""
    rng = np.random.default_rng(4)
    x, y = torch.from_numpy(rng.normal(size=(3, 50, 4))), torch.from_numpy(rng.normal(size=(3, 50, 5)))
    observed = torch.ones(3, 50, 5)
    observed[1] = torch.from_numpy(rng.random((50, 5)) > 0.4)
    observed[2, 10:20] = 0
    gaps = torch.tensor([False, True, False])
    normal = Normal.of(iter([Sample(x, y, observed)]), gaps)
    penalties = torch.tensor([0.5, 2.0, 1.0], dtype=torch.float64)
    weights = normal.solved(penalties)
    errors = normal.squared_errors(weights)
    for n in range(3):
        square = 0.0
        for t in range(5):
            there = observed[n, :, t] > 0
            of_step, change = x[n, there], y[n, there, t]
            eye = penalties[n] * torch.eye(4, dtype=torch.float64)
            expected = torch.linalg.solve(of_step.T @ of_step + eye, of_step.T @ change)
            torch.testing.assert_close(weights[n, :, t], expected)
            square += float((change - of_step @ expected).square().sum())
        assert float(errors[n]) == pytest.approx(square)
    assert normal.windows.tolist() == pytest.approx([50, float(observed[1].sum()) / 5, 40])


def test_forecasts_of_counts_do_not_fall_below_zero() -> None:
    values = np.maximum(daily_course() - 9, 0).round()
    values[1] -= 3
    data = prepared(values)
    forecasts = data.unscaled(data.at_least_floor(torch.full((2, 1, 12), -5.0, dtype=torch.float64)))
    assert (forecasts[0] == 0).all()
    assert (forecasts[1] < 0).all()
    assert prepared(daily_course() + 5).floors is not None
    assert not np.isfinite(prepared(daily_course() + 5).floors).any()  # never zero: no count


def test_years_of_days_use_the_time_of_the_year() -> None:
    rng, days = np.random.default_rng(5), np.arange(365 * 5)
    values = (3 * np.cos(2 * np.pi * days / 365.2425) + rng.normal(size=len(days)))[None]

    def weights(of: np.ndarray) -> torch.Tensor:
        rows = days[: of.shape[1]]
        series = Series(of, np.isnan(of), np.zeros(len(rows)), rows % 7, seconds=rows * 86_400.0)
        windows = Windows.of(len(rows), 12, 12)
        data = PreparedSeries(series, Scaler(0.0, 1.0), "masked", windows, torch.float64, CPU, PLUS)
        return data.linear["own"].weights[0, 2 * 12 + 1 + 7 :][:4]

    assert (weights(values[:, : 365 * 2]) == 0).all()  # a year and five months of training
    assert weights(values).abs().amax() > 0.1
