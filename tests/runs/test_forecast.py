"""A trained run is judged and asked for forecasts, also for sensors it has never met."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from cnfgnn.algorithm.methods import METHODS
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.graph import Graph
from cnfgnn.data.readings import Readings
from cnfgnn.errors import DataError
from cnfgnn.forecasters.intervals import LEVELS
from cnfgnn.runs.evaluate import evaluate_run
from cnfgnn.runs.folder import Run
from cnfgnn.runs.forecast import ADAPTING, adapting_steps, forecast_frame, forecast_run
from tests.conftest import HISTORY, HORIZON, network

DATA = network()
ROWS = len(DATA.readings.times)


def cut(data: Dataset, rows: int) -> Dataset:
    r = data.readings
    return replace(
        data, readings=replace(r, times=r.times[:rows], values=r.values[:rows], missing=r.missing[:rows])
    )


def renamed(data: Dataset, ids: tuple[str, ...]) -> Dataset:
    return replace(data, readings=replace(data.readings, ids=ids))


@pytest.mark.parametrize("method", METHODS)
def test_a_run_is_judged_as_it_was_at_the_end_of_training(method: str, trained: Callable[..., Run]) -> None:
    run = trained(method)
    assert vars(evaluate_run(run, DATA).overall) == run.events()[-1]["overall"]


def test_a_run_trained_on_a_device_that_is_not_here_is_judged_on_the_cpu(
    trained: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(trained("at-fedavg").folder, tmp_path / "moved")
    settings = (folder / "config.toml").read_text()
    assert 'device = "cpu"' in settings
    (folder / "config.toml").write_text(settings.replace('device = "cpu"', 'device = "cuda"'))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    run = Run.open(folder)
    assert vars(evaluate_run(run, DATA).overall) == run.events()[-1]["overall"]


def test_readings_by_another_clock_than_in_training_are_refused(trained: Callable[..., Run]) -> None:
    """Their hours of the day would be others."""
    in_utc = replace(DATA, readings=replace(DATA.readings, utc=True))
    with pytest.raises(DataError, match=r"times are in UTC, but .* was trained on times without a time zone"):
        forecast_run(trained("cnfgnn-plus"), in_utc)


@pytest.mark.parametrize("method", METHODS)
def test_forecasts_are_those_of_the_window_that_ends_with_the_last_reading(
    method: str, trained: Callable[..., Run]
) -> None:
    run = trained(method)
    frame = forecast_run(run, cut(DATA, ROWS - HORIZON))
    assert list(frame.columns) == list(DATA.readings.ids)
    assert (frame.index.to_numpy().astype("datetime64[s]") == DATA.readings.times[-HORIZON:]).all()
    # the same window is the last of the test split when the truth is known: their errors must be the same
    scores = evaluate_run(run, DATA)
    truth = DATA.readings.values[-HORIZON:].T
    from cnfgnn.data.windows import Windows
    from cnfgnn.runs.evaluate import restore_best

    none, last_start = np.zeros(0, int), np.array([ROWS - HISTORY - HORIZON])
    last = Windows({"train": none, "validation": none, "test": last_start}, HISTORY, HORIZON)
    sums = restore_best(run, DATA, last).strategy.score("test").told
    error = np.where(np.isnan(truth), 0, frame.to_numpy().T - np.nan_to_num(truth))
    assert torch.allclose(sums[:, :, 3], torch.from_numpy(np.square(error)), rtol=1e-5, atol=1e-6)
    assert scores.sums.shape == sums.shape


@pytest.mark.parametrize(
    "method",
    ["at-fedavg", "gru-fedavg", "sl-fedavg", "gru-central", "gru-gn-central", "cnfgnn-plus", "mlp-fedavg"],
)
def test_a_new_sensor_gets_forecasts_from_averaged_weights(method: str, trained: Callable[..., Run]) -> None:
    more = network(n=8, seed=5)
    frame = forecast_run(trained(method), more)
    assert frame.shape == (HORIZON, 8)
    assert np.isfinite(frame.to_numpy()).all()


@pytest.mark.parametrize("method", ["gru-local", "gru-fmtl", "at", "sl"])
def test_a_new_sensor_without_a_model_of_its_own_is_named(method: str, trained: Callable[..., Run]) -> None:
    stranger = renamed(DATA, ("s0", "s1", "s2", "s3", "s4", "new"))
    with pytest.raises(DataError, match=r"'new'.*no model for this sensor"):
        forecast_run(trained(method), stranger)


def test_sensors_in_another_order_keep_their_own_models(trained: Callable[..., Run]) -> None:
    run = trained("gru-local")
    some = DATA.select(["s4", "s1"])
    whole = forecast_run(run, DATA)
    part = forecast_run(run, some)
    assert list(part.columns) == ["s4", "s1"]
    np.testing.assert_allclose(part.to_numpy(), whole[["s4", "s1"]].to_numpy(), rtol=1e-9)


def test_a_silent_sensor_is_forecast_and_one_of_which_nothing_is_known_is_not(
    trained: Callable[..., Run],
) -> None:
    values = DATA.readings.values.copy()
    values[-HISTORY:, 2] = np.nan
    values[:, 3] = np.nan
    silent = replace(DATA, readings=replace(DATA.readings, values=values, missing=np.isnan(values)))
    frame = forecast_run(trained("at-fedavg"), silent)
    assert frame["s3"].isna().all()
    assert np.isfinite(frame.drop(columns="s3").to_numpy()).all()


def test_when_everybody_is_silent_the_error_says_so(trained: Callable[..., Run]) -> None:
    values = DATA.readings.values.copy()
    values[-HISTORY:] = np.nan
    silent = replace(DATA, readings=replace(DATA.readings, values=values, missing=np.isnan(values)))
    with pytest.raises(DataError, match="no sensor has a reading"):
        forecast_run(trained("at-fedavg"), silent)


def test_too_few_rows_are_named(trained: Callable[..., Run]) -> None:
    with pytest.raises(DataError, match="has 5 rows, but a forecast needs the last 6"):
        forecast_run(trained("at-fedavg"), cut(DATA, 5))


def test_readings_of_another_step_are_refused(trained: Callable[..., Run]) -> None:
    r = DATA.readings
    times = r.times[0] + (r.times - r.times[0]) * 3
    slow = replace(DATA, readings=replace(r, times=times))
    with pytest.raises(DataError, match="every 900 s"):
        forecast_run(trained("at-fedavg"), slow)


def test_seen_and_unseen_sensors_are_judged_apart(trained: Callable[..., Run]) -> None:
    run = trained("at-fedavg", **{"training.seen": 0.5})
    scores = evaluate_run(run, DATA)
    assert scores.unseen_nodes is not None
    test = run.events()[-1]
    assert vars(scores.unseen_nodes) == test["unseen"]
    assert vars(scores.seen_nodes) == test["seen"]


def test_the_graph_of_the_new_data_is_the_one_that_counts(trained: Callable[..., Run]) -> None:
    empty = np.zeros(0, dtype=np.int64)
    lonely = Dataset("lonely", DATA.readings, Graph(6, empty, empty, np.zeros(0)))
    run = trained("at-fedavg")
    assert not np.allclose(forecast_run(run, DATA).to_numpy(), forecast_run(run, lonely).to_numpy())


def test_readings_are_extended_by_nothing_but_time() -> None:
    from cnfgnn.runs.forecast import with_rows_ahead

    longer: Readings = with_rows_ahead(DATA.readings, 4)
    assert len(longer.times) == len(DATA.readings.times) + 4
    assert np.isnan(longer.values[-4:]).all()
    assert longer.missing[-4:].all()


def test_a_table_has_a_column_per_sensor_and_then_two_per_level() -> None:
    values, bounds = np.arange(6.0).reshape(2, 3), np.arange(60.0).reshape(2, len(LEVELS), 2, 3)
    times = pd.date_range("2024-01-01", periods=3, freq="5min")
    table = forecast_frame(times, ["a", "b"], values, bounds, [80, 95])
    ends = ("low 80", "high 80", "low 95", "high 95")
    assert list(table) == ["a", "b", *(f"{sensor} {end}" for sensor in "ab" for end in ends)]
    assert table["b"].tolist() == values[1].tolist()
    for row, sensor in enumerate("ab"):
        for level in (80, 95):
            low, high = bounds[:, LEVELS.index(level), row]
            assert table[f"{sensor} low {level}"].tolist() == low.tolist()
            assert table[f"{sensor} high {level}"].tolist() == high.tolist()
    assert forecast_frame(times, ["a", "b"], values, None, [80])["a low 80"].isna().all()
    assert len(table._mgr.blocks) == 1  # thousands of single columns would take long to make and to write


def test_with_thousands_of_sensors_fewer_past_forecasts_are_repeated() -> None:
    assert adapting_steps(1) == adapting_steps(1000) == ADAPTING
    assert adapting_steps(10_000) == 600
    assert adapting_steps(10_000_000) == 1
