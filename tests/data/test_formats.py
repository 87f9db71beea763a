"""Readings from csv, parquet and HDF files, good and bad."""

from __future__ import annotations

import io
import pickle
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cnfgnn.data.files.formats import read_readings
from cnfgnn.data.readings import Readings
from cnfgnn.errors import DataError

CSV = b"time,a,b\n2024-01-01 00:00,1,2\n2024-01-01 00:05,,4.5\n2024-01-01 00:10,0,-6e1\n"
FUZZ = settings(max_examples=250, deadline=None, derandomize=True)


def frame(columns=("a", "b"), unit="ns", tz=None, rows=4) -> pd.DataFrame:
    times = pd.date_range("2024-01-01", periods=rows, freq="5min", tz=tz).as_unit(unit)
    values = np.arange(rows * len(columns), dtype=float).reshape(rows, -1)
    values[1, 0] = np.nan
    return pd.DataFrame(values, index=times, columns=list(columns))


def read_csv(tmp_path: Path, content: str | bytes) -> Readings:
    file = tmp_path / "readings.csv"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_readings(file)


def read_parquet(tmp_path: Path, table: pd.DataFrame) -> Readings:
    table.to_parquet(tmp_path / "readings.parquet")
    return read_readings(tmp_path / "readings.parquet")


def write_fixed(path: Path, table: pd.DataFrame, key="df", kind=None, transposed=True) -> Path:
    """The layout of DataFrame.to_hdf(format="fixed") for a frame of one block, without pytables."""
    strings = not pd.api.types.is_integer_dtype(table.columns.dtype)
    names = table.columns.to_numpy().astype("S" if strings else "i8")
    with h5py.File(path, "a") as file:
        group = file.create_group(key)
        group.attrs.update(
            {"pandas_type": np.bytes_("frame"), "nblocks": 1, "ndim": 2, "encoding": np.bytes_("UTF-8")}
        )
        for axis in ("axis0", "block0_items"):
            group[axis] = names
            group[axis].attrs["kind"] = np.bytes_("string" if strings else "integer")
        group["axis1"] = table.index.to_numpy().view("i8")
        group["axis1"].attrs["kind"] = np.bytes_(kind or str(table.index.to_numpy().dtype))
        group["block0_values"] = table.to_numpy() if transposed else table.to_numpy().T
        group["block0_values"].attrs["transposed"] = np.uint8(transposed)
    return path


def write_table(path: Path, table: pd.DataFrame, first: str, meta="N.") -> Path:
    """The layout of DataFrame.to_hdf(format="table", data_columns=[first]): a record per row."""
    others = [name for name in table.columns if name != first]
    fields = [("index", "i8"), ("values_block_0", "f8", (len(others),)), (first, "f8")]
    records = np.zeros(len(table), dtype=fields)
    records["index"] = table.index.to_numpy().view("i8")
    records["values_block_0"], records[first] = table[others], table[first]
    pickled = lambda value: np.bytes_(pickle.dumps(value, protocol=0))  # noqa: E731
    with h5py.File(path, "w") as file:
        group = file.create_group("speed")
        group.attrs["pandas_type"] = np.bytes_("frame_table")
        group.attrs["non_index_axes"] = pickled([(1, list(table.columns))])
        group["table"] = records
        group["table"].attrs["index_kind"] = np.bytes_(str(table.index.to_numpy().dtype))
        for field, names in (("values_block_0", others), (first, [first])):
            group["table"].attrs[f"{field}_kind"] = pickled(names)
            group["table"].attrs[f"{field}_dtype"] = np.bytes_("float64")
            group["table"].attrs[f"{field}_meta"] = np.bytes_(meta)
    return path


def test_csv_keeps_values_and_marks_empty_cells_missing(tmp_path):
    readings = read_csv(tmp_path, CSV)
    assert readings.ids == ("a", "b")
    assert readings.times.tolist() == pd.date_range("2024-01-01", periods=3, freq="5min").tolist()
    np.testing.assert_array_equal(readings.values, np.array([[1, 2], [np.nan, 4.5], [0, -60]], np.float32))
    np.testing.assert_array_equal(readings.missing, [[False, False], [True, False], [False, False]])


def test_csv_of_pandas_is_read_back(tmp_path):
    table = frame(["400001", "400017"])
    readings = read_csv(tmp_path, table.to_csv())
    np.testing.assert_array_equal(readings.values, table.to_numpy(np.float32))
    assert readings.ids == ("400001", "400017")


