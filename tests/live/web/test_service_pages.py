"""Readings in and forecasts out over HTTP; whatever is malformed gets a sentence, and the service goes on."""

from __future__ import annotations

import csv
import http.client
import io
import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cnfgnn.errors import CnfgnnError, RunError, StorageError
from cnfgnn.live.options import FEED, LiveSettings
from cnfgnn.live.start import LiveProcess
from cnfgnn.live.web import pages
from cnfgnn.live.web.service_pages import Rate
from tests.conftest import HORIZON
from tests.live.small_service import KNOWN, Client, SmallRun, check_forecast, serving
from tests.waiting import wait_for


@pytest.fixture
def new_service(
    small_run: SmallRun, settings: LiveSettings, tmp_path: Path
) -> Iterator[tuple[LiveProcess, Client]]:
    """One that no other test has sent anything to: which tests came before depends on the worker."""
    with serving(small_run.run, replace(settings, state=tmp_path / "state")) as (process, client):
        wait_for(lambda: client.get("/forecasts").status == 200, "the first forecast")
        yield process, client


def newest(client: Client) -> str:
    return str(client.get("/forecasts").json["step"])


# ---- forecasts --------------------------------------------------------------------------------------------


def test_readings_that_are_sent_give_the_forecasts_of_the_command(
    small_run: SmallRun, tmp_path: Path
) -> None:
    settings = LiveSettings(data=small_run.folder, state=tmp_path, clock=FEED, deadline=1, speed=100)
    with serving(small_run.run, settings) as (_, client):
        for row in range(KNOWN, KNOWN + 6):
            sent = small_run.row(row)
            assert client.post(sent).json["stored"] == len(sent["values"])
            found = client.forecast_after(sent["time"])
            expected = check_forecast(found, small_run.run, small_run.until(row + 1))
        assert found["times"] == [str(t.to_datetime64().astype("datetime64[s]")) for t in expected.index]


def test_forecasts_say_how_old_they_are_and_until_when_they_may_be_used(
    new_service: tuple[LiveProcess, Client],
) -> None:
    made = new_service[1].get("/forecasts").json
    assert set(made) == {"step", "made", "lastReading", "validUntil", "times", "stale", "sensors"}
    assert made["stale"] is False
    assert made["step"] <= made["made"] < made["validUntil"]
    assert len(made["times"]) == HORIZON
    told = made["sensors"]["s0"]
    assert set(told) == {"quality", "lastReading", "values", "intervals"}


def test_csv_has_the_same_forecasts_as_json(client: Client) -> None:
    made = client.get("/forecasts").json
    for answer in (client.get("/forecasts?format=csv"), client.get("/forecasts", Accept="text/csv")):
        assert answer.headers["content-type"] == "text/csv; charset=utf-8"
        rows = list(csv.DictReader(io.StringIO(answer.body.decode())))
        assert len(rows) == 6 * HORIZON
        for row in rows:
            ahead = made["times"].index(row["time"])
            assert float(row["forecast"]) == made["sensors"][row["sensor"]]["values"][ahead]
            assert row["quality"] == made["sensors"][row["sensor"]]["quality"]
            assert (row["made"], row["valid_until"]) == (made["made"], made["validUntil"])
            assert row["stale"] == "no"
            intervals = made["sensors"][row["sensor"]].get("intervals", {})
            for level in ("80", "95"):
                for side in ("low", "high"):
                    told = str(row[f"{side}_{level}"])
                    assert (float(told) if told else None) == (
                        intervals[level][side][ahead] if intervals else None
                    )


def test_some_sensors_can_be_asked_for(client: Client) -> None:
    found = client.get("/forecasts?sensor=s1&sensor=s3")
    assert list(found.json["sensors"]) == ["s1", "s3"]
    lines = client.get("/forecasts?sensor=s1&format=csv").body.decode().splitlines()
    assert len(lines) == 1 + HORIZON


def test_events_tell_every_forecast_the_moment_it_is_made(
    served: tuple[LiveProcess, Client], small_run: SmallRun
) -> None:
    client = served[1]
    connection = http.client.HTTPConnection(client.host, timeout=240)
    connection.request("GET", "/events", headers=client.headers)
    stream = connection.getresponse()
    assert stream.headers["content-type"] == "text/event-stream; charset=utf-8"
    first = next_event(stream)
    assert first["step"] == newest(client)
    sent = small_run.row(KNOWN + 1)
    client.post(sent)
    while (step := next_event(stream)["step"]) != sent["time"]:
        assert step < sent["time"]  # the step before it, whose deadline has passed
    connection.close()
    wait_for(lambda: b"cnfgnn_live_streams 0.0" in client.get("/metrics").body, "the stream's end")


