"""Baselines: simple forecasts, which every method must beat."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cnfgnn.config.settings import DataConfig, Missing
from cnfgnn.data.batch import Batch
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.prepared_series import SUMS, PreparedSeries
from cnfgnn.data.quality import clean
from cnfgnn.data.series import Floats, Scaler, Series
from cnfgnn.data.windows import Split, Windows
from cnfgnn.forecasters.linear import Normal, Sample
from cnfgnn.runs.scores import Scores

DAY_S, HOURS = 86_400, 24
PENALTIES = tuple(
    10.0**power for power in range(-2, 5)
)  # of the ridge regression, chosen by validation error
NODES_AT_ONCE = 256  # so that many windows are taken at once, whatever the number of sensors


@dataclass(frozen=True, eq=False)
class Group:
    """Some of the sensors, with their windows."""

    nodes: slice
    data: PreparedSeries


@dataclass(frozen=True, eq=False)
class Prepared:
    """The readings of a data set with the windows that all baselines are evaluated on."""

    series: Series
    windows: Windows
    data: PreparedSeries
    config: DataConfig
    step: int  # seconds

    @classmethod
    def of(cls, data: Dataset, config: DataConfig) -> Prepared:
        series = Series.of(clean(data.readings, config))
        windows = Windows.of(
            len(data.readings.times), config.history, config.horizon, config.shares, data.name
        )
        scaler = Scaler.of(torch.from_numpy(series.moments(windows, config.missing)))
        prepared = PreparedSeries(series, scaler, config.missing, windows, torch.float64, torch.device("cpu"))
        step = data.readings.step_seconds
        return cls(series, windows, prepared, config, step)

    def groups(self) -> Iterator[Group]:
        """All sensors, some at a time: this bounds memory, and what is computed for each sensor by itself is
        computed for many windows at once."""
        for start in range(0, self.data.nodes, NODES_AT_ONCE):
            nodes = slice(start, min(start + NODES_AT_ONCE, self.data.nodes))
            yield Group(nodes, self.data.of_nodes(nodes))

    def evaluate(self, split: Split, forecast: Callable[[Group, slice], Tensor]) -> Scores:
        """`forecast` returns the scaled values ahead of some windows of a group: (n b t)."""
        parts = []
        for group in self.groups():
            sums = torch.zeros(group.data.nodes, self.data.horizon, len(SUMS), dtype=torch.float64)
            for chunk in group.data.chunks(split):
                sums += group.data.errors(forecast(group, chunk), split, chunk)
            parts.append(sums)
        return Scores(torch.cat(parts))


def all_baselines(data: Dataset, config: DataConfig, split: Split = "test") -> dict[str, Scores]:
    """The errors of every baseline that suits the data, by name; evaluated on the same windows and in the
    same way as the methods."""
    prepared = Prepared.of(data, config)
    found = {name: baseline(prepared, split) for name, baseline in BASELINES.items()}
    return {name: scores for name, scores in found.items() if scores is not None}


def _last_value(prepared: Prepared, split: Split) -> Scores:
    """Repeat each sensor's last reading."""

    def forecast(group: Group, chunk: slice) -> Tensor:
        batch = group.data.batch(split, chunk)
        return batch.x[:, :, -1:, 0].expand(-1, -1, prepared.config.horizon)  # (n b 1) -> (n b t)

    return prepared.evaluate(split, forecast)


# ---- the same time before -------------------------------------------------------------------------------


def _days_before(days: int) -> Callable[[Prepared, Split], Scores | None]:
    def baseline(prepared: Prepared, split: Split) -> Scores | None:
        """What each sensor read at the same time some days before; None if steps do not divide a day, or the
        readings are too few."""
        rows, rest = divmod(days * DAY_S, prepared.step)
        starts = prepared.data.starts[split]
        if rest or not len(starts) or int(starts[0]) + prepared.config.history < rows:
            return None
        if rows < prepared.config.horizon:  # part of it would lie in the future
            rows *= -(-prepared.config.horizon // rows)
        ahead = torch.arange(prepared.config.history, prepared.windows.length) - rows

        def forecast(group: Group, chunk: slice) -> Tensor:
            return _at(group.data.inputs, (starts[chunk][:, None] + ahead).clamp(min=0))

        return prepared.evaluate(split, forecast)

    return baseline


def _daily_average(prepared: Prepared, split: Split) -> Scores:
    """Each sensor's mean training reading at that time of day."""
    scaler = prepared.data.scaler
    averages = _averages(prepared.series, prepared.windows, prepared.config.missing, scaler.mean)
    scaled = (torch.from_numpy(averages) - scaler.mean) / scaler.std  # (n T)
    ahead = torch.arange(prepared.config.history, prepared.windows.length)

    def forecast(group: Group, chunk: slice) -> Tensor:
        return _at(scaled[group.nodes], group.data.starts[split][chunk][:, None] + ahead)

    return prepared.evaluate(split, forecast)


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


def _at(series: Tensor, rows: Tensor) -> Tensor:
    """(n T), (b t) -> (n b t)."""
    return series.index_select(1, rows.flatten()).view(len(series), *rows.shape)


def _ratio(total: Floats, count: Floats, otherwise: Floats) -> Floats:
    return np.where(count > 0, total / np.maximum(count, 1), otherwise)


# ---- ridge regression -----------------------------------------------------------------------------------


def _ridge(prepared: Prepared, split: Split) -> Scores:
    """A linear forecaster for each sensor: its last readings and the hour of the day, fitted in closed form
    with a penalty on large weights that the validation split chooses."""
    fits, errors = [], torch.zeros(len(PENALTIES), dtype=torch.float64)
    for group in prepared.groups():
        fit, validation = _normal(group, "train"), _normal(group, "validation")
        errors += torch.stack([validation.squared_errors(fit.solved(p)).sum() for p in PENALTIES])
        fits.append(fit)
    # One penalty for all: a sensor's own validation windows are too few to choose one for it.
    best = PENALTIES[int(errors.nan_to_num(nan=torch.inf).argmin())]
    weights = torch.cat([fit.solved(best) for fit in fits])

    def forecast(group: Group, chunk: slice) -> Tensor:
        features, last, _ = _features(group, split, chunk)
        return last + features @ weights[group.nodes]

    return prepared.evaluate(split, forecast)


def _normal(group: Group, split: Split) -> Normal:
    """The normal equations of each sensor, over the observed targets of a split."""

    def samples() -> Iterator[Sample]:
        for chunk in group.data.chunks(split):
            features, last, batch = _features(group, split, chunk)
            yield Sample(features, batch.y - last, batch.observed)

    return Normal.of(samples(), group.data.with_gaps(*group.data.starts.values()))


def _features(group: Group, split: Split, chunk: slice) -> tuple[Tensor, Tensor, Batch]:
    """The inputs (n b p) of some windows, the last reading (n b 1) that they are relative to, and the batch
    that they are from."""
    batch = group.data.batch(split, chunk)
    readings = batch.x[..., 0]
    last = readings[..., -1:]
    hour = (batch.x[0, :, -1, 1] * HOURS + 1e-9).long().clamp(max=HOURS - 1)
    hours = torch.nn.functional.one_hot(hour, HOURS).to(readings).expand(len(readings), -1, -1)
    return torch.cat([readings[..., :-1] - last, last, hours], dim=-1), last, batch


BASELINES: Mapping[str, Callable[[Prepared, Split], Scores | None]] = {
    "last value": _last_value,
    "yesterday": _days_before(1),
    "last week": _days_before(7),
    "daily average": _daily_average,
    "ridge": _ridge,
}
