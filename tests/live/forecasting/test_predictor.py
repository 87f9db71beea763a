"""A run that stays in memory forecasts what `cnfgnn forecast` writes for the same readings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cnfgnn.config.presets import PRIVATE
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.readings import Readings, rows_of
from cnfgnn.live.forecasting.predictor import RunPredictor
from cnfgnn.privacy.copies import CopiesOfNewest, SimulatedCopies
from cnfgnn.privacy.truth_and_copy import Blurring
from cnfgnn.runs.checkpoints import FolderStore
from cnfgnn.runs.folder import Run
from cnfgnn.runs.forecast import forecast_run
from tests.conftest import network, small

DATA = network()


def until(data: Dataset, rows: int) -> Dataset:
    return replace(data, readings=rows_of(data.readings, slice(0, rows)))


def by_command(run: Run, data: Dataset) -> np.ndarray:
    return forecast_run(run, data).to_numpy().T


@pytest.mark.parametrize(
    "method",
    [
        "cnfgnn-plus",
        PRIVATE,
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("at-fedavg", "sl", "gru-central")),
        "gru-local",
    ],
)
def test_each_step_gives_what_the_command_gives(method: str, trained: Callable[..., Run]) -> None:
    run = trained(method)
    predictor = RunPredictor(run, until(DATA, 60))
    for rows in (61, 118, 150):  # nodes 2 and 4 fall silent in between, for hours
        np.testing.assert_allclose(
            predictor.forecast(rows_of(DATA.readings, slice(0, rows))),
            by_command(run, until(DATA, rows)),
            rtol=1e-9,
        )


def test_an_outlier_is_missing_as_for_the_command(trained: Callable[..., Run]) -> None:
    values = DATA.readings.values.copy()
    values[140, 1] = 99_999
    data = replace(DATA, readings=replace(DATA.readings, values=values))
    run = trained("cnfgnn-plus")
    found = RunPredictor(run, until(DATA, 100)).forecast(data.readings)
    np.testing.assert_allclose(found, by_command(run, data), rtol=1e-9)
    assert np.abs(found[1]).max() < 200


def test_zeros_that_mean_no_reading_are_missing_as_for_the_command(trained: Callable[..., Run]) -> None:
    values = np.nan_to_num(DATA.readings.values)
    data = replace(DATA, readings=replace(DATA.readings, values=values, missing=values == 0))
    for run in (trained("cnfgnn-plus"), trained("at-fedavg")):  # one leaves zeros out, the other one does not
        found = RunPredictor(run, until(data, 100)).forecast(rows_of(data.readings, slice(0, 120)))
        np.testing.assert_allclose(found, by_command(run, until(data, 120)), rtol=1e-9)


def test_when_all_sensors_are_silent_there_is_no_forecast(trained: Callable[..., Run]) -> None:
    run = trained("cnfgnn-plus")
    values = DATA.readings.values.copy()
    values[100:] = np.nan
    silent = Readings(DATA.readings.times, DATA.readings.ids, values, np.isnan(values))
    predictor = RunPredictor(run, DATA)
    assert np.isnan(predictor.forecast(silent)).all()
    np.testing.assert_allclose(predictor.forecast(DATA.readings), by_command(run, DATA), rtol=1e-9)


def test_a_sensor_new_to_the_run_is_forecast_the_same_after_a_restart(
    trained: Callable[..., Run], tmp_path: Path
) -> None:
    run, store = trained("cnfgnn-plus"), FolderStore(tmp_path / "prepared")
    ids = (*DATA.readings.ids[:-1], "new")
    data = replace(DATA, readings=replace(DATA.readings, ids=ids))
    predictor = RunPredictor(run, until(data, 100), store=store)
    expected = predictor.forecast(data.readings)
    again = RunPredictor(run, data, store=store)  # more readings are at hand now
    np.testing.assert_array_equal(again.forecast(data.readings), expected)
    np.testing.assert_allclose(
        RunPredictor(run, until(data, 100)).forecast(rows_of(data.readings, slice(0, 100))),
        by_command(run, until(data, 100)),
        rtol=1e-9,
    )


def test_copies_are_drawn_once_for_each_row() -> None:
    class Counting(SimulatedCopies):
        rows = 0

        def blur(self, readings: Readings, sigma: float, name: str = "") -> Readings:
            self.rows += len(readings.times)
            return super().blur(readings, sigma, name)

    drawn, config = Counting(1), small(PRIVATE)
    copy = Blurring.of(config, CopiesOfNewest(drawn)).copy_of
    copy(rows_of(DATA.readings, slice(0, 100)))
    assert drawn.rows == 100
    moved = copy(rows_of(DATA.readings, slice(10, 103)))
    assert drawn.rows == 103
    values = DATA.readings.values.copy()
    values[50, 3] = 7.0  # a correction
    corrected = replace(DATA.readings, values=values)
    copy(rows_of(corrected, slice(10, 103)))
    assert drawn.rows == 104
    whole = SimulatedCopies(config.seed).blur(DATA.readings, config.privacy.blur)
    np.testing.assert_array_equal(moved.values, whole.values[10:103])
