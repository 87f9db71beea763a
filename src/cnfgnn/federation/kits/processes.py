"""The processes of a kit: starting, finding and stopping the parent process and the jobs it runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from cnfgnn.errors import RunError, StorageError
from cnfgnn.federation.kits.certificates import check_valid, in_subject
from cnfgnn.federation.kits.certificates import read as read_certificate
from cnfgnn.federation.kits.engine_files import (
    CONNECTION_FILE,
    ENGINE_FOLDER,
    ENGINE_LIMITS,
    SITE_PROGRAM,
    TASK_ID,
    absolute_places,
)
from cnfgnn.federation.kits.kit import check_current, role, site_name
from cnfgnn.federation.kits.ports import check_ports_free, closed_ports, server_port
from cnfgnn.federation.kits.process_identity import identity, is_running
from cnfgnn.federation.kits.renewal import finish_renewal
from cnfgnn.files import hold_lock, read_json_or_empty, write_whole
from cnfgnn.live.options import LIVE
from cnfgnn.transports.remote.messages import legible

ENGINE = "nvflare.private.fed.app."
SERVER_PROGRAM = f"{ENGINE}server.server_train"
SUPERVISOR = "cnfgnn.federation.site.supervisor"
OF_KITS = (ENGINE, SITE_PROGRAM, SUPERVISOR)  # how the programs of a kit's processes begin
SUPERVISOR_STATUS = "supervisor.json"  # in a site's kit: what runs, and how the engine is confined
PROCESS_FILE = "process.json"
SERVICE = "service.json"  # in the folder of a live service: the identity of the service's process
CONSOLE_FILE = "console.txt"
LAST_OF_CONSOLE = 1 << 16  # bytes that are looked at
CONSOLE_BYTES = 2_000_000  # of which the newer half stays when there are more
HEARTBEAT = 4  # seconds between a site's heartbeats; even, because the engine counts in steps of two
ENDS_WITHIN = 30.0  # seconds for a supervisor to end what it has started
TERMINATES_WITHIN = 5.0  # seconds before a process that was asked to end is killed
READY_WITHIN = 120.0  # seconds for a started process to load its programs and open its ports
LOCK_WITHIN = 30.0  # seconds to wait for another command that starts or stops the kit
STILL_LISTED = 0.3  # seconds in which a process that was just killed may still be listed


def up(kit: str | Path) -> int:
    """Start the process of a kit in the background unless it runs; return its process id.

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
        _prepare(kit)
        return _start(kit)


def run_in_foreground(kit: str | Path) -> None:
    """Become the process of a kit, for a program that watches over it, such as systemd."""
    kit = Path(kit).resolve()
    with _locked(kit):
        if (pid := running(kit)) is not None:
            raise RunError(kit, f"it runs already, as process {pid}")
        _prepare(kit)
        _record(kit, os.getpid())
    os.chdir(kit)
    os.umask(0o077)
    os.execve(sys.executable, [sys.executable, *_program(kit)], _environment(kit))


def _prepare(kit: Path) -> None:
    check_current(kit)
    finish_renewal(kit)
    check_valid(kit)
    if role(kit) == "site":
        server_port(kit)  # refuses files that cannot be read here, and not in the background
        engine_settings(kit)
    _terminate(_processes_of(kit))  # what outlived a killed parent would answer beside the new processes
    check_ports_free(kit)


def active_tasks(kit: Path) -> set[str]:
    """The ids of the tasks that processes of this kit are working on, taken from their command lines."""
    lines = [process.info["cmdline"] or [] for process in _processes_of(kit.resolve())]
    return {task for line in lines for word in line for task in TASK_ID.findall(word)}


