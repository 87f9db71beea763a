"""What the server knows of a live federation, for its page and its metrics. It has no reading.

It is the status file in the server's kit, which the server's task keeps replacing.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from cnfgnn.errors import RunError
from cnfgnn.federation.status import read_status
from cnfgnn.federation.task_client import is_active

SITE_FIELDS = ("reachable", "present", "last_seen", "latency", "refused", "problem", "sensors", "bytes")
LIVE_FIELDS = ("step", "steps", "made", "seconds", "median_seconds", "most_seconds", "problem")
MODEL_FIELDS = ("model", "switches", "trainings", "new_sensors")
AWAY = {"present": 0, "reachable": False, "quality": "the server is away", "coverage": None}


def live_state(kit: Path) -> dict[str, Any]:
    """The state of the task and of every site, as JSON."""
    try:
        status = read_status(kit) or {}
    except RunError:
        status = {}
    live, active = status.get("live") or {}, is_active(status)
    sites = {}
    for name, site in dict(status.get("sites") or {}).items():
        told = (live.get("sites") or {}).get(name, {})
        sites[name] = {key: site.get(key) for key in SITE_FIELDS} | told
        if not active:
            sites[name] |= AWAY
    return {
        "run": status.get("run"),
        "round": status.get("round"),
        "state": status.get("state") if active else "the server's task does not run",
        "now": time.time(),
        **{key: live.get(key) for key in (*LIVE_FIELDS, *MODEL_FIELDS)},
        "sites": sites,
        "warnings": status.get("warnings") or [],
    }
