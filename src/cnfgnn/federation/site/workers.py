"""The workers of a site, one process for each task, seen from the supervisor.

They are forked from a process that has loaded PyTorch once. A worker that dies is started again and has lost
what was in its memory: the server then sends what it missed. Requests that it had not answered stay
unanswered, and the server asks again.
"""

from __future__ import annotations

import itertools
import logging
import multiprocessing
import struct
import threading
import time
from collections.abc import Callable
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from cnfgnn.federation.frames import LARGEST
from cnfgnn.federation.kits.processes import end_live
from cnfgnn.federation.restarts import Pauses
from cnfgnn.federation.site.engine_process import describe_end
from cnfgnn.federation.site_task import LIVE, SiteTask

PROGRAM = "cnfgnn.federation.site.worker"
MOST_WORKERS = 4  # a live one, a training beside it, and what is just ending
NUMBER = 8  # bytes of the number before each message
HEAD = struct.Struct("<QH")  # of a request: its number, and the length of what the owner says of rounds
ENDS_WITHIN = 10.0  # seconds before a worker that was asked to end is killed
STARTS_WITHIN = 3.0  # seconds that a request waits for a worker

log = logging.getLogger(__name__)
Then = Callable[[bytes], None]  # takes an answer


class Workers:
    """All workers of a site."""

    def __init__(self, kit: Path) -> None:
        self.kit = kit
        self.running: dict[str, Worker] = {}
        self._lock = threading.Lock()
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload([PROGRAM])
        forkserver.ensure_running()

    def of(self, task: SiteTask) -> Worker | None:
        """The worker of a task; it is started unless it runs. There is one live worker: with other terms, it
        is another one. None if there are too many."""
        key = LIVE if task.do == LIVE else task.id  # a live worker outlives its task
        with self._lock:
            worker = self.running.get(key)
            if worker is not None and worker.serves(task):
                worker.task = task
                return worker
            if worker is not None and worker.task.id == task.id:
                return None  # the same task under another description
            if worker is not None:
                worker.end()
            elif sum(not one.over for one in self.running.values()) >= MOST_WORKERS:
                return None
            if key == LIVE:
                end_live(self.kit)  # of a supervisor that was killed
            self.running[key] = worker = Worker(self.kit, task, self.context)
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
        for worker in workers:
            worker.begin_to_end()
        for worker in workers:
            worker.end()

    def report(self) -> list[dict[str, Any]]:
        """What runs, for the owner."""
        return [worker.report() for worker in list(self.running.values()) if not worker.over]


class Worker:
    """One worker, over its restarts."""

    def __init__(self, kit: Path, task: SiteTask, context: Any) -> None:
        self.kit, self.task, self.context = kit, task, context
        self.problem = ""  # why it does not run
        self.restarts = 0
        self.since = time.time()
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Then] = {}
        self._sending = threading.Lock()
        self._ready = threading.Event()
        self._ended = threading.Event()
        self._connection: Connection | None = None
        self._process: Any = None
        self._thread = threading.Thread(target=self._keep_running, name=f"worker {task.do}", daemon=True)
        self._thread.start()

    def serves(self, task: SiteTask) -> bool:
        """Whether this worker is for a task, also if the task is over; a live one serves later ones, too."""
        if task.do == LIVE and not self.over:
            return task.live == self.task.live
        return task == self.task

    @property
    def over(self) -> bool:
        return self._ended.is_set()

    def ask(self, request: bytes | bytearray, no_more_rounds: str, then: Then) -> bool:
        """Send a request; `then` gets the answer. Returns whether there is a worker to ask.

        `no_more_rounds` is why the owner permits no further round of training today.
        """
        if self._ended.is_set() or not self._ready.wait(STARTS_WITHIN):
            return False
        number = next(self._numbers)
        self._waiting[number] = then
        try:
            with self._sending:
                connection = self._connection
                if connection is None:
                    raise BrokenPipeError
                connection.send_bytes(as_message(number, no_more_rounds, request))
        except OSError:
            self._waiting.pop(number, None)
            return False
        return True

    def begin_to_end(self) -> None:
        self._ended.set()
        if self._process is not None:
            self._process.terminate()

    def end(self) -> None:
        """End the worker and wait until it has ended."""
        self.begin_to_end()
        self._thread.join(ENDS_WITHIN)
        process = self._process
        if self._thread.is_alive() and process is not None:
            process.kill()
            self._thread.join(ENDS_WITHIN)

    def report(self) -> dict[str, Any]:
        about = {"task": self.task.id, "do": self.task.do, "run": self.task.run, "since": self.since}
        pid = None if self._process is None else self._process.pid
        return {**about, "pid": pid, "restarts": self.restarts, "problem": self.problem}

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
        ours, theirs = self.context.Pipe()
        arguments = (str(self.kit), self.task.fields(), theirs)
        process = self.context.Process(target=_serve, args=arguments, name=f"cnfgnn-{self.task.do}")
        try:
            process.start()
        except Exception as error:  # it is tried again
            log.error("a worker could not be started: %s: %s", type(error).__name__, error)
            ours.close()
            return None
        finally:
            theirs.close()
        self._process, self._connection = process, ours
        self._ready.set()
        self._receive(ours)
        self._ready.clear()
        self._connection = None
        self._waiting.clear()
        process.join(ENDS_WITHIN)
        if process.is_alive():  # it has closed its connection, and hangs
            process.kill()
            process.join()
        ours.close()
        return int(process.exitcode) if process.exitcode is not None else None

    def _receive(self, connection: Connection) -> None:
        try:
            while True:
                answer = connection.recv_bytes(LARGEST + NUMBER)
                self.problem = ""
                then = self._waiting.pop(int.from_bytes(answer[:NUMBER], "little"), None)
                if then is not None:
                    self._pass(then, answer[NUMBER:])
        except (EOFError, OSError):
            return

    def _pass(self, then: Then, answer: bytes) -> None:
        try:
            then(answer)
        except Exception:  # one answer that cannot be passed on must not stop the others
            log.exception("an answer could not be passed on")


def as_message(number: int, no_more_rounds: str, request: bytes | bytearray) -> bytes:
    """A request as it goes to a worker, with what the owner says of further rounds."""
    said = no_more_rounds.encode()
    return b"".join([HEAD.pack(number, len(said)), said, request])


def parts_of(message: bytes) -> tuple[int, str, memoryview]:
    """What `as_message` has put together."""
    number, length = HEAD.unpack_from(message)
    end = HEAD.size + length
    return number, message[HEAD.size : end].decode(), memoryview(message)[end:]


def _serve(kit: str, task: dict[str, Any], connection: Connection) -> None:
    """In the worker's process, which has loaded the program already; the supervisor never does."""
    from cnfgnn.federation.site.worker import serve

    serve(Path(kit), SiteTask.of(task), connection)
