"""The status of a kit: a server's for its operator, a site's for its owner."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cnfgnn.errors import CnfgnnError, ConfigError, RunError
from cnfgnn.federation.engine.confine.limits import confinement_lines
from cnfgnn.federation.engine.guard.handshake import (
    ask_server,
    connection_problem,
    copied_kit_warning,
    local_time,
)
from cnfgnn.federation.kits.certificates import WARN_WITHIN, check_pairs, issued, revoked, validities
from cnfgnn.federation.kits.engine_files import ENGINE_FOLDER
from cnfgnn.federation.kits.kit import role
from cnfgnn.federation.kits.ports import closed_ports
from cnfgnn.federation.kits.process_identity import started_at
from cnfgnn.federation.kits.processes import CONSOLE_FILE, read_live, running, supervisor_status
from cnfgnn.federation.kits.refusals import read_refusals
from cnfgnn.federation.operator.tasks import connected_sites, sensors_per_site
from cnfgnn.federation.server.process_status import read_server_status, scheduler_ended
from cnfgnn.federation.server.status import (
    is_active,
    read_status,
    task_status,
    when_ended,
    when_old,
    writing_problem,
)
from cnfgnn.federation.site.approvals import waiting_now
from cnfgnn.federation.site.losses import note_losses
from cnfgnn.federation.site.settings import read_site
from cnfgnn.federation.site.status import MODEL, read_site_status
from cnfgnn.federation.status import Problem, Status
from cnfgnn.files import read_json_or_empty
from cnfgnn.live.options import LIVE
from cnfgnn.live.web.token_file import TOKEN, read_token

ANSWERS_WITHIN = 5.0  # seconds for a live service on this machine
SILENT_FOR = 60.0  # seconds after which a server that writes no status is reported as hanging


def status_of(kit: Path) -> Status:
    """All that is known of a kit, its process and its task."""
    pid = running(kit)
    state = f"process {pid}" if pid else "does not run"
    since = started_at(pid) if pid else None
    return (_site if role(kit) == "site" else _server)(kit, pid, state, since)


# ---- a site, for its owner ------------------------------------------------------------------------------


def _site(kit: Path, pid: int | None, state: str, since: float | None) -> Status:
    plan = read_site(kit)
    note_losses(kit, plan)  # the site may not run
    recorded, supervisor = read_site_status(kit), supervisor_status(kit)
    known: dict[str, Any] = {
        "pid": pid,
        "kit": str(kit),
        "forecast": recorded.get("forecast"),
        "evaluation": recorded.get("evaluation"),
        "live": live_service(kit, recorded.get("live")) if read_live(kit) else None,
        "waits": [asdict(one) for one in waiting_now(kit)],
        "refused": read_refusals(kit / ENGINE_FOLDER),
        "confinement": confinement_lines(supervisor.get("confinement") or {}),
        "heard": None,  # how many seconds ago the server received a heartbeat
    }
    problems = _certificate_problems(kit)
    if what := supervisor.get("problem"):
        problems.append(Problem(f"{what}; see {kit / CONSOLE_FILE}"))
    problems += [_recorded(item) for item in recorded.get("problems", [])]
    try:
        answer = ask_server(kit, engine_process(kit) if pid else "")
        known |= {"server": answer.address, "heard": answer.connection.get("heard")}
        if what := connection_problem(answer) or copied_kit_warning(answer.connection):
            problems.append(Problem(what))
    except CnfgnnError as error:
        other = "; its engine, which runs elsewhere, may reach it" if supervisor.get("elsewhere") else ""
        problems.append(Problem(f"{error}{other}"))
    state += ", working on a task" if supervisor.get("workers") else ""
    return Status("site", plan.name, state, since, known, problems)


def _recorded(item: Mapping[str, Any]) -> Problem:
    """A problem that the site's processes have recorded, and that is not over yet."""
    what = f"{item.get('part')}: {item.get('problem')}"
    return Problem(what, str(item.get("to_do", "")), item.get("since"))


def engine_process(kit: Path) -> str:
    """The name by which the server knows the site's engine."""
    return str(supervisor_status(kit).get("known_as", ""))


