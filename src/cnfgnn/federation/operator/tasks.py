"""The operator's side of a task: submit it to the server, follow it to its end, stop it."""

from __future__ import annotations

import os
import secrets
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from cnfgnn.config.settings import Config
from cnfgnn.config.toml import read_changes
from cnfgnn.errors import CnfgnnError, ConfigError, NodeError, RunError
from cnfgnn.federation.engine.carry.jobs import Session, connect, job_folder
from cnfgnn.federation.kits.engine_files import CONTROLLER, EXECUTOR
from cnfgnn.federation.kits.kit import read_server, role
from cnfgnn.federation.kits.ports import closed_ports
from cnfgnn.federation.kits.processes import running
from cnfgnn.federation.server.process_status import scheduler_ended
from cnfgnn.federation.server.status import (
    FINAL_STATES,
    STATUS,
    STOP,
    STOP_TRAINING,
    TRAINING,
    request_stop,
)
from cnfgnn.federation.server.status import is_active as is_active
from cnfgnn.federation.task import RUNS, Task
from cnfgnn.files import hold_lock, read_json_or_empty, write_whole

POLL_INTERVAL = 0.25  # seconds
ENGINE_POLL_INTERVAL = 5.0  # seconds
# The same while the process of a task runs: the engine records every question, and keeps all records.
ENGINE_POLL_WHEN_RUNNING = 600.0
SILENT_FOR = 60.0  # seconds after which a server that runs but does not answer is given up
HEARD_WITHIN = 20.0  # seconds: a connected site sends heartbeats at least every ten
STARTS_WITHIN = 30.0  # seconds in which the engine starts a task at sites that answer
STOPS_WITHIN = 20.0  # seconds for a task to stop after the operator asked it to
FREE_WITHIN = 60.0  # seconds in which the engine cleans up after a finished task
RESTART_AFTER = 2.0  # seconds between attempts to start a live task again
BESIDE = "beside"  # a file with the id of the job that runs beside a live one

Watch = Callable[[Mapping[str, Any]], None]  # is shown the status of a task


class TaskError(CnfgnnError):
    """A task that failed at the server, with the exit code of the error there."""

    def __init__(self, problem: str, exit_code: int) -> None:
        super().__init__(problem)
        self.exit_code = exit_code


def check_server_kit(kit: Path) -> None:
    if role(kit) != "server":
        raise ConfigError(str(kit), "this is a site's kit: run this command with the server's kit")


def check_server_ready(kit: Path) -> None:
    """Refuse a kit that is not a server's, or whose server does not run or does not start tasks."""
    check_server_kit(kit)
    if running(kit) is None:
        raise RunError(kit, f"the server does not run: start it with cnfgnn federation up {kit}")
    if scheduler_ended(kit):
        restart = f"restart it: cnfgnn federation down {kit}, then cnfgnn federation up {kit}"
        raise RunError(kit, f"the server's scheduler has ended, so no task would start; {restart}")


@contextmanager
def session_when_ready(kit: Path, timeout: float = 30.0) -> Iterator[Session]:
    """A session with a server that may have been started a moment ago."""
    deadline = time.monotonic() + timeout
    with ExitStack() as stack:
        while True:
            try:
                session = stack.enter_context(connect(kit))
                break
            except RunError:
                if time.monotonic() > deadline:
                    _check_listening(kit)
                    raise
                time.sleep(0.5)
        yield session


def _check_listening(kit: Path) -> None:
    if (pid := running(kit)) is not None and (closed := closed_ports(kit, pid)):
        problem = f"the server runs but does not listen on port {closed[0]}: another program may use the port"
        raise RunError(kit, f"{problem}; see {kit / 'console.txt'}")


