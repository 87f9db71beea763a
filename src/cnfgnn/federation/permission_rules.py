"""What the owner of a site permits: `[permissions]` in its local/site.toml.

The process that answers for a site reads this for every message, so that nothing here needs numpy or torch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import datetime, tzinfo
from typing import Any

from cnfgnn.algorithm.methods import METHODS, method_of
from cnfgnn.errors import ConfigError
from cnfgnn.federation.site_task import TASKS as TASKS

TRAININGS = ("train", "retrain")
MOST_ROUNDS = 1_000_000
MOST_PATTERNS, LONGEST_PATTERN = 100, 100
_HOURS = re.compile(r"([01]\d|2[0-3]):([0-5]\d) *- *(?:([01]\d|2[0-3]):([0-5]\d)|24:00)", re.ASCII)
_BYTES = re.compile(r"(\d{1,9}(?:\.\d{1,9})?) *(kB|MB|GB|TB|KiB|MiB|GiB|TiB)", re.ASCII)
_UNITS = {"kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_DAY = 24 * 60  # minutes


@dataclass(frozen=True)
class Hours:
    """A part of each day, in minutes after midnight; one that ends before it begins spans midnight."""

    begin: int
    end: int

    def contain(self, moment: datetime) -> bool:
        minute = 60 * moment.hour + moment.minute
        if self.begin < self.end:
            return self.begin <= minute < self.end
        return minute >= self.begin or minute < self.end

    def __str__(self) -> str:
        begin, end = (f"{minute // 60:02}:{minute % 60:02}" for minute in (self.begin, self.end))
        return f"{begin} to {end}"


@dataclass(frozen=True)
class PermissionRules:
    """What a site takes part in; None: everything."""

    tasks: tuple[str, ...] | None = None
    methods: tuple[str, ...] | None = None  # of trainings
    runs: tuple[str, ...] | None = None  # patterns of their names, such as northtown-*
    hours: Hours | None = None
    most_rounds: int | None = None  # of training, in a day
    most_bytes: int | None = None  # sent and received, in a day
    approve: bool = False  # whether a training waits until the owner approves it


def permission_rules(table: Any) -> PermissionRules:
    """The settings under [permissions]; ConfigError names the key."""
    keys = [field.name for field in fields(PermissionRules)]
    if not isinstance(table, dict):
        raise ConfigError("permissions", "it must be a table, [permissions]", keys)
    for key in table:
        if key not in keys:
            raise ConfigError("permissions", f"unknown setting {key!r}", keys)
    tasks, runs = _texts(table, "tasks", '["train", "forecast"]'), _texts(table, "runs", '["northtown-*"]')
    for task in tasks or ():
        if task not in TASKS:
            raise ConfigError("permissions.tasks", f"there is no task {task!r}", TASKS)
    if not all(0 < len(pattern) <= LONGEST_PATTERN for pattern in runs or ()):
        problem = f"a pattern has 1 to {LONGEST_PATTERN} characters, such as northtown-*"
        raise ConfigError("permissions.runs", problem)
    if len(runs or ()) > MOST_PATTERNS:
        raise ConfigError("permissions.runs", f"there may be at most {MOST_PATTERNS} patterns")
    rounds, approve = table.get("most_rounds"), table.get("approve", False)
    if rounds is not None and (type(rounds) is not int or not 0 <= rounds <= MOST_ROUNDS):
        raise ConfigError("permissions.most_rounds", f"it must be a whole number from 0 to {MOST_ROUNDS}")
    if not isinstance(approve, bool):
        raise ConfigError("permissions.approve", "it must be true or false")
    hours, size = _hours(table.get("hours")), _most_bytes(table.get("most_bytes"))
    return PermissionRules(tasks, _methods(table), runs, hours, rounds, size, approve)


def _texts(table: Mapping[str, Any], key: str, example: str) -> tuple[str, ...] | None:
    value = table.get(key)
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ConfigError(f"permissions.{key}", f"it must be a list of texts such as {example}")
    return tuple(dict.fromkeys(value))


def _methods(table: Mapping[str, Any]) -> tuple[str, ...] | None:
    names = _texts(table, "methods", '["cnfgnn-private"]')
    if names is None:
        return None
    found = []
    for name in names:
        with suppress(ConfigError):
            if method_of(name).federated:
                found.append(method_of(name).name)
                continue
        valid = [method.name for method in METHODS.values() if method.federated]
        raise ConfigError("permissions.methods", f"no federation trains with {name!r}", valid)
    return tuple(dict.fromkeys(found))


def _hours(text: object) -> Hours | None:
    if text is None:
        return None
    found = _HOURS.fullmatch(str(text))
    if found is None:
        raise ConfigError("permissions.hours", 'it must be from one time to another, such as "20:00-06:00"')
    begin = 60 * int(found[1]) + int(found[2])
    end = _DAY if found[3] is None else 60 * int(found[3]) + int(found[4])
    if begin == end:
        raise ConfigError("permissions.hours", "it ends when it begins: leave it out for all day")
    return Hours(begin, end)


def _most_bytes(text: object) -> int | None:
    if text is None:
        return None
    found = _BYTES.fullmatch(str(text))
    if found is None:
        raise ConfigError("permissions.most_bytes", 'it must be an amount such as "500 MB" or "2 GiB"')
    return int(float(found[1]) * _UNITS[found[2]])


def local_time(now: float, zone: tzinfo | None) -> datetime:
    """The time at a site: of its zone, or of the machine's."""
    return datetime.fromtimestamp(now, zone)


def bytes_as_text(count: int) -> str:
    """A number of bytes as people set it."""
    unit = next((name for name in ("TB", "GB", "MB") if count >= _UNITS[name]), "kB")
    return f"{count / _UNITS[unit]:.4g} {unit}"
