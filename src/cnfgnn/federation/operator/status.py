"""The content of `federation status`: a server's for its operator, a site's for its owner."""

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
from cnfgnn.federation.engine.confine import Confinement
from cnfgnn.federation.engine.guard.handshake import (
    ask_server,
    connection_problem,
    copied_kit_warning,
    local_time,
)
from cnfgnn.federation.kits.certificates import (
    WARN_WITHIN,
    check_pairs,
    issued,
    revoked,
    validities,
)
from cnfgnn.federation.kits.engine_files import CONNECTION_FILE, ENGINE_FOLDER
from cnfgnn.federation.kits.ports import closed_ports
from cnfgnn.federation.kits.processes import CONSOLE_FILE, read_live, supervisor_status
from cnfgnn.federation.kits.refusals import read_refusals
from cnfgnn.federation.operator.live.state import live_state
from cnfgnn.federation.operator.tasks import FINAL_STATES, connected_sites, is_active, sensors_per_site
from cnfgnn.federation.server.process_status import read_server_status, scheduler_ended
from cnfgnn.federation.server.status import read_status
from cnfgnn.federation.site.approvals import waiting_now
from cnfgnn.federation.site.settings import read_site
from cnfgnn.federation.site.status import MODEL, read_site_status
from cnfgnn.files import read_json_of_others, read_json_or_empty
from cnfgnn.live.options import LIVE
from cnfgnn.live.token_file import TOKEN, read_token

ANSWERS_WITHIN = 5.0  # seconds for a live service on this machine
SILENT_FOR = 60.0  # seconds after which a server that writes no status is reported as hanging


def site_report(kit: Path, pid: int | None) -> dict[str, Any]:
    """When the server last received a heartbeat of the site, its last forecast, and what it refused or could
    not do."""
    recorded, supervisor = read_site_status(kit), supervisor_status(kit)
    report: dict[str, Any] = {
        "site": read_site(kit).name,
        "task": bool(supervisor.get("workers")),
        "forecast": recorded.get("forecast"),
        "evaluation": recorded.get("evaluation"),
        "live": live_service(kit, recorded.get("live")) if read_live(kit) else None,
        "kit": str(kit),
        "waits": [asdict(one) for one in waiting_now(kit)],
        "failed": recorded.get("problems", []),
        "refused": read_refusals(kit / ENGINE_FOLDER),
        "heard": None,
    }
    report["confinement"] = confinement_lines(supervisor.get("confinement") or {})
    problems = _certificate_problems(kit)
    if problem := supervisor.get("problem"):
        problems.append(f"{problem}; see {kit / CONSOLE_FILE}")
    try:
        answer = ask_server(kit, engine_process(kit) if pid else "")
        report["server"] = answer.address
        report["heard"] = answer.connection.get("heard")
        if problem := connection_problem(answer) or copied_kit_warning(answer.connection):
            problems.append(problem)
    except CnfgnnError as error:
        problems.append(str(error))
    return {**report, "problems": problems}


def engine_process(kit: Path) -> str:
    """The name by which the server knows the site's engine, as the engine wrote it down."""
    return str(read_json_of_others(kit / ENGINE_FOLDER / CONNECTION_FILE).get("process", ""))


def confinement_lines(recorded: Mapping[str, Any]) -> list[str]:
    """How the engine of a site is confined, and what each missing piece would allow."""
    if not recorded:
        return []
    found = Confinement.from_dict(recorded)
    problem = recorded.get("user_problem")
    return [found.summary(), *([str(problem)] if problem else []), *found.gaps()]


def server_report(kit: Path, pid: int | None) -> dict[str, Any]:
    """The server's sites with their connections and certificates, its latest task, and its problems."""
    task = read_status(kit)
    report: dict[str, Any] = {"sites": sensors_per_site(kit), "task": task, "connected": {}}
    report["refused"] = read_refusals(kit)
    problems = _certificate_problems(kit)
    if pid is not None:
        problems += _process_problems(kit, pid)
        try:
            report["connected"] = connected_sites(kit)
        except RunError as error:
            problems.append(str(error))
    unfinished = task is not None and task.get("state") not in FINAL_STATES
    if task is not None and unfinished and not (pid is not None and is_active(task)):
        sites = {name: {**site, "present": False} for name, site in dict(task.get("sites") or {}).items()}
        report["task"] = {**task, "state": "interrupted", "waiting": False, "sites": sites}
    if task is not None and task.get("do") == "live":
        report["task"] = {**report["task"], "federation": live_state(kit)}
    report["about"] = {name: site_notices(kit, name) for name in report["sites"]}
    return {**report, "problems": problems}


