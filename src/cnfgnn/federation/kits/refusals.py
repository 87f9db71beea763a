"""What a kit's processes refused other parties, for the kit's owner: `refused.json`."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from cnfgnn.errors import CnfgnnError
from cnfgnn.files import read_json_of_others, waiting_for_lock, write_whole
from cnfgnn.transports.remote.messages import legible

REFUSED = "refused.json"
LOCK = ".refused.lock"
LARGEST = 1 << 20  # bytes of the file
MOST_SHOWN = 100
MOST_REFUSALS = 10  # of one party, which could make up any number of different ones


def record_refusal(kit: Path, who: str, what: str) -> None:
    """Record once that `what` was refused to `who`. If the file cannot be written, it is only in the log."""
    with suppress(OSError, CnfgnnError), waiting_for_lock(kit / LOCK):  # several processes of a kit write it
        known = read_refusals(kit)
        of_party = [entry["what"] for entry in known if entry["who"] == who]
        if what in of_party or len(of_party) >= MOST_REFUSALS:
            return
        entry = {"time": time.time(), "who": who, "what": what}
        write_whole(kit / REFUSED, json.dumps({"refused": [*known, entry]}).encode())


def read_refusals(kit: Path) -> list[dict[str, Any]]:
    """What was refused, the oldest first; empty if nothing was, or the file is damaged.

    At a site the engine's processes write it, which may not be what they seem: the texts are made legible.
    """
    found = read_json_of_others(kit / REFUSED, LARGEST).get("refused")
    entries = [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []
    return [
        {"time": when, "who": legible(entry["who"]), "what": legible(entry["what"])}
        for entry in entries
        if {"who", "what"} <= entry.keys()
        and isinstance(when := entry.get("time"), int | float)
        and 0 <= when < 2**40
    ][-MOST_SHOWN:]
