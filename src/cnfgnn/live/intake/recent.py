"""The newest readings of all sensors, on a grid of time steps, and what is done with each that arrives.

Further variables of the sensors arrive like the readings. They have times of their own, as in `data/inputs`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cnfgnn.data.inputs import Input, in_order
from cnfgnn.data.readings import LARGEST, Readings, rows_of
from cnfgnn.live.intake.clock import Clock
from cnfgnn.live.intake.variables import VariableRows, newest_rows

Bools = npt.NDArray[np.bool_]


class Verdict(Enum):
    """What became of a reading. Those up to LATE are stored; the others are not."""

    NEW = "new"
    CORRECTED = "corrected"  # there was another value for this sensor and step
    LATE = "late"  # the forecast of its step has been made
    REPEATED = "repeated"  # the same value is known
    EMPTY = "empty"  # "no reading"
    UNKNOWN_SENSOR = "unknown sensor"
    UNKNOWN_VARIABLE = "unknown variable"
    NOT_A_NUMBER = "not a number"
    NOT_PLAUSIBLE = "not plausible"
    FUTURE = "from the future"
    TOO_OLD = "too old"
    NO_TIME = "no valid time"
    UNREADABLE = "unreadable line"  # of a file

    @property
    def is_stored(self) -> bool:
        return self in (Verdict.NEW, Verdict.CORRECTED, Verdict.LATE)

    @property
    def is_refused(self) -> bool:
        """Whether the sender made a mistake."""
        return not self.is_stored and self not in (Verdict.REPEATED, Verdict.EMPTY)


@dataclass(frozen=True)
class Arrived:
    """A reading as it arrived: sensor and time may be unknown, and the value may be no number.

    seconds   since 1970; None if the time cannot be read
    value     NaN for "no reading"; None if it is text that is no number
    variable  the name of what was measured; empty for what is forecast
    """

    sensor: str
    seconds: float | None
    value: float | None
    variable: str = ""


@dataclass(frozen=True)
class Cell:
    """A reading in its place: the time of its step, or its own time if it is of a further variable, and its
    column."""

    seconds: int
    column: int
    value: float
    variable: str = ""


class Stored(NamedTuple):
    """Time, sensor and value of readings, and time, variable, sensor and value of further variables; each in
    the order of time."""

    readings: Sequence[tuple[int, str, float]]
    variables: Sequence[tuple[int, str, str, float]]


class RecentReadings:
    """The last `rows` steps of n sensors, as in the files; `missing` as in `Readings`.

    zeros_missing  whether a reading of zero means "no reading", as in METR-LA and PEMS-BAY
    retired        readings up to this time, in seconds, do not count for when a forecast is due
    made           the time of the last step that a forecast was made for, in seconds
    variable       the name of what is forecast
    variables      further variables, which arrive as well
    covariates     what is known ahead: whoever reads their files replaces them
    """

    def __init__(self, readings: Readings, rows: int, zeros_missing: bool) -> None:
        self.ids, self.rows, self.zeros_missing = readings.ids, rows, zeros_missing
        self.column_of = {sensor: column for column, sensor in enumerate(readings.ids)}
        self.step = readings.step_seconds
        seconds = readings.seconds
        self.newest = int(seconds[-1])  # the time of the last row
        self._about = rows_of(replace(readings, others=()), np.array([0]))  # not all readings: it lasts
        self.made: int | None = None
        self.retired = -(1 << 62)
        self._values = np.full((rows, len(self.ids)), np.nan, dtype=np.float32)
        count = min(rows, len(seconds))
        self._values[-count:] = readings.values[-count:]
        self.variable, span = readings.variable, rows * self.step
        self.variables = {
            one.name: VariableRows(one, self.newest, span) for one in readings.others if not one.known_ahead
        }
        self.covariates: dict[str, Input] = {}
        for one in readings.others:
            if one.known_ahead:
                self.know_ahead(one)

    # ---- arrivals -----------------------------------------------------------------------------------

    def judge(self, reading: Arrived, clock: Clock) -> tuple[Verdict, Cell | None]:
        """What is done with a reading, and where it belongs; nothing changes yet."""
        column = self.column_of.get(reading.sensor)
        if column is None:
            return Verdict.UNKNOWN_SENSOR, None
        variable = "" if reading.variable == self.variable else reading.variable
        if variable and variable not in self.variables:
            return Verdict.UNKNOWN_VARIABLE, None
        if reading.value is None or math.isinf(reading.value):
            return Verdict.NOT_A_NUMBER, None
        if math.isnan(reading.value):
            return Verdict.EMPTY, None
        if abs(reading.value) > LARGEST:
            return Verdict.NOT_PLAUSIBLE, None
        if reading.seconds is None or not math.isfinite(reading.seconds):
            return Verdict.NO_TIME, None
        if reading.seconds > clock.latest(self.step):
            return Verdict.FUTURE, None
        seconds = round(reading.seconds) if variable else self.step_of(reading.seconds)
        cell = Cell(seconds, column, float(np.float32(reading.value)), variable)
        return self._verdict(cell), cell

    def _verdict(self, cell: Cell) -> Verdict:
        row = self._row(cell.seconds)
        if row < 0:
            return Verdict.TOO_OLD
        known = self._known(cell, row)
        if known == np.float32(cell.value):
            return Verdict.REPEATED
        if not np.isnan(known):
            return Verdict.CORRECTED
        if self.made is not None and cell.seconds <= self.made:
            return Verdict.LATE
        return Verdict.NEW

    def _known(self, cell: Cell, row: int) -> float:
        """The value that is known in the place of a reading, or NaN."""
        if cell.variable:
            return self.variables[cell.variable].value_at(cell.seconds, cell.column)
        return float(self._values[row, cell.column]) if row < self.rows else math.nan

    def step_of(self, seconds: float) -> int:
        """The time of the step that is nearest to this time."""
        return self.newest + self.step * round((seconds - self.newest) / self.step)

    def put(self, cell: Cell) -> None:
        """Take in a reading; one that has become too old in the meantime is left out."""
        if cell.variable:
            self.variables[cell.variable].put(cell.seconds, cell.column, cell.value)
            return
        self.advance(cell.seconds)
        row = self._row(cell.seconds)
        if row >= 0:
            self._values[row, cell.column] = cell.value

    def put_stored(self, stored: Stored, since: int) -> None:
        """Take in what a service has stored of these sensors: readings from a time on, and variables."""
        for seconds, sensor, value in stored.readings:
            if sensor in self.column_of and seconds >= since:
                self.put(Cell(self.step_of(seconds), self.column_of[sensor], value))
        for seconds, variable, sensor, value in stored.variables:
            if sensor in self.column_of and variable in self.variables:
                self.put(Cell(seconds, self.column_of[sensor], value, variable))

    def advance(self, seconds: int) -> None:
        """Add empty rows up to this step, and drop as many at the beginning."""
        ahead = (seconds - self.newest) // self.step
        if ahead <= 0:
            return
        kept = max(0, self.rows - ahead)
        moved = np.full_like(self._values, np.nan)
        if kept:
            moved[:kept] = self._values[self.rows - kept :]
        self._values, self.newest = moved, self.newest + ahead * self.step

    def go_back(self, seconds: float) -> None:
        """Drop the rows after this time, and the forecasts that were made of them; add as many empty ones at
        the beginning."""
        dropped = math.ceil((self.newest - seconds) / self.step)
        moved = np.full_like(self._values, np.nan)
        moved[dropped:] = self._values[: max(0, self.rows - dropped)]
        self._values, self.newest, self.made = moved, self.newest - dropped * self.step, None

    def know_ahead(self, covariate: Input) -> None:
        """Use these values of a covariate from the next forecast on."""
        since = self.newest - self.rows * self.step
        self.covariates[covariate.name] = replace(covariate, readings=newest_rows(covariate.readings, since))

    # ---- what is there ------------------------------------------------------------------------------

    def until(self, seconds: int) -> Readings:
        """All rows up to this step, which is at most `newest`, with the further inputs; a copy."""
        count = self._row(seconds) + 1
        values = self._values[:count].copy()
        missing = np.isnan(values)
        if self.zeros_missing:
            missing |= values == 0
        first = seconds - (count - 1) * self.step
        times = (first + self.step * np.arange(count)).astype("datetime64[s]")
        others = in_order([*(one.input() for one in self.variables.values()), *self.covariates.values()])
        return replace(self._about, times=times, values=values, missing=missing, others=others)

    def for_forecast(self, seconds: int) -> Readings:
        """The same from a row on that does not depend on which retired readings are there."""
        readings = self.until(seconds)
        ahead = min(max(0, (self.retired - self.newest) // self.step), len(readings.times) // 2)
        return rows_of(readings, slice(ahead, None)) if ahead else readings

    def present(self, seconds: int) -> Bools:
        """(n,): which sensors have sent something for this step."""
        row = self._row(seconds)
        if not 0 <= row < self.rows:
            return np.zeros(len(self.ids), dtype=np.bool_)
        there: Bools = ~np.isnan(self._values[row])
        return there

    def recently_present(self, seconds: int, steps: int) -> Bools:
        """(n,): which sensors have sent something in the steps before this one that is not retired."""
        row = self._row(seconds)
        first = max(0, row - steps, self._row(self.retired) + 1)
        silent = np.isnan(self._values[first : max(first, row)])
        return np.asarray(~silent.all(axis=0))

    def variables_are_complete(self, seconds: int, expected: Bools, steps: int) -> bool:
        """Whether nothing more is expected of the variables for this step from the sensors that are expected:
        those that are measured with the readings are, wherever they have been in the steps before."""
        for one in self.variables.values():
            if one.has_steps_of(self.step, self.newest, self.retired):
                since = max(seconds - steps * self.step, self.retired + 1)
                awaited = expected & one.present(since, seconds)
                if not one.present(seconds, seconds + 1)[awaited].all():
                    return False
        return True

    def values_at(self, sensors: Sequence[str], seconds: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """(times, sensors): what is known at these times; NaN for whatever is not."""
        rows = self.rows - 1 + np.rint((seconds - self.newest) / self.step).astype(np.int64)
        columns = np.array([self.column_of.get(sensor, -1) for sensor in sensors])
        here = ((rows >= 0) & (rows < self.rows))[:, None] & (columns >= 0)
        found = self._values[rows.clip(0, self.rows - 1)[:, None], columns.clip(0)]
        return np.where(here, found, np.float32(np.nan))

    def _row(self, seconds: int) -> int:
        return self.rows - 1 + (seconds - self.newest) // self.step


def cells_in(known: Readings) -> list[Cell]:
    """All readings, and the values of further variables."""
    of = {"": known} | {one.name: one.readings for one in known.others if not one.known_ahead}
    return [
        Cell(int(seconds), column, value, variable)
        for variable, readings in of.items()
        for seconds, values in zip(readings.seconds, readings.values.tolist(), strict=True)
        for column, value in enumerate(values)
        if not math.isnan(value)
    ]
