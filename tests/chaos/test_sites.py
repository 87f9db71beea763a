"""Sites are killed in every phase, stay away or rejoin, while the others continue."""

from __future__ import annotations

from pathlib import Path

import pytest

from cnfgnn.federation.kits import processes
from tests.federation.reference_training import assert_as_good_as_undisturbed, config
from tests.federation.running_federation import ENGINE_WARNINGS, city_on_disk, running_federation

pytestmark = [pytest.mark.chaos, *ENGINE_WARNINGS]


@pytest.mark.parametrize("whole", [False, True], ids=["job", "site"])
def test_a_site_killed_in_any_phase_rejoins_while_the_others_continue(whole: bool, tmp_path: Path) -> None:
    data, c = city_on_disk(tmp_path / "city", days=2), config(40)
    with running_federation(tmp_path, data, faults=True) as sites:
        sites.begin_training(c)
        for phase, name in ((1, "south"), (2, "west"), (3, "north"), (4, "south")):
            sites.block(name, phase)
            now = sites.status
            if whole:
                sites.kill(name)
                before = now.get("round", 1)  # the status may lag behind
                sites.until(lambda b=before: sites.status.get("round", 1) > b, "the others continue")
                processes.up(sites.kits[name])
            else:
                sites.kill_job(name)
            sites.wait_for_rejoin(name, now.get("exchanges", 0))
        error = sites.end(600)["scores"]["overall"]["rmse"]
        assert all(sites.site(name)["present"] for name in sites.status["sites"])
        assert_as_good_as_undisturbed(error, data, c)


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
