"""The service over HTTP: readings in, forecasts out, events, health, metrics, and a page to look at.

GET  /           the page (its files are in /page)
GET  /sensors    the sensors with their places and last readings (?steps=288), or some of them (?sensor=a)
POST /readings   JSON or CSV (?variable=flow); answered once the readings are on disk
GET  /forecasts  the last forecast, as JSON or CSV (?format=csv), of some sensors (?sensor=a&sensor=b)
GET  /events     every forecast the moment it is made, alarms as they change, switches of the model
                 (server-sent events)
GET  /watch      how good forecasts have been of late, and alarms
GET  /health     200 if the last forecast may be used, 503 otherwise; with the token, also why
GET  /metrics    for Prometheus
GET  /model      the model that forecasts are made with, and when and why it replaced another
"""

from __future__ import annotations

import asyncio
import hmac
import json
import re
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cnfgnn.data.options import ReadingOptions
from cnfgnn.errors import StorageError
from cnfgnn.live import metrics
from cnfgnn.live.forecasts import Forecast
from cnfgnn.live.limits import (
    MOST_BYTES,
    MOST_BYTES_AT_ONCE,
    MOST_STREAMS,
    UPLOADS_AT_ONCE,
    UPLOADS_PER_SECOND,
    Rate,
)
from cnfgnn.live.observations import MalformedInput, read_csv, read_json
from cnfgnn.live.page.routes import PAGE_PATHS, page_routes
from cnfgnn.live.page.sensors import MOST_STEPS, SensorList
from cnfgnn.live.recent import Arrived
from cnfgnn.live.service import Busy, LiveService, Receipt
from cnfgnn.live.watch import Alarm

JSON, CSV, EVENTS = "application/json", "text/csv", "text/event-stream"
OPEN_PATHS = ("/health", *PAGE_PATHS)  # without the token: they tell no reading and no forecast
KEEP_ALIVE = 15.0  # seconds between lines of an idle stream, so that proxies do not close it
MOST_SWITCHES = 20  # that wait for one reader
LARGE_BODY = 64 << 10  # bytes; a larger one is read in a thread
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


class TooLarge(Exception):
    """A body that is larger than one may be."""


class UnknownSensor(Exception):
    """A request about a sensor that there is not, in a sentence."""


class ServedModel(Protocol):
    """The model that forecasts are made with: tells about it, and follows whoever replaces it."""

    def as_json(self) -> dict[str, Any]: ...

    async def run(self) -> None:
        """Follow until cancelled."""


