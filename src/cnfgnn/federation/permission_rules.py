"""What the owner of a site permits: `[permissions]` in its local/site.toml.

The process that answers for a site reads this for every message, so that nothing here needs numpy or torch.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from cnfgnn.algorithm.methods import BUILT_IN, METHODS, method_of
from cnfgnn.config.declarations import Declaration
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


def _tasks(names: tuple[str, ...]) -> tuple[str, ...]:
    for task in names:
        if task not in TASKS:
            raise ConfigError("", f"there is no task {task!r}", TASKS)
    return tuple(dict.fromkeys(names))


def _methods(names: tuple[str, ...]) -> tuple[str, ...]:
    found = []
    for name in names:
        if name in METHODS and name not in BUILT_IN:  # of another package, which is not loaded for this
            found.append(name)
            continue
        with suppress(ConfigError):
            if method_of(name).federated:
                found.append(method_of(name).name)
                continue
        valid = [method.name for method in BUILT_IN.values() if method.federated]
        raise ConfigError("", f"no federation trains with {name!r}", valid)
    return tuple(dict.fromkeys(found))


def _runs(patterns: tuple[str, ...]) -> tuple[str, ...]:
    if not all(0 < len(pattern) <= LONGEST_PATTERN for pattern in patterns):
        raise ConfigError("", f"a pattern has 1 to {LONGEST_PATTERN} characters, such as northtown-*")
    if len(patterns) > MOST_PATTERNS:
        raise ConfigError("", f"there may be at most {MOST_PATTERNS} patterns")
    return tuple(dict.fromkeys(patterns))


def _hours(text: object) -> Hours:
    found = _HOURS.fullmatch(str(text))
    if found is None:
        raise ConfigError("", 'it must be from one time to another, such as "20:00-06:00"')
    begin = 60 * int(found[1]) + int(found[2])
    end = _DAY if found[3] is None else 60 * int(found[3]) + int(found[4])
    if begin == end:
        raise ConfigError("", "it ends when it begins: leave it out for all day")
    return Hours(begin, end)


def _most_bytes(text: object) -> int:
    found = _BYTES.fullmatch(str(text))
    if found is None:
        raise ConfigError("", 'it must be an amount such as "500 MB" or "2 GiB"')
    return int(float(found[1]) * _UNITS[found[2]])


TEXTS = "a list of texts such as "
Tasks = Annotated[tuple[str, ...], Declaration(says=f'{TEXTS}["train", "forecast"]', parse=_tasks)]
Methods = Annotated[tuple[str, ...], Declaration(says=f'{TEXTS}["cnfgnn-private"]', parse=_methods)]
Runs = Annotated[tuple[str, ...], Declaration(says=f'{TEXTS}["northtown-*"]', parse=_runs)]


@dataclass(frozen=True)
class PermissionRules:
    """What a site takes part in; None: everything."""

    tasks: Tasks | None = None
    methods: Methods | None = None  # of trainings
    runs: Runs | None = None  # patterns of their names, such as northtown-*
    hours: Annotated[Hours, Declaration(parse=_hours)] | None = None
    most_rounds: Annotated[int, Declaration(at_least=0, at_most=MOST_ROUNDS)] | None = None  # in a day
    most_bytes: Annotated[int, Declaration(parse=_most_bytes)] | None = None  # sent and received, in a day
    approve: bool = False  # whether a training waits until the owner approves it


def bytes_as_text(count: int) -> str:
    """A number of bytes as people set it."""
    unit = next((name for name in ("TB", "GB", "MB") if count >= _UNITS[name]), "kB")
    return f"{count / _UNITS[unit]:.4g} {unit}"
