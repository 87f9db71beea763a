"""Weekly profiles: a sensor's mean reading at each time of the day and each day of the week.

A profile is computed from the sensor's own readings, without any training, and never leaves the sensor. Each
mean also covers the neighbouring slots of the day, and is shrunk toward the mean over all weekdays, or over
the weekend, because a few weeks hold only a few readings of each slot.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

SLOTS = 288  # slots of a day, five minutes each
WEEKDAYS = 7
SATURDAY = 5  # the first day of the weekend, if Monday is 0
SMOOTHING_SLOTS = 2  # neighbouring slots on either side that each mean includes
SHRINKAGE_DAYS = 3.0  # weight of the weekday or weekend mean, in days of readings

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class WeeklyProfiles(NamedTuple):
    """Profiles of n nodes; NaN where nothing is known.

    weeks    (n 7 SLOTS)  the profile itself
    at_rows  (n T)        the profile at every row of the series, computed without the readings of that day or
                          of other days that can be in the same forecast
    """

    weeks: Floats
    at_rows: Floats


class _Sums(NamedTuple):
    """Sums of readings and the number of readings in them, by slot: (days SLOTS) or (7 SLOTS) each."""

    total: Floats
    number: Floats


class Calendar:
    """The rows of a series as days, days of the week and slots of the day, each (T,).

    step_days is the time between two rows, in days.
    """

    def __init__(self, time_of_day: Floats, weekday: Ints) -> None:
        self.slot: Ints = np.minimum((time_of_day * SLOTS).astype(np.int64), SLOTS - 1)
        self.weekday = weekday
        # The same time of the same day of the week is that of a later week.
        next_day = (np.diff(time_of_day) <= 0) | (np.diff(weekday) != 0)
        self.day: Ints = np.concatenate([[0], np.cumsum(next_day)])
        steps = np.diff(time_of_day)
        self.step_days = float(np.median(steps[steps > 0])) if (steps > 0).any() else 1.0
        readings_per_mean = max(1.0, (2 * SMOOTHING_SLOTS + 1) / SLOTS / self.step_days)
        self._shrinkage = SHRINKAGE_DAYS * readings_per_mean

    def profiles(self, values: Floats, known: Bools, rows: Ints, days_ahead: float = 1.0) -> WeeklyProfiles:
        """The profiles of readings (n r) at these rows (r,); only the known ones count.

        The profile at a row leaves out the row's own day. Otherwise a training window would contain part of
        what it has to forecast. For the same reason smoothing stops at midnight. If forecasts reach more than
        a day ahead, one window has targets at the same time of several days: their profiles leave out all
        days that can be in the same window.
        """
        around = max(0, int(np.ceil(days_ahead - 1e-9)) - 1)
        n, days = len(values), int(self.day[-1]) + 1
        weekday_of = np.zeros(days, dtype=np.int64)
        weekday_of[self.day] = self.weekday
        weeks, at_rows = np.empty((n, WEEKDAYS, SLOTS)), np.empty((n, len(self.day)))
        place = self.day[rows] * SLOTS + self.slot[rows]
        nothing = _Sums(np.zeros((WEEKDAYS, SLOTS)), np.zeros((WEEKDAYS, SLOTS)))
        for node in range(n):  # node by node: days x slots of all nodes at once would take too much memory
            by_day = _Sums(
                _by_day_and_slot(place, np.where(known[node], values[node], 0.0), days),
                _by_day_and_slot(place, known[node], days),
            )
            by_weekday = _Sums(_by_weekday(by_day.total, weekday_of), _by_weekday(by_day.number, weekday_of))
            weeks[node] = self._shrunk_means(by_weekday, nothing, nothing, np.arange(WEEKDAYS))
            out_of_pool, left_out = (
                _Sums(_around(by_day.total, kind, around), _around(by_day.number, kind, around))
                for kind in (weekday_of >= SATURDAY, weekday_of)
            )
            means = self._shrunk_means(by_weekday, out_of_pool, left_out, weekday_of)
            at_rows[node] = means[self.day, self.slot]
        return WeeklyProfiles(weeks, at_rows)

    def look_up(self, weeks: Floats) -> Floats:
        """The profile at every row: (n 7 SLOTS) -> (n T)."""
        return weeks[:, self.weekday, self.slot]

    def _shrunk_means(
        self, by_weekday: _Sums, out_of_pool: _Sums, left_out: _Sums, weekday_of: Ints
    ) -> Floats:
        """(d SLOTS): for each of d days, the mean over its day of the week, shrunk toward the weekday or
        weekend mean. From the sums of the latter `out_of_pool` is subtracted first, from those of the former
        `left_out`: (d SLOTS) each."""
        weekend = (weekday_of >= SATURDAY).astype(np.int64)
        pooled_total = _weekdays_and_weekend(by_weekday.total)[weekend] - out_of_pool.total
        pooled_count = _weekdays_and_weekend(by_weekday.number)[weekend] - out_of_pool.number
        known = pooled_count > 0.5  # counts are whole numbers stored as floats
        prior = np.where(known, pooled_total / np.where(known, pooled_count, 1), np.nan)
        total = by_weekday.total[weekday_of] - left_out.total
        count = by_weekday.number[weekday_of] - left_out.number
        mean: Floats = (total + self._shrinkage * prior) / (count + self._shrinkage)
        return mean


def _by_day_and_slot(place: Ints, weights: npt.ArrayLike, days: int) -> Floats:
    """(days SLOTS): sums over each slot and its neighbours; `place` is day * SLOTS + slot."""
    sums = np.bincount(place, weights, days * SLOTS).astype(np.float64)
    return _smoothed(sums.reshape(days, SLOTS))


def _around(by_day: Floats, kind: npt.NDArray[Any], days: int) -> Floats:
    """(d SLOTS): for each day, the sum over itself and those of the same kind at most so many days away."""
    if not days:
        return by_day
    total = by_day.copy()
    for shift in range(1, min(days, len(by_day) - 1) + 1):
        same = (kind[shift:] == kind[:-shift])[:, None]
        total[shift:] += np.where(same, by_day[:-shift], 0.0)
        total[:-shift] += np.where(same, by_day[shift:], 0.0)
    return total


def _by_weekday(by_day: Floats, weekday_of: Ints) -> Floats:
    """(days SLOTS) -> (7 SLOTS)."""
    return np.stack([by_day[weekday_of == weekday].sum(0) for weekday in range(WEEKDAYS)])


def _weekdays_and_weekend(by_weekday: Floats) -> Floats:
    """(7 SLOTS) -> (2 SLOTS): Monday to Friday, and the weekend."""
    return np.stack([by_weekday[:SATURDAY].sum(0), by_weekday[SATURDAY:].sum(0)])


def _smoothed(by_slot: Floats) -> Floats:
    """Add to each slot its neighbours of the same day: (days SLOTS)."""
    padded = np.pad(by_slot, [(0, 0), (SMOOTHING_SLOTS, SMOOTHING_SLOTS)])
    total = np.zeros_like(by_slot)
    for shift in range(2 * SMOOTHING_SLOTS + 1):
        total = total + padded[:, shift : shift + SLOTS]
    return total