def live_service(kit: Path, told: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Where the site's live service is, how it is, and which model it uses; the owner's own, and not sent."""
    if not told:
        return None
    known = read_json_or_empty(kit / LIVE / MODEL)
    last = (known.get("switches") or [None])[-1]
    token_file = str(told.get("token_file", kit / LIVE / TOKEN))
    health = _health(str(told["address"]), Path(token_file))
    more = {"token_file": token_file, "health": health, "model": known.get("model"), "switch": last}
    return {**told, **more}


def _health(address: str, token_file: Path) -> dict[str, Any] | None:
    """What a service on this machine says of its health; None if it does not answer."""
    place = urlsplit(address)
    host = "127.0.0.1" if place.hostname in ("0.0.0.0", "::", None) else place.hostname
    connection = http.client.HTTPConnection(host, place.port, timeout=ANSWERS_WITHIN)
    try:
        connection.request("GET", "/health", headers=_authorization(token_file))
        found = json.loads(connection.getresponse().read())
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()
    return found if isinstance(found, dict) else None


def _authorization(token_file: Path) -> dict[str, str]:
    """The header that a service asks for; without it, the service says no more than whether it works."""
    try:
        return {"Authorization": f"Bearer {read_token(token_file)}"}
    except ConfigError:
        return {}


def site_notices(kit: Path, name: str) -> list[str]:
    """What the operator must know about a site's certificate and about connections in its name."""
    known = read_server_status(kit).get("sites", {}).get(name, {})
    made = issued(kit).get(name, {})
    lines = []
    if revoked(kit).covers(name, known.get("serial") or made.get("serial"), known.get("from")):
        lines.append("its certificate is revoked")
    until = known.get("until") or made.get("until")
    if until is not None:
        expires = datetime.fromisoformat(str(until))
        left = expires - datetime.now(UTC)
        if left.total_seconds() <= 0:
            lines.append(f"its certificate expired on {expires:%Y-%m-%d %H:%M} UTC: renew it")
        elif left < WARN_WITHIN:
            lines.append(f"its certificate expires on {expires:%Y-%m-%d}: renew it")
    if refused := known.get("refused"):
        times = "once" if refused["count"] == 1 else f"{refused['count']} times"
        latest = f"last from {refused['address']} at {local_time(refused['last'])}"
        lines.append(f"a connection in its name was refused {times}, {latest}: {refused['reason']}")
    return lines


def _process_problems(kit: Path, pid: int) -> list[str]:
    status, problems = read_server_status(kit), []
    restart = f"restart it: cnfgnn federation down {kit}, then cnfgnn federation up {kit}"
    if closed := closed_ports(kit, pid):
        problems.append(
            f"its process does not listen on port {closed[0]}: it is still starting, or another program uses"
            " the port"
        )
    if scheduler_ended(kit):
        problems.append(f"its scheduler has ended, so it will not start any task; {restart}")
    age = time.time() - float(status.get("time", time.time()))
    if age > SILENT_FOR and (status.get("process") or {}).get("pid") == pid:
        problems.append(f"its process has not updated its status for {age:.0f} s, so it hangs; {restart}")
    if strangers := status.get("strangers"):
        latest = f"last from {strangers['address']} at {local_time(strangers['last'])}: {strangers['reason']}"
        connections = (
            "1 connection was" if strangers["count"] == 1 else f"{strangers['count']} connections were"
        )
        problems.append(f"{connections} refused because of the certificate, {latest}")
    return problems


def _certificate_problems(kit: Path) -> list[str]:
    try:
        check_pairs(kit)
        found = validities(kit)
    except RunError as error:
        return [str(error)]
    return [line for validity in found if (line := validity.problem() or validity.warning())]


def failure_lines(failed: list[Mapping[str, Any]]) -> list[str]:
    """What a site could not do, one line each."""
    return [f"{local_time(item.get('time'))} {item.get('verb')}: {item.get('problem')}" for item in failed]


def refusal_lines(refused: list[Mapping[str, Any]]) -> list[str]:
    """What other parties tried and were refused, one line each, with the name in their certificate."""
    return [f"{local_time(item['time'])} {item['who']}: {item['what']}" for item in refused]
