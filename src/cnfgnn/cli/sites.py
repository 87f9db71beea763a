"""What an operator sees of a federation: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from cnfgnn.cli.progress import HEARTBEAT_S, number, size

PHASE_NAMES = {
    0: "",
    1: "(1) nodes learn",
    2: "(2) encoding",
    3: "(3) graph network learns",
    4: "(4) embedding and judging",
}


def sites_watcher() -> LiveSites | SiteLines:
    return LiveSites() if sys.stderr.isatty() else SiteLines()


class LiveSites:
    """The status as a table that changes in its place."""

    def __init__(self) -> None:
        self.live = Live(console=Console(stderr=True), refresh_per_second=4)
        self.live.start()

    def __call__(self, status: Mapping[str, Any]) -> None:
        self.live.update(shown(status))

    def end(self) -> None:
        self.live.stop()


class SiteLines:
    """A line for each round, each site that goes or comes, each new reason for an absence, each site that
    keeps the others waiting, and one every half minute in between."""

    def __init__(self) -> None:
        self.said, self.done, self.state, self.token = time.monotonic(), 0, "", ""
        self.away: dict[str, set[str]] = {}  # sites that are away: the reasons that were said
        self.holding_up: set[str] = set()
        self.warned: list[str] = []
        self.refused: dict[str, str] = {}

    def __call__(self, status: Mapping[str, Any]) -> None:
        if status.get("token") != self.token:
            self.token, self.done, self.state = str(status.get("token")), status.get("done", 0), ""
            self.warned = []
        self._sites(status)
        for line in list(status.get("warnings") or [])[len(self.warned) :]:
            self.warned.append(line)
            self._say(f"warning: {line}")
        state = "waiting" if status.get("waiting") else str(status.get("state"))
        if state != self.state:
            self.state = state
            self._say(headline(status))
        elif status.get("done", 0) != self.done or time.monotonic() - self.said > HEARTBEAT_S:
            self.done = status.get("done", 0)
            self._say(headline(status))

    def end(self) -> None: ...

    def _sites(self, status: Mapping[str, Any]) -> None:
        away = absent(status)
        for name, site in dict(status.get("sites") or {}).items():
            if name not in away and site.get("refused") and site["problem"] != self.refused.get(name):
                self.refused[name] = site["problem"]
                self._say(f"{site['problem']} (answers refused so far: {site['refused']})")
        for name in self.away.keys() - away.keys():
            self._say(f"site {name} is there")
        said, self.away = self.away, {name: self.away.get(name, set()) for name in away}
        for name, reason in away.items():
            if reason not in said.get(name, ()):
                self.away[name].add(reason)
                self._say(f"site {name} is away: {reason}")
        holding_up = waited_for(status)
        for name in holding_up.keys() - self.holding_up:
            self._say(f"waiting for site {name}: {holding_up[name]}")
        self.holding_up = set(holding_up)

    def _say(self, line: str) -> None:
        self.said = time.monotonic()
        print(line, file=sys.stderr, flush=True)


def absent(status: Mapping[str, Any]) -> dict[str, str]:
    """Sites that have no part in the task now, and why; those that are only starting are not among them."""
    from cnfgnn.federation.status import STARTING  # late: federations are an extra

    missing = dict(status.get("missing") or {})  # when the task began
    if not status.get("sites"):
        return {name: why for name, why in missing.items() if why != STARTING}
    away = {}
    for name, site in dict(status["sites"]).items():
        left_out = bool(status.get("exchanges")) and not site["present"] and bool(site["problem"])
        if not site["reachable"] or left_out:
            away[name] = site["problem"] or missing.get(name, "it has not answered yet")
    return away


def waited_for(status: Mapping[str, Any]) -> dict[str, str]:
    """Sites that keep the others waiting at this moment, and how."""
    found = {name: site.get("holding_up") for name, site in dict(status.get("sites") or {}).items()}
    return {name: str(why) for name, why in found.items() if why}


def headline(status: Mapping[str, Any]) -> str:
    """How far the task is, in one line."""
    state, run = str(status.get("state")), f"{status.get('do')} {status.get('run')}"
    if state == "gathering":
        missing = dict(status.get("missing") or {})
        return f"{run}: waiting for {', '.join(missing)}" if missing else f"{run}: finding the sites"
    parts = [f"{run}: {state}"]
    if status.get("waiting"):
        parts = [f"{run}: paused, because too few sites are there"]
    elif "rounds" in status and state == "running":
        parts.append(f"round {status['round']}/{status['rounds']}")
    if "best_error" in status:
        kind = "masked RMSE" if status["kind"] == "masked_rmse" else "RMSE"
        parts.append(f"validation {kind} {number(status['error'])}")
        parts.append(f"best {number(status['best_error'])} in round {status['best_round']}")
        if sites := dict(status.get("left_out") or {}).get("sites"):
            told = "compared without" if status.get("compared", True) else "not compared, waiting for"
            parts.append(f"{told} the sensors of {', '.join(sites)}")
        parts.append(f"{size(status['training_bytes']['per_site'])} moved")
    if holding_up := waited_for(status):
        parts.append("waiting for " + "; ".join(f"{name} ({why})" for name, why in holding_up.items()))
    if status.get("problem"):
        parts.append(str(status["problem"]))
    return ", ".join(parts)


def shown(status: Mapping[str, Any]) -> Group:
    """Headline, phase and the sites."""
    lines: list[Any] = [Text(headline(status))]
    if status.get("state") == "running" and status.get("phase"):
        lines.append(Text(f"phase {PHASE_NAMES[status['phase']]}, minibatch {status.get('minibatch', 0)}"))
    if status.get("sites"):
        lines.append(sites_table(status))
    lines += [Text(f"warning: {line}") for line in status.get("warnings") or []]
    return Group(*lines)


def sites_table(status: Mapping[str, Any]) -> Table:
    """A row for each site."""
    table = Table(
        "site",
        "sensors",
        "present",
        "last seen",
        "latency",
        "windows",
        "carried",
        "refused",
        "last problem",
        box=SIMPLE_HEAD,
    )
    now = time.time()  # not when the status was written: a server that died wrote it long ago
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
