"""Files as people and programs write them: cut off, rolling, corrected, with lines that are no readings.

A service that has survived a line also starts with it, and has the same readings.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import cast
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cnfgnn.data.files.folder import load_readings
from cnfgnn.data.files.formats import read_variables
from cnfgnn.data.files.text import Lines
from cnfgnn.data.options import ReadingOptions
from cnfgnn.data.readings import Readings
from cnfgnn.data.refusals import Refusals
from cnfgnn.errors import DataError
from cnfgnn.files import write_whole
from cnfgnn.live.forecasting.predictor import Predictor
from cnfgnn.live.forecasting.schedule import Schedule
from cnfgnn.live.forecasting.service import LiveService
from cnfgnn.live.intake import folder_source, known_lines
from cnfgnn.live.intake.at_hand import with_stored
from cnfgnn.live.intake.clock import FeedClock, Zone
from cnfgnn.live.intake.folder_source import FolderSource
from cnfgnn.live.intake.observations import read_csv
from cnfgnn.live.intake.recent import Arrived, Cell
from cnfgnn.live.intake.store import ReadingStore
from cnfgnn.live.options import FEED, LiveSettings
from cnfgnn.live.start import parts_of_run, recent_readings
from cnfgnn.live.web.service_pages import health_of
from tests.live.small_service import KNOWN, SmallRun, make_small_run, serving
from tests.waiting import wait_for

HEADER = "time,a,b\n"
HASHES = [-3750050756802301640, 1760245841805064774, 3207917794791993904]  # of three lines


def row(number: int, a: object = None, b: object = None) -> str:
    """A row of a file, five minutes after the one before it."""
    day, minutes = divmod(number * 5, 1440)
    values = (number if a is None else a, 100 + number if b is None else b)
    return f"2024-01-{day + 1:02} {minutes // 60:02}:{minutes % 60:02},{values[0]},{values[1]}\n"


def rows(first: int, last: int) -> str:
    return "".join(row(number) for number in range(first, last))


class Folder:
    """A folder whose file somebody writes, and a service that follows it; the service can begin again."""

    def __init__(self, folder: Path, content: str) -> None:
        self.folder, self.file = folder, folder / "readings.csv"
        self.file.write_text(content)
        self.options, self.zone = ReadingOptions(), ZoneInfo("Europe/Paris")

    def follow(self, *writes: Callable[[], object]) -> None:
        """A service begins with what is there, looks at the file after each of these, and ends."""
        asyncio.run(self._follow(writes))

    async def _follow(self, writes: tuple[Callable[[], object], ...]) -> None:
        store, refusals = ReadingStore(self.folder / "state"), Refusals()
        read = load_readings(self.file, ReadingOptions(refusals=refusals))
        recent = recent_readings(read, store, zeros_missing=False)
        clock = FeedClock(recent.newest, recent.step)
        schedule = Schedule(recent.step, 60, 6)
        self.service = service = LiveService(
            cast(Predictor, None), recent, store, clock, Zone(read.utc, self.zone), schedule
        )
        self.source = source = FolderSource(service, self.folder, self.options, self.file.name)
        service.refuse(refusals.found)
        writing = asyncio.create_task(service._write())
        await source.look()
        for write in writes:
            before = write()
            if isinstance(before, Arrived):
                await service.take([before], "http")
            await source.look()
        writing.cancel()
        self.known = recent.until(recent.newest)
        service._close()

    def append(self, text: str, file: Path | None = None) -> Callable[[], object]:
        def write() -> None:
            with (file or self.file).open("a") as opened:
                opened.write(text)

        return write

    def replace(self, text: str) -> Callable[[], object]:
        """Write it aside and rename it."""

        def write() -> None:
            aside = self.folder / ".aside"
            aside.write_text(text)
            aside.rename(self.file)

        return write

    def write_over(self, text: str) -> Callable[[], object]:
        """The same file, with other content and another time."""

        def write() -> None:
            before = self.file.stat().st_mtime_ns
            with self.file.open("r+") as opened:
                opened.write(text)
                opened.truncate()
            os.utime(self.file, ns=(before + 10**9, before + 10**9))

        return write

    def values(self, number: int) -> list[float]:
        """What the service knows of a row."""
        moment = np.datetime64("2024-01-01T00:00", "s") + np.timedelta64(number * 300, "s")
        [found] = np.flatnonzero(self.known.times == moment)
        return cast(list[float], self.known.values[found].tolist())

    def counted(self, verdict: str) -> float:
        labels = {"source": "folder", "verdict": verdict}
        return self.service.metrics.registry.get_sample_value("cnfgnn_live_readings_total", labels) or 0.0


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path, HEADER + rows(0, 30))


# ---- lines that are no readings ---------------------------------------------------------------------------

BAD = {
    "garbage": ("nonsense\n", "line 32: 1 fields, but the header has 3"),
    "text": ("2024-01-01 02:30,wet,5\n", "line 32, column 'a': 'wet' is not a number"),
    "quote": ('2024-01-01 02:30,"5,5\n', "line 32: cannot be parsed as csv"),
    "no time": (
        "yesterday,5,5\n",
        "line 32, column 'time': 'yesterday' is not a time like '2024-01-01 00:00'",
    ),
    "no day": ("2024-13-01 02:30,5,5\n", "line 32, column 'time': '2024-13-01 02:30' is not a time"),
    "other time": ("2024-01-01 02:30Z,5,5\n", "line 32, column 'time': '2024-01-01 02:30Z' is not a time"),
    "implausible": ("2024-01-01 02:30,1e15,5\n", "line 32, column 'a': a reading beyond 1e+12"),
    "future": ("2031-01-01 00:00,5,5\n", "line 32, column 'time': 2031-01-01 00:00:00 has not come yet"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_line_that_a_running_service_refuses_is_refused_at_the_next_start(
    kind: str, folder: Folder, caplog: pytest.LogCaptureFixture
) -> None:
    line, says = BAD[kind]
    folder.follow(folder.append(line + row(31)))
    running = folder.known
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 1
    assert says in told[0]
    assert folder.values(31) == [31, 131]
    verdict = "from the future" if kind == "future" else "unreadable line"
    assert folder.counted(verdict) == 1
    assert list(folder.service.refused.values()) == [told[0].removeprefix("folder: ")]
    caplog.clear()
    folder.follow(folder.append(row(32)), folder.append(row(33)))
    assert len(caplog.records) == 1, "it is named once"
    assert folder.values(31) == [31, 131]
    assert folder.values(33) == [33, 133]
    np.testing.assert_array_equal(folder.known.values[:-2], running.values[2:])
    if kind != "future":
        with pytest.raises(DataError, match=r"line 3[25]"):  # training is stricter, and says so
            load_readings(folder.file)


def test_a_corrected_row_counts_running_and_at_the_next_start(folder: Folder) -> None:
    folder.follow(folder.append(row(25, 7.5, "")))
    assert folder.values(25) == [7.5, 125]
    assert folder.counted("corrected") == 1
    folder.follow()
    assert folder.values(25) == [7.5, 125]
    (folder.folder / "state" / "live.sqlite").unlink()
    folder.follow()
    assert folder.values(25) == [7.5, 125]
    with pytest.raises(
        DataError, match="line 32: 2024-01-01 02:05:00 is also in line 27, with other readings"
    ):
        load_readings(folder.file)


def test_a_reading_between_two_steps_counts_for_the_nearest_running_and_at_the_next_start(
    folder: Folder,
) -> None:
    line = row(31, 5.5, 6.5).replace("02:35", "02:36")
    folder.follow(folder.append(line))
    assert folder.values(31) == [5.5, 6.5]
    (folder.folder / "state" / "live.sqlite").unlink()
    folder.follow()
    assert folder.values(31) == [5.5, 6.5]


def test_what_was_refused_is_seen_until_the_file_is_mended(folder: Folder) -> None:
    folder.follow(folder.append("nonsense\n" + row(31)))
    told = health_of(folder.service)["refused"]
    assert told["lines"] == 1
    assert told["last"][0].endswith("readings.csv, line 32: 1 fields, but the header has 3")
    folder.follow(folder.replace(HEADER + rows(0, 30) + row(31)))
    assert "refused" not in health_of(folder.service)


def test_a_bad_line_among_many_does_not_slow_the_others_down(tmp_path: Path) -> None:
    content = HEADER + rows(0, 4000) + "nonsense\n" + rows(4000, 8000)
    file = tmp_path / "readings.csv"
    file.write_text(content)
    refusals = Refusals()
    found = load_readings(file, ReadingOptions(refusals=refusals))
    assert len(found.times) == 8000
    assert [one.error.line for one in refusals.found] == [4002]


PIECES = ["2024-01-01 00:05", "2024-10-27 02:30", "2024-03-31 02:30", "31/01/2024", "", "1", "1e99", "x", "é"]
ANY_LINE = st.one_of(
    st.binary(max_size=30),
    st.lists(st.sampled_from(PIECES), max_size=5).map(lambda cells: ",".join(cells).encode()),
    st.sampled_from([b'"', b"\0" * 9, b"\xff\xfe", "é;ü".encode("cp1252"), b"\r", b"time,a,b", b"  "]),
)


@given(st.lists(ANY_LINE, max_size=5), st.lists(ANY_LINE, max_size=5), st.sampled_from(["", "Europe/Paris"]))
@settings(deadline=None, max_examples=60)
def test_whatever_is_written_between_good_lines_they_are_read(
    first: list[bytes], last: list[bytes], timezone: str
) -> None:
    good = rows(0, 9).encode().splitlines()
    lines = [HEADER.encode().strip(), *first, *good, *last, b""]
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "readings.csv"
        file.write_bytes(b"\n".join(lines))
        options = ReadingOptions(timezone=timezone, refusals=Refusals())
        [found] = read_variables(file, options, regular=False).values()
    seconds = found.seconds.tolist()
    begin = int(pd.Timestamp("2024-01-01", tz=timezone or "UTC").timestamp())
    for number in range(9):
        assert begin + 300 * number in seconds
        if number != 1:  # which a line may correct
            assert found.values[seconds.index(begin + 300 * number)].tolist() == [number, 100 + number]


# ---- half a line ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", range(len(row(30, 5.5, 7.25))))
def test_a_line_is_none_before_it_has_ended(cut: int, tmp_path: Path) -> None:
    line = row(30, 5.5, 7.25)
    folder = Folder(tmp_path, HEADER + rows(0, 30) + line[:cut])
    os.utime(folder.file, (0, 0))  # it has not changed for long
    folder.follow(lambda: None)
    assert not np.isin(folder.known.times, np.datetime64("2024-01-01T02:30")).any()
    folder.follow(folder.append(line[cut:]))
    assert folder.values(30) == [5.5, 7.25]
    assert not folder.service.refused
    folder.follow()
    assert folder.values(30) == [5.5, 7.25]


# ---- lines that only the whole file explains --------------------------------------------------------------


def test_new_lines_of_a_long_table_that_is_sorted_by_sensor_are_read(tmp_path: Path) -> None:
    """Ids are numbers, so that only times that occur several times tell that it is a long table."""

    def lines(first: int, last: int, sensor: int) -> str:
        return "".join(f"{row(number)[:16]},{sensor},{number}\n" for number in range(first, last))

    folder = Folder(tmp_path, "time,station,speed\n" + lines(0, 30, 100) + lines(0, 30, 101))
    folder.follow(folder.append(lines(30, 31, 100) + lines(30, 31, 101)), folder.append(lines(31, 32, 101)))
    assert folder.values(30) == [30, 30]
    assert folder.values(31)[1] == 31
    assert not folder.service.refused


def test_new_dates_are_day_first_if_any_line_of_the_file_shows_it(tmp_path: Path) -> None:
    hours = pd.date_range("2026-09-05", "2026-10-01 03:00", freq="h")
    lines = [f"{hour:%d/%m/%Y %H:%M},{number},5\n" for number, hour in enumerate(hours)]
    folder = Folder(tmp_path, HEADER + "".join(lines[:-4]))
    folder.follow(*map(folder.append, lines[-4:]))
    assert folder.known.times[-1] == np.datetime64("2026-10-01T03:00")
    assert folder.counted("new") == 8
    assert not folder.service.refused


def test_many_new_lines_without_an_offset_are_refused_like_few(tmp_path: Path) -> None:
    folder = Folder(tmp_path, HEADER + "".join(f"{row(number)[:16]}Z,1,2\n" for number in range(50)))
    folder.follow(folder.append(rows(50, 75)))
    assert folder.counted("unreadable line") == 25
    assert folder.known.times[-1] == np.datetime64("2024-01-01T04:05")


def test_many_new_lines_with_an_offset_are_refused_like_few(folder: Folder) -> None:
    folder.follow(folder.append("".join(f"{row(number)[:16]}Z,1,2\n" for number in range(30, 60))))
    assert folder.counted("unreadable line") == 30


def test_every_new_line_of_a_file_that_cannot_be_understood_is_named_until_it_can(folder: Folder) -> None:
    other = folder.folder / "readings-2.csv"
    told: list[str] = []
    folder.follow(
        folder.append(HEADER + "02/01/2024 00:00,5,6\n", other),
        folder.append("02/01/2024 00:05,5,6\n", other),
        folder.append("02/01/2024 00:10,5,6\n", other),
        lambda: told.extend(folder.service.refused.values()),
        folder.append("31/12/2023 23:55,5,6\n", other),
    )
    assert len(told) == 3
    assert "readings-2.csv, line 3: cannot be read: " in told[1]
    assert "readings-2.csv, line 4: cannot be read: " in told[2]
    assert all("could be day-first or month-first" in sentence for sentence in told)
    assert folder.counted("new") == 8
    assert not folder.service.refused


def test_a_sensor_that_the_service_does_not_know_is_named_once(
    folder: Folder, caplog: pytest.LogCaptureFixture
) -> None:
    other = folder.folder / "readings-2.csv"
    folder.follow(folder.append("time,c,a\n" + row(30), other), folder.append(row(31), other))
    [told] = folder.service.refused.values()
    assert told == f"{other}, sensor 'c': the service does not know it, so that its readings are left out"
    assert [record.getMessage() for record in caplog.records] == [f"folder: {told}"]
    assert (folder.counted("unknown sensor"), folder.counted("unreadable line")) == (2, 0)


def test_times_with_an_offset_are_local_times_in_a_run_without_a_zone(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in JSON, also in a zone that is behind UTC, where they seem to be of the future."""
    latest = pd.Timestamp("2024-01-01 02:37").timestamp()
    monkeypatch.setattr(FeedClock, "latest", lambda clock, step: latest)
    for zone, offset in (("Europe/Paris", 1), ("America/New_York", -5)):
        folder.zone = ZoneInfo(zone)
        start = pd.Timestamp("2024-01-01 02:30") - pd.Timedelta(hours=offset)
        text = "".join(f"{start + pd.Timedelta(minutes=m)}Z,{offset},{m}\n" for m in (0, 5))
        other = folder.folder / f"readings-{offset}.csv"
        folder.follow(folder.append(HEADER + text, other))
        assert (folder.values(30), folder.values(31)) == ([offset, 0], [offset, 5])
        assert not folder.service.refused
        upload = folder.folder / "upload.csv"
        upload.write_text(HEADER + text)
        found = read_csv(upload, ReadingOptions(), "the body", zone=folder.service.zone)
        moment = folder.service.zone.read(f"{start}Z")
        assert [one.seconds for one in found] == [moment, moment, moment + 300, moment + 300]


