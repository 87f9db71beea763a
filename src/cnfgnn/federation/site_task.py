"""What a site is told of a task when it begins: the server's operator signs it with the task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class SiteTask:
    """do: train, evaluate, forecast, live or retrain; run: the run's name at the server; method, rounds: of a
    training."""

    id: str
    do: str
    run: str = ""
    method: str = ""
    rounds: int = 0
    live: Mapping[str, Any] = field(default_factory=dict)
    states: Mapping[str, Any] = field(default_factory=dict)
