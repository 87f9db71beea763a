"""A counting wire: a relay on loopback between a site and its server that counts TLS records."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

CLIENT = "startup/fed_client.json"  # where a site's kit says how to reach its server
CHUNK = 1 << 18
RECORD = 5  # bytes of a TLS record's own header
APPLICATION = 23  # the type of records that carry data; in TLS 1.3 also most of a handshake
SEAL = 17  # bytes by which such a record is longer than what it carries: its real type and a tag


class Way:
    """What went one way through the wire, over all connections."""

    def __init__(self) -> None:
        self.bytes = 0  # of the TCP streams
        self.carried = 0  # bytes inside of TLS records of data, at most a handshake's more than was sent


class Wire:
    """Passes every connection to its port on to a server, until it is closed."""

    def __init__(self, server: int) -> None:
        self.server, self.connections = server, 0
        self.up, self.down = Way(), Way()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def bytes(self) -> int:
        return self.up.bytes + self.down.bytes

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for one in self._open:
            _end(one)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self.server))
            except OSError:
                near.close()
                continue
            for one in (near, far):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self.connections += 1
                self._open += [near, far]
            for source, sink, way in ((near, far, self.up), (far, near, self.down)):
                threading.Thread(target=self._pass_on, args=(source, sink, way), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, way: Way) -> None:
        records = _Records()
        with suppress(OSError):
            while data := source.recv(CHUNK):
                sink.sendall(data)
                carried = records.read(data)
                with self._lock:
                    way.bytes += len(data)
                    way.carried += carried
        for one in (source, sink):
            _end(one)


class _Records:
    """Follows the records of one stream."""

    def __init__(self) -> None:
        self.header, self.left = b"", 0

    def read(self, data: bytes) -> int:
        """Bytes carried by the data records that begin in these."""
        carried, place = 0, 0
        while place < len(data):
            if self.left:
                step = min(self.left, len(data) - place)
                self.left, place = self.left - step, place + step
                continue
            step = RECORD - len(self.header)
            self.header += data[place : place + step]
            place += step
            if len(self.header) == RECORD:
                self.left = int.from_bytes(self.header[3:], "big")
                carried += self.left - SEAL if self.header[0] == APPLICATION else 0
                self.header = b""
        return carried


def _end(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()


@contextmanager
def wired(kit: Path) -> Iterator[Wire]:
    """Have a site's kit reach its server through a wire; before the site is started."""
    wire = Wire(server_port(kit))
    connect_to(kit, wire.port)
    try:
        yield wire
    finally:
        wire.close()


def server_port(kit: Path) -> int:
    """The port at which a site's kit looks for its server."""
    return int(_service(kit)[1]["target"].rsplit(":", 1)[1])


def connect_to(kit: Path, port: int) -> None:
    """Have a site's kit look for its server at another port of the same host."""
    config, service = _service(kit)
    service["target"] = f"{service['target'].rsplit(':', 1)[0]}:{port}"
    (kit / CLIENT).write_text(json.dumps(config))


def _service(kit: Path) -> tuple[Any, Any]:
    config = json.loads((kit / CLIENT).read_text())
    return config, config["servers"][0]["service"]
