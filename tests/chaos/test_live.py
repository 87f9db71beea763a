"""A live federation whose server, sites and networks fail, one after the other."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from cnfgnn.federation.kits import processes
from cnfgnn.federation.kits.processes import read_live
from tests.federation.live_processes import FULL, SITES, go_live, live_processes
from tests.federation.proxy import proxied
from tests.federation.running_federation import ENGINE_WARNINGS, every_process
from tests.waiting import wait_for

pytestmark = [pytest.mark.chaos, *ENGINE_WARNINGS]
OTHERS = ("north", "west")
BOTH_FULL = dict.fromkeys(OTHERS, FULL)


def test_sites_outlive_a_killed_server_and_rejoin_when_it_is_up(tmp_path: Path) -> None:
    with live_processes(tmp_path) as live:
        live.federation.kill("server")
        assert live.next_forecasts() == {name: {"last embedding"} for name in SITES}
        for _ in range(12):
            last = live.next_forecasts()
        assert last == {name: {"no embedding"} for name in SITES}
        assert live.page.get("/health").status == 503
        processes.up(live.federation.server)
        live.until_full()


def test_a_site_that_is_killed_or_taken_down_rejoins_and_the_others_go_on(tmp_path: Path) -> None:
    with live_processes(tmp_path) as live:
        south = live.federation.kits["south"]
        live.federation.kill_job("south")
        live.next_forecasts(*OTHERS)  # one that waits for the site
        assert live.next_forecasts(*OTHERS) == BOTH_FULL
        live.until_full()
        live.federation.kill("south")
        assert not read_live(south)
        live.next_forecasts(*OTHERS)
        assert live.next_forecasts(*OTHERS) == BOTH_FULL
        processes.up(south)
        live.until_full()
        service = read_live(south)
        live.federation.kill_supervisor("south")
        live.next_forecasts()
        assert live.next_forecasts() == {**BOTH_FULL, "south": {"last embedding"}}
        assert read_live(south) == service  # it goes on for the site's owner
        processes.up(south)
        live.until_full()
        processes.down(south)
        assert not read_live(south)
        live.next_forecasts(*OTHERS)
        assert live.next_forecasts(*OTHERS) == BOTH_FULL
        processes.up(south)
        live.until_full()


def test_a_site_that_is_paused_for_two_minutes_rejoins(tmp_path: Path) -> None:
    with live_processes(tmp_path) as live:
        south = live.federation.kits["south"]
        stopped = every_process(south)
        assert read_live(south)["pid"] in stopped
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        try:
            begun = time.monotonic()
            live.next_forecasts(*OTHERS)
            while time.monotonic() - begun < 120:
                assert live.next_forecasts(*OTHERS) == BOTH_FULL
                time.sleep(5)
        finally:
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
        live.until_full()


@pytest.mark.parametrize("seconds", [30, 75])  # after 30 s the engine's server forgets a site
def test_a_site_whose_network_is_cut_goes_on_by_itself_and_rejoins(seconds: int, tmp_path: Path) -> None:
    with live_processes(tmp_path, up=False) as live, proxied(live.federation.kits["south"]) as proxy:
        go_live(live)
        proxy.pause()
        begun = time.monotonic()
        live.next_forecasts()
        found = live.next_forecasts()
        assert found == {**BOTH_FULL, "south": {"last embedding"}}
        wait_for(lambda: time.monotonic() > begun + seconds, "the interruption is over", seconds + 60)
        proxy.resume()
        live.until_full()
        proxy.cut()
        live.until_full()
