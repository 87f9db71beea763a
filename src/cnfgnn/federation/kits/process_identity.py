"""Recognising a process by more than its id.

The system gives the ids of ended processes to new ones, so an id alone is not enough. The start time of a
process does not help either: it is derived from the wall clock and moves whenever the clock is set. The
kernel counts the ticks from boot to the start of each process, and every boot has an id of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
ENDED = ("Z", "X", "x")  # states of a process that has ended but was not waited for yet


def identity(pid: int) -> dict[str, Any] | None:
    """What distinguishes a running process from all others, as JSON-ready data; None if it does not run."""
    try:
        # The second field is the program's name in brackets, and it may contain spaces and brackets.
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        state, *fields = text.rpartition(")")[2].split()
        boot = BOOT_ID.read_text(encoding="ascii").strip()
        return None if state in ENDED else {"pid": pid, "ticks": int(fields[18]), "boot": boot}
    except (OSError, ValueError, IndexError):
        return None


def is_running(recorded: Mapping[str, Any]) -> bool:
    """Whether the process that `identity` described still runs."""
    pid = recorded.get("pid")
    now = identity(pid) if type(pid) is int and pid > 0 else None
    return now is not None and now == dict(recorded)


def started_at(pid: int) -> float | None:
    """When a process started, by the clock; None if it has ended."""
    import psutil

    try:
        return float(psutil.Process(pid).create_time())
    except psutil.Error:
        return None
