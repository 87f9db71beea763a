"""The workers of a site, one process for each task, seen from the supervisor.

A worker that dies is started again and has lost what was in its memory: the server then sends what it missed.
Requests that it had not answered stay unanswered, and the server asks again.
"""

from __future__ import annotations

import itertools
import json
import logging
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, NamedTuple

from cnfgnn.federation.frames import LARGEST
from cnfgnn.federation.kits.processes import end_live
from cnfgnn.federation.restarts import Pauses
from cnfgnn.federation.site.engine_process import describe_end
from cnfgnn.federation.site.permissions import RoundsLeft
from cnfgnn.federation.site_task import LIVE, SiteTask

PROGRAM = "cnfgnn.federation.site.worker"
MOST_WORKERS = 4  # a live one, a training beside it, and what is just ending
REQUEST = struct.Struct("<QqH")  # its number, the most rounds of training, and the length of the reason
ANSWER = struct.Struct("<QQ")  # the request's number, and the rounds that the worker has begun
LOADED = 0  # no request's number: the worker has loaded its program
ENDS_WITHIN = 10.0  # seconds before a worker that was asked to end is killed
STARTS_WITHIN = 3.0  # seconds that a request waits for a worker
TOO_MANY = "it has as many tasks as it takes at a time"
CHANGED = "it knows this task under another description"
ENDING = "its process for the live task before is ending"

log = logging.getLogger(__name__)
Then = Callable[[bytes, int], None]  # takes an answer, and the rounds begun since the one before


class Workers:
    """All workers of a site."""

    def __init__(self, kit: Path) -> None:
        self.kit = kit
        self.running: dict[str, Worker] = {}
        self._lock = threading.Lock()
        self._prepared: Started | None = None

    def prepare(self) -> None:
        """Start a process for a task that is about to begin: it takes seconds to load PyTorch."""
        with self._lock:
            if self._prepared is None or self._prepared.process.poll() is not None:
                self._prepared = _start(self.kit)

    def _take(self) -> Started:
        """A process that has no task yet."""
        with self._lock:
            prepared, self._prepared = self._prepared, None
        return _start(self.kit) if prepared is None or prepared.process.poll() is not None else prepared

    def of(self, task: SiteTask) -> Worker | str:
        """The worker of a task, started unless it runs; or why there is none. There is one live worker: with
        other terms, it is another one."""
        key = LIVE if task.do == LIVE else task.id  # a live worker outlives its task
        with self._lock:
            worker = self.running.get(key)
            if worker is not None and worker.serves(task):
                worker.task = task
                return worker
            if worker is not None and worker.task.id == task.id:
                return CHANGED
            if worker is not None:
                worker.begin_to_end()
                if worker.runs:
                    return ENDING
            elif sum(not one.over for one in self.running.values()) >= MOST_WORKERS:
                return TOO_MANY
            if key == LIVE:
                end_live(self.kit)  # of a supervisor that was killed
            self.running[key] = worker = Worker(task, self._take)
            return worker

    def end(self, task: SiteTask) -> None:
        """End the worker of a task that is over; a live one goes on for the site's owner."""
        with self._lock:
            worker = self.running.pop(task.id, None)
        if worker is not None:
            worker.end()

    def end_all(self) -> None:
        with self._lock:
            workers, self.running = list(self.running.values()), {}
            if self._prepared is not None:
                self._prepared.process.kill()
                self._prepared.process.wait()
        for worker in workers:
            worker.begin_to_end()
        for worker in workers:
            worker.end()

    @property
    def processes(self) -> set[int]:
        """The process ids of the workers."""
        with self._lock:
            found = {worker.pid for worker in self.running.values()}
            prepared = None if self._prepared is None else self._prepared.process.pid
        return {pid for pid in (*found, prepared) if pid is not None}

    def report(self) -> list[dict[str, Any]]:
        """What runs, for the owner."""
        return [worker.report() for worker in list(self.running.values()) if not worker.over]