def test_of_two_readings_in_the_hour_that_clocks_repeat_the_later_counts_in_a_run_without_a_zone(
    tmp_path: Path,
) -> None:
    upload = tmp_path / "upload.csv"
    upload.write_text("time,a,b\n2024-10-27 00:30Z,1,2\n2024-10-27 00:40Z,3,4\n2024-10-27 01:30Z,5,\n")
    found = read_csv(upload, ReadingOptions(), "the body", zone=Zone(False, ZoneInfo("Europe/Paris")))
    first = pd.Timestamp("2024-10-27 02:30").timestamp()
    assert [(one.sensor, one.seconds, one.value) for one in found] == [
        ("a", first, 5),
        ("b", first, 2),
        ("a", first + 600, 3),
        ("b", first + 600, 4),
    ]


# ---- files that are written anew --------------------------------------------------------------------------


def test_no_row_of_a_rolling_file_is_lost(folder: Folder) -> None:
    """The oldest row goes, and the newest is three bytes longer."""
    steps = [
        folder.replace(HEADER + rows(first, first + 29) + row(first + 29, first + 29.125))
        for first in range(1, 4)
    ]
    folder.follow(*steps)
    assert [folder.values(number) for number in range(30, 33)] == [[30, 130], [31, 131], [32.125, 132]]
    folder.follow()  # also after a restart, although the file no longer has the first ones
    assert [folder.values(number)[1] for number in range(0, 33)] == [100 + number for number in range(33)]


