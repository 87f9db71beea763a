"""Real processes that are stopped, stand still or leave: they are named, and nobody waits for ever."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from cnfgnn.cli.sites import SiteLines
from cnfgnn.errors import CnfgnnError
from cnfgnn.federation import processes
from cnfgnn.federation.server_task import Task, settings_of
from cnfgnn.federation.task_client import STARTS_WITHIN, connected_sites, perform
from cnfgnn.runs.training_loop import GONE_AFTER
from tests.federation.living import ENGINE_WARNINGS, SITES, Living, dealt, living
from tests.federation.undisturbed import config

pytestmark = [pytest.mark.slow, *ENGINE_WARNINGS]


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Living]:
    folder = tmp_path_factory.mktemp("waiting")
    with living(folder, dealt(folder / "city", days=2), faults=True) as alive:
        yield alive


@contextmanager
def stopped(*pids: int) -> Iterator[float]:
    """Processes that stand still, as on a machine that was suspended; since when."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield time.monotonic()
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def test_a_stopped_job_and_one_at_work_for_ever_are_left_out_and_come_back(sites: Living) -> None:
    sites.begin_training(config(400), "held")
    sites.during(3)
    [job] = processes.jobs_of(sites.kits["south"])
    with stopped(job) as since:
        sites.until(
            lambda: "silent for" in sites.site("south")["holding_up"], "the status says who is silent"
        )
        sites.until(lambda: not sites.site("south")["reachable"], "south is away")
        found = time.monotonic() - since
        now = sites.status["round"]
        sites.until(lambda: sites.status["round"] > now, "the others go on")
    print(f"a stopped job was away after {found:.1f} s")
    assert found < 40  # 20, and what a busy machine adds
    sites.takes_part_again("south", sites.status["exchanges"])

    sites.stands("west", 1)
    sites.until(lambda: "at work for" in sites.site("west")["holding_up"], "the status says who is at work")
    sites.until(lambda: "is late with" in sites.site("west")["problem"], "west is late", 300)
    now = sites.status["round"]
    sites.until(lambda: sites.status["round"] > now + 1, "the others go on")
    assert sites.site("west")["reachable"]
    assert not sites.site("west")["present"]
    exchanges = sites.status["exchanges"]
    sites.kill_job("west")
    sites.takes_part_again("west", exchanges)
    sites.stop()


def test_the_best_round_is_chosen_by_those_who_stayed(
    sites: Living, capsys: pytest.CaptureFixture[str]
) -> None:
    sites.begin_training(config(14), "left")
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
    counted = [event for event in rounds if event["judged"] < rounds[0]["judged"] and event["compared"]]
    assert result["best_round"] == min(counted, key=lambda event: event["loss"])["round"] > GONE_AFTER
    assert result["away"] == ["north"]


def test_a_task_is_given_up_in_time_where_no_site_answers_and_nothing_is_to_be_resumed(
    sites: Living, capsys: pytest.CaptureFixture[str]
) -> None:
    sites.until(lambda: len(connected_sites(sites.server)) == len(SITES), "all are connected")
    parents = [processes.running(sites.kits[name]) for name in SITES]
    assert all(parents)
    task = Task("train", "never", settings=settings_of(config(2)), wait=5.0)
    shown: list[Mapping[str, Any]] = []
    lines = SiteLines()

    def watch(status: Mapping[str, Any]) -> None:
        shown.append(status)
        lines(status)

    jobs = [pid for name in SITES for pid in processes.jobs_of(sites.kits[name])]
    begun = time.monotonic()
    with stopped(*(pid for pid in (*parents, *jobs) if pid)), pytest.raises(CnfgnnError) as told:
        perform(sites.server, task, watch)
    took = time.monotonic() - begun
    said = capsys.readouterr().err
    with capsys.disabled():
        print(f"given up after {took:.1f} s: {told.value}\n{said}")
    assert took < 5 + STARTS_WITHIN + 25
    assert "--resume" not in str(told.value)
    assert shown
    assert "train never: " in said
    assert "process_exception" not in said
