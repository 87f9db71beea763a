"""Which trainings the owner of a site has approved, and which ones wait for it.

local/approved.json  written by the owner's command: each run, and the method that it was asked with
waiting.json         written by the site: the trainings that wait, the one that asked first at the beginning
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cnfgnn.errors import ConfigError, RunError
from cnfgnn.federation.permission_rules import MOST_ROUNDS, TRAININGS
from cnfgnn.federation.run_names import OF_LINE, RUN_NAME, line_of
from cnfgnn.federation.site_task import SiteTask
from cnfgnn.files import read_json, read_json_or_empty, write_whole

APPROVED = "approved.json"
WAITING = "waiting.json"
MOST_WAITING = 20
NOTED_EVERY = 60.0  # seconds between two notes that the same training still waits
SHOWN_FOR = 7 * 86_400  # seconds after which a training that was not asked for again is not shown


@dataclass(frozen=True)
class Approval:
    """Of a run, resumed or retrained as often as its server likes; without a method, of any."""

    run: str
    method: str
    time: float

    def covers(self, task: SiteTask) -> bool:
        """Whether a training is this run's, or is beside it while it is live."""
        names = {self.run, self.run[:OF_LINE]} if task.do == "retrain" else {self.run}
        of = line_of(task.run) if task.do == "retrain" else task.run
        return (of in names or task.run == self.run) and self.method in ("", task.method)


@dataclass(frozen=True)
class Waiting:
    """A training that waits: what the server says of it, and when it asked first and last."""

    run: str
    method: str
    rounds: int
    since: float
    asked: float


def approved_file(kit: Path) -> Path:
    return kit / "local" / APPROVED


def read_approvals(kit: Path) -> dict[str, Approval]:
    """By run; RunError if the file is damaged."""
    content = read_json(approved_file(kit)) or {}
    found = {}
    for run, told in content.items():
        if not isinstance(told, dict) or not isinstance(told.get("method"), str):
            raise RunError(approved_file(kit), "is damaged and cannot be read")
        found[run] = Approval(run, told["method"], _number(told.get("time")))
    return found


def approve(kit: Path, run: str) -> Approval:
    """Approve a training with the method that it waits with; with any method if it does not wait."""
    if not RUN_NAME.fullmatch(run):
        raise ConfigError("RUN", f"{run!r} cannot be the name of a run")
    waits = next((one for one in read_waiting(kit) if one.run == run), None)
    approval = Approval(run, "" if waits is None else waits.method, time.time())
    _write(kit, read_approvals(kit) | {run: approval})
    return approval


def revoke(kit: Path, run: str) -> bool:
    """Take an approval back; False if there was none."""
    approvals = read_approvals(kit)
    found = approvals.pop(run, None) is not None
    if found:
        _write(kit, approvals)
    return found


def _write(kit: Path, approvals: Mapping[str, Approval]) -> None:
    content = {run: {"method": one.method, "time": one.time} for run, one in approvals.items()}
    write_whole(approved_file(kit), json.dumps(content, indent=1).encode(), 0o600)


# ---- trainings that wait ---------------------------------------------------------------------------------


def read_waiting(kit: Path) -> list[Waiting]:
    """What the site has noted; nothing if the file is missing or damaged."""
    entries = read_json_or_empty(kit / WAITING).get("waiting")
    found = []
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, dict) and isinstance(entry.get("run"), str):
            times = _number(entry.get("since")), _number(entry.get("asked"))
            rounds = int(_number(entry.get("rounds")))
            found.append(Waiting(entry["run"], str(entry.get("method") or ""), rounds, *times))
    return found


def waiting_now(kit: Path, now: float | None = None) -> list[Waiting]:
    """The trainings that wait for their owner, of which the server has asked of late."""
    now = time.time() if now is None else now
    try:
        approvals = list(read_approvals(kit).values())
    except RunError:  # nothing is approved then
        approvals = []
    return [
        one
        for one in read_waiting(kit)
        if now - one.asked < SHOWN_FOR
        and not any(a.covers(SiteTask("", do, one.run, one.method)) for a in approvals for do in TRAININGS)
    ]


def note_waiting(kit: Path, task: SiteTask, now: float) -> None:
    """Note that a training waits; a server that makes up names replaces its own."""
    others, rounds = read_waiting(kit), task.rounds if type(task.rounds) is int else 0
    before = next((one for one in others if (one.run, one.method) == (task.run, task.method)), None)
    if before is not None and 0 <= now - before.asked < NOTED_EVERY:
        return
    since = now if before is None else before.since
    noted = Waiting(task.run, task.method, min(max(rounds, 0), MOST_ROUNDS), since, now)
    kept = [one for one in others if one.run != task.run] + [noted]
    entries = [asdict(one) for one in sorted(kept[-MOST_WAITING:], key=lambda one: one.since)]
    write_whole(kit / WAITING, json.dumps({"waiting": entries}).encode(), 0o600)


def _number(value: Any) -> float:
    return float(value) if type(value) in (int, float) and abs(value) < 2**53 else 0.0
