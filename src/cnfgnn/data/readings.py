"""What the sensors measured: one value per time and sensor, and which of them are missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cnfgnn.errors import DataError

if TYPE_CHECKING:
    from cnfgnn.data.inputs import Input
    from cnfgnn.data.refusals import KnownSteps, Refusals

DAY = np.timedelta64(86_400, "s")
UNNAMED = "readings"  # the name of a variable that its file does not name
SMALLEST_CLUSTER = 100  # rows: a smaller group that lies far from the rest is probably a mistake
MOST_KNOWN = 1_000_000  # rows: no gap between readings is longer
LARGEST = 1e12  # a larger reading would dominate the scale of all others
SURE = 10  # rows that follow another one after the same time: fewer may have gaps between them


@dataclass(frozen=True, eq=False)
class Readings:
    """Readings of n sensors at T times, as they are in the file.

    times      (T,)    datetime64[s], strictly increasing
    ids        n       sensor ids, unique strings
    values     (T, n)  float32; NaN where there is no number
    missing    (T, n)  bool; True where there is no number, or where the number means "no reading" (zero in
                       METR-LA and PEMS-BAY)
    positions  (n, 2)  latitude and longitude in degrees, or None
    source             where they come from, for messages
    utc                True if times are UTC; False if their time zone is unknown
    notes              what was detected while reading: the dialect of the file, rows sorted or left out
    others             further inputs: other variables of the sensors, and covariates that are known ahead
    variable           the name of what is measured, if a file names it
    """

    times: npt.NDArray[np.datetime64]
    ids: tuple[str, ...]
    values: npt.NDArray[np.float32]
    missing: npt.NDArray[np.bool_]
    positions: npt.NDArray[np.float64] | None = None
    source: str = "readings"
    utc: bool = False
    notes: tuple[str, ...] = ()
    others: tuple[Input, ...] = ()
    variable: str = UNNAMED

    def __post_init__(self) -> None:
        rows, columns = self.values.shape
        if rows == 0 or columns == 0:
            raise DataError(self.source, "holds no readings")
        if self.times.shape != (rows,) or len(self.ids) != columns:
            raise DataError(
                self.source,
                f"{rows} x {columns} values do not match {len(self.times)} times and {len(self.ids)} sensors",
            )
        if self.missing.shape != self.values.shape:
            raise DataError(self.source, "the mask of missing readings must have the shape of the values")
        object.__setattr__(self, "missing", self.missing | np.isnan(self.values))  # NaN is always missing
        if self.positions is not None and self.positions.shape != (columns, 2):
            raise DataError(self.source, f"{len(self.positions)} positions for {columns} sensors")
        self._check_ids()
        self._check_times()
        if (np.abs(self.values) > LARGEST).any():
            row, column = np.argwhere(np.abs(self.values) > LARGEST)[0]
            raise DataError(
                self.source,
                f"a reading beyond {LARGEST:g} is not plausible: correct it or empty the cell",
                row=str(self.times[row]),
                column=self.ids[column],
            )

    def _check_ids(self) -> None:
        seen: set[str] = set()
        for sensor in self.ids:
            if sensor in seen:
                raise DataError(self.source, "this sensor id occurs twice", column=sensor)
            seen.add(sensor)

    def _check_times(self) -> None:
        steps = np.diff(self.seconds)
        if (steps <= 0).any():
            row = int(np.argmax(steps <= 0)) + 1
            kind = "this time occurs twice" if steps[row - 1] == 0 else "times are not in ascending order"
            raise DataError(self.source, kind, row=str(self.times[row]))

    @property
    def step(self) -> np.timedelta64:
        """The time between two readings; the most frequent one if rows are missing."""
        if len(self.times) < 2:
            raise DataError(self.source, "needs at least two rows: a single one has no time step")
        steps, counts = np.unique(np.diff(self.times), return_counts=True)
        step: np.timedelta64 = steps[np.argmax(counts)]
        return step

    @property
    def step_seconds(self) -> int:
        return int(self.step.astype("timedelta64[s]").astype(np.int64))

    @property
    def seconds(self) -> npt.NDArray[np.int64]:
        """(T,) the times in seconds since 1970."""
        return self.times.astype("datetime64[s]").astype(np.int64)

    @property
    def time_of_day(self) -> npt.NDArray[np.float64]:
        """(T,) in [0, 1): the fraction of the day that has passed."""
        seconds = (self.times - self.times.astype("datetime64[D]")).astype("timedelta64[s]")
        share: npt.NDArray[np.float64] = seconds.astype(np.float64) / DAY.astype(np.float64)
        return share

    @property
    def weekday(self) -> npt.NDArray[np.int64]:
        """(T,) 0 to 6, Monday first."""
        return weekday(self.seconds)

    def select(self, ids: Sequence[str]) -> Readings:
        """The readings of some sensors, in the order asked for."""
        position = {sensor: column for column, sensor in enumerate(self.ids)}
        unknown = [sensor for sensor in ids if sensor not in position]
        if unknown:
            raise DataError(self.source, "there is no sensor of that name", column=unknown[0])
        columns = [position[sensor] for sensor in ids]
        return replace(
            self,
            ids=tuple(ids),
            values=np.ascontiguousarray(self.values[:, columns]),
            missing=np.ascontiguousarray(self.missing[:, columns]),
            positions=None if self.positions is None else self.positions[columns],
            others=tuple(one.select(ids) for one in self.others),
        )

    def between_steps(self, step: int) -> int | None:
        """The first row that is not a whole number of steps after the first one, if any."""
        off = (self.seconds - self.seconds[0]) % step != 0
        return int(np.argmax(off)) if off.any() else None

    def step_if_sure(self, otherwise: int | None) -> int:
        """The time step in seconds; another one, if it is given and the rows are too few to tell."""
        apart, counts = np.unique(np.diff(self.seconds), return_counts=True)
        if otherwise is not None and (not len(apart) or counts.max() < SURE):
            return otherwise
        return self.step_seconds

    def on_nearest_grid(self, refusals: Refusals, known: KnownSteps | None = None) -> Readings:
        """The same with a row for every time step, as a live service counts readings: each at the step that
        is nearest to its time. Rows that are far from all others are left out, and named."""
        seconds = self.seconds
        step = self.step_if_sure(refusals.step) if known is None else known.step
        offsets, counts = np.unique(seconds % step, return_counts=True)
        phase = offsets[np.argmax(counts)] if refusals.phase is None else refusals.phase % step
        rows = np.rint((seconds - phase) / step).astype(np.int64)
        far = isolated_rows(rows) if known is None else _isolated_after(rows, known)

        def note(_: np.datetime64, problem: str) -> None:
            refusals.note(DataError(self.source, problem))

        for time in self.times[far]:
            moment = str(time.astype("datetime64[s]")).replace("T", " ")
            problem = f"{moment} is far from all other rows, so it is left out: check its time"
            refusals.refuse_at.get(self.source, note)(time, problem)
        refusals.refuse_at.clear()  # they hold the files
        rows, values, missing = rows[~far], self.values[~far], self.missing[~far]
        kept, values, missing = last_of_each(rows, values, missing)
        times = (step * kept + phase).astype("datetime64[s]")
        found = replace(self, times=times, values=values, missing=missing).on_grid(step, known)
        return with_rows_before(found, 2, step)  # which tell the step

    def on_known_grid(self, known: KnownSteps) -> Readings:
        """The same with a row for every time step. Up to the last of the known steps, rows that are at none
        of them are left out, and which of the others are there does not decide whether this is refused."""
        seconds, step = self.seconds, known.step
        later, off = seconds > known.last, (seconds - known.phase) % step != 0
        if (wrong := later & off & ~self.missing.all(axis=1)).any():
            raise self._off_grid(step, int(np.argmax(wrong)))
        rows = rows_of(self, ~off & (later | (seconds >= known.first)))
        return with_rows_before(rows.on_grid(step, known), 2, step)  # which tell the step

    def on_grid(self, step: int | None = None, known: KnownSteps | None = None) -> Readings:
        """The same readings with a row for every time step; added rows are missing. They may be a hundred
        times as many as there are rows, or would be if all `known` steps had one."""
        step, seconds = step or self.step_seconds, self.seconds
        if (row := self.between_steps(step)) is not None:
            raise self._off_grid(step, row)
        rows = (seconds - seconds[0]) // step
        total = int(rows[-1]) + 1
        count, span = len(seconds), total
        if known is not None:
            count = (known.last - known.first) // step + 1 + int((seconds > known.last).sum())
            span = (int(seconds[-1]) - known.first) // step + 1
        if span > 100 * count:
            problem = f"{count} rows are too few for a span of {span} steps of {step} s"
            raise DataError(self.source, problem)
        if total == len(seconds):
            return self
        values = np.full((total, len(self.ids)), np.nan, dtype=np.float32)
        missing = np.ones((total, len(self.ids)), dtype=np.bool_)
        values[rows], missing[rows] = self.values, self.missing
        times = (seconds[0] + step * np.arange(total)).astype("datetime64[s]")
        return replace(self, times=times, values=values, missing=missing)

    def _off_grid(self, step: int, row: int) -> DataError:
        problem = f"this time is off the grid of {step} s steps"
        return DataError(self.source, problem, row=str(self.times[row]))


def isolated_rows(rows: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Which of these row numbers, in ascending order, are too few and too far from the rest to be right.

    Split the rows at the longest gap. The smaller part is isolated if it has fewer than `SMALLEST_CLUSTER`
    rows and the gap is longer than the number of rows in the larger part. Repeat with the larger part.
    """
    kept = np.arange(len(rows))
    while len(kept) > 1:
        gaps = np.diff(rows[kept]) - 1
        split = int(np.argmax(gaps)) + 1
        smaller, larger = kept[:split], kept[split:]
        if len(smaller) > len(larger):
            smaller, larger = larger, smaller
        if gaps[split - 1] <= len(larger) or len(smaller) >= SMALLEST_CLUSTER:
            break
        kept = larger
    isolated = np.ones(len(rows), dtype=np.bool_)
    isolated[kept] = False
    return isolated


