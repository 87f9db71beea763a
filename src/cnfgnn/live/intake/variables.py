"""Further variables of the sensors while they arrive, such as the flow beside the speed that is forecast.

A variable has times of its own: it may be measured less often than the readings, or a little later. At any
time a forecast uses its newest value from then or before, as in training (`data/inputs.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from cnfgnn.data.inputs import Input
from cnfgnn.data.readings import Readings, rows_of

Bools = npt.NDArray[np.bool_]


class VariableRows:
    """The newest values of a variable, a row for each time at which some sensor has one.

    newest  the time of the newest reading
    span    seconds before the newest value for which values are kept
    """

    def __init__(self, variable: Input, newest: int, span: int) -> None:
        self._span, self._kept_since = span, newest - span
        kept = newest_rows(variable.readings, self._kept_since)
        self._about = replace(variable, readings=kept)
        self._times, self._values = kept.seconds, np.where(kept.missing, np.nan, kept.values)

    def input(self) -> Input:
        """What is known now; a copy."""
        times, values = self._times.astype("datetime64[s]"), self._values.copy()
        known = replace(self._about.readings, times=times, values=values, missing=np.isnan(values))
        return replace(self._about, readings=known)

    def value_at(self, seconds: int, column: int) -> float:
        """The value of a sensor at exactly this time, or NaN."""
        row = int(np.searchsorted(self._times, seconds))
        found = row < len(self._times) and self._times[row] == seconds
        return float(self._values[row, column]) if found else math.nan

    def values_at(self, seconds: npt.NDArray[np.int64], columns: Sequence[int]) -> npt.NDArray[np.float32]:
        """(times, columns): the values at exactly these times; NaN where there is none, or no column."""
        rows = np.searchsorted(self._times, seconds).clip(max=len(self._times) - 1)
        here = (self._times[rows] == seconds)[:, None] & (np.array(columns) >= 0)
        return np.where(here, self._values[rows[:, None], columns], np.float32(np.nan))

    def put(self, seconds: int, column: int, value: float) -> None:
        """Take in a value."""
        row = int(np.searchsorted(self._times, seconds))
        if row == len(self._times) or self._times[row] != seconds:
            self._times = np.insert(self._times, row, seconds)
            self._values = np.insert(self._values, row, np.nan, axis=0)
        self._values[row, column] = value
        newest = int(self._times[-1])
        if newest - self._kept_since > 2 * self._span:
            self._kept_since = newest - self._span
            kept = newest_rows(self.input().readings, self._kept_since)
            self._times, self._values = kept.seconds, kept.values

    def has_steps_of(self, step: int, moment: int, after: int) -> bool:
        """Whether it is measured at the steps of the readings, of which one is at this moment; values up to
        another time do not count."""
        newest = self._times[self._times > after][-10:]
        return len(newest) > 1 and bool((np.diff(newest) == step).all()) and (newest[-1] - moment) % step == 0

    def present(self, since: int, until: int) -> Bools:
        """(n,): which sensors have a value from one time until before another."""
        rows = slice(*np.searchsorted(self._times, [since, until]))
        return np.asarray(~np.isnan(self._values[rows]).all(axis=0))


def newest_rows(readings: Readings, since: int) -> Readings:
    """The rows after a time, in seconds since 1970, and before them those with what each sensor had then.

    Every value stays at the time at which it was measured: at another time it would get another blurred copy.
    """
    rows = len(readings.times)
    first = int(np.searchsorted(readings.seconds, since, side="right"))
    if first < 2:
        return readings
    place = np.where(readings.missing[:first], -1, np.arange(first)[:, None]).max(axis=0)
    kept = np.concatenate([np.unique(place[place >= 0]), np.arange(first, rows)])
    if not len(kept):  # none of them has a value
        kept = np.array([rows - 1])
    return rows_of(readings, kept)
