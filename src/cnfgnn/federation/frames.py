"""Numbered messages over a Unix socket, between a site and the processes of its engine.

Both ends bound what they accept: neither trusts the other's word for a size.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cnfgnn.transports.remote.limits import LARGEST_PIECE

END = 0  # the number of a message of a job that says that its task is over
LARGEST = LARGEST_PIECE + (1 << 17)  # bytes: the largest piece of a request, and the fields of its note
LARGEST_SETTINGS = 1 << 22  # bytes of what is said when a connection begins
_HEAD = struct.Struct("<QI")  # the number, and the length


class Frames:
    """One end of a connection. Several threads may send; one receives."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._sending = threading.Lock()

    def send(self, number: int, content: bytes | bytearray | memoryview) -> None:
        if len(content) > LARGEST:
            raise ValueError(f"a message of {len(content)} bytes is too large")
        with self._sending:
            self.connection.sendall(_HEAD.pack(number, len(content)))
            self.connection.sendall(content)

    def receive(self, largest: int = LARGEST) -> tuple[int, bytearray]:
        """The next message.

        Raises:
            EOFError: The other end has closed the connection, or does not keep to the protocol.
        """
        number, length = _HEAD.unpack(self._exactly(_HEAD.size))
        if length > largest:
            raise EOFError(f"a message of {length} bytes is too large")
        return number, self._exactly(length)

    def send_json(self, content: Any) -> None:
        self.send(0, json.dumps(content).encode())

    def receive_json(self) -> dict[str, Any]:
        """What the other end says first."""
        _, content = self.receive(LARGEST_SETTINGS)
        try:
            found = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise EOFError("a message is not JSON") from error
        if not isinstance(found, dict):
            raise EOFError("a message is not a JSON object")
        return found

    def close(self) -> None:
        """End the connection, also for a thread that is receiving."""
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        self.connection.close()

    def _exactly(self, size: int) -> bytearray:
        received = bytearray(size)
        view, have = memoryview(received), 0
        try:
            while have < size:
                count = self.connection.recv_into(view[have:])
                if not count:
                    raise EOFError("the connection was closed")
                have += count
        except OSError as error:
            raise EOFError(f"the connection broke ({error.strerror or error})") from error
        return received


@contextlib.contextmanager
def short_name(path: Path) -> Iterator[str]:
    """Another name for the path of a Unix socket, of which the kernel takes no more than 107 bytes."""
    folder = os.open(path.parent, os.O_PATH | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
