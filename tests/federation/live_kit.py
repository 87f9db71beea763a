"""The files of a server's kit as a live federation of four sites leaves them, for whoever shows them."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from cnfgnn.federation.kits.process_identity import identity
from cnfgnn.federation.server.live.models import FederatedModels
from cnfgnn.federation.server.live.task import GONE
from cnfgnn.federation.server.status import STATUS, TRAINING
from cnfgnn.files import write_whole
from cnfgnn.live.learning.models import Training

RUN, NEW, STEP = "first", "first-trained-20240131T040012", "2024-01-31T08:20:00"
VERDICT = "RMSE 4.073 instead of 4.314 of first on 853 windows of the last 3 days"
SECRET = 61.25  # nothing that the page shows may have it
SENSORS = {"north": 12, "south": 8, "east": 10, "west": 1}


class LiveKit:
    """A server's kit whose live task is this process; sites can leave, models switch and trainings begin."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.steps = folder, 41
        self.away: dict[str, str] = {}  # sites that are not there, and why
        self.fields: dict[str, Any] = {}
        self.models = FederatedModels(folder, RUN)
        self.write()

    def write(self, **changed: Any) -> None:
        """Write the status as the task does; `changed` are fields of it from now on."""
        self.fields |= changed
        now = time.time()
        live = {
            "every": 300.0,
            "step": STEP,
            "steps": self.steps,
            "made": now - 20,
            "seconds": 0.081,
            "median_seconds": 0.085,
            "most_seconds": 0.3,
            "problem": "",
            "new_sensors": {"east": ["s07"]},
            "sites": {name: self._told(name) for name in SENSORS},
        }
        status = {
            "do": "live",
            "run": RUN,
            "state": "running",
            "round": 3,
            "process": identity(os.getpid()),
            "model": {
                "name": self.models.live(),
                "method": "cnfgnn-private",
                "round": 3,
                "trained": now - 90_000,
                "since": now - 3600,
            },
            "live": live,
            "sites": {name: self._seen(name, now) for name in SENSORS},
            "reading": SECRET,
            **self.fields,
        }
        write_whole(self.folder / STATUS, json.dumps(status).encode())

    def _told(self, name: str) -> dict[str, Any]:
        if name in self.away:
            return {"step": STEP, "present": 0, "forecast": 0, "quality": GONE}
        lacks = 3 if name == "south" else 0
        quality = "some readings missing" if lacks else "full"
        coverage = {"count": 2880, "80": 2290, "95": 2741} if name == "north" else None
        present = SENSORS[name] - lacks
        told = {"step": STEP, "present": present, "forecast": present, "quality": quality}
        return {**told, "coverage": coverage, "reading": SECRET}

    def _seen(self, name: str, now: float) -> dict[str, Any]:
        return {
            "reachable": name not in self.away,
            "present": True,
            "last_seen": now - (700 if name in self.away else 1),
            "latency": 0.014,
            "refused": 0,
            "problem": self.away.get(name, ""),
            "sensors": SENSORS[name],
            "bytes": 123_456,
        }

    def switch(self) -> None:
        """A training has ended, and its model goes live."""
        self.models.note_training(
            Training(time.time() - 400, "better", NEW, 4.314, 4.073, f"{NEW}: {VERDICT}")
        )
        self.models.switch(NEW, VERDICT)
        self.write()

    def train(self, **changed: Any) -> None:
        """A training beside the task is under way; `changed` are fields of its status."""
        self.models.note_try()
        status = {
            "do": "retrain",
            "run": NEW,
            "state": "running",
            "began": time.time() - 200,
            "round": 2,
            "rounds": 5,
            "done": 1,
            "process": identity(os.getpid()),
            "reading": SECRET,
            **changed,
        }
        write_whole(self.folder / TRAINING, json.dumps(status).encode())
