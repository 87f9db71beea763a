"""A live federation whose server, sites and networks fail, one after the other."""

from __future__ import annotations

import os
import shutil
import signal
import time
from contextlib import suppress
from itertools import permutations
from pathlib import Path

import pytest

from cnfgnn.federation.engine import provisioning
from cnfgnn.federation.kits import processes
from cnfgnn.federation.kits.processes import read_live
from cnfgnn.federation.operator.make_kits import make_kits
from cnfgnn.federation.operator.tasks import connected_sites
from cnfgnn.federation.project import read_project
from cnfgnn.federation.server.live.task import GONE
from tests.commands import said
from tests.federation.live_processes import FULL, SITES, go_live, live_processes
from tests.federation.proxy import proxied
from tests.federation.running_federation import ENGINE_WARNINGS, every_process, suspended
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
        with suspended(*stopped) as begun:
            live.next_forecasts(*OTHERS)
            while time.monotonic() - begun < 120:
                assert live.next_forecasts(*OTHERS) == BOTH_FULL
                time.sleep(5)
        live.until_full()


# The clock of every process, to which a test adds what is in a file.
STEPPED_CLOCK = """
import pathlib
import time

_time, _ahead = time.time, pathlib.Path(__file__).with_name("ahead")


def stepped():
    try:
        return _time() + float(_ahead.read_text())
    except (OSError, ValueError):
        return _time()


time.time = stepped
"""


def test_a_machine_that_was_suspended_for_an_hour_rejoins(tmp_path: Path) -> None:
    """For the processes of a site, a suspended machine is one whose clock jumps. To have it agree with the
    others' afterwards, the clocks of these jump as well."""
    with live_processes(tmp_path, planted=STEPPED_CLOCK) as live:
        with suspended(*every_process(live.federation.kits["south"])):
            live.next_forecasts(*OTHERS)
            assert live.next_forecasts(*OTHERS) == BOTH_FULL
            (tmp_path / "first" / "ahead").write_text("3600")
            server = live.federation.server
            wait_for(lambda: "south" not in connected_sites(server), "the server has forgotten the site")
            live.until_full(*OTHERS)
            assert live.sites["south"]["quality"] == GONE
        live.until_full()


def test_every_machine_reboots_at_once_and_comes_back_in_any_order(tmp_path: Path) -> None:
    with live_processes(tmp_path) as live:
        kits = live.federation.kits
        for order in permutations([("server",), ("south",), OTHERS]):
            live.command.kill()
            live.command.wait()
            for pid in [pid for kit in kits.values() for pid in every_process(kit)]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for name in (name for machines in order for name in machines):
                wait_for(lambda kit=kits[name]: processes.running(kit) is None, f"{name} is dead")
                processes.up(kits[name])
            live.lines.clear()
            live.start()
            live.until_full()


def test_a_certificate_that_expires_while_the_federation_is_live(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection that there is stays; without another certificate there is no next one."""
    with live_processes(tmp_path) as live:
        south, server = live.federation.kits["south"], live.federation.server
        project = read_project(tmp_path / "example" / "project.toml")

        def renew(days: float) -> None:
            with monkeypatch.context() as short:
                short.setattr(provisioning, "PARTY_DAYS", days)
                folder = tmp_path / f"valid for {days:g} days"
                made = make_kits(project, folder, authority=server.parent / "authority", only="south")
            shutil.copytree(made["south"] / "startup", south / "startup", dirs_exist_ok=True)

        renew(120 / 86_400)  # long enough to rejoin on a busy machine
        wait_for(lambda: "certificate" in said("federation", "status", south), "it is about to expire")
        live.until_full()
        wait_for(lambda: "expired on" in said("federation", "status", south), "it has expired")
        assert live.next_forecasts() == {**BOTH_FULL, "south": FULL}
        assert "its certificate expired on" in said("federation", "status", server)
        live.federation.kill_engine("south")
        live.next_forecasts()
        assert live.next_forecasts() == {**BOTH_FULL, "south": {"last embedding"}}
        renew(30)
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
