"""What a service begins with: readings and a state of another clock do no harm, and old data are named."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from cnfgnn.cli.main import app
from cnfgnn.data.files.export import write_folder
from cnfgnn.errors import DataError, RunError
from cnfgnn.files import write_whole
from cnfgnn.live.forecasting import service
from cnfgnn.live.intake.at_hand import at_hand, with_stored
from cnfgnn.live.intake.clock import FeedClock, SystemClock
from cnfgnn.live.intake.recent import Arrived, Cell, RecentReadings, Verdict
from cnfgnn.live.intake.store import ReadingStore
from cnfgnn.live.learning.live_model import trainer_command
from cnfgnn.live.learning.models import Models
from cnfgnn.live.options import FEED, SYSTEM, LiveSettings
from cnfgnn.live.start import LiveProcess
from tests.commands import said
from tests.live.forecasting.test_service import damage
from tests.live.small_service import KNOWN, SmallRun, serving
from tests.waiting import wait_for

STEP = 300
NOW = int(time.time()) // STEP * STEP


@contextmanager
def built(
    small: SmallRun, state: Path, clock: str = FEED, folder: Path | None = None
) -> Iterator[LiveProcess]:
    """A service before it serves."""
    data = folder or small.folder
    process = LiveProcess(small.run, LiveSettings(data=data, state=state, clock=clock, port=0))
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


# ---- files that a running service survives ----------------------------------------------------------------


@pytest.fixture(scope="module")
def began(small_run: SmallRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of readings, and the state of a service that began with it and then got those of six steps."""
    place = tmp_path_factory.mktemp("began")
    shutil.copytree(small_run.folder, place / "data")
    with built(small_run, place / "state", folder=place / "data"):
        pass
    with closing(ReadingStore(place / "state")) as store:
        cells = [
            Cell(int(small_run.data.readings.seconds[KNOWN + k]), column, 50.0 + k)
            for k in range(6)
            for column in range(6)
        ]
        store.write(small_run.data.readings.ids, cells, {})
    return place


@pytest.fixture
def begun(began: Path) -> Iterator[tuple[Path, Path]]:
    """The same at the same place for each test."""
    before = {file: file.read_bytes() for file in began.rglob("*.*") if file.is_file()}
    yield began / "data", began / "state"
    shutil.rmtree(began)
    for file, content in before.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)


