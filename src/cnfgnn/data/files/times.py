"""Read times as people write them: ISO 8601, day or month first, in one column or two, in any time zone."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field, replace
from datetime import tzinfo
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from pandas.api.types import is_datetime64_any_dtype

from cnfgnn.config.settings import Dates
from cnfgnn.data.files.text import shown
from cnfgnn.data.options import ReadingOptions
from cnfgnn.data.refusals import FutureTime, Refusals
from cnfgnn.errors import DataError

Times = npt.NDArray[np.datetime64]
Ints = npt.NDArray[np.int64]

ISO_TIME = re.compile(
    r"\d{4}([-/])\d\d\1\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(Z|[+-]\d\d(?::?\d\d)?)?)?", re.A
)
CLOCK = r"(\d{1,2}):(\d\d(?::\d\d(?:\.\d+)?)?)(?: ?([AaPp])\.?[Mm]\.?)?"
NUMBERED = re.compile(  # three numbers, year first or last; unlike ISO 8601, one digit may do for two
    rf"(\d{{1,2}}|\d{{4}})([-/.])(\d{{1,2}})\2(\d{{4}}|\d{{1,2}})"
    rf"(?:(?:T| |, ?){CLOCK} ?(Z|[+-]\d\d(?::?\d\d)?)?)?",
    re.A,
)
CLOCK_ALONE = re.compile(CLOCK, re.A)
EARLIEST, LATEST = np.datetime64("1800-01-01", "s"), np.datetime64("2200-01-01", "s")
EXAMPLE = "2024-01-31 08:05"
STEPS_BEFORE = 100  # rows that tell how far apart rows are


class RepeatedHour(DataError):
    """A time that clocks show twice, and the rows before it do not tell which of the two is meant."""


@dataclass(frozen=True)
class RowLocations:
    """Where the rows of a table are in its file, for messages: by line in text, otherwise counted from 1.

    refusals  notes rows that are refused, and left out; without it, the first of them is an error
    text_of   the line of this number
    chosen    numbers of the lines whose rows are wanted; None: all
    """

    path: Path
    line_of: Callable[[int], int] | None = None
    refusals: Refusals | None = None
    text_of: Callable[[int], bytes] | None = None
    chosen: Container[int] | None = None
    left_out: set[int] = field(default_factory=set)

    def at(self, rows: Sequence[int] | Ints) -> RowLocations:
        """The places of some of the rows, which have new numbers from 0 on."""
        line_of = self.line_of
        return replace(
            self, line_of=None if line_of is None else lambda row: line_of(int(rows[row])), left_out=set()
        )

    def kept(self, count: int) -> npt.NDArray[np.bool_]:
        """Which of so many rows are not left out, and in a line that was chosen."""
        kept = np.ones(count, dtype=np.bool_)
        kept[list(self.left_out)] = False
        if self.chosen is not None and self.line_of is not None:
            kept &= [self.line_of(row) in self.chosen for row in range(count)]
        return kept

    def describe(self, row: int) -> str:
        """For example "line 7"."""
        return f"row {row + 1}" if self.line_of is None else f"line {self.line_of(row)}"

    def error(self, problem: str, row: int, column: str | None = None) -> DataError:
        """An error at a row of the table."""
        if self.line_of is None:
            return DataError(self.path, problem, row=row + 1, column=column)
        return DataError(self.path, problem, line=self.line_of(row), column=column)

    def refuse(self, problem: str, row: int, column: str | None = None) -> None:
        """Leave a row out, if rows may be refused; otherwise this is an error."""
        self.leave_out(self.error(problem, row, column), row)

    def leave_out(self, error: DataError, row: int) -> None:
        """The same, for an error at a row."""
        if self.refusals is None:
            raise error
        if row in self.left_out:
            return
        self.left_out.add(row)
        if error.line is None or self.text_of is None:
            self.refusals.note(error)
        elif self.chosen is None or error.line in self.chosen:
            self.refusals.note(error, self.text_of(error.line))


class Column(NamedTuple):
    """A column of times: its name, its cells, and the first row in which each cell occurs."""

    name: str
    cells: pd.Index[Any]
    rows: Sequence[int] | Ints


class Moments(NamedTuple):
    """Times in seconds, whether they are UTC (otherwise their zone is unknown), and what was detected."""

    times: Times
    utc: bool
    notes: tuple[str, ...]


def is_time(text: str) -> bool:
    """Whether a text looks like a day, with or without a clock time."""
    return _numbered(text.strip()) is not None


def is_day(text: str) -> bool:
    """Whether a text looks like a day without a clock time."""
    match = _numbered(text.strip())
    return match is not None and match[5] is None


def is_clock(text: str) -> bool:
    """Whether a text looks like a clock time without a day."""
    return CLOCK_ALONE.fullmatch(text.strip()) is not None


def read_times(column: Column, options: ReadingOptions, locations: RowLocations) -> Moments:
    """The times of a column; times with an offset are converted to UTC."""
    notes: tuple[str, ...] = ()
    if is_datetime64_any_dtype(column.cells.dtype):
        stamps = pd.DatetimeIndex(column.cells)
        utc = stamps.tz is not None
        exact = (stamps.tz_convert("UTC").tz_localize(None) if utc else stamps).to_numpy()
    else:
        plain, utc, notes = _as_iso(column, options, locations)
        stamps = pd.DatetimeIndex(pd.to_datetime(plain, format="ISO8601", utc=True, errors="coerce"))
        exact = stamps.tz_localize(None).to_numpy()
    seconds: Times = exact.astype("datetime64[s]")
    valid = (seconds >= EARLIEST) & (seconds < LATEST)
    if not valid.all():
        row = int(np.argmin(valid))
        problem = f"{shown(column.cells[row])} is not a time between 1800 and 2199"
        raise locations.error(problem, int(column.rows[row]), column.name)
    order = np.argsort(exact, kind="stable")
    merged = np.diff(exact[order]).astype(np.int64).astype(bool) & (np.diff(seconds[order]).astype(int) == 0)
    if merged.any():
        row = int(order[int(np.argmax(merged)) + 1])
        raise locations.error(
            "time steps of less than a second are not supported", int(column.rows[row]), column.name
        )
    if utc and options.timezone:
        notes += (f"times have an offset from UTC, so that {options.key('timezone')} is not used",)
    return Moments(seconds, utc, notes)


def readable(column: Column, options: ReadingOptions, locations: RowLocations) -> npt.NDArray[np.bool_]:
    """Which cells of a column are times in the format of most of them; the others are mistakes."""
    texts = [str(cell).strip() for cell in column.cells]
    formats = [_format(text, options) for text in texts]
    kinds = Counter(found[:2] for found in formats if found)
    if not kinds:
        return np.zeros(len(texts), dtype=np.bool_)
    [(usual, _)] = kinds.most_common(1)
    orders = Counter(found[2] for found in formats if found and found[:2] == usual and found[2] is not None)
    order = {None, *(order for order, _ in orders.most_common(1))}
    good = np.array([found is not None and found[:2] == usual and found[2] in order for found in formats])
    rows = np.flatnonzero(good)
    plain, _, _ = _as_iso(Column(column.name, column.cells[rows], rows), options, locations)
    seconds = pd.DatetimeIndex(pd.to_datetime(plain, format="ISO8601", utc=True, errors="coerce"))
    moments = seconds.tz_localize(None).to_numpy().astype("datetime64[s]")
    good[rows] = (moments >= EARLIEST) & (moments < LATEST)
    return good


def _format(text: str, options: ReadingOptions) -> tuple[bool, bool, bool | None] | None:
    """Whether a time begins with the year, has an offset, and has the day before the month, if that is
    certain; None if it is no time."""
    if match := ISO_TIME.fullmatch(text):
        return True, match[2] is not None, True
    if (match := _numbered(text)) is None:
        return None
    if _year_is_first(match):
        return True, match[8] is not None, True
    first, second = int(match[1]) > 12, int(match[3]) > 12
    wanted = None if options.dates == "auto" else options.dates == "day-first"
    if (first and second) or (wanted is not None and (second if wanted else first)):
        return None
    return False, match[8] is not None, first if first or second else wanted


def _numbered(text: str) -> re.Match[str] | None:
    """Match a day of three numbers, exactly one of which has four digits, with or without a clock time."""
    match = NUMBERED.fullmatch(text)
    return match if match and (len(match[1]) == 4) != (len(match[4]) == 4) else None


def _as_iso(
    column: Column, options: ReadingOptions, locations: RowLocations
) -> tuple[list[str], bool, tuple[str, ...]]:
    """Texts as ISO 8601, whether they have an offset from UTC, and what was detected."""
    texts = [str(cell).strip() for cell in column.cells]

    def wrong(problem: str, row: int) -> DataError:
        return locations.error(problem, int(column.rows[row]), column.name)

    notes: tuple[str, ...] = ()
    found = [ISO_TIME.fullmatch(text) for text in texts]
    if all(found):
        offsets = [match[2] for match in found if match]
        plain = [text.replace("/", "-") for text in texts]
    else:
        matches: list[re.Match[str]] = []
        for row, text in enumerate(texts):
            if (match := _numbered(text)) is None:
                raise wrong(f"{shown(text)} is not a time like {EXAMPLE}", row)
            matches.append(match)
            if _year_is_first(match) != _year_is_first(matches[0]):
                raise wrong(f"{shown(text)} is not in the same format as {shown(texts[0])} above", row)
        plain, notes = _reordered(
            matches, options, wrong, lambda row: locations.describe(int(column.rows[row]))
        )
        offsets = [match[8] for match in matches]
    for row, offset in enumerate(offsets):
        if (offset is None) != (offsets[0] is None):
            raise wrong("some times have an offset from UTC, others do not", row)
    return plain, bool(offsets and offsets[0]), notes


def _year_is_first(match: re.Match[str]) -> bool:
    return len(match[1]) == 4


def _reordered(
    matches: Sequence[re.Match[str]],
    options: ReadingOptions,
    wrong: Callable[[str, int], DataError],
    place: Callable[[int], str],
) -> tuple[list[str], tuple[str, ...]]:
    """Year, month, day and clock time in this order, from whatever order a whole column is written in."""
    if _year_is_first(matches[0]):
        dates = [(match[1], match[3], match[4]) for match in matches]
        notes: tuple[str, ...] = ()
    else:
        first_is_day, notes = _first_is_day(matches, options, wrong, place)
        dates = [
            (match[4], match[3], match[1]) if first_is_day else (match[4], match[1], match[3])
            for match in matches
        ]
    return [
        f"{year}-{month:0>2}-{day:0>2}{_clock(match)}"
        for (year, month, day), match in zip(dates, matches, strict=True)
    ], notes


def _clock(match: re.Match[str]) -> str:
    """The clock time and offset of a match as ISO 8601 has them; 12 AM is the hour 0."""
    hour, rest, half, offset = match[5], match[6], match[7], match[8]
    if hour is None:
        return ""
    if half is not None:
        if not 1 <= int(hour) <= 12:
            return " no such hour"
        hour = str(int(hour) % 12 + (12 if half in "pP" else 0))
    return f" {hour:0>2}:{rest}{offset or ''}"


def _first_is_day(
    matches: Sequence[re.Match[str]],
    options: ReadingOptions,
    wrong: Callable[[str, int], DataError],
    place: Callable[[int], str],
) -> tuple[bool, tuple[str, ...]]:
    """Whether 01/02/2024 is in February: one number above 12 decides for the whole column."""
    pairs = np.array([[int(match[1]), int(match[3])] for match in matches])
    above = pairs > 12
    decisive = [int(np.argmax(above[:, k])) if above[:, k].any() else None for k in (0, 1)]
    day_first, month_first = decisive
    whole = [match.string for match in matches]
    if options.dates != "auto":
        other = month_first if options.dates == "day-first" else day_first
        if other is not None:
            problem = f"{shown(whole[other])} is not {options.dates}, although {options.key('dates')} says so"
            raise wrong(problem, other)
        return options.dates == "day-first", (f"dates are {options.dates}, as {options.key('dates')} says",)
    if day_first is not None and month_first is not None:
        later, earlier = max(day_first, month_first), min(day_first, month_first)
        problem = f"{shown(whole[later])} and {shown(whole[earlier])} in {place(earlier)} have day and month"
        raise wrong(f"{problem} in different orders: use one order in the whole column", later)
    shows = month_first if day_first is None else day_first
    if shows is not None:
        found: Dates = "month-first" if day_first is None else "day-first"
        if options.refusals is not None:
            options.refusals.dates = found
            options.refusals.decisive = len(np.unique(pairs[above.any(axis=1)], axis=0))
        return day_first is not None, (f"dates are {found}, as {shown(whole[shows])} shows",)
    unclear = np.flatnonzero(pairs[:, 0] != pairs[:, 1])
    if len(unclear):
        ways = f"{options.hint('dates', 'day-first')} or {options.hint('dates', 'month-first')}"
        problem = f"{shown(whole[unclear[0]])} and all other dates could be day-first or month-first"
        raise wrong(f"{problem}: decide with {ways}", int(unclear[0]))
    return True, ()  # only dates such as 01/01/2024, which are the same either way


def clock_to_utc(
    times: Times,
    zone: tzinfo,
    column: str,
    options: ReadingOptions,
    locations: RowLocations,
    series: Ints | None = None,
) -> tuple[Times, str]:
    """Convert local times of a zone to UTC, row by row; also returns a note on what was done.

    When clocks are set back, an hour occurs twice. The order of the rows then tells which of two equal times
    is the earlier. `series` is the number of each row's sensor, if every sensor has its own sequence of rows.
    The rows before a row decide, and never those after it: rows that are added to a file later change no time
    before them, as the blurred copy of a reading belongs to its time.
    """
    clock = pd.DatetimeIndex(times)
    one, other = (
        clock.tz_localize(zone, ambiguous=np.full(len(clock), flag), nonexistent="NaT")
        for flag in (True, False)
    )
    gone = np.asarray(one.isna())
    for row in np.flatnonzero(gone).tolist():
        standard = _standard_offset(clock[row], zone)
        problem = f"{clock[row]} does not exist in {options.timezone}, where summer time begins then"
        remedy = f"if these clocks are never changed, set {options.hint('timezone', standard)}"
        locations.refuse(f"{problem}; {remedy}", row, column)
    instants = [
        stamps.tz_convert("UTC").tz_localize(None).to_numpy("datetime64[s]") for stamps in (one, other)
    ]
    early, late = np.minimum(*instants), np.maximum(*instants)
    twice = (early != late) & ~gone
    note = f"local times of {options.timezone} were converted to UTC"
    if not twice.any():
        return early, note
    chosen = early.copy()
    groups = np.zeros(len(times), dtype=np.int64) if series is None else series
    by_group = np.argsort(groups, kind="stable")
    by_group = by_group[~gone[by_group]]
    for rows in np.split(by_group, np.flatnonzero(np.diff(groups[by_group])) + 1):
        if twice[rows].any():
            _in_sequence(rows, early, late, chosen, locations, column)
    return chosen, f"{note}; times that occur twice were told apart by the order of the rows"


def _standard_offset(moment: pd.Timestamp, zone: tzinfo) -> str:
    """The zone's offset from UTC, like +01:00, before clocks are put forward at `moment`."""
    before = (moment - pd.Timedelta(days=1)).tz_localize(zone, ambiguous=True, nonexistent="shift_backward")
    return before.strftime("%z")[:3] + ":" + before.strftime("%z")[3:5]


