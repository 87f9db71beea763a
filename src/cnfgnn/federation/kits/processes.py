"""The processes of a kit: starting, finding and stopping the parent process and the jobs it runs."""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cnfgnn.errors import RunError, StorageError
from cnfgnn.federation.kits.certificates import check_valid
from cnfgnn.federation.kits.certificates import read as read_certificate
from cnfgnn.federation.kits.engine_files import LARGEST_STREAM
from cnfgnn.federation.kits.kit import check_current, role, site_name
from cnfgnn.federation.kits.ports import ANY_PORT, check_ports_free, closed_ports
from cnfgnn.federation.kits.process_identity import identity, is_running
from cnfgnn.federation.kits.renewal import finish_renewal

ENGINE = "nvflare.private.fed.app."
PROGRAM = {"server": f"{ENGINE}server.server_train", "site": f"{ENGINE}client.client_train"}
CONFIG = {"server": "fed_server.json", "site": "fed_client.json"}
LIVE_SERVICE = "cnfgnn.federation.site.live.service"
PROCESS_FILE = "process.json"
TASK_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
CONSOLE_FILE = "console.txt"
HEARTBEAT = 4  # seconds between a site's heartbeats; even, because the engine counts in steps of two
TERMINATES_WITHIN = 5.0  # seconds before a process that was asked to end is killed
READY_WITHIN = 120.0  # seconds for a started process to load its programs and open its ports
LOCK_WITHIN = 30.0  # seconds to wait for another command that starts or stops the kit
STILL_LISTED = 0.3  # seconds in which a process that was just killed may still be listed


def up(kit: str | Path) -> int:
    """Start the parent process of a kit in the background unless it runs; return its process id.

    Kits of earlier versions, certificates that are not valid and ports in use are refused here. Use
    `wait_until_listening` to find out whether the process came up.
    """
    kit = Path(kit).resolve()
    with _locked(kit):
        if running(kit) is not None:
            time.sleep(STILL_LISTED)
        pid = running(kit)
        if pid is not None:
            return pid
        check_current(kit)
        finish_renewal(kit)
        check_valid(kit)
        _terminate(_engine_processes(kit))  # jobs that outlived a killed parent would answer beside new ones
        check_ports_free(kit)
        return _start(kit)


def active_tasks(kit: Path) -> set[str]:
    """The ids of the tasks that processes of this kit are working on, taken from their command lines."""
    found: set[str] = set()
    for process in _engine_processes(kit.resolve()):
        for word in process.info["cmdline"] or []:
            found |= set(TASK_ID.findall(word))
    return found


def wait_until_listening(kit: str | Path, pid: int, timeout: float = READY_WITHIN) -> None:
    """Wait until a started process has opened its ports; raise at once if it ended."""
    kit = Path(kit).resolve()
    deadline = time.monotonic() + timeout
    while closed := closed_ports(kit, pid):
        if running(kit) != pid:
            problem = f"its process ended right after the start{_last_console_line(kit)}"
            raise RunError(kit, f"{problem}; see {kit / CONSOLE_FILE}")
        if time.monotonic() > deadline:
            port = "a port for its tasks" if closed[0] == ANY_PORT else f"port {closed[0]}"
            problem = f"its process has not opened {port} within {timeout:.0f} s; see {kit / 'log.txt'}"
            raise RunError(kit, problem)
        time.sleep(0.2)


def down(kit: str | Path) -> bool:
    """Stop the process of a kit, its jobs and its live service; return whether anything was running."""
    kit = Path(kit).resolve()
    with _locked(kit):
        pid = running(kit)
        # End the parent first: it would restart its jobs.
        parent_ended = _terminate([process for process in _engine_processes(kit) if process.pid == pid])
        jobs_ended = _terminate(_engine_processes(kit))
        service_ended = _terminate(_processes_of(kit, LIVE_SERVICE))
        (kit / PROCESS_FILE).unlink(missing_ok=True)
    return parent_ended or jobs_ended or service_ended


def running(kit: str | Path) -> int | None:
    """The process id of a kit's parent process; None if it does not run, whatever an old file says."""
    kit = Path(kit)
    role(kit)  # refuses a folder that is not a kit
    try:
        recorded = json.loads((kit / PROCESS_FILE).read_text())
    except (OSError, ValueError):
        return None
    if not isinstance(recorded, dict) or not is_running(recorded):
        return None
    pid = int(recorded["pid"])
    if "ticks" in recorded:
        return pid
    # Earlier versions recorded the start by the wall clock, which may have been set since.
    return pid if pid in [process.pid for process in _engine_processes(kit.resolve())] else None


