"""The operator's side of a task: submit it to the server, follow it to its end, stop it."""

from __future__ import annotations

import fcntl
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from cnfgnn.errors import CnfgnnError, ConfigError, NodeError, RunError, StorageError
from cnfgnn.federation.engine.carry.jobs import Session, connect, job_folder
from cnfgnn.federation.kits.engine_files import CONTROLLER, EXECUTOR
from cnfgnn.federation.kits.kit import read_server, role
from cnfgnn.federation.kits.ports import closed_ports
from cnfgnn.federation.kits.process_identity import is_running
from cnfgnn.federation.kits.processes import running
from cnfgnn.federation.server.process_status import scheduler_ended
from cnfgnn.federation.server.status import STATUS, STOP_TRAINING, TRAINING, read_status, request_stop
from cnfgnn.federation.server.task import RUNS, Task
from cnfgnn.files import write_whole
from cnfgnn.runs.folder import Run

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
FINAL_STATES = ("finished", "stopped", "failed")

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
        restart = f"cnfgnn federation down {kit}, then cnfgnn federation up {kit}"
        raise RunError(
            kit, f"the server's scheduler has ended, so no task would start; restart it: {restart}"
        )


@contextmanager
def session_when_ready(kit: Path, timeout: float = 30.0) -> Iterator[Session]:
    """A session with a server that may have been started a moment ago."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            context = connect(kit)
            session = context.__enter__()
            break
        except RunError:
            if time.monotonic() > deadline:
                _check_listening(kit)
                raise
            time.sleep(0.5)
    try:
        yield session
    finally:
        context.__exit__(None, None, None)


def _check_listening(kit: Path) -> None:
    pid = running(kit)
    closed = closed_ports(kit, pid) if pid is not None else []
    if closed:
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
        job_id = _submit(kit, session, task)
        try:
            return _follow(kit, session, job_id, task, watch)
        except KeyboardInterrupt:
            request_stop(kit, task.token)
            _wait_until_ended(kit, task)
            if not _has_ended(kit, task):  # it had not begun yet, or it hangs
                session.abort(job_id)
            raise


def _submit(kit: Path, session: Session, task: Task) -> str:
    with tempfile.TemporaryDirectory(prefix="cnfgnn-task-") as folder:
        # We decide how many sites are enough; the engine must not wait for more than one.
        told = {"do": task.do, "run": task.run, **_training(kit, task)}
        told |= {"live": dict(task.live)} if task.do == "live" else {}
        told |= {"states": dict(task.states)} if task.do == "retrain" else {}
        job = job_folder(
            Path(folder) / "job",
            task.do,
            CONTROLLER,
            {"task": asdict(task)},
            EXECUTOR,
            {"task": told},
            min_clients=1,
        )
        return session.submit(job)


def _training(kit: Path, task: Task) -> dict[str, Any]:
    """What sites are told of a run: its method and its rounds, which their owners may permit or not."""
    method, rounds = task.settings.get("method"), task.settings.get("training.rounds")
    for run in (task.run, task.earlier, task.line):
        if run and (method is None or rounds is None) and run_exists(kit, run):
            config = Run.open(kit / RUNS / run).config
            method, rounds = method or config.method, rounds or config.training.rounds
    return {"method": str(method or ""), "rounds": rounds if type(rounds) is int else 0}


@contextmanager
def _exclusive(kit: Path) -> Iterator[None]:
    """Allow one task at a time: the engine would silently queue a second one."""
    try:
        handle = os.open(kit / "task.lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise StorageError(kit / "task.lock", error) from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise _busy(kit) from None
        yield
    finally:
        os.close(handle)


def _busy(kit: Path) -> RunError:
    return RunError(
        kit, f"the server is busy with another task: cnfgnn federation status {kit} shows which one"
    )


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
        if is_active(_status(kit)) or time.monotonic() > deadline:
            raise _busy(kit)
        time.sleep(POLL_INTERVAL)


def _follow(kit: Path, session: Session, job_id: str, task: Task, watch: Watch) -> Mapping[str, Any]:
    asked = begun = time.monotonic()
    silent_since: float | None = None
    while True:
        status = _status(kit)
        has_begun = status.get("token") == task.token
        if has_begun:
            watch(status)
            if status.get("state") in FINAL_STATES:
                return _result(status)
        is_well = has_begun and is_active(status) and silent_since is None
        pause = ENGINE_POLL_WHEN_RUNNING if is_well and running(kit) is not None else ENGINE_POLL_INTERVAL
        if time.monotonic() - asked > pause:
            asked = time.monotonic()
            try:
                ended = session.state(job_id).startswith("FINISHED")
                if not has_begun:
                    _check_begins(kit, session, job_id, task, watch, asked - begun)
                silent_since = None
            except RunError:  # the server may be busy; the status shows whether it still works on the task
                silent_since = asked if silent_since is None else silent_since
                ended = running(kit) is None or asked - silent_since > SILENT_FOR
            if (ended or _process_died(kit, task)) and not _has_ended(kit, task):
                raise TaskError(_interrupted(kit, task), 3)
        time.sleep(POLL_INTERVAL)


def run_beside(kit: Path, task: Task, stopped: Callable[[], bool]) -> Mapping[str, Any]:
    """Run a task beside a live one, until it ends or is `stopped`; return its result."""
    task, begun = replace(task, token=secrets.token_hex(8)), time.monotonic()
    with session_when_ready(kit) as session:
        job_id = _submit(kit, session, task)
        write_whole(kit / BESIDE, job_id.encode())
        try:
            return _follow_beside(kit, session, job_id, task, begun, stopped)
        finally:
            with suppress(RunError, ConfigError):
                if not session.state(job_id).startswith("FINISHED"):
                    session.abort(job_id)


def _follow_beside(
    kit: Path, session: Session, job_id: str, task: Task, begun: float, stopped: Callable[[], bool]
) -> Mapping[str, Any]:
    asked = begun
    while not stopped():
        status = _status(kit, TRAINING)
        has_begun = status.get("token") == task.token
        if has_begun and status.get("state") in FINAL_STATES:
            return _result(status)
        if time.monotonic() - asked > ENGINE_POLL_INTERVAL:
            asked = time.monotonic()
            ended = session.state(job_id).startswith("FINISHED") or (has_begun and not is_active(status))
            if ended and _status(kit, TRAINING).get("state") not in FINAL_STATES:
                raise TaskError("the server's process for the training ended before it was done", 3)
            if not has_begun and asked - begun > task.wait + STARTS_WITHIN:
                raise TaskError(f"the server could not begin the training within {asked - begun:.0f} s", 3)
        time.sleep(POLL_INTERVAL)
    request_stop(kit, task.token, STOP_TRAINING)
    deadline = time.monotonic() + STOPS_WITHIN
    while is_active(_status(kit, TRAINING)) and time.monotonic() < deadline:
        time.sleep(POLL_INTERVAL)
    raise TaskError("the training was stopped", 130)


def _job_beside(kit: Path) -> str:
    """The job that was submitted last to run beside a live one."""
    try:
        return (kit / BESIDE).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""


def keep_live(kit: Path, task: Task, watch: Watch, say: Callable[[str], None]) -> None:
    """Keep a live task running until Ctrl-C: start it, or follow it if it runs already, and start it again
    whenever its process or the server has died."""
    begun = False
    while True:
        try:
            if is_live(kit, task.run):
                begun = True
                _attend(kit, watch)
            else:
                run_task(kit, task, watch)
        except TaskError as error:
            begun |= run_exists(kit, task.run) and _status(kit).get("do") == "live"
            if not begun or error.exit_code not in (1, NodeError.exit_code):
                raise
            say(f"{error}: the task is started again")
        except RunError as error:
            if not begun:
                raise
            say(f"{error}: waiting")
        time.sleep(RESTART_AFTER)


def is_live(kit: Path, run: str) -> bool:
    """Whether the server's live task of a run is under way."""
    status = _status(kit)
    return status.get("do") == "live" and status.get("run") == run and is_active(status)


