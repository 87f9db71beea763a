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
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from cnfgnn.data.options import ReadingOptions
from cnfgnn.errors import RunError, StorageError
from cnfgnn.live.forecasting.forecasts import Forecast
from cnfgnn.live.forecasting.service import LiveService
from cnfgnn.live.intake.intake import Busy, Receipt
from cnfgnn.live.intake.observations import MalformedInput, read_csv, read_json
from cnfgnn.live.intake.recent import Arrived
from cnfgnn.live.learning.live_model import ServedModel
from cnfgnn.live.options import MOST_BYTES
from cnfgnn.live.web.page_files import ASSETS
from cnfgnn.live.web.pages import JSON, NOT_STORED, Guard, Handler, Pages, Stream, answer, error, event
from cnfgnn.live.web.sensors import MOST_STEPS, SensorList

CSV = "text/csv"
MOST_BYTES_AT_ONCE = 64 << 20  # of all uploads that are under way
UPLOADS_PER_SECOND = 100.0  # in the long run
UPLOADS_AT_ONCE = 1000  # sensors that each send for themselves do so at the same moment
BODY_WITHIN = 120.0  # seconds that an upload may take
REFUSED_SHOWN = 3  # lines of files
LARGE_BODY = 64 << 10  # bytes; a larger one is read in a thread