def next_event(stream: http.client.HTTPResponse, kind: str = "forecast") -> dict[str, object]:
    name = ""
    while True:
        line = stream.readline()
        assert line, "the stream has ended"
        if line.startswith(b"event: "):
            name = line.removeprefix(b"event: ").decode().strip()
        if line.startswith(b"data: ") and name == kind:
            return dict(json.loads(line.removeprefix(b"data: ")))


# ---- readings ---------------------------------------------------------------------------------------------


def test_json_and_csv_of_every_kind_are_understood(
    new_service: tuple[LiveProcess, Client], small_run: SmallRun
) -> None:
    process, client = new_service
    moment = small_run.row(KNOWN + 10)["time"]
    observation = {"phenomenonTime": moment, "result": 42.0, "Datastream": {"@iot.id": "s2"}}
    kinds = [
        {"sensor": "s0", "time": moment, "value": 40.0},
        [{"time": moment, "values": {"s1": 41.0}}, observation],
        {"readings": [{"sensor": "s3", "time": moment, "value": "43.5"}]},
    ]
    for kind in kinds:
        assert client.post(kind).json["stored"] > 0
    assert client.post(f"time,s4,s5\n{moment},44.0,\n", "text/csv").json["stored"] == 1
    long = f"time,sensor,value\n{moment},s5,45.0\n{moment},s4,44.0\n"
    answer = client.post(long, "text/csv; charset=utf-8").json
    assert (answer["stored"], answer["repeated"]) == (1, 1)
    client.forecast_after(moment)
    known = process.service.recent.until(process.service.recent.newest).values[-1]
    assert known.tolist() == [40.0, 41.0, 42.0, 43.5, 44.0, 45.0]


@pytest.mark.parametrize(
    ("reading", "reason"),
    [
        ({"sensor": "s9", "value": 50.0}, "unknown sensor"),
        ({"sensor": "s1", "value": "fifty"}, "not a number"),
        ({"sensor": "s1", "value": [1]}, "not a number"),
        ({"sensor": "s1", "value": True}, "not a number"),
        ({"sensor": "s1", "value": 1e40}, "not plausible"),
        ({"sensor": "s1", "value": 1e400}, "not a number"),
        ({"sensor": "s1", "time": "yesterday", "value": 50.0}, "no valid time"),
        ({"sensor": "s1", "time": [], "value": 50.0}, "no valid time"),
        ({"sensor": "s1", "time": "2091-01-01T00:00:00", "value": 50.0}, "from the future"),
        ({"sensor": "s1", "time": 1e300, "value": 50.0}, "from the future"),
        ({"sensor": "s1", "time": "2001-01-01T00:00:00", "value": 50.0}, "too old"),
    ],
)
def test_a_reading_that_cannot_be_used_is_refused_with_a_reason(
    client: Client, reading: dict[str, object], reason: str
) -> None:
    before = newest(client)
    answer = client.post(json.dumps({"time": before} | reading))
    assert answer.status == 422
    assert answer.json["refused"][0]["reason"] == reason
    assert answer.json["error"].startswith("none of 1 readings could be used")
    assert newest(client) == before


def test_readings_that_can_be_used_are_taken_although_others_cannot(
    client: Client, small_run: SmallRun
) -> None:
    sent = small_run.row(KNOWN + 11)
    answer = client.post(sent | {"values": sent["values"] | {"s9": 1.0, "s0": "wet", "s1": None}})
    assert answer.status == 200
    assert answer.json["stored"] == len(set(sent["values"]) - {"s0", "s1"})
    assert {refused["reason"] for refused in answer.json["refused"]} == {"unknown sensor", "not a number"}
    assert answer.json["empty"] == 1


