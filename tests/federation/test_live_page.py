"""What the operator of a live federation sees: the page, its events and metrics, and `federation status`."""

from __future__ import annotations

import errno
import http.client
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from cnfgnn.cli import progress, sites
from cnfgnn.cli.federation_live import _follow_live
from cnfgnn.cli.federation_live_status import live_lines, service_lines
from cnfgnn.cli.sites import SiteLines, headline, sites_table, status_view
from cnfgnn.errors import StorageError
from cnfgnn.federation.operator import tasks
from cnfgnn.federation.operator.live.page import ASSETS, LivePage
from cnfgnn.federation.operator.live.state import live_state
from cnfgnn.federation.server import status as server_status
from cnfgnn.federation.server.status import STATUS, StatusFile, read_status, task_status
from cnfgnn.federation.task import Task
from tests.browser import BrowserWindow, needs_browser
from tests.federation.live_kit import NEW, RUN, SECRET, SENSORS, VERDICT, LiveKit
from tests.live.small_service import Client
from tests.live.web.test_service_pages import next_event
from tests.waiting import wait_for

WIDER_THAN_THE_WINDOW = "return document.documentElement.scrollWidth > innerWidth"


@pytest.fixture
def kit(tmp_path: Path) -> LiveKit:
    return LiveKit(tmp_path)


def status_of(kit: LiveKit) -> dict[str, Any]:
    """As `federation status` and the watcher of the command get it."""
    return {**(read_status(kit.folder) or {}), "federation": live_state(kit.folder)}


@pytest.mark.parametrize("full", [True, False])
def test_a_status_that_the_server_could_not_write_is_not_taken_for_the_present(
    full: bool, kit: LiveKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(path: Path, content: bytes) -> None:
        if full:
            raise StorageError(path, OSError(errno.ENOSPC, "No space left on device"))

    monkeypatch.setattr(server_status, "write_whole", write)
    with LivePage(kit.folder, "127.0.0.1", 0) as page:
        client = Client(page.address, page.token)
        assert client.get("/health").status == 200
        kit.write(time=time.time() - 100)
        assert client.get("/health").status == 503
        told = client.get("/status").json
    assert ("No space left on device" in told["old"]) == full
    assert {site["reachable"] for site in told["sites"].values()} == {False}
    assert {site["quality"] for site in told["sites"].values()} == {"not known"}
    watcher = Mock()
    monkeypatch.setattr(sites, "sites_watcher", lambda: watcher)
    status = read_status(kit.folder)
    monkeypatch.setattr(tasks, "keep_live", lambda kit, task, watch, say: watch(status))
    _follow_live(kit.folder, Task("live", RUN))
    task = task_status(watcher.call_args.args[0])
    assert "100 s old" in headline(task)
    assert ("disk is full" in headline(task)) == full
    assert {site.problem for site in task.sites.values()} == {"the status of the task is old"}


def test_a_task_writes_its_status_although_nothing_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_status, "WRITE_INTERVAL", 0.01)
    monkeypatch.setattr(server_status, "WRITTEN_EVERY", 0.01)
    status = StatusFile(tmp_path, "token")
    began = (read_status(tmp_path) or {})["time"]
    wait_for(lambda: (read_status(tmp_path) or {})["time"] > began, "the status is written again")
    status.end("finished")


# ---- what is told ------------------------------------------------------------------------------------------


def test_the_page_shows_the_status_and_needs_the_token(kit: LiveKit) -> None:
    with LivePage(kit.folder, "127.0.0.1", 0) as page:
        client = Client(page.address, page.token)
        for path in ("/status", "/events", "/metrics"):
            assert client.without_token().get(path).status == 401
            assert client.get(path, Sec_Fetch_Site="cross-site").status == 403
        answer = client.get("/status")
        assert answer.json["sites"]["north"]["quality"] == "full"
        assert str(SECRET) not in answer.body.decode()
        assert client.without_token().get("/health").json == {"status": "ok"}
        metrics = client.get("/metrics").body.decode()
        assert str(SECRET) not in metrics
        for line in (
            "cnfgnn_federation_running 1.0",
            "cnfgnn_federation_exchange_seconds 0.081",
            "cnfgnn_federation_step_period_seconds 300.0",
            'cnfgnn_federation_site_sensors_present{site="north"} 12.0',
            'cnfgnn_federation_site_compared{site="north"} 2880.0',
            'cnfgnn_federation_site_covered{level="95",site="north"} 2741.0',
            'cnfgnn_federation_site_refused_answers{site="west"} 0.0',
            "cnfgnn_federation_model_switches 0.0",
            "cnfgnn_federation_training 0.0",
            "cnfgnn_federation_training_failed 0.0",
        ):
            assert line in metrics.splitlines()
        for path, (source, kind) in ASSETS.items():
            found = client.without_token().get(path)
            assert (found.status, found.body) == (200, source.read_bytes())
            assert found.headers["content-type"].startswith(kind)
            assert "default-src 'none'" in found.headers["content-security-policy"]
    (kit.folder / STATUS).unlink()
    assert live_state(kit.folder)["sites"] == {}


