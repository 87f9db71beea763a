"""The operator's page of a live federation: who is there, how fast, how complete. It has no reading.

It shows the status file in the server's kit, which the server's task keeps replacing. The command that
watches over the task serves it.
"""

from __future__ import annotations

import asyncio
import threading
from importlib.resources import files
from pathlib import Path

import uvicorn
from prometheus_client import CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from cnfgnn.federation.live_metrics import FederationMetrics
from cnfgnn.federation.live_state import live_state
from cnfgnn.live.metrics import CONTENT_TYPE
from cnfgnn.live.start import LOOPBACK_HOSTS, LiveSettings, QuietServer, listening
from cnfgnn.live.web import Guard, answer

PORT = 8708
SECURITY = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline';"
    " connect-src 'self'",
    "Cache-Control": "no-store",
}


def app_of(kit: Path, token: str, any_host: bool) -> Guard:
    page = files("cnfgnn.federation").joinpath("live_page.html").read_text(encoding="utf-8")

    async def show(request: Request) -> Response:
        return Response(page, media_type="text/html", headers=SECURITY)

    async def status(request: Request) -> Response:
        return answer(live_state(kit))

    counts = CollectorRegistry()
    counts.register(FederationMetrics(kit))

    async def metrics(request: Request) -> Response:
        return Response(generate_latest(counts), headers={"Content-Type": CONTENT_TYPE})

    async def health(request: Request) -> Response:
        state = live_state(kit)
        works = state["state"] == "running" and any(site["reachable"] for site in state["sites"].values())
        return answer({"status": "ok" if works else "degraded"}, 200 if works else 503)

    pages = {"/": show, "/status": status, "/health": health, "/metrics": metrics}
    routes = [Route(path, answered) for path, answered in pages.items()]
    return Guard(Starlette(routes=routes), token, any_host, None, [route.path for route in routes])


class LivePage:
    """The page in a thread of this process, as long as the context lasts."""

    def __init__(self, kit: Path, host: str, port: int, token: str) -> None:
        LiveSettings(host=host, token=token).check()
        self.socket = listening(host, port)
        config = uvicorn.Config(
            app_of(kit, token, host not in LOOPBACK_HOSTS),
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
        )
        self.server = QuietServer(config)

    @property
    def address(self) -> str:
        host, port = self.socket.getsockname()[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

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
