"""What an operator reads of a federation's sites where there is no terminal."""

from __future__ import annotations

from typing import Any

import pytest

from cnfgnn.cli.sites import SiteLines, headline
from cnfgnn.federation.status import STARTING


def site(**changes: Any) -> dict[str, Any]:
    usual = {"present": True, "reachable": True, "problem": "", "holding_up": ""}
    return usual | changes


def status(state: str = "running", **more: Any) -> dict[str, Any]:
    return {"token": "t", "state": state, "do": "train", "run": "one", "exchanges": 3, **more}


def lines(capsys: pytest.CaptureFixture[str], *seen: dict[str, Any]) -> list[str]:
    watcher = SiteLines()
    for one in seen:
        watcher(one)
    return capsys.readouterr().err.splitlines()


def test_a_site_that_is_starting_is_not_away(capsys: pytest.CaptureFixture[str]) -> None:
    told = lines(
        capsys,
        status("gathering", missing={"north": STARTING, "south": STARTING}),
        status("gathering", missing={"north": STARTING}),
        status("gathering", missing={}),
    )
    assert told == ["train one: waiting for north, south"]


def test_each_new_reason_of_an_absence_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = "its clock is 900 s off the server's", "its readings cannot be used"
    reasons = [first, first, second, first]
    told = lines(capsys, *(status("gathering", missing={"north": why}) for why in reasons))
    assert [line for line in told if "is away" in line] == [
        f"site north is away: {first}",
        f"site north is away: {second}",
    ]


def test_a_site_that_went_and_came_is_told_anew_when_it_goes_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    gone = status(sites={"north": site(reachable=False, present=False, problem="cannot be reached (cut)")})
    told = lines(capsys, gone, status(sites={"north": site()}), gone)
    assert [line for line in told if line.startswith("site")] == [
        "site north is away: cannot be reached (cut)",
        "site north is there",
        "site north is away: cannot be reached (cut)",
    ]


def test_a_site_that_joined_after_the_beginning_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    missing = {"north": "it does not answer (timeout)"}
    told = lines(
        capsys,
        status("gathering", missing=missing),
        status(missing=missing, sites={"north": site(reachable=False, present=False)}),
        status(missing=missing, sites={"north": site()}),
    )
    assert "site north is there" in told
    assert sum("is away" in line for line in told) == 1


def test_a_site_that_can_be_reached_and_is_left_out_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    late = "is late with 'save' (working for more than 30 s): left out until it has finished"
    told = lines(capsys, status(sites={"west": site(present=False, problem=late), "north": site()}))
    assert f"site west is away: {late}" in told


def test_who_keeps_the_others_waiting_is_said_once_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    first = status(sites={"west": site(holding_up="silent for 6 s, away after 20 s")})
    later = status(sites={"west": site(holding_up="silent for 7 s, away after 20 s")})
    told = lines(capsys, first, later)
    assert [line for line in told if line.startswith("waiting")] == [
        "waiting for site west: silent for 6 s, away after 20 s"
    ]
    assert "waiting for west (silent for 7 s, away after 20 s)" in headline(later)


def test_sensors_that_a_comparison_left_out_are_shown() -> None:
    known = {
        "kind": "rmse",
        "error": 3.5,
        "best_error": 3.4,
        "best_round": 4,
        "training_bytes": {"per_site": 9},
    }
    left_out = {"sites": ["north"], "sensors": ["s0"]}
    assert "compared without the sensors of north" in headline(status(**known, left_out=left_out))
    waiting = headline(status(**known, left_out=left_out, compared=False))
    assert "not compared, waiting for the sensors of north" in waiting