def _isolated_after(rows: npt.NDArray[np.int64], known: KnownSteps) -> npt.NDArray[np.bool_]:
    """The same as if all known steps had a row, up to their last one; rows before the first are isolated."""
    first, last = ((time - known.phase) // known.step for time in (known.first, known.last))
    before = np.arange(max(first, last - MOST_KNOWN), last + 1)
    isolated, later = rows < first, rows > last
    isolated[later] = isolated_rows(np.concatenate([before, rows[later]]))[len(before) :]
    return isolated


def last_of_each(
    rows: npt.NDArray[Any], values: npt.NDArray[np.float32], missing: npt.NDArray[np.bool_] | None = None
) -> tuple[npt.NDArray[Any], npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
    """Rows in ascending order, each once: of several, the last reading of each sensor counts."""
    kept, firsts = np.unique(rows, return_index=True)
    missing = np.isnan(values) if missing is None else missing
    if len(kept) == len(rows):
        return kept, values, missing
    newest, is_missing = values[firsts], missing[firsts]
    for again in np.flatnonzero(rows[1:] == rows[:-1]) + 1:
        place, there = int(np.searchsorted(kept, rows[again])), ~np.isnan(values[again])
        newest[place, there], is_missing[place, there] = values[again, there], missing[again, there]
    return kept, newest, is_missing


def weekday(seconds: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """0 to 6, Monday first, of seconds since 1970, which began on a Thursday."""
    return (seconds // int(DAY.astype(int)) + 3) % 7


def rows_of(readings: Readings, rows: slice | npt.NDArray[np.int64] | npt.NDArray[np.bool_]) -> Readings:
    """Some rows of readings; further inputs have times of their own and stay as they are."""
    return replace(
        readings,
        times=readings.times[rows],
        values=readings.values[rows],
        missing=readings.missing[rows],
    )


def last_rows(readings: Readings, count: int) -> Readings:
    """The newest rows of readings."""
    if len(readings.times) <= count:
        return readings
    return rows_of(readings, slice(len(readings.times) - count, None))


def with_rows_before(readings: Readings, count: int, step: int) -> Readings:
    """At least so many rows, a `step` in seconds apart; added rows are missing."""
    added = count - len(readings.times)
    if added <= 0:
        return readings
    times = (readings.seconds[0] - step * np.arange(added, 0, -1)).astype("datetime64[s]")
    nothing = np.full((added, len(readings.ids)), np.nan, dtype=np.float32)
    return replace(
        readings,
        times=np.concatenate([times, readings.times.astype("datetime64[s]")]),
        values=np.concatenate([nothing, readings.values]),
        missing=np.concatenate([np.isnan(nothing), readings.missing]),
    )


def columns_of(readings: Readings, ids: Sequence[str]) -> Readings:
    """The readings and further inputs of these sensors, in this order; NaN for those that are not there, and
    then without positions."""
    place = {sensor: column for column, sensor in enumerate(readings.ids)}
    columns = np.array([place.get(sensor, -1) for sensor in ids], dtype=np.int64)
    if (columns >= 0).all():
        return readings.select(ids)
    unknown = columns < 0
    values, missing = readings.values[:, columns], readings.missing[:, columns]
    values[:, unknown], missing[:, unknown] = np.nan, True
    others = tuple(
        one if one.for_all else replace(one, readings=columns_of(one.readings, ids))
        for one in readings.others
    )
    return replace(readings, ids=tuple(ids), values=values, missing=missing, positions=None, others=others)
