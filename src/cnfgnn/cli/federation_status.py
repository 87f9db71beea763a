"""The command `cnfgnn federation status`: the status of a kit in words, or as JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cnfgnn.cli import progress
from cnfgnn.cli.federation_arguments import KitArgument

if TYPE_CHECKING:
    from cnfgnn.federation.status import Status


def status(
    kit: KitArgument = Path(), as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False
) -> None:
    """Show the state of a kit: the sites and task of a server, or the connection and forecast of a site."""
    from cnfgnn.federation.engine.guard.handshake import local_time
    from cnfgnn.federation.operator.status import status_of

    found = status_of(kit)
    if as_json:
        print(json.dumps(found.as_json()))
        return
    since = "" if found.since is None else f", since {local_time(found.since)}"
    print(f"{found.kind} {found.name}".rstrip() + f": {found.state}{since}")
    for line in _site_lines(found) if found.kind == "site" else _server_lines(found):
        print(f"  {line}")
    if found.task is not None:
        _print_task(found.task)
    for item in found.known["refused"]:  # with the name in the certificate of whoever tried it
        print(f"refused: {local_time(item['time'])} {item['who']}: {item['what']}")
    for problem in found.problems:
        since = "" if problem.since is None else f" since {local_time(problem.since)}"
        print(f"problem{since}: {problem}")


def _site_lines(found: Status) -> Iterator[str]:
    from cnfgnn.cli.federation_live_status import service_lines
    from cnfgnn.cli.live import page_link
    from cnfgnn.federation.engine.guard.handshake import local_time

    known = found.known
    if known["heard"] is not None:
        yield f"the server at {known['server']} received a heartbeat {known['heard']:.0f} s ago"
    else:
        yield "the server receives no heartbeats"
    for line in known["confinement"]:
        yield f"engine: {line}"
    if evaluation := known["evaluation"]:
        shown = f"RMSE {progress.number(evaluation['rmse'])}, MAE {progress.number(evaluation['mae'])}"
        made = f"made {local_time(evaluation['time'])}"
        yield f"last evaluation ({evaluation['split']}): {shown}; {evaluation['file']}, {made}"
    if forecast := known["forecast"]:
        span = f"from {forecast['from']} to {forecast['to']}"
        yield f"last forecast: {forecast['file']}, made {local_time(forecast['time'])}, {span}"
    else:
        yield "no forecast yet"
    if live := known["live"]:
        yield f"live on {live['address']}: /forecasts, /health and /metrics are there"
        for line in (f"page: {page_link(live['address'], Path(live['token_file']))}", *service_lines(live)):
            yield f"  {line}"
    for waits in known["waits"]:
        about = f"{waits['method']}, {waits['rounds']} rounds" if waits["rounds"] else waits["method"]
        yield f"{waits['run']} ({about}) waits: cnfgnn federation approve {known['kit']} {waits['run']}"


def _server_lines(found: Status) -> Iterator[str]:
    for name, site in found.sites.items():
        sensors, seen = site.known["sensors"], site.known["last_seen"]
        heard = "" if seen is None else f", last heartbeat {max(0.0, time.time() - seen):.0f} s ago"
        yield f"{name}: {sensors} sensor{'s' if sensors != 1 else ''}, {site.state}{heard}"
        for problem in site.problems:
            yield f"  {problem}"


def _print_task(task: Status) -> None:
    from cnfgnn.cli.federation_live_status import live_lines
    from cnfgnn.cli.sites import headline, sites_table

    for line in (headline(task), *live_lines(task.known)):
        print(line)
    if task.known.get("sites"):
        progress.out().print(sites_table(task))
    for line in task.known.get("warnings") or []:
        print(f"warning: {line}")