def _attend(kit: Path, watch: Watch) -> None:
    """Follow a live task that was started before, until it ends; Ctrl-C stops it."""
    token = str(_status(kit).get("token"))
    try:
        while is_active(status := _status(kit)):
            watch(status)
            time.sleep(POLL_INTERVAL)
    except KeyboardInterrupt:
        request_stop(kit, token)
        deadline = time.monotonic() + STOPS_WITHIN
        while is_active(_status(kit)) and time.monotonic() < deadline:
            time.sleep(POLL_INTERVAL)
        raise
    if status.get("state") == "failed":
        raise TaskError(str(status["problem"]), int(status["exit_code"]) or 1)
    if status.get("state") == "stopped":
        raise TaskError("the task was stopped", 130)


def _result(status: Mapping[str, Any]) -> Mapping[str, Any]:
    if status["state"] == "failed":
        raise TaskError(str(status["problem"]), int(status["exit_code"]) or 1)
    if status["state"] == "stopped":
        raise TaskError("the task was stopped", 130)
    result: Mapping[str, Any] = status["result"]
    return result


def _check_begins(kit: Path, session: Session, job_id: str, task: Task, watch: Watch, seconds: float) -> None:
    """Show which sites are missing while the engine cannot begin a task, and give up in time."""
    missing = _unheard_sites(sensors_per_site(kit), session)
    watch(_pending_status(task, missing))
    if seconds > task.wait + STARTS_WITHIN:
        with suppress(RunError):
            session.abort(job_id)
        sites = f" ({_listed(missing)})" if missing else ""
        problem = f"the server could not begin the task within {seconds:.0f} s{sites}"
        raise TaskError(f"{problem}; {_next_step(kit, task)}", 3)


