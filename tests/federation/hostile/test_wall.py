"""Whoever controls the engine of a site gets nothing of the site: the operating system refuses it.

Code of ours is planted in the engine's parent and job process of a site that is live, and tries everything
that such code could try. At another site the same code runs without the wall, and gets what it wants: the
test of this test.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from cnfgnn.federation.engine.confine import landlock
from cnfgnn.federation.engine.confine.system_calls import this_machine
from cnfgnn.federation.example import free_ports
from cnfgnn.federation.kits import processes
from cnfgnn.federation.kits.engine_files import ENGINE_FOLDER
from cnfgnn.federation.site.status import read_site_status
from cnfgnn.files import write_whole
from tests.federation.hostile import intruder
from tests.federation.live_processes import LiveProcesses, live_processes
from tests.federation.running_federation import ENGINE_WARNINGS
from tests.federation.site_processes import engine_of, workers_of
from tests.waiting import wait_for

pytestmark = [pytest.mark.slow, *ENGINE_WARNINGS]

WALLED, OPEN = "north", "south"
SECRETS = ("CNFGNN_MQTT_PASSWORD", "OF_THE_OWNER")
REFUSED = (errno.EACCES, errno.EPERM)
# What a kernel governs only from a version of Landlock on.
SINCE = {
    "tcp": landlock.GOVERNS_PORTS,
    "signal": landlock.GOVERNS_SIGNALS,
    "abstract": landlock.GOVERNS_SIGNALS,
}
Report = dict[str, int | str | None]


@pytest.mark.skipif(not landlock.abi(), reason="this kernel has no Landlock")
@pytest.mark.skipif(not this_machine(), reason="system calls are filtered on x86-64 and 64-bit ARM only")
def test_who_controls_the_engine_gets_nothing_of_the_site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in SECRETS:
        monkeypatch.setenv(name, "of the owner")
    with (
        live_processes(tmp_path, planted=intruder.CODE.format(OPEN)) as live,
        listeners(tmp_path) as (ports, sockets),
    ):
        kits = live.federation.kits
        files = secret_files(live, WALLED)
        for site in (WALLED, OPEN):
            targets = json.dumps(targets_at(live, site, ports, sockets))
            write_whole(kits[site] / ENGINE_FOLDER / intruder.TARGETS, targets.encode())
        reports = {site: [report_of(kits[site], who) for who in intruder.REPORTS] for site in (WALLED, OPEN)}
        for report in reports[WALLED]:
            check_everything_is_refused(report)
        for report in reports[OPEN]:
            check_nothing_is_refused(report)
        assert [file for file in files if not Path(file).exists()] == []
        made = [*kits[WALLED].rglob("made-by-*"), *kits[WALLED].rglob("*.renamed")]
        assert not made
        check_next_start(live, WALLED)


def secret_files(live: LiveProcesses, site: str) -> list[str]:
    """Everything of a site that is not the engine's business, except for what the site is about to rename."""
    kit = live.federation.kits[site]
    readings = live.federation.folder / "example" / "data" / site
    found = [path for place in (kit, readings) for path in place.rglob("*") if path.is_file()]
    found = [path for path in found if path.suffix != ".partial"]
    return sorted(
        str(path) for path in found if ENGINE_FOLDER not in path.relative_to(kit.parent.parent).parts
    )


def targets_at(
    live: LiveProcesses, site: str, ports: dict[str, int], sockets: dict[str, str]
) -> dict[str, Any]:
    kit, files = live.federation.kits[site], secret_files(live, site)
    names = {Path(file).name for file in files}
    assert names >= {"readings.csv", "site.toml", "token", "supervisor.json", "process.json", "client.key"}
    change = {
        who: files if site == WALLED else [victim_beside(file, who) for file in files]
        for who in intruder.REPORTS
    }
    supervisor = processes.running(kit)
    assert supervisor is not None
    workers = dict(zip(("worker",), workers_of(kit), strict=True))
    address = read_site_status(kit)["live"]["address"]
    return {
        "read": [*files, *secret_files(live, "west"), "/etc/shadow"],
        "list": sorted({str(Path(file).parent) for file in files}),
        "change": change,
        "processes": {"supervisor": supervisor, **workers, "test": os.getpid()},
        "ports": {"live": int(address.rpartition(":")[2]), **ports},
        "free_port": free_ports(1)[0],
        "sockets": {"site": str(kit / "socket" / "site.sock"), **sockets},
        "secrets": SECRETS,
    }


def victim_beside(file: str, who: str) -> str:
    """A file to be changed at the site without a wall, which has to go on."""
    victim = Path(f"{file}.of-{who}")
    victim.write_text("victim")
    return str(victim)


@contextmanager
def listeners(folder: Path) -> Iterator[tuple[dict[str, int], dict[str, str]]]:
    """Ports and Unix sockets of somebody else on this machine."""
    with ExitStack() as stack:
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        places = {"other": os.path.relpath(folder / "other.sock"), "abstract": f"\0cnfgnn-test-{os.getpid()}"}
        for place in places.values():
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(place)
            listener.listen()
        yield {"other": tcp.getsockname()[1]}, {**places, "other": str(folder / "other.sock")}


def report_of(kit: Path, who: str) -> Report:
    file = kit / ENGINE_FOLDER / intruder.REPORTS[who]
    wait_for(file.exists, f"the engine's {who} of {kit.name} has tried everything")
    return dict(json.loads(file.read_text()))


def check_everything_is_refused(report: Report) -> None:
    version = landlock.abi()
    environment = {what: outcome for what, outcome in report.items() if what.startswith("environment")}
    assert set(environment.values()) == {intruder.ABSENT}
    allowed = {
        what: outcome
        for what, outcome in report.items()
        if outcome not in REFUSED
        and what not in environment
        and version >= SINCE.get(what.partition(" ")[0], 0)
    }
    assert not allowed


def check_nothing_is_refused(report: Report) -> None:
    """The same attempts where the engine is not confined; some fail because there is no such thing here."""
    refused = [what for what, outcome in report.items() if outcome in REFUSED]
    if os.geteuid() == 0:
        assert not refused
    files = [what for what in report if what.startswith(("read ", "write ", "list ", "tcp live", "unix "))]
    here = [what for what in files if "/kits/" in what or "/example/" in what or "/" not in what]
    assert {report[what] for what in here if " of " not in what and "datagram" not in what} == {None}


def check_next_start(live: LiveProcesses, site: str) -> None:
    """What the engine left in its folder does not run when it starts again, and what it left running is
    ended; the site goes on."""
    kit = live.federation.kits[site]
    running = [int((kit / ENGINE_FOLDER / file).read_text()) for file in intruder.LEFT.values()]
    assert all(map(psutil.pid_exists, running))
    escaped, before = kit / "escaped", engine_of(kit)
    assert before is not None
    for module in ("cnfgnn/__init__.py", "socket.py", "sitecustomize.py"):
        left = kit / ENGINE_FOLDER / module
        left.parent.mkdir(exist_ok=True)
        left.write_text(f"open({str(escaped)!r}, 'w')")
    os.kill(before, signal.SIGKILL)
    wait_for(lambda: engine_of(kit) not in (None, before), "the engine starts again")
    live.until_full()
    assert not any(map(psutil.pid_exists, running))
    assert not escaped.exists()
    assert not (kit / ENGINE_FOLDER / "cnfgnn").exists()
