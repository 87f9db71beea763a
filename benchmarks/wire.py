"""A relay on loopback between a site and its server that counts bytes and TLS records."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

CLIENT = "startup/fed_client.json"  # the file in a site's kit with the server's address
CHUNK = 1 << 18
RECORD = 5  # bytes of a TLS record's own header
APPLICATION = 23  # the type of records that carry data; in TLS 1.3 also most of a handshake
SEAL = 17  # bytes that a record has beside its data: its real type and a tag


class Way:
    """What passed through the relay in one direction, over all connections."""

    def __init__(self) -> None:
        self.bytes = 0  # of the TCP streams
        self.carried = 0  # bytes inside TLS data records; at most a handshake more than was sent


class Wire:
    """Forward every connection on a port to the server until closed."""

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
    """Track the TLS records of one stream."""

    def __init__(self) -> None:
        self.header, self.left = b"", 0

    def read(self, data: bytes) -> int:
        """Bytes carried by the data records that begin in this chunk."""
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
    """Make a site's kit reach its server through a relay; call it before the site is started."""
    wire = Wire(server_port(kit))
    connect_to(kit, wire.port)
    try:
        yield wire
    finally:
        wire.close()


def server_port(kit: Path) -> int:
    """The port of the server in a site's kit."""
    return int(_service(kit)[1]["target"].rsplit(":", 1)[1])


def connect_to(kit: Path, port: int) -> None:
    """Change the port of the server in a site's kit."""
    config, service = _service(kit)
    service["target"] = f"{service['target'].rsplit(':', 1)[0]}:{port}"
    (kit / CLIENT).write_text(json.dumps(config))


def _service(kit: Path) -> tuple[Any, Any]:
    config = json.loads((kit / CLIENT).read_text())
    return config, config["servers"][0]["service"]
