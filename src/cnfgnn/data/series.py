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
from cnfgnn.data.readings import DAY, Readings, weekday
from cnfgnn.data.windows import Windows, heard_windows
from cnfgnn.forecasters.usual import LAGS, fit_half_life, fit_lags, rows_before, usual_readings
from cnfgnn.forecasters.weekly_profile import SLOTS, Calendar, WeeklyProfiles

DAY_S = float(DAY.astype(np.int64))
NEVER = 1 << 20  # steps since the last reading, if there is none
NODES_AT_ONCE = 256  # whose gaps are filled together: bounds memory

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


class LastReadings(NamedTuple):
    """The last readings of n nodes before the first row, NaN where there is none, and how many steps before
    it: (n,) each."""

    values: Floats
    steps: Ints


class Series:
    """Raw readings of n nodes: values (n T) with NaN, missing (n T), time of day and weekday (T,); their
    further inputs on the same time steps; the times in seconds since 1970 (T,), or since any other time that
    does not change; the readings of earlier days and weeks, by default those of the series itself; and the
    last readings before it, if any."""

    def __init__(
        self,
        values: npt.NDArray[np.floating],
        missing: Bools,
        time_of_day: Floats,
        weekday: Ints | None = None,
        others: Sequence[InputSeries] = (),
        seconds: Ints | Floats | None = None,
        past: Past | None = None,
        before: LastReadings | None = None,
    ) -> None:
        self.others = tuple(others)
        self.values = np.asarray(values, dtype=np.float64)
        self.missing, self.time_of_day = missing, time_of_day
        self.weekday = np.zeros(len(time_of_day), dtype=np.int64) if weekday is None else weekday
        self.calendar = Calendar(time_of_day, self.weekday)
        regular = np.rint(np.arange(len(time_of_day)) * (self.calendar.step_days * DAY_S))
        self.seconds: Floats = np.asarray(regular if seconds is None else seconds, dtype=np.float64)
        self.past = past or Past(self.seconds, self.values, self.missing)
        self.before = before

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

    def heard(self, starts: Ints, windows: Windows, treatment: Missing) -> Bools:
        """(n w): in which windows a node has a reading among the inputs, so that it sends a hidden state."""
        return heard_windows(~self.absent(treatment), starts, windows)

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

    def persistence(
        self, windows: Windows, treatment: Missing, profile: Floats, scaler: Scaler
    ) -> tuple[Floats, Floats]:
        """(n k), (n,): the weights of each node's lags and the half-life of its anomalies, from the readings
        that profiles count; the profile is that at every row (n T)."""
        _, known, rows = self._counted(windows, treatment)
        weights, before = np.zeros((self.nodes, len(LAGS))), self._rows_before(windows.horizon)
        half_lives = np.empty(self.nodes)
        for node, is_known in enumerate(known):
            readings = np.full(len(self.seconds), np.nan)
            readings[rows] = np.where(is_known, self.values[node, rows], np.nan)
            readings, usual = ((x - scaler.mean) / scaler.std for x in (readings, profile[node]))
            weights[node] = fit_lags(readings, usual, before, max(1, windows.horizon // 2))
            half_lives[node] = fit_half_life(readings - usual, windows.horizon)
        return weights, half_lives

    def floors(self, windows: Windows, treatment: Missing) -> Floats:
        """(n,): zero for nodes whose readings, as far as profiles count them, reach zero and never fall
        below, such as counts; for others there is no lowest reading."""
        values, known, _ = self._counted(windows, treatment)
        lowest = np.min(values, axis=1, where=known, initial=np.inf)
        return np.where(lowest == 0, 0.0, -np.inf)

    def usual(self, profile: Floats, lags: Floats, horizon: int, treatment: Missing) -> Floats:
        """(n T): what the nodes usually read, from their profile at every row and the weights of lags."""
        _, values, missing = self.past
        absent = missing if treatment == "masked" else np.isnan(values)
        return usual_readings(profile, lags, values, absent, self._rows_before(horizon))

    def filled(self, treatment: Missing) -> Floats:
        """(n T): with each absent reading replaced by the last one before it, NaN if there is none."""
        absent = self.absent(treatment)
        filled = fill(self.values, absent)
        if self.before is None:
            return filled
        return np.where(
            self.ages(treatment) > np.arange(filled.shape[1]), self.before.values[:, None], filled
        )

    def filled_with_usual(
        self, treatment: Missing, profile: Floats, weeks: Floats, half_lives: Floats
    ) -> Floats:
        """(n T): with each absent reading replaced by the profile at its row (n T) plus what is left of the
        last anomaly; by the last reading where there is no profile, NaN if there is neither. `weeks` are the
        profiles themselves: the last reading may lie before the first row."""
        absent, ages, filled = self.absent(treatment), self.ages(treatment), self.filled(treatment)
        before = np.full(self.nodes, np.nan) if self.before is None else self._profile_before(weeks)
        for first in range(0, self.nodes, NODES_AT_ONCE):
            node, row = np.nonzero(absent[first : first + NODES_AT_ONCE])
            node += first
            age, last = ages[node, row], filled[node, row]
            at_last = np.where(age > row, before[node], profile[node, np.maximum(row - age, 0)])
            anomaly = np.where(age < NEVER, last - at_last, 0.0)
            usual = profile[node, row] + anomaly * 0.5 ** (age / half_lives[node])
            filled[node, row] = np.where(np.isnan(usual), last, usual)
        return filled

    def _profile_before(self, weeks: Floats) -> Floats:
        """(n,): the profiles at the times of the last readings before the first row."""
        assert self.before is not None
        seconds = (self.seconds[0] - self._step * self.before.steps).astype(np.int64)
        slot = seconds % int(DAY_S) * SLOTS // int(DAY_S)
        found: Floats = weeks[np.arange(self.nodes), weekday(seconds), slot]
        return found

    def ages(self, treatment: Missing) -> Ints:
        """(n T): how many steps ago each node's last reading was, 0 if there is one; NEVER and more if there
        is none at all."""
        return ages_of(self.absent(treatment), None if self.before is None else self.before.steps)

    @property
    def _step(self) -> float:
        """The time between two rows, in seconds."""
        return float(np.median(np.diff(self.seconds))) if len(self.seconds) > 1 else DAY_S

    def _rows_before(self, horizon: int) -> Ints:
        return rows_before(self.seconds, self.past.seconds, self._step, horizon)

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


def ages_of(absent: Bools, before: Ints | None = None) -> Ints:
    """(n T): how many steps ago the last value that is not absent was; `before` (n,) is how many steps before
    the first row there was one."""
    rows = np.arange(absent.shape[1])
    none = -NEVER if before is None else -before[:, None]
    return rows - np.maximum.accumulate(np.where(absent, none, rows), axis=1)


def fill(values: Floats, absent: Bools) -> Floats:
    """(n T) -> (n T): replace each absent value by the node's last one before it, or NaN if there is none."""
    last = np.maximum.accumulate(np.where(absent, -1, np.arange(values.shape[1])), axis=1)
    filled = np.take_along_axis(values, np.maximum(last, 0), axis=1)
    return np.where(last < 0, np.nan, filled)
