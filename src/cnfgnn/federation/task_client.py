"""Tasks as the operator gives them: handed to the server, followed to their end, stopped."""

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

from cnfgnn.errors import CnfgnnError, ConfigError, RunError
from cnfgnn.federation.flare.admission import scheduler_ended
from cnfgnn.federation.flare.engine_files import CONTROLLER, EXECUTOR
from cnfgnn.federation.flare.jobs import Session, connect, job_folder
from cnfgnn.federation.kits import kind, read_server
from cnfgnn.federation.process_identity import runs
from cnfgnn.federation.processes import closed_ports, running
from cnfgnn.federation.server_task import RUNS, Task
from cnfgnn.federation.status import ask_to_stop, read_status

LOOKS_EVERY = 0.25  # seconds
ASKS_ENGINE_EVERY = 5.0
SILENT_FOR = 60.0  # seconds after which a server that runs but does not answer is given up
HEARD_WITHIN = 20.0  # seconds: a site that runs says every ten that it is there
STARTS_WITHIN = 30.0  # seconds in which the engine starts a task at sites that answer
OVER = ("finished", "stopped", "failed")


class TaskError(CnfgnnError):
    """A task that failed at the server, with the exit code of what went wrong there."""

    def __init__(self, problem: str, exit_code: int) -> None:
        super().__init__(problem)
        self.exit_code = exit_code


def check_server_kit(kit: Path) -> None:
    if kind(kit) != "server":
        raise ConfigError(str(kit), "this is a site's kit: tasks are given at the server's")


def check_up(kit: Path) -> None:
    """Refuse a kit that is no server's or whose server does not run, or starts no tasks."""
    check_server_kit(kit)
    if running(kit) is None:
        raise RunError(kit, f"its server does not run: cnfgnn federation up {kit}")
    if scheduler_ended(kit):
        problem = "its server's scheduler has ended, so it would never start the task: restart the server"
        raise RunError(kit, f"{problem} (cnfgnn federation down {kit}, then up)")


@contextmanager
def session_when_ready(kit: Path, timeout: float = 30.0) -> Iterator[Session]:
    """A session with a server that may have started a moment ago."""
    until = time.monotonic() + timeout
    while True:
        try:
            context = connect(kit)
            session = context.__enter__()
            break
        except RunError:
            if time.monotonic() > until:
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
        problem = f"its server's process runs but cannot open port {closed[0]}: another program may use it"
        raise RunError(kit, f"{problem}; see {kit / 'console.txt'}")


def perform(kit: Path, task: Task, watch: Callable[[Mapping[str, Any]], None]) -> Mapping[str, Any]:
    """Give a task to the server, show its status to `watch` until it is over, and bring its result.

    A task that has not begun `task.wait` seconds after it was given, and those that the engine needs to start
    it, is given up. Ctrl-C stops the task at the server too; a training that was stopped can be resumed.
    """
    check_up(kit)
    task, begun = replace(task, token=secrets.token_hex(8)), time.monotonic()
    with _alone(kit), session_when_ready(kit) as session:
        _wait_until_free(kit, session)
        _wait_for_a_site(kit, session, task, watch)
        left = task.wait - (time.monotonic() - begun)
        task = replace(task, wait=max(left, min(task.wait, STARTS_WITHIN)))
        with tempfile.TemporaryDirectory(prefix="cnfgnn-task-") as folder:
            # how many sites are enough is ours to say, by name: the engine need not wait for any but one
            job = job_folder(
                Path(folder) / "job", task.do, CONTROLLER, {"task": asdict(task)}, EXECUTOR, {}, min_clients=1
            )
            job_id = session.submit(job)
        try:
            return _followed(kit, session, job_id, task, watch)
        except KeyboardInterrupt:
            ask_to_stop(kit, task.token)
            _until_over(kit, task)
            if not _over(kit, task):  # it was not yet at work, or hangs
                session.abort(job_id)
            raise