@pytest.mark.parametrize("name", ["Time", "timestamp", "date", "DateTime"])
def test_csv_finds_the_time_column_by_name(tmp_path, name):
    readings = read_csv(tmp_path, f"a,{name},b\n1,2024-01-01,2\n3,2024-01-02,4\n")
    assert readings.ids == ("a", "b")
    np.testing.assert_array_equal(readings.values, [[1, 2], [3, 4]])


def test_csv_tolerates_a_byte_order_mark_and_windows_and_blank_lines(tmp_path):
    readings = read_csv(tmp_path, b"\xef\xbb\xbf" + CSV.replace(b"\n", b"\r\n") + b"\r\n\r\n")
    assert readings.values.shape == (3, 2)
    assert readings.ids == ("a", "b")


def test_csv_column_without_any_reading_is_all_missing(tmp_path):
    readings = read_csv(tmp_path, "time,a,b\n2024-01-01,,1\n2024-01-02,NaN,2\n")
    assert readings.missing.tolist() == [[True, False], [True, False]]


def test_times_with_an_offset_become_utc(tmp_path):
    readings = read_csv(tmp_path, "time,a\n2024-01-01T00:00:00+01:00,1\n2024-01-01T00:00Z,2\n")
    assert [str(time) for time in readings.times] == ["2023-12-31T23:00:00", "2024-01-01T00:00:00"]


BAD_CSV = {
    "text in a number": ("time,a,b\n2024-01-01,1,2\n\n2024-01-02,1,fast\n", "line 4, column 'b': 'fast'"),
    "points and decimal commas": (
        "time;a\n2024-01-01;1.5\n2024-01-02;1,5\n",
        "line 2, column 'a': '1.5' is not a number like 12,5",
    ),
    "a comma that may mean two things": (
        "time\ta\n2024-01-01\t1\n2024-01-02\t1,500\n",
        "line 3: '1,500' could be 1.500 or 1500: decide with --set data.decimal=comma, or",
    ),
    "decimal commas between commas": (
        "time,a\n2024-01-01,1,5\n",
        "line 2: 3 fields, but the header has 2; separate fields by semicolons",
    ),
    "too many fields": ("time,a\n2024-01-01,1\n2024-01-02,1,2\n", "line 3: 3 fields, but the header has 2"),
    "too few fields": ("time,a,b\n2024-01-01,1\n", "line 2: 2 fields, but the header has 3"),
    "no such day": ("time,a\n2024-02-30,1\n", "line 2, column 'time': '2024-02-30' is not a time"),
    "days that could be others": (
        "time,a\n01/01/2024,1\n01/02/2024,1\n",
        "line 3, column 'time': '01/02/2024' and all other dates could be day-first or month-first: decide"
        " with --set data.dates=day-first or --set data.dates=month-first",
    ),
    "days in two orders": (
        "time,a\n31/01/2024,1\n01/31/2024,1\n",
        "line 3, column 'time': '01/31/2024' and '31/01/2024' in line 2 have day and month in different",
    ),
    "two ways of writing": (
        "time,a\n31/01/2024,1\n2024-02-01,1\n",
        "line 3, column 'time': '2024-02-01' is not in the same format as '31/01/2024' above",
    ),
    "a year of two digits": (
        "time,a\n31.01.24,1\n",
        "line 2, column 'time': '31.01.24' is not a time like 2024",
    ),
    "no time after a blank line": ("time,a\n2024-01-01,1\n\n,2\n", "line 4, column 'time': '' is not a time"),
    "mixed offsets": (
        "time,a\n2024-01-01T00:00Z,1\n2024-01-02T00:00,2\n",
        "line 3, column 'time': some times",
    ),
    "year 9999": ("time,a\n9999-01-01,1\n", "line 2, column 'time': '9999-01-01' is not a time between 1800"),
    "half seconds": (
        "time,a\n2024-01-01 00:00:00.0,1\n2024-01-01 00:00:00.5,1\n",
        "line 3, column 'time': time steps",
    ),
    "same time": (
        "time,a\n2024-01-02,2\n2024-01-01,1\n2024-01-01,2\n",
        "line 4: 2024-01-01 00:00:00 is also in line 3, with other readings: keep one; if clocks were set"
        " back then, set their time zone, like --set data.timezone=Europe/Paris",
    ),
    "numbers instead of names in a long table": (
        "t,a,b\n2024-01-01,1,2\n2024-01-01,2,2\n",
        "line 3: 2024-01-01 00:00:00 is also in line 2, with other readings: keep one; if the table has a"
        " row per time and sensor, call its columns time, id and value",
    ),
    "same time of a sensor": (
        "time,id,value\n2024-01-01,x,2\n2024-01-01,y,2\n2024-01-01,x,3\n",
        "line 4: 2024-01-01 00:00:00 of sensor 'x' is also in line 2, with other readings: keep one; if",
    ),
    "two values in a long table": (
        "time,id,speed,flow\n2024-01-01,x,2,3\n",
        "holds several variables (speed, flow): keep one",
    ),
    "no sensor in a long table": (
        "time,id,value\n2024-01-01,x,2\n2024-01-01,,2\n",
        "line 3, column 'id': this row has no sensor id",
    ),
    "same sensor": ("time,a,a\n2024-01-01,1,2\n", "column 'a': this sensor id occurs twice"),
    "infinite": ("time,a\n2024-01-01,inf\n", "line 2, column 'a': a reading beyond 1e+12"),
    "beyond float32": ("time,a\n2024-01-01,1e300\n", "column 'a': a reading beyond 1e+12"),
    "two times": ("date,time,a\n2024-01-01,2024-01-01 00:00,1\n", "two columns of times, 'date' and 'time'"),
    "nameless sensor": ("time,a,\n2024-01-01,1,2\n", "line 1: column 3 has no name"),
    "no header": ("2024-01-01,1\n2024-01-02,2\n", "line 1: the first line must name the columns"),
    "blank first line": ("\ntime,a\n2024-01-01,1\n", "line 1: the first line must name the columns"),
    "only a header": ("time,a\n", "holds no readings"),
    "bars": ("time|a\n2024-01-01|1\n", "line 1: a column of times and one per sensor"),
    "nothing": ("", "the file is empty"),
    "binary": (bytes(range(256)) * 9, "not text in UTF-8, UTF-16 or Latin-1"),
    "zeros": (b"\0" * 100, "line 1: the first line must name the columns"),
    "half of UTF-16": ("time,a\n2024-01-01,1\n".encode("utf-16")[:-1], "not text in UTF-8, UTF-16 or"),
    "UTF-32": ("time,a\n2024-01-01,1\n".encode("utf-32"), "not text in UTF-8, UTF-16 or"),
    "UTF-8 that was cut": (
        "time,Zürich\n2024-01-01,1\n2024-01-02,ü\n".encode()[:-2],
        "line 3: this UTF-8 file has a damaged character",
    ),
    "latin1 further down": (
        "time,a\n2024-01-01,1\n2024-01-02,é\n".encode("latin1"),
        "line 3, column 'a': 'é' is not a number like 12.5",
    ),
}


