"""Somebody else who serves the page: any number of sensors, with every route that the page can use.

The page needs a handful of JSON routes and nothing else. Here they are answered from numbers that a test
chooses, so that the page can be seen with thousands of sensors, odd names, alarms or without positions.
"""

from __future__ import annotations

import asyncio
import json
import math
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from cnfgnn.live.web.page_files import ASSETS, page_routes
from cnfgnn.live.web.pages import Guard, answer, listening

STEP, HISTORY, HORIZON = 300, 288, 12
START = 1_706_688_000  # 2024-01-31T08:00:00Z
WIDTHS = {"80": 2.5, "95": 4.5}
WITHIN = 240.0
TOKEN = "the-token-of-a-page"


def written(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass
class PageSource:
    """What is told about sensors; a test changes it and calls `advance`."""

    names: Sequence[str]
    located: bool = True
    intervals: bool = True
    watch: dict[str, Any] | None = None
    model: dict[str, Any] | None = None
    status: str = "ok"
    problems: dict[str, str] = field(default_factory=dict)
    refused: tuple[str, ...] = ()
    silent: dict[str, int] = field(default_factory=dict)  # sensor -> steps since its last reading
    speed: float = 100.0  # like a recording: the page does not let time pass by itself
    valid_for: int = 7 * 60  # seconds after its step that a forecast may be used
    row: int = HISTORY

    def __post_init__(self) -> None:
        rng = np.random.default_rng(0)
        n, rows = len(self.names), 2 * HISTORY
        side = math.ceil(math.sqrt(n))
        grid = np.stack([np.arange(n) // side, np.arange(n) % side], axis=1) / side
        self.positions = np.array([48.0, 2.0]) + 0.3 * (grid + rng.normal(0, 0.25 / side, (n, 2)))
        phase = np.arange(rows)[:, None] / 23 + 4 * grid.sum(axis=1)
        self.values = 55 + 14 * np.sin(phase) + np.cumsum(rng.normal(0, 0.3, (rows, n)), axis=0) * 0.4
        self.values[40:52, :: max(1, n // 3)] = np.nan
        self.values[HISTORY - 20 : HISTORY - 14, 0] = np.nan
        self._queues: set[asyncio.Queue[bytes]] = set()

    @property
    def step(self) -> int:
        return START + self.row * STEP

    @property
    def newest(self) -> str:
        """The step of the last forecast, as the page knows it."""
        return written(self.step)

    def alarm(self, watch: dict[str, Any]) -> None:
        """The watch has seen something between two forecasts."""
        self.watch = watch
        self._tell(b"event: alarms\ndata: %s\n\n" % json.dumps({"alarms": watch["alarms"]}).encode())

    def switch(self, name: str) -> None:
        """Another model goes live."""
        assert self.model is not None
        made = {"time": written(time.time()), "from": self.model["run"], "to": name, "why": "rollback"}
        self.model = {**self.model, "run": name, "switches": [*self.model["switches"], made]}
        self._tell(b"event: switch\ndata: %s\n\n" % json.dumps(made).encode())

    def _tell(self, event: bytes) -> None:
        for queue in list(self._queues):
            self.loop.call_soon_threadsafe(queue.put_nowait, event)

    def advance(self) -> None:
        """The next readings arrive, and the forecast after them."""
        self.row += 1
        self._tell(self._event())

    # ---- what is told -------------------------------------------------------------------------------

    def forecast(self) -> dict[str, Any]:
        times = [written(self.step + STEP * ahead) for ahead in range(1, HORIZON + 1)]
        last = written(self.step)
        return {
            "step": last,
            "made": last,
            "lastReading": last,
            "validUntil": written(self.step + self.valid_for),
            "times": times,
            "stale": self.status == "stale",
            "sensors": {name: self._sensor(column, name) for column, name in enumerate(self.names)},
        }

    def _sensor(self, column: int, name: str) -> dict[str, Any]:
        last = np.nan_to_num(self.values[self.row, column], nan=55.0)
        ahead = np.arange(1, HORIZON + 1)
        values = last + (55 - last) * (1 - np.exp(-ahead / 14)) + np.sin(ahead / 3 + column)
        silent = self.silent.get(name, 0)
        told: dict[str, Any] = {
            "quality": "full" if not silent else "own readings missing" if silent < 12 else "fallback",
            "lastReading": written(self.step - silent * STEP),
            "values": values.round(3).tolist(),
        }
        if self.intervals:
            told["intervals"] = {
                level: {
                    "low": (values - width * np.sqrt(ahead)).round(3).tolist(),
                    "high": (values + width * np.sqrt(ahead)).round(3).tolist(),
                }
                for level, width in WIDTHS.items()
            }
        return told

    def sensors(self, asked: Sequence[str], steps: int) -> dict[str, Any]:
        first = self.row - steps + 1
        columns = [column for column, name in enumerate(self.names) if not asked or name in asked]
        told: dict[str, Any] = {
            "now": written(self.step),
            "speed": self.speed,
            "step": STEP,
            "times": [written(START + STEP * row) for row in range(first, self.row + 1)],
            "sensors": [
                {
                    "id": self.names[column],
                    "latitude": float(self.positions[column, 0]) if self.located else None,
                    "longitude": float(self.positions[column, 1]) if self.located else None,
                    "readings": self._readings(column, first),
                }
                for column in columns
            ],
        }
        if not asked:
            told |= {"range": [35.0, 75.0], "edges": [[i, i + 1] for i in range(len(self.names) - 1)]}
        return told

    def _readings(self, column: int, first: int) -> list[float | None]:
        values = self.values[first : self.row + 1, column].copy()
        if silent := self.silent.get(self.names[column], 0):
            values[-silent:] = np.nan
        return [None if math.isnan(value) else round(value, 3) for value in values.tolist()]

    def health(self) -> dict[str, Any]:
        told: dict[str, Any] = {
            "status": self.status,
            "now": written(self.step),
            "run": "/somewhere/runs/metr-la",
        }
        if self.refused:
            told["refused"] = {"lines": len(self.refused), "last": self.refused}
        return told | ({"problems": self.problems} if self.problems else {})

    # ---- over HTTP ----------------------------------------------------------------------------------

    def _event(self) -> bytes:
        return b"event: forecast\ndata: %s\n\n" % json.dumps(self.forecast()).encode()

    async def _stream(self) -> AsyncIterator[bytes]:
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        self._queues.add(queue)
        try:
            yield self._event()
            while not self.stopping.is_set():
                try:
                    yield await asyncio.wait_for(queue.get(), 0.1)
                except TimeoutError:
                    yield b": still there\n\n"
        finally:
            self._queues.discard(queue)

    def app(self) -> Guard:
        async def sensors(request: Request) -> Response:
            steps = int(request.query_params.get("steps", HISTORY))
            return answer(self.sensors(request.query_params.getlist("sensor"), steps))

        async def health(request: Request) -> Response:
            return answer(self.health(), 200 if self.status == "ok" else 503)

        async def events(request: Request) -> Response:
            return StreamingResponse(self._stream(), media_type="text/event-stream")

        routes = [Route("/sensors", sensors), Route("/health", health), Route("/events", events)]
        there = [path for path in ("watch", "model") if getattr(self, path) is not None]
        routes += [Route(f"/{path}", self._told(path)) for path in there]
        app = Starlette(routes=[*routes, *page_routes(ASSETS)])
        return Guard(app, TOKEN, False, [], ("/health", *ASSETS))

    def _told(self, name: str) -> Any:
        async def told(request: Request) -> Response:
            return answer(getattr(self, name))

        return told

    @contextmanager
    def serving(self, port: int = 0) -> Iterator[str]:
        """Serve on a port until the end of the block; yields the address with the token."""
        socket = listening("127.0.0.1", port)
        ready = threading.Event()
        self.stopping = asyncio.Event()

        async def main() -> None:
            self.loop = asyncio.get_running_loop()
            config = uvicorn.Config(self.app(), log_config=None, lifespan="off", timeout_graceful_shutdown=2)
            server = uvicorn.Server(config)
            server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
            task = asyncio.create_task(server._serve(sockets=[socket]))
            while not server.started:
                await asyncio.sleep(0.01)
            ready.set()
            await self.stopping.wait()
            server.should_exit = True
            await task

        thread = threading.Thread(target=lambda: asyncio.run(main()))
        thread.start()
        assert ready.wait(WITHIN)
        try:
            yield "http://{}:{}/#token={}".format(*socket.getsockname()[:2], TOKEN)
        finally:
            self.loop.call_soon_threadsafe(self.stopping.set)
            thread.join(WITHIN)
            socket.close()
            assert not thread.is_alive()


def watched(names: Sequence[str]) -> dict[str, Any]:
    """Errors that grow from sensor to sensor, and alarms of the first two."""
    sensors = {
        name: {
            "rmse": round(2 + 6 * k / max(1, len(names) - 1), 3),
            "skill": 0.18,
            "coverage": {"80": 0.79, "95": 0.944},
            "count": 240,
            "alarms": [],
        }
        for k, name in enumerate(names)
    }
    texts = [
        ("frozen", "has sent exactly 61.5 for 14 steps"),
        ("drift", "its error of the last day is 2.4 times that of the days before"),
    ]
    alarms = [
        {
            "sensor": name,
            "kind": kind,
            "since": written(START + (HISTORY - 14) * STEP),
            "text": f"{name} {text}",
        }
        for name, (kind, text) in zip(names, texts, strict=False)
    ]
    for alarm in alarms:
        sensors[alarm["sensor"]]["alarms"] = [alarm["text"]]
    overall = {"rmse": 5.31, "skill": 0.18, "coverage": {"80": 0.79, "95": 0.944}, "count": 240 * len(names)}
    return {"overall": overall, "sensors": sensors, "alarms": alarms}


def told_model(now: float) -> dict[str, Any]:
    """A model that was trained three days ago and replaced another one yesterday."""
    day = 86_400
    return {
        "run": "metr-la-0131",
        "method": "cnfgnn-plus",
        "trained": written(now - 3 * day - 60),
        "loaded": written(now - day - 60),
        "switches": [
            {
                "time": written(now - day - 60),
                "from": "metr-la-0128",
                "to": "metr-la-0131",
                "why": "RMSE of the last two days 4.81 instead of 5.06",
            }
        ],
    }
