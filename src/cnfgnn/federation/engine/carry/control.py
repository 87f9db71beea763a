"""The connection of the engine's parent process to the site, by which its jobs get theirs.

It is opened before the process is confined: afterwards no process of the engine can open a Unix socket. Each
job therefore gets an open connection from the site, handed over by this one.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from cnfgnn.federation.frames import Frames, short_name

SITE_GONE = 70  # exit code of a process whose site has closed the connection
CONNECTED_WITHIN = 30.0  # seconds
CONNECTION = "CNFGNN_SITE_CONNECTION"  # environment variable of a job: the file descriptor of its connection


class Control:
    """The parent process's end."""

    def __init__(self, path: Path) -> None:
        self.frames = Frames(_connected(path))
        self._connections: SimpleQueue[int] = SimpleQueue()

    def begin(self, confinement: dict[str, Any]) -> None:
        """Tell the site how this process is confined, and end with the site from now on."""
        self.frames.send_json(confinement)
        threading.Thread(target=self._receive, name="site", daemon=True).start()

    def new_connection(self) -> int:
        """A file descriptor for a job."""
        self.frames.send(1, b"")
        try:
            return self._connections.get(timeout=CONNECTED_WITHIN)
        except Empty:
            raise RuntimeError("the site gives no connection for a task") from None

    def _receive(self) -> None:
        while True:
            try:
                said, descriptors, _, _ = socket.recv_fds(self.frames.connection, 1, 1)
            except OSError:
                said, descriptors = b"", []
            if not said:
                os._exit(SITE_GONE)
            for descriptor in descriptors:
                os.set_inheritable(descriptor, False)  # until the job that it is for is started
                self._connections.put(descriptor)


def _connected(path: Path) -> socket.socket:
    """A connection to the site, which may be about to listen."""
    until = time.monotonic() + CONNECTED_WITHIN
    while True:
        connection = socket.socket(socket.AF_UNIX)
        try:
            with short_name(path) as name:
                connection.connect(name)
            return connection
        except (ConnectionRefusedError, FileNotFoundError):
            connection.close()
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


_control: list[Control] = []  # of this process


def use(control: Control) -> None:
    _control.append(control)


def connection_for_job() -> int:
    """A file descriptor that a job of this process may use to talk to the site."""
    if not _control:
        raise RuntimeError("this process has no connection to its site")
    return _control[-1].new_connection()


def connection_of_job() -> socket.socket:
    """In a job: the connection that its parent was given for it."""
    return socket.socket(fileno=int(os.environ.pop(CONNECTION)))