@pytest.mark.parametrize("write", ["replace", "write_over"])
@pytest.mark.parametrize("value", [9, 20.5, 7.125])
@pytest.mark.parametrize("appended", ["", row(30)])
def test_a_correction_in_the_middle_is_taken_whatever_its_length(
    folder: Folder, write: str, value: float, appended: str
) -> None:
    content = HEADER + rows(0, 20) + row(20, value) + rows(21, 30) + appended
    folder.follow(getattr(folder, write)(content))
    assert folder.values(20) == [value, 120]
    folder.follow()
    assert folder.values(20) == [value, 120]


def test_a_correction_while_the_service_was_away_is_taken(folder: Folder) -> None:
    folder.follow(folder.append(row(30)))
    folder.replace(HEADER + rows(0, 30) + row(30, 77.5))()
    folder.follow()
    assert folder.values(30) == [77.5, 130]


def test_a_file_that_is_written_anew_undoes_no_correction_that_came_otherwise(folder: Folder) -> None:
    seconds = int(np.datetime64("2024-01-01T01:40", "s").astype(int))
    corrected = Arrived("a", seconds, 55.5)
    folder.follow(lambda: corrected, folder.replace(HEADER + rows(1, 31)), folder.append(row(31)))
    assert folder.values(20) == [55.5, 120]
    assert folder.values(31) == [31, 131]


