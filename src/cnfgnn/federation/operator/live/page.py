"""The operator's page of a live federation: who is there, how fast, how complete, and which model is in use.
It has no reading.

GET  /         the page (its files are in /page)
GET  /status   what the page shows, as JSON
GET  /events   the same whenever it changes, and switches of the model (server-sent events)
GET  /health   200 if the task runs and a site is there, 503 otherwise
GET  /metrics  for Prometheus

It shows files in the server's kit, which the server's tasks keep replacing. The command that watches over the
live task serves it.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import AsyncIterator, Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from cnfgnn.federation.operator.live.metrics import FederationMetrics
from cnfgnn.federation.operator.live.state import live_state
from cnfgnn.live.metrics import CONTENT_TYPE
from cnfgnn.live.page.routes import HTML, SHARED, STYLE, page_routes, scripts
from cnfgnn.live.start import LOOPBACK_HOSTS, address_of, http_server, listening
from cnfgnn.live.token_file import open_token, read_token
from cnfgnn.live.web import KEEP_ALIVE, Guard, answer, event_stream, named_event

PORT = 8708
TOKEN = "page-token"  # in the server's kit
LOOKS_EVERY = 0.5  # seconds between looks at the files
OWN = files("cnfgnn.federation.operator.live") / "assets"
ASSETS = {
    "/": (OWN / "index.html", HTML),
    **SHARED,
    "/page/federation.css": (OWN / "federation.css", STYLE),
    **scripts(OWN, "federation"),
}


class FederationPage:
    """The handlers of the page.

    retrain_every  seconds between two trainings beside the live task; None: nothing is trained
    """

    def __init__(self, kit: Path, retrain_every: float | None) -> None:
        self.kit, self.retrain_every = kit, retrain_every
        self.streams = 0
        self.counts = CollectorRegistry()
        self.counts.register(FederationMetrics(kit))
        self.is_stopping: Callable[[], bool] = lambda: False

    def app(self, token: str, any_host: bool) -> Guard:
        answers = {
            "/status": self.status,
            "/events": self.events,
            "/health": self.health,
            "/metrics": self.metrics,
        }
        routes = [*[Route(path, told) for path, told in answers.items()], *page_routes(ASSETS)]
        return Guard(Starlette(routes=routes), token, any_host, None, list(answers), ("/health", *ASSETS))

    def state(self) -> dict[str, Any]:
        return live_state(self.kit) | {"retrain_every": self.retrain_every}

    async def status(self, request: Request) -> Response:
        return answer(await asyncio.to_thread(self.state))

    async def health(self, request: Request) -> Response:
        state = await asyncio.to_thread(self.state)
        works = state["state"] == "running" and any(site["reachable"] for site in state["sites"].values())
        return answer({"status": "ok" if works else "degraded"}, 200 if works else 503)

    async def metrics(self, request: Request) -> Response:
        return Response(generate_latest(self.counts), headers={"Content-Type": CONTENT_TYPE})

    async def events(self, request: Request) -> Response:
        return event_stream(self._stream(), self.streams)

    async def _stream(self) -> AsyncIterator[bytes]:
        """The state whenever it has changed, and each switch of the model."""
        told, said, known = None, time.monotonic(), math.inf  # `known`: when the last switch was
        self.streams += 1
        try:
            while not self.is_stopping():
                state = await asyncio.to_thread(self.state)
                for switch in state["switches"]:
                    if switch["time"] > known:
                        yield named_event("switch", switch)
                known = max((switch["time"] for switch in state["switches"]), default=0.0)
                if told != (told := {**state, "now": 0}):
                    said = time.monotonic()
                    yield named_event("status", state)
                elif time.monotonic() - said > KEEP_ALIVE:
                    said = time.monotonic()
                    yield b": still there\n\n"
                await asyncio.sleep(LOOKS_EVERY)
        finally:
            self.streams -= 1


class LivePage:
    """The page in a thread of this process, as long as the context lasts.

    token_file  the token of requests; empty: `page-token` in the kit, which is made if needed
    """

    def __init__(
        self,
        kit: Path,
        host: str,
        port: int,
        token_file: str = "",
        retrain_every: float | None = None,
    ) -> None:
        self.token_file = open_token(token_file, kit / TOKEN)
        self.token = read_token(self.token_file)
        self.socket = listening(host, port)
        page = FederationPage(kit, retrain_every)
        self.server = http_server(page.app(self.token, host not in LOOPBACK_HOSTS))
        page.is_stopping = lambda: self.server.should_exit

    @property
    def address(self) -> str:
        return address_of(self.socket)

    def __enter__(self) -> LivePage:
        self.thread = threading.Thread(
            target=lambda: asyncio.run(self.server.serve(sockets=[self.socket])), daemon=True
        )
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.should_exit = True
        self.thread.join(5.0)
        self.socket.close()
