"""A live federation of real processes: the command, its page, and processes that are killed."""

from __future__ import annotations

import math
import os
import re
import shutil
import signal
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from cnfgnn.data.files.export import write_folder
from cnfgnn.data.readings import rows_of
from cnfgnn.errors import RunError
from cnfgnn.federation.kits import processes
from cnfgnn.federation.kits.processes import read_live
from cnfgnn.federation.site.backup import restore
from cnfgnn.federation.site.settings import private_folder, read_site, settings_file
from cnfgnn.privacy.copies import CopyStore
from tests.commands import said
from tests.federation.live_federation import ABSENT
from tests.federation.live_processes import FULL, SITES, TELLS, TIMEOUT, LiveProcesses, live_processes
from tests.federation.running_federation import ENGINE_WARNINGS
from tests.waiting import wait_for

pytestmark = [pytest.mark.slow, *ENGINE_WARNINGS]


@pytest.mark.chaos
def test_a_new_sensor_is_served_while_the_others_go_on(tmp_path: Path) -> None:
    with live_processes(tmp_path) as live:
        kit = live.federation.kits["south"]
        file = settings_file(kit)
        file.write_text(file.read_text() + "\n[new_sensors.s6]\nfrom = { s1 = 0.8 }\nto = { s5 = 0.6 }\n")

        def known() -> bool:
            with suppress(OSError, KeyError, TypeError):
                told = live.federation.status["live"]
                joined = told["sites"]["south"]["quality"] not in ABSENT and live.is_joined("south")
                return joined and told["new_sensors"] == {"south": ["s6"]}
            return False

        wait_for(known, "the server counts on the new sensor", TIMEOUT)
        assert live.sites["south"]["sensors"] == 3
        live.sent["south"].append(6)
        expected = {"north": FULL, "south": {"full", "fallback"}, "west": FULL}
        assert live.next_forecasts() == expected  # a new sensor has a forecast from its first reading on
        wait_for(lambda: live.next_forecasts()["south"] == FULL, "the new sensor is forecast", TIMEOUT)
        assert "s6" in live.client("south").get("/forecasts").json["sensors"]

        [job] = processes.jobs_of(live.federation.server)  # a new task learns of the sensor again
        os.kill(job, signal.SIGKILL)
        live.until_full()
        wait_for(known, "the server counts on the new sensor again", TIMEOUT)
        live.until_full()


def test_sites_go_on_whoever_is_killed_and_rejoin_by_themselves(tmp_path: Path) -> None:
    with live_processes(tmp_path) as live:
        page = live.page.get("/")
        assert page.status == 200
        assert b"Live federation" in page.body
        told = live.page.get("/status").json
        assert told["state"] == "running"
        assert {name: site["sensors"] for name, site in told["sites"].items()} == dict.fromkeys(SITES, 2)
        assert live.page.get("/health").status == 200
        for kit in live.federation.kits.values():
            shown = said("federation", "status", kit)
            assert ("newest forecast after" in shown) == (kit != live.federation.server), shown

        live.kill_service("south")  # the supervisor starts it again
        others = {"north": FULL, "west": FULL}
        assert all(made <= {"full", "last embedding"} for made in live.next_forecasts(*others).values())
        wait_for(lambda: live.next_forecasts(*others) == others, "the others go on as before", TIMEOUT)
        live.until_full()
        live.assert_ranges_are_undisturbed("south")

        [job] = processes.jobs_of(live.federation.server)  # the command starts the task again
        services = {name: read_live(live.federation.kits[name]) for name in SITES}
        os.kill(job, signal.SIGKILL)
        assert live.next_forecasts() == {name: {"last embedding"} for name in SITES}
        live.until_full()
        assert {name: read_live(live.federation.kits[name]) for name in SITES} == services

        live.until(lambda: live.sites[TELLS]["coverage"])  # at the beginning of an hour
        assert [live.sites[name]["coverage"] for name in SITES if name != TELLS] == [None, None]
        metrics = live.page.get("/metrics").body.decode()
        assert re.findall(r'cnfgnn_federation_site_covered{level="80",site="(.*)"} [1-9]', metrics) == [TELLS]
        assert metrics.count("cnfgnn_federation_site_reachable{") == len(SITES)
        live.assert_ranges_are_undisturbed(TELLS)

        assert live.end() == 130
        ended = "sites north, south, west have ended their services"
        wait_for(lambda: any(ended in line for line in live.lines), "the command says what it has ended")
        wait_for(lambda: not any(read_live(live.federation.kits[name]) for name in SITES), "services end")


@pytest.mark.chaos
def test_a_site_whose_machine_has_died_is_restored_from_its_backup(tmp_path: Path) -> None:
    """The backup is made while the site is live; its copies are older than what was sent."""
    with live_processes(tmp_path) as live:
        kit, file = live.federation.kits["south"], tmp_path / "south.backup"
        private = private_folder(read_site(kit), kit)
        said("federation", "backup", kit, file)
        for _ in range(3):
            live.next_forecasts()
        with pytest.raises(RunError, match="the site runs: stop it first"):
            restore(kit, file)
        lost = CopyStore(private)
        before, newest, retired = lost.count(), lost.newest(math.inf), live.row
        processes.down(kit)
        shutil.rmtree(kit)
        shutil.rmtree(private)
        known = live.data.select([live.data.readings.ids[column] for column in SITES["south"]])
        known = replace(known, readings=rows_of(known.readings, slice(0, retired)))
        write_folder(known, private.parent)  # the owner's readings, from wherever they are kept
        assert "retired: readings up to " in said("federation", "restore", kit, file)
        restored = CopyStore(private)
        assert restored.retired == {"": newest}
        backed_up = restored.count()
        assert backed_up < before
        processes.up(kit)
        live.until_full()
        times = live.data.readings.seconds
        for _, copies in restored.each():
            assert times[retired] in copies["time"]
            assert not set(times[retired - 3 : retired]) & set(copies["time"])
        assert restored.count() == backed_up + 2 * (live.row - retired)
        assert "problem since" not in said("federation", "status", kit)
        assert live.client("south").get("/forecasts").status == 200


@pytest.mark.chaos
def test_a_model_that_was_trained_beside_goes_live_and_is_rolled_back(tmp_path: Path) -> None:
    retrain = ("--retrain", "20m", "--hold-out", "0.1")  # at the speed of the recording, 20 seconds
    with live_processes(tmp_path, options=retrain, method="at-fedavg") as live:
        wait_for(lambda: model(live) != "one", f"another model is live; {live.lines[-3:]}", 2 * TIMEOUT)
        live.until_full()
        events = live.federation.kits["west"] / "live" / "switches.jsonl"
        assert model(live)[:30] in events.read_text()
        assert "is live instead of" in said("federation", "rollback", live.federation.server, "one")
        wait_for(lambda: model(live) == "one", "the model before is live", TIMEOUT)
        live.until_full()
        assert live.end() == 130


def model(live: LiveProcesses) -> str:
    return str(live.page.get("/status").json["model"] or "one")
