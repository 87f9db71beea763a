"""Real processes that are suspended, blocked or gone are named, and nobody waits forever for them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from cnfgnn.cli.sites import SiteLines
from cnfgnn.errors import CnfgnnError
from cnfgnn.federation.kits import processes
from cnfgnn.federation.operator import tasks as task_client
from cnfgnn.federation.operator.tasks import run_task
from cnfgnn.federation.task import Task, settings_of
from cnfgnn.runs.training_loop import GONE_AFTER
from tests.federation.reference_training import config
from tests.federation.running_federation import (
    ENGINE_WARNINGS,
    SITES,
    RunningFederation,
    city_on_disk,
    every_process,
    running_federation,
    suspended,
)
from tests.federation.two_site_federation import connected
from tests.waiting import wait_for

STARTS_WITHIN = 10.0  # seconds, instead of 30
pytestmark = ENGINE_WARNINGS


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningFederation]:
    folder = tmp_path_factory.mktemp("unresponsive")
    with running_federation(folder, city_on_disk(folder / "city", days=2), faults=True) as running:
        yield running


@pytest.mark.chaos
def test_a_suspended_job_and_a_blocked_one_are_left_out_and_rejoin(sites: RunningFederation) -> None:
    sites.begin_training(config(400), "held")
    sites.during(3)
    [job] = processes.jobs_of(sites.kits["south"])
    with suspended(job) as since:
        sites.until(
            lambda: "silent for" in sites.site("south")["holding_up"], "the status says who is silent"
        )
        sites.until(lambda: not sites.site("south")["reachable"], "south is absent")
        found = time.monotonic() - since
        now = sites.status["round"]
        sites.until(lambda: sites.status["round"] > now, "the others continue")
    print(f"a suspended job was absent after {found:.1f} s")
    assert found < 120  # 20, and some more on a busy machine
    sites.wait_for_rejoin("south", sites.status["exchanges"])

    sites.block("west", 1)
    sites.until(lambda: "working for" in sites.site("west")["holding_up"], "the status says who is at work")
    sites.until(lambda: "is late with" in sites.site("west")["problem"], "west is late", 300)
    now = sites.status["round"]
    sites.until(lambda: sites.status["round"] > now + 1, "the others continue")
    assert sites.site("west")["reachable"]
    assert not sites.site("west")["present"]
    exchanges = sites.status["exchanges"]
    sites.kill_job("west")
    sites.wait_for_rejoin("west", exchanges)
    sites.stop()


@pytest.mark.chaos
def test_the_best_round_is_chosen_by_the_sites_that_stayed(
    sites: RunningFederation, capsys: pytest.CaptureFixture[str]
) -> None:
    sites.begin_training(config(11), "left")
    sites.during(3)
    sites.kill("north")
    try:
        result = sites.end()
    finally:
        processes.up(sites.kits["north"])
    run = sites.run("left")
    north = [run.data.sensors[row] for row in SITES["north"]]
    rounds = [event for event in run.events() if event["event"] == "round"]
    missed = [event for event in rounds if event["left_out"]]
    assert [event["compared"] for event in missed[:GONE_AFTER]] == [False] * (GONE_AFTER - 1) + [True]
    assert all(event["left_out"] == north for event in missed[:GONE_AFTER])
    counted = [event for event in rounds if event["round"] >= missed[0]["round"] and event["compared"]]
    assert result["best_round"] == min(counted, key=lambda event: event["loss"])["round"] > GONE_AFTER
    assert result["absent"] == ["north"]


@pytest.mark.slow
def test_a_task_is_given_up_in_time_if_no_site_answers_and_no_resume_is_suggested(
    sites: RunningFederation, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_client, "STARTS_WITHIN", STARTS_WITHIN)
    wait_for(lambda: connected(sites.server) == set(SITES), "all are connected")
    everyone = [pid for name in SITES for pid in every_process(sites.kits[name])]
    assert len(everyone) >= 2 * len(SITES)
    task = Task("train", "never", settings=settings_of(config(2)), wait=5.0)
    shown: list[Mapping[str, Any]] = []
    lines = SiteLines()

    def watch(status: Mapping[str, Any]) -> None:
        shown.append(status)
        lines(status)

    begun = time.monotonic()
    with suspended(*everyone), pytest.raises(CnfgnnError) as caught:
        run_task(sites.server, task, watch)
    took = time.monotonic() - begun
    lines.end()
    printed = capsys.readouterr().err
    with capsys.disabled():
        print(f"given up after {took:.1f} s: {caught.value}\n{printed}")
    assert took < 5 + STARTS_WITHIN + 120  # on a busy machine; without the limit it waits for ever
    assert "--resume" not in str(caught.value)
    assert shown
    assert "train never: " in printed
    assert "process_exception" not in printed
