"""The site's process of a live task: it passes the server's requests on to the site's live service.

The service is a process of its own, which outlives the task: the engine ends a task's processes when the
server's process dies, and the site goes on by itself. The task starts the service, starts it again if it was
killed, and is its only way to the server.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from cnfgnn.federation.kits.process_identity import is_running
from cnfgnn.federation.kits.processes import LIVE_SERVICE as PROGRAM
from cnfgnn.files import make_folder, read_json_or_empty
from cnfgnn.live.options import LIVE as LIVE
from cnfgnn.transports.remote.header import Malformed
from cnfgnn.transports.remote.messages import pack, unpack
from cnfgnn.version import __version__

MODEL = "model.json"  # in that folder: the model of the service, and the switches before it
SERVICE = "service.json"  # in that folder: the process, its port and the key to talk to it
MODEL = "model.json"  # in that folder: the model that it uses, and the switches before it
CONSOLE = "console.txt"
ANSWERS_WITHIN = 10.0  # seconds; the service answers "working" after two
CHECKED_EVERY = 0.5  # seconds
STARTING = "its live service is starting"
FAILS = "its live service does not start: see live/console.txt in its kit"

log = logging.getLogger(__name__)


class Relay:
    """Answers the requests of a live task's server with the answers of the site's service.

    terms  how the task runs, for the service
    """

    def __init__(self, kit: Path, terms: Mapping[str, Any]) -> None:
        self.kit, self.terms = kit, dict(terms)
        self.problem = STARTING
        self._process: subprocess.Popen[bytes] | None = None
        self._idle: SimpleQueue[Connection] = SimpleQueue()
        self._closed = threading.Event()
        threading.Thread(target=self._keep_alive, name="service", daemon=True).start()

    def close(self) -> None:
        """Leave the service to itself."""
        self._closed.set()

    def answer(self, request: bytes) -> bytes:
        """The answer of the service to one note."""
        try:
            try:
                return self._carried(self._idle.get_nowait(), request)
            except (Empty, OSError, EOFError):  # none is idle, or it belongs to a service that has ended
                return self._carried(self._connected(), request)
        except TimeoutError:
            return _without_service(request, "its live service does not answer")
        except (OSError, EOFError, AuthenticationError):
            return _without_service(request, self.problem or STARTING)

    def _carried(self, connection: Connection, request: bytes) -> bytes:
        try:
            connection.send_bytes(request)
            if not connection.poll(ANSWERS_WITHIN):
                raise TimeoutError
            answer = connection.recv_bytes()
        except BaseException:
            connection.close()
            raise
        self._idle.put(connection)
        self.problem = ""
        return answer

    def _connected(self) -> Connection:
        about = read_service(self.kit)
        if not about:
            raise ConnectionRefusedError
        connection = Client(("127.0.0.1", int(about["port"])), authkey=bytes.fromhex(about["key"]))
        send_at_once(connection)
        return connection

    def _keep_alive(self) -> None:
        """Start the service, and again if it was killed; not if it has ended by itself."""
        about, failures = read_service(self.kit), 0
        if about and is_running(about["process"]) and about["terms"] != self.terms:
            end_service(self.kit)  # it runs with other terms than this task
        if not (about and is_running(about["process"])):
            self._start()
        while not self._closed.wait(CHECKED_EVERY):
            code = None if self._process is None else self._process.poll()
            about = read_service(self.kit)
            if about and is_running(about["process"]):
                failures = 0
            elif code is not None and code > 0:
                failures, self.problem = failures + 1, FAILS
                if not self._closed.wait(min(2.0**failures, 60.0)):
                    self._start()
            elif about and (self._process is None or code is not None):
                log.warning("the live service was killed: it is started again")
                self._start()

    def _start(self) -> None:
        folder = make_folder(self.kit / LIVE)
        folder.chmod(0o700)
        (folder / SERVICE).unlink(missing_ok=True)
        handle = os.open(folder / CONSOLE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", PROGRAM, str(self.kit), json.dumps(self.terms)],
                stdin=subprocess.DEVNULL,
                stdout=handle,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # the engine ends this process with all that belongs to it
                umask=0o077,
            )
        finally:
            os.close(handle)


def _without_service(request: bytes, problem: str) -> bytes:
    """What a site answers whose service cannot be asked."""
    try:
        if unpack(request).kind == "hello":
            about: dict[str, Any] = {"ready": False, "problem": problem, "version": __version__}
            return pack("hello", **about, clock=time.time(), busy=False)
    except Malformed as error:
        problem = str(error)[:300]
    return pack("lost", reason=problem)


def send_at_once(connection: Connection) -> None:
    """Keep TCP from waiting for more to send, which costs 40 ms a message."""
    with socket.socket(fileno=os.dup(connection.fileno())) as same:
        same.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def read_service(kit: Path) -> dict[str, Any]:
    """What the service of a kit has written about itself; empty if it has ended or never ran."""
    about = read_json_or_empty(kit / LIVE / SERVICE)
    complete = isinstance(about.get("process"), dict) and {"port", "key", "terms"} <= about.keys()
    return about if complete else {}


def live_service_runs(kit: Path) -> bool:
    """Whether the live service of a kit runs."""
    about = read_service(kit)
    return bool(about) and is_running(about["process"])


def end_service(kit: Path, within: float = 10.0) -> None:
    """End the service of a kit, if it runs, and wait until it has ended."""
    import psutil

    about = read_service(kit)
    if live_service_runs(kit):
        process = psutil.Process(int(about["process"]["pid"]))
        process.terminate()
        try:
            process.wait(within)
        except psutil.TimeoutExpired:
            process.kill()
            process.wait(within)
    (kit / LIVE / SERVICE).unlink(missing_ok=True)
