"""How a site stands, for its owner: a small file in the site's kit, which the site's processes write.

It stays at the site. Two processes write it, the one that holds the connection and the one of the task, so
each replaces its own part of the file under a lock.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cnfgnn.errors import CnfgnnError
from cnfgnn.files import write_whole
from cnfgnn.transports.remote.limits import MOST_CLOCK_DIFFERENCE

if TYPE_CHECKING:
    from cnfgnn.federation.flare.handshake import Answer

SITE_STATUS = "site-status.json"
LOCK = ".site-status.lock"
TOLD_FOR = 86_400.0  # seconds in which the owner is told of a copy of the kit
MOST_PROBLEMS = 5  # of a task, the latest


class SiteStatus:
    """The file in one kit; a disk that is full keeps nobody from working."""

    def __init__(self, kit: Path) -> None:
        self.kit = kit

    def note_server(self, process: str, answer: Answer | None, problem: str) -> None:
        """What the server answered when it was asked how it sees this site."""
        said: dict[str, Any] = {"time": time.time(), "process": process, "problem": problem}
        if answer is not None:
            said |= {"address": answer.address, "ahead": answer.ahead, "standing": dict(answer.standing)}
        self._change(lambda known: {"server": said})

    def note_forecast(self, file: str, first: str, last: str) -> None:
        forecast = {"time": time.time(), "file": file, "from": first, "to": last}
        self._change(lambda known: {"forecast": forecast})

    def note_problem(self, verb: str, problem: str) -> None:
        """Something that this site refused or could not do, in the owner's words."""
        entry = {"time": time.time(), "verb": verb, "problem": problem}
        self._change(lambda known: {"problems": [*known.get("problems", []), entry][-MOST_PROBLEMS:]})

    def _change(self, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        with suppress(OSError, CnfgnnError):
            handle = os.open(self.kit / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX)
                known = read_site_status(self.kit)
                text = json.dumps({**known, **change(known)})
                path = self.kit / SITE_STATUS
                write_whole(path, text.encode())
                path.chmod(0o600)
            finally:
                os.close(handle)


def read_site_status(kit: Path) -> dict[str, Any]:
    """The file's content; nothing if there is none, or a damaged one, which the next writer replaces."""
    try:
        content = json.loads((kit / SITE_STATUS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def noted_process(kit: Path) -> str:
    """By what the server knows the site's running process, as that process noted it."""
    return str((read_site_status(kit).get("server") or {}).get("process", ""))


def standing_problem(answer: Answer) -> str:
    """Why this site cannot take part, as the server sees it; nothing if it can."""
    standing = answer.standing
    if abs(answer.ahead) > MOST_CLOCK_DIFFERENCE:
        off = f"{abs(answer.ahead):.0f} s {'behind' if answer.ahead > 0 else 'ahead of'}"
        allowed = f"{MOST_CLOCK_DIFFERENCE:.0f} s are allowed"
        return f"this machine's clock is {off} the server's, and {allowed}: set the clock (NTP)"
    if standing.get("revoked"):
        return "the server's operator has revoked this kit's certificate: ask for a new kit"
    if standing.get("other"):
        since = when(standing.get("since"))
        return (
            f"the server refuses this kit: another process with the same certificate is connected from"
            f" {standing.get('address')} since {since}; stop that one, or have the certificate revoked"
        )
    return ""


def copy_problem(standing: Mapping[str, Any]) -> str:
    """That somebody else tried to use a copy of this kit, within a day."""
    refused = standing.get("refused") or {}
    last = refused.get("last")
    if "same certificate" not in str(refused.get("reason")) or not isinstance(last, int | float):
        return ""
    if time.time() - last > TOLD_FOR:
        return ""
    return (
        f"another process tried to connect with a copy of this kit from {refused.get('address')} at"
        f" {when(last)} and was refused; if that was not you, have the certificate revoked"
    )


def when(seconds: object) -> str:
    """A time in seconds since 1970, as this machine's owner reads it."""
    if not isinstance(seconds, int | float):
        return "an unknown time"
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