def run_task(kit: Path, task: Task, watch: Watch) -> Mapping[str, Any]:
    """Submit a task to the server, show its status to `watch` until it ends, and return its result.

    The task is given up if it has not begun within `task.wait` seconds plus the time the engine needs to
    start it. Ctrl-C stops the task at the server too; a stopped training can be resumed.
    """
    check_server_ready(kit)
    task, begun = replace(task, token=secrets.token_hex(8)), time.monotonic()
    with _exclusive(kit), session_when_ready(kit) as session:
        _wait_until_free(kit, session)
        _wait_for_a_site(kit, session, task, watch)
        left = task.wait - (time.monotonic() - begun)
        task = replace(task, wait=max(left, min(task.wait, STARTS_WITHIN)))
        job = _Job(kit, session, task, watch)
        try:
            return job.follow()
        except KeyboardInterrupt:
            if not _stop(job.file, task.token):  # it had not begun yet, or it hangs
                with suppress(RunError):  # the server is gone, and its task with it
                    session.abort(job.id)
            raise


def _training(kit: Path, task: Task) -> dict[str, Any]:
    """What sites are told of a run: its method and its rounds, which their owners may permit or not."""
    method, rounds = task.settings.get("method"), task.settings.get("training.rounds")
    for run in (task.run, task.earlier, task.line):
        if run and (method is None or rounds is None) and run_exists(kit, run):
            config = _settings(kit / RUNS / run)
            method, rounds = method or config.method, rounds or config.training.rounds
    return {"method": str(method or ""), "rounds": rounds if type(rounds) is int else 0}


def _settings(folder: Path) -> Config:
    """The settings of a run; opening the run would load PyTorch."""
    try:
        return Config().with_changes(read_changes(folder / "config.toml"))
    except CnfgnnError as error:
        raise RunError(folder, f"its settings cannot be used ({error})") from error


@contextmanager
def _exclusive(kit: Path) -> Iterator[None]:
    """Allow one task at a time: the engine would silently queue a second one."""
    try:
        handle = hold_lock(kit / "task.lock", kit)
    except RunError:
        raise _busy(kit) from None
    try:
        yield
    finally:
        os.close(handle)


def _busy(kit: Path) -> RunError:
    problem = f"the server is busy with another task: cnfgnn federation status {kit} shows which one"
    return RunError(kit, problem)


def _wait_for_a_site(kit: Path, session: Session, task: Task, watch: Watch) -> None:
    """The engine does not begin a task while no site is connected."""
    deadline, sites = time.monotonic() + task.wait, sensors_per_site(kit)
    while len(missing := _unheard_sites(sites, session)) == len(sites):
        if time.monotonic() > deadline:
            problem = f"no site answers ({_listed(missing)}): run cnfgnn federation up at each site"
            raise RunError(kit, problem)
        watch(_pending_status(task, missing))
        time.sleep(POLL_INTERVAL)


def _unheard_sites(sites: Collection[str], session: Session) -> dict[str, str]:
    """The sites that the server has not heard from recently, each with a description."""
    heard, now = {site.name: site.last_seen for site in session.connected()}, time.time()
    unheard = {}
    for name in sites:
        if name not in heard:
            unheard[name] = "it is not connected"
        elif now - heard[name] > HEARD_WITHIN:
            unheard[name] = f"its last heartbeat was {now - heard[name]:.0f} s ago"
    return unheard