def wait_until_listening(kit: str | Path, pid: int, timeout: float = READY_WITHIN) -> None:
    """Wait until a started process has opened its ports; raise at once if it ended."""
    kit = Path(kit).resolve()
    deadline = time.monotonic() + timeout
    while problem := _not_ready(kit, pid):
        if supervisor_status(kit).get("restarts", 0) > 1:
            problem = f"its engine ends right after each start{_last_console_line(kit)}"
            raise RunError(kit, f"{problem}, and is started again until it runs; see {kit / CONSOLE_FILE}")
        if running(kit) != pid:
            problem = f"its process ended right after the start{_last_console_line(kit)}"
            raise RunError(kit, f"{problem}; see {kit / CONSOLE_FILE}")
        if time.monotonic() > deadline:
            raise RunError(kit, f"{problem} within {timeout:.0f} s; see {kit / CONSOLE_FILE}")
        time.sleep(0.2)


def _not_ready(kit: Path, pid: int) -> str:
    """What a kit's process has not done yet; empty if it is ready."""
    if role(kit) == "server":
        closed = closed_ports(kit, pid)
        return f"its process has not opened port {closed[0]}" if closed else ""
    status = supervisor_status(kit)
    loaded = status.get("connected") and (kit / ENGINE_FOLDER / CONNECTION_FILE).exists()
    return "" if loaded or status.get("elsewhere") else "its engine has not started"


def supervisor_status(kit: Path) -> dict[str, Any]:
    """What the supervisor of a site says of its processes; empty if it does not run."""
    found = read_json_or_empty(kit / SUPERVISOR_STATUS)
    return found if isinstance(found.get("process"), dict) and is_running(found["process"]) else {}


def down(kit: str | Path) -> bool:
    """Stop the process of a kit and all that belongs to it; return whether anything was running."""
    kit = Path(kit).resolve()
    with _locked(kit):
        pid = running(kit)
        # End the parent first: it ends its own processes in order, or would restart its jobs.
        parents = [process for process in _processes_of(kit) if process.pid == pid]
        parent_ended = _terminate(parents, ENDS_WITHIN)
        others_ended = _terminate(_processes_of(kit)) or end_live(kit)
        (kit / PROCESS_FILE).unlink(missing_ok=True)
    return parent_ended or others_ended


def running(kit: str | Path) -> int | None:
    """The process id of a kit's parent process; None if it does not run, whatever an old file says."""
    kit = Path(kit)
    role(kit)  # refuses a folder that is not a kit
    recorded = read_json_or_empty(kit / PROCESS_FILE)
    return int(recorded["pid"]) if is_running(recorded) else None


def jobs_of(kit: str | Path) -> list[int]:
    """The process ids of the engine's jobs that run for a kit."""
    kit = Path(kit).resolve()
    parent = running(kit)
    return [process.pid for process in _processes_of(kit, (ENGINE,)) if process.pid != parent]


def _start(kit: Path) -> int:
    try:
        with open_private(kit / CONSOLE_FILE) as console:
            process = subprocess.Popen(
                [sys.executable, *_program(kit)],
                cwd=kit,
                env=_environment(kit),
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C in the terminal must not reach it
                umask=0o077,
            )
        process.returncode = 0  # it outlives us on purpose: keep Python from warning about it
        _record(kit, process.pid)
    except OSError as error:
        raise StorageError(kit, error) from error
    return process.pid


def _record(kit: Path, pid: int) -> None:
    """Write down which process runs for a kit; empty if it has ended already."""
    write_whole(kit / PROCESS_FILE, json.dumps(identity(pid) or {}).encode(), 0o600)


def _program(kit: Path) -> list[str]:
    if role(kit) == "site":
        return ["-u", "-P", "-m", SUPERVISOR, str(kit)]  # the kit has a folder that the engine writes
    (kit / "transfer").mkdir(exist_ok=True)
    settings = ["secure_train=true", f"org={_organisation(kit)}", "config_folder=config"]
    return ["-u", "-m", SERVER_PROGRAM, "-m", str(kit), "-s", "fed_server.json", "--set", *settings]


def engine_settings(kit: Path) -> list[str]:
    """The settings of a site's engine."""
    settings = ["secure_train=true", f"uid={site_name(kit)}", f"heart_beat_interval={HEARTBEAT}"]
    return [*settings, f"org={_organisation(kit)}", "config_folder=config"]