class Stream:
    """What one reader of the events is still to be told. Whoever reads slowly misses forecasts, but never the
    last one, and no switch."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self.switches: deque[Mapping[str, str]] = deque(maxlen=MOST_SWITCHES)


class Web:
    """The handlers of one service."""

    def __init__(
        self,
        service: LiveService,
        options: ReadingOptions,
        most_bytes: int = MOST_BYTES,
        served: ServedModel | None = None,
        sensors: SensorList | None = None,
    ) -> None:
        self.service, self.options, self.most_bytes = service, options, most_bytes
        self.served = served
        self.sensor_list = sensors or SensorList(service.recent, service.clock, service.zone)
        self.uploads = Rate(UPLOADS_PER_SECOND, UPLOADS_AT_ONCE)
        self._bytes_under_way = 0
        self._streams: set[Stream] = set()
        service.listeners.append(self._tell_forecast)
        service.switch_listeners.append(self._tell_switch)

    def app(self, token: str, any_host: bool) -> ASGIApp:
        """The ASGI application; unless `any_host`, only requests to this machine's own names are answered, so
        that a web page cannot reach it by pointing the name of its own server here (DNS rebinding)."""
        routes = [
            Route("/sensors", self.sensors),
            Route("/readings", self.readings, methods=["POST"]),
            Route("/forecasts", self.forecasts),
            Route("/events", self.events),
            Route("/watch", self.watch),
            Route("/health", self.health),
            Route("/metrics", self.metrics),
        ]
        if self.served is not None:
            routes.append(Route("/model", self.model))
        handlers: dict[Any, Any] = {HTTPException: _sentence, Exception: self._failed}
        app = Starlette(routes=[*routes, *page_routes()], exception_handlers=handlers)
        return Guard(app, token, any_host, self.service.metrics, [route.path for route in routes])

    # ---- readings -----------------------------------------------------------------------------------

    async def readings(self, request: Request) -> Response:
        if not self.uploads.admits():
            problem = f"more than {UPLOADS_PER_SECOND:g} uploads a second: send readings together, or later"
            return error(429, problem, {"Retry-After": "1"})
        try:
            return await self._taken(request)
        except MalformedInput as problem:
            return error(400, str(problem))
        except TooLarge:
            return error(413, f"the body is larger than {self.most_bytes} bytes: send it in parts")
        except Busy:
            return error(503, "too many readings arrive at once: send them later", {"Retry-After": "5"})
        except StorageError as problem:
            return error(507, f"the readings were not taken: {problem}")

    async def _taken(self, request: Request) -> Response:
        # A browser lets any page send a body of no type or of a simple one, but asks before it sends these.
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in (JSON, CSV):
            given = f"not as {kind[:80]}" if kind else "and say which in Content-Type"
            return error(415, f"send readings as {JSON} or {CSV}, {given}")
        variable = request.query_params.get("variable", "")
        read = self._from_json if kind == JSON else partial(self._from_csv, variable=variable)
        with self._under_way() as added:
            body = await self._body(request, added)
            arrived = read(body) if len(body) < LARGE_BODY else await asyncio.to_thread(read, body)
            receipt = await self.service.take(arrived, "http")
        return answer(self._receipt(receipt), 422 if _none_was_usable(receipt) else 200)

    @contextmanager
    def _under_way(self) -> Iterator[Callable[[int], None]]:
        """Counts the bytes of an upload while it is under way."""
        mine = 0

        def added(count: int) -> None:
            nonlocal mine
            mine += count
            self._bytes_under_way += count
            if mine > self.most_bytes:
                raise TooLarge
            if self._bytes_under_way > MOST_BYTES_AT_ONCE:
                raise Busy

        try:
            yield added
        finally:
            self._bytes_under_way -= mine

    async def _body(self, request: Request, added: Callable[[int], None]) -> bytes:
        declared = request.headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > self.most_bytes:
            raise TooLarge
        parts = []
        async for part in request.stream():
            added(len(part))
            parts.append(part)
        return b"".join(parts)

    def _from_json(self, body: bytes) -> list[Arrived]:
        return read_json(body, self.service.zone, self.service.clock.now())

    def _from_csv(self, body: bytes, variable: str = "") -> list[Arrived]:
        with tempfile.TemporaryDirectory(prefix="cnfgnn-") as folder:
            file = Path(folder) / "body.csv"
            file.write_bytes(body)
            return read_csv(file, self.options, "the body", self.service.recent.variables, variable)

    def _receipt(self, receipt: Receipt) -> dict[str, Any]:
        write = self.service.zone.write
        told: dict[str, Any] = {"stored": receipt.stored}
        told |= {verdict.value: count for verdict, count in receipt.counts.items()}
        if receipt.refusals:
            told["refused"] = [
                {
                    "sensor": reading.sensor,
                    "time": None if reading.seconds is None else _written(write, reading.seconds),
                    "reason": verdict.value,
                    **({"variable": reading.variable} if reading.variable else {}),
                }
                for reading, verdict in receipt.refusals
            ]
        if _none_was_usable(receipt):
            told["error"] = f"none of {receipt.refused} readings could be used: see refused for the reasons"
        return told

    # ---- forecasts ----------------------------------------------------------------------------------

    async def forecasts(self, request: Request) -> Response:
        made, now = self.service.latest, self.service.clock.now()
        if made is None:
            return error(503, "no forecast has been made yet", {"Retry-After": "1"})
        try:
            chosen = self._asked(request)
        except UnknownSensor as problem:
            return error(404, str(problem))
        kind = request.query_params.get(
            "format", "csv" if CSV in request.headers.get("accept", "") else "json"
        )
        if kind not in ("json", "csv"):
            return error(400, f"format must be json or csv, not {kind[:80]!r}")
        body = made.json(now, chosen) if kind == "json" else made.csv(now, chosen)
        headers = {"Cache-Control": "no-store"}
        return Response(body, media_type=JSON if kind == "json" else f"{CSV}; charset=utf-8", headers=headers)

    def _asked(self, request: Request) -> set[str] | None:
        """The sensors that a request is about; None: all of them."""
        asked = request.query_params.getlist("sensor")
        for sensor in asked:
            if sensor not in self.service.recent.column_of:
                raise UnknownSensor(f"there is no sensor {sensor[:80]!r}")
        return set(asked) if asked else None

    async def sensors(self, request: Request) -> Response:
        steps = request.query_params.get("steps", str(MOST_STEPS))
        if not (steps.isascii() and steps.isdecimal() and 1 <= int(steps[:9]) <= MOST_STEPS):
            return error(400, f"steps must be from 1 to {MOST_STEPS}, not {steps[:80]!r}")
        try:
            chosen = self._asked(request)
        except UnknownSensor as problem:
            return error(404, str(problem))
        readings = self.sensor_list.readings(chosen, int(steps))
        body = await asyncio.to_thread(self.sensor_list.json, readings, chosen is None)
        return Response(body, media_type=JSON, headers={"Cache-Control": "no-store"})

    async def events(self, request: Request) -> Response:
        return event_stream(self._stream(), len(self._streams))

    async def _stream(self) -> AsyncIterator[bytes]:
        """Forecasts as they are made, beginning with the last one, alarms as they change, and switches."""
        stream = Stream()
        if self.service.latest is not None:
            stream.changed.set()
        self._streams.add(stream)
        self.service.metrics.streams.set(len(self._streams))
        stopping = asyncio.create_task(self.service.stopping.wait())
        made: Forecast | None = None
        told: tuple[Alarm, ...] = ()
        try:
            yield b": forecasts follow as they are made\n\n"
            while not stopping.done():
                changing = asyncio.create_task(stream.changed.wait())
                await asyncio.wait({changing, stopping}, timeout=KEEP_ALIVE, return_when="FIRST_COMPLETED")
                if not changing.done():
                    changing.cancel()
                    yield b": still there\n\n"
                    continue
                stream.changed.clear()
                while stream.switches:
                    yield named_event("switch", stream.switches.popleft())
                latest = self.service.latest
                if latest is not None and latest is not made:
                    made = latest
                    yield _event(made, self.service.clock.now())
                alarms = () if self.service.report is None else self.service.report.alarms
                if [_key(alarm) for alarm in alarms] != [_key(alarm) for alarm in told]:
                    told = alarms
                    yield named_event("alarms", {"alarms": [a.json(self.service.zone.write) for a in told]})
        finally:
            stopping.cancel()
            self._streams.discard(stream)
            self.service.metrics.streams.set(len(self._streams))

    def _tell_forecast(self, made: Forecast) -> None:
        for stream in self._streams:
            stream.changed.set()

    def _tell_switch(self, switch: Mapping[str, str]) -> None:
        for stream in self._streams:
            stream.switches.append(switch)
            stream.changed.set()

    async def watch(self, request: Request) -> Response:
        if self.service.report is None:
            return error(503, "nothing is watched yet", {"Retry-After": "1"})
        return answer(self.service.report.json(self.service.zone.write))

    # ---- health -------------------------------------------------------------------------------------

    async def health(self, request: Request) -> Response:
        state = health_of(self.service)
        told = state if request.scope["has_token"] else {"status": state["status"]}
        return answer(told, 200 if state["status"] == "ok" else 503)

    async def model(self, request: Request) -> Response:
        assert self.served is not None
        return answer(self.served.as_json())

    async def metrics(self, request: Request) -> Response:
        return Response(self.service.metrics.text(), headers={"Content-Type": metrics.CONTENT_TYPE})

    async def _failed(self, request: Request, problem: Exception) -> Response:
        self.service.failed("http", problem)
        return error(500, "the request failed: see the service's log")


def health_of(service: LiveService) -> dict[str, Any]:
    """Whether the service works: no reading and no forecast is in it."""
    write, made, now = service.zone.write, service.latest, service.clock.now()
    state: dict[str, Any] = {"status": "ok", "now": write(now), "sensors": len(service.recent.ids)}
    if made is None:
        return state | {"status": "starting"}
    newest = made.newest_reading
    state |= {
        "step": write(made.step),
        "made": write(made.made),
        "lastReading": None if newest is None else write(newest),
        "validUntil": write(made.valid_until),
        "ageSeconds": round(now - made.made, 3),
        "quality": made.counts(),
        "alarms": 0 if service.report is None else len(service.report.alarms),
        **service.predictor.about,
    }
    if service.is_stale:
        state["status"] = "stale"
    elif service.problems:
        state["status"] = "degraded"
    if service.problems:
        state["problems"] = dict(service.problems)
    return state


class Guard:
    """Before any handler: refuses requests without the token, to another host, or from another web page, and
    counts every request."""

    def __init__(
        self,
        app: ASGIApp,
        token: str,
        any_host: bool,
        counts: metrics.Metrics | None,
        paths: list[str],
        open_paths: Collection[str] = OPEN_PATHS,
    ) -> None:
        self.app, self.token, self.any_host = app, token.encode(), any_host
        self.counts, self.paths, self.open_paths = counts, set(paths), set(open_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path = scope["path"] if scope["path"] in self.paths else "other"

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start" and self.counts is not None:
                self.counts.requests.labels(path, str(message["status"])).inc()
            await send(message)

        headers = dict(scope["headers"])
        given = headers.get(b"authorization", b"")
        scope["has_token"] = hmac.compare_digest(given, b"Bearer " + self.token)
        refusal = self._refusal(scope, headers)
        with suppress(ClientDisconnect):  # there is nobody to answer
            await (refusal or self.app)(scope, receive, counted)

    def _refusal(self, scope: Scope, headers: dict[bytes, bytes]) -> Response | None:
        host = re.sub(r":\d*$", "", headers.get(b"host", b"").decode("latin-1"))
        if not self.any_host and host.lower() not in LOOPBACK:
            return error(400, "this service answers to localhost and 127.0.0.1 only")
        if scope["path"] in self.open_paths:
            return None
        if _from_another_page(headers):
            return error(403, "this service does not answer web pages of other servers")
        if scope["has_token"]:
            return None
        return error(401, "a token is needed: Authorization: Bearer TOKEN", {"WWW-Authenticate": "Bearer"})


def _from_another_page(headers: dict[bytes, bytes]) -> bool:
    """Whether a browser sends this for a page that is not the service's own.

    Browsers set these headers, and pages cannot. A proxy may have changed Host, so that it is compared with
    Origin only if the browser does not tell the relation itself.
    """
    if (relation := headers.get(b"sec-fetch-site")) is not None:
        return relation not in (b"same-origin", b"none")
    origin = headers.get(b"origin")
    return origin is not None and origin.partition(b"://")[2] != headers.get(b"host")


def _event(made: Forecast, now: float) -> bytes:
    return b"id: %d\nevent: forecast\ndata: %s\n\n" % (made.step, made.json(now))


def event_stream(events: AsyncIterator[bytes], streams: int) -> Response:
    """Server-sent events, unless so many streams are open already that there is no room for one more."""
    if streams >= MOST_STREAMS:
        return error(503, f"{MOST_STREAMS} streams are open already", {"Retry-After": "60"})
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(events, media_type=EVENTS, headers=headers)


def named_event(name: str, content: Any) -> bytes:
    """A server-sent event with JSON."""
    return f"event: {name}\ndata: {json.dumps(content, allow_nan=False)}\n\n".encode()


def _key(alarm: Alarm) -> tuple[str | None, str, int]:
    """What tells an alarm from others; its sentence has numbers that change."""
    return alarm.sensor, alarm.kind, alarm.since


def _none_was_usable(receipt: Receipt) -> bool:
    return receipt.refused > 0 and receipt.refused == sum(receipt.counts.values())


def _written(write: Callable[[float], str], seconds: float) -> str:
    try:
        return write(seconds)
    except (ValueError, OverflowError, OSError):
        return str(seconds)


def answer(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    body = json.dumps(content, allow_nan=False).encode()
    return Response(body, status, {"Cache-Control": "no-store", **(headers or {})}, JSON)


def error(status: int, sentence: str, headers: dict[str, str] | None = None) -> Response:
    """A request that cannot be answered, and why, in a sentence."""
    return answer({"error": sentence}, status, headers)


async def _sentence(request: Request, problem: Exception) -> Response:
    """What Starlette refuses by itself, as a sentence: unknown paths and methods."""
    assert isinstance(problem, HTTPException)
    if problem.status_code == 404:
        return error(404, f"there is nothing at {request.url.path[:80]}")
    if problem.status_code == 405:
        sentence = f"{request.url.path} does not take {request.method[:20]}"
        return error(405, sentence, dict(problem.headers or {}))
    return error(problem.status_code, problem.detail)
