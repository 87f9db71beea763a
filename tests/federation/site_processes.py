"""The processes of a site, as its supervisor records them."""

from __future__ import annotations

from pathlib import Path

from cnfgnn.federation.kits.process_identity import is_running
from cnfgnn.federation.kits.processes import supervisor_status


def workers_of(kit: str | Path) -> list[int]:
    """The process ids of the workers of a site's tasks."""
    workers = supervisor_status(Path(kit)).get("workers", [])
    return [worker["pid"] for worker in workers if worker["pid"]]


def engine_of(kit: str | Path) -> int | None:
    """The process id of the engine's parent process at a site; None if it does not run."""
    engine = supervisor_status(Path(kit)).get("engine") or {}
    return int(engine["pid"]) if is_running(engine) else None