Lines = list[str]
UNREADABLE: dict[str, tuple[str, Callable[[Lines], Lines], str]] = {
    "is empty": ("readings.csv", lambda lines: [], "the file is empty"),
    "has a header only": ("readings.csv", lambda lines: lines[:1], "holds no readings"),
    "has no header": ("readings.csv", lambda lines: lines[1:], "the first line must name the columns"),
    "has a column twice": ("readings.csv", lambda lines: ["time,s0,s0,s2,s3,s4,s5\n", *lines[1:]], "twice"),
    "is of another step": ("readings.csv", lambda lines: [lines[0], *lines[1::3]], "come every 900 s, but"),
    "is half-written": ("sensors.csv", lambda lines: [*lines[:2], "s1,48."], "line 3: 2 fields"),
    "is wrong": ("edges.csv", lambda lines: [lines[0], "s1,nobody,1\n"], "unknown sensor 'nobody'"),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_a_service_starts_again_although_a_file(
    small_run: SmallRun, begun: tuple[Path, Path], case: str
) -> None:
    folder, state = begun
    name, change, problem = UNREADABLE[case]
    (folder / name).write_text("".join(change((folder / name).read_text().splitlines(keepends=True))))
    with built(small_run, state, folder=folder) as process:
        service = process.service
        check_stored(small_run, process)
        assert problem in "".join(service.refused.values())
        assert process.folder is not None
        if name == "readings.csv":
            assert not process.folder.states  # all that can be read is new
        else:
            readings = small_run.until(KNOWN).readings
            known = service.recent.values_at(readings.ids, readings.seconds)
            np.testing.assert_array_equal(known, readings.values)


FEW: dict[str, Callable[[Lines], Lines]] = {
    "one row": lambda lines: [lines[0], lines[-1]],
    "rows with a gap": lambda lines: [lines[0], lines[-3], lines[-1]],
    "empty rows": lambda lines: [lines[0], *(f"{line.split(',')[0]},,,,,,\n" for line in lines[1:])],
}


@pytest.mark.parametrize("case", FEW)
def test_a_service_starts_again_with_a_file_of(
    small_run: SmallRun, begun: tuple[Path, Path], case: str
) -> None:
    folder, state = begun
    file = folder / "readings.csv"
    file.write_text("".join(FEW[case](file.read_text().splitlines(keepends=True))))
    with built(small_run, state, folder=folder) as process:
        check_stored(small_run, process)
        assert not process.service.refused
    for stored in state.glob("live.sqlite*"):
        stored.unlink()
    with built(small_run, state, folder=folder) as process:  # forecasts are fallbacks
        assert process.service.recent.newest == small_run.data.readings.seconds[KNOWN - 1]


def test_a_service_starts_without_its_folder_but_not_with_another_one(
    small_run: SmallRun, begun: tuple[Path, Path]
) -> None:
    folder, state = begun
    shutil.rmtree(folder)
    other = folder.with_name("dota")
    with pytest.raises(DataError, match="no such file or folder"), built(small_run, state, folder=other):
        pass
    with built(small_run, state, folder=folder) as process:
        check_stored(small_run, process)
        [problem] = process.service.refused.values()
        assert problem.startswith(f"{folder / 'readings.csv'}: cannot be read (")
    (state / "live.sqlite").unlink()
    with built(small_run, state, folder=folder) as process:
        assert not process.service.recent.recently_present(process.service.recent.newest, KNOWN).any()
    (state / "begun.json").write_text("{")
    with pytest.raises(DataError, match="no such file or folder"), built(small_run, state, folder=folder):
        pass


def test_a_sensor_that_was_new_stays_when_its_column_is_gone(
    small_run: SmallRun, begun: tuple[Path, Path]
) -> None:
    folder, state = begun
    file = folder / "readings.csv"
    before = file.read_text()
    header, *lines = before.splitlines()
    file.write_text(
        "\n".join([header.replace("time,", "time,new,"), *(x.replace(",", ",5,", 1) for x in lines)])
    )
    for name, line in (("sensors.csv", "new,34.5,-118.5\n"), ("edges.csv", "s5,new,0.6\n")):
        (folder / name).write_text((folder / name).read_text() + line)
    with built(small_run, state, folder=folder) as process:
        key = process.service.predictor.key
        assert "new" in process.service.recent.ids
    file.write_text(before)
    with built(small_run, state, folder=folder) as process:
        assert process.service.predictor.key == key  # so that it goes on with the same ranges


def test_a_retraining_uses_no_reading_of_the_future_either(small_run: SmallRun, tmp_path: Path) -> None:
    """As the service, which refuses it in the file, and does not use it from the database."""
    folder, state = tmp_path / "data", tmp_path / "state"
    shutil.copytree(small_run.folder, folder)
    with (folder / "readings.csv").open("a") as opened:
        opened.write(f"{np.datetime64(NOW + 30 * STEP, 's')},1,2,3,4,5,6\n")
    for seconds in (NOW - STEP, NOW + 3 * 86_400):
        store_one(state, small_run, seconds)
    settings = LiveSettings(data=folder)
    found = at_hand(small_run.run, settings, state, all_stored=True).data.readings
    assert found.seconds[-1] == NOW - STEP
    lines = (folder / "readings.csv").read_text().splitlines(keepends=True)
    (folder / "readings.csv").write_text("".join([lines[0], *lines[-4:]]))
    assert at_hand(small_run.run, settings, state).data.readings.seconds[-1] == NOW - STEP
    command = trainer_command(Models(tmp_path, state), replace(settings, clock=FEED, timezone="Europe/Paris"))
    assert command[-6:-2] == ["--clock", FEED, "--timezone", "Europe/Paris"]


@pytest.mark.parametrize("case", ["is empty", "has no header"])
def test_a_running_service_takes_up_a_file_that_is_whole_again(
    case: str, small_run: SmallRun, begun: tuple[Path, Path]
) -> None:
    """Also if an earlier one has read its lines; what was corrected since stays."""
    folder, state = begun
    file, readings = folder / "readings.csv", small_run.until(KNOWN).readings
    whole, expected = file.read_bytes(), readings.values.copy()
    expected[-3, 0] = 77.0
    settings = LiveSettings(data=folder, state=state, clock=FEED, deadline=1, speed=100, poll=0.05)
    with serving(small_run.run, settings) as (process, client):
        wait_for(lambda: process.service.store.files(), "the first look")
        answer = client.post({"time": str(readings.times[-3]), "values": {"s0": 77.0}})
        assert answer.json["corrected"] == 1
    _, broken, problem = UNREADABLE[case]
    file.write_text("".join(broken(whole.decode().splitlines(keepends=True))))
    with serving(small_run.run, settings) as (process, client):
        assert problem in str(client.get("/health").json["refused"]["last"])
        write_whole(file, whole)

        def is_taken() -> bool:
            found = process.service.recent.values_at(readings.ids, readings.seconds)
            return np.array_equal(found, expected, equal_nan=True)

        wait_for(is_taken, "the file to be read")
        wait_for(lambda: "refused" not in client.get("/health").json, "its lines to be fine")


def test_a_service_starts_although_the_last_of_few_rows_is_empty(
    small_run: SmallRun, begun: tuple[Path, Path]
) -> None:
    folder, state = begun
    header, *lines = (folder / "readings.csv").read_text().splitlines(keepends=True)
    (state / "live.sqlite").unlink()
    time = lines[-1].split(",")[0]
    (folder / "readings.csv").write_text("".join([header, *lines[-4:-1], f"{time},,,,,,\n"]))
    with built(small_run, state, folder=folder) as process:
        assert len(process.service.recent.ids) == 6


def check_stored(small: SmallRun, process: LiveProcess) -> None:
    """The service has the stored readings, and the sensors where they are."""
    service = process.service
    known = service.recent.until(service.recent.newest)
    assert known.ids == small.data.readings.ids
    assert known.times[-1] == small.data.readings.times[KNOWN + 5]
    assert known.values[-6:, 3].tolist() == [50, 51, 52, 53, 54, 55]
    np.testing.assert_array_equal(known.positions, small.data.readings.positions)
    assert service.predictor.graph.edges == small.data.graph.edges
    assert np.isfinite(service.predictor.forecast(known)[3]).all()


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


def test_when_the_clock_is_set_right_the_service_knows_what_it_knew(
    small_run: SmallRun, begun: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine without a battery begins in the past: stored readings and the file are of the future."""
    folder, state = begun
    monkeypatch.setattr(service, "LONGEST_SLEEP", 0.05)
    readings, behind = small_run.until(KNOWN).readings, [30 * 86_400.0]
    right = int(small_run.data.readings.seconds[KNOWN + 5]) + 60
    begun_at = time.time()
    monkeypatch.setattr(SystemClock, "now", lambda _: right + time.time() - begun_at - behind[0])
    settings = LiveSettings(data=folder, state=state, deadline=1, poll=0.05)
    with serving(small_run.run, settings) as (process, _):
        recent, times = process.service.recent, small_run.data.readings.seconds[KNOWN : KNOWN + 6]

        def known() -> int:
            return int(np.isfinite(recent.values_at(readings.ids, readings.seconds)).sum())

        assert not known()
        behind[0] = 0.0
        wait_for(lambda: known() == np.isfinite(readings.values).sum(), "the file")
        stored = [50, 51, 52, 53, 54, 55]
        wait_for(lambda: recent.values_at(["s0"], times)[:, 0].tolist() == stored, "what was stored")
