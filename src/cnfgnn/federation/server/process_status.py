"""What the server's parent process records about itself and its connections: `server-status.json`.

It is for the server's operator. The process that holds the connections writes it; `federation status` and the
commands that start tasks read it.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cnfgnn.federation.kits.certificates import serial_of, time_of
from cnfgnn.federation.kits.process_identity import identity, is_running
from cnfgnn.files import read_json_or_empty, write_whole

SERVER_STATUS = "server-status.json"
WRITE_INTERVAL = 5.0  # seconds between writes, at most, so that a reader can tell that the process is alive


class ServerStatus:
    """The connections and refusals of each site; changed by many threads, written by one."""

    def __init__(self, kit: Path, scheduler_alive: Callable[[], bool | None]) -> None:
        """`scheduler_alive` tells whether the engine still starts tasks; None if that is unknown."""
        self.kit, self.scheduler_alive = kit, scheduler_alive
        self.sites: dict[str, dict[str, Any]] = read_server_status(kit).get("sites", {})
        self.strangers: dict[str, Any] = {}  # refused connections of no site that is known
        self._lock = threading.Lock()
        self._written_at, self._changed = 0.0, True

    def record_connection(self, site: str, certificate: Mapping[str, Any], address: str) -> None:
        """`certificate` is the site's, as Python's `ssl` shows it."""
        serial = serial_of(certificate)
        begins, expires = time_of(certificate, "notBefore"), time_of(certificate, "notAfter")
        with self._lock:
            known = self.sites.setdefault(site, {})
            known["serials"] = sorted({*known.get("serials", []), serial})
            known |= {"serial": serial, "from": begins, "until": expires, "address": address}
            known["since"] = time.time()
            self._changed = True

    def record_refusal(self, site: str, address: str, reason: str) -> None:
        with self._lock:
            known = self.sites.setdefault(site, {})
            known["refused"] = _refusal(known.get("refused") or {}, address, reason)
            self._changed = True

    def record_stranger(self, address: str, reason: str) -> None:
        with self._lock:
            self.strangers = _refusal(self.strangers, address, reason)
            self._changed = True

    def write_if_due(self) -> None:
        if self._changed or time.monotonic() - self._written_at > WRITE_INTERVAL:
            self.write()

    def write(self) -> None:
        with self._lock:
            self._changed, self._written_at = False, time.monotonic()
            content = {
                "time": time.time(),
                "process": identity(os.getpid()),
                "scheduler": self.scheduler_alive(),
                "sites": self.sites,
                "strangers": self.strangers,
            }
            text = json.dumps(content)
        write_whole(self.kit / SERVER_STATUS, text.encode())


def _refusal(before: dict[str, Any], address: str, reason: str) -> dict[str, Any]:
    count = int(before.get("count", 0)) + 1
    return {"reason": reason, "address": address, "count": count, "last": time.time()}


def read_server_status(kit: Path) -> dict[str, Any]:
    """What the server's process last wrote about itself; empty if it never did."""
    return read_json_or_empty(kit / SERVER_STATUS)


def scheduler_ended(kit: Path) -> bool:
    """Whether the running server has recorded that it no longer starts tasks."""
    status = read_server_status(kit)
    process = status.get("process")
    return status.get("scheduler") is False and isinstance(process, dict) and is_running(process)
