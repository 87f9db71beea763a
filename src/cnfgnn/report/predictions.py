"""What a run's best round predicts on the test split, sensor by sensor; computed where the readings are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cnfgnn.data.dataset import Dataset
from cnfgnn.data.prepared_series import SUMS
from cnfgnn.data.quality import clean
from cnfgnn.data.windows import reported_steps
from cnfgnn.errors import DataError
from cnfgnn.forecasters.intervals import REPORTED, bounds_of
from cnfgnn.report.selection import MANY
from cnfgnn.runs.evaluate import restore_best
from cnfgnn.runs.folder import Run

DAYS, DAYS_OF_MANY = 7, 2  # at the end of the test split whose forecasts are kept; of many sensors fewer
HOURS = 24


@dataclass(frozen=True, eq=False)
class Predictions:
    """Errors and forecasts of n sensors, t steps ahead; forecasts of the last r times only.

    sums       (n, t, 8)   sums of errors over the test split, see `cnfgnn.data.prepared_series.SUMS`
    hours      (n, 24, 8)  the same over all steps, by the hour of day of the target
    times      (r,)        datetime64[s]
    truth      (n, r)      readings, NaN where missing
    steps      k           the steps ahead whose forecasts are kept
    forecasts  (k, n, r)   NaN where there is none
    bands      (l, 2, n, r)  the bounds of the intervals in `REPORTED`, in the last of the steps; None if the
                           run has no intervals
    """

    sums: npt.NDArray[np.float64]
    hours: npt.NDArray[np.float64]
    times: npt.NDArray[np.datetime64]
    truth: npt.NDArray[np.float64]
    steps: tuple[int, ...]
    forecasts: npt.NDArray[np.float64]
    bands: npt.NDArray[np.float64] | None = None


def predict(run: Run, data: Dataset) -> Predictions:
    """Forecast the whole test split with the run's best weights; nothing of it is sent anywhere."""
    experiment = restore_best(run, data)
    readings, windows = clean(data.readings, run.config.data), experiment.windows
    if windows.count("test") == 0:
        raise DataError(readings.source, "has no test windows with readings")
    n, t, rows = len(readings.ids), windows.horizon, len(readings.times)
    steps = reported_steps(t)
    days = DAYS if n <= MANY else DAYS_OF_MANY
    first = max(
        int(windows.starts["test"][0]) + windows.history, rows - days * 86_400 // readings.step_seconds
    )
    sums, hours = torch.zeros(n, t, len(SUMS)).double(), torch.zeros(n, HOURS, len(SUMS)).double()
    forecasts = torch.full((len(steps), n, rows - first), torch.nan, dtype=torch.float64)
    bands = np.full((len(REPORTED), 2, n, rows - first), np.nan)
    hour_of = torch.from_numpy((readings.time_of_day * HOURS + 1e-9).astype(np.int64))
    experiment.strategy.ready("test")
    for nodes, owner in experiment.owners:
        for chunk in owner.data.chunks("test"):
            y_hat = owner.forecasts_of("test", chunk)
            starts = owner.data.starts["test"][chunk].cpu()
            targets = starts[:, None] + windows.history + torch.arange(t)  # (b t): rows of the series
            for k, term in enumerate(owner.data.terms(y_hat, "test", chunk)):
                sums[nodes, :, k] += term.sum(1).cpu()
                hours[nodes, :, k] += _by_hour(term.cpu(), hour_of[targets])
            values = owner.data.unscaled(y_hat).cpu()
            bounds = owner.bounds_of(chunk, values.numpy())
            if bounds is not None:
                _keep_bands(bands, bounds, nodes.numpy(), targets[:, -1].numpy() - first)
            for j, step in enumerate(steps):
                place = targets[:, step - 1] - first
                kept = place >= 0
                forecasts[j, nodes[:, None], place[kept]] = values[:, kept, step - 1]
    truth = np.where(readings.missing, np.nan, readings.values.astype(np.float64))[first:].T
    known = None if np.isnan(bands).all() else bands
    times = readings.times[first:]
    return Predictions(sums.numpy(), hours.numpy(), times, truth, steps, forecasts.numpy(), known)


def _keep_bands(
    bands: npt.NDArray[np.float64],
    bounds: npt.NDArray[np.float64],
    nodes: npt.NDArray[np.int64],
    place: npt.NDArray[np.int64],
) -> None:
    """Put the bounds (2 l n b t) of the last step into the places (b,) of their targets; negative ones are
    too old."""
    kept = place >= 0
    for band, level in zip(bands, REPORTED, strict=True):
        band[:, nodes[:, None], place[kept]] = bounds_of(bounds, level)[:, :, kept, -1]


def _by_hour(term: Tensor, hour: Tensor) -> Tensor:
    """(n b t) -> (n 24)."""
    return torch.zeros(len(term), HOURS).double().index_add_(1, hour.flatten(), term.flatten(1))
