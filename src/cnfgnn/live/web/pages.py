"""Pages and routes over HTTP: what a service and the operator's page of a federation have in common.

Every request needs a token, except for the files of a page and for /health.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import math
import re
import socket
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import h11
import uvicorn
from prometheus_client import CollectorRegistry, Counter, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from cnfgnn.errors import RunError
from cnfgnn.live.web.page_files import Asset, page_routes
from cnfgnn.live.web.token_file import open_token, read_token

JSON, METRICS = "application/json", "text/plain; version=0.0.4; charset=utf-8"
NOT_STORED = {"Cache-Control": "no-store"}
KEEP_ALIVE = 15.0  # seconds between lines of an idle stream, so that proxies do not close it
MOST_CONNECTIONS = 1000
MOST_WITHOUT_HEAD = 100  # connections whose request has not begun
HEAD_WITHIN = 10.0  # seconds for the head of a request, its first line and headers
MOST_STREAMS = 200  # listeners to events at the same time
MOST_WAITING = 20  # events that wait for one reader
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "::1")
ENDS_WITHIN = 5  # seconds that open requests have when the server stops

Handler = Callable[[Request], Awaitable[Response]]

log = logging.getLogger(__name__)


class Stream(ABC):
    """What one reader of the events is still to be told.

    every    seconds after which it looks for news by itself
    waiting  events that nobody misses, up to a number
    """

    every = KEEP_ALIVE

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self.waiting: deque[bytes] = deque(maxlen=MOST_WAITING)

    @abstractmethod
    async def news(self) -> bytes:
        """What is new, as server-sent events; nothing if nothing is."""

    async def next(self) -> bytes:
        """What is to be sent now; nothing if nothing is."""
        self.changed.clear()
        waiting = b"".join(self.waiting)
        self.waiting.clear()
        return waiting + await self.news()


class Pages(ABC):
    """A page with its routes.

    assets       the files of the page, which need no token
    registry     what /metrics tells
    requests     counts requests by path and status
    is_stopping  whether streams end
    """

    def __init__(
        self,
        assets: Mapping[str, Asset],
        registry: CollectorRegistry,
        is_stopping: Callable[[], bool],
        requests: Counter | None = None,
    ) -> None:
        self.assets, self.registry, self.requests = assets, registry, requests
        self.is_stopping, self.streams = is_stopping, set[Stream]()

    @abstractmethod
    def answers(self) -> dict[str, Handler]:
        """Who answers to GET at which path, besides /health, /events and /metrics."""

    @abstractmethod
    async def health(self, request: Request) -> Response:
        """200 if it works; the only answer that needs no token."""

    @abstractmethod
    def stream(self) -> Stream:
        """For another reader of the events."""

    def app(self, token: str, any_host: bool, *more: Route) -> Guard:
        """The ASGI application; unless `any_host`, only requests to this machine's own names are answered, so
        that a web page cannot reach it by pointing the name of its own server here (DNS rebinding)."""
        answers = {**self.answers(), "/events": self.events, "/health": self.health, "/metrics": self.metrics}
        routes = [*(Route(path, answer) for path, answer in answers.items()), *more]
        handlers: dict[Any, Any] = {HTTPException: _sentence, Exception: self._failed}
        app = Starlette(routes=[*routes, *page_routes(self.assets)], exception_handlers=handlers)
        paths = [route.path for route in routes]
        return Guard(app, token, any_host, paths, ("/health", *self.assets), self.requests)

    async def metrics(self, request: Request) -> Response:
        return Response(generate_latest(self.registry), headers={"Content-Type": METRICS})

    async def events(self, request: Request) -> Response:
        if len(self.streams) >= MOST_STREAMS:
            return error(503, f"{MOST_STREAMS} streams are open already", {"Retry-After": "60"})
        headers = {**NOT_STORED, "X-Accel-Buffering": "no"}
        return StreamingResponse(self._sent(self.stream()), media_type="text/event-stream", headers=headers)

    async def _sent(self, stream: Stream) -> AsyncIterator[bytes]:
        """The events of one reader, as long as it listens."""
        self.streams.add(stream)
        said = time.monotonic()
        try:
            yield b": events follow as they happen\n\n"
            while not self.is_stopping():
                news = await stream.next()
                if news or time.monotonic() - said > KEEP_ALIVE:
                    said = time.monotonic()
                    yield news or b": still there\n\n"
                with suppress(TimeoutError):
                    async with asyncio.timeout(stream.every):
                        await stream.changed.wait()
        finally:
            self.streams.discard(stream)

    def wake(self, *events: bytes) -> None:
        """Have all streams send these events, and look for news."""
        for stream in self.streams:
            stream.waiting += events
            stream.changed.set()

    def failed(self, problem: Exception) -> None:
        """Note that a request could not be answered."""
        log.warning("http: %r", problem)

    async def _failed(self, request: Request, problem: Exception) -> Response:
        self.failed(problem)
        return error(500, "the request failed: see the service's log")


class Guard:
    """Before any handler: refuses requests without the token, to another host, or from another web page, and
    counts every request."""

    def __init__(
        self,
        app: ASGIApp,
        token: str,
        any_host: bool,
        paths: Collection[str],
        open_paths: Collection[str],
        requests: Counter | None = None,
    ) -> None:
        self.app, self.token, self.any_host = app, token.encode(), any_host
        self.paths, self.open_paths, self.requests = set(paths), set(open_paths), requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path = scope["path"] if scope["path"] in self.paths else "other"

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start" and self.requests is not None:
                self.requests.labels(path, str(message["status"])).inc()
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


def answer(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    body = json.dumps(content, allow_nan=False).encode()
    return Response(body, status, {**NOT_STORED, **(headers or {})}, JSON)


def error(status: int, sentence: str, headers: Mapping[str, str] | None = None) -> Response:
    """A request that cannot be answered, and why, in a sentence."""
    return answer({"error": sentence}, status, headers)


async def _sentence(request: Request, problem: Exception) -> Response:
    """What Starlette refuses by itself, as a sentence: unknown paths and methods."""
    assert isinstance(problem, HTTPException)
    own = {
        "Not Found": f"there is nothing at {request.url.path[:80]}",
        "Method Not Allowed": f"{request.url.path} does not take {request.method[:20]}",
    }
    return error(problem.status_code, own.get(problem.detail, problem.detail), problem.headers)


def event(name: str, content: Any) -> bytes:
    """A server-sent event with JSON."""
    return f"event: {name}\ndata: {json.dumps(content, allow_nan=False)}\n\n".encode()


# ---- where it is reached --------------------------------------------------------------------------------


class Door:
    """A socket that listens, and the token of whoever may ask.

    chosen   the file of the token; empty: `default`, which is made if needed
    """

    def __init__(self, host: str, port: int, chosen: str, default: Path) -> None:
        self.token_file = open_token(chosen, default)
        self.token = read_token(self.token_file)
        self.any_host = host not in LOOPBACK_HOSTS
        self.socket = listening(host, port)

    @property
    def address(self) -> str:
        host, port = self.socket.getsockname()[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 lets the system choose one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio switches off the waiting of TCP for more to send only if the protocol is named here.
    found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host, port))
        found.listen(128)
    except OSError as error:
        found.close()
        problem = f"port {port} cannot be opened ({error.strerror}): choose another one with --port"
        raise RunError(host, problem) from error
    return found


class HeadersInTime(H11Protocol):
    """A connection that is closed if the head of a request does not come in time. If too many are waited for,
    the one that has had the most time is closed: an honest client needs milliseconds."""

    _timer: asyncio.TimerHandle | None = None  # while the head of a request is waited for

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.conn.their_state is not h11.IDLE:  # the answer came before the end of the body
            self._look()

    def _look(self) -> None:
        """Wait for the rest of a head, or of a body that nobody reads; a body that is read takes its time."""
        is_answered = self.conn.our_state in (h11.DONE, h11.MUST_CLOSE)
        if self.conn.their_state is h11.IDLE or (self.conn.their_state is h11.SEND_BODY and is_answered):
            self._wait()
        else:
            self._stop_waiting()

    def _wait(self) -> None:
        if self._timer is not None:
            return
        self._timer = self.loop.call_later(HEAD_WITHIN, self._give_up)
        waiting = [one for one in self.connections if isinstance(one, HeadersInTime) and one._timer]
        if len(waiting) > MOST_WITHOUT_HEAD:
            min(waiting, key=lambda one: one._timer.when() if one._timer else math.inf)._give_up()

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        self._stop_waiting()
        self.transport.abort()


class QuietServer(uvicorn.Server):
    """uvicorn that leaves signals alone: the service ends as a whole."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=HeadersInTime,
                log_config=None,
                access_log=False,
                lifespan="off",
                limit_concurrency=MOST_CONNECTIONS,
                timeout_graceful_shutdown=ENDS_WITHIN,
                timeout_keep_alive=65,
                server_header=False,
            )
        )

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