class Worker:
    """One worker, over its restarts."""

    def __init__(self, task: SiteTask, start: Callable[[], Started]) -> None:
        self.task, self._start = task, start
        self.problem = ""  # why it does not run
        self.restarts = 0
        self.since = time.time()
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Then] = {}
        self._sending = threading.Lock()
        self._ready = threading.Event()
        self._ended = threading.Event()
        self._rounds = 0  # that the process has told
        self._connection: Connection | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._keep_running, name=f"worker {task.do}", daemon=True)
        self._thread.start()

    def serves(self, task: SiteTask) -> bool:
        """Whether this worker is for a task, also if the task is over; a live one serves later ones, too."""
        if task.do == LIVE and not self.over:
            return task.live == self.task.live
        return task == self.task

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def over(self) -> bool:
        return self._ended.is_set()

    def ask(self, request: bytes | bytearray, rounds_left: Callable[[], RoundsLeft], then: Then) -> bool:
        """Send a request; `then` gets the answer. Returns whether there is a worker to ask."""
        if self._ended.is_set() or not self._ready.wait(STARTS_WITHIN):
            return False
        number = next(self._numbers)
        self._waiting[number] = then
        try:
            with self._sending:
                connection = self._connection
                if connection is None:
                    raise BrokenPipeError
                begun = self._rounds  # before the others are counted: no round is permitted twice
                left, reason = rounds_left()
                connection.send_bytes(as_message(number, begun + left, reason, request))
        except OSError:
            self._waiting.pop(number, None)
            return False
        return True

    @property
    def runs(self) -> bool:
        return self._thread.is_alive()

    def begin_to_end(self) -> None:
        """Ask the worker to end; it is killed if it does not do so in time."""
        if self._ended.is_set():
            return
        self._ended.set()
        if (process := self._process) is not None:
            process.terminate()
            killer = threading.Timer(ENDS_WITHIN, process.kill)
            killer.daemon = True
            killer.start()

    def end(self) -> None:
        """End the worker and wait until it has ended."""
        self.begin_to_end()
        self._thread.join(2 * ENDS_WITHIN)

    def report(self) -> dict[str, Any]:
        about = {"task": self.task.id, "do": self.task.do, "run": self.task.run, "since": self.since}
        return {**about, "pid": self.pid, "restarts": self.restarts, "problem": self.problem}

    def _keep_running(self) -> None:
        pauses = Pauses()
        while not self._ended.is_set():
            begun = time.monotonic()
            code = self._run()
            if code == 0 or self._ended.is_set():
                self._ended.set()
                return
            pause = pauses.after(time.monotonic() - begun)
            self.restarts += 1
            self.problem = f"the worker for {self.task.do!r} {describe_end(code)}"
            log.error("%s: starting it again in %.0f s", self.problem, pause)
            self._ended.wait(pause)

    def _run(self) -> int | None:
        """Run the worker's process until it ends; returns its exit code."""
        try:
            process, ours = self._start()
            ours.send_bytes(json.dumps(self.task.fields()).encode())
        except (OSError, RuntimeError) as error:  # it is tried again
            log.error("a worker could not be started: %s", error)
            return None
        self._process, self._connection, self._rounds = process, ours, 0
        if self._ended.is_set():  # it was asked to end before there was a process
            process.kill()
        self._receive(ours)
        self._ready.clear()
        self._connection = None
        self._waiting.clear()
        ours.close()
        try:
            return process.wait(ENDS_WITHIN)
        except subprocess.TimeoutExpired:  # it has closed its connection, and hangs
            process.kill()
            return process.wait()

    def _receive(self, connection: Connection) -> None:
        try:
            while True:
                answer = connection.recv_bytes(LARGEST + ANSWER.size)
                self.problem = ""
                self._ready.set()
                number, rounds = ANSWER.unpack_from(answer)
                then = self._waiting.pop(number, None)
                if then is not None:
                    begun, self._rounds = max(0, rounds - self._rounds), max(rounds, self._rounds)
                    self._pass(then, answer[ANSWER.size :], begun)
        except (EOFError, OSError):
            return

    def _pass(self, then: Then, answer: bytes, rounds: int) -> None:
        try:
            then(answer, rounds)
        except Exception:  # one answer that cannot be passed on must not stop the others
            log.exception("an answer could not be passed on")


def as_message(number: int, most_rounds: int, reason: str, request: bytes | bytearray) -> bytes:
    """A request as it goes to a worker, with the most rounds that it may have begun, and why no more."""
    said = reason.encode()
    return b"".join([REQUEST.pack(number, most_rounds, len(said)), said, request])


def parts_of(message: bytes) -> tuple[int, int, str, memoryview]:
    """What `as_message` has put together."""
    number, most_rounds, length = REQUEST.unpack_from(message)
    end = REQUEST.size + length
    return number, most_rounds, message[REQUEST.size : end].decode(), memoryview(message)[end:]


class Started(NamedTuple):
    """A worker's process, which waits for its task, and the connection to it."""

    process: subprocess.Popen[bytes]
    connection: Connection


def _start(kit: Path) -> Started:
    ours, theirs = Pipe()
    with theirs:
        handle = theirs.fileno()
        command = [sys.executable, "-P", "-m", PROGRAM, str(kit), str(handle)]
        process = subprocess.Popen(command, pass_fds=[handle], stdin=subprocess.DEVNULL)
    return Started(process, ours)
