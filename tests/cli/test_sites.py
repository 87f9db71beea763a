"""The lines that an operator reads about a task when the output is not a terminal."""

from __future__ import annotations

from typing import Any

import pytest

from cnfgnn.cli import sites
from cnfgnn.cli.sites import SiteLines, headline
from cnfgnn.federation.server.status import STARTING, task_status
from tests.waiting import wait_for


def site(**changes: Any) -> dict[str, Any]:
    healthy = {"present": True, "reachable": True, "problem": "", "holding_up": ""}
    return healthy | changes


def status(state: str = "running", **more: Any) -> dict[str, Any]:
    return {"token": "t", "state": state, "do": "train", "run": "one", "exchanges": 3, **more}


def lines(capsys: pytest.CaptureFixture[str], *seen: dict[str, Any]) -> list[str]:
    watcher = SiteLines()
    for current in seen:
        watcher(current)
    watcher.end()
    return capsys.readouterr().err.splitlines()


def test_a_site_that_is_starting_is_not_absent(capsys: pytest.CaptureFixture[str]) -> None:
    printed = lines(
        capsys,
        status("connecting", missing={"north": STARTING, "south": STARTING}),
        status("connecting", missing={"north": STARTING}),
        status("connecting", missing={}),
    )
    assert printed == ["train one: waiting for north, south"]


def test_each_new_reason_for_an_absence_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = "its clock differs from the server's by 900 s", "its readings cannot be used"
    reasons = [first, first, second, first]
    printed = lines(capsys, *(status("connecting", missing={"north": why}) for why in reasons))
    assert [line for line in printed if "is absent" in line] == [
        f"site north is absent: {first}",
        f"site north is absent: {second}",
    ]


def test_a_site_that_becomes_absent_again_is_reported_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    gone = status(sites={"north": site(reachable=False, present=False, problem="cannot be reached (cut)")})
    printed = lines(capsys, gone, status(sites={"north": site()}), gone)
    assert [line for line in printed if line.startswith("site")] == [
        "site north is absent: cannot be reached (cut)",
        "site north is present",
        "site north is absent: cannot be reached (cut)",
    ]


def test_a_site_that_joins_late_is_reported_as_present(capsys: pytest.CaptureFixture[str]) -> None:
    missing = {"north": "it does not answer (timeout)"}
    printed = lines(
        capsys,
        status("connecting", missing=missing),
        status(missing=missing, sites={"north": site(reachable=False, present=False)}),
        status(missing=missing, sites={"north": site()}),
    )
    assert "site north is present" in printed
    assert sum("is absent" in line for line in printed) == 1


def test_a_reachable_site_that_is_left_out_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    late = "is late with 'save' (working for more than 30 s): left out until it has finished"
    printed = lines(capsys, status(sites={"west": site(present=False, problem=late), "north": site()}))
    assert f"site west is absent: {late}" in printed


def test_a_site_that_the_others_wait_for_is_printed_once_and_shown_in_the_headline(
    capsys: pytest.CaptureFixture[str],
) -> None:
    first = status(sites={"west": site(holding_up="silent for 6 s, away after 20 s")})
    later = status(sites={"west": site(holding_up="silent for 7 s, away after 20 s")})
    printed = lines(capsys, first, later)
    assert [line for line in printed if line.startswith("waiting")] == [
        "waiting for site west: silent for 6 s, away after 20 s"
    ]
    assert "waiting for west (silent for 7 s, away after 20 s)" in headline(task_status(later))


def test_sensors_left_out_of_a_comparison_are_shown() -> None:
    known = {
        "metric": "rmse",
        "error": 3.5,
        "best_error": 3.4,
        "best_round": 4,
        "training_bytes": {"per_site": 9},
    }
    left_out = {"sites": ["north"], "sensors": ["s0"]}
    assert "compared without the sensors of north" in headline(
        task_status(status(**known, left_out=left_out))
    )
    waiting = headline(task_status(status(**known, left_out=left_out, compared=False)))
    assert "not compared, waiting for the sensors of north" in waiting


def test_a_finished_run_that_is_resumed_has_no_round_after_its_last() -> None:
    assert headline(task_status(status(round=2, rounds=1))) == "train one: running, round 1/1"
    assert headline(task_status(status(round=1, rounds=3))) == "train one: running, round 1/3"


def test_a_command_says_something_every_few_seconds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sites, "QUIET_FOR", 0.1)
    watcher = SiteLines()
    try:
        watcher.say("train one: connecting to the server")  # which does not answer yet
        wait_for(lambda: "connecting to the server, for " in capsys.readouterr().err, "it says so again")
    finally:
        watcher.end()
