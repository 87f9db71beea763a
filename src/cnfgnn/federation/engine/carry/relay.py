"""In a job of a site: passes the server's requests on to the site, and the site's answers back.

It does not look at what it carries. When it cannot get an answer it gives none, so that the server asks
again: an answer that says so would cost the site what it has learned.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import threading
from collections.abc import Mapping
from queue import Empty, SimpleQueue
from typing import Any

from cnfgnn.federation.engine.carry.control import SITE_GONE
from cnfgnn.federation.frames import END, Frames

ANSWERED_WITHIN = 30.0  # seconds; a site that works for longer says "working" after two


class Relay:
    """The job's end of the connection to the site.

    task  what the site is told of the task
    """

    def __init__(self, connection: socket.socket, task: Mapping[str, Any]) -> None:
        self.frames = Frames(connection)
        self._numbers = itertools.count(END + 1)
        self._waiting: dict[int, SimpleQueue[bytearray]] = {}
        self._ended = False
        self.frames.send_json(task)
        threading.Thread(target=self._receive, name="site", daemon=True).start()

    def answer(self, request: bytes | memoryview) -> bytearray | None:
        """The site's answer to a request; None if there is none in time."""
        number, answered = next(self._numbers), SimpleQueue[bytearray]()
        self._waiting[number] = answered
        try:
            self.frames.send(number, request)
            return answered.get(timeout=ANSWERED_WITHIN)
        except (Empty, OSError):
            return None
        finally:
            del self._waiting[number]

    def end(self) -> None:
        """Tell the site that the task is over."""
        self._ended = True
        with contextlib.suppress(OSError):
            self.frames.send(END, b"")

    def _receive(self) -> None:
        try:
            while True:
                number, answer = self.frames.receive()
                waiting = self._waiting.get(number)
                if waiting is not None:
                    waiting.put(answer)
        except EOFError:
            if not self._ended:
                os._exit(SITE_GONE)  # the engine's parent starts this process again if its site is back