def jobs_of(kit: str | Path) -> list[int]:
    """The process ids of the jobs that run for a kit."""
    kit = Path(kit).resolve()
    parent = running(kit)
    return [process.pid for process in _engine_processes(kit) if process.pid != parent]


def _start(kit: Path) -> int:
    kit_role = role(kit)
    settings = ["secure_train=true"]
    if kit_role == "site":
        settings += [f"uid={site_name(kit)}", f"heart_beat_interval={HEARTBEAT}"]
    settings += [f"org={_organisation(kit)}", "config_folder=config"]
    program = ["-u", "-m", PROGRAM[kit_role], "-m", str(kit), "-s", CONFIG[kit_role], "--set", *settings]
    try:
        (kit / "transfer").mkdir(exist_ok=True)
        with _private_file(kit / CONSOLE_FILE) as console:
            process = subprocess.Popen(
                [sys.executable, *program],
                cwd=kit,
                env=_environment(kit),
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C in the terminal must not reach it
                umask=0o077,
            )
        process.returncode = 0  # it outlives us on purpose: keep Python from warning about it
        recorded = json.dumps(identity(process.pid) or {})  # empty if it has ended already
        with _private_file(kit / PROCESS_FILE) as file:
            os.truncate(file, 0)
            os.write(file, f"{recorded}\n".encode())
    except OSError as error:
        raise StorageError(kit, error) from error
    return process.pid


def _last_console_line(kit: Path) -> str:
    """The last line that a process wrote to its console, in brackets; empty if there is none."""
    try:
        lines = (kit / CONSOLE_FILE).read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        return ""
    for line in reversed(lines):
        if line.strip():
            return f" ({line.strip()[:200]})"
    return ""


def _environment(kit: Path) -> dict[str, str]:
    """Our environment, and what the engine reads from it.

    PYTHONPATH becomes absolute, because the process runs in the kit's folder. Jobs are stored in the kit: the
    engine's default is a folder under /tmp.
    """
    places = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(os.path.abspath(place) for place in places if place),
        "NVFL_JOB_STORE_ROOT": str(kit / "jobs"),
        "NVFLARE_CLIENT_OUTCOME_WAIT_TIMEOUT": "10",
        "NVFLARE_STREAMING_MAX_BLOB_SIZE": str(LARGEST_STREAM),
        "PYTHONUNBUFFERED": "1",
    }


def _engine_processes(kit: Path) -> list[Any]:
    """Every engine process that works in this kit."""
    return _processes_of(kit, ENGINE)


def _processes_of(kit: Path, program: str) -> list[Any]:
    """The processes of this kit that run such a program, recognised by their command lines."""
    import psutil

    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = process.info["cmdline"] or []
        if any(word.startswith(program) for word in line) and str(kit) in line:
            found.append(process)
    return found


def _terminate(processes: list[Any]) -> bool:
    """Terminate processes, kill those that do not end in time; return whether there were any.

    Waiting also keeps our own children from staying behind as zombies.
    """
    import psutil

    for process in processes:
        _unless_ended(process, process.terminate)
    _, remaining = psutil.wait_procs(processes, timeout=TERMINATES_WITHIN)
    for process in remaining:
        _unless_ended(process, process.kill)
    psutil.wait_procs(remaining, timeout=TERMINATES_WITHIN)
    return bool(processes)


def _unless_ended(process: Any, action: Callable[[], object]) -> None:
    import psutil

    try:
        action()
    except psutil.NoSuchProcess:
        return
    except psutil.AccessDenied as error:
        raise RunError(f"process {process.pid}", "belongs to another user: stop it as that user") from error


def _organisation(kit: Path) -> str:
    """The organisation in the kit's certificate."""
    from cryptography.x509.oid import NameOID

    file = kit / "startup" / ("server.crt" if role(kit) == "server" else "client.crt")
    names = read_certificate(file).subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    return str(names[0].value) if names else ""


@contextmanager
def _private_file(path: Path) -> Iterator[int]:
    """A file to append to that only its owner can read."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        yield handle
    finally:
        os.close(handle)


@contextmanager
def _locked(kit: Path) -> Iterator[None]:
    """Allow one start or stop of a kit at a time."""
    role(kit)  # refuses a folder that is not a kit
    try:
        handle = os.open(kit / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise StorageError(kit / ".lock", error) from error
    try:
        deadline = time.monotonic() + LOCK_WITHIN
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    problem = "another command is starting or stopping this kit: try again when it is done"
                    raise RunError(kit, problem) from None
                time.sleep(0.1)
        yield
    finally:
        os.close(handle)
