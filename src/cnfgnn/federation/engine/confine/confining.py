"""Confining a process, and trying out in another one what would hold."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cnfgnn.federation.engine.confine import landlock, paths, privileges, seccomp
from cnfgnn.federation.engine.confine.limits import Confinement, Limits

# Starts without packages and without looking into the working folder.
_BARE_PYTHON = (
    *("-I", "-S", "-c"),
    "import sys; sys.path.insert(0, sys.argv[1]); from cnfgnn.federation.engine.confine import confining;"
    " confining.try_out(*sys.argv[2:])",
    str(Path(__file__).resolve().parents[4]),
)
TRIED_WITHIN = 60.0  # seconds for a process that tries something and ends


def confine(limits: Limits) -> Confinement:
    """Give up everything but the limits, for good, for this process and all that it starts.

    Whatever is open stays open: the caller decides which files and sockets, and which environment, a process
    begins with. What the kernel does not offer is left out, and the answer says so.

    Raises:
        LookupError: There is no such user.
        OSError: The process may not become this user, or the kernel refuses limits that it knows.
        RuntimeError: There are other threads, which would go on unconfined.
    """
    if _threads() > 1:
        raise RuntimeError("a process can be confined only before it starts threads")
    before, version = os.geteuid(), landlock.abi()
    rules = _rules(limits) if version else None  # before the user changes: it may not see all paths
    privileges.close_bounding_set()
    if limits.user is not None:
        privileges.become(limits.user)
    dropped, kept_low = privileges.drop_capabilities(), privileges.forbid_new_privileges()
    if rules is not None:
        rules.restrict()
    filtered = seccomp.install(truncation=version < landlock.GOVERNS_TRUNCATION)
    other = os.geteuid() != before
    return Confinement(version, privileges.user_name(), other, dropped, kept_low, filtered)


def _rules(limits: Limits) -> landlock.Rules:
    rules = landlock.Rules()
    rules.allow(limits.readable, landlock.READ)
    rules.allow(limits.writable, landlock.WRITE)
    rules.allow(limits.listable, landlock.READ_DIR)
    rules.allow_ports(limits.connect_ports, landlock.CONNECT_TCP)
    rules.allow_ports(limits.listen_ports, landlock.BIND_TCP)
    return rules


def _threads() -> int:
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:  # there is no /proc, or this process is confined already
        return threading.active_count()


def available(limits: Limits) -> Confinement:
    """What would hold for a process with these limits, as a process that confines itself and ends tells us.

    Raises:
        OSError: It cannot be confined like this; the message is the reason.
    """
    return Confinement.from_dict(_tried("confine", asdict(limits)))


def usable_by(user: str, readable: Iterable[str], writable: Iterable[str] = ()) -> str:
    """Why this user cannot read these files and folders, or write to those, in one sentence; empty if it can.

    A process tries it that becomes the user. What is below a folder is not tried.
    """
    try:
        return str(_tried("use", {"user": user, "paths": [list(readable), list(writable)]})["problem"])
    except OSError as error:
        return str(error)


def _tried(what: str, how: dict[str, Any]) -> dict[str, Any]:
    """What a process answers that tries something and ends. If it fails, its last line becomes an error."""
    command = [sys.executable, *_BARE_PYTHON, what]
    try:
        done = subprocess.run(
            command, input=json.dumps(how), capture_output=True, text=True, timeout=TRIED_WITHIN
        )
    except subprocess.TimeoutExpired:
        raise OSError(f"it did not end within {TRIED_WITHIN:.0f} s") from None
    if done.returncode != 0:
        raise OSError(done.stderr.strip().rpartition("\n")[2] or f"it ended with code {done.returncode}")
    return dict(json.loads(done.stdout))


def try_out(what: str) -> None:
    """In that process: try it and print what came of it; end with one sentence if it is impossible."""
    asked = json.load(sys.stdin)
    try:
        if what == "confine":
            found = asdict(confine(Limits(**asked)))
        else:
            existing = [[path for path in some if os.path.exists(path)] for some in asked["paths"]]
            privileges.become(asked["user"])
            found = {"problem": paths.problem_with(*existing)}
    except (OSError, LookupError, RuntimeError) as error:
        sys.exit(error.args[0] if isinstance(error, LookupError) else str(error))
    print(json.dumps(found))
