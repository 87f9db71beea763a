"""Periods besides the day and the week: which are found, what they are worth, and where none is found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from cnfgnn.config.settings import DataConfig, ModelConfig
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.graph import Graph
from cnfgnn.data.prepared_series import INFORMED, LINEAR, OWN, SEASONS, PreparedSeries
from cnfgnn.data.readings import Readings
from cnfgnn.data.series import Scaler, Series
from cnfgnn.data.windows import Windows
from cnfgnn.forecasters import linear
from tests.one_baseline import last_value, ridge

CPU = torch.device("cpu")
HOUR, DAY = 3600, 86_400
START = np.datetime64("2024-03-01T00:00:00", "s")


def hours(steps: int, step: int) -> np.ndarray:
    return np.arange(steps) * step / HOUR


def persistent(rng: np.random.Generator, n: int, steps: int, kept: float, size: float) -> np.ndarray:
    """Noise of which each value keeps a share of the one before."""
    values, drawn = np.zeros((n, steps)), rng.normal(0, size, (n, steps))
    for step in range(1, steps):
        values[:, step] = kept * values[:, step - 1] + drawn[:, step]
    return values


def tide(n: int = 3) -> tuple[np.ndarray, int]:
    """The moon's tides, the sun's, and the weather, hourly for two months."""
    t, phase = hours(60 * 24, HOUR), np.arange(n)[:, None] / n
    moon = np.cos(2 * np.pi * (t / 12.4206 + phase)) + 0.3 * np.cos(2 * np.pi * (t / 25.8193 + phase))
    weather = persistent(np.random.default_rng(1), n, len(t), 0.9, 0.08)
    return moon + 0.3 * np.cos(2 * np.pi * t / 12) + weather, HOUR


def shift(n: int = 3) -> tuple[np.ndarray, int]:
    """A plant that works for 4.5 hours of every 7.5, in steps of five minutes for two weeks."""
    t, phase = hours(14 * 288, 300), np.arange(n)[:, None] / n
    works = (t / 7.5 + phase) % 1 < 0.6
    noise = persistent(np.random.default_rng(2), n, len(t), 0.8, 0.6)
    return 10 * works + 3 * np.sin(2 * np.pi * t / 24) + noise, 300


def cycle(n: int = 3) -> tuple[np.ndarray, int]:
    """A machine that fills up and empties every 11.3 minutes, every minute for three days."""
    t, phase = hours(3 * 1440, 60), np.arange(n)[:, None] / n
    return 4 * ((t * 60 / 11.3 + phase) % 1) + np.random.default_rng(3).normal(size=(n, len(t))), 60


def years(count: float, n: int = 3) -> tuple[np.ndarray, int]:
    t = np.arange(int(count * 365.25))
    noise = persistent(np.random.default_rng(4), n, len(t), 0.8, 2.0)
    return 10 * np.cos(2 * np.pi * t / 365.25) + noise, DAY


PLANTED = {"tide": (tide, 12.4206), "shift": (shift, 7.5), "cycle": (cycle, 11.3 / 60)}


def readings_of(values: np.ndarray, step: int) -> Readings:
    times = START + np.arange(values.shape[1]) * np.timedelta64(step, "s")
    values = (20 + values.T).astype(np.float32)
    return Readings(times, tuple(f"s{i}" for i in range(values.shape[1])), values, np.isnan(values))


def prepared(readings: Readings, seasons: bool = True, windows: Windows | None = None) -> PreparedSeries:
    series, windows = Series.of(readings), windows or Windows.of(len(readings.times))
    model = ModelConfig(profile=True, linear=True, levels=True, seasons=seasons)
    return PreparedSeries(series, Scaler(20.0, 2.0), "masked", windows, torch.float64, CPU, model)


def error(data: PreparedSeries) -> float:
    batch, _ = data.batch("test", slice(None))
    assert batch.linear_forecast is not None
    square = (batch.linear_forecast - batch.y).square()
    weight = torch.ones_like(square) if batch.weight is None else batch.weight
    return float((square * weight).sum() / weight.sum()) ** 0.5 * data.scaler.std


def dataset(readings: Readings) -> Dataset:
    nobody = np.zeros(0, dtype=np.int64)
    graph = Graph(len(readings.ids), nobody, nobody, np.zeros(0, dtype=np.float32))
    return Dataset("planted", readings, graph)


def ridge_error(readings: Readings) -> float:
    return ridge(dataset(readings), DataConfig()).overall.masked_rmse


def found(values: np.ndarray, step: int) -> torch.Tensor:
    """(n k): the periods that each sensor finds, in hours; infinite for none."""
    readings = readings_of(values, step)
    series, windows = Series.of(readings), Windows.of(len(readings.times))
    profile = series.weekly_profiles(windows, "masked").at_rows
    return 1 / series.seasons(windows, "masked", profile, CPU) / HOUR


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_period_is_found_and_makes_forecasts_clearly_better(name: str) -> None:
    plant, period = PLANTED[name]
    readings = readings_of(*plant())
    data = prepared(readings)
    assert data.seasons is not None
    periods = 1 / data.seasons[:, 0].numpy() / HOUR
    # A tenth of a cycle over the whole span, or the phase would be lost.
    span = hours(len(readings.times), int(readings.step.astype(int)))[-1]
    np.testing.assert_allclose(span / periods, span / period, atol=0.15)
    with_seasons = error(data)
    assert with_seasons < 0.85 * error(prepared(readings, seasons=False))
    assert with_seasons < 0.85 * ridge_error(readings)


def test_gaps_do_not_hide_a_period() -> None:
    values, step = tide()
    rng = np.random.default_rng(5)
    values[rng.random(values.shape) < 0.2] = np.nan
    values[:, 300:340] = np.nan
    np.testing.assert_allclose(found(values, step)[:, 0], 12.4206, atol=0.03)


def plain(kind: str, n: int, steps: int) -> np.ndarray:
    drawn = np.random.default_rng(6).normal(size=(n, steps))
    if kind == "noise":
        return drawn
    if kind == "random walk":
        return drawn.cumsum(axis=1)
    if kind == "random walk with gaps":
        return np.where(np.random.default_rng(7).random(drawn.shape) < 0.3, np.nan, drawn.cumsum(axis=1))
    if kind == "changing days":  # a daily pattern whose height follows the weather
        weather = persistent(np.random.default_rng(8), n, steps, 0.95, 0.1)
        return 10 * (1 + weather) * np.sin(2 * np.pi * np.arange(steps) / 24).clip(min=0) + drawn
    assert kind == "trend"
    return 0.05 * np.arange(steps) + persistent(np.random.default_rng(9), n, steps, 0.9, 1.0)


@pytest.mark.parametrize("step", [60, 300, HOUR])
@pytest.mark.parametrize("kind", ["noise", "random walk", "random walk with gaps", "trend"])
def test_nothing_is_found_where_nothing_recurs(kind: str, step: int) -> None:
    assert found(plain(kind, 20, 1000), step).isinf().all()


@pytest.mark.parametrize("kind", ["random walk", "trend"])
def test_nothing_is_found_in_days_where_nothing_recurs(kind: str) -> None:
    assert found(plain(kind, 3, 1000), DAY).isinf().all()


def test_a_daily_pattern_is_no_other_season() -> None:
    assert found(plain("changing days", 30, 1000), HOUR).isinf().all()


def test_a_year_is_found_in_many_years_of_days_but_not_in_less_than_two() -> None:
    readings = readings_of(*years(8))
    data = prepared(readings)
    assert data.seasons is not None
    np.testing.assert_allclose(1 / data.seasons[:, 0] / DAY, 365.25, atol=12)
    assert error(data) < 0.97 * ridge_error(readings)
    short = readings_of(*years(1.5))
    data = prepared(short)
    assert data.seasons is not None
    assert (data.seasons == 0).all()
    assert error(data) < 1.02 * ridge_error(short)


@pytest.fixture
def usual_form_alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Forecasters take nothing of other forms; `undo` ends that."""
    with monkeypatch.context() as patch:
        patch.setattr(linear, "OTHER", 0.0)
        patch.setattr(linear, "LAST_VALUE", 0.0)
        yield patch


