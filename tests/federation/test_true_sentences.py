"""What a live federation tells its operator is what is known, and it is said once."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from cnfgnn.algorithm.messages.shapes import Sizes
from cnfgnn.cli.federation_live import how_services_ended
from cnfgnn.config.settings import DataConfig
from cnfgnn.errors import RunError
from cnfgnn.federation.objections import Objection
from cnfgnn.federation.operator import tasks
from cnfgnn.federation.server.live.task import GONE, NEVER_THERE, SiteSteps
from cnfgnn.federation.server.status import STATUS, StatusFile, objection_to
from cnfgnn.federation.site.live.predictor import SitePredictor
from cnfgnn.federation.task import Task
from cnfgnn.transports.remote.link import Link
from cnfgnn.transports.remote.messages import Unreachable
from cnfgnn.transports.remote.transport import Site

SERVER_IS_AWAY = "the server does not run"
RUNNING = {"token": "ours", "state": "running", "do": "live", "run": "one"}
STOPPED = {**RUNNING, "state": "stopped", "sites": {"north": {}, "south": {}}, "services_ended": ["north"]}


class Nobody:
    def ask(self, site: str, request: bytes, timeout: float) -> bytes:
        raise Unreachable("comm_error")


def site(name: str) -> Site:
    return Site(name, torch.arange(2), Link(name, Nobody(), "session"), Sizes(2))


def test_a_site_that_never_took_part_is_not_said_to_go_on_by_itself() -> None:
    north, south = site("north"), site("south")
    steps = SiteSteps([north, south], 12, lambda step: True)
    steps._closed.set()
    steps._note(north, {"ready": True, "step": 1, "present": 2}, joined=True)
    steps._note(south, {"ready": False, "step": 0, "present": 0}, joined=False)  # its service does not run
    assert steps.quality(north, True, 2) == "full"
    assert steps.quality(north, False, 0) == GONE
    assert steps.quality(south, False, 0) == NEVER_THERE


def test_a_site_whose_clock_was_ahead_takes_part_again_when_it_is_right(tmp_path: Path) -> None:
    """Until then the server, which does not believe its steps, asks it now and then, and not all the time."""
    ready = SimpleNamespace(
        data=SimpleNamespace(history=12, horizon=12),
        forecaster=SimpleNamespace(model=SimpleNamespace(embedding=1)),
    )
    unused = cast(Any, None)
    predictor = SitePredictor(("a", "b"), cast(Any, ready), DataConfig(), None, unused, unused, tmp_path)
    north, waited = site("north"), list[float]()
    steps = SiteSteps([north], 12, lambda step: step <= 1000)

    def ask() -> int:
        step, present = predictor.wait_until_due(steps.due["north"])
        steps._note(north, {"ready": True, "step": step, "present": present}, joined=True)
        return steps.due["north"]

    steps._closed.wait = lambda seconds=0: bool(waited.append(seconds))  # type: ignore[method-assign, assignment]
    predictor._announce(600, 2)
    assert ask() == 600
    assert not waited
    predictor._announce(86_400, 2)
    assert ask() == 600
    assert waited
    predictor._announce(900, 2)
    assert ask() == 900


def test_a_site_that_could_not_be_told_is_not_among_those_whose_services_have_ended() -> None:
    assert SiteSteps([site("north")], 12, lambda step: True).end_services() == []


def test_the_server_records_for_each_site_why_it_is_left_out(tmp_path: Path) -> None:
    status = StatusFile(tmp_path, "token")
    status.set(missing={"north": "its clock ..."}, objections={"north": "clock"})
    status._write()
    assert [objection_to(tmp_path, name) for name in ("north", "south")] == ["clock", ""]
    north, south, west = (site(name) for name in ("north", "south", "west"))
    north.reachable, north.problem = False, Objection("version", "it runs cnfgnn 0.1 ...")
    south.problem = Objection("clock", "its clock ...")  # which is right by now
    west.reachable, west.problem = False, "cannot be reached"
    status.transport = SimpleNamespace(  # type: ignore[assignment]
        parties=[north, south, west], waiting=False, verb="", exchanges=1, engine_seconds=0, site_seconds=0
    )
    status._write()
    assert [objection_to(tmp_path, name) for name in ("north", "south", "west")] == ["version", "", ""]
    status.end("finished")
    assert objection_to(tmp_path, "north") == ""


def live(kit: Path, monkeypatch: pytest.MonkeyPatch, *runs: Callable[[tasks.Watch], None]) -> Any:
    """What `keep_live` returns and says if its task runs, or fails, like this, one after the other."""
    left, said = list(runs), list[str]()
    monkeypatch.setattr(tasks, "RESTART_AFTER", 0.0)
    monkeypatch.setattr(tasks, "is_live", lambda kit, run: True)
    monkeypatch.setattr(tasks, "_attend", lambda kit, watch: left.pop(0)(watch))
    stopped = tasks.keep_live(kit, Task("live", "one"), lambda status: None, said.append)
    return stopped, said


def server_is_away(watch: tasks.Watch) -> None:
    raise RunError("server", SERVER_IS_AWAY)


def interrupted(watch: tasks.Watch) -> None:
    raise KeyboardInterrupt


def runs_for_a_moment(watch: tasks.Watch) -> None:
    watch(RUNNING)


def test_what_keeps_a_live_task_from_running_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = [server_is_away] * 50
    _, said = live(tmp_path, monkeypatch, *away, runs_for_a_moment, *away, interrupted)
    assert said == [f"server: {SERVER_IS_AWAY}: waiting"] * 2


def written(kit: Path, status: Mapping[str, Any]) -> Callable[[tasks.Watch], None]:
    def ends(watch: tasks.Watch) -> None:
        watch(RUNNING)
        (kit / STATUS).write_text(json.dumps(status))
        raise KeyboardInterrupt

    return ends


def test_ctrl_c_says_which_services_have_ended_and_no_more_than_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped, _ = live(tmp_path, monkeypatch, written(tmp_path, STOPPED))
    assert how_services_ended(stopped).startswith(
        "stopped; sites north have ended their services, and south could not be told: a service that runs"
    )
    stopped, _ = live(
        tmp_path, monkeypatch, written(tmp_path, {**STOPPED, "services_ended": ["north", "south"]})
    )
    assert how_services_ended(stopped) == "stopped; sites north, south have ended their services"
    for nothing_known in (written(tmp_path, RUNNING), written(tmp_path, {**STOPPED, "token": "of another"})):
        stopped, _ = live(tmp_path, monkeypatch, nothing_known)
        assert "the server's task was not there to end the sites' services" in how_services_ended(stopped)
