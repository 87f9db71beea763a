"""A site's status for its owner: a small file in the site's kit that the site's processes write.

It never leaves the site. Processes of several tasks write it, so each replaces its own part under a lock.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from cnfgnn.errors import CnfgnnError
from cnfgnn.files import read_json_or_empty, stamp_of, waiting_for_lock, write_whole

STATES = "states"  # the folder of the states of nodes and owners, by run
MODEL = "model.json"  # in the folder of the live service: its model, and the switches before it
SITE_STATUS = "site-status.json"
LOCK = ".site-status.lock"
MOST_PROBLEMS = 10  # how many parts with problems the file keeps


class SiteStatus:
    """The status file of one kit. If it cannot be written, the site continues without an update."""

    def __init__(self, kit: Path) -> None:
        self.kit = kit
        self._seen: tuple[int, int, int] | None = None  # what tells whether the file has changed
        self._failing: frozenset[str] = frozenset()

    def record_forecast(self, file: str, first: str, last: str) -> None:
        forecast = {"time": time.time(), "file": file, "from": first, "to": last}
        self._update(lambda status: {"forecast": forecast})

    def record_evaluation(self, file: str, split: str, rmse: float, mae: float) -> None:
        """Record the true errors of an evaluation, which only the owner knows."""
        errors = {
            name: None if math.isnan(error) else error for name, error in (("rmse", rmse), ("mae", mae))
        }
        evaluation = {"time": time.time(), "file": file, "split": split, **errors}
        self._update(lambda status: {"evaluation": evaluation})

    def record_live(self, address: str, token_file: Path) -> None:
        """Record where the site serves its live forecasts, and where the token of its service is."""
        live = {"time": time.time(), "address": address, "token_file": str(token_file)}
        self._update(lambda status: {"live": live})

    def record_states(self, runs: Sequence[str]) -> None:
        """Record of which runs the site has states."""
        self._update(lambda status: {"states": list(runs)})

    def record_problem(self, part: str, problem: str, to_do: str = "") -> None:
        """Record what does not work at present, such as a verb: until `works` is told that it does again."""
        entry = {"since": time.time(), "part": part, "problem": problem, "to_do": to_do}

        def change(status: dict[str, Any]) -> dict[str, Any]:
            before = status.get("problems", [])
            if any((item.get("part"), item.get("problem")) == (part, problem) for item in before):
                return {}
            others = [item for item in before if item.get("part") != part]
            return {"problems": [*others, entry][-MOST_PROBLEMS:]}

        self._update(change)

    def works(self, *parts: str) -> None:
        """Parts work that may have failed before, perhaps in another process. Cheap unless one has."""
        if (seen := stamp_of(self.kit / SITE_STATUS)) != self._seen:
            self._seen, failing = seen, read_site_status(self.kit).get("problems", [])
            self._failing = frozenset(str(item.get("part")) for item in failing)
        if self._failing.intersection(parts):
            self._update(
                lambda status: {
                    "problems": [item for item in status.get("problems", []) if item.get("part") not in parts]
                }
            )

    def _update(self, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        with suppress(OSError, CnfgnnError), waiting_for_lock(self.kit / LOCK):
            status = read_site_status(self.kit)
            if changed := change(status):
                write_whole(self.kit / SITE_STATUS, json.dumps({**status, **changed}).encode(), 0o600)


def read_site_status(kit: Path) -> dict[str, Any]:
    """The file's content; empty if it is missing or damaged (the next writer replaces it)."""
    return read_json_or_empty(kit / SITE_STATUS)
