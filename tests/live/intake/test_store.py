"""What was acknowledged is on disk; a database that cannot be used is named."""

from __future__ import annotations

import asyncio
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cnfgnn.data.readings import Readings
from cnfgnn.errors import RunError, StorageError
from cnfgnn.live.intake.clock import FeedClock, Zone
from cnfgnn.live.intake.intake import Intake, IntakeMetrics
from cnfgnn.live.intake.recent import Arrived, Cell, RecentReadings, cells_in
from cnfgnn.live.intake.store import FileRead, FileState, ReadingStore, drop_oldest, remove_database
from cnfgnn.live.options import FEED, LiveSettings
from cnfgnn.live.start import LiveProcess
from tests.commands import said
from tests.live.small_service import KNOWN, SmallRun, serving
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


# ---- a real disk that becomes read-only -------------------------------------------------------------------


class Disk:
    """A file system of its own, which the kernel can be told to set read-only, as it does after an error of
    a disk. `mount -o remount,ro` would wait for the database to be closed."""

    def __init__(self, place: Path) -> None:
        self.image, self.folder = place / "image", place / "disk"
        self.folder.mkdir()
        self.image.write_bytes(bytes(16 << 20))

    def run(self, *command: object) -> bool:
        with suppress(FileNotFoundError):
            return subprocess.run([*map(str, command)], check=False, capture_output=True).returncode == 0
        return False

    def mount(self) -> bool:
        return self.run("mount", "-o", "loop,errors=remount-ro", self.image, self.folder)

    def unmount(self) -> bool:
        return self.run("umount", self.folder)

    @property
    def trigger(self) -> Path:
        mounted = Path("/proc/mounts").read_text().splitlines()
        [device] = (line.split()[0] for line in mounted if line.split()[1] == str(self.folder))
        return Path("/sys/fs/ext4", Path(device).name, "trigger_fs_error")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    made = Disk(tmp_path)
    if not made.run("mkfs.ext4", "-q", "-F", "-O", "^has_journal", made.image) or not made.mount():
        pytest.skip("this user cannot mount a disk")
    try:
        if not made.trigger.exists():
            pytest.skip("this kernel cannot be told to set a disk read-only")
        yield made
    finally:
        made.unmount()


@pytest.mark.slow
def test_a_service_whose_disk_becomes_read_only_forecasts_and_acknowledges_nothing(
    small_run: SmallRun, disk: Disk
) -> None:
    """A start is refused in one sentence; once the disk can be written again, all is as acknowledged."""
    state = disk.folder / "state"
    settings = LiveSettings(data=small_run.folder, state=state, clock=FEED, deadline=1, speed=100)
    with serving(small_run.run, settings) as (process, client):
        assert client.post(small_run.full_row(KNOWN)).status == 200
        disk.trigger.write_text("1")
        answer = client.post(small_run.full_row(KNOWN + 1))
        assert answer.status == 507
        assert f"the readings were not taken: {state / 'live.sqlite'}: cannot be" in answer.json["error"]
        later = int(small_run.data.readings.seconds[KNOWN + 1])
        process.loop.call_soon_threadsafe(process.service.pass_time, later)
        client.forecast_after(small_run.row(KNOWN + 1)["time"])
        health = client.get("/health")
        assert (health.status, health.json["status"]) == (503, "degraded")
        assert f"{state / 'live.sqlite'}: cannot be written" in health.json["problems"]["disk"]
        assert b'failures_total{part="disk"}' in client.get("/metrics").body
    with pytest.raises(StorageError, match=r"state/lock: cannot be written \(Read-only file system\)$"):
        LiveProcess(small_run.run, replace(settings, port=0))
    assert disk.unmount()
    assert disk.mount()
    with serving(small_run.run, settings) as (process, client):
        assert process.service.recent.newest == small_run.data.readings.seconds[KNOWN]
        assert client.post(small_run.full_row(KNOWN + 1)).status == 200
