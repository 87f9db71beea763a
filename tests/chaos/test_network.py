"""The way between the server and one site falls silent, or its connections break."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from cnfgnn.federation import processes
from tests.federation.living import ENGINE_WARNINGS, awaited, dealt, living
from tests.federation.proxy import between
from tests.federation.undisturbed import assert_within_noise, config

pytestmark = [pytest.mark.chaos, *ENGINE_WARNINGS]


@pytest.mark.parametrize("seconds", [30, 75])  # after 30 s the engine's server forgets a site
def test_a_site_that_was_cut_off_takes_part_again(seconds: int, tmp_path: Path) -> None:
    data, c = dealt(tmp_path / "city", days=2), config(40)
    with (
        living(tmp_path, data, up=False, faults=True) as sites,
        between(sites.kits["south"]) as proxy,
    ):
        for kit in sites.kits.values():
            processes.up(kit)
        sites.begin_training(c)
        sites.during(2)
        proxy.fall_silent()
        cut = time.monotonic()
        sites.until(lambda: not sites.site("south")["reachable"], "it shows that south is away", 60)
        now = sites.status["round"]
        sites.until(lambda: sites.status["round"] > now, "the others go on")
        awaited(lambda: time.monotonic() > cut + seconds, "the cut has its length")
        proxy.speak()
        sites.until(lambda: sites.site("south")["present"], "south takes part again")
        exchanges = sites.status["exchanges"]
        proxy.break_off()
        sites.takes_part_again("south", exchanges)
        assert_within_noise(sites.end(600)["scores"]["overall"]["rmse"], data, c)
