"""A site's status for its owner: a small file in the site's kit that the site's processes write.

It never leaves the site. Processes of several tasks write it, so each replaces its own part under a lock.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from cnfgnn.errors import CnfgnnError
from cnfgnn.files import read_json_or_empty, write_whole

MODEL = "model.json"  # in the folder of the live service: its model, and the switches before it
SITE_STATUS = "site-status.json"
LOCK = ".site-status.lock"
MOST_PROBLEMS = 5  # how many of the latest problems the file keeps


class SiteStatus:
    """The status file of one kit. If it cannot be written, the site continues without an update."""

    def __init__(self, kit: Path) -> None:
        self.kit = kit

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

    def record_problem(self, verb: str, problem: str) -> None:
        """Record something that this site refused or could not do."""
        entry = {"time": time.time(), "verb": verb, "problem": problem}
        self._update(lambda status: {"problems": [*status.get("problems", []), entry][-MOST_PROBLEMS:]})

    def _update(self, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        with suppress(OSError, CnfgnnError):
            handle = os.open(self.kit / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX)
                status = read_site_status(self.kit)
                text = json.dumps({**status, **change(status)})
                path = self.kit / SITE_STATUS
                write_whole(path, text.encode())
                path.chmod(0o600)
            finally:
                os.close(handle)


def read_site_status(kit: Path) -> dict[str, Any]:
    """The file's content; empty if it is missing or damaged (the next writer replaces it)."""
    return read_json_or_empty(kit / SITE_STATUS)