@pytest.mark.parametrize(
    ("body", "kind", "status", "says"),
    [
        (b"", "application/json", 400, "the body is not JSON"),
        (b"{", "application/json", 400, "the body is not JSON"),
        (b"\xff\xfe", "application/json", 400, "the body is not JSON"),
        (b"[" * 100_000, "application/json", 400, "the body is not JSON"),
        (b"7", "application/json", 400, "a reading must be an object like"),
        (b'{"speed": 50}', "application/json", 400, "a reading must be an object like"),
        (b'{"value": 50}', "application/json", 400, "a reading must name its sensor"),
        (b'{"result": 50}', "application/json", 400, "an Observation must name its sensor"),
        (b"", "text/csv", 400, "the body: the file is empty"),
        (b"time,s1\n2024-01-01 10:05,wet\n", "text/csv", 400, "the body, line 2, column 's1'"),
        (b"\x00\x01\x02", "text/csv", 400, "the body"),
        (b"50", "text/plain", 415, "send readings as application/json or text/csv, not as text/plain"),
    ],
)
def test_a_malformed_body_gets_a_sentence(
    client: Client, body: bytes, kind: str, status: int, says: str
) -> None:
    answer = client.post(body, kind)
    assert answer.status == status
    assert answer.json["error"].startswith(says)
    assert "/tmp" not in answer.json["error"]


@pytest.mark.parametrize(
    ("method", "path", "status", "says"),
    [
        ("GET", "/nothing", 404, "there is nothing at /nothing"),
        ("GET", "/readings", 405, "/readings does not take GET"),
        ("POST", "/forecasts", 405, "/forecasts does not take POST"),
        ("GET", "/forecasts?format=xml", 400, "format must be json or csv, not 'xml'"),
        ("GET", "/forecasts?sensor=s9", 404, "there is no sensor 's9'"),
    ],
)
def test_a_request_that_makes_no_sense_gets_a_sentence(
    client: Client, method: str, path: str, status: int, says: str
) -> None:
    answer = client.ask(method, path)
    assert (answer.status, answer.json) == (status, {"error": says})


def test_a_request_that_is_not_http_does_not_stop_the_service(client: Client) -> None:
    host, port = client.host.split(":")
    with socket.create_connection((host, int(port)), timeout=240) as raw:
        raw.sendall(b"\x16\x03\x01 not http at all\r\n\r\n")
        assert raw.recv(1000).startswith(b"HTTP/1.1 400")
    assert client.get("/health").status == 200


# ---- limits -----------------------------------------------------------------------------------------------


