"""Turn a table into readings, whether wide (a column per sensor) or long (a row per time and sensor)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from pandas.api.types import is_bool_dtype, is_datetime64_any_dtype, is_numeric_dtype

from cnfgnn.data.files.columns import VALUE_NAMES, Layout
from cnfgnn.data.files.text import MISSING, number, shown
from cnfgnn.data.files.times import (
    Column,
    Ints,
    RowLocations,
    Times,
    clock_to_utc,
    read_times,
    readable,
    refuse_future,
)
from cnfgnn.data.options import ReadingOptions
from cnfgnn.data.readings import LARGEST, UNNAMED, Readings, last_of_each
from cnfgnn.errors import DataError

EXAMPLE = "2024-01-31 08:05"
SPARSEST = 100  # cells per reading; a long table that would be sparser is refused
SMALL = 10_000_000  # cells; smaller tables may be as sparse as they like
Notes = tuple[str, ...]
Values = npt.NDArray[np.float32]


class NoReadings(DataError):
    """A table without a row that can be used."""


@dataclass(frozen=True)
class Table:
    """A table of a file: its cells, what its columns are, where its rows are, what was detected so far."""

    frame: pd.DataFrame
    layout: Layout
    locations: RowLocations
    decimal: str = "."
    notes: Notes = ()


def readings_of(table: Table, options: ReadingOptions) -> Readings:
    """The readings of a table, sorted by time and without repeated rows: of its only variable, or of the one
    to forecast."""
    found = variables_of(table, options)
    if options.target in found:
        return found[options.target]
    if len(found) > 1:
        raise DataError(table.locations.path, f"holds several variables ({', '.join(found)}): keep one")
    (readings,) = found.values()
    return readings


def variables_of(table: Table, options: ReadingOptions, regular: bool = True) -> dict[str, Readings]:
    """The readings of each variable of a table by name; one that the table does not name is "readings".

    A long table may have a column of values for each of several variables. With `regular`, times that are off
    the table's time grid are refused.
    """
    if table.frame.empty:
        raise NoReadings(table.locations.path, "holds no readings")
    stamps = _stamps(table)
    table, stamps = _without_bad_times(*_without_blank_rows(table, stamps), options)
    layout = table.layout
    table = replace(table, notes=table.notes + layout.notes)
    if layout.sensor is None or not _is_long(table, stamps):
        found = {UNNAMED: _from_wide(table, stamps, options)}
    else:
        found = {}
        for place in layout.others:
            of_one = replace(table, layout=replace(layout, others=(place,)))
            name = layout.names[place]
            named = len(layout.others) > 1 or name.lower() not in VALUE_NAMES
            if name in found:
                raise DataError(table.locations.path, "this column occurs twice", column=name)
            found[name if named else UNNAMED] = _from_long(of_one, stamps, options)
    if table.locations.line_of is not None and regular and options.refusals is None and options.known is None:
        for times, readings in found.values():
            if len(readings.times) > 1:
                _check_grid(readings, times, table)
    return {name: readings for name, (_, readings) in found.items()}


def _check_grid(readings: Readings, times: Times, table: Table) -> None:
    """Refuse times off the grid while the line in the file is still known."""
    if (row := readings.between_steps(readings.step_seconds)) is not None:
        step = readings.step_seconds
        first = str(readings.times[0]).replace("T", " ")
        problem = f"this time is off the grid of {step} s steps that begins at {first}"
        in_file = int(np.argmax(times == readings.times[row]))
        raise table.locations.error(problem, in_file, table.layout.time_name)


def _stamps(table: Table) -> pd.Index[Any]:
    """The times as they are in the table."""
    frame, columns = table.frame, table.layout.time
    if not columns:
        return frame.index
    if len(columns) == 1:
        stamps: pd.Index[Any] = pd.Index(frame.iloc[:, columns[0]])
        return stamps
    day, clock = (frame.iloc[:, place] for place in columns)
    days = day.dt.strftime("%Y-%m-%d") if is_datetime64_any_dtype(day.dtype) else day.astype(str).str.strip()
    return pd.Index((days + " " + clock.astype(str).str.strip()).str.strip())


def _without_blank_rows(table: Table, stamps: pd.Index[Any]) -> tuple[Table, pd.Index[Any]]:
    """Drop blank rows, which spreadsheets write below the last one as mere separators."""
    blank = np.asarray(stamps == "", dtype=bool)
    if not blank.any() or table.locations.line_of is None:
        return table, stamps
    rest = table.frame.iloc[np.flatnonzero(blank)].drop(columns=table.frame.columns[list(table.layout.time)])
    blank[blank] = (rest.isna() | (rest == "")).all(axis=1)
    return _rows_of(table, stamps, np.flatnonzero(~blank))


def _rows_of(table: Table, stamps: pd.Index[Any], rows: Ints) -> tuple[Table, pd.Index[Any]]:
    """Some rows of a table and their times."""
    if not len(rows):
        raise NoReadings(table.locations.path, "holds no readings")
    return replace(table, frame=table.frame.iloc[rows], locations=table.locations.at(rows)), stamps[rows]


def _without_bad_times(
    table: Table, stamps: pd.Index[Any], options: ReadingOptions
) -> tuple[Table, pd.Index[Any]]:
    """Refuse rows whose time cannot be read, if rows may be refused: otherwise, reading the times does."""
    if options.refusals is None or is_datetime64_any_dtype(stamps.dtype):
        return table, stamps
    name, locations = table.layout.time_name, table.locations
    codes, cells = pd.factorize(stamps, use_na_sentinel=False)
    _, firsts = np.unique(codes, return_index=True)
    column = Column(name, pd.Index(cells), firsts)
    try:
        read_times(column, options, RowLocations(locations.path, locations.line_of))
    except DataError:
        good = readable(column, options, locations)[codes]
        example = next(iter(stamps[good]), EXAMPLE)
        for row in np.flatnonzero(~good).tolist():
            problem = f"{shown(stamps[row])} is not a time like {shown(example)} in other lines"
            locations.refuse(problem, row, name)
        return _rows_of(table, stamps, np.flatnonzero(good))
    return table, stamps


def _is_long(table: Table, stamps: pd.Index[Any]) -> bool:
    """Whether a table with a column that may hold sensor ids is long.

    If neither names nor texts decide, it is long if most times occur several times.
    """
    if table.layout.is_long:
        return True
    assert table.layout.sensor is not None
    if stamps.nunique() > len(stamps) * 2 / 3:
        return False
    ids = table.frame.iloc[:, table.layout.sensor]
    return table.layout.sensor_is_named or all(number(str(name)) is None for name in ids.unique())


def _from_wide(table: Table, stamps: pd.Index[Any], options: ReadingOptions) -> tuple[Times, Readings]:
    """The time of each row of a table, and its readings."""
    layout, locations = table.layout, table.locations
    name = layout.time_name
    moments = read_times(Column(name, stamps, range(len(stamps))), options, locations)
    times, utc, notes = moments.times, moments.utc, table.notes + moments.notes
    if not utc and (zone := options.zone) is not None:
        times, note = clock_to_utc(times, zone, name, options, locations)
        utc, notes = True, (*notes, note)
    sensors = sorted(layout.others if layout.sensor is None else (*layout.others, layout.sensor))
    values = np.empty((len(times), len(sensors)), dtype=np.float32)
    for column, place in enumerate(sensors):
        numbers = _numbers(table, place)
        with np.errstate(over="ignore"):  # beyond float32 is infinite, which is refused below
            values[:, column] = numbers
    refuse_future(times, utc, name, locations)
    _check_magnitude(values, [layout.names[place] for place in sensors], locations)
    if options.refusals is None:
        grid, values, more = _in_order(times, values, locations, _duplicate_hint(table, stamps, utc, options))
    else:
        grid, values, more = _newest_of_each(times, values, locations)
    ids = tuple(layout.names[place] for place in sensors)
    _keep_rows(times, name, locations)
    return times, Readings(
        grid, ids, values, missing=np.isnan(values), source=str(locations.path), utc=utc, notes=notes + more
    )


def _keep_rows(times: Times, column: str, locations: RowLocations) -> None:
    """Let whoever finds a time wrong refuse its row."""

    def refuse(time: np.datetime64, problem: str) -> None:
        locations.refuse(problem, int(np.argmax(times == time)), column)

    if locations.refusals is not None:
        locations.refusals.refuse_at[str(locations.path)] = refuse


def _duplicate_hint(table: Table, stamps: pd.Index[Any], utc: bool, options: ReadingOptions) -> str:
    """What the user may have to change if a time occurs twice with different readings."""
    if len(table.layout.names) == 3 and stamps.nunique() < len(stamps) * 2 / 3:
        return "; if the table has a row per time and sensor, call its columns time, id and value"
    return _clock_change_hint(utc, options)


def _clock_change_hint(utc: bool, options: ReadingOptions) -> str:
    example = options.hint("timezone", "Europe/Paris")
    return "" if utc else f"; if clocks were set back then, set their time zone, like {example}"


def _in_order(
    times: Times, values: Values, locations: RowLocations, hint: str
) -> tuple[Times, Values, Notes]:
    """Sort rows by time and drop repeated ones."""
    steps = np.diff(times).astype(np.int64)
    if (steps > 0).all():
        return times, values, ()
    notes: Notes = ()
    order = np.argsort(times, kind="stable")
    if (steps <= 0).all() and (steps < 0).any():
        notes = ("rows were in descending order and were reversed",)
    elif (steps < 0).any():
        notes = ("rows were sorted by time",)
    times, values = times[order], values[order]
    again = np.flatnonzero(np.diff(times).astype(np.int64) == 0)
    same = (values[again] == values[again + 1]) | (np.isnan(values[again]) & np.isnan(values[again + 1]))
    if not same.all():
        k = again[int(np.argmin(same.all(axis=1)))]
        one, other = sorted((int(order[k]), int(order[k + 1])))
        raise _conflict(times[k], "", one, other, locations, hint)
    if len(again):
        notes += (_left_out_note(len(again)),)
        times, values = np.delete(times, again + 1), np.delete(values, again + 1, axis=0)
    return times, values, notes


def _newest_of_each(times: Times, values: Values, locations: RowLocations) -> tuple[Times, Values, Notes]:
    """Sort the rows that are not refused by time; of several rows of one time, the last reading counts."""
    kept = np.flatnonzero(locations.kept(len(times)))
    if not len(kept):
        raise NoReadings(locations.path, "holds no readings")
    order = kept[np.argsort(times[kept], kind="stable")]
    grid, newest, _ = last_of_each(times[order], values[order])
    return grid, newest, ()


def _conflict(
    time: np.datetime64, sensor: str, one: int, other: int, locations: RowLocations, hint: str
) -> DataError:
    of = f" of sensor {shown(sensor)}" if sensor else ""
    problem = f"{str(time).replace('T', ' ')}{of} is also in {locations.describe(one)}, with other readings"
    return locations.error(f"{problem}: keep one{hint}", other)


def _left_out_note(count: int) -> str:
    return "1 repeated row was left out" if count == 1 else f"{count} repeated rows were left out"


def _from_long(table: Table, stamps: pd.Index[Any], options: ReadingOptions) -> tuple[Times, Readings]:
    """The time of each row of a table, and its readings."""
    layout, locations = table.layout, table.locations
    codes, cells = pd.factorize(stamps, use_na_sentinel=False)
    _, firsts = np.unique(codes, return_index=True)
    moments = read_times(Column(layout.time_name, pd.Index(cells), firsts), options, locations)
    times, utc, notes = moments.times[codes], moments.utc, table.notes + moments.notes
    sensors, ids = _ids(table)
    if not utc and (zone := options.zone) is not None:
        times, note = clock_to_utc(times, zone, layout.time_name, options, locations, sensors)
        utc, notes = True, (*notes, note)
    refuse_future(times, utc, layout.time_name, locations)
    (value,) = layout.others
    with np.errstate(over="ignore"):
        numbers = _numbers(table, value).astype(np.float32)
    _check_magnitude(numbers[:, None], [layout.names[value]], locations)
    if options.refusals is not None:
        kept = locations.kept(len(times))
        if not kept.any():
            raise NoReadings(locations.path, "holds no readings")
        _keep_rows(times, layout.time_name, locations)
        times, sensors, numbers = times[kept], sensors[kept], numbers[kept]
    grid, rows = np.unique(times, return_inverse=True)
    if len(grid) * len(ids) > max(SMALL, SPARSEST * len(times)):
        problem = f"{len(times)} rows are too few for {len(grid)} times and {len(ids)} sensors"
        raise DataError(locations.path, problem)
    cell, repeated = rows.astype(np.int64) * len(ids) + sensors, 0
    if options.refusals is None:
        hint = _clock_change_hint(utc, options)
        repeated = _repeated(
            cell, numbers, lambda k: (grid[cell[k] // len(ids)], ids[cell[k] % len(ids)]), locations, hint
        )
    values = np.full((len(grid), len(ids)), np.nan, dtype=np.float32)
    there = ~np.isnan(numbers)  # an empty cell corrects nothing; of other rows of a cell, the last counts
    values[rows[there], sensors[there]] = numbers[there]
    names = [layout.names[place] for place in (*layout.text_columns, value)]
    notes += (f"a row per time and sensor, in columns {', '.join(map(repr, names))}",)
    if repeated:
        notes += (_left_out_note(repeated),)
    return times, Readings(
        grid, tuple(ids), values, missing=np.isnan(values), source=str(locations.path), utc=utc, notes=notes
    )


def _ids(table: Table) -> tuple[Ints, list[str]]:
    """The number of each row's sensor, and the ids of the sensors in order of first occurrence."""
    assert table.layout.sensor is not None
    place = table.layout.sensor
    codes, cells = pd.factorize(pd.Index(table.frame.iloc[:, place]), use_na_sentinel=False)
    texts = ["" if pd.isna(cell) else str(cell).strip() for cell in cells]
    if "" in texts:
        for row in np.flatnonzero(np.array(texts)[codes] == "").tolist():
            table.locations.refuse("this row has no sensor id", row, table.layout.names[place])
    merged, ids = pd.factorize(np.array(texts, dtype=object))
    return merged[codes].astype(np.int64), [str(name) for name in ids]


