"""A sensor's usual week: the mean of what it read at each time of each day of the week.

It is counted from the sensor's own readings, takes no learning, and never leaves the sensor.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

SLOTS = 288  # of a day
WEEKDAYS = 7
REACH = 2  # slots to either side that count along: one reading a day makes a noisy mean
WEEKEND = 5  # the first day of it
DRAWN = 3.0  # days: as much as these weighs what all days of the kind, weekday or weekend, have in common

Floats = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]


class When:
    """Rows of a series as days, days of the week and slots of a day, each (T,)."""

    def __init__(self, time_of_day: Floats, weekday: Whole) -> None:
        self.slot: Whole = np.minimum((time_of_day * SLOTS).astype(np.int64), SLOTS - 1)
        self.weekday = weekday
        later = (np.diff(time_of_day) < 0) | (np.diff(weekday) != 0)
        self.day: Whole = np.concatenate([[0], np.cumsum(later)])
        steps = np.diff(time_of_day)
        self.step = float(np.median(steps[steps > 0])) if (steps > 0).any() else 1.0  # of a day
        self._drawn = DRAWN * max(1.0, (2 * REACH + 1) / SLOTS / self.step)  # readings

    def usual(self, values: Floats, known: npt.NDArray[np.bool_], rows: Whole) -> tuple[Floats, Floats]:
        """The usual weeks (n 7 SLOTS) of readings at these rows (n r), of which only the known ones count;
        and what is usual at every row there is (n T), the row's own day left out. NaN: nothing is known.

        Were its own day left in, a training window would be told part of what it is to forecast. So it would
        be if neighbouring slots reached beyond midnight, or if a window were longer than a day.
        """
        n, days = len(values), int(self.day[-1]) + 1
        weekdays = np.zeros(days, dtype=np.int64)
        weekdays[self.day] = self.weekday
        weeks, at = np.empty((n, WEEKDAYS, SLOTS)), np.empty((n, len(self.day)))
        place = self.day[rows] * SLOTS + self.slot[rows]
        nothing = np.zeros((WEEKDAYS, SLOTS))
        for i in range(n):  # of all nodes at once, days by slots would take too much memory
            total, count = (
                _around(np.bincount(place, x, days * SLOTS).astype(np.float64).reshape(days, SLOTS))
                for x in (np.where(known[i], values[i], 0.0), known[i])
            )
            totals, counts = (
                np.stack([x[weekdays == d].sum(0) for d in range(WEEKDAYS)]) for x in (total, count)
            )
            weeks[i] = self._mean(totals, counts, nothing, nothing, np.arange(WEEKDAYS))
            at[i] = self._mean(totals, counts, total, count, weekdays)[self.day, self.slot]
        return weeks, at

    def looked_up(self, weeks: Floats) -> Floats:
        """What is usual at every row: (n 7 SLOTS) -> (n T)."""
        return weeks[:, self.weekday, self.slot]

    def _mean(
        self, totals: Floats, counts: Floats, own: Floats, own_count: Floats, weekdays: Whole
    ) -> Floats:
        """Of some days (d SLOTS), from the week's sums (7 SLOTS) without the days' own: the mean of the day
        of the week, drawn to that of all days of its kind the more, the less is known of it."""
        kind = (weekdays >= WEEKEND).astype(np.int64)
        of_kind = [np.stack([x[:WEEKEND].sum(0), x[WEEKEND:].sum(0)])[kind] for x in (totals, counts)]
        count = of_kind[1] - own_count
        known = count > 0.5  # sums of whole numbers
        common = np.where(known, (of_kind[0] - own) / np.where(known, count, 1), np.nan)
        total, count = totals[weekdays] - own, counts[weekdays] - own_count
        mean: Floats = (total + self._drawn * common) / (count + self._drawn)
        return mean


def _around(x: Floats) -> Floats:
    """Each slot with its neighbours of the same day: (days SLOTS)."""
    far = np.pad(x, [(0, 0), (REACH, REACH)])
    total: Floats = sum((far[:, by : by + SLOTS] for by in range(2 * REACH + 1)), np.zeros_like(x))
    return total