class Rate:
    """Admits `per_second` events in the long run, and `at_once` in a burst."""

    def __init__(self, per_second: float, at_once: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.per_second, self.at_once, self._clock = per_second, at_once, clock
        self._left, self._since = float(at_once), clock()

    def admits(self) -> bool:
        """Whether one more may come now; if so, it counts."""
        passed, self._since = self._clock() - self._since, self._clock()
        self._left = min(self.at_once, self._left + passed * self.per_second)
        if self._left < 1:
            return False
        self._left -= 1
        return True


class ServiceStream(Stream):
    """Forecasts as they are made, beginning with the last one, alarms as they change, and switches. Whoever
    reads slowly misses forecasts, but never the last one, and no switch."""

    def __init__(self, service: LiveService) -> None:
        super().__init__()
        self.service = service
        self._made: Forecast | None = None
        self._alarms: list[tuple[str | None, str, int]] = []  # their sentences have numbers that change

    async def news(self) -> bytes:
        service, found = self.service, []
        if service.latest is not None and service.latest is not self._made:
            made = self._made = service.latest
            found.append(
                b"id: %d\nevent: forecast\ndata: %s\n\n" % (made.step, made.json(service.clock.now()))
            )
        alarms = () if service.report is None else service.report.alarms
        if (keys := [(alarm.sensor, alarm.kind, alarm.since) for alarm in alarms]) != self._alarms:
            self._alarms = keys
            found.append(event("alarms", {"alarms": [alarm.json(service.zone.write) for alarm in alarms]}))
        return b"".join(found)


class Web(Pages):
    """The handlers of one service."""

    def __init__(
        self, service: LiveService, options: ReadingOptions, served: ServedModel, sensors: SensorList
    ) -> None:
        metrics = service.metrics
        super().__init__(ASSETS, metrics.registry, service.stopping.is_set, metrics.requests)
        metrics.streams.set_function(lambda: len(self.streams))
        self.service, self.options = service, options
        self.served, self.sensor_list = served, sensors
        self.uploads = Rate(UPLOADS_PER_SECOND, UPLOADS_AT_ONCE)
        self._bytes_under_way = 0
        service.listeners.append(lambda made: self.wake())
        service.switch_listeners.append(lambda switch: self.wake(event("switch", switch)))

    def app(self, token: str, any_host: bool, *more: Route) -> Guard:
        return super().app(token, any_host, Route("/readings", self.readings, methods=["POST"]), *more)

    def answers(self) -> dict[str, Handler]:
        return {
            "/sensors": self.sensors,
            "/forecasts": self.forecasts,
            "/watch": self.watch,
            "/model": self.model,
        }

    # ---- readings -----------------------------------------------------------------------------------

    async def readings(self, request: Request) -> Response:
        if not self.uploads.admits():
            problem = f"more than {UPLOADS_PER_SECOND:g} uploads a second: send readings together, or later"
            return error(429, problem, {"Retry-After": "1"})
        try:
            return await self._taken(request)
        except MalformedInput as problem:
            return error(400, str(problem))
        except Busy:
            return error(503, "too many readings arrive at once: send them later", {"Retry-After": "5"})
        except (StorageError, RunError) as problem:  # a full disk or one that is read-only, a damaged file
            return error(507, f"the readings were not taken: {problem}")

    async def _taken(self, request: Request) -> Response:
        # A browser lets any page send a body of no type or of a simple one, but asks before it sends these.
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in (JSON, CSV):
            given = f"not as {kind[:80]}" if kind else "and say which in Content-Type"
            return error(415, f"send readings as {JSON} or {CSV}, {given}")
        variable = request.query_params.get("variable", "")
        read = self._from_json if kind == JSON else partial(self._from_csv, variable=variable)
        body = bytearray()
        try:
            await self._read(request, body)
            large = len(body) >= LARGE_BODY
            arrived = await asyncio.to_thread(read, bytes(body)) if large else read(bytes(body))
            receipt = await self.service.take(arrived, "http")
        finally:
            self._bytes_under_way -= len(body)
        return answer(self._receipt(receipt), 422 if _none_was_usable(receipt) else 200)

    async def _read(self, request: Request, body: bytearray) -> None:
        """Read the body of an upload, which is under way until it has been taken."""
        declared = request.headers.get("content-length", "")
        self._check_size(int(declared) if declared.isdecimal() else 0)
        try:
            async with asyncio.timeout(BODY_WITHIN):
                async for part in request.stream():
                    body += part
                    self._bytes_under_way += len(part)
                    self._check_size(len(body))
                    if self._bytes_under_way > MOST_BYTES_AT_ONCE:
                        raise Busy
        except TimeoutError:
            raise HTTPException(408, f"the body did not arrive within {BODY_WITHIN:g} seconds") from None

    def _check_size(self, count: int) -> None:
        if count > MOST_BYTES:
            raise HTTPException(413, f"the body is larger than {MOST_BYTES} bytes: send it in parts")

    def _from_json(self, body: bytes) -> list[Arrived]:
        return read_json(body, self.service.zone, self.service.clock.now())

    def _from_csv(self, body: bytes, variable: str = "") -> list[Arrived]:
        with tempfile.TemporaryDirectory(prefix="cnfgnn-") as folder:
            file = Path(folder) / "body.csv"
            file.write_bytes(body)
            known, zone = self.service.recent.variables, self.service.zone
            return read_csv(file, self.options, "the body", known, variable, zone)

    def _receipt(self, receipt: Receipt) -> dict[str, Any]:
        write = self.service.zone.write
        told: dict[str, Any] = {"stored": receipt.stored}
        told |= {verdict.value: count for verdict, count in receipt.counts.items()}
        if receipt.refusals:
            told["refused"] = [
                {
                    "sensor": reading.sensor,
                    "time": _written(write, reading.seconds),
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
        chosen = self._asked(request)
        preferred = "csv" if CSV in request.headers.get("accept", "") else "json"
        kind = request.query_params.get("format", preferred)
        if kind not in ("json", "csv"):
            return error(400, f"format must be json or csv, not {kind[:80]!r}")
        body = made.json(now, chosen) if kind == "json" else made.csv(now, chosen)
        media_type = JSON if kind == "json" else f"{CSV}; charset=utf-8"
        return Response(body, media_type=media_type, headers=NOT_STORED)

    def _asked(self, request: Request) -> set[str] | None:
        """The sensors that a request is about; None: all of them."""
        asked = request.query_params.getlist("sensor")
        for sensor in asked:
            if sensor not in self.service.recent.column_of:
                raise HTTPException(404, f"there is no sensor {sensor[:80]!r}")
        return set(asked) if asked else None

    async def sensors(self, request: Request) -> Response:
        steps = request.query_params.get("steps", str(MOST_STEPS))
        if not (steps.isascii() and steps.isdecimal() and 1 <= int(steps[:9]) <= MOST_STEPS):
            return error(400, f"steps must be from 1 to {MOST_STEPS}, not {steps[:80]!r}")
        chosen = self._asked(request)
        readings = self.sensor_list.readings(chosen, int(steps))
        body = await asyncio.to_thread(self.sensor_list.json, readings, chosen is None)
        return Response(body, media_type=JSON, headers=NOT_STORED)

    def stream(self) -> ServiceStream:
        return ServiceStream(self.service)

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
        return answer(self.served.as_json())

    def failed(self, problem: Exception) -> None:
        self.service.failed("http", problem)


def health_of(service: LiveService) -> dict[str, Any]:
    """Whether the service works: no reading and no forecast is in it."""
    write, made, now = service.zone.write, service.latest, service.clock.now()
    state: dict[str, Any] = {"status": "ok", "now": write(now), "sensors": len(service.recent.ids)}
    if refused := list(service.refused.values()):
        state["refused"] = {"lines": len(refused), "last": refused[-REFUSED_SHOWN:]}
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


def _none_was_usable(receipt: Receipt) -> bool:
    return receipt.refused > 0 and receipt.refused == sum(receipt.counts.values())


def _written(write: Callable[[float], str], seconds: float | None) -> str | None:
    try:
        return None if seconds is None else write(seconds)
    except (ValueError, OverflowError, OSError):
        return str(seconds)
