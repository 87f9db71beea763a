"""Readings from csv, parquet and pandas' HDF files: whatever these hold, Readings or one DataError."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as arrow_parquet
from pandas.api.types import is_bool_dtype, is_datetime64_any_dtype, is_numeric_dtype

from cnfgnn.data.hdf import hdf_frame
from cnfgnn.data.readings import Readings
from cnfgnn.data.text import number, reason, shown, text_rows
from cnfgnn.errors import DataError

TIME_NAMES = frozenset({"time", "timestamp", "date", "datetime"})
NO_NUMBER = ("", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "-nan", "NULL", "null", "None")
ISO_TIME = re.compile(
    r"\d{4}([-/])\d\d\1\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(Z|[+-]\d\d(?::?\d\d)?)?)?", re.A
)
EARLIEST, LATEST = np.datetime64("1800-01-01", "s"), np.datetime64("2200-01-01", "s")
RowName = Callable[[int], int]
Wrong = Callable[[str, int, str], DataError]


def read_readings(path: Path) -> Readings:
    """The readings of a .csv, .parquet or .h5 file; no number means missing, and positions are unknown."""
    readers = {".csv": _read_csv, ".parquet": _read_parquet, ".h5": _read_hdf}
    if not path.is_file() or path.suffix not in readers:
        raise DataError(path, f"this is not a file that ends in {', '.join(readers)}")
    if path.stat().st_size == 0:
        raise DataError(path, "the file is empty")
    return readers[path.suffix](path)


def _read_csv(path: Path) -> Readings:
    names, time = _header(path)
    keys = [str(column) for column in range(len(names))]  # names may occur twice, which Readings reports
    types = {key: pa.float64() for key in keys} | {keys[time]: pa.string()}
    try:
        table = arrow_csv.read_csv(
            str(path),
            arrow_csv.ReadOptions(skip_rows=1, column_names=keys),
            convert_options=arrow_csv.ConvertOptions(column_types=types, null_values=NO_NUMBER),
        )
    except Exception as problem:  # pyarrow's message names neither line nor column: look for them ourselves
        raise _csv_problem(path, names, time, problem) from None
    frame = table.to_pandas().set_axis(names, axis=1)
    return _from_frame(frame, path, lambda row: [line for line, _ in text_rows(path)][row + 1])


def _header(path: Path) -> tuple[list[str], int]:
    """The column names of a csv file of readings and the place of the time column."""
    line, fields = next(text_rows(path), (0, []))
    names = [field.strip() for field in fields]
    if line != 1 or not all(name.isprintable() for name in names):
        raise DataError(path, "the first line has to name the columns", row=1)
    if len(names) < 2:
        raise DataError(path, "a column of times and one per sensor are needed, with commas between", row=1)
    time = _time_column(names, path) or 0
    if ISO_TIME.fullmatch(names[time]):
        raise DataError(path, "the first line has to name the columns", row=1)
    for place, name in enumerate(names):
        if not name and place != time:
            raise DataError(path, f"column {place + 1} has no name", row=1)
    return names, time


def _time_column(names: Sequence[str], path: Path) -> int | None:
    """The place of the column that is called time, or something like it."""
    found = [place for place, name in enumerate(names) if name.lower() in TIME_NAMES]
    if len(found) > 1:
        raise DataError(path, f"two columns of time, {names[found[0]]!r} and {names[found[1]]!r}: keep one")
    return found[0] if found else None


def _csv_problem(path: Path, names: Sequence[str], time: int, problem: BaseException) -> DataError:
    """What is wrong with a csv file that could not be parsed, with the line and column of it."""
    rows = text_rows(path)
    line, _ = next(rows)
    for line, fields in rows:
        if len(fields) != len(names):
            return DataError(path, f"{len(fields)} fields where the header has {len(names)}", row=line)
        for place, text in enumerate(fields):
            if place != time and text not in NO_NUMBER and number(text) is None:
                return DataError(path, f"{shown(text)} is not a number", row=line, column=names[place])
    return DataError(
        path, "there are no readings in it" if line == 1 else f"this is no csv ({reason(problem)})"
    )


def _read_parquet(path: Path) -> Readings:
    try:
        with arrow_parquet.ParquetFile(path) as file:
            frame: pd.DataFrame = file.read().to_pandas()
    except Exception as problem:
        raise DataError(path, f"it cannot be read as parquet ({reason(problem)})") from None
    return _from_frame(frame, path)


def _read_hdf(path: Path) -> Readings:
    try:
        with h5py.File(path, "r") as file:
            frame = hdf_frame(file, path)
    except DataError:
        raise
    except Exception as problem:  # a damaged file makes h5py raise anything, in any call
        raise DataError(path, f"it cannot be read as a pandas HDF file ({reason(problem)})") from None
    return _from_frame(frame, path)


def _from_frame(frame: pd.DataFrame, path: Path, row_name: RowName = lambda row: row + 1) -> Readings:
    """Time is the index where that holds times or text, else a column named so, else the first column."""

    def wrong(problem: str, row: int, column: str) -> DataError:
        return DataError(path, problem, row=row_name(row), column=column)

    if frame.columns.nlevels > 1 or frame.index.nlevels > 1:
        raise DataError(path, "rows and columns need names of one level")
    if frame.empty:
        raise DataError(path, "there are no readings in it")
    names = [str(name) for name in frame.columns]
    time = None if is_datetime64_any_dtype(frame.index.dtype) else _time_column(names, path)
    if time is None and is_numeric_dtype(frame.index.dtype):
        time = 0
    stamps = frame.index if time is None else pd.Index(frame.iloc[:, time])
    times, utc = _times(stamps, "time" if time is None else names[time], wrong)
    sensors = [place for place in range(len(names)) if place != time]
    values = np.empty((len(times), len(sensors)), dtype=np.float32)
    for column, place in enumerate(sensors):
        numbers = _numbers(frame.iloc[:, place], names[place], wrong)
        with np.errstate(over="ignore"):  # too large for float32 is infinite, which Readings reports
            values[:, column] = numbers
    ids = tuple(names[place] for place in sensors)
    return Readings(times, ids, values, missing=np.isnan(values), source=str(path), utc=utc)


def _times(stamps: pd.Index[Any], column: str, wrong: Wrong) -> tuple[npt.NDArray[np.datetime64], bool]:
    """Seconds without a zone, and whether they are UTC: times that state their zone become so."""
    is_time = is_datetime64_any_dtype(stamps.dtype)
    moments = pd.DatetimeIndex(stamps if is_time else _parsed(list(stamps), column, wrong))
    utc = moments.tz is not None if is_time else bool(_offset(stamps[0]))
    if moments.tz is not None:
        moments = moments.tz_convert("UTC").tz_localize(None)
    exact = moments.to_numpy()
    seconds: npt.NDArray[np.datetime64] = exact.astype("datetime64[s]")
    valid = (seconds >= EARLIEST) & (seconds < LATEST)
    if not valid.all():
        raise wrong("this is not a time in 1800 .. 2199", int(np.argmin(valid)), column)
    merged = (exact[1:] != exact[:-1]) & (seconds[1:] == seconds[:-1])
    if merged.any():
        raise wrong("steps of less than a second cannot be used", int(np.argmax(merged)) + 1, column)
    return seconds, utc


def _offset(text: object) -> str | None:
    """The offset from UTC that a time states."""
    match = ISO_TIME.fullmatch(str(text).strip())
    return match[2] if match else None


def _parsed(texts: list[object], column: str, wrong: Wrong) -> pd.DatetimeIndex:
    """Times from ISO 8601 text alone: anything else, like 01/02/2024, could mean several days."""
    found: list[re.Match[str]] = []
    for row, text in enumerate(texts):
        if (match := ISO_TIME.fullmatch(str(text).strip())) is None:
            raise wrong(f"{shown(text)} is not a time like 2024-01-31 08:05", row, column)
        if found and (match[2] is None) != (found[0][2] is None):
            raise wrong("some times have an offset from UTC and some have none", row, column)
        found.append(match)
    plain = [match[0].replace("/", "-") for match in found]
    return pd.DatetimeIndex(pd.to_datetime(plain, format="ISO8601", utc=True, errors="coerce"))


def _numbers(column: pd.Series[Any], name: str, wrong: Wrong) -> npt.NDArray[np.float64]:
    """The numbers of a column, which may stand in it as text or as decimals."""
    if is_numeric_dtype(column.dtype) and not is_bool_dtype(column.dtype):
        return column.to_numpy(dtype=np.float64, na_value=np.nan)
    numbers = np.full(len(column), np.nan)
    for row in np.flatnonzero(column.notna()).tolist():
        if (parsed := number(str(column.iloc[row]))) is None:
            raise wrong(f"{shown(column.iloc[row])} is not a number", row, name)
        numbers[row] = parsed
    return numbers
