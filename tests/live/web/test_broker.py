"""Readings and forecasts through a real MQTT broker, Debian's mosquitto."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from cnfgnn.errors import StorageError
from cnfgnn.live.forecasting.service import LiveService
from cnfgnn.live.intake.clock import FeedClock, Zone
from cnfgnn.live.intake.intake import Busy, Receipt
from cnfgnn.live.intake.observations import datastream_of
from cnfgnn.live.intake.recent import Arrived, Verdict
from cnfgnn.live.learning.models import Models
from cnfgnn.live.options import FEED, LiveSettings
from cnfgnn.live.web.broker import Broker, topic_of
from tests.live.small_service import KNOWN, LiveCommand, SmallRun, serving
from tests.waiting import WITHIN, wait_for

FOUND = shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
needs_mosquitto = pytest.mark.skipif(
    FOUND is None, reason="mosquitto is not installed (apt-get install mosquitto)"
)


class Mosquitto:
    """A broker on a free port of this machine, which keeps sessions on disk."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.settings = folder / "mosquitto.conf"
        self.settings.write_text(
            f"listener {self.port} 127.0.0.1\nallow_anonymous true\npersistence true\n"
            f"persistence_location {folder}/\nautosave_interval 1\nuser root\n"
        )
        self.start()

    def start(self) -> None:
        assert FOUND is not None
        self.process = subprocess.Popen([FOUND, "-c", str(self.settings)], stderr=subprocess.DEVNULL)
        wait_for(self._answers, "the broker")

    def _answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=30).close()
        except OSError:
            return False
        return True

    def end(self) -> None:
        self.process.terminate()
        self.process.wait()

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self.port}"


class Device:
    """Somebody else at the broker: sends Observations, and listens to forecasts."""

    def __init__(self, broker: Mosquitto) -> None:
        self.heard: dict[str, Any] = {}
        self._subscribed = threading.Event()
        self.client = mqtt.Client(CallbackAPIVersion.VERSION2, "device")
        self.client.on_connect = lambda client, *_: client.subscribe("cnfgnn/#", qos=1)
        self.client.on_subscribe = lambda *_: self._subscribed.set()
        self.client.on_message = self._message
        self.client.connect("127.0.0.1", broker.port)
        self.client.loop_start()
        assert self._subscribed.wait(240)

    def _message(self, client: mqtt.Client, _: object, message: mqtt.MQTTMessage) -> None:
        text = message.payload.decode()
        self.heard[message.topic] = text if message.topic == "cnfgnn/status" else json.loads(text)

    def forecast(self, sensor: str) -> Any:
        return self.heard.get(f"cnfgnn/v1.1/Datastreams({sensor})/Observations")

    def send(self, sensor: str, time: str, value: object) -> None:
        observation = {"phenomenonTime": time, "result": value}
        topic = f"v1.1/Datastreams({sensor})/Observations"
        self.client.publish(topic, json.dumps(observation), qos=1).wait_for_publish(240)

    def send_row(self, sent: dict[str, Any]) -> None:
        for sensor, value in sent["values"].items():
            self.send(sensor, sent["time"], value)

    def end(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Mosquitto]:
    made = Mosquitto(tmp_path)
    yield made
    made.end()


@pytest.fixture
def device(broker: Mosquitto) -> Iterator[Device]:
    made = Device(broker)
    yield made
    made.end()


@needs_mosquitto
def test_observations_go_in_and_forecasts_come_out(
    small_run: SmallRun, tmp_path: Path, broker: Mosquitto, device: Device
) -> None:
    settings = LiveSettings(data=small_run.folder, state=tmp_path / "state", clock=FEED, mqtt=broker.url)
    with serving(small_run.run, settings) as (_, client):
        wait_for(lambda: device.heard.get("cnfgnn/status") == "online", "the service at the broker")
        for bad in (b"\\xff", b"{", b"[1]", b'{"result": "wet"}', b'{"result": {}}'):
            device.client.publish("v1.1/Datastreams(s1)/Observations", bad, qos=1)
        sent = small_run.full_row(KNOWN)
        device.send_row(sent)
        last_step = client.forecast_after(sent["time"])
        about = f"{last_step['times'][0]}/{last_step['times'][-1]}"
        wait_for(lambda: (device.forecast("s0") or {}).get("phenomenonTime") == about, "a forecast")
        found = device.forecast("s0")
        assert found["resultTime"] == last_step["made"]
        assert found["validTime"] == f"{last_step['made']}/{last_step['validUntil']}"
        assert found["Datastream"] == {"@iot.id": "s0"}
        assert found["parameters"]["quality"] == "full"
        assert found["result"] == last_step["sensors"]["s0"]["values"]
        assert found["parameters"]["intervals"] == last_step["sensors"]["s0"]["intervals"]
        # A sensor that was silent for hours has a reading now.
        wait_for(lambda: device.heard.get("cnfgnn/alarms") == {"alarms": []}, "the end of its alarm")
        Models(small_run.run.folder, tmp_path / "state").switch("gone", "better")
        wait_for(lambda: device.heard.get("cnfgnn/switches"), "the way back from a missing model")
        assert device.heard["cnfgnn/switches"] == client.get("/model").json["switches"][-1]
    wait_for(lambda: device.heard.get("cnfgnn/status") == "offline", "its farewell")