def refuse_future(times: Times, utc: bool, column: str, locations: RowLocations) -> None:
    """Refuse rows whose time has not come yet, if it is known which have not."""
    refusals = locations.refusals
    if refusals is None or refusals.latest is None:
        return
    steps, counts = np.unique(np.diff(np.unique(times)).astype(np.int64), return_counts=True)
    usual = int(steps[np.argmax(counts)]) if len(steps) else 0
    latest = refusals.latest(refusals.step or usual, utc)
    for row in np.flatnonzero(times.astype(np.int64) > latest).tolist():
        place = locations.error("", row, column)
        moment = str(times[row]).replace("T", " ")
        problem = f"{moment} has not come yet, so it is left out: check the times and this machine's clock"
        error = FutureTime(locations.path, problem, line=place.line, column=column)
        error.due = int(times[row].astype(np.int64)), utc
        locations.leave_out(error, row)


def occur_twice(times: Times, zone: tzinfo) -> npt.NDArray[np.bool_]:
    """Which of these times, in UTC, are in an hour that the clocks of a zone show twice."""
    clock = pd.DatetimeIndex(times, tz="UTC").tz_convert(zone).tz_localize(None)
    return np.asarray(clock.tz_localize(zone, ambiguous="NaT").isna())


def _usual_step(apart: Ints) -> float:
    """The seconds between most rows; 0 if that is not known."""
    apart = apart[apart > 0]
    return float(np.median(apart)) if len(apart) else 0.0


