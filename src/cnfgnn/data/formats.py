"""Read csv, parquet and pandas' HDF files; whatever they hold, the result is Readings or a DataError."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as arrow_parquet
from pandas.api.types import is_datetime64_any_dtype, is_numeric_dtype

from cnfgnn.data.columns import TIME_NAMES, Layout, layout_of
from cnfgnn.data.hdf import hdf_frame
from cnfgnn.data.options import ReadingOptions
from cnfgnn.data.readings import Readings
from cnfgnn.data.tables import Table, not_a_number, readings_of, variables_of
from cnfgnn.data.text import MISSING, Text, decimal_comma, number, open_text, reason
from cnfgnn.data.times import RowLocations, is_time
from cnfgnn.errors import DataError

NO_HEADER = "the first line must name the columns, like time,a,b"


def read_readings(path: Path, options: ReadingOptions | None = None) -> Readings:
    """Read a .csv, .parquet or .h5 file; cells without a number are missing, positions are unknown."""
    options = options or ReadingOptions()
    return readings_of(_table(path, options), options)


def read_variables(path: Path, options: ReadingOptions, regular: bool = True) -> dict[str, Readings]:
    """Read such a file, which may be a long table of several variables: the readings of each, by name."""
    return variables_of(_table(path, options), options, regular)


def _table(path: Path, options: ReadingOptions) -> Table:
    readers = {".csv": _csv, ".parquet": _parquet, ".h5": _hdf}
    if not path.is_file() or path.suffix not in readers:
        raise DataError(path, f"is not a file that ends in {', '.join(readers)}")
    if path.stat().st_size == 0:
        raise DataError(path, "the file is empty")
    return readers[path.suffix](path, options)


def _csv(path: Path, options: ReadingOptions) -> Table:
    text = open_text(path, whole=False)
    layout = _header(text)
    decimal = "," if options.decimal == "comma" else "."
    try:
        frame = _by_arrow(text, layout, decimal)
    except Exception:  # pyarrow reads fewer dialects, and its message names neither line nor column
        text = open_text(path)
        layout = _header(text)
        decimal = _decimal(text, layout, options)
        frame = _by_arrow_or_cell(text, layout, decimal)
    notes = text.notes
    if decimal == ",":
        notes += ("numbers with decimal commas",)
    lines = cache(lambda: [line for line, _ in text.rows()])
    return Table(frame, layout, RowLocations(path, lambda row: lines()[row + 1]), decimal, notes)


def _header(text: Text) -> Layout:
    """The columns of a csv file of readings."""
    rows = text.first_rows()
    line, fields = rows[0] if rows else (0, [])
    first = rows[1][1] if len(rows) > 1 else []
    names = [field.strip() for field in fields]
    if line != 1 or not all(name.isprintable() for name in names):
        raise DataError(text.path, NO_HEADER, line=1)
    if len(names) < 2:
        problem = "a column of times and one per sensor are needed, separated by commas, semicolons or tabs"
        raise DataError(text.path, f"{problem}, like time,a,b", line=1)
    layout = layout_of(names, first[: len(names)], text.path)
    if any(is_time(names[place]) for place in layout.time):
        raise DataError(text.path, NO_HEADER, line=1)
    for place, name in enumerate(names):
        if not name and place not in layout.time:
            raise DataError(text.path, f"column {place + 1} has no name", line=1)
    return layout


def _by_arrow(text: Text, layout: Layout, decimal: str) -> pd.DataFrame:
    keys = [str(place) for place in range(len(layout.names))]  # names may occur twice; Readings reports that
    types = {key: pa.float64() for key in keys} | {keys[place]: pa.string() for place in layout.text_columns}
    table = arrow_csv.read_csv(
        str(text.path) if text.content is None else pa.BufferReader(text.content.encode()),
        arrow_csv.ReadOptions(skip_rows=1, column_names=keys),
        arrow_csv.ParseOptions(delimiter=text.separator),
        arrow_csv.ConvertOptions(column_types=types, null_values=sorted(MISSING), decimal_point=decimal),
    )
    frame: pd.DataFrame = table.to_pandas()
    return frame


def _decimal(text: Text, layout: Layout, options: ReadingOptions) -> str:
    """The decimal mark of a file: a comma if some number can only be read with one."""
    if options.decimal != "auto":
        return "," if options.decimal == "comma" else "."
    commas, unclear = decimal_comma(_cells(text, layout), text.separator)
    if unclear is not None:
        line, cell = unclear
        problem = f"'{cell}' could be {cell.replace(',', '.')} or {cell.replace(',', '')}"
        remedy = f"decide with {options.hint('decimal', 'comma')}, or write thousands without commas"
        raise DataError(text.path, f"{problem}: {remedy}", line=line)
    return "," if commas else "."


def _cells(text: Text, layout: Layout) -> Iterator[tuple[int, str]]:
    """The cells of readings with their line numbers."""
    rows = text.rows()
    next(rows, None)
    for line, fields in rows:
        for place in layout.others:
            if place < len(fields):
                yield line, fields[place]


def _by_arrow_or_cell(text: Text, layout: Layout, decimal: str) -> pd.DataFrame:
    if text.separator != decimal:
        try:
            return _by_arrow(text, layout, decimal)
        except Exception:
            pass
    return _by_cell(text, layout, decimal)


def _by_cell(text: Text, layout: Layout, decimal: str) -> pd.DataFrame:
    """Read a csv file that pyarrow cannot read; an error names the first invalid cell."""
    width, texts_at = len(layout.names), set(layout.text_columns)
    texts: dict[int, list[str]] = {place: [] for place in texts_at}
    numbers = {place: array("d") for place in range(width) if place not in texts_at}
    rows = text.rows()
    next(rows, None)
    for line, fields in rows:
        if len(fields) != width:
            problem = f"{len(fields)} fields, but the header has {width}"
            if text.separator == "," and len(fields) > width:
                problem += "; separate fields by semicolons if numbers have decimal commas"
            raise DataError(text.path, problem, line=line)
        for place, field in enumerate(fields):
            if place in texts_at:
                texts[place].append(field)
            elif (cell := field.strip()) in MISSING:
                numbers[place].append(np.nan)
            elif (value := number(cell, decimal)) is not None:
                numbers[place].append(value)
            else:
                problem = not_a_number(field, decimal)
                raise DataError(text.path, problem, line=line, column=layout.names[place])
    columns: dict[int, Any] = dict(texts)
    for place, column in numbers.items():
        columns[place] = np.array(column)
    return pd.DataFrame({str(place): columns[place] for place in range(width)})


def _parquet(path: Path, _: ReadingOptions) -> Table:
    try:
        with arrow_parquet.ParquetFile(path) as file:
            frame: pd.DataFrame = file.read().to_pandas()
    except Exception as problem:
        raise DataError(path, f"cannot be read as parquet ({reason(problem)})") from None
    return _from_frame(frame, path)


def _hdf(path: Path, _: ReadingOptions) -> Table:
    try:
        with h5py.File(path, "r") as file:
            frame = hdf_frame(file, path)
    except DataError:
        raise
    except Exception as problem:  # h5py raises any exception for a damaged file
        raise DataError(path, f"cannot be read as a pandas HDF file ({reason(problem)})") from None
    return _from_frame(frame, path)


def _from_frame(frame: pd.DataFrame, path: Path) -> Table:
    """Times are the index if that holds times or text, otherwise a column."""
    if frame.columns.nlevels > 1 or frame.index.nlevels > 1:
        raise DataError(path, "has a MultiIndex: rows and columns need names of one level")
    if frame.empty:
        raise DataError(path, "holds no readings")
    names = [str(name) for name in frame.columns]
    index = is_datetime64_any_dtype(frame.index.dtype) or not (
        is_numeric_dtype(frame.index.dtype) or any(name.lower() in TIME_NAMES for name in names)
    )
    first = [_shown_first(frame.iloc[:, place]) for place in range(len(names))]
    return Table(frame, layout_of(names, first, path, index=index), RowLocations(path))


def _shown_first(column: pd.Series[Any]) -> str:
    """The first cell of a column as text; only the day if all times of the column are midnights."""
    if is_datetime64_any_dtype(column.dtype) and column.dt.normalize().eq(column).all():
        return str(column.iloc[0])[:10]
    return str(column.iloc[0])