def _listed(missing: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {reason}" for name, reason in missing.items())


def _pending_status(task: Task, missing: Mapping[str, str]) -> dict[str, Any]:
    """The status of a task that the server has not begun yet."""
    return {
        "token": task.token,
        "state": "connecting",
        "do": task.do,
        "run": task.run,
        "missing": dict.fromkeys(missing, "the server receives no heartbeat from it"),
    }


def _wait_until_free(kit: Path, session: Session) -> None:
    """Wait while the engine cleans up after a finished task; refuse if a task is still running."""
    deadline = time.monotonic() + FREE_WITHIN
    while set(session.running_jobs()) - {_job_beside(kit)}:
        if is_active(read_json_or_empty(kit / STATUS)) or time.monotonic() > deadline:
            raise _busy(kit)
        time.sleep(POLL_INTERVAL)


class _Job:
    """A task that was submitted to the server, which writes its status to a file."""

    def __init__(self, kit: Path, session: Session, task: Task, watch: Watch) -> None:
        self.kit, self.session, self.task, self.watch = kit, session, task, watch
        self.file = kit / (TRAINING if task.do == "retrain" else STATUS)
        told = {"do": task.do, "run": task.run, **_training(kit, task)}
        told |= {"live": dict(task.live)} if task.do == "live" else {}
        told |= {"states": dict(task.states)} if task.do == "retrain" else {}
        with tempfile.TemporaryDirectory(prefix="cnfgnn-task-") as folder:
            # We decide how many sites are enough; the engine must not wait for more than one.
            of_server, of_sites = {"task": asdict(task)}, {"task": told}
            job = job_folder(Path(folder) / "job", task.do, CONTROLLER, of_server, EXECUTOR, of_sites, 1)
            self.id = session.submit(job)

    def follow(self, stopped: Callable[[], bool] = lambda: False) -> Mapping[str, Any]:
        """Show the status until the task ends or is stopped; return its result."""
        asked = begun = time.monotonic()
        silent_since: float | None = None
        while not stopped():
            if status := self._status():
                self.watch(status)
                if status["state"] in FINAL_STATES:
                    return _result(status)
            is_well = is_active(status) and silent_since is None and running(self.kit) is not None
            if time.monotonic() - asked > (ENGINE_POLL_WHEN_RUNNING if is_well else ENGINE_POLL_INTERVAL):
                asked = time.monotonic()
                try:
                    ended = self._has_ended()
                    if not status:
                        self._check_begins(asked - begun)
                    silent_since = None
                except (
                    RunError
                ):  # the server may be busy; the status shows whether it still works on the task
                    silent_since = asked if silent_since is None else silent_since
                    ended = running(self.kit) is None or asked - silent_since > SILENT_FOR
                # After a restart, the engine of a killed server would report the task as running forever.
                died = bool(status := self._status()) and not is_active(status)
                if (ended or died) and status.get("state") not in FINAL_STATES:
                    raise TaskError(self._interrupted(), 3)
            time.sleep(POLL_INTERVAL)
        _stop(self.file, self.task.token)
        raise TaskError("the task was stopped", 130)

    def abort(self) -> None:
        """End what is left of it."""
        with suppress(RunError, ConfigError):
            if not self._has_ended():
                self.session.abort(self.id)

    def _status(self) -> Mapping[str, Any]:
        """Its status; empty if it has not begun."""
        status = read_json_or_empty(self.file)
        return status if status.get("token") == self.task.token else {}

    def _has_ended(self) -> bool:
        return self.session.state(self.id).startswith("FINISHED")

    def _check_begins(self, seconds: float) -> None:
        """Show which sites are missing while the engine cannot begin a task, and give up in time."""
        missing = _unheard_sites(sensors_per_site(self.kit), self.session)
        self.watch(_pending_status(self.task, missing))
        if seconds > self.task.wait + STARTS_WITHIN:
            with suppress(RunError):
                self.session.abort(self.id)
            sites = f" ({_listed(missing)})" if missing else ""
            problem = f"the server could not begin the task within {seconds:.0f} s{sites}"
            raise TaskError(f"{problem}; {self._next_step()}", 3)

    def _interrupted(self) -> str:
        start = "" if running(self.kit) else f"; start the server: cnfgnn federation up {self.kit}"
        return f"the server's process for this task ended before it was done{start}; {self._next_step()}"

    def _next_step(self) -> str:
        if self.task.do == "train" and run_exists(self.kit, self.task.run):
            return f"continue with --resume {self.task.run}"
        if self.task.do in ("live", "retrain"):
            return "the sites go on by themselves"
        return "nothing was saved: run the command again"


def _stop(file: Path, token: str) -> bool:
    """Ask the task with this status to stop; return whether it did in time."""
    request_stop(file.parent, token, STOP_TRAINING if file.name == TRAINING else STOP)
    deadline = time.monotonic() + STOPS_WITHIN
    while time.monotonic() < deadline:
        status = read_json_or_empty(file)
        if status.get("token") == token and not is_active(status):
            return status.get("state") in FINAL_STATES  # otherwise its process was killed
        time.sleep(POLL_INTERVAL)
    return False


def run_beside(kit: Path, task: Task, stopped: Callable[[], bool]) -> Mapping[str, Any]:
    """Run a task beside a live one, until it ends or is `stopped`; return its result."""
    task = replace(task, token=secrets.token_hex(8))
    with session_when_ready(kit) as session:
        job = _Job(kit, session, task, lambda status: None)
        write_whole(kit / BESIDE, job.id.encode())
        try:
            return job.follow(stopped)
        finally:
            job.abort()


def _job_beside(kit: Path) -> str:
    """The job that was submitted last to run beside a live one."""
    try:
        return (kit / BESIDE).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""


def keep_live(kit: Path, task: Task, watch: Watch, say: Callable[[str], None]) -> Mapping[str, Any]:
    """Keep a live task running until Ctrl-C: start it, or follow it if it runs already, and start it again
    whenever its process or the server has died. Returns the status of the task that Ctrl-C has stopped; empty
    if none could be."""
    begun, said, token = False, "", ""

    def follow(status: Mapping[str, Any]) -> None:
        nonlocal said, token
        token = str(status.get("token"))
        if status.get("state") == "running":
            said = ""
        watch(status)

    def say_once(line: str) -> None:
        """Say what keeps the task from running, and not again before it has run."""
        nonlocal said
        if line != said:
            say(line)
        said = line

    try:
        while True:
            try:
                if is_live(kit, task.run):
                    begun = True
                    _attend(kit, follow)
                else:
                    run_task(kit, task, follow)
            except TaskError as error:
                begun |= run_exists(kit, task.run) and read_json_or_empty(kit / STATUS).get("do") == "live"
                if not begun or error.exit_code not in (1, NodeError.exit_code):
                    raise
                say_once(f"{error}: the task is started again")
            except RunError as error:
                if not begun:
                    raise
                say_once(f"{error}: waiting")
            time.sleep(RESTART_AFTER)
    except KeyboardInterrupt:
        last = read_json_or_empty(kit / STATUS)
        return last if (last.get("token"), last.get("state")) == (token, "stopped") else {}


def is_live(kit: Path, run: str) -> bool:
    """Whether the server's live task of a run is under way."""
    status = read_json_or_empty(kit / STATUS)
    return status.get("do") == "live" and status.get("run") == run and is_active(status)


def _attend(kit: Path, watch: Watch) -> None:
    """Follow a live task that was started before, until it ends; Ctrl-C stops it."""
    file = kit / STATUS
    token = str(read_json_or_empty(file).get("token"))
    try:
        while is_active(status := read_json_or_empty(file)):
            watch(status)
            time.sleep(POLL_INTERVAL)
    except KeyboardInterrupt:
        _stop(file, token)
        raise
    if status.get("state") in FINAL_STATES:
        _result(status)


def _result(status: Mapping[str, Any]) -> Mapping[str, Any]:
    if status["state"] == "failed":
        raise TaskError(str(status["problem"]), int(status["exit_code"]) or 1)
    if status["state"] == "stopped":
        raise TaskError("the task was stopped", 130)
    result: Mapping[str, Any] = status["result"]
    return result


def run_exists(kit: Path, run: str) -> bool:
    """Whether there is a run of this name that can be resumed."""
    return (kit / RUNS / run / "manifest.json").is_file()


def sensors_per_site(kit: Path) -> Mapping[str, int]:
    """The sites of a server's kit and how many sensors each owns."""
    return {site.name: len(site.sensors) for site in read_server(kit).sites}


def connected_sites(kit: Path) -> dict[str, float]:
    """The connected sites, and when the server last heard from each (seconds since 1970)."""
    with session_when_ready(kit, 10.0) as session:
        return {site.name: site.last_seen for site in session.connected()}