@pytest.mark.parametrize(("content", "sentence"), BAD_CSV.values(), ids=BAD_CSV.keys())
def test_bad_csv_is_told_in_a_sentence_that_names_the_place(tmp_path, content, sentence):
    with pytest.raises(DataError) as caught:
        read_csv(tmp_path, content)
    assert sentence in str(caught.value)
    assert str(tmp_path / "readings.csv") in str(caught.value)


@pytest.mark.parametrize("tz", [None, "America/Los_Angeles"])
@pytest.mark.parametrize("unit", ["s", "us", "ns"])
def test_parquet_with_a_time_index(tmp_path, unit, tz):
    table = frame(unit=unit, tz=tz)
    readings = read_parquet(tmp_path, table)
    np.testing.assert_array_equal(readings.values, table.to_numpy(np.float32))
    assert str(readings.times[0]) == ("2024-01-01T00:00:00" if tz is None else "2024-01-01T08:00:00")


def test_parquet_with_times_as_text_in_a_column(tmp_path):
    table = frame()
    table.insert(1, "date", table.index.strftime("%Y-%m-%d %H:%M"))
    readings = read_parquet(tmp_path, table.reset_index(drop=True))
    assert readings.ids == ("a", "b")
    assert str(readings.times[-1]) == "2024-01-01T00:15:00"


