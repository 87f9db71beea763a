"""The ranges of a live site as a service that was never disturbed would have them."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file

from cnfgnn.data.dataset import Dataset
from cnfgnn.federation.site.store import INTERVALS, OWNER, STATES
from cnfgnn.forecasters.intervals import Floats, Intervals, bounds_of
from cnfgnn.live.forecasting.watch import LEVELS, Step
from cnfgnn.live.intake.store import FILE
from cnfgnn.live.options import LIVE

STEP = 300  # seconds between readings


def steps_of(kit: Path, sensors: int) -> list[Step]:
    """Every step of a service, from its database; it must not have written its whole state since."""
    with closing(sqlite3.connect(kit / LIVE / FILE)) as database:
        found = database.execute("SELECT row, step FROM steps ORDER BY row").fetchall()
    numbers = {row: np.frombuffer(step).reshape(sensors, -1).copy() for row, step in found}
    return [Step(row, x[:, 0], x[:, 1], x[:, 2].astype(int), x[:, 3:]) for row, x in numbers.items()]


def undisturbed(kit: Path, data: Dataset, columns: Sequence[int]) -> Mapping[str, Any]:
    """The ranges after the last step, as JSON has them: from the intervals that the site's owner kept at the
    evaluation, all readings after it, and the forecasts that were made since."""
    [folder] = (kit / STATES).glob(f"*/{OWNER}/{INTERVALS}")
    [file] = folder.glob("*.safetensors")
    intervals = Intervals.of(load_file(file))
    readings, steps = data.readings, steps_of(kit, len(columns))
    first = int(readings.times[0].astype("datetime64[s]").astype(np.int64)) // STEP
    values = readings.values[:, list(columns)].T.astype(np.float64)
    assert [step.row for step in steps] == list(range(steps[0].row, steps[-1].row + 1))  # none is lost
    intervals.catch_up(steps[0].row, values, np.isfinite(values), first)
    for step in steps:
        known = np.isfinite(step.readings)  # a row may not have been sent to this site
        assert step.readings[known].tolist() == values[known, step.row - first].tolist()
        if intervals.row is None or step.row > intervals.row:
            intervals.observe(step.row, step.readings, known)
        bounds = intervals.issue(step.row, step.forecasts)
    return {readings.ids[column]: _as_json(bounds[:, :, place]) for place, column in enumerate(columns)}


def _as_json(bounds: Floats) -> dict[str, Any]:
    """(2 l t) -> the bounds of one sensor by level."""
    of_level = {str(level): bounds_of(bounds[:, :, None], level)[:, 0] for level in LEVELS}
    return {level: {"low": low, "high": high} for level, (low, high) in of_level.items()}


def assert_same_ranges(forecast: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """The ranges of a forecast as it was told, which are rounded, are these."""
    assert set(forecast["sensors"]) == set(expected)
    for sensor, told in forecast["sensors"].items():
        assert set(told["intervals"]) == set(expected[sensor])
        for level, bounds in told["intervals"].items():
            for side, bound in bounds.items():
                np.testing.assert_allclose(bound, expected[sensor][level][side], atol=1e-4)