@contextmanager
def _alone(kit: Path) -> Iterator[None]:
    """One who gives tasks at a time: the engine would queue a second one without a word."""
    handle = os.open(kit / "task.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            problem = "its server is busy with another task: cnfgnn federation status"
            raise RunError(kit, problem) from None
        yield
    finally:
        os.close(handle)


def _wait_for_a_site(
    kit: Path, session: Session, task: Task, watch: Callable[[Mapping[str, Any]], None]
) -> None:
    """The engine begins no task while nobody is there to take part."""
    until, sites = time.monotonic() + task.wait, plan_of(kit)
    while len(missing := _not_heard_of(sites, session)) == len(sites):
        if time.monotonic() > until:
            raise RunError(kit, f"no site answers ({_listed(missing)}): cnfgnn federation up at each of them")
        watch(_not_begun(task, missing))
        time.sleep(LOOKS_EVERY)


def _not_heard_of(sites: Collection[str], session: Session) -> dict[str, str]:
    """Sites of which the server has heard nothing of late, and since when."""
    heard, now = {site.name: site.last_seen for site in session.connected()}, time.time()
    ago = {name: now - heard[name] if name in heard else None for name in sites}
    return {
        name: "it is not connected" if seconds is None else f"nothing was heard of it for {seconds:.0f} s"
        for name, seconds in ago.items()
        if seconds is None or seconds > HEARD_WITHIN
    }


def _listed(missing: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {why}" for name, why in missing.items())


def _not_begun(task: Task, missing: Mapping[str, str]) -> dict[str, Any]:
    """The status of a task that the server does not know of yet."""
    return {
        "token": task.token,
        "state": "gathering",
        "do": task.do,
        "run": task.run,
        "missing": dict.fromkeys(missing, "the server hears nothing of it"),
    }


def _wait_until_free(kit: Path, session: Session, timeout: float = 60.0) -> None:
    """The engine takes some seconds to clear away a task that is over; one that is not is left alone."""
    until = time.monotonic() + timeout
    while session.running_jobs():
        if at_work(_status(kit)) or time.monotonic() > until:
            raise RunError(kit, "its server is busy with another task: cnfgnn federation status")
        time.sleep(LOOKS_EVERY)


def _followed(
    kit: Path, session: Session, job_id: str, task: Task, watch: Callable[[Mapping[str, Any]], None]
) -> Mapping[str, Any]:
    asked = answered = begun = time.monotonic()
    while True:
        status = _status(kit)
        known = status.get("token") == task.token
        if known:
            watch(status)
            if status.get("state") in OVER:
                break
        if time.monotonic() - asked > ASKS_ENGINE_EVERY:
            asked = time.monotonic()
            try:
                ended = session.state(job_id).startswith("FINISHED")
                if not known:
                    _check_begins(kit, session, job_id, task, watch, asked - begun)
                answered = asked
            except RunError:  # it may be busy; whether it still works on the task can be seen without it
                ended = running(kit) is None or asked - answered > SILENT_FOR
            if (ended or _died(kit, task)) and not _over(kit, task):
                raise TaskError(_broken_off(kit, task), 3)
        time.sleep(LOOKS_EVERY)
    if status["state"] == "failed":
        raise TaskError(str(status["problem"]), int(status["exit_code"]) or 1)
    if status["state"] == "stopped":
        raise TaskError("the task was stopped", 130)
    result: Mapping[str, Any] = status["result"]
    return result


def _check_begins(
    kit: Path,
    session: Session,
    job_id: str,
    task: Task,
    watch: Callable[[Mapping[str, Any]], None],
    seconds: float,
) -> None:
    """Say who is waited for while the engine cannot begin a task, and give it up in time."""
    missing = _not_heard_of(plan_of(kit), session)
    watch(_not_begun(task, missing))
    if seconds > task.wait + STARTS_WITHIN:
        with suppress(RunError):
            session.abort(job_id)
        who = f" ({_listed(missing)})" if missing else ""
        problem = f"the server could not begin the task within {seconds:.0f} s{who}"
        raise TaskError(f"{problem}; {_advice(kit, task)}", 3)


def _broken_off(kit: Path, task: Task) -> str:
    """What happened, and what its operator does about it."""
    up = "" if running(kit) else f"; start the server: cnfgnn federation up {kit}"
    return f"the server's process for this task ended before it was done{up}; {_advice(kit, task)}"


def _advice(kit: Path, task: Task) -> str:
    if task.do == "train" and has_begun(kit, task.run):
        return f"go on with --resume {task.run}"
    return "nothing of it was kept: give the command again"


def has_begun(kit: Path, run: str) -> bool:
    """Whether there is a run of this name to go on with."""
    return (kit / RUNS / run / "manifest.json").is_file()


def _over(kit: Path, task: Task) -> bool:
    status = _status(kit)
    return status.get("token") == task.token and status.get("state") in OVER


def _died(kit: Path, task: Task) -> bool:
    """The engine of a server that was killed and started again would say for ever that the task runs."""
    status = _status(kit)
    return status.get("token") == task.token and not at_work(status)


def at_work(status: Mapping[str, Any]) -> bool:
    """Whether the process that wrote a status is still there and not done."""
    process = status.get("process") or {"pid": status.get("pid")}  # as earlier versions wrote it
    return status.get("state") not in OVER and isinstance(process, dict) and runs(process)


def _status(kit: Path) -> Mapping[str, Any]:
    """What there is of it: a file that a power cut damaged is replaced by the next task's."""
    try:
        return read_status(kit) or {}
    except RunError:
        return {}


def _until_over(kit: Path, task: Task, timeout: float = 20.0) -> None:
    until = time.monotonic() + timeout
    while time.monotonic() < until and not _over(kit, task):
        time.sleep(LOOKS_EVERY)


def plan_of(kit: Path) -> Mapping[str, int]:
    """The sites of a server's kit and how many sensors each owns."""
    return {site.name: len(site.sensors) for site in read_server(kit).sites}


def connected_sites(kit: Path) -> dict[str, float]:
    """Sites that the server hears from, and when it last did, in seconds since 1970."""
    with session_when_ready(kit, 10.0) as session:
        return {site.name: site.last_seen for site in session.connected()}