@needs_mosquitto
@pytest.mark.slow
def test_a_broker_that_dies_and_comes_back_is_used_again(
    small_run: SmallRun, tmp_path: Path, broker: Mosquitto, caplog: pytest.LogCaptureFixture
) -> None:
    settings = LiveSettings(data=small_run.folder, state=tmp_path / "state", clock=FEED, mqtt=broker.url)
    with serving(small_run.run, settings) as (_, client):
        wait_for(lambda: client.get("/health").json["status"] == "ok", "the broker")
        broker.process.kill()
        broker.process.wait()
        wait_for(lambda: client.get("/health").json["status"] == "degraded", "the loss")
        told = client.get("/health").json["problems"]["broker"]
        assert told.endswith("cannot be reached") or " is lost (" in told
        assert caplog.text.count("broker: ") == 1
        client.post(small_run.full_row(KNOWN))  # the other ways in and out still work
        client.forecast_after(small_run.row(KNOWN)["time"])
        broker.start()
        wait_for(lambda: client.get("/health").json["status"] == "ok", "the broker again")
        assert caplog.text.count("broker: ") == 2
        assert f"broker: 127.0.0.1:{broker.port} is connected again" in caplog.text
        device = Device(broker)
        try:
            device.send_row(small_run.full_row(KNOWN + 1))
            client.forecast_after(small_run.row(KNOWN + 1)["time"])
        finally:
            device.end()


@needs_mosquitto
@pytest.mark.slow
def test_readings_sent_while_the_service_is_dead_arrive_when_it_is_back(
    small_run: SmallRun, tmp_path: Path, broker: Mosquitto, device: Device
) -> None:
    def started() -> LiveCommand:
        state = ("--state", tmp_path / "state", "--clock", "feed", "--mqtt", broker.url)
        return LiveCommand(small_run.run.folder, "--data", small_run.folder, *state)

    service = started()
    wait_for(lambda: device.heard.get("cnfgnn/status") == "online", "the service at the broker")
    wait_for(lambda: service.client.get("/health").json["status"] == "ok", "its subscription")
    service.end(signal.SIGKILL)
    wait_for(lambda: device.heard.get("cnfgnn/status") == "offline", "its last will")
    sent = small_run.full_row(KNOWN)
    device.send_row(sent)
    service = started()
    try:
        found = service.client.forecast_after(sent["time"])
        assert {told["lastReading"] for told in found["sensors"].values()} == {sent["time"]}
    finally:
        service.end()


def test_a_topic_names_its_sensor() -> None:
    assert datastream_of("v1.1/Datastreams(s1)/Observations") == "s1"
    assert datastream_of("v1.1/Datastreams('s (1)')/Observations") == "s (1)"
    assert datastream_of("home/speed/s1") == "s1"
    assert topic_of("city/out", "a/b#1") == "city/out/v1.1/Datastreams(a_b_1)/Observations"


def test_a_message_is_kept_until_it_can_be_stored_and_what_it_was_refused_for_is_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise the broker waits for acknowledgements that never come, and sends nothing more."""
    monkeypatch.setattr("cnfgnn.live.web.broker.AGAIN_AFTER", 0.01)
    failures: list[Exception] = [StorageError(Path("live.sqlite"), OSError(28, "No space left")), Busy()]
    stored, acknowledged = list[float | None](), list[int]()

    async def take(arrived: Sequence[Arrived], source: str) -> Receipt:
        if failures:
            raise failures.pop(0)
        stored.append(arrived[0].value)
        return Receipt(refusals=[(arrived[0], Verdict.UNKNOWN_SENSOR)])

    async def test() -> None:
        problems: dict[str, str] = {}
        service = SimpleNamespace(
            take=take,
            zone=Zone(utc=True),
            clock=FeedClock(0, 300),
            problems=problems,
            failed=lambda part, error: problems.update({part: str(error)}),
        )
        options = LiveSettings(mqtt="mqtt://127.0.0.1:1")
        broker = Broker(cast(LiveService, service), options, "test")
        broker.loop = asyncio.get_running_loop()
        monkeypatch.setattr(broker.client, "ack", lambda mid, qos: acknowledged.append(mid))
        messages = [mqtt.MQTTMessage(number, b"v1.1/Datastreams(zz)/Observations") for number in range(4)]
        for number, message in enumerate(messages):
            message.payload = str(number).encode()
            broker._message(broker.client, None, message)
            if number == 0:  # the broker sends it again, with the number that it had
                broker._connections += 1
        while len(stored) < len(messages):
            await asyncio.sleep(0)
        await asyncio.gather(*broker._tasks)
        assert problems == {}

    asyncio.run(asyncio.wait_for(test(), WITHIN))
    assert stored == [0, 1, 2, 3]
    assert acknowledged == [1, 2, 3]
    assert (
        "mqtt, v1.1/Datastreams(zz)/Observations: a reading of 'zz' is refused: unknown sensor" in caplog.text
    )
