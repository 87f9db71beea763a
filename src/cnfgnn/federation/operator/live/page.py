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
from importlib.resources import files
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry
from starlette.requests import Request
from starlette.responses import Response

from cnfgnn.federation.operator.live.metrics import FederationMetrics
from cnfgnn.federation.operator.live.state import live_state
from cnfgnn.live.web.page_files import HTML, SHARED, STYLE, scripts
from cnfgnn.live.web.pages import Door, Handler, Pages, QuietServer, Stream, answer, event

TOKEN = "page-token"  # in the server's kit
OWN = files("cnfgnn.federation.operator.live") / "assets"
ASSETS = {
    "/": (OWN / "index.html", HTML),
    **SHARED,
    "/page/federation.css": (OWN / "federation.css", STYLE),
    **scripts(OWN, "federation"),
}


class FederationStream(Stream):
    """The state whenever it has changed, and each switch of the model."""

    every = 0.5  # seconds between looks at the files

    def __init__(self, page: LivePage) -> None:
        super().__init__()
        self.page, self._told, self._known = page, dict[str, Any](), math.inf  # when the last switch was

    async def news(self) -> bytes:
        state = await asyncio.to_thread(self.page.state)
        switches = [event("switch", switch) for switch in state["switches"] if switch["time"] > self._known]
        self._known = max((switch["time"] for switch in state["switches"]), default=0.0)
        before, self._told = self._told, {**state, "now": 0}
        return b"".join([*switches, event("status", state) if self._told != before else b""])


class LivePage(Pages, Door):
    """The page in a thread of this process, as long as the context lasts.

    token_file     the token of requests; empty: `page-token` in the kit, which is made if needed
    retrain_every  seconds between two trainings beside the live task; None: nothing is trained
    """

    def __init__(
        self, kit: Path, host: str, port: int, token_file: str = "", retrain_every: float | None = None
    ) -> None:
        self.kit, self.retrain_every = kit, retrain_every
        counts = CollectorRegistry()
        counts.register(FederationMetrics(kit))
        Pages.__init__(self, ASSETS, counts, lambda: self.server.should_exit)
        Door.__init__(self, host, port, token_file, kit / TOKEN)
        self.server = QuietServer(self.app(self.token, self.any_host))

    def answers(self) -> dict[str, Handler]:
        return {"/status": self.status}

    def stream(self) -> Stream:
        return FederationStream(self)

    def state(self) -> dict[str, Any]:
        return live_state(self.kit) | {"retrain_every": self.retrain_every}

    async def status(self, request: Request) -> Response:
        return answer(await asyncio.to_thread(self.state))

    async def health(self, request: Request) -> Response:
        state = await asyncio.to_thread(self.state)
        works = state["state"] == "running" and any(site["reachable"] for site in state["sites"].values())
        return answer({"status": "ok" if works else "degraded"}, 200 if works else 503)

    def __enter__(self) -> LivePage:
        serve = self.server.serve(sockets=[self.socket])
        self.thread = threading.Thread(target=asyncio.run, args=[serve], daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.should_exit = True
        self.thread.join(5.0)
        self.socket.close()
