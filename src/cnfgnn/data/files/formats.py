"""Read csv, parquet and pandas' HDF files; whatever they hold, the result is Readings or a DataError."""

from __future__ import annotations

import csv
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
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

from cnfgnn.data.files.columns import TIME_NAMES, Layout, layout_of
from cnfgnn.data.files.hdf import hdf_frame
from cnfgnn.data.files.tables import Table, not_a_number, readings_of, variables_of
from cnfgnn.data.files.text import (
    MISSING,
    Lines,
    Row,
    Text,
    decimal_comma,
    has_ended,
    number,
    open_text,
    reason,
)
from cnfgnn.data.files.times import RowLocations, is_time
from cnfgnn.data.options import ReadingOptions
from cnfgnn.data.readings import Readings
from cnfgnn.errors import DataError

BLOCK = 1000  # lines that are read together if not all of them can be
NO_HEADER = "the first line must name the columns, like time,a,b"


def read_readings(path: Path, options: ReadingOptions | None = None) -> Readings:
    """Read a .csv, .parquet or .h5 file; cells without a number are missing, positions are unknown."""
    options = options or ReadingOptions()
    return readings_of(_table(path, options), options)


def read_frame(frame: pd.DataFrame, options: ReadingOptions) -> Readings:
    """The readings of a table in memory, wide or long, with a row for every time step."""
    return readings_of(_from_frame(frame, Path("DataFrame"), options), options).on_grid()


def read_variables(path: Path, options: ReadingOptions, regular: bool = True) -> dict[str, Readings]:
    """Read such a file, which may be a long table of several variables: the readings of each, by name."""
    return variables_of(_table(path, options), options, regular)


def read_lines(path: Path, lines: Lines, options: ReadingOptions) -> dict[str, Readings]:
    """Read some lines of a csv file in the same way; `options` has refusals."""
    return variables_of(_from_lines(path, lines, options), options, regular=False)


def _table(path: Path, options: ReadingOptions) -> Table:
    readers = {".csv": _csv, ".parquet": _parquet, ".h5": _hdf}
    if not path.is_file() or path.suffix not in readers:
        raise DataError(path, f"is not a file that ends in {', '.join(readers)}")
    if path.stat().st_size == 0:
        raise DataError(path, "the file is empty")
    return readers[path.suffix](path, options)


def _csv(path: Path, options: ReadingOptions) -> Table:
    if options.refusals is not None and not has_ended(path):
        return _from_lines(path, Lines.of(path.read_bytes()), options)
    decimal = "," if options.decimal == "comma" else "."
    try:
        text = open_text(path, whole=False)
        layout = _header(text)
        frame = _by_arrow(text, layout, decimal)
    except Exception:  # pyarrow reads fewer dialects, and its message names neither line nor column
        if options.refusals is not None:
            return _from_lines(path, Lines.of(path.read_bytes()), options)
        text = open_text(path)
        layout = _header(text)
        decimal = _decimal(text, layout, options)
        frame = _by_arrow_or_cell(text, layout, decimal)
    notes = text.notes
    if decimal == ",":
        notes += ("numbers with decimal commas",)
    lines = cache(lambda: [line for line, _ in text.rows()])
    raw = cache(lambda: path.read_bytes().split(b"\n"))
    locations = RowLocations(
        path, lambda row: lines()[row + 1], options.refusals, lambda number: raw()[number - 1]
    )
    return Table(frame, layout, locations, decimal, notes)


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
    commas, unclear = decimal_comma(_cells(_rows_below(text), layout), text.separator)
    if unclear is not None:
        line, cell = unclear
        problem = f"'{cell}' could be {cell.replace(',', '.')} or {cell.replace(',', '')}"
        remedy = f"decide with {options.hint('decimal', 'comma')}, or write thousands without commas"
        raise DataError(text.path, f"{problem}: {remedy}", line=line)
    return "," if commas else "."


def _rows_below(text: Text) -> Iterator[Row]:
    """All rows but the one that names the columns."""
    rows = text.rows()
    next(rows, None)
    return rows


def _cells(rows: Iterable[Row], layout: Layout) -> Iterator[tuple[int, str]]:
    """The cells of readings with their line numbers."""
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

    def refuse(problem: str, line: int, column: str | None = None) -> None:
        raise DataError(text.path, problem, line=line, column=column)

    return _by_cell(_rows_below(text), text.separator, layout, decimal, refuse)