def live_service(kit: Path, told: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Where the site's live service is, how it is, and which model it uses; the owner's own, and not sent."""
    if not told:
        return None
    known = read_json_or_empty(kit / LIVE / MODEL)
    last = (known.get("switches") or [None])[-1]
    token_file = str(told.get("token_file", kit / LIVE / TOKEN))
    health = _health(str(told["address"]), Path(token_file))
    return {**told, "token_file": token_file, "health": health, "model": known.get("model"), "switch": last}


def _health(address: str, token_file: Path) -> dict[str, Any] | None:
    """What a service on this machine says of its health; None if it does not answer. Without the token, it
    says no more than whether it works."""
    place = urlsplit(address)
    host = "127.0.0.1" if place.hostname in ("0.0.0.0", "::", None) else place.hostname
    try:
        headers = {"Authorization": f"Bearer {read_token(token_file)}"}
    except ConfigError:
        headers = {}
    connection = http.client.HTTPConnection(host, place.port, timeout=ANSWERS_WITHIN)
    try:
        connection.request("GET", "/health", headers=headers)
        found = json.loads(connection.getresponse().read())
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()
    return found if isinstance(found, dict) else None


# ---- a server, for its operator -------------------------------------------------------------------------


def _server(kit: Path, pid: int | None, state: str, since: float | None) -> Status:
    problems = _certificate_problems(kit)
    connected: Mapping[str, float] = {}
    if pid is not None:
        problems += _process_problems(kit, pid)
        try:
            connected = connected_sites(kit)
        except RunError as error:
            problems.append(Problem(str(error)))
    recorded = read_server_status(kit).get("sites", {})
    sites: dict[str, Status] = {}
    for name, sensors in sensors_per_site(kit).items():
        about, notices = {"sensors": sensors, "last_seen": connected.get(name)}, site_notices(kit, name)
        if name in connected:
            began = recorded.get(name, {}).get("since")
            sites[name] = Status("site", name, "connected", began, about, notices)
        else:
            sites[name] = Status("site", name, "not connected", None, about, notices)
    known = {"pid": pid, "connected": connected, "refused": read_refusals(kit)}
    return Status("server", "", state, since, known, problems, sites, _task(kit, pid is not None))


def _task(kit: Path, server_runs: bool) -> Status | None:
    """The latest task; one that did not end although its process did is interrupted."""
    task = read_status(kit)
    if task is None:
        return None
    task = when_old(kit, task) if server_runs and is_active(task) else when_ended(task)
    if task.get("do") == "live":
        from cnfgnn.federation.operator.live.state import live_state  # loads PyTorch

        task = {**task, "federation": live_state(kit)}
    return task_status(task)


def site_notices(kit: Path, name: str) -> list[Problem]:
    """What the operator must know about a site's certificate and about connections in its name."""
    known = read_server_status(kit).get("sites", {}).get(name, {})
    made = issued(kit).get(name, {})
    found = []
    if revoked(kit).covers(name, known.get("serial") or made.get("serial"), known.get("from")):
        found.append(Problem("its certificate is revoked"))
    until = known.get("until") or made.get("until")
    if until is not None:
        expires = datetime.fromisoformat(str(until))
        left = expires - datetime.now(UTC)
        if left.total_seconds() <= 0:
            found.append(Problem(f"its certificate expired on {expires:%Y-%m-%d %H:%M} UTC", "renew it"))
        elif left < WARN_WITHIN:
            found.append(Problem(f"its certificate expires on {expires:%Y-%m-%d}", "renew it"))
    if refused := known.get("refused"):
        times = "once" if refused["count"] == 1 else f"{refused['count']} times"
        found.append(Problem(f"a connection in its name was refused {times}, {_latest(refused)}"))
    return found


def _latest(refused: Mapping[str, Any]) -> str:
    return f"last from {refused['address']} at {local_time(refused['last'])}: {refused['reason']}"


def _process_problems(kit: Path, pid: int) -> list[Problem]:
    status, problems = read_server_status(kit), []
    restart = f"restart it: cnfgnn federation down {kit}, then cnfgnn federation up {kit}"
    if closed := closed_ports(kit, pid):
        why = "it is still starting, or another program uses the port"
        problems.append(Problem(f"its process does not listen on port {closed[0]}: {why}"))
    if scheduler_ended(kit):
        problems.append(Problem(f"its scheduler has ended, so it will not start any task; {restart}"))
    age = time.time() - float(status.get("time", time.time()))
    if age > SILENT_FOR and (status.get("process") or {}).get("pid") == pid:
        silent = f"its process has not updated its status for {age:.0f} s"
        full = writing_problem(kit)
        problems.append(Problem(f"{silent}, because {full}" if full else f"{silent}, so it hangs; {restart}"))
    if strangers := status.get("strangers"):
        count = strangers["count"]
        connections = "1 connection was" if count == 1 else f"{count} connections were"
        problems.append(Problem(f"{connections} refused, {_latest(strangers)}"))
    return problems


def _certificate_problems(kit: Path) -> list[Problem]:
    try:
        check_pairs(kit)
        found = validities(kit)
    except RunError as error:
        return [Problem(str(error))]
    return [Problem(line) for validity in found if (line := validity.problem() or validity.warning())]
