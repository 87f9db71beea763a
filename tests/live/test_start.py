"""What a service begins with: readings and a state of another clock do no harm, and old data are named."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from cnfgnn.cli.main import app
from cnfgnn.data.files.export import write_folder
from cnfgnn.errors import DataError, RunError
from cnfgnn.live.intake.clock import FeedClock
from cnfgnn.live.intake.recent import Arrived, Cell, RecentReadings, Verdict
from cnfgnn.live.intake.store import ReadingStore
from cnfgnn.live.learning.retrain import with_stored
from cnfgnn.live.options import FEED, SYSTEM, LiveSettings
from cnfgnn.live.start import LiveProcess
from tests.commands import said
from tests.live.forecasting.test_service import damage
from tests.live.small_service import KNOWN, SmallRun

STEP = 300
NOW = int(time.time()) // STEP * STEP


@contextmanager
def built(small: SmallRun, state: Path, clock: str = FEED) -> Iterator[LiveProcess]:
    """A service before it serves."""
    process = LiveProcess(small.run, LiveSettings(data=small.folder, state=state, clock=clock, port=0))
    try:
        yield process
    finally:
        process.service._close()
        process.socket.close()


def store_one(state: Path, small: SmallRun, seconds: int) -> None:
    """As after one POST of a reading of this time."""
    with closing(ReadingStore(state)) as store:
        store.write(small.data.readings.ids, [Cell(seconds, 0, 50.0)], {})


def test_a_reading_of_another_clock_does_not_push_out_a_recording(
    small_run: SmallRun, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One that was stored with the machine's time, years after the recording, is not used by its clock."""
    recorded = small_run.until(KNOWN).readings
    with built(small_run, tmp_path, SYSTEM) as process:
        assert process.service.tracking is not None
        forecasts = np.full((len(recorded.ids), process.service.predictor.horizon), 50.0)
        process.service.tracking.step(NOW // STEP, recorded, forecasts)
        process.service.tracking.write()
    store_one(tmp_path, small_run, int(recorded.seconds[-1]) + STEP)
    store_one(tmp_path, small_run, NOW)
    with built(small_run, tmp_path) as process:
        service = process.service
        assert service.recent.newest == recorded.seconds[-1] + STEP
        assert service.recent.recently_present(service.recent.newest, 6).sum() == 5  # one has a gap
        assert service.tracking is not None
        assert service.tracking.issued == -1  # what was learned years later is of no use
    assert "live.sqlite: readings after " in caplog.text
    assert len(with_stored(recorded, tmp_path, zeros_missing=False).times) == KNOWN + 1


def test_readings_after_the_present_are_not_used(small_run: SmallRun, tmp_path: Path) -> None:
    """They were stored while the machine's clock was wrong."""
    for seconds in (NOW - STEP, NOW + 400 * 86_400):
        store_one(tmp_path, small_run, seconds)
    with built(small_run, tmp_path, SYSTEM) as process:
        assert process.service.recent.newest == NOW - STEP


def test_the_start_says_that_readings_are_old(
    small_run: SmallRun, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with built(small_run, tmp_path):
        assert "--clock feed" not in caplog.text
    days = (time.time() - int(small_run.until(KNOWN).readings.seconds[-1])) / 86_400
    with built(small_run, tmp_path, SYSTEM):
        assert f", {days:,.0f} days ago: forecasts are fallbacks until" in caplog.text
        assert "--clock feed" in caplog.text


def test_a_damaged_database_is_named_at_the_start(small_run: SmallRun, tmp_path: Path) -> None:
    """Also if its damage shows only when readings are read."""
    ids, first = small_run.data.readings.ids, int(small_run.data.readings.seconds[0])
    with closing(ReadingStore(tmp_path)) as store:
        store.write(ids, [Cell(first + STEP * k, k % 6, 50.0) for k in range(900)], {})
        damage(store)
    problem = r"live\.sqlite: is damaged .*: move it away"
    with pytest.raises(RunError, match=problem), built(small_run, tmp_path):
        pass
    assert RunError.exit_code == 4


def test_readings_of_another_step_than_the_training(small_run: SmallRun, tmp_path: Path) -> None:
    """A file of them is refused; those that are sent count for the nearest step, of which the last counts."""
    readings, other = small_run.until(KNOWN).readings, tmp_path / "other"
    other.mkdir()
    hourly = readings.times[0] + np.arange(KNOWN) * np.timedelta64(3600, "s")
    write_folder(replace(small_run.until(KNOWN), readings=replace(readings, times=hourly)), other)
    with (
        pytest.raises(DataError, match=r"readings come every 3600 s, but .* was trained on one every 300 s"),
        built(replace(small_run, folder=other), tmp_path / "state"),
    ):
        pass
    recent, newest = RecentReadings(readings, 20, zeros_missing=False), int(readings.seconds[-1])
    clock = FeedClock(newest, STEP)
    for minute in range(1, 11):  # one every minute
        verdict, cell = recent.judge(Arrived("s0", newest + 60 * minute, 50.0 + minute), clock)
        assert verdict is (Verdict.NEW if minute in (3, 8) else Verdict.CORRECTED)
        assert cell is not None
        recent.put(cell)
    assert recent.until(recent.newest).values[-3:, 0].tolist() == [52.0, 57.0, 60.0]


def test_reset_removes_what_it_names_but_not_under_a_service(small_run: SmallRun, tmp_path: Path) -> None:
    command = ("live", "reset", small_run.run.folder, "--state", tmp_path)
    assert "nothing to remove" in said(*command)
    store_one(tmp_path, small_run, NOW)
    (tmp_path / "token").write_text("kept")
    assert "removes" in said(*command, fails=True)
    with closing(ReadingStore(tmp_path)):
        assert "in use by the live service of process" in said(*command, "--yes", fails=True)
    assert f"removed {tmp_path / 'live.sqlite'}" in said(*command, "--yes")
    assert {file.name for file in tmp_path.iterdir()} == {"lock", "token"}


def test_a_run_folder_with_the_name_of_a_command_is_told_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "manifest.json").touch()
    result = CliRunner().invoke(app, ["live", "run"])
    assert result.exit_code == 2
    assert "to serve the run folder run, write cnfgnn live ./run" in result.output
