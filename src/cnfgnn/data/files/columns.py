"""Find out which columns of a table hold times, sensor ids and readings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cnfgnn.data.files.text import MISSING, number
from cnfgnn.data.files.times import is_clock, is_day, is_time
from cnfgnn.errors import DataError

TIME_NAMES = frozenset({"time", "timestamp", "date", "datetime"})
ID_NAMES = frozenset(
    {"id", "sensor_id", "sensor", "sensorid", "station", "station_id", "name", "node", "node_id", "detector"}
    | {"detector_id", "device", "device_id", "location"}
)
VALUE_NAMES = frozenset(
    {"value", "values", "val", "reading", "readings", "measurement", "wert", "valeur", "valor"}
)


@dataclass(frozen=True)
class Layout:
    """The columns of a table, by index.

    time     one column, or two if day and clock time are separate; empty if the times are the table's index
    sensor   the column of sensor ids, if the table is or may be long (a row per time and sensor)
    is_long  whether the table is certainly long; otherwise it is long if times occur in several rows
    others   the columns of readings; in a long table one for each variable
    """

    names: tuple[str, ...]
    time: tuple[int, ...]
    sensor: int | None
    is_long: bool
    others: tuple[int, ...]

    @property
    def sensor_is_named(self) -> bool:
        return self.sensor is not None and self.names[self.sensor].lower() in ID_NAMES

    @property
    def time_name(self) -> str:
        return " ".join(self.names[place] for place in self.time) or "time"

    @property
    def text_columns(self) -> tuple[int, ...]:
        return self.time if self.sensor is None else (*self.time, self.sensor)

    @property
    def notes(self) -> tuple[str, ...]:
        if len(self.time) < 2:
            return ()
        day, clock = (repr(self.names[place]) for place in self.time)
        return (f"days in column {day} and clock times in column {clock}",)


def layout_of(names: Sequence[str], first: Sequence[str], path: Path, *, index: bool = False) -> Layout:
    """Tell the columns apart by their names and the first row; with `index`, times are the table's index."""
    time = () if index else _time_columns(names, first, path)
    others = tuple(place for place in range(len(names)) if place not in time)
    texts = [place for place in others if _is_text(first, place)]
    named = [place for place in others if names[place].lower() in ID_NAMES]
    values = [place for place in others if names[place].lower() in VALUE_NAMES]
    ids = [place for place in texts if place in named] or (named if len(named) == 1 else texts)
    if len(others) == 2 and len(ids) == 1:
        sure = ids[0] in named and (ids[0] in texts or bool(values))
        return Layout(tuple(names), time, ids[0], sure, tuple(p for p in others if p != ids[0]))
    if len(others) > 2 and len(ids) == 1 and ids[0] in named:  # a column for each of several variables
        rest = tuple(place for place in others if place != ids[0])
        return Layout(tuple(names), time, ids[0], ids[0] in texts, rest)
    return Layout(tuple(names), time, None, False, others)


def _time_columns(names: Sequence[str], first: Sequence[str], path: Path) -> tuple[int, ...]:
    """The columns of day and clock time, or the one that is called time or looks like times."""
    days = [place for place, text in enumerate(first) if is_day(text)]
    clocks = [place for place, text in enumerate(first) if is_clock(text)]
    if len(days) == 1 and len(clocks) == 1:
        return days[0], clocks[0]
    named = [place for place, name in enumerate(names) if name.lower() in TIME_NAMES]
    if len(named) > 1:
        pair = f"{names[named[0]]!r} and {names[named[1]]!r}"
        problem = (
            f"there are two columns of times, {pair}: keep one, or write days like 2024-01-31 in one and"
            " clock times like 08:05 in the other"
        )
        raise DataError(path, problem)
    times = [place for place, text in enumerate(first) if is_time(text)]
    if named:
        return (named[0],)
    return (times[0],) if len(times) == 1 else (0,)


def _is_text(first: Sequence[str], place: int) -> bool:
    """Whether the first cell of a column is neither a number nor a mark for a missing one."""
    text = first[place].strip() if place < len(first) else ""
    return text not in MISSING and number(text) is None and number(text, ",") is None