@pytest.mark.parametrize("moment", ["", HEADER, HEADER + rows(0, 12)], ids=["empty", "header", "half"])
def test_a_file_that_is_seen_while_it_is_written_undoes_no_correction_that_came_otherwise(
    moment: str, folder: Folder
) -> None:
    seconds = int(np.datetime64("2024-01-01T01:40", "s").astype(int))
    whole = folder.file.read_text() + row(30)
    folder.follow(lambda: Arrived("a", seconds, 55.5), folder.write_over(moment), folder.write_over(whole))
    assert folder.values(20) == [55.5, 120]
    assert folder.values(30) == [30, 130]


def test_what_the_service_does_not_know_any_more_is_read_again_and_corrections_stay(folder: Folder) -> None:
    """Readings that only the file had are gone; a new line and a half-written file come between."""
    seconds = int(np.datetime64("2024-01-01T01:40", "s").astype(int))
    whole = folder.file.read_text() + row(30)

    def forget() -> None:
        recent = folder.service.recent
        recent._values[-25:-5] = np.nan
        recent.put(Cell(seconds, recent.column_of["a"], 55.5))
        folder.source.fill_gaps()

    folder.follow(
        lambda: Arrived("a", seconds, 55.5),
        forget,
        folder.write_over(HEADER + rows(0, 12)),
        folder.write_over(whole),
        lambda: None,
    )
    assert folder.values(20) == [55.5, 120]
    assert [folder.values(k) for k in (8, 25, 30)] == [[8, 108], [25, 125], [30, 130]]


