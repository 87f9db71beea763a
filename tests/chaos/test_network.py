"""The network between the server and one site is interrupted, or its connections are cut."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from cnfgnn.federation.kits import processes
from tests.federation.proxy import proxied
from tests.federation.reference_training import assert_as_good_as_undisturbed, config
from tests.federation.running_federation import ENGINE_WARNINGS, city_on_disk, running_federation
from tests.waiting import wait_for

pytestmark = [pytest.mark.chaos, *ENGINE_WARNINGS]


@pytest.mark.parametrize("seconds", [30, 75])  # after 30 s the engine's server forgets a site
def test_a_site_rejoins_after_a_network_failure(seconds: int, tmp_path: Path) -> None:
    data, c = city_on_disk(tmp_path / "city", days=2), config(40)
    with (
        running_federation(tmp_path, data, up=False, faults=True) as sites,
        proxied(sites.kits["south"]) as proxy,
    ):
        for kit in sites.kits.values():
            processes.up(kit)
        sites.begin_training(c)
        sites.during(2)
        proxy.pause()
        cut = time.monotonic()
        sites.until(lambda: not sites.site("south")["reachable"], "south is shown as unreachable", 60)
        now = sites.status["round"]
        sites.until(lambda: sites.status["round"] > now, "the others continue")
        wait_for(lambda: time.monotonic() > cut + seconds, "the interruption is over")
        proxy.resume()
        sites.until(lambda: sites.site("south")["present"], "south rejoins")
        exchanges = sites.status["exchanges"]
        proxy.cut()
        sites.wait_for_rejoin("south", exchanges)
        assert_as_good_as_undisturbed(sites.end(600)["scores"]["overall"]["rmse"], data, c)
