"""What was acknowledged is on disk; a database that cannot be used is named."""

from __future__ import annotations

import asyncio
import threading
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from cnfgnn.data.readings import Readings
from cnfgnn.errors import RunError, StorageError
from cnfgnn.live.intake.clock import FeedClock, Zone
from cnfgnn.live.intake.intake import Intake, IntakeMetrics
from cnfgnn.live.intake.recent import Arrived, Cell, RecentReadings, cells_in
from cnfgnn.live.intake.store import FileRead, FileState, ReadingStore, drop_oldest, remove_database
from tests.commands import said
from tests.waiting import WITHIN

IDS = ("a", "b")
STATE = FileState(7, 9, 8, 7, "ab")


def test_readings_and_the_state_of_files_are_there_when_it_is_opened_again(tmp_path: Path) -> None:
    store = ReadingStore(tmp_path)
    assert store.newest() is None
    store.write(
        IDS, [Cell(300, 0, 1.5), Cell(300, 1, 2.5), Cell(600, 0, 3.5)], {"f.csv": FileRead(STATE, 0, b"one")}
    )
    store.write(IDS, [Cell(300, 1, 4.5)], {"f.csv": FileRead(STATE, 1, b"gone")})  # a correction
    store.write(IDS, [], {"f.csv": FileRead(STATE, 1, b"two"), "g.csv": FileRead(STATE, 0, b"")})
    store.close()
    store = ReadingStore(tmp_path)
    assert list(store.stored(0).readings) == [(300, "a", 1.5), (300, "b", 4.5), (600, "a", 3.5)]
    assert list(store.stored(301).readings) == [(600, "a", 3.5)]
    assert store.newest() == 600
    assert store.files() == {"f.csv": FileRead(STATE, 0, b"onetwo"), "g.csv": FileRead(STATE, 0, b"")}
    store.close()


def test_what_is_kept_does_not_replace_a_correction_that_was_acknowledged_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = np.array([0, 300], dtype="datetime64[s]")
    known = Readings(times, IDS, np.ones((2, 2), np.float32), np.zeros((2, 2), np.bool_), utc=True)

    async def test(store: ReadingStore) -> None:
        recent = RecentReadings(known, 2, zeros_missing=False)
        intake = Intake(recent, store, FeedClock(300, 300), Zone(utc=True), IntakeMetrics())
        writing = asyncio.create_task(intake._write())
        is_corrected = threading.Event()

        def slowly(known: Readings) -> list[Cell]:
            assert is_corrected.wait(WITHIN)
            return cells_in(known)

        monkeypatch.setattr("cnfgnn.live.intake.intake.cells_in", slowly)
        keeping = asyncio.create_task(intake.keep())
        await asyncio.sleep(0)  # it has begun
        await intake.take([Arrived("a", 300, 9.5)], "http")
        is_corrected.set()
        await keeping
        writing.cancel()

    with closing(ReadingStore(tmp_path)) as store:
        asyncio.run(test(store))
        assert list(store.stored(0).readings) == [(0, "a", 1), (0, "b", 1), (300, "a", 9.5), (300, "b", 1)]


def test_the_oldest_day_is_deleted_when_the_database_is_too_large(tmp_path: Path) -> None:
    with closing(ReadingStore(tmp_path)) as store:
        store.write(IDS, [Cell(day * 86_400, 0, 1.5) for day in range(5)], {})
        drop_oldest(store._database, most=1 << 20)
        assert [seconds for seconds, _, _ in store.stored(0).readings] == [
            0,
            86_400,
            172_800,
            259_200,
            345_600,
        ]
        drop_oldest(store._database, most=1)
        assert [seconds for seconds, _, _ in store.stored(0).readings] == [86_400, 172_800, 259_200, 345_600]


def test_the_database_of_a_service_that_runs_is_not_removed(tmp_path: Path) -> None:
    store = ReadingStore(tmp_path)
    store.write(IDS, [Cell(300, 0, 1.5)], {})
    with pytest.raises(RunError, match="in use by the live service of process"):
        remove_database(tmp_path)
    assert store.newest() == 300
    store.close()
    remove_database(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["lock"]


def test_a_demo_that_cannot_be_shown_trains_nothing(tmp_path: Path) -> None:
    assert said("live", "demo", "--out", tmp_path, "--speed", 0, fails=True).startswith("--speed")
    assert not list(tmp_path.iterdir())
    file = tmp_path / "file"
    file.touch()
    assert f"{file / 'data'}: cannot be written" in said("live", "demo", "--out", file, fails=True)


def test_a_database_that_is_damaged_or_newer_is_named(tmp_path: Path) -> None:
    (tmp_path / "live.sqlite").write_bytes(b"this is not a database" * 100)
    with pytest.raises(RunError, match=r"live\.sqlite: is damaged .*: move it away to begin without it"):
        ReadingStore(tmp_path)
    store = ReadingStore(tmp_path / "new")
    store._database.execute("UPDATE about SET value = '2'")
    store.close()
    with pytest.raises(RunError, match="was written by a newer version"):
        ReadingStore(tmp_path / "new")


def test_a_state_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    with pytest.raises(StorageError, match="state"):
        ReadingStore(tmp_path / "state")


def test_only_one_process_uses_a_state(tmp_path: Path) -> None:
    store = ReadingStore(tmp_path)
    with pytest.raises(RunError, match="is in use by the live service of process"):
        ReadingStore(tmp_path)
    store.close()
    ReadingStore(tmp_path).close()
