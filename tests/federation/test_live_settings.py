"""Settings of a live federation, its page, and what a site answers while its service starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cnfgnn.errors import ConfigError
from cnfgnn.federation.coverage_sums import ToldCoverage, coverage_told
from cnfgnn.federation.project import SiteLive
from cnfgnn.federation.site.live.nodes import LiveSiteNodes, settings_of
from cnfgnn.federation.site.settings import read_site
from cnfgnn.federation.site.status import read_site_status
from cnfgnn.federation.site_task import LiveTerms
from cnfgnn.live.forecasting.watch import Numbers, Report
from cnfgnn.live.web.pages import Door
from tests.waiting import wait_for

TOKEN = "a-token-of-a-live-page"


def site_with(kit: Path, live: str) -> Path:
    (kit / "local").mkdir()
    (kit / "local" / "site.toml").write_text(f'name = "north"\nsensors = ["a"]\n[live]\n{live}\n')
    return kit


def test_a_site_says_where_it_serves(tmp_path: Path) -> None:
    plan = read_site(site_with(tmp_path, 'port = 9000\nmqtt = "mqtt://broker"\npoll = 2\n'))
    assert plan.live == SiteLive(port=9000, mqtt="mqtt://broker", poll=2)
    settings = settings_of(plan, tmp_path, LiveTerms())
    assert settings.mqtt == "mqtt://broker"
    assert (settings.port, settings.client, settings.state) == (9000, "cnfgnn-north", tmp_path / "live")


@pytest.mark.parametrize(
    ("live", "problem"),
    [
        ("ports = 1", "live.ports: unknown key"),
        ('port = "a"', "live.port: it must be a whole number"),
        ("port = 65536", "from 0 to 65535"),
        ("poll = 0", "from 0.05 to 3600"),
        ('mqtt_readings = "a"', "needed with live.mqtt_readings"),
        ('timezone = "Mars"', "live.timezone"),
        ('clock = "sun"', r"live.clock: there is no clock 'sun' \(valid: system, feed\)"),
        ("tell_coverage = 1", "live.tell_coverage: it must be true or false"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(live: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=problem):
        read_site(site_with(tmp_path, live))


def test_a_site_may_choose_the_file_of_its_token(tmp_path: Path) -> None:
    kit = site_with(tmp_path, 'token_file = "mine"')
    settings = settings_of(read_site(kit), kit, LiveTerms())
    assert Path(settings.token_file) == kit / "mine"
    with pytest.raises(ConfigError, match="mine: the token cannot be read"):
        Door(settings.host, 0, settings.token_file, kit / "token")


@pytest.mark.parametrize(
    ("sent", "understood"),
    [
        ({}, LiveTerms()),
        ({"deadline": 30, "feed": True, "speed": 60}, LiveTerms(30.0, True, 60.0)),
        ({"deadline": -1, "feed": 1, "speed": 1e9}, LiveTerms()),
        ({"deadline": "soon", "feed": True, "speed": None}, LiveTerms(None, True, 1.0)),
        ({"deadline": float("nan"), "speed": float("nan"), "feed": True}, LiveTerms(None, True, 1.0)),
    ],
)
def test_a_server_cannot_have_a_site_wait_for_ever(sent: dict[str, Any], understood: LiveTerms) -> None:
    assert LiveTerms.of(sent) == understood


@pytest.mark.parametrize(
    ("own", "told", "problem"),
    [
        ("system", {"feed": True}, "follows recordings, and this site's clock is 'system'"),
        ("feed", {}, "follows the machines' clocks, and this site's clock is 'feed'"),
    ],
)
def test_a_server_cannot_choose_the_clock_of_a_site(
    own: str, told: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    site = LiveSiteNodes(site_with(tmp_path, f'clock = "{own}"'), LiveTerms.of(told))
    wait_for(lambda: "live.clock" in site.problem, "the site to refuse it")
    assert site.describe()["ready"] is False
    assert site.describe()["problem"].startswith("local/site.toml: live.clock: the server's task")
    assert problem in site.describe()["problem"]
    [noted] = read_site_status(tmp_path)["problems"]
    assert problem in noted["problem"]


# ---- coverage that an owner tells --------------------------------------------------------------------------


def report_of(count: int, *inside: int, ranges: bool = True) -> Report:
    sums = np.array([[count, 9.0, 9.0, *inside], [0, 0.0, 0.0, 0, 0]])
    return Report(("a", "b"), sums, ranges, Numbers.of(sums.sum(axis=0), ranges), ())


def test_coverage_changes_once_an_hour_and_is_not_told_twice_in_one(tmp_path: Path) -> None:
    told = ToldCoverage()
    assert not read_site(site_with(tmp_path, "port = 0")).live.tell_coverage
    assert told.at(0, report_of(100, 80, 95)) is None
    assert (
        told.at(7 * 3600, report_of(100, 80, 95)) is None
    )  # it may have told others before it was restarted
    assert told.at(7 * 3600 + 300, report_of(101, 81, 96)) is None
    first = {"count": 102, "80": 82, "95": 97}
    assert told.at(8 * 3600, report_of(102, 82, 97)) == first
    assert told.at(8 * 3600 + 300, report_of(103, 83, 98)) == first
    assert told.at(7 * 3600, report_of(104, 84, 99)) == first  # its clock was ahead
    assert told.at(9 * 3600, report_of(10, 8, 9)) is None  # too few
    assert told.at(10 * 3600, report_of(100, 0, 0, ranges=False)) is None
    assert told.at(11 * 3600, None) is None


@pytest.mark.parametrize(
    ("answer", "used"),
    [
        ({}, None),
        ({"coverage": {"count": 30, "80": 20, "95": 30}}, {"count": 30, "80": 20, "95": 30}),
        ({"coverage": {"count": 30, "80": 20, "95": 31}}, None),
        ({"coverage": {"count": 30, "80": -1, "95": 30}}, None),
        ({"coverage": {"count": 30.0, "80": 20, "95": 30}}, None),
        ({"coverage": {"count": 0, "80": 0, "95": 0}}, None),
        ({"coverage": {"80": 20, "95": 30}}, None),
        ({"coverage": {"count": 30, "80": 20, "95": 30, "60": 1}}, None),
        ({"coverage": [30, 20, 30]}, None),
    ],
)
def test_a_server_uses_sums_only_if_they_can_be_meant(
    answer: dict[str, Any], used: dict[str, int] | None
) -> None:
    assert coverage_told(answer) == used
