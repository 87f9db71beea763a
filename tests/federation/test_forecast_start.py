"""Where a forecast begins when the readings of sites end at different times, and what is reported."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from cnfgnn.data.description import DataDescription
from cnfgnn.federation.site.owner import FORECASTS
from cnfgnn.federation.site.status import read_site_status
from cnfgnn.runs.forecast import forecast_run
from tests.commands import COMMAND, ENVIRONMENT
from tests.conftest import network, small
from tests.federation.in_memory_federation import SITES, InMemoryFederation, ending, must_finish, with_row
from tests.federation.running_federation import ENGINE_WARNINGS, city_on_disk, running_federation
from tests.federation.running_federation import SITES as OF_PROCESSES

pytestmark = ENGINE_WARNINGS

ROUND = {"training.rounds": 1}
STEP = pd.Timedelta(seconds=300)


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> InMemoryFederation:
    """Three sites with a run of one round."""
    sites = InMemoryFederation(tmp_path_factory.mktemp("sites"), network(dropout=0))
    must_finish(sites.train(small("at-fedavg", **ROUND)))
    return sites


@pytest.fixture
def trained(once: InMemoryFederation) -> Iterator[InMemoryFederation]:
    """The same with forecasts; changes of readings are undone after each test."""
    before = {name: once.readings(name) for name in SITES}
    first = must_finish(once.forecast())
    assert first["result"]["sites"] == list(SITES)
    assert first["result"]["without"] == {}
    yield once
    once.unreachable = set()
    for name, frame in before.items():
        once.write(name, frame)


def begins(sites: InMemoryFederation, name: str) -> pd.Timestamp:
    latest = sites.latest(name)
    assert latest is not None
    return latest.index[0]


@pytest.mark.parametrize("utc", [False, True])
@pytest.mark.parametrize("leading", ["north", "west"])
def test_a_row_in_the_future_at_one_site_does_not_cost_anybody_a_forecast(
    trained: InMemoryFederation, leading: str, utc: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if utc:  # the run was trained on times without a time zone
        monkeypatch.setattr(DataDescription, "other_times", lambda *_: "")
    newest = pd.Timestamp.now(tz="UTC").floor(STEP)
    for name in SITES:
        own = trained.readings(name)
        trained.write(name, ending(own, newest) if utc else own)
    ends = trained.readings("south").index[-1]
    trained.write(leading, with_row(trained.readings(leading), 24))
    status = must_finish(trained.forecast())
    assert status["result"]["sites"] == list(SITES)
    assert status["result"]["without"] == {}
    for name in SITES:
        latest = trained.latest(name)
        assert latest is not None
        assert latest.notna().all(axis=None), name
        assert latest.index[0] == ends + STEP
    assert [line for line in status["warnings"] if line.startswith(f"site {leading}")]


def test_a_site_that_lags_a_little_or_a_lot_gets_a_forecast(
    trained: InMemoryFederation,
) -> None:
    ends = trained.readings("north").index[-1]
    trained.write("south", trained.readings("south").iloc[:-40])
    trained.write("west", trained.readings("west").iloc[:-3])
    for name in SITES:
        (trained.kits[name] / FORECASTS / "latest.csv").unlink()
    status = must_finish(trained.forecast())
    # only north is at the end; two of three sites have reached the end of west
    assert status["result"]["sites"] == list(SITES)
    assert {begins(trained, name) for name in SITES} == {ends - 2 * STEP}
    south = trained.latest("south")
    assert south is not None
    assert south.notna().all().all()
    assert any(line.startswith("site north") for line in status["warnings"])
    assert any("site south: no reading of" in line and "older ones" in line for line in status["warnings"])


def test_an_unreachable_site_is_named_and_the_others_forecast(trained: InMemoryFederation) -> None:
    trained.unreachable = {"west"}
    status = trained.forecast(wait=2.0)
    assert status["result"]["sites"] == ["north", "south"]
    assert "does not answer" in status["result"]["without"]["west"]


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (lambda frame: frame.iloc[::2], "its readings are 600 s apart, and those of the other sites 300 s"),
        (
            lambda frame: frame.tz_localize("UTC"),
            "its timestamps are in UTC, and those of the other sites have no time zone",
        ),
        (
            lambda frame: frame.set_axis(frame.index + STEP / 2),
            "its timestamps are shifted against the other sites' steps",
        ),
        (lambda frame: frame.iloc[:, :0], "its readings cannot be used"),
    ],
    ids=["step", "zone", "shifted", "no sensor"],
)
def test_a_site_with_incompatible_readings_does_not_cost_others_a_forecast(
    trained: InMemoryFederation, changed: Callable[[pd.DataFrame], pd.DataFrame], reason: str
) -> None:
    trained.write("north", changed(trained.readings("north")))
    status = must_finish(trained.forecast())
    assert status["result"]["sites"] == ["south", "west"]
    assert reason in status["result"]["without"]["north"]


@pytest.mark.parametrize("failing", [["south"], list(SITES)])
def test_only_the_owner_learns_that_a_forecast_cannot_be_written(
    trained: InMemoryFederation, failing: list[str]
) -> None:
    project = trained.server / "local" / "project.toml"
    right = project.read_text()
    project.write_text(right.replace("min_sites = 1", "min_sites = 3"))
    folders = [trained.kits[name] / FORECASTS for name in failing]
    aside = [folder.rename(folder.with_name("aside")) for folder in folders]
    for folder in folders:
        folder.touch()  # a file where the folder belongs
    try:
        status = trained.forecast()
    finally:
        for folder, kept in zip(folders, aside, strict=True):
            folder.unlink()
            kept.rename(folder)
        project.write_text(right)
    must_finish(status)
    assert status["result"]["sites"] == list(SITES)
    assert status["result"]["without"] == {}  # whether there is a file to write depends on readings
    assert all(not site["problem"] and not site["refused"] for site in status["sites"].values())
    for name in failing:
        [*_, entry] = read_site_status(trained.kits[name])["problems"]
        assert entry["part"] == FORECASTS
        assert str(trained.kits[name]) in entry["problem"]
        assert "cannot be written" in entry["problem"]


def test_a_run_that_does_not_exist_is_named(trained: InMemoryFederation) -> None:
    status = trained.forecast("nothing")
    assert status["state"] == "failed"
    assert "nothing: is not a run" in status["problem"]


def test_readings_at_another_step_than_in_training_are_refused(trained: InMemoryFederation) -> None:
    for name in SITES:
        trained.write(name, trained.readings(name).iloc[::2])
    status = trained.forecast()
    assert (status["state"], status["exit_code"]) == ("failed", 2)
    assert "readings come every 600 s, but run one was trained on one every 300 s" in status["problem"]


@pytest.mark.parametrize("task", ["forecast", "evaluate", "resume"])
def test_readings_by_another_clock_than_in_training_are_refused(
    trained: InMemoryFederation, task: str
) -> None:
    for name in SITES:
        trained.write(name, trained.readings(name).tz_localize("UTC"))
    status = getattr(trained, task)()
    assert (status["state"], status["exit_code"]) == ("failed", 2)
    assert "times are in UTC, but run one was trained on times without a time zone" in status["problem"]


def test_sites_that_change_their_clock_cost_only_themselves_a_forecast(trained: InMemoryFederation) -> None:
    *most, one = SITES
    for name in most:
        trained.write(name, trained.readings(name).tz_localize("UTC"))
    status = trained.forecast()
    assert status["state"] == "finished", status["problem"]
    assert status["result"]["sites"] == [one]
    assert status["result"]["without"].keys() == {*most}


def test_sensors_without_recent_readings_are_counted_and_forecast_from_older_ones(
    trained: InMemoryFederation,
) -> None:
    own = trained.readings("west")
    own.iloc[-20:, 1] = float("nan")
    trained.write("west", own)
    status = trained.forecast()
    assert status["result"]["sites"] == list(SITES)
    assert any("site west: no reading of 1 of its 3 sensors" in line for line in status["warnings"])
    latest = trained.latest("west")
    assert latest is not None
    assert latest.notna().all().all()


@pytest.mark.chaos
def test_real_processes_forecast_while_one_site_leads_and_one_lags(tmp_path: Path) -> None:
    data = city_on_disk(tmp_path / "city", days=2)
    ends = pd.Timestamp(data.readings.times[-1])
    with running_federation(tmp_path, data) as sites:

        def readings(name: str) -> Path:
            return tmp_path / "example" / "data" / name / "readings.csv"

        def forecast() -> subprocess.CompletedProcess[str]:
            command = [*COMMAND, "federation", "forecast", str(sites.server), "one"]
            return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=240)

        sites.train(small("at-fedavg", **ROUND))
        ended = forecast()
        assert ended.returncode == 0, ended.stderr
        assert "are at sites north, south, west" in ended.stdout
        in_one_place = forecast_run(sites.run(), data)
        for name in OF_PROCESSES:
            latest = pd.read_csv(sites.kits[name] / FORECASTS / "latest.csv", index_col="time")
            np.testing.assert_allclose(latest, in_one_place[latest.columns], rtol=0, atol=1e-3)
        leading, lagging = (
            pd.read_csv(readings(name), index_col="time", parse_dates=True) for name in ("north", "west")
        )
        with_row(leading, 24).to_csv(readings("north"))
        lagging.iloc[:-40].to_csv(readings("west"))
        ended = forecast()
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert "are at sites north, south, west" in ended.stdout
        assert "warning: site west: no reading of 5 of its 5 sensors in the last" in ended.stderr
        assert "warning: site north leads: its readings of the last 2 hours are newer" in ended.stderr
        assert "warning: site west lags: its newest reading is 3 hours older" in ended.stderr
        assert "Traceback" not in ended.stderr
        for name in OF_PROCESSES:
            latest = pd.read_csv(
                sites.kits[name] / FORECASTS / "latest.csv", index_col="time", parse_dates=True
            )
            assert latest.index[0] == ends + STEP
            assert latest.notna().all(axis=None)
