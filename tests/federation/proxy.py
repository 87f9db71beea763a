"""A TCP proxy between a site and its server that a test can pause or cut."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from benchmarks.wire import connect_to, server_port


class Proxy:
    """Forwards bytes between its clients and a port of this machine."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.open = threading.Event()
        self.open.set()
        self.lock = threading.Lock()
        self.ends: list[socket.socket] = []
        self.ended = False
        self.carried = 0
        threading.Thread(target=self._listen, daemon=True).start()

    def pause(self) -> None:
        """Forward nothing in either direction and accept no connection; the ends are not told."""
        self.open.clear()

    def resume(self) -> None:
        """Forward again, including everything that was sent meanwhile."""
        self.open.set()

    def cut(self) -> None:
        """Close every connection; new connections are forwarded."""
        with self.lock:
            ends, self.ends = self.ends, []
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.ended = True
        self.open.set()
        self.listener.close()
        self.cut()

    def _listen(self) -> None:
        while True:
            try:
                near, _ = self.listener.accept()
                self.open.wait()
                far = socket.create_connection(("127.0.0.1", self.port))
            except OSError:
                if self.ended:
                    return
                near.close()  # the server does not run
                continue
            with self.lock:
                self.ends += [near, far]
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._carry, args=(source, sink), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                self.open.wait()
                sink.sendall(data)
                self.carried += len(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


@contextmanager
def proxied(kit: Path) -> Iterator[Proxy]:
    """Make a site that does not run yet connect through a proxy."""
    with closing(Proxy(server_port(kit))) as proxy:
        connect_to(kit, proxy.listener.getsockname()[1])
        yield proxy
