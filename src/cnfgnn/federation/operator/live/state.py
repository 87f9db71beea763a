"""What the server knows of a live federation, for its page, its metrics and `federation status`.

It comes from files of the server's kit: the status that the live task keeps replacing, the record of the
models, and the status of a training beside it. None of them has a reading.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cnfgnn.errors import RunError
from cnfgnn.federation.operator.tasks import is_active
from cnfgnn.federation.server.live.models import recorded
from cnfgnn.federation.server.status import STATUS, TRAINING, when_old
from cnfgnn.files import read_json_or_empty
from cnfgnn.live.learning.models import Record

SITE_FIELDS = ("reachable", "present", "last_seen", "latency", "refused", "problem", "sensors", "bytes")
TOLD_FIELDS = ("step", "present", "forecast", "quality", "coverage")  # of a site, by the live task
LIVE_FIELDS = ("step", "steps", "made", "every", "seconds", "median_seconds", "most_seconds", "problem")
TRAINING_FIELDS = ("run", "state", "began", "round", "rounds", "done", "waiting")
AWAY = {"present": 0, "reachable": False, "quality": "the server is away", "coverage": None}
AT_REST = "the server's task does not run"
SHOWN = 5  # switches and trainings


def live_state(kit: Path) -> dict[str, Any]:
    """The state of the task, of its model and of every site, as JSON."""
    status: Mapping[str, Any] = read_json_or_empty(kit / STATUS)
    active = is_active(status)
    status = when_old(kit, status) if active else status
    live, run, old = status.get("live") or {}, status.get("run"), status.get("old", "")
    sites = {}
    for name, site in dict(status.get("sites") or {}).items():
        told = (live.get("sites") or {}).get(name, {})
        sites[name] = {key: site.get(key) for key in SITE_FIELDS}
        sites[name] |= {key: told.get(key) for key in TOLD_FIELDS}
        if old or not active:
            sites[name] |= AWAY | ({"quality": "not known"} if old else {})
    return {
        "run": run,
        "round": status.get("round"),
        "state": "the status of the task is old" if old else status.get("state") if active else AT_REST,
        "old": old,
        "now": time.time(),
        **{key: live.get(key) for key in LIVE_FIELDS},
        **_model(status, live),
        **_learning(kit, _record(kit, run)),
        "new_sensors": live.get("new_sensors"),
        "sites": sites,
        "warnings": status.get("warnings") or [],
    }


def _model(status: Mapping[str, Any], live: Mapping[str, Any]) -> dict[str, Any]:
    """The model that forecasts are made with: when it was trained, and since when it is in use."""
    about = status.get("model") or {}
    return {
        "model": about.get("name") or live.get("model"),
        "method": about.get("method"),
        "trained": about.get("trained"),
        "model_since": about.get("since"),
    }


def _learning(kit: Path, record: Record) -> dict[str, Any]:
    """The last switches and trainings, and the training that is under way beside the task."""
    beside = read_json_or_empty(kit / TRAINING)
    last = record.trainings[-1].time if record.trainings else 0.0
    ended = beside.get("state") == "failed" and float(beside.get("began") or 0.0) > last
    return {
        "switches": [vars(switch) for switch in record.switches[-SHOWN:]],
        "switch_count": len(record.switches),
        "trainings": [vars(training) for training in record.trainings[-SHOWN:]],
        "rollback_to": record.line[-2] if len(record.line) > 1 else None,
        "training": {key: beside.get(key) for key in TRAINING_FIELDS} if is_active(beside) else None,
        "training_problem": beside.get("problem") or None if ended else None,
    }


def _record(kit: Path, run: str | None) -> Record:
    if run is None:
        return Record(("",))
    try:
        return recorded(kit, run)
    except RunError:  # the live task says so
        return Record((run,))
