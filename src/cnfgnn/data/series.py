"""The readings of a group of nodes, and what is computed from them; they never leave their owner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from cnfgnn.config.settings import Missing
from cnfgnn.data.inputs import InputSeries
from cnfgnn.data.readings import DAY, Readings
from cnfgnn.data.windows import Windows, observed_windows
from cnfgnn.forecasters.usual import LAGS, fit_lags, rows_before, usual_readings
from cnfgnn.forecasters.weekly_profile import Calendar, WeeklyProfiles

DAY_S = float(DAY.astype(np.int64))

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Scaler:
    """One mean and standard deviation for all nodes."""

    mean: float
    std: float

    @classmethod
    def of(cls, moments: Tensor) -> Scaler:
        """From each node's count, sum and sum of squares: (n 3)."""
        count, total, squares = moments.double().sum(0).tolist()
        if count == 0:
            return cls(0.0, 1.0)
        mean = total / count
        std = max(squares / count - mean * mean, 0.0) ** 0.5
        if std <= 1e-6 * abs(mean):  # constant readings, or all zero: avoid dividing by almost zero
            std = 1.0
        return cls(mean, std)


class TrainingRows(NamedTuple):
    """The rows (r,) that training windows take as input, their values (n r) with 0 for unknown ones, and
    which of them are known (n r)."""

    rows: Ints
    values: Floats
    known: Bools


class Past(NamedTuple):
    """Readings of n nodes: their times in seconds (T,), values (n T), and which are missing (n T)."""

    seconds: Floats
    values: npt.NDArray[np.floating]
    missing: Bools


class Series:
    """Raw readings of n nodes: values (n T) with NaN, missing (n T), time of day and weekday (T,); their
    further inputs on the same time steps; the times in seconds since 1970 (T,), or since any other time that
    does not change; and the readings of earlier days and weeks, by default those of the series itself."""

    def __init__(
        self,
        values: npt.NDArray[np.floating],
        missing: Bools,
        time_of_day: Floats,
        weekday: Ints | None = None,
        others: Sequence[InputSeries] = (),
        seconds: Ints | Floats | None = None,
        past: Past | None = None,
    ) -> None:
        self.others = tuple(others)
        self.values = np.asarray(values, dtype=np.float64)
        self.missing, self.time_of_day = missing, time_of_day
        self.weekday = np.zeros(len(time_of_day), dtype=np.int64) if weekday is None else weekday
        self.calendar = Calendar(time_of_day, self.weekday)
        regular = np.rint(np.arange(len(time_of_day)) * (self.calendar.step_days * DAY_S))
        self.seconds: Floats = np.asarray(regular if seconds is None else seconds, dtype=np.float64)
        self.past = past or Past(self.seconds, self.values, self.missing)

    @classmethod
    def of(cls, readings: Readings, rows: Ints | None = None) -> Series:
        """The series of some sensors, or of all if no rows are given."""
        kept = slice(None) if rows is None else rows
        missing = readings.missing[:, kept].T
        seconds = readings.seconds
        others = [one.at(seconds, rows) for one in readings.others]
        values = readings.values[:, kept].T
        return cls(values, missing, readings.time_of_day, readings.weekday, others, seconds)

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return len(self.values)

    def absent(self, treatment: Missing) -> Bools:
        """(n T): which readings count as missing. With `as-truth`, as in the paper, a zero is a value."""
        return self.missing if treatment == "masked" else np.isnan(self.values)

    def available(self, starts: Ints, windows: Windows, treatment: Missing) -> Bools:
        """(n w): which windows a node can train on or be evaluated on."""
        return observed_windows(~self.absent(treatment), starts, windows)

    def training_rows(self, windows: Windows, treatment: Missing) -> TrainingRows:
        """The readings that training windows take as input; with `as-truth`, gaps are filled first."""
        rows = input_rows(windows)
        values = self.values if treatment == "masked" else fill(self.values, self.absent(treatment))
        known = ~(self.missing if treatment == "masked" else np.isnan(values))[:, rows]
        return TrainingRows(rows, np.where(known, values[:, rows], 0.0), known)

    def weekly_profiles(self, windows: Windows, treatment: Missing) -> WeeklyProfiles:
        """Each node's weekly profile, from the inputs of training windows; to forecast the readings that come
        next, from all readings. Filled gaps do not count."""
        values, known, rows = self._counted(windows, treatment)
        return self.calendar.profiles(values, known, rows, windows.horizon * self.calendar.step_days)

    def lags(self, windows: Windows, treatment: Missing, profile: Floats, scaler: Scaler) -> Floats:
        """(n k): the weights of each node's lags, from the readings that profiles count; the profile is that
        at every row (n T)."""
        _, known, rows = self._counted(windows, treatment)
        weights, before = np.zeros((self.nodes, len(LAGS))), self._rows_before(windows.horizon)
        for node, is_known in enumerate(known):
            readings = np.full(len(self.seconds), np.nan)
            readings[rows] = np.where(is_known, self.values[node, rows], np.nan)
            readings, usual = ((x - scaler.mean) / scaler.std for x in (readings, profile[node]))
            weights[node] = fit_lags(readings, usual, before, max(1, windows.horizon // 2))
        return weights

    def usual(self, profile: Floats, lags: Floats, horizon: int, treatment: Missing) -> Floats:
        """(n T): what the nodes usually read, from their profile at every row and the weights of lags."""
        _, values, missing = self.past
        absent = missing if treatment == "masked" else np.isnan(values)
        return usual_readings(profile, lags, values, absent, self._rows_before(horizon))

    def _rows_before(self, horizon: int) -> Ints:
        step = float(np.median(np.diff(self.seconds))) if len(self.seconds) > 1 else DAY_S
        return rows_before(self.seconds, self.past.seconds, step, horizon)

    def _counted(self, windows: Windows, treatment: Missing) -> tuple[Floats, Bools, Ints]:
        """The readings that profiles count (n r), with 0 for unknown ones; which are known; their rows."""
        rows = np.arange(len(self.time_of_day)) if windows.ahead else input_rows(windows)
        known = ~self.absent(treatment)[:, rows]
        return np.where(known, self.values[:, rows], 0.0), known, rows

    def moments(self, windows: Windows, treatment: Missing) -> Floats:
        """(n 3): count, sum and sum of squares of the readings that training windows take as input."""
        _, values, known = self.training_rows(windows, treatment)
        return np.stack([known.sum(1), values.sum(1), np.square(values).sum(1)], axis=1).astype(np.float64)


def input_rows(windows: Windows) -> Ints:
    """The rows that are an input of some training window, ascending."""
    return np.unique((windows.starts["train"][:, None] + np.arange(windows.history)).ravel())


def fill(values: Floats, absent: Bools) -> Floats:
    """(n T) -> (n T): replace each absent value by the node's last one before it, or NaN if there is none."""
    last = np.maximum.accumulate(np.where(absent, -1, np.arange(values.shape[1])), axis=1)
    filled = np.take_along_axis(values, np.maximum(last, 0), axis=1)
    return np.where(last < 0, np.nan, filled)
