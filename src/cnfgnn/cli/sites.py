"""What the operator sees of a task: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from cnfgnn.cli.federation_live_status import live_lines, live_sites_table
from cnfgnn.cli.progress import HEARTBEAT_S, number, size

QUIET_FOR = 3.5  # seconds without an event after which the last line is printed again
PHASE_NAMES = {
    0: "",
    1: "(1) training of the nodes",
    2: "(2) encoding",
    3: "(3) training of the Graph Network",
    4: "(4) embedding and evaluation",
}


def sites_watcher() -> LiveSites | SiteLines:
    return LiveSites() if sys.stderr.isatty() else SiteLines()


class LiveSites:
    """Shows the status as a table that is updated in place."""

    def __init__(self) -> None:
        self.live = Live(console=Console(stderr=True), refresh_per_second=4)
        self.live.start()

    def __call__(self, status: Mapping[str, Any]) -> None:
        self.live.update(status_view(status))

    def say(self, line: str) -> None:
        """What the command does before there is a task."""
        self.live.update(Text(line))

    def end(self) -> None:
        self.live.stop()


class SiteLines:
    """Prints a line for each event of a task, and one every few seconds in between.

    Events are: a finished round, a site that becomes absent or present, a new reason for an absence, a site
    that the others wait for, a refused answer, a warning, and another model of a live task.
    """

    def __init__(self) -> None:
        self.printed_at = self.event_at = time.monotonic()
        self.done, self.state, self.token, self.headline = 0, "", "", ""
        self.quiet_for = QUIET_FOR
        self._ended = threading.Event()
        threading.Thread(target=self._keep_talking, name="lines", daemon=True).start()
        self.absent: dict[str, set[str]] = {}  # absent sites, and the reasons already printed
        self.holding_up: set[str] = set()
        self.warned: list[str] = []
        self.refused: dict[str, str] = {}
        self.switched: float | None = None  # when the last switch was

    def __call__(self, status: Mapping[str, Any]) -> None:
        if status.get("token") != self.token:
            self.token, self.done, self.state = str(status.get("token")), status.get("done", 0), ""
            self.warned = []
        self._print_sites(status)
        self._print_switches(status)
        for line in list(status.get("warnings") or [])[len(self.warned) :]:
            self.warned.append(line)
            self._print(f"warning: {line}")
        state = "waiting" if status.get("waiting") else str(status.get("state"))
        self.headline = headline(status)
        self.quiet_for = HEARTBEAT_S if status.get("live") else QUIET_FOR  # a live task runs for months
        if state != self.state or status.get("done", 0) != self.done:
            self.state, self.done = state, status.get("done", 0)
            self._print(self.headline)

    def say(self, line: str) -> None:
        """What the command does before there is a task."""
        self.headline = line
        self._print(line)

    def end(self) -> None:
        self._ended.set()

    def _keep_talking(self) -> None:
        """Say where the task is when nothing has happened for a while: also while the server is asked."""
        while not self._ended.wait(1.0):
            now = time.monotonic()
            if self.headline and now - self.printed_at > self.quiet_for:
                self.printed_at = now
                print(f"{self.headline}, for {now - self.event_at:.0f} s", file=sys.stderr, flush=True)

    def _print_sites(self, status: Mapping[str, Any]) -> None:
        absent = absent_sites(status)
        for name, site in dict(status.get("sites") or {}).items():
            if name not in absent and site.get("refused") and site["problem"] != self.refused.get(name):
                self.refused[name] = site["problem"]
                self._print(f"{site['problem']} (answers refused so far: {site['refused']})")
        for name in self.absent.keys() - absent.keys():
            self._print(f"site {name} is present")
        printed, self.absent = self.absent, {name: self.absent.get(name, set()) for name in absent}
        for name, reason in absent.items():
            if reason not in printed.get(name, ()):
                self.absent[name].add(reason)
                self._print(f"site {name} is absent: {reason}")
        holding_up = sites_waited_for(status)
        for name in holding_up.keys() - self.holding_up:
            self._print(f"waiting for site {name}: {holding_up[name]}")
        self.holding_up = set(holding_up)

    def _print_switches(self, status: Mapping[str, Any]) -> None:
        if (federation := status.get("federation")) is None:
            return
        switches = federation["switches"]
        for switch in switches if self.switched is not None else []:
            if switch["time"] > (self.switched or 0.0):
                self._print(f"{switch['after']} is live instead of {switch['before']}: {switch['why']}")
        self.switched = max((switch["time"] for switch in switches), default=0.0)

    def _print(self, line: str) -> None:
        self.printed_at = self.event_at = time.monotonic()
        print(line, file=sys.stderr, flush=True)


def absent_sites(status: Mapping[str, Any]) -> dict[str, str]:
    """The sites that take no part in the task now, and why, except for those that are just starting."""
    from cnfgnn.federation.server.status import STARTING  # imported late: federations are an optional extra

    missing = dict(status.get("missing") or {})  # when the task began
    if not status.get("sites"):
        return {name: reason for name, reason in missing.items() if reason != STARTING}
    absent = {}
    for name, site in dict(status["sites"]).items():
        left_out = bool(status.get("exchanges")) and not site["present"] and bool(site["problem"])
        if not site["reachable"] or left_out:
            absent[name] = site["problem"] or missing.get(name, "it has not answered yet")
    return absent


def sites_waited_for(status: Mapping[str, Any]) -> dict[str, str]:
    """The sites that the others are waiting for at this moment, and what each is doing."""
    sites = dict(status.get("sites") or {})
    return {name: str(site["holding_up"]) for name, site in sites.items() if site.get("holding_up")}


def headline(status: Mapping[str, Any]) -> str:
    """The progress of the task in one line."""
    state, task = str(status.get("state")), f"{status.get('do')} {status.get('run')}"
    if state == "connecting":
        missing = dict(status.get("missing") or {})
        return f"{task}: waiting for {', '.join(missing)}" if missing else f"{task}: connecting to the sites"
    parts = [f"{task}: {state}"]
    if status.get("waiting"):
        parts = [f"{task}: paused, because fewer than min_sites sites are present"]
    elif "rounds" in status and state == "running":
        now = min(status["round"], status["rounds"])  # of a finished run that is resumed, the last one
        parts.append(f"round {now}/{status['rounds']}")
    if "best_error" in status:
        parts += _errors(status)
    if live := status.get("live"):
        parts.append(_live(live))
    if holding_up := sites_waited_for(status):
        parts.append("waiting for " + "; ".join(f"{name} ({why})" for name, why in holding_up.items()))
    if status.get("problem"):
        parts.append(str(status["problem"]))
    return ", ".join(parts)


def _live(live: Mapping[str, Any]) -> str:
    """The last step of a live task."""
    if not live["steps"]:
        return "no step yet"
    took = f"the exchange takes {live['median_seconds'] * 1000:.0f} ms"
    problem = f", {live['problem']}" if live["problem"] else ""
    return f"step {live['step']}, {live['steps']} so far, {took}{problem}"


def _errors(status: Mapping[str, Any]) -> list[str]:
    kind = "masked RMSE" if status["kind"] == "masked_rmse" else "RMSE"
    parts = [
        f"validation {kind} {number(status['error'])}",
        f"best {number(status['best_error'])} in round {status['best_round']}",
    ]
    if sites := dict(status.get("left_out") or {}).get("sites"):
        compared = "compared without" if status.get("compared", True) else "not compared, waiting for"
        parts.append(f"{compared} the sensors of {', '.join(sites)}")
    parts.append(f"{size(status['training_bytes']['per_site'])} transferred")
    return parts


def status_view(status: Mapping[str, Any]) -> Group:
    """The headline, the phase, the table of sites and the warnings."""
    lines: list[Any] = [Text(headline(status)), *map(Text, live_lines(status))]
    if status.get("state") == "running" and status.get("phase") and not status.get("live"):
        lines.append(Text(f"phase {PHASE_NAMES[status['phase']]}, minibatch {status.get('minibatch', 0)}"))
    if status.get("sites"):
        lines.append(sites_table(status))
    lines += [Text(f"warning: {line}") for line in status.get("warnings") or []]
    return Group(*lines)


def sites_table(status: Mapping[str, Any]) -> Table:
    """A row for each site."""
    if told := status.get("federation"):
        return live_sites_table(told)
    table = Table(
        "site",
        "sensors",
        "present",
        "last seen",
        "latency",
        "windows",
        "traffic",
        "refused",
        "last problem",
        box=SIMPLE_HEAD,
    )
    now = time.time()  # not the time of the status: a server that died wrote it long ago
    for name, site in dict(status["sites"]).items():
        seen, latency = site["last_seen"], site["latency"]
        table.add_row(
            name,
            str(site["sensors"]),
            "yes" if site["present"] and site["reachable"] else "no",
            "never" if seen is None else f"{max(0.0, now - seen):.0f} s ago",
            "" if latency is None else f"{latency * 1000:.0f} ms",
            str(site["windows"]),
            size(site["bytes"]),
            str(site["refused"]),
            Text(str(site["problem"])),
        )
    return table
