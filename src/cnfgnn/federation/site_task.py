"""What a site is told of a task when it begins: the server's operator signs it with the task."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

LIVE = "live"
TASKS = ("train", "evaluate", "forecast", LIVE, "retrain")
ID = re.compile(r"[0-9a-f-]{36}")
NAME = re.compile(r"[A-Za-z0-9._-]{0,100}")
MOST_ROUNDS = 1 << 31
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

    id: str
    do: str
    run: str = ""
    method: str = ""
    rounds: int = 0
    live: Mapping[str, Any] = field(default_factory=dict)
    states: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> SiteTask:
        """As the engine's process passes it on, which nobody trusts.

        Raises:
            ValueError: It is not what our tasks say.
        """
        id_, do, rounds = fields.get("id"), fields.get("do"), fields.get("rounds", 0)
        texts = [fields.get("run", ""), fields.get("method", "")]
        tables = [fields.get("live", {}), fields.get("states", {})]
        valid = (
            isinstance(id_, str)
            and ID.fullmatch(id_)
            and do in TASKS
            and type(rounds) is int
            and 0 <= rounds <= MOST_ROUNDS
            and all(isinstance(text, str) and NAME.fullmatch(text) for text in texts)
            and all(isinstance(table, dict) and all(map(_is_flat, table.values())) for table in tables)
        )
        if not valid:
            raise ValueError("it is not the description of a task")
        run, method = map(str, texts)
        return cls(str(id_), str(do), run, method, rounds, *map(dict, tables))

    def fields(self) -> dict[str, Any]:
        return asdict(self)