def test_parquet_with_whole_numbers_and_nulls(tmp_path):
    whole = frame().assign(
        a=pd.array([1, None, 3, 4], dtype="Int64"), b=pd.array([1, 2, 3, None], dtype=object)
    )
    readings = read_parquet(tmp_path, whole)
    np.testing.assert_array_equal(readings.missing, [[0, 0], [1, 0], [0, 0], [0, 1]])


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        (frame().assign(b=["1", "x", None, "2"]), "row 2, column 'b': 'x' is not a number"),
        (frame().assign(b=True), "row 1, column 'b': 'True' is not a number"),
        (frame().assign(b=pd.Timestamp("2024-01-01")), "row 1, column 'b': '2024-01-01"),
        (frame().reset_index(drop=True), "row 1, column 'a': '0.0' is not a time"),
        (frame()[[]], "holds no readings"),
        (frame()[:0], "holds no readings"),
        (frame().set_index("a", append=True), "names of one level"),
    ],
)
def test_bad_parquet_is_told_in_a_sentence(tmp_path, table, sentence):
    with pytest.raises(DataError, match=r"readings\.parquet") as caught:
        read_parquet(tmp_path, table)
    assert sentence in str(caught.value)


def test_parquet_with_a_sensor_twice_is_refused(tmp_path):
    times = pa.array(frame().index)
    table = pa.Table.from_arrays([times, pa.array([1.0] * 4), pa.array([2.0] * 4)], ["time", "a", "a"])
    pq.write_table(table, tmp_path / "readings.parquet")
    with pytest.raises(DataError, match=r"column 'a'|cannot be read as parquet"):
        read_readings(tmp_path / "readings.parquet")


@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("columns", [("773869", "cé"), (400001, 400017)])
def test_hdf_of_fixed_format(tmp_path, columns, unit, transposed):
    table = frame(columns, unit)
    table.columns = table.columns.map(lambda name: name.encode() if isinstance(name, str) else name)
    readings = read_readings(write_fixed(tmp_path / "x.h5", table, "speed", transposed=transposed))
    assert readings.ids == tuple(map(str, columns))
    np.testing.assert_array_equal(readings.values, table.to_numpy(np.float32))
    assert [str(time) for time in readings.times[:2]] == ["2024-01-01T00:00:00", "2024-01-01T00:05:00"]


def test_hdf_of_an_old_pandas_has_nanoseconds_without_saying_so(tmp_path):
    readings = read_readings(write_fixed(tmp_path / "x.h5", frame(), kind="datetime64"))
    assert str(readings.times[1]) == "2024-01-01T00:05:00"


def test_hdf_with_a_time_zone_has_times_in_utc(tmp_path):
    file = write_fixed(tmp_path / "x.h5", frame())
    with h5py.File(file, "a") as opened:
        opened["df/axis1"].attrs["tz"] = "Europe/Paris"
    readings = read_readings(file)
    assert readings.utc
    assert str(readings.times[1]) == "2024-01-01T00:05:00"


@pytest.mark.parametrize("tz", [None, "Europe/Paris", "UTC"])
def test_hdf_of_table_format_with_a_time_zone_has_times_in_utc(tmp_path, tz):
    table = frame(tz=tz)
    file = write_table(tmp_path / "x.h5", table.set_axis(table.index.tz_convert(None)) if tz else table, "a")
    about = {"freq": table.index.freq} | ({} if tz is None else {"tz": table.index.tz})
    with h5py.File(file, "a") as opened:
        info = pickle.dumps({1: {"names": [None], "type": "Index"}, "index": about}, protocol=0)
        opened["speed"].attrs["info"] = np.bytes_(info)
    readings = read_readings(file)
    assert readings.utc == (tz is not None)
    assert str(readings.times[0]) == (
        "2023-12-31T23:00:00" if tz == "Europe/Paris" else "2024-01-01T00:00:00"
    )


def test_hdf_of_table_format_restores_the_order_of_columns(tmp_path):
    table = frame(["b", "c", "a"])
    readings = read_readings(write_table(tmp_path / "x.h5", table, "c"))
    assert readings.ids == ("b", "c", "a")
    np.testing.assert_array_equal(readings.values, table.to_numpy(np.float32))