def test_an_upload_is_bounded_in_size(
    small_run: SmallRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cnfgnn.live.web.service_pages.MOST_BYTES", 1000)
    settings = LiveSettings(data=small_run.folder, state=tmp_path, clock=FEED)
    with serving(small_run.run, settings) as (_, client):
        assert client.post(b" " * 1001).status == 413
        host, port = client.host.split(":")
        with socket.create_connection((host, int(port)), timeout=240) as raw:  # its length is not declared
            headers = {"Host": "localhost", "Transfer-Encoding": "chunked", "Content-Type": "text/csv"}
            lines = [f"{name}: {value}" for name, value in (headers | client.headers).items()]
            raw.sendall("\r\n".join(["POST /readings HTTP/1.1", *lines, "", ""]).encode())
            raw.sendall(b"3e9\r\n" + b" " * 1001 + b"\r\n0\r\n\r\n")
            assert raw.recv(1000).startswith(b"HTTP/1.1 413")


def test_connections_without_a_request_are_bounded_in_time_and_number(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, port = client.host.split(":")
    head = b"POST /readings HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n"

    def closed(raw: socket.socket, drip: bytes) -> bool:
        try:
            raw.sendall(drip)
            return not raw.recv(1000)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def opened(sent: bytes) -> socket.socket:
        raw = socket.create_connection((host, int(port)), timeout=240)
        raw.sendall(sent)
        raw.setblocking(False)
        return raw

    monkeypatch.setattr(pages, "MOST_WITHOUT_HEAD", 5)
    slow = [opened(head) for _ in range(12)]
    wait_for(lambda: sum(closed(raw, b"") for raw in slow) == 7, "all but five to be closed")
    assert client.get("/health").status == 200
    monkeypatch.setattr(pages, "HEAD_WITHIN", 0.2)
    slow += [opened(head), opened(head + b"\r\n")]  # the second gets its answer, and sends on
    wait_for(lambda: all(closed(raw, b"a") for raw in slow[-2:]), "one that sends a byte at a time")
    for raw in slow:
        raw.close()


def test_uploads_are_bounded_in_rate(
    served: tuple[LiveProcess, Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    process, client = served
    monkeypatch.setattr(process.web, "uploads", Rate(0.001, 2))
    answers = [client.post({"sensor": "s0", "value": None}) for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 429]
    assert answers[2].json["error"].startswith("more than")
    assert answers[2].headers["retry-after"] == "1"


@pytest.mark.parametrize(
    "problem", [RunError("live.sqlite", "is damaged"), StorageError("live.sqlite", "ro")]
)
def test_readings_that_are_not_on_disk_are_not_acknowledged(
    served: tuple[LiveProcess, Client], monkeypatch: pytest.MonkeyPatch, problem: CnfgnnError
) -> None:
    process, client = served
    sent = {"sensor": "s0", "time": newest(client), "value": 12.5 + problem.exit_code}

    def broken(*_: object) -> None:
        raise problem

    with monkeypatch.context() as patched:
        patched.setattr(process.service.store, "write", broken)
        answer = client.post(sent)
    assert answer.status == 507
    assert answer.json == {"error": f"the readings were not taken: {problem}"}
    assert client.get("/health").json["problems"]["disk"] == str(problem)
    assert client.get("/health", Authorization="").json.keys() == {"status"}
    assert client.post(sent).status == 200
    assert "disk" not in client.get("/health").json.get("problems", {})


def test_a_rate_admits_a_burst_and_then_so_many_a_second() -> None:
    now = [0.0]
    rate = Rate(10, 3, lambda: now[0])
    assert [rate.admits() for _ in range(4)] == [True, True, True, False]
    now[0] = 0.1
    assert [rate.admits() for _ in range(2)] == [True, False]
    now[0] = 100.0
    assert [rate.admits() for _ in range(4)] == [True, True, True, False]


# ---- what is in use ---------------------------------------------------------------------------------------


def test_a_port_that_is_taken_is_named(small_run: SmallRun, tmp_path: Path, client: Client) -> None:
    port = int(client.host.split(":")[1])
    settings = LiveSettings(data=small_run.folder, state=tmp_path, clock=FEED, port=port)
    with pytest.raises(RunError, match=f"port {port} cannot be opened .* choose another one with --port"):
        LiveProcess(small_run.run, settings)


def test_two_services_do_not_share_a_state(
    small_run: SmallRun, settings: LiveSettings, client: Client
) -> None:
    with pytest.raises(RunError, match="is in use by the live service of process"):
        LiveProcess(small_run.run, replace(settings, port=0))


# ---- health and metrics -----------------------------------------------------------------------------------


def test_health_says_how_the_forecast_is_and_no_reading(client: Client) -> None:
    answer = client.get("/health")
    made = client.get("/forecasts").json
    assert answer.status == 200
    assert answer.json["status"] == "ok"
    assert (answer.json["step"], answer.json["validUntil"]) == (made["step"], made["validUntil"])
    assert sum(answer.json["quality"].values()) == answer.json["sensors"] == 6


def test_metrics_are_in_the_format_of_prometheus(client: Client) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    client.post({"sensor": "s9", "value": 50.0})
    answer = client.get("/metrics")
    families = {family.name: family for family in text_string_to_metric_families(answer.body.decode())}
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert families["cnfgnn_live_forecasts"].samples[0].value >= 1
    assert sum(sample.value for sample in families["cnfgnn_live_sensors"].samples) == 6
    assert families["cnfgnn_live_stale"].samples[0].value == 0
    verdicts = {
        s.labels["verdict"]: s.value
        for s in families["cnfgnn_live_readings"].samples
        if s.name.endswith("_total")
    }
    assert verdicts["unknown sensor"] >= 1
    assert families["cnfgnn_live_forecast_seconds"].type == "histogram"
    paths = {sample.labels["path"] for sample in families["cnfgnn_live_http_requests"].samples}
    assert paths <= {"/readings", "/forecasts", "/events", "/sensors", "/health", "/metrics", "other"}


def test_many_ask_at_the_same_time(client: Client, small_run: SmallRun) -> None:
    answers: list[int] = []

    def ask(number: int) -> None:
        answers.append(client.post({"sensor": f"s{number % 6}", "value": 50.0 + number}).status)
        answers.append(client.get("/forecasts").status)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [200] * 48
