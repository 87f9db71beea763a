"""The way between a site and its server, in the test's hands: it can fall silent or break."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from benchmarks.wire import connect_to, server_port


class Proxy:
    """Carries bytes between whoever connects and a port of this machine."""

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

    def fall_silent(self) -> None:
        """Carry nothing from now on, either way, and accept nobody; those connected do not hear of it."""
        self.open.clear()

    def speak(self) -> None:
        """Carry on, with all that was sent meanwhile."""
        self.open.set()

    def break_off(self) -> None:
        """Close every connection there is; who connects again is let through."""
        with self.lock:
            ends, self.ends = self.ends, []
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.ended = True
        self.open.set()
        self.listener.close()
        self.break_off()

    def _listen(self) -> None:
        while True:
            try:
                near, _ = self.listener.accept()
                self.open.wait()
                far = socket.create_connection(("127.0.0.1", self.port))
            except OSError:
                if self.ended:
                    return
                near.close()  # the server is away
                continue
            with self.lock:
                self.ends += [near, far]
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(1 << 16):
                self.open.wait()
                other.sendall(data)
                self.carried += len(data)
        for end in (one, other):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


@contextmanager
def between(kit: Path) -> Iterator[Proxy]:
    """Have a site that does not run yet connect by way of a proxy."""
    with closing(Proxy(server_port(kit))) as proxy:
        connect_to(kit, proxy.listener.getsockname()[1])
        yield proxy
