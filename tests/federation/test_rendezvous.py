"""How the server evaluates what sites report about themselves."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from cnfgnn.errors import NodeError
from cnfgnn.federation.project import SitePlan
from cnfgnn.federation.server.rendezvous import rejoin_problem, wait_for_sites
from cnfgnn.federation.server.status import STARTING
from cnfgnn.federation.spans import Span
from cnfgnn.transports.remote.link import Link
from cnfgnn.transports.remote.messages import Channel, Unreachable, pack, refused, unpack
from cnfgnn.version import __version__

PLAN = SitePlan("north", ("s0",))
SPAN = Span(0, 300_000, 300, False)


def hello(**changes: Any) -> dict[str, Any]:
    about = {"ready": True, "version": __version__, "clock": time.time(), "sensors": ["s0"], "utc": False}
    about["blur"] = 5.0
    times = {"first": 0, "last": 300_000, "step": 300, "newest": 300_000, "measured": 1001, "ignored": 0}
    return about | times | changes


def test_a_site_without_enough_memory_for_its_hidden_states_is_refused() -> None:
    problem, needed = "need 2 GiB in this run, and it has 1 GiB", 2 << 30
    assert problem in rejoin_problem(hello(memory=1 << 30), PLAN, SPAN, needed)
    assert rejoin_problem(hello(memory=2 << 30), PLAN, SPAN, needed) == ""


@pytest.mark.parametrize("memory", [None, 0, -1, "2 GiB", 2.5, True, [1]])
def test_a_site_that_does_not_report_its_memory_is_assumed_to_have_enough(memory: object) -> None:
    assert rejoin_problem(hello(memory=memory), PLAN, SPAN, 2 << 40) == ""


def test_a_site_with_less_blur_than_the_project_asks_for_is_refused_by_name() -> None:
    strict = replace(PLAN, least_blur=5.0)
    assert rejoin_problem(hello(), strict, SPAN) == ""
    assert rejoin_problem(hello(blur=7), strict, SPAN) == ""
    assert (
        rejoin_problem(hello(blur=2), strict, SPAN) == "the blur of site north is 2, and this federation asks"
        " for at least 5: its owner sets it in local/site.toml"
    )


@pytest.mark.parametrize(
    "blur", [None, -1, "5", True, float("nan"), float("inf"), [5], 10**400], ids=lambda blur: str(blur)[:4]
)
def test_a_blur_that_is_none_is_refused(blur: object) -> None:
    assert rejoin_problem(hello(blur=blur), PLAN, SPAN) == "it does not report its blur"


class StartingSite:
    """A site that cannot be reached until it was asked a few times."""

    def __init__(self, times: float) -> None:
        self.left = times

    def ask(self, site: str, request: bytes, timeout: float) -> bytes:
        self.left -= 1
        if self.left >= 0:
            raise Unreachable("process_exception")
        return pack("hello", **hello())


def reported_missing(channel: StartingSite, wait: float) -> list[Mapping[str, str]]:
    reports: list[Mapping[str, str]] = []
    links = {"north": Link("north", channel, "session")}
    wait_for_sites(
        links, {"north": PLAN}, 1, wait, lambda: False, lambda **more: reports.append(more["missing"])
    )
    return reports


def test_a_site_whose_job_is_starting_is_reported_as_starting() -> None:
    assert reported_missing(StartingSite(2), wait=60.0) == [{"north": STARTING}, {"north": STARTING}, {}]


def test_a_site_that_never_answers_is_named_with_the_reason_at_the_deadline() -> None:
    with pytest.raises(NodeError, match=r"north.*does not answer \(process_exception\)"):
        reported_missing(StartingSite(float("inf")), wait=0.0)


class RefusingSites:
    """Sites of which some refuse for good; the others are ready once they were asked `slow` times."""

    def __init__(self, *refusing: str, slow: int = 0) -> None:
        self.refusing, self.slow = refusing, slow

    def ask(self, site: str, request: bytes, timeout: float) -> bytes:
        if site in self.refusing:
            return refused(unpack(request), "its owner does not take part in 'train'", for_good=True)
        self.slow -= 1
        if self.slow >= 0:
            return refused(unpack(request), "it waits for its owner")
        return pack("hello", **hello())


def found_sites(
    channel: Channel, min_sites: int, reports: list[Mapping[str, Any]] | None = None
) -> dict[str, Span]:
    links = {name: Link(name, channel, "session") for name in ("north", "south")}
    plans = {name: replace(PLAN, name=name) for name in links}
    told: list[Mapping[str, Any]] = [] if reports is None else reports
    return wait_for_sites(links, plans, min_sites, 3600.0, lambda: False, lambda **more: told.append(more))


def test_nobody_waits_for_a_site_whose_owner_refuses_for_good() -> None:
    assert list(found_sites(RefusingSites("south"), 1)) == ["north"]
    assert list(found_sites(RefusingSites("south", slow=2), 1)) == ["north"]
    for refusing in (["south"], ["north", "south"]):
        with pytest.raises(NodeError, match=r"its owner does not take part in 'train'"):
            found_sites(RefusingSites(*refusing), 2)


def test_a_site_that_waits_for_its_owner_is_waited_for() -> None:
    assert set(found_sites(RefusingSites(slow=4), 2)) == {"north", "south"}


class SomeUnfit:
    """Two sites: what `south` says of itself keeps it out, until it was asked `times` times."""

    def __init__(self, times: float = float("inf"), **south: Any) -> None:
        self.left, self.south = times, south

    def ask(self, site: str, request: bytes, timeout: float) -> bytes:
        if site != "south":
            return pack("hello", **hello())
        self.left -= 1
        return pack("hello", **hello(**self.south if self.left >= 0 else {}))


UNFIT = {  # by the word that its owner is told
    "version": {"version": "0.1"},
    "clock": {"clock": 0.0},
    "sensors": {"sensors": ["other"]},
    "report": {"blur": None},
    "": {"ready": False, "unfit": True, "problem": "its readings cannot be used"},  # the owner knows why
}


@pytest.mark.parametrize(("code", "south"), UNFIT.items())
def test_nobody_waits_for_a_site_that_cannot_take_part_as_it_is(code: str, south: Mapping[str, Any]) -> None:
    reports: list[Mapping[str, Any]] = []
    assert list(found_sites(SomeUnfit(**south), 1, reports)) == ["north"]
    assert reports[-1]["objections"] == ({"south": code} if code else {})


@pytest.mark.parametrize("south", UNFIT.values())
def test_without_it_too_few_are_left_and_it_may_be_mended_in_time(south: Mapping[str, Any]) -> None:
    assert set(found_sites(SomeUnfit(2, **south), 2)) == {"north", "south"}


def test_a_site_that_is_still_reading_its_data_is_waited_for() -> None:
    reading = {"ready": False, "unfit": False, "problem": "it is still reading its data"}
    assert set(found_sites(SomeUnfit(2, **reading), 1)) == {"north", "south"}
