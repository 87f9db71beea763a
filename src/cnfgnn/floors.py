"""Forecasts that learn nothing: what every method must beat."""

from __future__ import annotations

import torch

from cnfgnn.algorithm.series import Prepared, Scaler, Series
from cnfgnn.config import DataConfig
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.windows import Split, Windows
from cnfgnn.evaluation import Scores


def last_value(data: Dataset, config: DataConfig, split: Split = "test") -> Scores:
    """Each sensor's last reading, repeated; judged on the windows and by the sums of the methods."""
    series = Series.of(data.readings)
    windows = Windows.of(len(data.readings.times), config.history, config.horizon, config.shares, data.name)
    scaler = Scaler.of(torch.from_numpy(series.moments(windows, config.missing)))
    prepared = Prepared(series, scaler, config.missing, windows, torch.float64, torch.device("cpu"))
    sums = torch.zeros(series.nodes, config.horizon, 8, dtype=torch.float64)
    for some in prepared.chunks(split):
        last = prepared.batch(split, some)[0].x[:, :, -1:, 0]  # (n b 1)
        sums += prepared.errors(last.expand(-1, -1, config.horizon), split, some)
    return Scores(sums)
