"""A live federation of real processes: the command, its page, and processes that are killed."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from cnfgnn.federation import processes
from cnfgnn.federation.live_relay import read_service
from tests.federation.live_processes import FULL, SITES, TELLS, live_processes
from tests.federation.running_federation import ENGINE_WARNINGS, wait_until

pytestmark = [pytest.mark.slow, *ENGINE_WARNINGS]


def test_sites_go_on_whoever_is_killed_and_rejoin_by_themselves(tmp_path: Path) -> None:
    with live_processes(tmp_path) as live:
        page = live.page.get("/")
        assert page.status == 200
        assert b"Live federation" in page.body
        told = live.page.get("/status").json
        assert told["state"] == "running"
        assert {name: site["sensors"] for name, site in told["sites"].items()} == dict.fromkeys(SITES, 2)
        assert live.page.get("/health").status == 200

        live.kill_service("south")  # the process of the task starts it again
        assert live.next_forecasts("north", "west") == {"north": FULL, "west": FULL}
        live.until_full()
        live.assert_ranges_are_undisturbed("south")

        [job] = processes.jobs_of(live.federation.server)  # the command starts the task again
        services = {name: read_service(live.federation.kits[name])["process"] for name in SITES}
        os.kill(job, signal.SIGKILL)
        assert live.next_forecasts() == {name: {"last embedding"} for name in SITES}
        live.until_full()
        assert {name: read_service(live.federation.kits[name])["process"] for name in SITES} == services

        live.until(lambda: live.sites[TELLS]["coverage"])  # at the beginning of an hour
        assert [live.sites[name]["coverage"] for name in SITES if name != TELLS] == [None, None]
        metrics = live.page.get("/metrics").body.decode()
        assert re.findall(r'cnfgnn_federation_site_covered{level="80",site="(.*)"} [1-9]', metrics) == [TELLS]
        assert metrics.count("cnfgnn_federation_site_reachable{") == len(SITES)
        live.assert_ranges_are_undisturbed(TELLS)

        assert live.end() == 130
        wait_until(
            lambda: not any(read_service(live.federation.kits[name]) for name in SITES), "services end"
        )
