"""Baselines: forecasts without any training, which every method must beat."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from cnfgnn.config.settings import DataConfig, Missing
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.quality import clean
from cnfgnn.data.series import SUMS, Floats, PreparedSeries, Scaler, Series
from cnfgnn.data.windows import Split, Windows
from cnfgnn.runs.scores import Scores


def last_value(data: Dataset, config: DataConfig, split: Split = "test") -> Scores:
    """Repeat each sensor's last reading; evaluated on the same windows and in the same way as the methods."""
    _, _, prepared = _prepare(data, config)

    def forecast(chunk: slice) -> Tensor:
        batch, _ = prepared.batch(split, chunk)
        return batch.x[:, :, -1:, 0].expand(-1, -1, config.horizon)  # (n b 1) -> (n b t)

    return _evaluate(prepared, split, forecast)


def daily_average(data: Dataset, config: DataConfig, split: Split = "test") -> Scores:
    """Each sensor's mean training reading at that time of day; evaluated in the same way."""
    series, windows, prepared = _prepare(data, config)
    averages = torch.from_numpy(_averages(series, windows, config.missing, prepared.scaler.mean))
    scaled = (averages - prepared.scaler.mean) / prepared.scaler.std  # (n T)

    def forecast(chunk: slice) -> Tensor:
        ahead = torch.arange(config.history, windows.length)
        return scaled[:, prepared.starts[split][chunk][:, None] + ahead]  # (n b t)

    return _evaluate(prepared, split, forecast)


def _averages(series: Series, windows: Windows, missing: Missing, overall: float) -> Floats:
    """(n T): at each row, the mean of the sensor's training readings at that time of day.

    A time of day without readings gets the sensor's mean, a sensor without readings the mean of all.
    """
    rows, values, known = series.training_rows(windows, missing)
    times, slot = np.unique(series.time_of_day, return_inverse=True)
    total, count = np.zeros((2, len(times), series.nodes))
    np.add.at(total, slot[rows], values.T)
    np.add.at(count, slot[rows], known.T)
    sensor_mean = _ratio(total.sum(0), count.sum(0), np.full(series.nodes, overall))
    averages = _ratio(total, count, np.broadcast_to(sensor_mean, total.shape))
    return np.ascontiguousarray(averages[slot].T)


def _ratio(total: Floats, count: Floats, otherwise: Floats) -> Floats:
    return np.where(count > 0, total / np.maximum(count, 1), otherwise)


def _prepare(data: Dataset, config: DataConfig) -> tuple[Series, Windows, PreparedSeries]:
    series = Series.of(clean(data.readings, config))
    windows = Windows.of(len(data.readings.times), config.history, config.horizon, config.shares, data.name)
    scaler = Scaler.of(torch.from_numpy(series.moments(windows, config.missing)))
    prepared = PreparedSeries(series, scaler, config.missing, windows, torch.float64, torch.device("cpu"))
    return series, windows, prepared


def _evaluate(prepared: PreparedSeries, split: Split, forecast: Callable[[slice], Tensor]) -> Scores:
    """`forecast` returns the scaled values ahead of some windows: (n b t)."""
    sums = torch.zeros(prepared.nodes, prepared.horizon, len(SUMS), dtype=torch.float64)
    for chunk in prepared.chunks(split):
        sums += prepared.errors(forecast(chunk), split, chunk)
    return Scores(sums)
