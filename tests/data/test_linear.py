"""Each sensor's own linear forecaster: what it learns, and that no window helps to forecast itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from cnfgnn.config.settings import ModelConfig
from cnfgnn.data.prepared_series import INFORMED, LINEAR, OWN, PreparedSeries
from cnfgnn.data.series import Scaler, Series
from cnfgnn.data.windows import Windows
from cnfgnn.forecasters.linear import Forecasters, calendar_inputs
from cnfgnn.models.plus import levels

CPU = torch.device("cpu")
STEPS = 400
LINEAR_MODEL = ModelConfig(linear=True, levels=True)


def prepared(values: np.ndarray, ahead: bool = False, step_days: float = 1 / 24) -> PreparedSeries:
    rows = np.arange(values.shape[1])
    days = rows * step_days
    series = Series(values, np.isnan(values), days % 1, (days.astype(int) % 7))
    windows = Windows.next(len(rows) - 4, 6, 4) if ahead else Windows.of(len(rows), 6, 4)
    return PreparedSeries(series, Scaler(0.0, 1.0), "masked", windows, torch.float64, CPU, LINEAR_MODEL)


def noise(rows: int = 2, steps: int = STEPS) -> np.ndarray:
    return np.random.default_rng(3).normal(size=(rows, steps))


def waves() -> np.ndarray:
    """A rule that the last readings determine: x[t] = 1.8 x[t-1] - x[t-2]."""
    t = np.arange(STEPS)
    return np.stack([np.sin(0.451 * t), 3 * np.cos(0.451 * t + 1)])


def error(data: PreparedSeries, forecast: Tensor, split: str = "test") -> float:
    batch = data.batch(split, slice(None))  # type: ignore[arg-type]
    return float((forecast - batch.y).square().mean().sqrt())


def linear_forecast(data: PreparedSeries, split: str = "test") -> Tensor:
    batch = data.batch(split, slice(None))  # type: ignore[arg-type]
    assert batch.linear_forecast is not None
    return batch.linear_forecast


def test_a_linear_rule_is_found() -> None:
    data = prepared(waves())
    batch = data.batch("test", slice(None))
    last = batch.x[:, :, -1, :1].expand_as(batch.y)
    assert error(data, linear_forecast(data)) < 0.02 * error(data, last)


def test_where_nothing_can_be_forecast_the_penalty_keeps_weights_small() -> None:
    data = prepared(noise())
    assert error(data, linear_forecast(data)) < 1.15  # the mean has 1, the last value 1.41


def test_a_training_window_is_forecast_without_its_own_readings() -> None:
    values = noise(1)
    before = prepared(values)
    window = 120
    batch = before.batch("train", slice(window, window + 1))
    changed = values.copy()
    ahead = slice(window + 6, window + 10)
    changed[:, ahead] += 0.5  # its targets, which are also inputs and targets of windows nearby
    after = prepared(changed)
    same = after.batch("train", slice(window, window + 1))
    torch.testing.assert_close(same.linear_change, batch.linear_change)
    assert not torch.equal(after.linear[OWN].weights, before.linear[OWN].weights)


def test_means_of_levels_help_where_they_tell_what_follows() -> None:
    values = noise(3)
    values[1:, 8:] = values[0, :-8]  # the others follow the first
    data = prepared(values)
    starts = data.starts["train"]
    ago = torch.arange(-2, 2)  # from the start of a window: what the others read at its targets
    leader = data.inputs[0, (starts[:, None] + ago).clamp(min=0)]  # (w 4)
    means = leader.expand(3, -1, -1).contiguous()
    data.inform(means)
    data.fit()
    alone = data.batch("validation", slice(None))
    ahead = data.inputs[0, data.starts["validation"][:, None] + ago].expand(3, -1, -1)
    informed = data.batch("validation", slice(None), ahead)
    assert informed.linear_forecast is not None
    assert alone.linear_forecast is not None
    followers = slice(1, None)
    told = (informed.linear_forecast - informed.y)[followers].square().mean()
    assert told < 0.7 * (alone.linear_forecast - alone.y)[followers].square().mean()


@pytest.mark.parametrize("seed", [1, 2])
def test_means_of_levels_do_not_mislead_when_all_readings_rise(seed: int) -> None:
    """Levels are squashed before they are sent; readings are not."""
    rng, rise = np.random.default_rng(seed), np.linspace(-1.5, 3, 800)
    data = prepared(rise + 0.2 * rng.normal(size=(6, 800)))

    def means(split: str) -> Tensor:
        batch = data.batch(split, slice(None))  # type: ignore[arg-type]
        over_all = levels(batch.x[..., 0]).mean(dim=0, keepdim=True)
        return torch.cat([over_all, over_all], dim=-1).expand(6, -1, -1).contiguous()

    data.inform(means("train"))
    data.fit()
    informed = data.batch("test", slice(None), means("test"))
    assert informed.linear_forecast is not None
    assert error(data, informed.linear_forecast) < 1.02 * error(data, linear_forecast(data))


def test_what_was_saved_is_used_and_a_new_sensor_keeps_its_own() -> None:
    data = prepared(waves())
    data.inform(torch.zeros(2, len(data.starts["train"]), 4, dtype=torch.float64))
    data.fit()
    state = data.state()
    assert {LINEAR + OWN, LINEAR + INFORMED} <= set(state)
    saved = {name: x.clone() for name, x in state.items()}
    for name in saved:
        saved[name][1] = torch.nan  # the second sensor is new
    later = prepared(noise(2, 64), ahead=True)
    own = later.linear[OWN].weights.clone()
    later.restore(saved)
    torch.testing.assert_close(later.linear[OWN].weights[0], state[LINEAR + OWN][0])
    torch.testing.assert_close(later.linear[OWN].weights[1], own[1])
    torch.testing.assert_close(later.linear[INFORMED].weights[1, : own.shape[1]], own[1])
    assert (later.linear[INFORMED].weights[1, own.shape[1] :] == 0).all()


@pytest.mark.parametrize("rows", [6, 10, 11, 30])
def test_a_few_readings_are_enough_to_forecast_ahead(rows: int) -> None:
    values = noise(1, rows + 4)
    values[:, rows:] = np.nan
    data = prepared(values, ahead=True)
    change = linear_forecast(data) - data.inputs[:, rows - 1]
    assert change.isfinite().all()
    assert bool((change == 0).all()) == (rows < 10)  # without a single whole window: the last value


def test_steps_of_a_day_have_a_weekday_instead_of_a_time_of_day() -> None:
    values = np.tile([5.0, 5.0, 5.0, 5.0, 5.0, 1.0, 0.0], 40)[None] + 0.01 * noise(1, 280)
    data = prepared(values, step_days=1.0)
    batch = data.batch("test", slice(None))
    assert error(data, linear_forecast(data)) < 0.1 * error(data, batch.x[:, :, -1, :1].expand_as(batch.y))
    hourly = calendar_inputs(torch.rand(3), torch.tensor([0, 1, 6]), torch.rand(3), 1 / 24)
    daily = calendar_inputs(torch.zeros(3), torch.tensor([0, 1, 6]), torch.rand(3), 1.0)
    assert hourly.shape == (3, 13)
    assert daily.shape == (3, 12)


def test_a_time_of_day_that_never_comes_twice_is_not_used() -> None:
    """Five hours of one day tell nothing of the time of day; over some days, it may help."""
    walk = noise(1).cumsum(axis=1)
    minutes, hours = prepared(walk, step_days=1 / 1440), prepared(walk)
    of_the_day = slice(12 + 1, 12 + 1 + 8)  # after the readings and the constant
    for kind in (minutes.linear[OWN].weights, minutes.linear[OWN].of_folds):
        assert (kind[:, of_the_day] == 0).all()
    assert (hours.linear[OWN].weights[:, of_the_day] != 0).any()


def test_weights_do_not_depend_on_which_sensors_are_fitted_together() -> None:
    values = noise(4)
    together, alone = prepared(values), prepared(values[2:3])
    assert isinstance(together.linear[OWN], Forecasters)
    torch.testing.assert_close(together.linear[OWN].weights[2:3], alone.linear[OWN].weights)