def _interrupted(kit: Path, task: Task) -> str:
    """The message about a task whose process ended too early."""
    start = "" if running(kit) else f"; start the server: cnfgnn federation up {kit}"
    return f"the server's process for this task ended before it was done{start}; {_next_step(kit, task)}"


def _next_step(kit: Path, task: Task) -> str:
    if task.do == "train" and run_exists(kit, task.run):
        return f"continue with --resume {task.run}"
    if task.do == "live":
        return "the sites go on by themselves"
    return "nothing was saved: run the command again"


def run_exists(kit: Path, run: str) -> bool:
    """Whether there is a run of this name that can be resumed."""
    return (kit / RUNS / run / "manifest.json").is_file()


def _has_ended(kit: Path, task: Task) -> bool:
    status = _status(kit)
    return status.get("token") == task.token and status.get("state") in FINAL_STATES


def _process_died(kit: Path, task: Task) -> bool:
    """Whether the task's process is gone. After a server was killed and restarted, its engine would report
    the task as running forever."""
    status = _status(kit)
    return status.get("token") == task.token and not is_active(status)


def is_active(status: Mapping[str, Any]) -> bool:
    """Whether the process that wrote a status still runs and has not finished its task."""
    process = status.get("process") or {}
    return status.get("state") not in FINAL_STATES and isinstance(process, dict) and is_running(process)


def _status(kit: Path, file: str = STATUS) -> Mapping[str, Any]:
    """The status; empty if it is missing, or damaged by a power cut (the next task replaces it)."""
    try:
        return read_status(kit, file) or {}
    except RunError:
        return {}


def _wait_until_ended(kit: Path, task: Task) -> None:
    deadline = time.monotonic() + STOPS_WITHIN
    while time.monotonic() < deadline and not _has_ended(kit, task):
        time.sleep(POLL_INTERVAL)


def sensors_per_site(kit: Path) -> Mapping[str, int]:
    """The sites of a server's kit and how many sensors each owns."""
    return {site.name: len(site.sensors) for site in read_server(kit).sites}


def connected_sites(kit: Path) -> dict[str, float]:
    """The connected sites, and when the server last heard from each (seconds since 1970)."""
    with session_when_ready(kit, 10.0) as session:
        return {site.name: site.last_seen for site in session.connected()}
