"""The owners' readings to judge by, in the order and on the time steps of a federation's run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cnfgnn.data.dataset import Dataset
from cnfgnn.errors import DataError
from cnfgnn.runs.folder import Run


def as_in_run(run: Run, data: Dataset) -> Dataset:
    """The readings as a run numbers them: row k of the result is time step k of the run.

    A run of the simulator was trained on the readings as they are. The run of a federation knows its sensors,
    site by site, and its time steps: readings may begin earlier or later, and lie in another order.

    Raises:
        DataError: A sensor of the run has no readings, or they are from other times.
    """
    federation, source = run.data.federation, data.readings.source
    if federation is None:
        return data
    for sensor in run.data.sensors:
        if sensor not in data.readings.ids:
            raise DataError(source, f"there are no readings of this sensor of {run.folder}", column=sensor)
    data = data.select(run.data.sensors)
    readings, step = data.readings, run.data.step_seconds
    since_first = readings.seconds - federation.first
    if (since_first % step).any():
        problem = f"the times are not on the steps of {step} s on which {run.folder} was trained"
        raise DataError(source, problem)
    rows = since_first // step
    within = (rows >= 0) & (rows < run.data.rows)
    if not within.any():
        raise DataError(source, f"all readings are from other times than those of {run.folder}")
    values = np.full((run.data.rows, len(readings.ids)), np.nan, dtype=readings.values.dtype)
    missing = np.ones(values.shape, dtype=np.bool_)
    values[rows[within]], missing[rows[within]] = readings.values[within], readings.missing[within]
    times = federation.first + step * np.arange(run.data.rows)
    on_steps = replace(
        readings,
        times=times.astype("datetime64[s]").astype(readings.times.dtype),
        values=values,
        missing=missing,
    )
    return replace(data, readings=on_steps)
