"""How far a file has been read, and what in it is new."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pytest

from cnfgnn.data.files.formats import read_readings
from cnfgnn.data.files.times import RepeatedHour, occur_twice
from cnfgnn.data.options import ReadingOptions
from cnfgnn.data.readings import Readings
from cnfgnn.data.refusals import Refusals
from cnfgnn.live.forecasting.predictor import Predictor
from cnfgnn.live.forecasting.schedule import Schedule
from cnfgnn.live.forecasting.service import LiveService
from cnfgnn.live.intake.at_hand import with_stored
from cnfgnn.live.intake.clock import FeedClock, Zone
from cnfgnn.live.intake.folder_source import FolderSource, Look, differing
from cnfgnn.live.intake.observations import MalformedInput, read_csv
from cnfgnn.live.intake.recent import Arrived, RecentReadings
from cnfgnn.live.intake.store import ReadingStore
from cnfgnn.live.start import recent_readings
from cnfgnn.privacy.copies import CopyStore
from tests.live.small_service import KNOWN, SmallRun, readings_like


def test_only_readings_that_are_not_known_are_taken_from_a_file(small_run: SmallRun) -> None:
    recent = RecentReadings(small_run.until(KNOWN).readings, 100, zeros_missing=False)
    whole = small_run.until(KNOWN + 1).readings
    times = whole.times.astype("datetime64[s]").astype(np.int64)
    new = [
        Arrived(sensor, int(times[-1]), float(value))
        for sensor, value in zip(whole.ids, whole.values[-1], strict=True)
        if not np.isnan(value)
    ]
    assert differing(whole, recent) == new
    values = whole.values.copy()
    values[KNOWN - 5, 1] = 77.0
    values[KNOWN - 101, 1] = 77.0  # too old to matter
    changed = replace(
        readings_like(small_run.data, small_run.data.readings.values),
        values=values,
        times=whole.times,
        missing=whole.missing,
    )
    found = differing(changed, recent)
    assert found == [Arrived("s1", int(times[KNOWN - 5]), 77.0), *new]


# ---- the hour that clocks repeat ---------------------------------------------------------------------------

PARIS = ReadingOptions(timezone="Europe/Paris")
BEFORE = 12  # rows of the file at the beginning: until an hour before the one that is repeated


def lines_around_the_repeated_hour() -> list[str]:
    """A row every five minutes as a clock in Paris shows it, while it is set back."""
    times = pd.date_range("2024-10-26 22:30", periods=60, freq="5min", tz="UTC").tz_convert("Europe/Paris")
    cells = (f"{40 + row / 7:.3f},{50 + row / 9:.3f}" for row in range(len(times)))
    return [f"{time:%Y-%m-%d %H:%M},{cell}\n" for time, cell in zip(times, cells, strict=True)]


class Growing:
    """A file that grows, and a service that takes in what is added; it begins again when it is told to."""

    def __init__(self, folder: Path) -> None:
        self.state, self.file = folder / "state", folder / "readings.csv"
        self.path = self.file  # what is looked at
        folder.mkdir()
        self.lines = lines_around_the_repeated_hour()
        self.file.write_text("time,s0,s1\n" + "".join(self.lines[:BEFORE]))
        self.first = read_readings(self.file, PARIS)

    async def take(self, lines: Sequence[str | Arrived]) -> None:
        """A service begins with what is there, looks at the file after each of these lines, and ends. A
        reading in between arrives by HTTP."""
        store = ReadingStore(self.state)
        recent = recent_readings(self.first, store, zeros_missing=False)
        service = LiveService(
            cast(Predictor, None),  # nothing is forecast here
            recent,
            store,
            FeedClock(recent.newest, recent.step),
            Zone(utc=True),
            Schedule(recent.step, 60, 6),
        )
        source = FolderSource(service, self.path, PARIS, self.file.name)
        writing = asyncio.create_task(service._write())
        try:
            for line in lines:
                if isinstance(line, Arrived):
                    await service.take([line], "http")
                    continue
                with self.file.open("a") as opened:
                    opened.write(line)
                await source.look()
        finally:
            writing.cancel()
            service._close()

    @property
    def stored(self) -> Readings:
        """What a training beside the service learns from."""
        return with_stored(self.first, self.state, zeros_missing=False)


def added_one_by_one(growing: Growing) -> None:
    asyncio.run(growing.take(growing.lines[BEFORE:]))


def added_in_pieces(growing: Growing) -> None:
    pieces = ["".join(growing.lines[row : row + 7]) for row in range(BEFORE, len(growing.lines), 7)]
    asyncio.run(growing.take(pieces))


def added_with_restarts(growing: Growing) -> None:
    for row in range(BEFORE, len(growing.lines), 3):
        asyncio.run(growing.take(growing.lines[row : row + 3]))


@pytest.mark.parametrize("add", [added_one_by_one, added_in_pieces, added_with_restarts])
def test_a_reading_of_the_hour_that_clocks_repeat_has_one_time_and_one_copy(
    add: Callable[[Growing], None], tmp_path: Path
) -> None:
    growing = Growing(tmp_path / "folder")
    add(growing)
    whole = read_readings(growing.file, PARIS)
    assert (np.diff(whole.times) == np.timedelta64(300, "s")).all()
    assert len(whole.times) == len(growing.lines)
    np.testing.assert_array_equal(growing.stored.times, whole.times)
    np.testing.assert_array_equal(growing.stored.values, whole.values)
    copies = CopyStore(tmp_path / "copies")
    live = copies.blur(growing.stored, 5.0)
    np.testing.assert_array_equal(copies.blur(whole, 5.0).values, live.values)
    assert copies.count() == 2 * len(growing.lines)


def test_lines_of_the_repeated_hour_do_not_undo_a_correction_that_has_arrived_otherwise(
    tmp_path: Path,
) -> None:
    growing = Growing(tmp_path / "folder")
    corrected = [
        Arrived("s0", int(pd.Timestamp(time).timestamp()), value)
        for time, value in (("2024-10-26 23:00Z", 77.0), ("2024-10-27 00:30Z", 78.0))
    ]
    middle = BEFORE + 20
    asyncio.run(growing.take([*growing.lines[BEFORE:middle], *corrected, *growing.lines[middle:]]))
    stored = growing.stored
    seconds = stored.times.astype("datetime64[s]").astype(np.int64).tolist()
    column = stored.ids.index("s0")
    for reading in corrected:
        assert reading.seconds is not None
        assert stored.values[seconds.index(int(reading.seconds)), column] == reading.value
    whole = read_readings(growing.file, PARIS)
    np.testing.assert_array_equal(stored.times, whole.times)
    assert (stored.values != whole.values).sum() == len(corrected)


def test_an_upload_that_begins_in_the_repeated_hour_is_refused(tmp_path: Path) -> None:
    """It has no lines before it that tell which of the two hours is meant."""
    upload = tmp_path / "upload.csv"
    upload.write_text("time,s0\n2024-10-27 02:30,5\n")
    with pytest.raises(MalformedInput, match="the body: line 2 is in an hour that occurs twice"):
        read_csv(upload, PARIS, "the body")
    upload.write_text("time,s0\n2024-10-27 02:30+01:00,5\n")
    [found] = read_csv(upload, PARIS, "the body")
    assert found.seconds == pd.Timestamp("2024-10-27 01:30Z").timestamp()


def test_a_damaged_line_before_the_repeated_hour_does_not_cost_its_readings(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    growing = Growing(tmp_path / "folder")
    asyncio.run(growing.take(["a line that is none\n", *growing.lines[BEFORE:]]))
    [refused] = [record.getMessage() for record in caplog.records]
    assert refused.endswith(f"readings.csv, line {BEFORE + 2}: 1 fields, but the header has 3")
    seconds = growing.stored.seconds[~growing.stored.missing.all(axis=1)]
    assert occur_twice(seconds.astype("datetime64[s]"), ZoneInfo("Europe/Paris")).sum() == 24
    assert len(seconds) == len(growing.lines)


def test_rows_at_the_beginning_that_are_in_the_repeated_hour_are_left_out_by_a_live_service(
    tmp_path: Path,
) -> None:
    lines = lines_around_the_repeated_hour()
    inside = next(row for row, line in enumerate(lines) if line.startswith("2024-10-27 02:"))
    file = tmp_path / "readings.csv"
    file.write_text("time,s0,s1\n" + "".join(lines[inside + 18 :]))  # the second 02:30 is the first row
    with pytest.raises(RepeatedHour):
        read_readings(file, PARIS)
    refusals = Refusals()
    found = read_readings(file, replace(PARIS, refusals=refusals))
    assert len(refusals.found) == 6
    assert str(found.times[0]) == "2024-10-27T02:00:00"  # 03:00 in Paris
    long = [f"{line[:16]},{sensor},{line[17:23]}\n" for line in lines for sensor in ("s0", "s1")]
    file.write_text("time,sensor,value\n" + "".join(long[: 2 * inside : 2] + long[2 * inside + 36 :]))
    refusals = Refusals()
    found = read_readings(file, replace(PARIS, refusals=refusals))
    assert len(refusals.found) == 6  # of s1, which begins at the second 02:30
    assert np.isnan(found.values[found.seconds < 1729994400, 1]).all()


# ---- what stands in the way --------------------------------------------------------------------------------


def test_a_folder_and_a_pipe_with_the_name_of_a_file_are_left_alone(tmp_path: Path) -> None:
    growing = Growing(tmp_path / "folder")
    growing.path = growing.file.parent
    (growing.path / "readings-a.csv").mkdir()
    os.mkfifo(growing.path / "readings-b.parquet")  # whoever opens it waits until somebody writes
    (growing.path / "readings-c.csv").symlink_to("gone.csv")
    asyncio.run(growing.take(growing.lines[BEFORE : BEFORE + 1]))
    assert len(growing.stored.times) == BEFORE + 1


def test_a_file_that_cannot_be_looked_at_does_not_hinder_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    growing = Growing(tmp_path / "folder")
    growing.path = growing.file.parent
    closed = growing.path / "readings-a.csv"
    closed.touch()
    look_at = FolderSource._look_at

    def look(source: FolderSource, file: Path, key: str, variable: str) -> Look | None:
        if file == closed:
            raise PermissionError(13, "Permission denied", str(file))
        return look_at(source, file, key, variable)

    monkeypatch.setattr(FolderSource, "_look_at", look)
    with pytest.raises(PermissionError, match="readings-a"):  # for /health
        asyncio.run(growing.take(growing.lines[BEFORE : BEFORE + 1]))
    assert len(growing.stored.times) == BEFORE + 1
