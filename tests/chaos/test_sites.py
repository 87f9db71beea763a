"""Sites are killed in every phase, stay away or rejoin, while the others continue."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from cnfgnn.config.settings import Config
from cnfgnn.data.dataset import Dataset
from cnfgnn.federation.kits import processes
from cnfgnn.federation.site.engine_process import SOCKET
from cnfgnn.runs.training_loop import Result
from tests.federation.reference_training import (
    assert_as_good_as_undisturbed,
    assert_same,
    config,
    simulated,
)
from tests.federation.running_federation import ENGINE_WARNINGS, city_on_disk, running_federation
from tests.federation.site_processes import engine_of, workers_of

pytestmark = [pytest.mark.chaos, *ENGINE_WARNINGS]


PHASES = ((1, "south"), (2, "west"), (3, "north"), (4, "south"))


@pytest.mark.parametrize("what", ["worker", "supervisor", "site"])
def test_a_site_killed_in_any_phase_rejoins_while_the_others_continue(what: str, tmp_path: Path) -> None:
    data, c = city_on_disk(tmp_path / "city", days=2), config(40)
    with running_federation(tmp_path, data, faults=True) as sites:
        sites.begin_training(c)
        for phase, name in PHASES:
            sites.block(name, phase)
            now = sites.status
            if what == "worker":
                sites.kill_job(name)
            else:
                workers = workers_of(sites.kits[name])
                sites.kill(name) if what == "site" else sites.kill_supervisor(name)
                before = now.get("round", 1)  # the status may lag behind
                sites.until(lambda b=before: sites.status.get("round", 1) > b, "the others continue")
                assert not any(map(psutil.pid_exists, workers)), "without a supervisor, workers end"
                processes.up(sites.kits[name])
            sites.wait_for_rejoin(name, now.get("exchanges", 0))
        error = sites.end(600)["scores"]["overall"]["rmse"]
        assert all(sites.site(name)["present"] for name in sites.status["sites"])
        assert_as_good_as_undisturbed(error, data, c)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Dataset, Config, Result]:
    """A training of which nothing is lost, by the simulator."""
    data, c = city_on_disk(tmp_path_factory.mktemp("city"), days=2), config(6)
    return data, c, simulated(data, c)


@pytest.mark.parametrize("what", ["relay", "engine", "socket"])
def test_a_site_whose_engine_fails_in_any_phase_keeps_its_worker(
    what: str, tmp_path: Path, undisturbed: tuple[Dataset, Config, Result]
) -> None:
    """Nothing of the training is lost: it ends as if nothing had happened."""
    data, c, expected = undisturbed
    with running_federation(tmp_path, data, min_sites=3, faults=True) as sites:
        sites.begin_training(c)
        for phase, name in PHASES:
            sites.block(name, phase)
            kit, now = sites.kits[name], sites.status
            engine, workers = engine_of(kit), workers_of(kit)
            if what == "relay":
                sites.kill_relay(name)
            elif what == "engine":
                sites.kill_engine(name)
            else:
                (kit / SOCKET).unlink()
            if what != "relay":
                sites.until(lambda k=kit, e=engine: engine_of(k) not in (None, e), "the engine is back")
            sites.release(name)
            sites.wait_for_rejoin(name, now.get("exchanges", 0))
            assert workers_of(kit) == workers
        sites.end(600)
        assert_same(sites.run(), expected)


def test_a_site_goes_on_when_its_disk_is_full(
    tmp_path: Path, undisturbed: tuple[Dataset, Config, Result]
) -> None:
    """Its supervisor and its engine can write neither logs nor status, and a worker has to start again."""
    data, c, expected = undisturbed
    with running_federation(tmp_path, data, min_sites=3, faults=True) as sites:
        sites.begin_training(c)
        sites.block("south", 1)
        kit = sites.kits["south"]
        workers, supervisor = workers_of(kit), psutil.Process(processes.running(kit))
        soft, hard = supervisor.rlimit(psutil.RLIMIT_FSIZE)
        full = [supervisor, *map(psutil.Process, (engine_of(kit), *processes.jobs_of(kit)))]
        for process in full:
            process.rlimit(psutil.RLIMIT_FSIZE, (0, hard))
        sites.release("south")
        sites.block("south", 3)
        sites.kill_job("south")
        sites.wait_for_rejoin("south", sites.status.get("exchanges", 0))
        assert workers_of(kit) == workers  # as far as the status tells
        started_since = supervisor.children(recursive=True)  # they have inherited the limit
        for process in {*full, *started_since}:
            with suppress(psutil.NoSuchProcess):
                process.rlimit(psutil.RLIMIT_FSIZE, (soft, hard))
        sites.until(lambda: workers_of(kit) not in ([], workers), "the status is written again")
        sites.end(600)
        assert_same(sites.run(), expected)


def test_rounds_continue_without_an_absent_site_and_it_can_rejoin_later(tmp_path: Path) -> None:
    data, c = city_on_disk(tmp_path / "city", days=2), config(40)
    with running_federation(tmp_path, data, faults=True) as sites:
        sites.begin_training(c)
        sites.during(2)
        sites.kill("south")
        sites.until(lambda: not sites.site("south")["reachable"], "south is shown as unreachable")
        now = sites.status["round"]
        sites.until(lambda: sites.status["round"] > now + 5, "rounds continue")
        assert not sites.status["waiting"]
        assert not sites.site("south")["present"]
        processes.up(sites.kits["south"])
        sites.until(lambda: sites.site("south")["present"], "south rejoins")
        error = sites.end(600)["scores"]["overall"]["rmse"]
        assert_as_good_as_undisturbed(error, data, c)


def test_training_finishes_without_a_site_that_never_rejoins(tmp_path: Path) -> None:
    data, c = city_on_disk(tmp_path / "city", days=2), config(8)
    with running_federation(tmp_path, data, faults=True) as sites:
        sites.begin_training(c)
        sites.block("north", 3)
        sites.kill("north")
        scores = sites.end()["scores"]
        assert sites.run().finished
        assert not sites.site("north")["present"]
        assert sites.site("west")["present"]
        assert scores["overall"]["rmse"] < 30


def test_training_pauses_below_min_sites_and_continues_when_sites_rejoin(tmp_path: Path) -> None:
    data, c = city_on_disk(tmp_path / "city", days=2), config(40)
    with running_federation(tmp_path, data, min_sites=2, faults=True) as sites:
        sites.begin_training(c)
        sites.block("north", 3)
        sites.kill("north")
        sites.until(lambda: not sites.site("north")["present"], "north is absent")
        assert not sites.status["waiting"]
        sites.block("south", 1)
        sites.kill("south")
        sites.until(lambda: sites.is_paused_without("south"), "training pauses")
        exchanges = sites.status["exchanges"]
        processes.up(sites.kits["north"])
        sites.until(lambda: not sites.status["waiting"], "training continues with north")
        sites.until(lambda: sites.status["exchanges"] > exchanges + 5, "training continues")
        processes.up(sites.kits["south"])
        sites.until(lambda: sites.site("south")["present"], "south rejoins")
        assert_as_good_as_undisturbed(sites.end(600)["scores"]["overall"]["rmse"], data, c)
