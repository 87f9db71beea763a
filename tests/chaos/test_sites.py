"""Sites that are killed in every phase, that go for good, and that come back, while the others go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from cnfgnn.federation import processes
from tests.federation.living import ENGINE_WARNINGS, dealt, living
from tests.federation.undisturbed import assert_within_noise, config

pytestmark = [pytest.mark.chaos, *ENGINE_WARNINGS]


@pytest.mark.parametrize("whole", [False, True], ids=["job", "site"])
def test_a_site_killed_in_any_phase_rejoins_while_the_others_go_on(whole: bool, tmp_path: Path) -> None:
    data, c = dealt(tmp_path / "city", days=2), config(40)
    with living(tmp_path, data, faults=True) as sites:
        sites.begin_training(c)
        for phase, name in ((1, "south"), (2, "west"), (3, "north"), (4, "south")):
            sites.stands(name, phase)
            now = sites.status
            if whole:
                sites.kill(name)
                before = now.get("round", 1)  # the status may lag behind
                sites.until(lambda b=before: sites.status.get("round", 1) > b, "the others go on")
                processes.up(sites.kits[name])
            else:
                sites.kill_job(name)
            sites.takes_part_again(name, now.get("exchanges", 0))
        error = sites.end(600)["scores"]["overall"]["rmse"]
        assert all(sites.site(name)["present"] for name in sites.status["sites"])
        assert_within_noise(error, data, c)


def test_rounds_go_on_without_a_site_that_is_gone_and_it_can_return_later(tmp_path: Path) -> None:
    data, c = dealt(tmp_path / "city", days=2), config(30)
    with living(tmp_path, data, faults=True) as sites:
        sites.begin_training(c)
        sites.during(2)
        sites.kill("south")
        sites.until(lambda: not sites.site("south")["reachable"], "it shows that south is away")
        now = sites.status["round"]
        sites.until(lambda: sites.status["round"] > now + 5, "rounds go on")
        assert not sites.status["waiting"]
        assert not sites.site("south")["present"]
        processes.up(sites.kits["south"])
        sites.until(lambda: sites.site("south")["present"], "south takes part again")
        error = sites.end(600)["scores"]["overall"]["rmse"]
        assert_within_noise(error, data, c)


def test_a_training_ends_without_a_site_that_never_returns(tmp_path: Path) -> None:
    data, c = dealt(tmp_path / "city", days=2), config(8)
    with living(tmp_path, data, faults=True) as sites:
        sites.begin_training(c)
        sites.stands("north", 3)
        sites.kill("north")
        scores = sites.end()["scores"]
        assert sites.run().finished
        assert not sites.site("north")["present"]
        assert sites.site("west")["present"]
        assert scores["overall"]["rmse"] < 30


def test_below_the_least_number_of_sites_it_says_so_and_goes_on_when_they_return(tmp_path: Path) -> None:
    data, c = dealt(tmp_path / "city", days=2), config(20)
    with living(tmp_path, data, min_sites=2, faults=True) as sites:
        sites.begin_training(c)
        sites.stands("north", 3)
        sites.kill("north")
        sites.until(lambda: not sites.site("north")["present"], "north is away")
        assert not sites.status["waiting"]
        sites.stands("south", 1)
        sites.kill("south")
        sites.until(lambda: sites.waits_for("south"), "it says that it waits")
        exchanges = sites.status["exchanges"]
        processes.up(sites.kits["north"])
        sites.until(lambda: not sites.status["waiting"], "it goes on with north")
        sites.until(lambda: sites.status["exchanges"] > exchanges + 5, "it goes on")
        processes.up(sites.kits["south"])
        sites.until(lambda: sites.site("south")["present"], "south takes part again")
        assert_within_noise(sites.end(600)["scores"]["overall"]["rmse"], data, c)
