"""What a site is told of a task when it begins: the server's operator signs it with the task."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any

from cnfgnn.config.declarations import Declaration, fields_of
from cnfgnn.live.options import LIVE_OPTIONS

LIVE = "live"
TASKS = ("train", "evaluate", "forecast", LIVE, "retrain")
Name = Annotated[str, Declaration(form=re.compile(r"[A-Za-z0-9._-]{0,100}"))]
MOST_NAMES = 1000


def _is_flat(value: object) -> bool:
    """Whether a value is a number or a text, or a list of texts, as all that our tasks say."""
    if isinstance(value, list):
        return len(value) <= MOST_NAMES and all(isinstance(one, str) for one in value)
    return value is None or isinstance(value, str | int | float)


@dataclass(frozen=True)
class SiteTask:
    """One task, for the site's own processes.

    id      the engine's id of the task
    do      one of `TASKS`; `retrain` trains beside a live task
    run     the run's name at the server
    method  of a training, and its number of `rounds`
    live    how a live task runs
    states  of a retraining: which states of models that were trained like that are kept
    """

    id: Annotated[str, Declaration(form=re.compile(r"[0-9a-f-]{36}"))]
    do: Annotated[str, Declaration(form=re.compile("|".join(TASKS)))]
    run: Name = ""
    method: Name = ""
    rounds: Annotated[int, Declaration(at_most=1 << 31)] = 0
    live: Mapping[str, Any] = field(default_factory=dict)
    states: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> SiteTask:
        """As the engine's process passes it on, which nobody trusts.

        Raises:
            ValueError: It is not what our tasks say.
        """
        tables = {name: fields.get(name, {}) for name in ("live", "states")}
        simple = [declared for declared in fields_of(SiteTask) if declared.name not in tables]
        told = {declared.name: fields.get(declared.name, declared.default) for declared in simple}
        flat = [isinstance(table, dict) and all(map(_is_flat, table.values())) for table in tables.values()]
        if not all(flat) or not all(declared.accepts(told[declared.name]) for declared in simple):
            raise ValueError("it is not the description of a task")
        return cls(**told, **tables)

    def fields(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class LiveTerms:
    """What the server's operator chooses for all sites; it travels with the task.

    deadline  seconds after a step at which its forecast is made, whoever is missing; None: a fifth of a step
    feed      whether the readings are recordings; a site takes part if its own settings say the same
    speed     of the recordings
    """

    deadline: Annotated[float, LIVE_OPTIONS["deadline"]] | None = None
    feed: bool = False
    speed: Annotated[float, LIVE_OPTIONS["speed"]] = 1.0

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> LiveTerms:
        """As they came with the task; invalid values are ignored."""
        terms = cls(
            **{one.name: told[one.name] for one in fields_of(LiveTerms) if one.accepts(told.get(one.name))}
        )
        return terms if terms.feed else replace(terms, speed=1.0)
