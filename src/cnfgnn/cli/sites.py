"""What the operator sees of a task: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from cnfgnn.cli.federation_live_status import live_lines, live_sites_table
from cnfgnn.cli.progress import HEARTBEAT_S, number, size

if TYPE_CHECKING:
    from cnfgnn.federation.status import Status

QUIET_FOR = 3.5  # seconds without an event after which the last line is printed again
PHASE_NAMES = {
    1: "(1) training of the nodes",
    2: "(2) encoding",
    3: "(3) training of the Graph Network",
    4: "(4) embedding and evaluation",
}
HEADINGS = (
    "site",
    "sensors",
    "present",
    "last seen",
    "latency",
    "windows",
    "traffic",
    "refused",
    "last problem",
)


def sites_watcher() -> LiveSites | SiteLines:
    return LiveSites() if sys.stderr.isatty() else SiteLines()


class LiveSites:
    """Shows the status as a table that is updated in place."""

    def __init__(self) -> None:
        self.live = Live(console=Console(stderr=True), refresh_per_second=4)
        self.live.start()

    def __call__(self, recorded: Mapping[str, Any]) -> None:
        from cnfgnn.federation.server.status import task_status  # late: federations are an optional extra

        self.live.update(status_view(task_status(recorded)))

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
        self.warned = 0  # how many warnings were printed
        self.refused: dict[str, str] = {}
        self.switched: float | None = None  # when the last switch was

    def __call__(self, recorded: Mapping[str, Any]) -> None:
        from cnfgnn.federation.server.status import FINAL_STATES, task_status  # late: an optional extra

        done = recorded.get("done", 0)
        if recorded.get("token") != self.token:
            self.token, self.done, self.state, self.warned = str(recorded.get("token")), done, "", 0
        task = task_status(recorded)
        self._print_sites(task)
        self._print_switches(recorded.get("federation"))
        warnings = list(recorded.get("warnings") or [])
        for line in warnings[self.warned :]:
            self._print(f"warning: {line}")
        self.warned = len(warnings)
        state = "waiting" if recorded.get("waiting") else task.state
        line = headline(task)
        self.headline = "" if state in FINAL_STATES else line  # nothing more is to be said of it
        self.quiet_for = HEARTBEAT_S if recorded.get("live") else QUIET_FOR  # a live task runs for months
        if (state, done) != (self.state, self.done):
            self.state, self.done = state, done
            self._print(line)

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

    def _print_sites(self, task: Status) -> None:
        absent = {name: site.problem for name, site in task.sites.items() if site.state == "absent"}
        for name, site in task.sites.items():
            if name not in absent and site.known.get("refused") and site.problem != self.refused.get(name):
                self.refused[name] = site.problem
                self._print(f"{site.problem} (answers refused so far: {site.known['refused']})")
        for name in self.absent.keys() - absent.keys():
            self._print(f"site {name} is present")
        printed, self.absent = self.absent, {name: self.absent.get(name, set()) for name in absent}
        for name, reason in absent.items():
            if reason not in printed.get(name, ()):
                self.absent[name].add(reason)
                self._print(f"site {name} is absent: {reason}")
        holding_up = _waited_for(task)
        for name in holding_up.keys() - self.holding_up:
            self._print(f"waiting for site {name}: {holding_up[name]}")
        self.holding_up = set(holding_up)

    def _print_switches(self, federation: Mapping[str, Any] | None) -> None:
        if federation is None:
            return
        for switch in federation["switches"]:
            if self.switched is not None and switch["time"] > self.switched:
                self._print(f"{switch['after']} is live instead of {switch['before']}: {switch['why']}")
        self.switched = max((switch["time"] for switch in federation["switches"]), default=0.0)

    def _print(self, line: str) -> None:
        self.printed_at = self.event_at = time.monotonic()
        print(line, file=sys.stderr, flush=True)


def _waited_for(task: Status) -> dict[str, str]:
    """The sites that the others are waiting for at this moment, and what each is doing."""
    return {name: str(why) for name, site in task.sites.items() if (why := site.known.get("holding_up"))}


def headline(task: Status) -> str:
    """The progress of the task in one line."""
    known, state = task.known, task.state
    if state == "connecting":
        missing = ", ".join(known.get("missing") or {})
        return f"{task.name}: " + (f"waiting for {missing}" if missing else "connecting to the sites")
    parts = [f"{task.name}: {state}"]
    if known.get("waiting"):
        parts = [f"{task.name}: paused, because fewer than min_sites sites are present"]
    elif "rounds" in known and state == "running":
        now = min(known["round"], known["rounds"])  # of a finished run that is resumed, the last one
        parts.append(f"round {now}/{known['rounds']}")
    if "best_error" in known:
        parts += _errors(known)
    if live := known.get("live"):
        parts.append(_live(live))
    if holding_up := _waited_for(task):
        parts.append("waiting for " + "; ".join(f"{name} ({why})" for name, why in holding_up.items()))
    return ", ".join([*parts, *map(str, task.problems)])


def _live(live: Mapping[str, Any]) -> str:
    """The last step of a live task."""
    if not live["steps"]:
        return "no step yet"
    took = f"the exchange takes {live['median_seconds'] * 1000:.0f} ms"
    problem = f", {live['problem']}" if live["problem"] else ""
    return f"step {live['step']}, {live['steps']} so far, {took}{problem}"


def _errors(known: Mapping[str, Any]) -> list[str]:
    kind = "masked RMSE" if known["metric"] == "masked_rmse" else "RMSE"
    parts = [
        f"validation {kind} {number(known['error'])}",
        f"best {number(known['best_error'])} in round {known['best_round']}",
    ]
    if sites := dict(known.get("left_out") or {}).get("sites"):
        compared = "compared without" if known.get("compared", True) else "not compared, waiting for"
        parts.append(f"{compared} the sensors of {', '.join(sites)}")
    return [*parts, f"{size(known['training_bytes']['per_site'])} transferred"]


def status_view(task: Status) -> Group:
    """The headline, the phase, the table of sites and the warnings."""
    known = task.known
    lines: list[Any] = [Text(headline(task)), *map(Text, live_lines(known))]
    if task.state == "running" and known.get("phase") and not known.get("live"):
        lines.append(Text(f"phase {PHASE_NAMES[known['phase']]}, minibatch {known.get('minibatch', 0)}"))
    if known.get("sites"):
        lines.append(sites_table(task))
    return Group(*lines, *(Text(f"warning: {line}") for line in known.get("warnings") or []))


def sites_table(task: Status) -> Table:
    """A row for each site."""
    if told := task.known.get("federation"):
        return live_sites_table(told)
    table = Table(*HEADINGS, box=SIMPLE_HEAD)
    now = time.time()  # not the time of the status: a server that died wrote it long ago
    for name, site in task.sites.items():
        known = site.known
        seen, latency = known["last_seen"], known["latency"]
        table.add_row(
            name,
            str(known["sensors"]),
            "yes" if known["present"] and known["reachable"] else "no",
            "never" if seen is None else f"{max(0.0, now - seen):.0f} s ago",
            "" if latency is None else f"{latency * 1000:.0f} ms",
            str(known["windows"]),
            size(known["bytes"]),
            str(known["refused"]),
            Text(str(known["problem"])),
        )
    return table
