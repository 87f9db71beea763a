"""The status of a server, a site or a task: what is known of it, since when, what is wrong and what to do.

It is gathered in one place (`operator.status`, for a task `server.status`) and shown in three ways: in words
(`cli.federation_status`, `cli.sites`), as JSON, and on the page and in the metrics of a live federation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Problem:
    """What is wrong, what to do about it, if that is not said already, and since when it is so, if known."""

    what: str
    to_do: str = ""
    since: float | None = None

    def __str__(self) -> str:
        return f"{self.what}: {self.to_do}" if self.to_do else self.what


@dataclass(frozen=True)
class Status:
    """What is known of one party or task.

    kind      "server", "site" or "task"
    name      of a site or a task
    state     in a few words, such as "process 12", "connected" or "running"
    since     when this began, in seconds since 1970; None if that is unknown
    known     everything else, by name, ready for JSON
    problems  what is wrong, the first one first
    sites     of a server: how it sees each site; of a task: how each takes part
    task      of a server: its latest one
    """

    kind: str
    name: str
    state: str
    since: float | None = None
    known: Mapping[str, Any] = field(default_factory=dict)
    problems: Sequence[Problem] = ()
    sites: Mapping[str, Status] = field(default_factory=dict)
    task: Status | None = None

    @property
    def problem(self) -> str:
        """The first problem in words; empty if all is well."""
        return str(self.problems[0]) if self.problems else ""

    def as_json(self) -> dict[str, Any]:
        found = {**self.known, "kind": self.kind, "name": self.name, "state": self.state, "since": self.since}
        found["problems"] = [asdict(problem) for problem in self.problems]
        if self.kind != "site":
            found["sites"] = {name: site.as_json() for name, site in self.sites.items()}
        if self.kind == "server":
            found["task"] = self.task and self.task.as_json()
        return found