def bad_hdf(path: Path) -> dict[str, str]:
    """File names and what has to be said about them."""
    write_fixed(path / "two.h5", frame(), "df")
    write_fixed(path / "two.h5", frame(), "more")
    with h5py.File(path / "none.h5", "w") as file:
        file["speed"] = np.zeros((3, 3))
    write_fixed(path / "rows.h5", frame(), kind="integer")
    write_table(path / "codes.h5", frame(), "a", meta="category")
    write_table(path / "code.h5", frame(), "a")
    with h5py.File(path / "code.h5", "a") as file:
        file["speed/table"].attrs["a_kind"] = np.bytes_(f"cos\nsystem\n(S'touch {path}/pwned'\ntR.".encode())
    write_fixed(path / "text.h5", frame())
    with h5py.File(path / "text.h5", "a") as file:
        del file["df/block0_values"]
        file["df"].create_dataset("block0_values", data=["x"] * 4, dtype=h5py.string_dtype())
    (path / "junk.h5").write_bytes(b"junk" * 100)
    return {
        "two.h5": "must hold one pandas table, but holds 2",
        "none.h5": "must hold one pandas table, but holds 0",
        "rows.h5": "row 1, column 'a': '0.0' is not a time",
        "codes.h5": "does not hold numbers",
        "code.h5": "it asks for 'os.system'",
        "text.h5": "column 'a' does not hold numbers",
        "junk.h5": "cannot be read as a pandas HDF file",
    }


def test_bad_hdf_is_told_in_a_sentence(tmp_path):
    for name, sentence in bad_hdf(tmp_path).items():
        with pytest.raises(DataError, match=name) as caught:
            read_readings(tmp_path / name)
        assert sentence in str(caught.value)
    assert not (tmp_path / "pwned").exists()


def test_other_names_and_folders_are_refused(tmp_path):
    (tmp_path / "readings.csv").mkdir()
    (tmp_path / "readings.xlsx").write_bytes(b"PK")
    for name in ("readings.csv", "readings.xlsx", "readings.h5"):
        with pytest.raises(DataError, match=r"not a file that ends in \.csv"):
            read_readings(tmp_path / name)


def only_readings_or_data_error(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    sentence = ""
    try:
        assert isinstance(read_readings(file), Readings)
    except DataError as error:
        sentence = str(error)
    assert "\n" not in sentence


@st.composite
def mutated(draw, content: bytes) -> bytes:
    """A valid file with a few bytes overwritten, and perhaps a piece cut out or doubled."""
    changed = bytearray(content)
    for _ in range(draw(st.integers(0, 4))):
        changed[draw(st.integers(0, len(changed) - 1))] = draw(st.integers(0, 255))
    start, stop = sorted(draw(st.tuples(*[st.integers(0, len(changed))] * 2)))
    edit = draw(st.sampled_from(["keep", "keep", "cut", "double"]))
    piece = {"keep": changed[start:stop], "cut": b"", "double": changed[start:stop] * 2}[edit]
    return bytes(changed[:start] + piece + changed[stop:])


def bytes_of(kind: str) -> bytes:
    buffer = io.BytesIO()
    frame(rows=3).to_parquet(buffer)
    return {"csv": CSV, "parquet": buffer.getvalue()}[kind]


@FUZZ
@given(content=st.binary(max_size=300) | mutated(CSV))
def test_any_csv_gives_readings_or_a_data_error(tmp_path_factory, content):
    only_readings_or_data_error(tmp_path_factory.getbasetemp() / "fuzz.csv", content)


@FUZZ
@given(text=st.text("0123456789-:T .,\n\r\"'ae+Z\0é;", max_size=60))
def test_any_text_below_a_header_gives_readings_or_a_data_error(tmp_path_factory, text):
    only_readings_or_data_error(tmp_path_factory.getbasetemp() / "fuzz.csv", CSV + text.encode())


@FUZZ
@given(content=st.binary(max_size=300) | mutated(bytes_of("parquet")))
def test_any_parquet_gives_readings_or_a_data_error(tmp_path_factory, content):
    only_readings_or_data_error(tmp_path_factory.getbasetemp() / "fuzz.parquet", content)


@pytest.fixture(scope="module")
def hdf_files(tmp_path_factory) -> list[bytes]:
    folder = tmp_path_factory.mktemp("hdf")
    files = [write_fixed(folder / "fixed.h5", frame()), write_table(folder / "table.h5", frame(), "a")]
    return [file.read_bytes() for file in files]


@FUZZ
@given(data=st.data())
def test_any_hdf_gives_readings_or_a_data_error(tmp_path_factory, hdf_files, data):
    content = data.draw(st.sampled_from(hdf_files).flatmap(mutated) | st.binary(max_size=300))
    only_readings_or_data_error(tmp_path_factory.getbasetemp() / "fuzz.h5", content)
