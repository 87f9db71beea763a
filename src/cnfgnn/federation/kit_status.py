"""How a kit stands, for `federation status`: of a server what its operator must know, of a site its owner."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cnfgnn.errors import CnfgnnError, RunError
from cnfgnn.federation.certificates import WARN_WITHIN, issued, revoked, validities
from cnfgnn.federation.flare.admission import read_server_status, scheduler_ended
from cnfgnn.federation.flare.handshake import ask
from cnfgnn.federation.kits import read_site
from cnfgnn.federation.processes import closed_ports, jobs_of
from cnfgnn.federation.site_status import (
    copy_problem,
    noted_process,
    read_site_status,
    standing_problem,
    when,
)
from cnfgnn.federation.status import read_status
from cnfgnn.federation.task_client import OVER, at_work, connected_sites, plan_of

SILENT_FOR = 60.0  # seconds after which a server that writes nothing is said to hang


def site_standing(kit: Path, pid: int | None) -> dict[str, Any]:
    """A site's: whether the server hears it, its last forecast, and what it refused or could not do."""
    noted = read_site_status(kit)
    said: dict[str, Any] = {"site": read_site(kit).name, "task": bool(pid and jobs_of(kit))}
    said |= {"forecast": noted.get("forecast"), "failed": noted.get("problems", [])}
    problems = _certificate_problems(kit)
    said["heard"] = None
    try:
        answer = ask(kit, noted_process(kit) if pid else "")
        said["server"] = answer.address
        if answer.standing:
            said["heard"] = answer.standing.get("heard")
        problem = standing_problem(answer) or copy_problem(answer.standing)
        problems += [problem] if problem else []
    except CnfgnnError as error:
        problems.append(str(error))
    return {**said, "problems": problems}


def server_standing(kit: Path, pid: int | None) -> dict[str, Any]:
    """A server's: its sites with their connections and certificates, its task, and what is wrong."""
    last = read_status(kit)
    said: dict[str, Any] = {"sites": plan_of(kit), "task": last, "connected": {}}
    problems = _certificate_problems(kit)
    if pid is not None:
        problems += _process_problems(kit, pid)
        try:
            said["connected"] = connected_sites(kit)
        except RunError as problem:
            problems.append(str(problem))
    if last is not None and last.get("state") not in OVER and not (pid is not None and at_work(last)):
        absent = {name: {**site, "present": False} for name, site in dict(last.get("sites") or {}).items()}
        said["task"] = {**last, "state": "interrupted", "waiting": False, "sites": absent}
    said["about"] = {name: about_site(kit, name) for name in said["sites"]}
    return {**said, "problems": problems}


def about_site(kit: Path, name: str) -> list[str]:
    """What the server's operator must know of a site's certificate and of connections in its name."""
    known = read_server_status(kit).get("sites", {}).get(name, {})
    lines = []
    serial = known.get("serial") or issued(kit).get(name, {}).get("serial")
    if serial in revoked(kit):
        lines.append("its certificate is revoked")
    until = known.get("until") or issued(kit).get(name, {}).get("until")
    if until is not None:
        ends = datetime.fromisoformat(str(until))
        left = ends - datetime.now(UTC)
        if left.total_seconds() <= 0:
            lines.append(f"its certificate expired on {ends:%Y-%m-%d %H:%M} UTC: renew it")
        elif left < WARN_WITHIN:
            lines.append(f"its certificate expires on {ends:%Y-%m-%d}: renew it")
    if refused := known.get("refused"):
        times = f"{refused['count']} time{'s' if refused['count'] != 1 else ''}"
        latest = f"last from {refused['address']} at {when(refused['last'])}"
        lines.append(f"a connection in its name was refused {times}, {latest}: {refused['reason']}")
    return lines


def restart(kit: Path) -> str:
    return f"restart it: cnfgnn federation down {kit}, then cnfgnn federation up {kit}"


def _process_problems(kit: Path, pid: int) -> list[str]:
    noted, problems = read_server_status(kit), []
    if closed := closed_ports(kit, pid):
        problems.append(f"its process does not listen on port {closed[0]}: it is starting, or cannot open it")
    if scheduler_ended(kit):
        problems.append(f"its scheduler has ended, so it starts no task any more; {restart(kit)}")
    age = time.time() - float(noted.get("time", time.time()))
    if age > SILENT_FOR and (noted.get("process") or {}).get("pid") == pid:
        problems.append(f"its process has written nothing for {age:.0f} s, so it hangs; {restart(kit)}")
    if strangers := noted.get("strangers"):
        latest = f"last from {strangers['address']} at {when(strangers['last'])}: {strangers['reason']}"
        problems.append(f"{strangers['count']} connections were refused for their certificates, {latest}")
    return problems


def _certificate_problems(kit: Path) -> list[str]:
    try:
        found = validities(kit)
    except RunError as problem:
        return [str(problem)]
    return [line for validity in found if (line := validity.problem() or validity.warning())]


def failure_lines(failed: list[Mapping[str, Any]]) -> list[str]:
    """What a site could not do, for its owner."""
    return [f"{when(item.get('time'))} {item.get('verb')}: {item.get('problem')}" for item in failed]
