"""Readings from an MQTT broker, and forecasts to it, in the shape of OGC SensorThings Observations.

A reading is acknowledged to the broker once it is on disk: one that the service had received but not stored
when it died is delivered again. Forecasts are retained messages, a topic per sensor, so that whoever
subscribes has the last one at once; a status topic says whether the service is there.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import ssl
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import unquote, urlsplit

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from cnfgnn.errors import ConfigError
from cnfgnn.live.forecasting.forecasts import Forecast
from cnfgnn.live.forecasting.service import LiveService
from cnfgnn.live.forecasting.watch import Alarm
from cnfgnn.live.intake.intake import LINES_LOGGED, Busy, Receipt
from cnfgnn.live.intake.observations import MalformedInput, datastream_of, read_json
from cnfgnn.live.intake.recent import Arrived
from cnfgnn.live.options import MOST_BYTES, MQTT_PASSWORD, ServiceOptions

READINGS = "v1.1/+/Observations"
FORECASTS = "cnfgnn"
PORTS = {"mqtt": 1883, "mqtts": 8883}
RECONNECT_WITHIN = 30  # seconds between attempts, at most
AT_ONCE = 1000  # messages that the broker may send before they are acknowledged
AGAIN_AFTER = 5.0  # seconds until messages that could not be stored are tried again

log = logging.getLogger(__name__)


class Broker:
    """The connection to a broker; it comes back by itself, and the service does not wait for it.

    name  the client id: the broker keeps readings for it while the service is away
    """

    def __init__(self, service: LiveService, options: ServiceOptions, name: str) -> None:
        self.service, self.place = service, urlsplit(options.mqtt)
        self.readings, self.forecasts = options.mqtt_readings or READINGS, options.mqtt_forecasts or FORECASTS
        if self.place.scheme not in ("mqtt", "mqtts") or not self.place.hostname:
            problem = f"must be like mqtt://localhost:1883 or mqtts://host, not {options.mqtt!r}"
            raise ConfigError("--mqtt", problem)
        self.client = self._client(name)
        self.address = f"{self.place.hostname}:{self.place.port or PORTS[self.place.scheme]}"
        self._is_lost = False  # and whoever reads the log knows it
        self._publisher = ThreadPoolExecutor(1, "mqtt")
        self._tasks: set[asyncio.Task[None]] = set()
        self._may_store = asyncio.Event()  # not while messages wait for the disk: they stay in order
        self._may_store.set()
        self._connections = 0  # so far

    def _client(self, name: str) -> mqtt.Client:
        place = self.place
        client = mqtt.Client(CallbackAPIVersion.VERSION2, name, clean_session=False, manual_ack=True)
        if place.username:
            password = os.environ.get(MQTT_PASSWORD) or (unquote(place.password) if place.password else None)
            client.username_pw_set(unquote(place.username), password)
        if place.scheme == "mqtts":
            client.tls_set_context(ssl.create_default_context())
        client.will_set(f"{self.forecasts}/status", "offline", qos=1, retain=True)
        client.reconnect_delay_set(1, RECONNECT_WITHIN)
        client.max_inflight_messages_set(AT_ONCE)
        client.max_queued_messages_set(AT_ONCE)
        client.on_connect, client.on_disconnect = self._connected, self._disconnected
        client.on_connect_fail = lambda *_: self._without("cannot be reached")
        client.on_message = self._message
        return client

    def start(self) -> None:
        """Connect as soon as possible, in the background."""
        self.loop = asyncio.get_running_loop()
        self.service.listeners.append(self.publish)
        self.service.alarm_listeners.append(self.publish_alarms)
        self.service.switch_listeners.append(self.publish_switch)
        host, port = str(self.place.hostname), self.place.port or PORTS[self.place.scheme]
        self.service.problems["broker"] = f"{self.address} is not connected yet"
        self.client.connect_async(host, port)
        self.client.loop_start()

    async def stop(self) -> None:
        """Say goodbye."""
        for task in self._tasks:
            task.cancel()
        await asyncio.to_thread(self._leave)

    def _leave(self) -> None:
        self._publisher.shutdown()
        if self.client.is_connected():
            self._say("status", "offline").wait_for_publish(2)
        self.client.disconnect()
        self.client.loop_stop()

    # ---- readings, in the client's thread -------------------------------------------------------------

    def _connected(self, client: mqtt.Client, _: Any, flags: Any, reason: Any, properties: Any) -> None:
        if reason.is_failure:
            self._without(f"refuses the connection ({reason})")
            return
        self._connections += 1
        self.service.metrics.broker.set(1)
        self.service.problems.pop("broker", None)
        if self._is_lost:
            self._is_lost = False
            log.warning("broker: %s is connected again", self.address)
        client.subscribe(self.readings, qos=1)
        self._say("status", "online")
        if self.service.latest is not None:
            self.publish(self.service.latest)
        if self.service.report is not None:
            self.publish_alarms(self.service.report.alarms)

    def _disconnected(self, client: mqtt.Client, _: Any, flags: Any, reason: Any, properties: Any) -> None:
        self.service.metrics.broker.set(0)
        if reason.is_failure:
            self.service.metrics.failures.labels("broker").inc()
            self._without(f"is lost ({reason})")

    def _without(self, problem: str) -> None:
        """Go on without the broker; the log says so once, until it is back."""
        self.service.problems["broker"] = f"{self.address} {problem}"
        if not self._is_lost:
            log.warning("broker: %s %s: readings from it wait there", self.address, problem)
        self._is_lost = True

    def _message(self, client: mqtt.Client, _: Any, message: mqtt.MQTTMessage) -> None:
        connection = self._connections

        def begin() -> None:
            task = asyncio.create_task(self._take(message, connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        self.loop.call_soon_threadsafe(begin)

    async def _take(self, message: mqtt.MQTTMessage, connection: int) -> None:
        """Take the readings of a message in, and acknowledge it; also if it is malformed, because the broker
        would send it forever. After another connection the broker sends it again, and that one counts."""
        service, topic = self.service, message.topic[:200]
        try:
            if len(message.payload) > MOST_BYTES:
                raise MalformedInput(f"the message is larger than {MOST_BYTES} bytes")
            datastream = datastream_of(message.topic)
            arrived = read_json(bytes(message.payload), service.zone, service.clock.now(), datastream)
        except MalformedInput as problem:
            service.metrics.failures.labels("mqtt message").inc()
            log.warning("mqtt, %s: %s", topic, problem)
        else:
            receipt = await self._stored(arrived)
            if receipt is None:
                return
            for reading, verdict in receipt.refusals[:LINES_LOGGED]:
                log.warning(
                    "mqtt, %s: a reading of %.200r is refused: %s", topic, reading.sensor, verdict.value
                )
        if connection == self._connections:
            self.client.ack(message.mid, message.qos)

    async def _stored(self, arrived: Sequence[Arrived]) -> Receipt | None:
        """What became of readings, once they are on disk. The broker sends a message once in a connection,
        and few before they are acknowledged: so they are tried again. None if too many wait already."""
        while True:
            while not self._may_store.is_set():  # one before it may have failed again
                await self._may_store.wait()
            try:
                receipt = await self.service.take(arrived, "mqtt")
            except Exception as error:
                if not isinstance(error, Busy):
                    self.service.failed("mqtt message", error)
                if len(self._tasks) > AT_ONCE:
                    return None
                if self._may_store.is_set():
                    self._may_store.clear()
                    self.loop.call_later(AGAIN_AFTER, self._may_store.set)
            else:
                self.service.problems.pop("mqtt message", None)
                return receipt

    # ---- forecasts ------------------------------------------------------------------------------------

    def publish(self, made: Forecast) -> None:
        """Publish a forecast without holding up the event loop; nothing waits for a broker that is away."""
        if self.client.is_connected():
            self._publisher.submit(self._publish, made)

    def _publish(self, made: Forecast) -> None:
        for sensor, observation in made.observations():
            self.client.publish(topic_of(self.forecasts, sensor), observation, qos=0, retain=True)

    def publish_alarms(self, alarms: Sequence[Alarm]) -> None:
        """Publish the alarms that there are now, as a list; it is retained, and empty if there is none."""
        if self.client.is_connected():
            listed = [alarm.json(self.service.zone.write) for alarm in alarms]
            told = json.dumps({"alarms": listed}, allow_nan=False)
            self._publisher.submit(self._say, "alarms", told)

    def publish_switch(self, switch: Mapping[str, str]) -> None:
        """Publish a switch of the model; the last one is retained."""
        if self.client.is_connected():
            self._publisher.submit(self._say, "switches", json.dumps(switch))

    def _say(self, what: str, told: str) -> mqtt.MQTTMessageInfo:
        """Publish something about the service as a whole; the broker keeps the last of its kind."""
        return self.client.publish(f"{self.forecasts}/{what}", told, qos=1, retain=True)


def topic_of(beginning: str, sensor: str) -> str:
    """The topic of a sensor's forecasts; characters that MQTT gives a meaning are replaced."""
    safe = sensor.translate({ord(c): "_" for c in "/+#\0"})
    return f"{beginning}/v1.1/Datastreams({safe})/Observations"
