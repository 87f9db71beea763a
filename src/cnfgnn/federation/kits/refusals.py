"""What a kit's processes refused other parties, for the kit's owner: `refused.json`."""

from __future__ import annotations

import fcntl
import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from cnfgnn.errors import CnfgnnError
from cnfgnn.files import read_json_or_empty, write_whole

REFUSED = "refused.json"
LOCK = ".refused.lock"
MOST_REFUSALS = 10  # of one party, which could make up any number of different ones


def record_refusal(kit: Path, who: str, what: str) -> None:
    """Record once that `what` was refused to `who`. If the file cannot be written, it is only in the log."""
    with suppress(OSError, CnfgnnError):
        handle = os.open(kit / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)  # several processes of a kit write this file
            known = read_refusals(kit)
            of_party = [entry["what"] for entry in known if entry["who"] == who]
            if what in of_party or len(of_party) >= MOST_REFUSALS:
                return
            entry = {"time": time.time(), "who": who, "what": what}
            write_whole(kit / REFUSED, json.dumps({"refused": [*known, entry]}).encode())
            (kit / REFUSED).chmod(0o600)
        finally:
            os.close(handle)


def read_refusals(kit: Path) -> list[dict[str, Any]]:
    """What was refused, the oldest first; empty if nothing was, or the file is damaged."""
    found = read_json_or_empty(kit / REFUSED).get("refused")
    entries = found if isinstance(found, list) else []
    return [entry for entry in entries if isinstance(entry, dict) and {"time", "who", "what"} <= entry.keys()]
