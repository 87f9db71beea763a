"""Whether a sensor has left its usual level for two days, unlike the others.

A forecaster follows a sensor that drifts slowly, and its errors hardly grow. What shows the drift is the
sensor's level: the mean of each hour, less what the sensor usually reads at that hour of the day. Of the last
two days the median counts, so that a jam or a storm of some hours does not matter; and what most sensors have
in common, such as a cold week, is taken away. The limit is what the first week or more has shown.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

HOUR, HOURS = 3600, 24
FIRST_HOURS = 7 * HOURS  # after which the usual level of each hour of the day is known
RECENT_HOURS = 2 * HOURS  # whose median counts
FURTHER = 3.0  # times as far as in the first week
LEAST_DISTANCE = 0.75  # of the standard deviation of hours from their usual level
BACK = 0.5  # of the limit: nearer than this, the drift is over
FEWEST_OTHERS = 4  # sensors that show what they have in common


class DriftWatch:
    """The level of n sensors with a reading every `step` seconds, hour by hour; of readings that come less
    often, from one to the next.

    holding  whether more readings of the past follow, so that it is too early to say what is usual
    """

    NUMBERS = ("hour", "first_hour")

    def __init__(self, n: int, step: int) -> None:
        self.step, self.span = step, max(HOUR, step)
        self.hour = -1  # the hour under way, since 1970
        self.sum, self.count = np.zeros(n), np.zeros(n)
        self.first = np.empty((0, n))  # means of the first hours, until the usual level is known
        self.first_hour = -1
        self.holding = False
        self.usual = np.empty((0, n))  # (24 n)
        self.spread, self.limit = np.ones(n), np.full(n, np.inf)
        self.recent = np.full((RECENT_HOURS, n), np.nan)  # by hour modulo their number
        self.distance = np.zeros(n)  # in the readings' unit
        self.score = np.zeros(n)  # in multiples of the limit

    @property
    def is_ready(self) -> bool:
        """Whether the usual level is known."""
        return len(self.usual) > 0

    @property
    def has_drifted(self) -> Bools:
        drifted: Bools = np.abs(self.score) > 1
        return drifted

    @property
    def is_back(self) -> Bools:
        back: Bools = np.abs(self.score) < BACK
        return back

    def observe(self, row: int, readings: Floats) -> None:
        """Take in the readings (n,) of a row; rows come in order."""
        hour = row * self.step // self.span
        if hour != self.hour:
            if self.hour >= 0:
                self._complete(hour)
            self.hour = hour
        there = np.isfinite(readings)
        self.sum += np.where(there, readings, 0.0)
        self.count += there

    def _complete(self, hour: int) -> None:
        """An hour is over, and another one begins."""
        enough = self.count >= max(1.0, 0.5 * self.span / self.step)
        mean = np.where(enough, self.sum / np.maximum(self.count, 1), np.nan)
        self.sum, self.count = np.zeros_like(self.sum), np.zeros_like(self.count)
        passed = min(hour - self.hour, FIRST_HOURS)
        if not self.is_ready:
            if self.first_hour < 0:
                self.first_hour = self.hour
            nothing = np.full((passed - 1, len(mean)), np.nan)
            self.first = np.concatenate([self.first, mean[None], nothing])
            if len(self.first) >= FIRST_HOURS and not self.holding:
                self._learn_usual()
            return
        self._add(self.hour, mean)
        for skipped in range(self.hour + 1, self.hour + passed):
            self._add(skipped, np.full_like(mean, np.nan))
        self.distance, scores = self._distance(self.recent[None])
        self.score = scores[0] / self.limit

    def _add(self, hour: int, mean: Floats) -> None:
        self.recent[hour % RECENT_HOURS] = mean - self.usual[self._of_day(hour)]

    def _of_day(self, hour: int) -> int:
        return hour * self.span // HOUR % HOURS

    def _learn_usual(self) -> None:
        """What the first hours have shown: the level of each hour of the day, and how far two days are from
        it."""
        first = self.first
        hours = np.array([self._of_day(self.first_hour + place) for place in range(len(first))])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # an hour without any reading
            self.usual = np.stack([np.nanmedian(first[hours == hour], axis=0) for hour in range(HOURS)])
            apart = first - self.usual[hours]
            spread = np.nanstd(apart, axis=0)
        self.spread = np.where(spread > 0, spread, np.inf)  # of a sensor that stood still nothing is known
        windows = np.lib.stride_tricks.sliding_window_view(apart, RECENT_HOURS, axis=0)  # (k n hours)
        _, scores = self._distance(np.moveaxis(windows, 2, 1))
        self.limit = np.maximum(FURTHER * np.abs(scores).max(axis=0), LEAST_DISTANCE)
        for place in range(len(first) - RECENT_HOURS, len(first)):
            self.recent[(self.first_hour + place) % RECENT_HOURS] = apart[place]
        self.first = first[:0]

    def _distance(self, hours: Floats) -> tuple[Floats, Floats]:
        """(k hours n) -> (n,), (k n): how far the last of k spans of hours lies from the usual level in the
        readings' unit, and all of them in multiples of the spread; zero while too few hours are known."""
        known = np.isfinite(hours).sum(axis=1) >= RECENT_HOURS // 2
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            middle = np.where(known, np.nanmedian(hours, axis=1), np.nan) / self.spread  # (k n)
            common = np.nanmedian(middle, axis=1, keepdims=True)
        with_others = np.isfinite(middle).sum(axis=1, keepdims=True) > FEWEST_OTHERS
        scores = np.nan_to_num(middle - np.where(with_others, common, 0.0))
        distance = scores[-1] * np.where(np.isfinite(self.spread), self.spread, 0.0)
        return distance, scores

    # ---- keeping ------------------------------------------------------------------------------------

    def state(self) -> dict[str, npt.NDArray[Any]]:
        arrays = {name: array.copy() for name, array in vars(self).items() if isinstance(array, np.ndarray)}
        return arrays | {name: np.array(getattr(self, name)) for name in self.NUMBERS}

    def load(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        for name, array in state.items():
            setattr(self, name, int(array) if name in self.NUMBERS else np.array(array))