def test_lines_are_not_refused_any_more_once_the_columns_are_right_again(folder: Folder) -> None:
    whole, told = folder.file.read_text(), list[int]()
    folder.follow(
        folder.write_over(whole.replace("time,a,b", "time,a,a")),
        lambda: told.append(len(folder.service.refused)),
        folder.write_over(whole),
    )
    assert told == [30]
    assert not folder.service.refused


def test_a_parquet_file_beside_it_undoes_no_correction_that_came_otherwise(folder: Folder) -> None:
    moment = pd.Timestamp("2024-01-01 02:30")
    frame = pd.DataFrame({"a": [5.0], "b": [6.0]}, index=pd.DatetimeIndex([moment], name="time"))
    corrected = Arrived("a", int(moment.timestamp()), 55.5)
    folder.follow(lambda: frame.to_parquet(folder.folder / "readings-2.parquet"), lambda: corrected)
    assert folder.values(30) == [55.5, 6]
    folder.follow()
    assert folder.values(30) == [55.5, 6]


def test_the_first_line_may_be_very_long(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_lines, "COMPARED_FIRST", 4)
    folder.follow(folder.append(row(30)), folder.append(row(31)))
    assert folder.values(31) == [31, 131]


def test_new_columns_and_other_orders_of_rows_are_understood(folder: Folder) -> None:
    lines = [f"{row(number)[:-1]},{number}\n" for number in range(30, -1, -1)]
    folder.follow(folder.replace("time,b,a,c\n" + "".join(lines)))
    assert folder.values(30) == [130, 30]
    assert folder.values(20) == [120, 20]


def test_a_file_that_has_not_changed_is_not_opened_and_one_that_grows_is_not_read_whole(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_lines, "COMPARED", 64)
    monkeypatch.setattr(known_lines, "COMPARED_FIRST", 64)
    read: list[int] = []
    opens = Path.open

    def counting(path: Path, mode: str = "r", *more: object) -> object:
        opened = opens(path, mode, *more)  # type: ignore[call-overload]
        if mode != "rb":
            return opened

        class Counted:
            def __enter__(self) -> Counted:
                return self

            def __exit__(self, *_: object) -> None:
                opened.close()

            def read(self, size: int = -1) -> bytes:
                found: bytes = opened.read(size)
                read.append(len(found))
                return found

            def __getattr__(self, name: str) -> object:
                return getattr(opened, name)

        return Counted()

    def begin() -> None:
        monkeypatch.setattr(Path, "open", counting)
        read.clear()

    def grow() -> None:
        assert not read, "nothing has changed"
        folder.append(row(30))()

    folder.follow(begin, grow)
    assert sum(read) == 64 + 64 + len(row(30))
    assert folder.values(30) == [30, 130]