def test_the_state_tells_the_model_and_the_training_beside_it(kit: LiveKit) -> None:
    told = live_state(kit.folder)
    assert (told["model"], told["method"], told["round"]) == (RUN, "cnfgnn-private", 3)
    assert (told["switches"], told["trainings"], told["training"], told["rollback_to"]) == (
        [],
        [],
        None,
        None,
    )
    kit.train()
    training = live_state(kit.folder)["training"]
    assert (training["round"], training["rounds"]) == (2, 5)
    kit.train(state="failed", problem="no site answered")
    told = live_state(kit.folder)
    assert (told["training"], told["training_problem"]) == (None, "no site answered")
    kit.switch()
    kit.train(state="failed", problem="an older one", began=1.0)
    told = live_state(kit.folder)
    assert (told["model"], told["rollback_to"], told["training_problem"]) == (NEW, RUN, None)
    assert [switch["why"] for switch in told["switches"]] == [VERDICT]
    assert [training["outcome"] for training in told["trainings"]] == ["better"]
    kit.write(process={"pid": 2**22 + 1, "created": 0.0})
    told = live_state(kit.folder)
    assert told["state"] == "the server's task does not run"
    assert not any(site["reachable"] for site in told["sites"].values())


def test_events_tell_the_state_as_it_changes_and_every_switch(kit: LiveKit) -> None:
    with LivePage(kit.folder, "127.0.0.1", 0) as page:
        connection = http.client.HTTPConnection(page.address.removeprefix("http://"), timeout=240)
        connection.request("GET", "/events", headers=Client(page.address, page.token).headers)
        stream = connection.getresponse()
        assert next_event(stream, "status")["steps"] == 41
        kit.switch()
        switch = next_event(stream, "switch")
        assert (switch["before"], switch["after"], switch["why"]) == (RUN, NEW, VERDICT)
        kit.models.rollback("rollback")
        assert next_event(stream, "switch")["after"] == RUN
        kit.steps = 42
        kit.write()
        while next_event(stream, "status")["steps"] != 42:
            pass
    assert stream.read() is not None  # the stream ends with the page
    connection.close()


# ---- in words ----------------------------------------------------------------------------------------------


def test_the_command_tells_the_model_its_switch_and_the_training(
    kit: LiveKit, capsys: pytest.CaptureFixture[str]
) -> None:
    assert live_lines(read_status(kit.folder) or {}) == []  # of another task
    assert live_lines(status_of(kit)) == [
        f"  model: {RUN}, round 3, trained 25 h ago",
        "  new sensors of east: s07",
    ]
    kit.train()
    assert "  training beside it: round 2/5, began 3 min ago" in live_lines(status_of(kit))
    kit.switch()
    kit.train(state="failed", problem="no site answered", began=2e9)
    found = live_lines(status_of(kit))
    assert found[1].endswith(f"ago, {NEW} instead of {RUN}: {VERDICT}")
    assert "  the last training failed: no site answered" in found
    assert f"  last training: better, {NEW}: {VERDICT}" in found
    kit.away = {"west": "cannot be reached (no answer)"}
    kit.write()
    task = task_status(status_of(kit))
    progress.out().print(sites_table(task), status_view(task))
    shown = " ".join(capsys.readouterr().out.split())
    for words in ("5 of 8", "some readings", "79.5 %", "not told", "14 ms", "cannot be"):
        assert words in shown
    assert str(SECRET) not in shown


def test_lines_of_the_command_tell_each_switch_once(kit: LiveKit, capsys: pytest.CaptureFixture[str]) -> None:
    lines = SiteLines()
    lines(status_of(kit))
    kit.switch()
    for _ in range(2):
        lines(status_of(kit))
    lines.end()
    assert capsys.readouterr().err.count(f"{NEW} is live instead of {RUN}: {VERDICT}") == 1


