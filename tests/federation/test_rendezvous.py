"""What the server makes of what a site says of itself."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import pytest

from cnfgnn.errors import NodeError
from cnfgnn.federation.project import SitePlan
from cnfgnn.federation.rendezvous import gather, objection
from cnfgnn.federation.spans import Span
from cnfgnn.federation.status import STARTING
from cnfgnn.transports.remote.link import Link
from cnfgnn.transports.remote.messages import Unreachable, pack
from cnfgnn.version import __version__

PLAN = SitePlan("north", ("s0",))
SPAN = Span(0, 300_000, 300, False)


def said(**changes: Any) -> dict[str, Any]:
    about = {"ready": True, "version": __version__, "clock": time.time(), "sensors": ["s0"], "utc": False}
    times = {"first": 0, "last": 300_000, "step": 300, "newest": 300_000, "measured": 1001, "left_out": 0}
    return about | times | changes


def test_a_site_that_cannot_hold_its_hidden_states_is_not_let_in() -> None:
    needed, takes = "take 2 GiB in this run, and it can hold 1 GiB", 2 << 30
    assert needed in objection(said(memory=1 << 30), PLAN, SPAN, takes)
    assert objection(said(memory=2 << 30), PLAN, SPAN, takes) == ""


@pytest.mark.parametrize("memory", [None, 0, -1, "2 GiB", 2.5, True, [1]])
def test_a_site_that_does_not_say_what_it_can_hold_is_believed_to_hold_anything(memory: object) -> None:
    assert objection(said(memory=memory), PLAN, SPAN, 2 << 40) == ""


class Starting:
    """A job whose handler is not registered until it was asked a few times."""

    def __init__(self, times: float) -> None:
        self.left = times

    def ask(self, site: str, request: bytes, timeout: float) -> bytes:
        self.left -= 1
        if self.left >= 0:
            raise Unreachable("process_exception")
        return pack("hello", **said())


def gathered(channel: Starting, wait: float) -> list[Mapping[str, str]]:
    shown: list[Mapping[str, str]] = []
    links = {"north": Link("north", channel, "session")}
    gather(links, {"north": PLAN}, 1, wait, lambda: False, lambda **more: shown.append(more["missing"]))
    return shown


def test_a_site_whose_job_is_starting_is_said_to_start() -> None:
    assert gathered(Starting(2), wait=60.0) == [{"north": STARTING}, {"north": STARTING}, {}]


def test_a_site_that_never_answers_is_named_with_the_reason_when_time_is_up() -> None:
    with pytest.raises(NodeError, match=r"north.*does not answer \(process_exception\)"):
        gathered(Starting(float("inf")), wait=0.0)
