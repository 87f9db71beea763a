"""How good forecasts have been of late, and which sensors need somebody to look at them.

Errors, coverage and skill are those of the last day. Alarms follow a handful of rules, which docs/live.md
lists: a sensor is silent, is frozen, or has drifted; and forecasts as a whole are worse than the last value,
or leave too many readings outside their ranges.

Rows are numbers of time steps since 1970, and -1 stands for none; n sensors, t steps ahead, w rows that count
as a day. Memory does not grow with time. The state is a dictionary of arrays, and what follows from a state
and the steps after it is always the same, so that a restarted service watches on as if nothing had happened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cnfgnn.live.forecasting.drift import DriftWatch

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

LEVELS = (80, 95)  # per cent: the ranges that go out
DAY = 86_400  # seconds: errors of this time count
LEAST_ROWS, MOST_ROWS = 12, 2016  # of a day
LEAST_COUNT = 24  # forecasts that a number rests on at least
LEAST_RUN = 12  # equal readings in a row that may be a frozen sensor ...
LONGER_RUN = 2  # ... and how many times as long as ever before
LOW_COVERAGE = 70.0  # per cent of readings within the ranges of 80 %, over all sensors
LEAST_TIME = 0.75  # of a day that forecasts were judged for, before their skill can raise an alarm: the last
# value is hard to beat in a quiet night, and a service may start in one
BETTER_AGAIN = 0.05  # skill at which the alarm that there is none ends

SUMS = ("count", "squared", "squared_last", *(f"inside_{level}" for level in LEVELS))
KINDS = ("silent", "frozen", "drift")  # of a sensor
OVERALL = ("silent", "skill", "coverage")  # of all sensors together


class Step(NamedTuple):
    """What was known when a forecast was made: everything that is learned from it.

    readings   (n,)  of this row; NaN where there is none that counts
    last       (n,)  the last reading of each sensor, up to this row
    last_row   (n,)  the row of that reading
    forecasts  (n t)  by the model; NaN where it has none
    """

    row: int
    readings: Floats
    last: Floats
    last_row: Ints
    forecasts: Floats


@dataclass(frozen=True)
class Alarm:
    """Something that somebody should look at; `sensor` is None if it is about all of them."""

    sensor: str | None
    kind: str
    since: int  # seconds
    text: str

    def json(self, write: Callable[[float], str]) -> dict[str, Any]:
        return {"sensor": self.sensor, "kind": self.kind, "since": write(self.since), "text": self.text}


@dataclass(frozen=True)
class Numbers:
    """How good forecasts of the last day were; None where too few of them can be judged."""

    count: int
    rmse: float | None
    skill: float | None
    coverage: Mapping[int, float | None]

    @classmethod
    def of(cls, sums: Floats, has_ranges: bool) -> Numbers:
        count, squared, squared_last, *inside = sums.tolist()
        if count < LEAST_COUNT:
            return cls(int(count), None, None, dict.fromkeys(LEVELS))
        rmse, of_last = (squared / count) ** 0.5, (squared_last / count) ** 0.5
        shares = {k: part / count if has_ranges else None for k, part in zip(LEVELS, inside, strict=True)}
        return cls(int(count), rmse, _skill(rmse, of_last), shares)

    def json(self) -> dict[str, Any]:
        shares = {str(level): _rounded(share) for level, share in self.coverage.items()}
        told = {"rmse": _rounded(self.rmse), "skill": _rounded(self.skill)}
        return told | {"coverage": shares, "count": self.count}


@dataclass(frozen=True, eq=False)
class Report:
    """What the watch has seen so far; `sums` (n, SUMS) are those of the last day."""

    ids: tuple[str, ...]
    sums: Floats
    has_ranges: bool
    overall: Numbers
    alarms: tuple[Alarm, ...]

    @cached_property
    def sensors(self) -> Mapping[str, Numbers]:
        """The numbers of each sensor; made when somebody asks for them, not at every step."""
        of = zip(self.ids, self.sums, strict=True)
        return {sensor: Numbers.of(sums, self.has_ranges) for sensor, sums in of}

    def json(self, write: Callable[[float], str]) -> dict[str, Any]:
        """As `GET /watch` answers."""
        texts: dict[str, list[str]] = {}
        for alarm in self.alarms:
            if alarm.sensor is not None:
                texts.setdefault(alarm.sensor, []).append(alarm.text)
        sensors = {sensor: n.json() | {"alarms": texts.get(sensor, [])} for sensor, n in self.sensors.items()}
        alarms = [alarm.json(write) for alarm in self.alarms]
        return {"overall": self.overall.json(), "sensors": sensors, "alarms": alarms}


def seconds_judged(step: int, history: int, horizon: int) -> int:
    """How long after a reading the sums of forecasts depend on it: forecasts are made from a history."""
    return (_rows_of_a_day(step) + history + horizon) * step


def _rows_of_a_day(step: int) -> int:
    return min(max(DAY // step, LEAST_ROWS), MOST_ROWS)


class Watch:
    """Watches n sensors with a reading every `step` seconds, and forecasts of t steps.

    silent_after  steps without a reading after which a sensor is silent
    has_ranges    whether forecasts have ranges, so that there is a coverage
    """

    def __init__(
        self, ids: Sequence[str], horizon: int, step: int, silent_after: int, has_ranges: bool
    ) -> None:
        self.ids, self.step, self.silent_after, self.has_ranges = tuple(ids), step, silent_after, has_ranges
        n, t = len(ids), horizon
        rows = _rows_of_a_day(step)
        self.row = -1  # the last row that was observed
        self.sums = np.zeros((rows, n, len(SUMS)))
        # Forecasts of rows to come, what the last value says of them, and their ranges; by row modulo t, and
        # then by step ahead.
        self.made = np.full((t, t, n), np.nan)
        self.made_last = np.full((t, t, n), np.nan)
        self.bounds = np.full((t, t, len(LEVELS), 2, n), np.nan)
        self.run_value = np.full(n, np.nan)  # the last reading, ...
        self.run_length = np.zeros(n, dtype=np.int64)  # ... how many times in a row it came, ...
        self.run_since = np.full(n, -1, dtype=np.int64)  # ... and since when
        self.longest_run = np.zeros(n, dtype=np.int64)  # until the usual level of each sensor is known
        self.last_row = np.full(n, -1, dtype=np.int64)
        self.drift = DriftWatch(n, step)
        self.since = np.full((len(KINDS), n), -1, dtype=np.int64)  # of alarms
        self.since_overall = np.full(len(OVERALL), -1, dtype=np.int64)

    # ---- what happens -------------------------------------------------------------------------------

    def begin(self, rows: Sequence[int], readings: Floats) -> None:
        """Learn from readings (rows, n) before the first forecast what is usual for each sensor."""
        self.drift.holding = True
        for row, of_row in zip(rows, readings, strict=True):
            self._observe_readings(row, of_row)
        self.drift.holding = False
        self.last_row = np.where(self.run_length > 0, self.last_row, rows[0] if len(rows) else -1)

    def observe(self, step: Step) -> None:
        """Take in the readings of a row, and judge the forecasts that were made for it."""
        self._observe_readings(step.row, step.readings)
        np.maximum(self.last_row, step.last_row, out=self.last_row)  # a reading may have come late
        self._judge(step)
        self._raise_alarms(step.row)

    def issue(self, step: Step, ranges: Mapping[int, Floats]) -> None:
        """Remember the forecasts that were made after a row, and their ranges (2 n t)."""
        t = len(self.made)
        ahead = np.arange(t)
        slots = (step.row + 1 + ahead) % t
        self.made[slots, ahead] = step.forecasts.T
        self.made_last[slots, ahead] = step.last
        for number, level in enumerate(LEVELS):
            if level in ranges:
                self.bounds[slots, ahead, number] = np.moveaxis(ranges[level], -1, 0)

    def _observe_readings(self, row: int, readings: Floats) -> None:
        there = np.isfinite(readings)
        same = there & (readings == self.run_value)
        ended = there & ~same
        if not self.drift.is_ready:  # what has happened until then is usual, unless there was an alarm
            usual = ended & (self.since[KINDS.index("frozen")] < 0)
            self.longest_run = np.where(
                usual, np.maximum(self.longest_run, self.run_length), self.longest_run
            )
        self.run_length = np.where(same, self.run_length + 1, np.where(ended, 1, self.run_length))
        self.run_since = np.where(ended, row, self.run_since)
        self.run_value = np.where(there, readings, self.run_value)
        self.last_row = np.where(there, row, self.last_row)
        self.drift.observe(row, readings)
        self._forget_between(row)
        self.row = row

    def _forget_between(self, row: int) -> None:
        """Forget forecasts of rows that were skipped, and the sums of the same rows a day ago."""
        if self.row < 0 or row <= self.row + 1:
            return
        for skipped in range(max(self.row + 1, row - len(self.made)), row):
            self.made[skipped % len(self.made)] = np.nan
        for skipped in range(max(self.row + 1, row - len(self.sums)), row):
            self.sums[skipped % len(self.sums)] = 0

    def _judge(self, step: Step) -> None:
        """Compare the forecasts of this row with its readings."""
        slot = step.row % len(self.made)
        errors = step.readings - self.made[slot]  # (t n)
        of_last = step.readings - self.made_last[slot]
        known = np.isfinite(errors) & np.isfinite(of_last)
        low, high = self.bounds[slot, :, :, 0], self.bounds[slot, :, :, 1]  # (t l n)
        inside = (step.readings >= low) & (step.readings <= high)
        terms = [known, errors**2, of_last**2, *np.moveaxis(inside, 1, 0)]
        self.sums[step.row % len(self.sums)] = np.stack(
            [np.where(known, term, 0.0).sum(axis=0) for term in terms], axis=-1
        )
        self.made[slot], self.made_last[slot], self.bounds[slot] = np.nan, np.nan, np.nan

    # ---- alarms -------------------------------------------------------------------------------------

    def _raise_alarms(self, row: int) -> None:
        silent, frozen, drift = self.since
        is_silent = row - self.last_row >= self.silent_after
        silent[:] = np.where(is_silent, self.last_row, -1)
        is_frozen = self.run_length >= np.maximum(LEAST_RUN, LONGER_RUN * self.longest_run)
        frozen[:] = np.where(is_frozen, self.run_since, -1)
        _keep(drift, self.drift.has_drifted, self.drift.is_back, row)
        total = self.sums.sum(axis=0)
        some = bool((total[:, 0] >= len(self.sums) * len(self.made) / 4).any())
        numbers = Numbers.of(total.sum(axis=0), self.has_ranges)
        everyone, skill, coverage = (self.since_overall[k : k + 1] for k in range(len(OVERALL)))
        everyone[:] = self.last_row.max() if is_silent.all() else -1
        judged = some and self._time_judged(row) >= LEAST_TIME * len(self.sums)
        known = numbers.skill if judged and numbers.skill is not None else 0.0
        _keep(skill, np.array([known < 0]), np.array([known > BETTER_AGAIN]), row)
        share = numbers.coverage[LEVELS[0]]
        share = 100.0 if share is None or not some else 100 * share
        _keep(coverage, np.array([share < LOW_COVERAGE]), np.array([share > LOW_COVERAGE + 2]), row)

    def _time_judged(self, row: int) -> int:
        """How many rows ago the first forecast of the last day was judged."""
        slots = np.flatnonzero(self.sums[:, :, 0].any(axis=1))
        return int(((row - slots) % len(self.sums)).max(initial=0))

    # ---- what is known ------------------------------------------------------------------------------

    def report(self, write: Callable[[float], str]) -> Report:
        """Numbers and alarms as they are now; `write` writes a time."""
        total = self.sums.sum(axis=0)
        overall = Numbers.of(total.sum(axis=0), self.has_ranges)
        return Report(self.ids, total, self.has_ranges, overall, tuple(self._alarms(overall, write)))

    def _alarms(self, overall: Numbers, write: Callable[[float], str]) -> list[Alarm]:
        found = []
        for kind, row in zip(OVERALL, self.since_overall.tolist(), strict=True):
            if row >= 0:
                text = _overall_sentence(kind, overall, write(row * self.step))
                found.append(Alarm(None, kind, row * self.step, text))
        for number, kind in enumerate(KINDS):
            if kind == "silent" and self.since_overall[0] >= 0:
                continue  # of all of them: once is enough
            for column in np.flatnonzero(self.since[number] >= 0).tolist():
                row = int(self.since[number, column])
                text = self._sentence(kind, column, write(row * self.step))
                found.append(Alarm(self.ids[column], kind, row * self.step, text))
        return found

    def _sentence(self, kind: str, column: int, since: str) -> str:
        if kind == "silent":
            return f"silent since {since}: no reading that can be used"
        if kind == "frozen":
            value, length = self.run_value[column], self.run_length[column]
            return f"frozen since {since}: it has sent {value:.6g} {length} times in a row"
        distance = self.drift.distance[column]
        side = "above" if distance > 0 else "below"
        usual = f"{abs(distance):.3g} {side} what it usually reads at these hours, and the others do not"
        return f"drifted since {since}: its readings of two days lie {usual}"

    # ---- keeping ------------------------------------------------------------------------------------

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """A copy of everything that later reports depend on."""
        kept = {name: array.copy() for name, array in vars(self).items() if isinstance(array, np.ndarray)}
        drift = {f"drift.{name}": array for name, array in self.drift.state().items()}
        return kept | drift | {"row": np.array(self.row)}

    def load(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Go on from a state."""
        self.drift.load({k.removeprefix("drift."): v for k, v in state.items() if k.startswith("drift.")})
        for name in self.state().keys() - {"row"}:
            if not name.startswith("drift."):
                setattr(self, name, np.array(state[name]))
        self.row = int(state["row"])


def _overall_sentence(kind: str, overall: Numbers, since: str) -> str:
    if kind == "silent":
        return f"no sensor has sent a reading since {since}"
    if kind == "skill":
        return f"forecasts have been worse than the last value since {since}"
    share = 100 * (overall.coverage[LEVELS[0]] or 0.0)
    return f"since {since}, only {share:.0f} % of a day's readings lie within their ranges of {LEVELS[0]} %"


def _skill(rmse: float, of_last: float) -> float | None:
    """By which share the smaller error is smaller, from -1 (the last value is perfect) to 1; None if both or
    the last value's are zero. A sensor that hardly changes would have a skill of minus hundreds otherwise."""
    if of_last == 0:
        return None
    return 1 - rmse / of_last if rmse <= of_last else of_last / rmse - 1


def _keep(since: Ints, begins: Bools, ends: Bools, row: int) -> None:
    """Let alarms begin and end: one that goes on keeps the row at which it began."""
    since[:] = np.where(begins & (since < 0), row, np.where(ends, -1, since))


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