def test_a_site_tells_its_owner_how_its_service_is() -> None:
    health = {
        "status": "ok",
        "step": "2024-01-31T08:20:00Z",
        "quality": {"full": 11, "fallback": 1},
        "alarms": 1,
    }
    live = {"address": "http://127.0.0.1:8707", "health": health, "model": "one, round 3", "switch": None}
    assert service_lines(live) == [
        "ok: newest forecast after 2024-01-31T08:20:00Z (11 full, 1 fallback), 1 alarm",
        "model: one, round 3",
    ]
    switch = {"time": "2024-01-30T04:00:00Z", "from": "zero", "to": "one, round 3", "why": "better"}
    degraded = {"status": "degraded", "problems": {"disk": "it is full"}, **health, "server": "unreachable"}
    assert service_lines({**live, "health": degraded, "switch": switch})[1:] == [
        "the server cannot be reached: the site goes on by itself",
        "disk: it is full",
        "model: one, round 3",
        "last switch: 2024-01-30T04:00:00Z, from zero: better",
    ]
    refused = {"lines": 4, "last": ["readings.csv, line 7: 1 fields, but the header has 3"]}
    assert service_lines({**live, "health": {**health, "refused": refused}})[1] == (
        "lines of files that are refused: 4, the last: readings.csv, line 7: 1 fields, but the header has 3"
    )
    assert service_lines({**live, "health": None})[0] == "it does not answer"
    assert service_lines({**live, "health": {"status": "starting"}})[0] == "starting: no forecast yet"


# ---- in a browser ------------------------------------------------------------------------------------------


@needs_browser
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_the_page_follows_the_federation(
    driver: Any, kit: LiveKit, width: int, dark: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("selenium.webdriver")
    monkeypatch.setattr(server_status, "OLD_AFTER", 1e6)  # the kit's status is written once
    page = BrowserWindow(driver)
    page.complaints()  # of another test
    with LivePage(kit.folder, "127.0.0.1", 0, retrain_every=86_400.0) as served:
        page.resize(width, 900, dark)
        page.driver.get(Client(served.address, served.token).link)
        page.until(lambda: len(page.texts(".site")) == len(SENSORS))
        tiles = "".join(page.texts(".tile"))
        for words in (
            "4 of 4all are there",
            "28 of 31",
            "85 ms",
            "79.5 %",
            "told by 1 of 4 sites",
            "no switch so far",
        ):
            assert words in tiles
        assert "Readings for 08:205 of 8" in "".join(page.texts(".site"))
        model = dict(zip(page.texts("#model dt"), page.texts("#model dd"), strict=True))
        assert (model["Run"], model["Trained"], model["Trains again"]) == (RUN, "25 h ago", "every 1 day")
        kit.train()
        page.until(lambda: "round 2 of 5" in page.texts("#under-way-text")[0])
        kit.switch()
        kit.away = {"west": "cannot be reached (no answer)"}
        kit.write()
        page.until(lambda: page.texts("#switches b") == [f"{RUN} → {NEW}"])
        assert page.texts("#said") == [f"Model {NEW} is in use instead of {RUN}."]
        page.until(lambda: page.js("return document.title") == "(1 away) Live federation")
        assert page.texts("#trainings .badge") == ["better"]
        assert page.texts(".site .why") == ["cannot be reached (no answer)"]
        assert not page.js(WIDER_THAN_THE_WINDOW)
        kit.write(state="stopped")
        page.until(lambda: "does not run" in page.texts("#banner-text")[0])
    page.until(lambda: "does not answer" in page.texts("#banner-text")[0])
    assert all("ERR_CONNECTION" in line or "ERR_INCOMPLETE" in line for line in page.complaints())
    page.driver.get("about:blank")


@needs_browser
def test_the_page_asks_for_the_token(driver: Any, kit: LiveKit) -> None:
    pytest.importorskip("selenium.webdriver")
    page = BrowserWindow(driver)
    with LivePage(kit.folder, "127.0.0.1", 0) as served:
        page.driver.get(served.address)
        page.until(lambda: page.js("return document.getElementById('token-dialog').open"))
        page.find("#token").send_keys("not the token of this server\n")
        page.until(lambda: page.js("return !document.getElementById('token-wrong').hidden"))
        page.find("#token").send_keys(f"{served.token}\n")
        page.until(lambda: len(page.texts(".site")) == len(SENSORS))
    page.complaints()
    page.js("sessionStorage.clear()")
    page.driver.get("about:blank")
