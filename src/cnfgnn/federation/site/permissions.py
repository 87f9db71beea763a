"""Whether a site takes part in what its server asks, by what its owner permits.

The answers depend on the site's settings, on the request, on the clock and on how much was asked before, and
never on a reading. The settings are read again when they change.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, tzinfo
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from cnfgnn.algorithm.methods import ALIASES, METHODS
from cnfgnn.config.declarations import read_table
from cnfgnn.config.outside import NAME
from cnfgnn.config.toml import read_toml
from cnfgnn.data.options import ReadingOptions
from cnfgnn.errors import CnfgnnError, ConfigError
from cnfgnn.federation.permission_rules import (
    MOST_ROUNDS,
    TASKS,
    TRAININGS,
    PermissionRules,
    bytes_as_text,
)
from cnfgnn.federation.run_names import OF_LINE, RUN_NAME, is_about, line_of
from cnfgnn.federation.site.approvals import Approval, approved_file, note_waiting, read_approvals
from cnfgnn.federation.site.errors import without_paths
from cnfgnn.federation.site_task import SiteTask
from cnfgnn.files import stamp_of

if TYPE_CHECKING:
    from cnfgnn.transports.remote.messages import Note

SETTINGS = Path("local") / "site.toml"
LOOKED_EVERY = 0.5  # seconds between looks at the files
log = logging.getLogger(__name__)
Content = TypeVar("Content")


class Used(NamedTuple):
    """What a day has used of its limits.

    turned_away  whether a round was refused since all of the day had been begun: until then, the last one is
                 still under way
    """

    rounds: int = 0
    bytes: int = 0
    turned_away: bool = False


class RoundsLeft(NamedTuple):
    """How many rounds may begin, and why no more than that."""

    left: int
    reason: str


class Refusal(NamedTuple):
    """Why a site does not take part, for the server's operator; `for_good` if waiting does not help."""

    reason: str
    for_good: bool = False


class _Settings(NamedTuple):
    rules: PermissionRules
    zone: tzinfo | None  # of the site; None: of its machine
    site: str
    problem: str = ""  # why they cannot be used


class Permissions:
    """What the owner of a kit permits; may be asked from any thread."""

    def __init__(self, kit: Path) -> None:
        self.kit = kit
        self._settings = _Watched(kit / SETTINGS, self._read)
        self._approvals = _Watched(approved_file(kit), self._read_approvals)
        self._noting = threading.Lock()

    def refusal(self, task: SiteTask, note: Note | None, used: Used, now: float) -> Refusal | None:
        """Why a message of a task is refused; None if it is not. Without a note it is about its beginning."""
        rules, zone, site, problem = self._settings.content
        if problem:
            return Refusal(problem)
        if note is not None and task.do == "live" and note.kind == "due" and note.fields.get("ends") is True:
            return None  # whoever refused this would keep a task that is over
        if task.method in ALIASES:
            task = replace(task, method=ALIASES[task.method])
        if reason := _not_taken_part_in(task, note, rules):
            return Refusal(reason, for_good=True)
        moment = datetime.fromtimestamp(now, zone)
        if rules.hours is not None and not rules.hours.contain(moment):
            return Refusal(f"its owner takes part from {rules.hours} only, and it is {moment:%H:%M} there")
        if rules.most_bytes is not None and used.bytes + _size(note) > rules.most_bytes:
            most = bytes_as_text(rules.most_bytes)
            return Refusal(f"its owner allows {most} a day, and they are used up for today")
        if task.do not in TRAININGS:
            return None
        limit = self.rounds_left(used)
        if (note is None or used.turned_away) and limit.left <= 0:
            return Refusal(limit.reason)
        return self._unapproved(task, site, now) if rules.approve else None

    @property
    def methods(self) -> tuple[str, ...] | None:
        """The methods that the owner takes part with; None if that is not said."""
        return self._settings.content.rules.methods

    def rounds_left(self, used: Used) -> RoundsLeft:
        """How many rounds of training may begin today. The worker is told, which knows what begins one."""
        most = self._settings.content.rules.most_rounds
        if most is None:
            return RoundsLeft(MOST_ROUNDS, "")
        rounds = "1 round" if most == 1 else f"{most} rounds"
        reason = f"its owner allows {rounds} of training a day, and they are used up for today"
        return RoundsLeft(most - used.rounds, reason)

    def day(self, now: float) -> str:
        """The day at the site, by which amounts are counted."""
        return datetime.fromtimestamp(now, self._settings.content.zone).strftime("%Y-%m-%d")

    def _unapproved(self, task: SiteTask, site: str, now: float) -> Refusal | None:
        if any(approval.covers(task) for approval in self._approvals.content):
            return None
        run = line_of(task.run) if task.do == "retrain" else task.run
        try:
            with self._noting:
                note_waiting(self.kit, replace(task, run=run), now)
        except CnfgnnError as error:  # the owner hears of it from the server's operator
            log.warning("%s", error)
        return Refusal(f"it waits for its owner: cnfgnn federation approve {site} {run}")

    # ---- files --------------------------------------------------------------------------------------

    def _read(self) -> _Settings:
        file = self.kit / SETTINGS
        try:
            content = read_toml(file)
            site, live = content.get("name"), content.get("live")
            zone = live.get("timezone", "") if isinstance(live, dict) else ""
            try:
                rules = read_table(PermissionRules, content.get("permissions", {}), "permissions")
                return _Settings(rules, _zone(zone), site if isinstance(site, str) else "SITE")
            except ConfigError as error:
                raise ConfigError(f"{file}: {error.key}", error.problem) from None
        except CnfgnnError as error:
            log.error("%s", error)
            return _Settings(PermissionRules(), None, "SITE", without_paths(str(error), self.kit))

    def _read_approvals(self) -> tuple[Approval, ...]:
        try:
            return tuple(read_approvals(self.kit).values())
        except CnfgnnError as error:  # nothing is approved then
            log.error("%s", error)
            return ()


