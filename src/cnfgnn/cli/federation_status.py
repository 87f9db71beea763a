"""The command `cnfgnn federation status`: what a kit knows of itself, for an operator or an owner."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from cnfgnn.cli import progress
from cnfgnn.cli.federation_arguments import KitArgument


def status(
    kit: KitArgument = Path(), as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False
) -> None:
    """Show the state of a kit: the sites and task of a server, or the connection and forecast of a site."""
    from cnfgnn.federation.kits.kit import role
    from cnfgnn.federation.kits.processes import running
    from cnfgnn.federation.operator.status import refusal_lines, server_report, site_report

    pid, kit_role = running(kit), role(kit)
    report: dict[str, Any] = {"kind": kit_role, "pid": pid}
    report |= site_report(kit, pid) if kit_role == "site" else server_report(kit, pid)
    if as_json:
        print(json.dumps(report))
        return
    process = f"process {pid}" if pid else "does not run"
    if kit_role == "server":
        print(f"server: {process}")
        _print_server(report)
    else:
        working = ", working on a task" if report["task"] else ""
        print(f"site {report['site']}: {process}{working}")
        _print_site(report)
    for line in refusal_lines(report["refused"]):
        print(f"refused: {line}")
    for problem in report["problems"]:
        print(f"problem: {problem}")


def _print_site(report: Mapping[str, Any]) -> None:
    from cnfgnn.cli.federation_live_status import service_lines
    from cnfgnn.cli.live import page_link
    from cnfgnn.federation.engine.guard.handshake import local_time
    from cnfgnn.federation.operator.status import failure_lines

    if report["heard"] is not None:
        print(f"  the server at {report['server']} received a heartbeat {report['heard']:.0f} s ago")
    else:
        print("  the server receives no heartbeats")
    for line in report["confinement"]:
        print(f"  engine: {line}")
    if evaluation := report["evaluation"]:
        shown = f"RMSE {progress.number(evaluation['rmse'])}, MAE {progress.number(evaluation['mae'])}"
        made = f"made {local_time(evaluation['time'])}"
        print(f"  last evaluation ({evaluation['split']}): {shown}; {evaluation['file']}, {made}")
    if forecast := report["forecast"]:
        span = f"from {forecast['from']} to {forecast['to']}"
        print(f"  last forecast: {forecast['file']}, made {local_time(forecast['time'])}, {span}")
    else:
        print("  no forecast yet")
    if live := report["live"]:
        print(f"  live on {live['address']}: /forecasts, /health and /metrics are there")
        print(f"    page: {page_link(live['address'], Path(live['token_file']))}")
        for line in service_lines(live):
            print(f"    {line}")
    for waits in report["waits"]:
        about = f"{waits['method']}, {waits['rounds']} rounds" if waits["rounds"] else waits["method"]
        print(f"  {waits['run']} ({about}) waits: cnfgnn federation approve {report['kit']} {waits['run']}")
    for line in failure_lines(report["failed"]):
        print(f"  failed: {line}")


def _print_server(report: Mapping[str, Any]) -> None:
    from cnfgnn.cli.federation_live_status import live_lines
    from cnfgnn.cli.sites import headline, sites_table

    now = time.time()
    for name, sensors in report["sites"].items():
        seen = report["connected"].get(name)
        connection = "not connected"
        if seen is not None:
            connection = f"connected, last heartbeat {max(0.0, now - seen):.0f} s ago"
        print(f"  {name}: {sensors} sensor{'s' if sensors != 1 else ''}, {connection}")
        for line in report["about"][name]:
            print(f"    {line}")
    if report["task"] is not None:
        print(headline(report["task"]))
        for line in live_lines(report["task"]):
            print(line)
        if report["task"].get("sites"):
            progress.out().print(sites_table(report["task"]))
        for line in report["task"].get("warnings") or []:
            print(f"warning: {line}")
