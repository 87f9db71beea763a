"""What the page is made of, and what it asks the service for."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cnfgnn.config.settings import DataConfig
from cnfgnn.live.intake.clock import FeedClock, Zone
from cnfgnn.live.intake.recent import RecentReadings
from cnfgnn.live.web import page_files
from cnfgnn.live.web.sensors import MOST_EDGES, MOST_STEPS, SensorList
from tests.conftest import network
from tests.live.small_service import KNOWN, Client, SmallRun
from tests.waiting import wait_for

OWN = Path(page_files.__file__).parent / "assets"


def asked(client: Client, path: str) -> dict[str, object]:
    answer = client.get(path)
    assert answer.status == 200, answer.body
    return dict(answer.json)


# ---- files ------------------------------------------------------------------------------------------------


def test_the_page_and_its_files_need_no_token_and_bring_their_rules(client: Client) -> None:
    for path in page_files.ASSETS:
        answer = client.without_token().get(path)
        assert answer.status == 200
        rules = answer.headers["content-security-policy"]
        assert "default-src 'none'; script-src 'self'" in rules
        assert "unsafe" not in rules
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert client.get("/").headers["content-type"] == "text/html; charset=utf-8"
    assert client.get("/page/main.js").headers["content-type"] == "text/javascript; charset=utf-8"


def test_what_is_no_file_of_the_page_needs_the_token(client: Client) -> None:
    for path in (
        "/page",
        "/page/",
        "/page/page_files.py",
        "/page/../health",
        "/page/%2e%2e/sensors.py",
        "/sensors",
    ):
        assert client.without_token().get(path).status == 401
        if path != "/sensors":
            assert client.get(path).status == 404


def test_every_file_is_served_and_every_file_that_is_asked_for_is_there() -> None:
    assert {path.name for path in OWN.iterdir()} == {
        source.name for source, _ in page_files.ASSETS.values() if source.name not in OF_REPORTS
    }
    assert sum(len(source.read_bytes()) for source, _ in page_files.ASSETS.values()) < 100_000
    for source, _ in page_files.ASSETS.values():
        text = source.read_text(encoding="utf-8")
        for name in re.findall(r'(?:href|src)="(page/[^"]*)"', text):
            assert f"/{name}" in page_files.ASSETS, (source, name)
        for name in re.findall(r'^(?:import|export) [^;]*"\./([^"]+)";', text, re.MULTILINE):
            assert f"/page/{name}" in page_files.ASSETS, (source, name)


OF_REPORTS = ("page.css", "theme.js", "colours.js", "sensor_map.js")


def test_nothing_is_loaded_from_elsewhere_and_nothing_is_made_from_text() -> None:
    assert sum(len(source.read_bytes()) for source, _ in page_files.ASSETS.values()) < 100_000
    for source, _ in page_files.ASSETS.values():
        text = source.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(
            r"https?://|//[a-z]+\.|innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", text
        )
        if source.name == "index.html":
            assert not re.search(r"\son\w+=|\sstyle=|<style|<script>", text)


# ---- sensors ----------------------------------------------------------------------------------------------


def test_sensors_are_told_with_their_places_and_last_readings(client: Client, small_run: SmallRun) -> None:
    told = asked(client, "/sensors?steps=100")
    readings = small_run.data.readings
    assert [sensor["id"] for sensor in told["sensors"]] == list(readings.ids)  # type: ignore[attr-defined]
    assert told["times"] == [str(time) for time in readings.times[KNOWN - 100 : KNOWN]]
    assert (told["step"], told["speed"]) == (300, 100.0)
    assert readings.positions is not None
    for column, sensor in enumerate(told["sensors"]):  # type: ignore[arg-type,var-annotated]
        known = [np.nan if value is None else value for value in sensor["readings"]]
        np.testing.assert_allclose(known, readings.values[KNOWN - 100 : KNOWN, column], atol=1e-4)
        place = [sensor["latitude"], sensor["longitude"]]
        np.testing.assert_allclose(place, readings.positions[column], atol=1e-6)
    pairs = {frozenset(pair) for pair in told["edges"]}  # type: ignore[attr-defined]
    graph = small_run.data.graph
    both = zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True)
    assert pairs == {frozenset(pair) for pair in both if pair[0] != pair[1]}
    low, high = told["range"]  # type: ignore[misc]
    assert np.nanmin(readings.values[:KNOWN]) < low < high < np.nanmax(readings.values[:KNOWN])


def test_one_sensor_is_told_without_what_concerns_all(client: Client) -> None:
    told = asked(client, "/sensors?sensor=s3")
    assert [sensor["id"] for sensor in told["sensors"]] == ["s3"]  # type: ignore[attr-defined]
    assert len(told["sensors"][0]["readings"]) == len(told["times"]) == MOST_STEPS  # type: ignore[index,arg-type]
    assert not {"edges", "range"} & set(told)


@pytest.mark.parametrize("steps", ["0", "289", "-1", "many", "", "1e1", "9" * 40, "%C2%B2"])
def test_a_wrong_number_of_steps_is_named(client: Client, steps: str) -> None:
    answer = client.get(f"/sensors?steps={steps}")
    assert (answer.status, answer.json["error"].split(",")[0]) == (400, "steps must be from 1 to 288")


def test_an_unknown_sensor_is_named(client: Client) -> None:
    answer = client.get("/sensors?sensor=s99")
    assert (answer.status, answer.json["error"]) == (404, "there is no sensor 's99'")


def listed(sensors: int = 6, located: bool = True, zeros_missing: bool = False) -> SensorList:
    data = network(sensors, 150)
    recent = RecentReadings(data.readings, 200, zeros_missing)
    positions = data.readings.positions if located else None
    clock, config = FeedClock(recent.newest, 300), replace(DataConfig(), missing_value=-1.0)
    return SensorList(recent, clock, Zone(utc=True), data.graph, positions, config)


def test_sensors_without_positions_are_placed_by_their_edges() -> None:
    found = listed(located=False)
    told = json.loads(found.json(found.readings(None, 1), whole=True))
    points = np.array([[sensor["x"], sensor["y"]] for sensor in told["sensors"]])
    assert all(sensor["latitude"] is None and sensor["longitude"] is None for sensor in told["sensors"])
    assert np.linalg.norm(points[:, None] - points[None], axis=-1)[np.triu_indices(6, 1)].min() > 0.05


def test_what_means_no_reading_is_not_told_as_one() -> None:
    found = listed(zeros_missing=True)
    found.recent._values[-2:, 0] = [0.0, -1.0]
    readings = found.readings({"s0"}, 2)
    assert readings.missing.tolist() == [[True], [True]]
    assert b'"readings":[null,null]' in found.json(readings, whole=False)


def test_a_graph_with_too_many_edges_is_told_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(listed()._edges) == 5 < MOST_EDGES
    monkeypatch.setattr("cnfgnn.live.web.sensors.MOST_EDGES", 4)
    assert len(listed()._edges) == 0


def test_a_sensor_that_sends_is_told_at_once(client: Client, small_run: SmallRun) -> None:
    sent = small_run.full_row(KNOWN)
    assert client.post(sent).status == 200

    def newest() -> object:
        told = asked(client, "/sensors?sensor=s2&steps=1")
        return told["times"] == [sent["time"]] and told["sensors"][0]["readings"]  # type: ignore[index]

    value = wait_for(newest, "the reading")
    assert value == [pytest.approx(sent["values"]["s2"], abs=1e-4)]
