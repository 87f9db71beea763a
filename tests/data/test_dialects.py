"""The same readings, written in the many ways people have, are read back the same."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cnfgnn.data.files.adjacency import detected, read_edges, read_positions
from cnfgnn.data.files.columns import ID_NAMES, TIME_NAMES, VALUE_NAMES
from cnfgnn.data.files.folder import load, load_readings
from cnfgnn.data.files.formats import read_readings
from cnfgnn.data.files.times import RowLocations, clock_to_utc
from cnfgnn.data.options import ReadingOptions
from cnfgnn.data.readings import Readings
from cnfgnn.errors import ConfigError, DataError

FUZZ = settings(max_examples=80, deadline=None, derandomize=True)
DATES = {
    "iso": "%Y-%m-%d",
    "slashes": "%Y/%m/%d",
    "day-first": "%d/%m/%Y",
    "dots": "%d.%m.%Y",
    "month-first": "%m/%d/%Y",
}
CLOCKS = {"minutes": "%H:%M", "seconds": "%H:%M:%S", "halves": "%I:%M %p"}
ZONES = {  # and a time shortly before clocks are set back, forward
    "Europe/Paris": ("2024-10-26 20:00", "2024-03-30 20:00"),
    "America/Los_Angeles": ("2024-11-02 20:00", "2024-03-09 20:00"),
    "Australia/Lord_Howe": ("2024-04-06 20:00", "2024-10-05 20:00"),  # by half an hour
    "Asia/Kolkata": ("2024-01-01 00:00", "2024-06-01 00:00"),
}


@dataclass(frozen=True)
class Dialect:
    separator: str
    decimal: str
    encoding: str
    date: str
    clock: str
    apart: bool  # day and clock time in two columns
    is_long: bool
    order: str
    doubled: int  # rows, written twice
    nothing: str
    newline: str


@st.composite
def dialects(draw) -> Dialect:
    return Dialect(
        separator=draw(st.sampled_from([",", ";", "\t"])),
        decimal=draw(st.sampled_from([".", ","])),
        encoding=draw(st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "latin-1"])),
        date=draw(st.sampled_from(sorted(DATES))),
        clock=draw(st.sampled_from(sorted(CLOCKS))),
        apart=draw(st.booleans()),
        is_long=draw(st.booleans()),
        order=draw(st.sampled_from(["up", "down", "by sensor"])),
        doubled=draw(st.integers(0, 2)),
        nothing=draw(st.sampled_from(["", "-", "?", "NA", "n/a", "null", "NaN"])),
        newline=draw(st.sampled_from(["\n", "\r\n"])),
    )


def named(name: str) -> bool:
    return name.strip().lower() in TIME_NAMES | ID_NAMES | VALUE_NAMES


IDS = st.lists(
    st.text("abÄöüßé01 _-.,;/", min_size=1, max_size=6)
    .map(lambda name: "n" + name.strip())
    .filter(lambda name: not named(name)),
    min_size=1,
    max_size=4,
    unique=True,
)


@st.composite
def readings(draw) -> pd.DataFrame:
    start = pd.Timestamp("2024-01-01") + pd.Timedelta(days=draw(st.integers(0, 400)))
    step = draw(st.sampled_from([5, 30, 60, 24 * 60]))
    index = pd.date_range(start, periods=draw(st.integers(2, 12)), freq=f"{step}min")
    ids = draw(IDS)
    hundredths = st.none() | st.integers(-99999, 99999)
    cells = draw(st.lists(hundredths, min_size=len(index) * len(ids), max_size=len(index) * len(ids)))
    values = np.array([np.nan if cell is None else cell / 100 for cell in cells]).reshape(len(index), -1)
    return pd.DataFrame(values, index=index, columns=ids)


def written(table: pd.DataFrame, dialect: Dialect, draw_order: Sequence[int] | None = None) -> bytes:
    """A file of readings in a dialect."""

    def number(value: float) -> str:
        return dialect.nothing if np.isnan(value) else f"{value:.2f}".replace(".", dialect.decimal)

    rows = []
    for time, row in zip(table.index, table.to_numpy(), strict=True):
        day, clock = time.strftime(DATES[dialect.date]), time.strftime(CLOCKS[dialect.clock])
        when = [day, clock] if dialect.apart else [f"{day} {clock}"]
        if dialect.is_long:
            rows += [[*when, name, number(value)] for name, value in zip(table.columns, row, strict=True)]
        else:
            rows.append([*when, *map(number, row)])
    if dialect.order == "down":
        rows.reverse()
    if dialect.is_long and dialect.order == "by sensor":
        rows.sort(key=lambda row: list(table.columns).index(row[-2]))
    if draw_order is not None:
        rows = [rows[k % len(rows)] for k in [*range(len(rows)), *draw_order]]
    header = ["Tag", "Uhr"] if dialect.apart else ["time"]
    header += ["id", "value"] if dialect.is_long else list(table.columns)
    file = io.StringIO(newline="")
    writer = csv.writer(file, delimiter=dialect.separator, lineterminator=dialect.newline)
    writer.writerows([header, *rows])
    return file.getvalue().encode(dialect.encoding)


def options_for(table: pd.DataFrame, dialect: Dialect, zone: str = "") -> ReadingOptions:
    """What must be said where the days of a table leave it open."""
    dates = {"dots": "day-first"}.get(dialect.date, dialect.date)
    unclear = dates in ("day-first", "month-first") and (table.index.day <= 12).all()
    return ReadingOptions(dates=dates if unclear else "auto", timezone=zone)


def read(folder: Path, content: bytes, options: ReadingOptions) -> Readings:
    (folder / "readings.csv").write_bytes(content)
    return read_readings(folder / "readings.csv", options)


def assert_same(found: Readings, table: pd.DataFrame) -> None:
    assert sorted(found.ids) == sorted(table.columns)
    assert found.times.tolist() == table.index.to_numpy("datetime64[s]").tolist()
    np.testing.assert_array_equal(found.select(list(table.columns)).values, table.to_numpy(np.float32))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("dialects")


@FUZZ
@given(table=readings(), dialect=dialects(), again=st.lists(st.integers(0, 1000), max_size=3))
def test_a_table_in_any_dialect_is_read_back(folder, table, dialect, again):
    found = read(folder, written(table, dialect, again), options_for(table, dialect))
    assert_same(found, table)
    told = "; ".join(found.notes)
    assert ("semicolons" in told) == (dialect.separator == ";")
    assert ("Latin-1" in told) == (
        dialect.encoding == "latin-1" and any(not name.isascii() for name in table.columns)
    )
    assert ("a row per time and sensor" in told) == dialect.is_long
    assert ("clock times in column 'Uhr'" in told) == dialect.apart
    assert ("repeat" in told) == bool(again)


@FUZZ
@given(table=readings(), dialect=dialects(), data=st.data())
def test_rows_in_any_order_are_sorted(folder, table, dialect, data):
    order = data.draw(st.permutations(range(len(table))))
    found = read(folder, written(table.iloc[order], dialect), options_for(table, dialect))
    assert_same(found, table)


@FUZZ
@given(
    dialect=dialects().filter(lambda d: d.clock != "halves"),
    zone=st.sampled_from(sorted(ZONES)),
    when=st.integers(0, 1),
    step=st.sampled_from([10, 30, 60]),
    missing=st.integers(0, 80),
)
def test_clock_times_of_a_zone_become_utc_when_clocks_are_set(folder, dialect, zone, when, step, missing):
    """Rows in sequence, up or down; one may be missing, but not one of an hour that occurs twice."""
    times = pd.date_range(ZONES[zone][when], periods=14 * 60 // step, freq=f"{step}min", tz=zone)
    values = np.arange(2.0 * len(times)).reshape(-1, 2)
    clock = pd.DataFrame(values, index=times.tz_localize(None), columns=["a", "b"])
    utc = pd.DataFrame(values, index=times.tz_convert("UTC").tz_localize(None), columns=["a", "b"])
    if not clock.index.duplicated(keep=False)[missing % len(times)]:
        keep = np.arange(len(times)) != missing % len(times)
        clock, utc = clock[keep], utc[keep]
    found = read(folder, written(clock, dialect), options_for(clock, dialect, zone))
    assert_same(found, utc)
    assert found.utc
    assert any(f"of {zone} were converted to UTC" in note for note in found.notes)


def test_a_repeated_hour_needs_a_zone_and_rows_in_sequence(tmp_path):
    rows = ["2024-10-27 02:00;1", "2024-10-27 02:30;2", "2024-10-27 02:00;3", "2024-10-27 02:30;4"]
    around = ["2024-10-27 01:30;0", *rows, "2024-10-27 03:00;5"]
    with pytest.raises(DataError, match=r"line 5: .* line 3, .* --set data\.timezone=Europe/Paris"):
        read(tmp_path, "\n".join(["time;a", *around]).encode(), ReadingOptions())
    mixed = [around[5], *around[:5], "2024-10-27 04:00;6"]
    with pytest.raises(
        DataError, match="line 4 is in an hour that occurs twice, and the rows are not in sequence"
    ):
        read(tmp_path, "\n".join(["time;a", *mixed]).encode(), ReadingOptions(timezone="Europe/Paris"))
    twice = [around[0], rows[0], rows[0], *around[2:]]
    found = read(tmp_path, "\n".join(["time;a", *twice]).encode(), ReadingOptions(timezone="Europe/Paris"))
    assert found.values[:, 0].tolist() == [0, 1, 2, 3, 4, 5]
    assert str(found.times[0]) == "2024-10-26T23:30:00"


@FUZZ
@given(
    zone=st.sampled_from(sorted(ZONES)),
    step=st.sampled_from([10, 30, 60, 240]),
    begin=st.integers(0, 47),
    kept=st.sets(st.integers(0, 79), min_size=1),
    until=st.integers(1, 80),
)
@example(zone="Europe/Paris", step=240, begin=21, kept=set(range(9)), until=2)
def test_rows_that_are_added_later_change_no_time_before_them(zone, step, begin, kept, until):
    """Whatever rows are missing: a reading that was sent as a copy of one time must not get another one."""
    start = pd.Timestamp(ZONES[zone][0]) + pd.Timedelta(minutes=10 * begin)
    times = pd.date_range(start, periods=80, freq=f"{step}min", tz=zone)[sorted(kept)]
    clock = times.tz_localize(None).to_numpy("datetime64[s]")
    options, locations = ReadingOptions(timezone=zone), RowLocations(Path("x.csv"))
    try:
        whole, _ = clock_to_utc(clock, options.zone, "time", options, locations)
    except DataError:
        return
    before, _ = clock_to_utc(clock[:until], options.zone, "time", options, locations)
    assert before.tolist() == whole[:until].tolist()


def test_a_file_that_begins_in_a_repeated_hour_is_refused(tmp_path):
    content, options = (
        b"time,a\n2024-10-27 02:30,1\n2024-10-27 03:00,2\n",
        ReadingOptions(timezone="Europe/Paris"),
    )
    with pytest.raises(
        DataError, match=r"line 2 is in an hour that occurs twice, and no row before it tells"
    ):
        read(tmp_path, content, options)
    found = read(tmp_path, content.replace(b",1", b"+01:00,1").replace(b",2", b"+01:00,2"), options)
    assert str(found.times[0]) == "2024-10-27T01:30:00"


def test_a_time_that_clocks_skip_is_refused_with_the_zone_of_a_clock_that_is_never_changed(tmp_path):
    content = b"time,a\n2024-03-31 01:30,1\n2024-03-31 02:00,2\n2024-03-31 02:30,3\n"
    with pytest.raises(
        DataError, match=r"line 3, column 'time': .* does not exist .* --set data\.timezone=\+01:00"
    ):
        read(tmp_path, content, ReadingOptions(timezone="Europe/Paris"))
    found = read(tmp_path, content, ReadingOptions(timezone="+01:00"))
    assert str(found.times[0]) == "2024-03-31T00:30:00"


def test_times_with_an_offset_need_no_zone(tmp_path):
    found = read(tmp_path, b"time,a\n2024-01-01T00:00+01:00,1\n", ReadingOptions(timezone="Asia/Tokyo"))
    assert str(found.times[0]) == "2023-12-31T23:00:00"
    assert "data.timezone is not used" in found.notes[0]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"dates": "first"}, "data.dates: cannot be 'first'"),
        ({"decimal": ","}, "data.decimal: cannot be ','"),
        ({"timezone": "Mars/North"}, "data.timezone: there is no time zone 'Mars/North'"),
        ({"timezone": "../etc/passwd"}, "there is no time zone"),
        ({"timezone": "+25:00"}, "there is no time zone"),
        ({"timezone": 3, "place": "site.toml"}, "site.toml: reading.timezone: there is no time zone 3"),
    ],
)
def test_an_option_that_cannot_be_is_refused_by_its_name(options, sentence):
    with pytest.raises(ConfigError) as caught:
        ReadingOptions(**options)
    assert sentence in str(caught.value)


def test_the_order_of_day_and_month_is_that_of_the_whole_column_or_as_said(tmp_path):
    column = [f"{day:02}/02/2024" for day in range(9, 15)]
    content = "\n".join(["time,a", *(f"{day},1" for day in column)]).encode()
    assert str(read(tmp_path, content, ReadingOptions()).times[0]) == "2024-02-09T00:00:00"
    with pytest.raises(
        DataError, match=r"line 6, .*'13/02/2024' is not month-first, although data\.dates says"
    ):
        read(tmp_path, content, ReadingOptions(dates="month-first"))
    short = "\n".join(["time,a", *(f"{day},1" for day in column[:2])]).encode()
    assert str(read(tmp_path, short, ReadingOptions(dates="month-first")).times[0]) == "2024-09-02T00:00:00"
    both = read(tmp_path, b"time,a\n01/01/2024 00:00,1\n01/01/2024 01:00,1\n", ReadingOptions())
    assert (len(both.times), both.notes) == (2, ())


def test_a_decimal_comma_that_could_be_one_of_thousands_is_asked_for(tmp_path):
    content = b'time,a\n2024-01-01,"1,500"\n2024-01-02,"12,345"\n'
    with pytest.raises(
        DataError, match=r"line 2: '1,500' could be 1\.500 or 1500: decide with --set data\.decimal"
    ):
        read(tmp_path, content, ReadingOptions())
    found = read(tmp_path, content, ReadingOptions(decimal="comma"))
    np.testing.assert_array_equal(found.values[:, 0], np.array([1.5, 12.345], np.float32))
    decided = read(tmp_path, content + b'2024-01-03,"0,5"\n', ReadingOptions())
    np.testing.assert_array_equal(decided.values, np.array([[1.5], [12.345], [0.5]], np.float32))


def test_a_wide_table_with_a_slip_in_its_first_row_is_not_taken_for_a_long_one(tmp_path):
    with pytest.raises(DataError, match=r"line 2, column 'a': 'x' is not a number like 12\.5"):
        read(tmp_path, b"time,a,b\n2024-01-01,x,2\n2024-01-02,1,2\n2024-01-03,1,2\n", ReadingOptions())
    with pytest.raises(DataError, match=r"line 2, column 'a': 'x' is not a number like 12\.5"):
        read(tmp_path, b"time,a,b\n2024-01-01,x,2\n2024-01-01,1,2\n2024-01-01,1,2\n", ReadingOptions())


def test_a_wide_table_of_two_sensors_stays_one_whatever_they_are_called(tmp_path):
    found = read(tmp_path, b"time,sensor,outside\n2024-01-01,1,2\n2024-01-02,1,2\n", ReadingOptions())
    assert (found.ids, found.notes) == (("sensor", "outside"), ())


@pytest.mark.parametrize("as_text", [True, False])
@pytest.mark.parametrize("apart", [True, False])
def test_a_long_parquet_is_read_in_any_order(tmp_path, as_text, apart):
    times = pd.date_range("2024-01-01", periods=30, freq="h")
    table = pd.DataFrame({"when": times.repeat(2), "detector": [7, 8] * 30, "speed": np.arange(60.0)})
    if apart:
        clock = table["when"].dt.strftime("%H:%M") if as_text else table["when"].dt.time
        day = table["when"].dt.strftime("%d.%m.%Y") if as_text else table["when"].dt.normalize()
        table = table.assign(when=day).assign(clock=clock)
    elif as_text:
        table["when"] = table["when"].dt.strftime("%Y-%m-%d %H:%M")
    table = pd.concat([table, table[:3]]).sample(frac=1, random_state=1)
    table.to_parquet(tmp_path / "readings.parquet", index=False)
    options = ReadingOptions(dates="day-first")
    found = load_readings(tmp_path, options).select(["7", "8"])
    assert found.times.tolist() == times.to_numpy("datetime64[s]").tolist()
    np.testing.assert_array_equal(found.values, np.arange(60.0).reshape(30, 2))
    assert "3 repeated rows were left out" in found.notes


def test_rows_of_separators_alone_are_nothing(tmp_path):
    content = b"time;a;b\n2024-01-01;1;2\n;;\n2024-01-02;3;x\n;;\n"
    with pytest.raises(DataError, match=r"line 4, column 'b': 'x' is not"):
        read(tmp_path, content, ReadingOptions())
    assert len(read(tmp_path, content.replace(b"x", b"4"), ReadingOptions()).times) == 2
    with pytest.raises(DataError, match="holds no readings"):
        read(tmp_path, b"time;a;b\n;;\n", ReadingOptions())


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("decimal", [".", ","])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "latin-1"])
def test_sensors_and_edges_are_read_in_any_dialect(tmp_path, separator, decimal, encoding):
    def write(name: str, rows: list[list[str]]) -> Path:
        file = io.StringIO(newline="")
        csv.writer(file, delimiter=separator).writerows(rows)
        (tmp_path / name).write_bytes(file.getvalue().encode(encoding))
        return tmp_path / name

    def number(text: str) -> str:
        return text.replace(".", decimal)

    places = [["Zürich", number("47.123"), number("8.123")], ["Köln", number("50.123"), number("6.9")]]
    for header in ([["id", "latitude", "longitude"]], []):
        sensors = write("sensors.csv", header + places)
        assert read_positions(sensors) == {"Zürich": (47.123, 8.123), "Köln": (50.123, 6.9)}
    edges = write("edges.csv", [["from", "to", "weight"], ["Zürich", "Köln", number("0.5")]])
    assert [edge[1:] for edge in read_edges(edges)[0]] == [("Zürich", "Köln", 0.5)]
    write("readings.csv", [["time", "Zürich", "Köln"], *([f"2024-01-0{k}", "1", "2"] for k in (1, 2))])
    told = "; ".join(load(tmp_path).readings.notes)
    for file in (sensors, edges):
        assert detected(file) == () or detected(file)[0] in told
    assert ("decimal commas" in detected(edges)[0] if detected(edges) else False) == (decimal == ",")


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    header=st.sampled_from(
        ["time;a;b\n", "time\tid\tvalue\n", "date,time,a\n", "id;day;x\n", "t;a,b;c\n", ""]
    ),
    text=st.text('0123456789-:/.T ,;\t\n"?aPMü+Z', max_size=60)
    | st.lists(
        st.sampled_from(
            ["31.01.2024", "01/02/2024 2:30 PM", "2024-10-27 02:30", "08:05", "x", "1,5", "-", ";", "\n"]
        )
    ).map("".join),
    encoding=st.sampled_from(["utf-8", "utf-16", "latin-1"]),
    junk=st.binary(max_size=3),
    dates=st.sampled_from(["auto", "day-first", "month-first"]),
    decimal=st.sampled_from(["auto", "point", "comma"]),
    zone=st.sampled_from(["", "Europe/Paris", "-03:30"]),
)
def test_any_bytes_give_readings_or_one_sentence(folder, header, text, encoding, junk, dates, decimal, zone):
    sentence = ""
    options = ReadingOptions(dates=dates, decimal=decimal, timezone=zone)
    try:
        assert isinstance(read(folder, (header + text).encode(encoding) + junk, options), Readings)
    except DataError as error:
        sentence = str(error)
    assert "\n" not in sentence
