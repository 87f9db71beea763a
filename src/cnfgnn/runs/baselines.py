"""Forecasts that learn nothing: what every method must beat."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cnfgnn.config.settings import DataConfig, Missing
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.quality import treated
from cnfgnn.data.series import Prepared, Scaler, Series
from cnfgnn.data.windows import Split, Windows
from cnfgnn.runs.scores import Scores


def last_value(data: Dataset, config: DataConfig, split: Split = "test") -> Scores:
    """Each sensor's last reading, repeated; judged on the windows and by the sums of the methods."""
    _, _, prepared = _prepared(data, config)

    def forecast(some: slice) -> Tensor:
        return prepared.batch(split, some)[0].x[:, :, -1:, 0].expand(-1, -1, config.horizon)  # (n b 1)

    return _judged(prepared, split, forecast)


def daily_average(data: Dataset, config: DataConfig, split: Split = "test") -> Scores:
    """Each sensor's mean reading at that time of day, over the rows that train; judged in the same way."""
    series, windows, prepared = _prepared(data, config)
    averages = torch.from_numpy(_averages(series, windows, config.missing, prepared.scaler.mean))
    scaled = (averages - prepared.scaler.mean) / prepared.scaler.std  # (n T)

    def forecast(some: slice) -> Tensor:
        ahead = torch.arange(config.history, windows.length)
        return scaled[:, prepared.starts[split][some][:, None] + ahead]  # (n b t)

    return _judged(prepared, split, forecast)


def _averages(series: Series, windows: Windows, missing: Missing, overall: float) -> npt.NDArray[np.float64]:
    """(n T): the mean of a sensor's training readings at the time of day of each row; where it has none, the
    sensor's mean, and the mean of all for one that never measured."""
    rows, values, known = series.trained_on(windows, missing)
    times, slot = np.unique(series.time_of_day, return_inverse=True)
    total, count = np.zeros((2, len(times), series.nodes))
    np.add.at(total, slot[rows], values.T)
    np.add.at(count, slot[rows], known.T)
    own = _ratio(total.sum(0), count.sum(0), np.full(series.nodes, overall))
    averages = _ratio(total, count, np.broadcast_to(own, total.shape))
    return np.ascontiguousarray(averages[slot].T)


def _ratio(
    total: npt.NDArray[np.float64], count: npt.NDArray[np.float64], otherwise: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    return np.where(count > 0, total / np.maximum(count, 1), otherwise)


def _prepared(data: Dataset, config: DataConfig) -> tuple[Series, Windows, Prepared]:
    series = Series.of(treated(data.readings, config))
    windows = Windows.of(len(data.readings.times), config.history, config.horizon, config.shares, data.name)
    scaler = Scaler.of(torch.from_numpy(series.moments(windows, config.missing)))
    prepared = Prepared(series, scaler, config.missing, windows, torch.float64, torch.device("cpu"))
    return series, windows, prepared


def _judged(prepared: Prepared, split: Split, forecast: Callable[[slice], Tensor]) -> Scores:
    """`forecast` gives the scaled values ahead of some windows: (n b t)."""
    sums = torch.zeros(prepared.nodes, prepared.horizon, 8, dtype=torch.float64)
    for some in prepared.chunks(split):
        sums += prepared.errors(forecast(some), split, some)
    return Scores(sums)