def test_a_change_far_up_is_seen_if_it_has_another_length_or_nothing_was_added(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where docs/live.md says that a correction is not seen, it is not; at the next start it is."""
    monkeypatch.setattr(known_lines, "COMPARED", 64)
    monkeypatch.setattr(known_lines, "COMPARED_FIRST", 64)
    far = HEADER + rows(0, 20) + row(20, 99) + rows(21, 31)
    folder.follow(folder.write_over(far))
    assert folder.values(20) == [20, 120]
    assert folder.values(30) == [30, 130]
    folder.follow(folder.write_over(far.replace("99", "9.5")))
    assert folder.values(20) == [9.5, 120]


def test_a_file_that_rolled_while_the_service_was_away_undoes_no_correction_that_came_otherwise(
    folder: Folder,
) -> None:
    seconds = int(np.datetime64("2024-01-01T01:40", "s").astype(int))
    folder.follow(lambda: Arrived("a", seconds, 55.5))
    folder.replace(HEADER + rows(1, 25) + row(25, 7.5) + rows(26, 31))()
    folder.follow()
    assert folder.values(20) == [55.5, 120]
    assert folder.values(25) == [7.5, 125]
    assert folder.values(30) == [30, 130]


def test_lines_have_the_same_hash_in_every_process() -> None:
    assert known_lines.hashes_of([b"time,a,b", b"", b"\xff"]).tolist() == HASHES
    assert len(known_lines.hashes_of([])) == 0


# ---- lines of the future ----------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_line_from_the_future_is_read_when_its_time_comes(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    """Also if the service was away in the meantime, and without another look at the lines around it."""
    latest = [0.0]
    monkeypatch.setattr(FeedClock, "latest", lambda clock, step: latest[0])

    def it_is(number: int) -> Callable[[], object]:
        def tell() -> None:
            latest[0] = float(number * 300 + np.datetime64("2024-01-01", "s").astype(int))

        return tell

    def write() -> None:
        text = HEADER + row(31) + row(33) + row(35)
        (folder.folder / "aside.txt").write_text(text)
        if suffix == "csv":
            (folder.folder / "aside.txt").rename(folder.folder / "readings-2.csv")
        else:
            pd.read_csv(folder.folder / "aside.txt").to_parquet(folder.folder / "readings-2.parquet")

    told: list[int] = []
    it_is(32)()
    seconds = int(np.datetime64("2024-01-01T02:35", "s").astype(int))
    folder.follow(
        write,
        lambda: told.append(len(folder.service.refused)),
        lambda: Arrived("a", seconds, 55.5),
        it_is(34),
    )
    assert told == [2]
    assert len(folder.service.refused) == 1
    assert folder.counted("from the future") == 2
    assert (folder.values(31), folder.values(33)) == ([55.5, 131], [33, 133])
    folder.follow()
    assert folder.known.times[-1] == np.datetime64("2024-01-01T02:45")
    it_is(36)()
    folder.follow()
    assert (folder.values(31), folder.values(35)) == ([55.5, 131], [35, 135])
    assert not folder.service.refused


# ---- what is said of a file -------------------------------------------------------------------------------


def test_what_the_start_has_said_of_a_file_stays_while_lines_are_added(tmp_path: Path) -> None:
    folder = Folder(tmp_path, HEADER + "2023-01-01 00:00,5,6\n" + rows(0, 30))
    folder.follow(folder.append(row(30)), folder.append(row(31)))
    [told] = folder.service.refused.values()
    assert "readings.csv, line 2, column 'time': 2023-01-01 00:00:00 is far from all other rows" in told


def test_every_line_of_a_file_that_was_cut_to_nothing_and_has_no_header_is_counted(folder: Folder) -> None:
    lines = [folder.append(row(number)) for number in range(30, 33)]
    told: list[int] = []
    folder.follow(
        folder.write_over(""),
        *lines,
        lambda: told.append(len(folder.service.refused)),
        folder.replace(HEADER + rows(30, 33)),
    )
    assert told == [3]
    assert folder.counted("unreadable line") == 3
    assert folder.values(31) == [31, 131]
    assert not folder.service.refused


@pytest.mark.parametrize("begun", ["", "time,"])
def test_a_file_in_which_there_is_no_line_yet_is_not_refused(folder: Folder, begun: str) -> None:
    other = folder.folder / "readings-2.csv"
    folder.follow(folder.append(begun, other), folder.append(HEADER.removeprefix(begun) + row(30), other))
    assert folder.counted("unreadable line") == 0
    assert folder.values(30) == [30, 130]


def test_line_ends_of_old_macs_are_read(folder: Folder) -> None:
    folder.follow(folder.replace((HEADER + rows(0, 31)).replace("\n", "\r")))
    assert folder.values(30) == [30, 130]


def test_a_mistyped_date_costs_its_line_and_no_other(tmp_path: Path) -> None:
    hours = pd.date_range("2026-09-05", "2026-10-02 03:00", freq="h")
    lines = [f"{hour:%d/%m/%Y %H:%M},{number},5\n" for number, hour in enumerate(hours)]
    folder = Folder(tmp_path, HEADER + "".join(lines[:-4]))
    mistyped = "10/31/2026 00:00,7,7\n"
    folder.follow(folder.append(lines[-4] + mistyped + lines[-3]), folder.append(mistyped + lines[-2]))
    assert folder.known.times[-1] == np.datetime64("2026-10-02T02:00")
    assert folder.counted("new") == 6
    assert folder.counted("unreadable line") == 1, "the same line again is named once"
    rolled = HEADER + "".join(lines[-27:-1])  # no line shows any more that days come first
    folder.follow(
        folder.append(lines[-2]),
        folder.replace(rolled),
        folder.append("10/31/2026 01:00,8,8\n"),
        folder.append(lines[-1]),
    )
    assert folder.known.times[-1] == np.datetime64("2026-10-02T03:00")
    assert len(folder.service.refused) == 1


def test_a_file_is_not_read_whole_at_each_look_because_of_its_dates_or_zone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole: list[int] = []

    def lines_of(raw: bytes, chosen: object = None) -> Lines:
        whole.append(len(raw))
        return every(raw, chosen)  # type: ignore[arg-type]

    every = Lines.of
    monkeypatch.setattr(Lines, "of", lines_of)
    for style in ("%d/%m/%Y %H:%M", "%Y-%m-%dT%H:%MZ"):
        hours = pd.date_range("2026-09-05", "2026-10-01 03:00", freq="h")
        lines = [f"{hour:{style}},{number},5\n" for number, hour in enumerate(hours)]
        folder = Folder(tmp_path, HEADER + "".join(lines[:-4]))
        folder.zone = ZoneInfo("Asia/Tokyo")
        folder.follow(*map(folder.append, lines[-4:]))
        assert folder.counted("new") == 8
        assert not whole
        (tmp_path / "state" / "live.sqlite").unlink()


def test_a_file_that_takes_long_is_given_a_rest(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_source, "SLOW", 0.0)
    monkeypatch.setattr(folder_source, "REST", 1e6)
    folder.follow(folder.append(row(30)), folder.append(row(31)))
    assert folder.known.times[-1] == np.datetime64("2024-01-01T02:30")
    folder.follow()
    assert folder.values(31) == [31, 131]


# ---- what other versions left -----------------------------------------------------------------------------


def test_a_state_of_an_earlier_version_means_that_the_file_is_read_again(folder: Folder) -> None:
    folder.follow(folder.append(row(30)))
    with sqlite3.connect(folder.folder / "state" / "live.sqlite") as database:
        size = folder.file.stat().st_size
        database.execute("UPDATE files SET state = ?", (json.dumps([size, 7, size]),))
        database.execute("UPDATE readings SET value = 7 WHERE sensor = 'a'")  # half a number, stored for good
    database.close()
    folder.follow()
    assert folder.values(30) == [30, 130]
    assert (folder.counted("corrected"), folder.counted("new"), folder.counted("repeated")) == (1, 0, 0)


def test_a_training_beside_the_service_has_its_readings(folder: Folder) -> None:
    folder.follow(folder.append("nonsense\n" + row(25, 7.5) + row(30)))
    read: Readings = load_readings(folder.file, ReadingOptions(refusals=Refusals()))
    found = with_stored(read, folder.folder / "state", zeros_missing=False)
    np.testing.assert_array_equal(found.values, folder.known.values[-len(found.times) :])


# ---- a service of a run -----------------------------------------------------------------------------------


def test_a_service_starts_with_everything_that_it_survives_while_it_runs(
    small_run: SmallRun, tmp_path: Path
) -> None:
    """A corrected row, garbage, a time of tomorrow, a column that sensors.csv lacks, and half a line."""
    folder = tmp_path / "data"
    shutil.copytree(small_run.folder, folder)
    lines = (folder / "readings.csv").read_text().splitlines()
    last = lines[-1].split(",")[0]
    cells = [f"{last},41,42,43,44,45,46,7", "nonsense", "2199-01-01T00:00,41,42,43,44,45,46,7", f"{last},9"]
    wide = [f"{lines[0]},new", *(f"{line},5" for line in lines[1:])]
    (folder / "readings.csv").write_text("\n".join([*wide, *cells]))
    settings = LiveSettings(data=folder, state=tmp_path / "state", clock=FEED, deadline=1, speed=100)
    with serving(small_run.run, settings) as (process, client):
        recent = process.service.recent
        assert recent.ids == small_run.data.readings.ids
        assert recent.until(recent.newest).values[-1].tolist() == [41, 42, 43, 44, 45, 46]
        client.forecast_after(last.replace(" ", "T"))

        def told() -> list[str]:
            return sorted(client.get("/health").json["refused"]["last"])

        wait_for(lambda: process.service.store.files(), "the first look at the file")
        first, second, third = told()
    assert first.endswith(f"readings.csv, line {len(wide) + 2}: 1 fields, but the header has 8")
    assert f"readings.csv, line {len(wide) + 3}, column 'time': 2199-01-01 00:00:00 is far from" in second
    assert third.endswith("sensors.csv: has no sensor 'new', which the readings have")


def test_a_sensor_is_refused_as_long_as_the_file_has_its_column(small_run: SmallRun, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    shutil.copytree(small_run.folder, folder)
    file = folder / "readings.csv"
    before = file.read_text()
    header, *lines = before.splitlines()
    wide = "\n".join([f"{header},new", *(f"{line},5" for line in lines), ""])
    settings = LiveSettings(data=folder, state=tmp_path / "state", clock=FEED, poll=0.05)
    file.write_text(wide)
    with serving(small_run.run, settings) as (process, client):

        def is_refused() -> bool:
            return "sensors.csv: has no sensor 'new'" in str(client.get("/health").json.get("refused"))

        wait_for(process.service.store.files, "the first look")
        assert is_refused()
        for text in (before, wide, before.replace("s5", "s5 ")):
            write_whole(file, text.encode())
            wait_for(lambda text=text: is_refused() == (text == wide), "the next look")


def test_an_unknown_sensor_is_forgotten_with_its_column(folder: Folder) -> None:
    header, others = folder.file.read_text().split("\n", 1)
    wide = f"{header},c\n" + others.replace("\n", ",7\n")
    folder.follow(folder.replace(wide))
    assert "sensor 'c': the service does not know it" in str(folder.service.refused)
    folder.follow(folder.replace(wide), folder.replace(f"{header}\n{others}"))
    assert not folder.service.refused


def test_a_sensor_that_a_model_of_each_sensor_does_not_know_is_left_out_at_the_start(tmp_path: Path) -> None:
    small = make_small_run(tmp_path, "gru-local", **{"training.rounds": 1})
    lines = (small.folder / "readings.csv").read_text().splitlines()
    text = "\n".join([f"{lines[0]},new", *(f"{line},5" for line in lines[1:]), ""])
    (small.folder / "readings.csv").write_text(text)
    with (small.folder / "sensors.csv").open("a") as positions:
        positions.write("new,34.5,-118.5\n")
    parts = parts_of_run(small.run, LiveSettings(data=small.folder, clock=FEED), tmp_path / "state")
    assert parts.readings.ids == small.data.readings.ids
    assert parts.files is not None
    [refused] = parts.files.refusals.found
    assert "the new sensor new is left out" in str(refused.error)
    assert parts.files.refusals.sensors == {"new"}


def test_a_service_starts_although_most_rows_have_rolled_out_of_its_file(
    small_run: SmallRun, tmp_path: Path
) -> None:
    """They are stored before they go, also if they were in the file when it first started."""
    folder = tmp_path / "data"
    shutil.copytree(small_run.folder, folder)
    settings = LiveSettings(
        data=folder, state=tmp_path / "state", clock=FEED, deadline=1, speed=100, poll=0.05
    )
    header, *lines = (folder / "readings.csv").read_text().splitlines()
    with serving(small_run.run, settings) as (process, _):
        expected = process.service.recent.until(process.service.recent.newest)
        wait_for(lambda: process.service.store.files(), "the first look")
        write_whole(folder / "readings.csv", "\n".join([header, *lines[-3:], ""]).encode())
        wait_for(lambda: process.service.store.newest() is not None, "the rows to be stored")
    parts = parts_of_run(small_run.run, settings, tmp_path / "state")
    np.testing.assert_array_equal(parts.readings.values, expected.values[-len(parts.readings.times) :])
    assert len(parts.readings.times) == len(lines)


def test_a_row_of_the_future_is_left_out_at_the_start_by_the_clock_of_the_machine(
    small_run: SmallRun, tmp_path: Path
) -> None:
    folder = tmp_path / "data"
    shutil.copytree(small_run.folder, folder)
    number = (folder / "readings.csv").read_text().count("\n") + 1
    with (folder / "readings.csv").open("a") as opened:
        opened.write("2199-01-01 00:00:00,1,2,3,4,5,6\n")
    parts = parts_of_run(small_run.run, LiveSettings(data=folder), tmp_path / "state")
    assert parts.files is not None
    [refused] = parts.files.refusals.found
    assert f"readings.csv, line {number}, column 'time': 2199-01-01 00:00:00 has not come" in str(
        refused.error
    )
    assert parts.readings.times[-1] == small_run.until(KNOWN).readings.times[-1]


def test_a_service_starts_although_a_sensor_is_gone_from_its_file_and_another_file_lies_beside_it(
    small_run: SmallRun, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "data"
    shutil.copytree(small_run.folder, folder)
    frame = pd.read_csv(folder / "readings.csv", index_col=0, parse_dates=True)
    frame.drop(columns="s3").to_csv(folder / "readings.csv")
    frame.tail(5).to_parquet(folder / "readings.parquet")  # a running service reads it, too
    settings = LiveSettings(data=folder, state=tmp_path / "state", clock=FEED, deadline=1, speed=100)
    with serving(small_run.run, settings) as (process, client):
        assert set(process.service.recent.ids) == set(small_run.data.readings.ids)
        assert "readings.csv has no reading of s3" in caplog.text
        sent = [{"sensor": "s3", "time": f"{frame.index[-1]:%Y-%m-%dT%H:%M}", "value": 51.0}]
        assert client.post(sent).status == 200
