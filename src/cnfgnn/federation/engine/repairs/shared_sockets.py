"""TLS sockets that one thread reads while others write, as the engine's threads do.

OpenSSL forbids that, and Python's sockets do not prevent it (python/cpython#143756): messages are lost, the
connection breaks off with a wrong checksum, or the process crashes, most often in the first moments of a
connection. Here all calls of OpenSSL for a socket are made one at a time. None of them blocks: threads wait
for the socket between their calls.
"""

from __future__ import annotations

import select
import ssl
import threading
import time
from collections.abc import Callable
from typing import Any

from nvflare.fuel.f3.drivers import tcp_driver

SENT_WITHIN = 30.0  # seconds that a part of a message may wait for the other end to read
LOOKS_AGAIN = 10.0  # seconds after which a thread that waits sees that the socket was closed

_context_of_engine = tcp_driver.get_ssl_context


class SharedSocket(ssl.SSLSocket):
    """A TLS socket whose `recv_into` and `send` block only the thread that calls them."""

    _calls: threading.Lock

    def __new__(cls, *args: Any, **named: Any) -> SharedSocket:
        new = super().__new__(cls, *args, **named)
        new._calls = threading.Lock()
        return new

    def recv_into(self, buffer: Any, nbytes: int | None = None, flags: int = 0) -> int:
        receive = super().recv_into
        return self._repeated(lambda: receive(buffer, nbytes, flags), None)

    def send(self, data: Any, flags: int = 0) -> int:
        send = super().send
        return self._repeated(lambda: send(data, flags), time.monotonic() + SENT_WITHIN)

    def getpeercert(self, binary_form: bool = False) -> Any:
        with self._calls:
            return super().getpeercert(binary_form)

    def _repeated(self, call: Callable[[], int], until: float | None) -> int:
        """The result of a call, which is repeated whenever the socket may be ready for it. `until` is when to
        give up, by the monotonic clock; None means never."""
        while True:
            with self._calls:
                if self.gettimeout() != 0:
                    self.setblocking(False)  # not before: the handshake has to block
                try:
                    return call()
                except (ssl.SSLWantReadError, BlockingIOError):
                    wanted = select.POLLIN
                except ssl.SSLWantWriteError:
                    wanted = select.POLLOUT
            left = LOOKS_AGAIN if until is None else min(LOOKS_AGAIN, until - time.monotonic())
            if left <= 0:
                raise TimeoutError(f"the other end has read nothing for {SENT_WITHIN:.0f} s")
            self._wait(wanted, left)

    def _wait(self, wanted: int, seconds: float) -> None:
        """Wait until the socket is ready; if it was closed, the next call says so."""
        file = self.fileno()
        if file >= 0:
            waiting = select.poll()
            waiting.register(file, wanted)
            waiting.poll(1000 * seconds)


def share_sockets() -> None:
    """Have the engine use such sockets in this process, for all connections that begin from now on."""
    tcp_driver.get_ssl_context = _context_with_shared_sockets


def _context_with_shared_sockets(*args: Any, **named: Any) -> ssl.SSLContext | None:
    context: ssl.SSLContext | None = _context_of_engine(*args, **named)
    if context is not None:
        context.sslsocket_class = SharedSocket
    return context