@pytest.mark.parametrize("seed", [2, 3])
def test_a_drift_does_not_make_forecasts_worse_than_ridge(
    seed: int, usual_form_alone: pytest.MonkeyPatch
) -> None:
    t = hours(60 * 24, HOUR)
    noise = persistent(np.random.default_rng(seed), 8, len(t), 0.8, 0.5)
    readings = readings_of(0.005 * t + 3 * np.sin(2 * np.pi * t / 24) + noise, HOUR)
    of_ridge = ridge_error(readings)
    assert error(prepared(readings)) > 1.05 * of_ridge
    usual_form_alone.undo()
    assert error(prepared(readings)) < of_ridge


@pytest.mark.parametrize("seed", [1, 2])
def test_a_random_walk_is_forecast_as_well_as_by_its_last_value(
    seed: int, usual_form_alone: pytest.MonkeyPatch
) -> None:
    readings = readings_of(np.random.default_rng(seed).normal(size=(8, 60 * 24)).cumsum(axis=1) / 10, HOUR)
    of_last_value = last_value(dataset(readings), DataConfig()).overall.masked_rmse
    assert error(prepared(readings)) > 1.05 * of_last_value
    usual_form_alone.undo()
    assert error(prepared(readings)) < 1.02 * of_last_value


def test_without_validation_windows_the_usual_form_counts_most() -> None:
    """One sensor was silent then, the other was not."""
    values, step = tide(2)
    values[1, int(0.7 * values.shape[1]) : int(0.85 * values.shape[1])] = np.nan
    shares = prepared(readings_of(values, step))._shares
    assert shares is not None
    prior = torch.tensor([1.0, 0.5, 0.5, 0.5]) / 2.6
    torch.testing.assert_close(shares[1], prior[:, None].expand(4, 6).double(), atol=1e-5, rtol=0)
    assert (shares[0, :, 0] - prior).abs().max() > 0.1


