"""A reverse proxy before a service, as nginx is one by default: it asks for the service's own host."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.live.small_service import Client

OF_CONNECTIONS = ("connection", "keep-alive", "transfer-encoding", "host")


@contextmanager
def proxied(client: Client) -> Iterator[tuple[str, list[str]]]:
    """The address of a proxy under another name, and what it has been asked: the first line of each request
    and its Referer. If the client has a token, the proxy adds it, as one does that has asked for a password.
    """
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(f"{self.requestline} {self.headers.get('Referer', '')}")
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            kept = {name: value for name, value in self.headers.items() if name.lower() not in OF_CONNECTIONS}
            connection = http.client.HTTPConnection(client.host, timeout=240)
            connection.request(self.command, self.path, body, kept | client.headers)
            response = connection.getresponse()
            self.send_response_only(response.status)
            for name, value in response.getheaders():
                if name.lower() not in OF_CONNECTIONS:
                    self.send_header(name, value)
            self.end_headers()
            with suppress(OSError):  # the browser has gone
                while part := response.read1():
                    self.wfile.write(part)
            connection.close()

        do_POST = do_OPTIONS = do_GET

        def log_message(self, format: str, *arguments: object) -> None: ...

    with serving_with(Handler) as port:
        yield f"http://forecasts.localhost:{port}", asked


@contextmanager
def serving_with(handler: type[BaseHTTPRequestHandler]) -> Iterator[int]:
    """Serve on a free port of this machine until the end of the block."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()
