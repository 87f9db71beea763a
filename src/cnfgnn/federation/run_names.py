"""How runs are called: by the server's operator, in requests to sites, and if they are trained beside a live
one. A site decides by these names what it takes part in."""

from __future__ import annotations

import re

RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
TRAINED = "trained"  # in the names of runs that were trained beside a live task
IN_REQUESTS = 40  # characters of a run's name that requests carry, before its id
OF_LINE = 30  # characters of the run that went live first in the names of those that were trained beside it
_BESIDE = re.compile(rf"(?P<line>.+)-{TRAINED}-\d{{8}}T\d{{6}}", re.ASCII)


def name_in_requests(run: str, run_id: str) -> str:
    """How requests name a run; its id tells it from another one of the same name."""
    return f"{run[:IN_REQUESTS]}-{run_id}"


def line_of(run: str) -> str:
    """How the run is called beside which this one was trained, perhaps cut; its own name if it was alone."""
    found = _BESIDE.fullmatch(run)
    return found["line"] if found else run


def is_about(named: str, run: str, beside: bool) -> bool:
    """Whether a request that names its run like this is about a run, or with `beside` about one of its line:
    the run that went live first, and those that were trained beside it."""
    name, line = named.rpartition("-")[0], line_of(run)
    if name == run[:IN_REQUESTS] or not beside:
        return name == run[:IN_REQUESTS]
    trained = f"{line[:OF_LINE]}-{TRAINED}-"
    return name == line or name.startswith(trained) or (len(line) == OF_LINE and name.startswith(line))