def _repeated(
    cell: Ints,
    numbers: Values,
    name: Callable[[int], tuple[np.datetime64, str]],
    locations: RowLocations,
    hint: str,
) -> int:
    """How many rows of a long table repeat another one; rows that contradict another one are refused."""
    order = np.argsort(cell, kind="stable")
    again = np.flatnonzero(np.diff(cell[order]) == 0)
    one, other = numbers[order[again]], numbers[order[again + 1]]
    same = (one == other) | (np.isnan(one) & np.isnan(other))
    if not same.all():
        k = int(again[int(np.argmin(same))])
        time, sensor = name(int(order[k]))
        raise _conflict(time, sensor, int(order[k]), int(order[k + 1]), locations, hint)
    return len(again)


def _check_magnitude(values: Values, names: list[str], locations: RowLocations) -> None:
    too_large = np.abs(values) > LARGEST
    for row, column in np.argwhere(too_large).tolist():
        problem = f"a reading beyond {LARGEST:g} is not plausible: correct it or empty the cell"
        locations.refuse(problem, row, names[column])


def _numbers(table: Table, place: int) -> npt.NDArray[np.float64]:
    """The numbers of a column, which may hold them as text or as decimals."""
    column = table.frame.iloc[:, place]
    if is_numeric_dtype(column.dtype) and not is_bool_dtype(column.dtype):
        return column.to_numpy(dtype=np.float64, na_value=np.nan)
    numbers = np.full(len(column), np.nan)
    for row, cell in enumerate(column.tolist()):
        if pd.isna(cell) or (text := str(cell).strip()) in MISSING:
            continue
        if (parsed := number(text, table.decimal)) is None:
            table.locations.refuse(not_a_number(cell, table.decimal), row, table.layout.names[place])
            continue
        numbers[row] = parsed
    return numbers


def not_a_number(cell: object, decimal: str = ".") -> str:
    """The error message for a cell of readings."""
    return f"{shown(cell)} is not a number like 12{decimal}5; leave the cell empty if the reading is missing"