def _last_console_line(kit: Path) -> str:
    """The last line that a process wrote to its console, in brackets; empty if there is none."""
    try:
        with (kit / CONSOLE_FILE).open("rb") as console:
            console.seek(max(0, console.seek(0, os.SEEK_END) - LAST_OF_CONSOLE))
            lines = console.read(LAST_OF_CONSOLE).decode(errors="replace").strip().split("\n")
    except OSError:
        return ""
    return f" ({legible(lines[-1].strip()[:200])})" if lines[-1] else ""


def trim_console(kit: Path) -> None:
    """Keep the end of a console that has grown too long. Whoever writes to it appends, and goes on there."""
    with suppress(OSError):  # there is none in the foreground, and a full disk ends nothing
        handle = os.open(kit / CONSOLE_FILE, os.O_RDWR | os.O_NOFOLLOW)
        try:
            if (size := os.fstat(handle).st_size) > CONSOLE_BYTES:
                end = os.pread(handle, CONSOLE_BYTES // 2, size - CONSOLE_BYTES // 2)
                os.ftruncate(handle, 0)
                os.pwrite(handle, end.partition(b"\n")[2] or end, 0)
        finally:
            os.close(handle)


def _environment(kit: Path) -> dict[str, str]:
    """Our environment, and for the server what the engine reads from it.

    PYTHONPATH becomes absolute, because the process runs in the kit's folder. The server's jobs are stored in
    the kit: the engine's default is a folder under /tmp.
    """
    found = {**os.environ, "PYTHONPATH": absolute_places(os.environ.get("PYTHONPATH", ""))}
    if role(kit) == "server":
        found |= {**ENGINE_LIMITS, "NVFL_JOB_STORE_ROOT": str(kit / "jobs")}
    return found


def _processes_of(kit: Path, programs: tuple[str, ...] = OF_KITS) -> list[Any]:
    """The processes of this kit that run such programs, recognised by their command lines. Those of other
    users, who may give theirs any command line, are none of ours; root has the engine run as another user."""
    import psutil

    places = {str(kit), str(kit / ENGINE_FOLDER)}

    def is_of_kit(line: list[str], users: Any) -> bool:
        ours = os.geteuid() == 0 or (users is not None and users.effective == os.geteuid())
        return ours and any(word.startswith(programs) for word in line) and bool(places & set(line))

    found = psutil.process_iter(["cmdline", "uids"])
    return [each for each in found if is_of_kit(each.info["cmdline"] or [], each.info["uids"])]


def read_live(kit: Path) -> dict[str, Any]:
    """The identity of the process that serves a site live, which outlives its supervisor; empty if none."""
    recorded = read_json_or_empty(kit / LIVE / SERVICE)
    return recorded if is_running(recorded) else {}


def end_live(kit: Path) -> bool:
    """End the live service of a site, if it runs; returns whether it did."""
    recorded = read_live(kit)
    if recorded:
        end_processes([int(recorded["pid"])])
    (kit / LIVE / SERVICE).unlink(missing_ok=True)
    return bool(recorded)


def end_processes(pids: list[int]) -> None:
    """End processes and all that they have started."""
    import psutil

    found = []
    for pid in pids:
        with suppress(psutil.Error):
            process = psutil.Process(pid)
            found += [process, *process.children(recursive=True)]
    _terminate(found)


def _terminate(processes: list[Any], within: float = TERMINATES_WITHIN) -> bool:
    """Terminate processes, kill those that do not end in time; return whether there were any.

    Waiting also keeps our own children from staying behind as zombies.
    """
    import psutil

    for process in processes:
        _unless_ended(process, process.terminate)
    _, remaining = psutil.wait_procs(processes, timeout=within)
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
    return in_subject(read_certificate(file), NameOID.ORGANIZATION_NAME)


@contextmanager
def open_private(path: Path) -> Iterator[int]:
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
    deadline = time.monotonic() + LOCK_WITHIN
    while True:
        try:
            handle = hold_lock(kit / ".lock", kit)
            break
        except RunError:
            if time.monotonic() > deadline:
                problem = "another command is starting or stopping this kit: try again when it is done"
                raise RunError(kit, problem) from None
            time.sleep(0.1)
    try:
        yield
    finally:
        os.close(handle)