def test_forms_are_compared_with_the_time_of_day_however_few_the_validation_windows_are() -> None:
    t = hours(7 * 288, 300)  # a week, of which validation windows cover less than a day
    noise = persistent(np.random.default_rng(12), 2, len(t), 0.9, 0.3)
    data = prepared(readings_of(5 * np.sin(2 * np.pi * t / 24) + noise, 300))
    inputs = data.linear[OWN].weights.shape[1]
    sine = data.history + 1
    assert (data._forms(inputs).after.gram[:, sine, sine] > 0).all()


def test_the_phase_goes_on_in_newer_readings() -> None:
    readings = readings_of(*tide())
    data = prepared(readings)
    assert data._uses_more[OWN]
    start = int(data.starts["test"][-1])
    batch, _ = data.batch("test", slice(-1, None))
    rows = slice(start, start + 24)  # as if only the last window had been kept
    newest = replace(
        readings, times=readings.times[rows], values=readings.values[rows], missing=readings.missing[rows]
    )
    later = data.with_readings(Series.of(newest), Windows.next(12, 12, 12))
    # The profile of test rows is that of all training readings, as it is in later ones.
    torch.testing.assert_close(later.batch("test", slice(0, 1))[0].linear_change, batch.linear_change)


def test_a_sensor_finds_the_same_alone_and_among_others() -> None:
    values, step = tide()
    values[1] = np.random.default_rng(11).normal(size=values.shape[1])  # one without a season between two
    together, alone = prepared(readings_of(values, step)), prepared(readings_of(values[2:], step))
    assert together.seasons is not None
    assert alone.seasons is not None
    assert (together.seasons[1] == 0).all()
    assert torch.equal(together.seasons[2:], alone.seasons)
    of_both = together.batch("test", slice(None))[0].linear_change, alone.batch("test", slice(None))[0]
    torch.testing.assert_close(of_both[0][2:], of_both[1].linear_change)
    without = prepared(readings_of(values[1:2], step), seasons=False)
    assert torch.equal(together.linear[OWN].weights[1:2], without.linear[OWN].weights)


def test_what_was_saved_is_used_and_a_new_sensor_keeps_its_own() -> None:
    values, step = tide(2)
    data = prepared(readings_of(values, step))
    data.inform(torch.zeros(2, len(data.starts["train"]), 4, dtype=torch.float64))
    data.fit()
    state = data.state()
    assert {SEASONS, f"{LINEAR}{OWN}.more", f"{LINEAR}{INFORMED}.more.folds"} <= set(state)
    saved = {name: x.clone() for name, x in state.items()}
    for name in saved:
        saved[name][1] = torch.nan  # the second sensor is new
    later = prepared(readings_of(values[:, :900], step))
    assert later.seasons is not None
    own = later.seasons.clone()
    later.restore(saved)
    assert torch.equal(later.seasons[0], state[SEASONS][0])
    assert torch.equal(later.seasons[1], own[1])
    assert not torch.equal(later.seasons[0], own[0])
    for kind in (OWN, INFORMED):
        more = later.linear[kind].more
        assert more is not None
        torch.testing.assert_close(more.weights[0], state[f"{LINEAR}{kind}.more"][0])
        assert more.weights[1].isfinite().all()


def test_a_state_of_an_earlier_version_is_used_as_it_is() -> None:
    data = prepared(readings_of(*tide(2)), seasons=False)
    old = {name: x for name, x in data.state().items() if ".more" not in name}
    later = prepared(readings_of(*tide(2)), seasons=False)
    later.restore(old)
    assert not later._uses_more[OWN]
    batch, _ = later.batch("test", slice(None))
    expected = later._linear_inputs(batch) @ old[LINEAR + OWN]
    torch.testing.assert_close(batch.linear_change, expected)


@pytest.mark.parametrize("rows", [13, 30, 127, 140])
def test_a_few_readings_are_enough(rows: int) -> None:
    values, step = tide(2)
    readings = readings_of(np.concatenate([values[:, :rows], np.full((2, 12), np.nan)], axis=1), step)
    data = prepared(readings, windows=Windows.next(rows, 12, 12))
    assert data.batch("test", slice(None))[0].linear_forecast.isfinite().all()  # type: ignore[union-attr]