class _Watched(Generic[Content]):
    """What is read from a file, and read again when the file has changed."""

    def __init__(self, file: Path, read: Callable[[], Content]) -> None:
        self._file, self._read = file, read
        self._state: tuple[tuple[int, int, int] | None, Content] | None = None
        self._looked = -math.inf  # when, by the monotonic clock

    @property
    def content(self) -> Content:
        before, now = self._state, time.monotonic()
        if before is not None and now - self._looked < LOOKED_EVERY:
            return before[1]
        self._looked, stamp = now, stamp_of(self._file)
        if before is not None and before[0] == stamp:
            return before[1]
        found = self._read()
        self._state = stamp, found
        return found


def _not_taken_part_in(task: SiteTask, note: Note | None, rules: PermissionRules) -> str:
    """Why the owner never takes part in such a task, or the request is not of the task; empty otherwise."""
    if task.do not in TASKS or not RUN_NAME.fullmatch(task.run):
        return "the task or the name of its run is not valid"
    if rules.tasks is not None and task.do not in rules.tasks:
        return f"its owner does not take part in {task.do!r}, but in {_listed(rules.tasks)}"
    if rules.runs is not None and not _matches(task, rules.runs):
        return f"its owner does not take part in run {task.run!r}, but in {_listed(rules.runs)}"
    if task.do in TRAININGS and (rules.methods is not None or rules.approve) and task.method not in METHODS:
        return "the server does not say with which method it trains"
    if task.method and task.method not in METHODS:
        asked = task.method if NAME.fullmatch(task.method) else "of the task"
        return f"no package with the method {asked} is installed there: its owner can install one and restart"
    if rules.methods is not None and task.method and task.method not in rules.methods:
        asked, permitted = task.method[:40], _listed(rules.methods)
        return f"its owner does not take part with the method {asked!r}, but with {permitted}"
    if note is not None and note.kind in ("run", "piece"):
        named = note.fields.get("run")
        if not isinstance(named, str) or not is_about(named, task.run, task.do in ("live", "retrain")):
            return f"a request is about another run than {task.run!r}"
    return ""


def _matches(task: SiteTask, patterns: tuple[str, ...]) -> bool:
    """Whether a run is meant; a training beside a live run is, if the live one is."""
    if any(fnmatchcase(task.run, pattern) for pattern in patterns):
        return True
    line = line_of(task.run)
    return task.do == "retrain" and any(fnmatchcase(line, _of_line(pattern)) for pattern in patterns)


def _of_line(pattern: str) -> str:
    """The pattern of a name whose end is cut off where a training beside it is named."""
    return pattern if set("*?[") & set(pattern) else pattern[:OF_LINE]


def _listed(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
    return shown or "nothing"


def _size(note: Note | None) -> int:
    return 0 if note is None else len(note.payload)


def _zone(name: Any) -> tzinfo | None:
    try:
        return ReadingOptions(timezone=name).zone
    except ConfigError as error:
        raise ConfigError("live.timezone", error.problem) from None
