"""A site as a program: `python -m cnfgnn.federation.site.supervisor KIT`.

The supervisor starts the engine, which is confined and not trusted, and a worker for each task, which has the
site's readings. It passes the server's requests from one to the other, starts again what has crashed, and
ends everything in order. It loads neither PyTorch nor the engine.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

from cnfgnn.errors import CnfgnnError
from cnfgnn.federation.frames import END, Frames
from cnfgnn.federation.kits.engine_files import open_to_engine
from cnfgnn.federation.kits.process_identity import identity
from cnfgnn.federation.kits.processes import SUPERVISOR_STATUS as STATUS
from cnfgnn.federation.kits.processes import trim_console
from cnfgnn.federation.kits.retention import remove_old_tasks
from cnfgnn.federation.project import REQUIRED
from cnfgnn.federation.restarts import Pauses
from cnfgnn.federation.site.engine_process import (
    SOCKET,
    EngineProcess,
    describe_end,
    hand_over,
    is_user,
    listen,
    user_of,
)
from cnfgnn.federation.site.losses import note_losses
from cnfgnn.federation.site.permissions import Permissions, RoundsLeft
from cnfgnn.federation.site.sent import Account
from cnfgnn.federation.site.settings import private_places, read_site
from cnfgnn.federation.site.workers import Workers
from cnfgnn.federation.site_task import SiteTask
from cnfgnn.files import holding_lock, write_whole
from cnfgnn.process_setup import adopt_orphans
from cnfgnn.transports.remote.limits import Malformed
from cnfgnn.transports.remote.messages import legible, pack, refused, unpack

LOG, LOG_BYTES = "log.txt", 2_000_000
CHECKED_EVERY = 0.5  # seconds
BACK_WITHIN = 60.0  # seconds in which a job of the engine that crashed may come back to its worker
MOST_JOBS = 32  # connections of the engine's jobs at a time, and of those that may come back
STARTING = "its process for this task is starting"
FAILED = "its process for this task has ended, and is started again; its owner sees why"

log = logging.getLogger(__name__)


class Supervisor:
    """Everything that runs for a site's kit."""

    def __init__(self, kit: Path) -> None:
        self.kit = kit
        self.plan = read_site(kit)
        self.workers = Workers(kit)
        self.permissions = Permissions(kit)
        self.account = Account(kit, self.permissions.day)
        self.engine = EngineProcess(kit, self.plan.engine.user)
        self.ended = threading.Event()
        self.confinement: dict[str, Any] = {}
        self.problem = ""  # why the engine does not run
        self.restarts = 0
        self._control: Frames | None = None
        self._connections: list[Frames] = []  # of the engine's jobs
        self._jobs: dict[str, Frames] = {}  # those that said what their task is
        self._lock = threading.Lock()
        self._written = ""

    def run(self) -> None:
        """Run the site until it is asked to end."""
        try:
            self._keep_engine()
        finally:
            self._close_connections()
            self.engine.end(self.workers.processes)
            self.workers.end_all()
            self.account.close()
            for file in (STATUS, SOCKET):
                (self.kit / file).unlink(missing_ok=True)

    def end(self) -> None:
        self.ended.set()

    # ---- the engine ----------------------------------------------------------------------------------

    def _keep_engine(self) -> None:
        """Start the engine, and start it again when it has ended or its certificate was renewed."""
        pauses = Pauses()
        while not self.ended.is_set():
            begun, how = time.monotonic(), ""
            try:
                with listen(self.kit, self.plan.engine.elsewhere) as listener:
                    threading.Thread(target=self._accept, args=[listener], name="engine", daemon=True).start()
                    code = self._run_engine()
            except (CnfgnnError, OSError, RuntimeError) as error:  # too many processes: workers go on
                code, how = 1, f"the engine cannot be started: {error}"
            self._close_connections()
            self.engine.end(self.workers.processes)
            if self.ended.is_set():
                return
            if code is None:
                log.warning("the certificate or the socket is another one: the engine starts again")
                continue
            pause = pauses.after(time.monotonic() - begun)
            self.restarts += 1
            self.problem = self._unconfined() or how or f"the engine's process {describe_end(code)}"
            log.error("%s: starting it again in %.0f s", self.problem, pause)
            self._write_status()
            self.ended.wait(pause)

    def _run_engine(self) -> int | None:
        """Start the engine and wait until it has ended; returns its exit code, or None if it must start again
        because its certificate was renewed, or because somebody has removed its socket."""
        before = self._files()
        if not self.plan.engine.elsewhere:
            self.engine.start()
        while not self.ended.wait(CHECKED_EVERY):
            process = self.engine.process
            if process is not None and (code := process.poll()) is not None:
                return code
            if self._files() != before:
                return None
            self._write_status()
            trim_console(self.kit)
            with suppress(OSError):  # a folder may be closed to this user for now
                note_losses(self.kit, self.plan)
        return 0

    def _files(self) -> tuple[int, int]:
        """What tells whether the certificate and the socket are still the same."""
        certificate, path = self.kit / "startup" / "client.crt", self.kit / SOCKET
        with suppress(OSError):
            return certificate.stat().st_mtime_ns, path.stat().st_ino if path.exists() else 0
        return 0, 0

    def _accept(self, listener: Any) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return  # it is closed
            try:
                elsewhere = self.plan.engine.elsewhere
                known = is_user(connection, self.engine.user) if elsewhere else self.engine.is_it(connection)
                if not known:
                    log.warning("a process that is not the engine has connected, and was refused")
                    connection.close()
                    continue
                frames = Frames(connection)
                frames.send_json(self.engine.settings())
                threading.Thread(target=self._admit, args=[frames], name="control", daemon=True).start()
            except Exception as error:  # a file that is none of the engine's, for instance
                self.problem = f"the engine could not be given its files: {error}"
                log.error("%s", self.problem)
                connection.close()

    def _admit(self, frames: Frames) -> None:
        """Give the engine's jobs their connections, as long as it runs."""
        try:
            reported = frames.receive_json()
            self.confinement = {**_checked(reported), "open": self._opened(reported)}
            if self.plan.engine.elsewhere:
                self.confinement["other_user"] = user_of(frames.connection) != os.geteuid()
            self.problem = self._unconfined()
            if self.problem:
                log.error("%s", self.problem)
                frames.close()
                return
            with self._lock:
                before, self._control = self._control, frames
            if before is not None:
                before.close()
            while True:
                frames.receive(0)
                if len(self._connections) >= MOST_JOBS:
                    log.error("the engine has too many jobs")
                    break
                self.workers.prepare()
                job = Frames(hand_over(frames))
                threading.Thread(target=self._serve, args=[job], name="job", daemon=True).start()
        except (EOFError, OSError, RuntimeError) as error:  # it is gone, or there are too many threads
            log.info("the engine's connection ends: %s", error)
        with self._lock:
            if self._control is frames:
                self._control = None
        frames.close()

    def _opened(self, reported: Mapping[str, Any]) -> list[str]:
        """What of the site's the engine may open; one that runs elsewhere has other paths."""
        reaches = reported.get("reaches")
        if self.plan.engine.elsewhere or not isinstance(reaches, list):
            return []
        return open_to_engine(map(str, reaches), private_places(self.plan, self.kit))

    def _unconfined(self) -> str:
        """Why the engine may not run, although it could; empty if it may."""
        parts = ("landlock", "seccomp", "capabilities_dropped", "no_new_privileges")
        missing = [part for part in parts if self.confinement and not self.confinement[part]]
        missing += self.confinement.get("open", [])
        if self.plan.engine.confined != REQUIRED or not missing:
            return ""
        return (
            'engine.confined is "required" in local/site.toml, and this machine does not confine the engine'
            f" ({'; '.join(missing)})"
        )

    def _close_connections(self) -> None:
        with self._lock:
            control, self._control = self._control, None
            connections = [*self._connections, *([control] if control is not None else [])]
        for frames in connections:
            frames.close()

    # ---- its jobs ------------------------------------------------------------------------------------

    def _serve(self, frames: Frames) -> None:
        """Pass the requests of one job on to its worker, until the job or the task ends."""
        with self._lock:
            self._connections.append(frames)
        try:
            self._pass_on_all(frames)
        except Exception:  # whatever a job sends, it does not keep its place
            log.exception("a job of the engine could not be served")
        finally:
            with self._lock:
                self._connections.remove(frames)

    def _pass_on_all(self, frames: Frames) -> None:
        task, over = None, False
        try:
            task = SiteTask.of(frames.receive_json())
            with self._lock:
                self._jobs[task.id] = frames  # of a task that has another one, the newest counts
            while not over:
                number, request = frames.receive()
                over = number == END
                if not over:
                    self._pass_on(task, frames, number, request)
        except ValueError as error:
            log.warning("a job of the engine was refused: %s", error)
        except (EOFError, OSError):
            pass
        frames.close()
        if task is not None:  # it keeps its place meanwhile, so that their number is limited
            self.ended.wait(0.0 if over else BACK_WITHIN)
            self._end_worker(task, frames)

    def _end_worker(self, task: SiteTask, frames: Frames) -> None:
        """End the worker of a task whose job has ended, unless the job is back with another connection."""
        with self._lock:
            if self._jobs.get(task.id) is not frames:
                return
            del self._jobs[task.id]
        self.workers.end(task)
        self._write_status()
        try:
            remove_old_tasks(self.kit, self.plan.keep_tasks)
        except (CnfgnnError, OSError) as error:
            log.error("the files of old tasks could not be removed: %s", error)

    def _pass_on(self, task: SiteTask, frames: Frames, number: int, request: bytearray) -> None:
        """Have a worker answer a request, if the owner permits it, and count what is sent."""
        try:
            note = unpack(request)
        except Malformed as error:
            frames.send(number, pack("lost", reason=str(error)[:300]))
            return

        size, about = len(request), replace(note, payload=b"")

        def answered(answer: bytes, rounds: int = 0) -> None:
            self.account.count(task, about, size, unpack(answer), len(answer), time.time(), rounds)
            try:
                frames.send(number, answer)
            except OSError:  # the job is gone, or does not read
                frames.close()

        def rounds_left() -> RoundsLeft:
            return self.permissions.rounds_left(self.account.used(time.time()))

        now = time.time()
        refusal = self.permissions.refusal(task, note, self.account.used(now), now)
        if refusal is not None:
            answered(refused(note, *refusal))
            return
        worker = self.workers.of(task)
        if not isinstance(worker, str) and worker.ask(request, rounds_left, answered):
            return
        if note.kind == "hello":  # other requests are not answered, so that the server asks again
            starting = worker if isinstance(worker, str) else FAILED if worker.problem else STARTING
            answered(refused(note, starting))

    # ---- for the owner -------------------------------------------------------------------------------

    def _write_status(self) -> None:
        engine = self.engine.process
        status: Mapping[str, Any] = {
            "process": identity(os.getpid()),
            "engine": None if engine is None else identity(engine.pid),
            "known_as": self.engine.known_as,
            "connected": self._control is not None,
            "confinement": self.confinement,
            "problem": self.problem if self._control is None else "",
            "restarts": self.restarts,
            "elsewhere": self.plan.engine.elsewhere,
            "workers": self.workers.report(),
        }
        text = json.dumps(status)
        if text != self._written:
            with suppress(CnfgnnError):  # a full disk does not end a site
                write_whole(self.kit / STATUS, text.encode())
                self._written = text


def _checked(report: dict[str, Any]) -> dict[str, Any]:
    """What the engine's process says of its confinement, as far as it is a report of one."""
    kinds: dict[str, type] = {"landlock": int, "user": str, "other_user": bool, "capabilities_dropped": bool}
    kinds |= {"no_new_privileges": bool, "seccomp": bool}
    if not all(type(report.get(key)) is kind for key, kind in kinds.items()):
        raise EOFError("its report is none")
    found = {key: report[key] for key in kinds} | {"user": legible(report["user"], 40)}
    if problem := report.get("user_problem"):
        found["user_problem"] = legible(problem)
    return found


def main(kit: Path) -> None:
    os.umask(0o077)
    os.chdir(kit)
    kit = Path.cwd()
    handler = RotatingFileHandler(kit / LOG, maxBytes=LOG_BYTES, backupCount=1)
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", handlers=[handler]
    )
    with holding_lock(kit / ".supervisor.lock", kit):
        adopt_orphans()
        supervisor = Supervisor(kit)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: supervisor.end())
        supervisor.run()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