def _in_sequence(
    rows: Ints, early: Times, late: Times, chosen: Times, locations: RowLocations, column: str
) -> None:
    """Choose between the early and the late time for the rows of one sensor, which must be in sequence."""
    unsure = early[rows] != late[rows]
    steps = np.diff(early[rows[~unsure]]).astype(np.int64)
    if locations.refusals is None and (steps < 0).any() and (steps > 0).any():
        first = locations.describe(int(rows[unsure][0]))
        problem = f"{first} is in an hour that occurs twice, and the rows are not in sequence"
        raise DataError(locations.path, f"{problem}: sort them, or add the offset from UTC ({EXAMPLE}+01:00)")
    if early[rows[0]] > late[rows[-1]]:  # from the latest to the earliest
        rows, unsure = rows[::-1], unsure[::-1]
    first_sure = int(np.argmin(unsure)) if not unsure.all() else len(rows)
    for row in rows[:first_sure].tolist():
        problem = f"{locations.describe(row)} is in an hour that occurs twice, and no row before it"
        remedy = f"begin with an earlier row, or add the offset from UTC ({EXAMPLE}+01:00)"
        problem = f"{problem} tells which of the two is meant: {remedy}"
        error = RepeatedHour(locations.path, problem)
        error.line = locations.error("", row).line
        locations.leave_out(error, row)
    rows, unsure = rows[first_sure:], unsure[first_sure:]
    apart = np.abs(np.diff(early[rows]).astype(np.int64))
    for k in np.flatnonzero(unsure).tolist():
        row, before = rows[k], next(one for one in rows[:k][::-1] if int(one) not in locations.left_out)
        step = _usual_step(apart[max(0, k - STEPS_BEFORE) : k])
        since = [int((choice - chosen[before]).astype(np.int64)) for choice in (early[row], late[row])]
        if since[0] > 0:
            if since[0] != step and since[1] == step:  # it occurs once, and only the late time is one step on
                chosen[row] = late[row]
            continue
        if early[row] == early[before] and step < (late[row] - early[row]).astype(np.int64):
            chosen[row] = chosen[before]  # a repeated row: the hour itself has more rows
        elif since[1] >= 0:
            chosen[row] = late[row]
        else:
            problem = "this hour occurs twice, and the rows are not in sequence here: sort them"
            line = locations.error(problem, int(row)).line
            locations.leave_out(RepeatedHour(locations.path, problem, line=line, column=column), int(row))