def _by_cell(
    rows: Iterable[Row], separator: str, layout: Layout, decimal: str, refuse: Callable[..., None]
) -> pd.DataFrame:
    """Read rows that pyarrow cannot read. `refuse` gets the problem of an invalid one, its number and perhaps
    the column; if it returns, the row is blank."""
    width, texts_at = len(layout.names), set(layout.text_columns)
    texts: dict[int, list[str]] = {place: [] for place in texts_at}
    numbers = {place: array("d") for place in range(width) if place not in texts_at}
    blank = [""] * width
    for line, found in rows:
        fields = found or blank
        if len(fields) != width:
            problem = f"{len(fields)} fields, but the header has {width}"
            if separator == "," and len(fields) > width:
                problem += "; separate fields by semicolons if numbers have decimal commas"
            refuse(problem, line)
            fields = blank
        values = [_value(fields[place], decimal) for place in numbers]
        if None in values:
            place = list(numbers)[values.index(None)]
            refuse(not_a_number(fields[place], decimal), line, layout.names[place])
            fields, values = blank, [np.nan] * len(values)
        for place, cells in texts.items():
            cells.append(fields[place])
        for column, value in zip(numbers.values(), values, strict=True):
            column.append(value)  # type: ignore[arg-type]
    columns: dict[int, Any] = dict(texts)
    for place, column in numbers.items():
        columns[place] = np.array(column)
    return pd.DataFrame({str(place): columns[place] for place in range(width)})


def _value(field: str, decimal: str) -> float | None:
    """The number in a cell, NaN if it is missing, None if there is something else."""
    cell = field.strip()
    return np.nan if cell in MISSING else number(cell, decimal)


def _from_lines(path: Path, lines: Lines, options: ReadingOptions) -> Table:
    """The rows of lines; those that cannot be read are refused, and blank."""
    locations = RowLocations(path, lines.numbers.__getitem__, options.refusals, lines.text_of, lines.chosen)
    text, others = lines.text(path, locations.refuse)
    layout = _header(text)
    rows = [row for row, line in enumerate(others) if line.strip() and row not in locations.left_out]
    locations = locations.at(rows)
    filled = [others[row] for row in rows]
    decimal = "," if options.decimal == "comma" else "."
    frame = _together(text, filled, layout, decimal)
    if frame is None:
        if options.decimal == "auto" and (text.separator != "," or any('"' in line for line in filled)):
            parsed = _line_by_line(filled, text.separator, lambda problem, row: None)
            decimal = "," if decimal_comma(_cells(parsed, layout), text.separator)[0] else "."
        blocks = [
            _block(text, filled[first : first + BLOCK], first, layout, decimal, locations)
            for first in range(0, len(filled), BLOCK)
        ]
        frame = pd.concat(blocks, ignore_index=True)
    return Table(frame, layout, locations, decimal, text.notes)


def _together(text: Text, lines: Sequence[str], layout: Layout, decimal: str) -> pd.DataFrame | None:
    """A row for each line; None if one of them cannot be read."""
    try:
        frame = _by_arrow(replace(text, content="\n".join([text.content or "", *lines, ""])), layout, decimal)
    except Exception:
        return None
    return frame if len(frame) == len(lines) else None


def _block(
    text: Text, lines: Sequence[str], first: int, layout: Layout, decimal: str, locations: RowLocations
) -> pd.DataFrame:
    """The rows of lines, the first of which is row `first` of the table: together, or else one by one."""
    if text.separator != decimal and (frame := _together(text, lines, layout, decimal)) is not None:
        return frame

    def refuse(problem: str, row: int, column: str | None = None) -> None:
        locations.refuse(problem, first + row, column)

    return _by_cell(_line_by_line(lines, text.separator, refuse), text.separator, layout, decimal, refuse)


def _line_by_line(lines: Sequence[str], separator: str, refuse: Callable[[str, int], None]) -> Iterator[Row]:
    """The fields of each line by itself, so that a quote that is not closed spoils one line; none if it is
    refused."""
    for row, line in enumerate(lines):
        fields: list[str] = []
        try:
            fields = next(csv.reader([line], delimiter=separator, strict=True))
        except csv.Error as problem:
            refuse(f"cannot be parsed as csv ({problem})", row)
        yield row, fields


def _parquet(path: Path, options: ReadingOptions) -> Table:
    try:
        with arrow_parquet.ParquetFile(path) as file:
            frame: pd.DataFrame = file.read().to_pandas()
    except Exception as problem:
        raise DataError(path, f"cannot be read as parquet ({reason(problem)})") from None
    return _from_frame(frame, path, options)


def _hdf(path: Path, options: ReadingOptions) -> Table:
    try:
        with h5py.File(path, "r") as file:
            frame = hdf_frame(file, path)
    except DataError:
        raise
    except Exception as problem:  # h5py raises any exception for a damaged file
        raise DataError(path, f"cannot be read as a pandas HDF file ({reason(problem)})") from None
    return _from_frame(frame, path, options)


def _from_frame(frame: pd.DataFrame, path: Path, options: ReadingOptions) -> Table:
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
    locations = RowLocations(path, refusals=options.refusals)
    return Table(frame, layout_of(names, first, path, index=index), locations)


def _shown_first(column: pd.Series[Any]) -> str:
    """The first cell of a column as text; only the day if all times of the column are midnights."""
    if is_datetime64_any_dtype(column.dtype) and column.dt.normalize().eq(column).all():
        return str(column.iloc[0])[:10]
    return str(column.iloc[0])
