"""The process behind a kit: started, found again and stopped, with every job process it has."""

from __future__ import annotations

import fcntl
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cnfgnn.errors import RunError, StorageError
from cnfgnn.federation.certificates import check_valid
from cnfgnn.federation.certificates import read as read_certificate
from cnfgnn.federation.kits import check_current, kind
from cnfgnn.federation.process_identity import identity, runs

ENGINE = "nvflare.private.fed.app."
PROGRAM = {"server": f"{ENGINE}server.server_train", "site": f"{ENGINE}client.client_train"}
CONFIG = {"server": "fed_server.json", "site": "fed_client.json"}
PROCESS_FILE = "process.json"
TASK_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
CONSOLE_FILE = "console.txt"
HEARTBEAT = 4  # seconds between a site's signs of life, an even number because the engine counts in twos
GRACE = 5.0
READY_WITHIN = 120.0  # seconds for a started process to load its programs and open its ports
DYING = 0.3  # seconds in which a process that was just killed is still listed


def up(kit: str | Path) -> int:
    """Start the process of a kit, unless it runs; the process goes on when its caller ends.

    Certificates that cannot be used and ports that another program holds are refused here. Whether the
    process came up is for `settle` to say.
    """
    kit = Path(kit).resolve()
    with _locked(kit):
        if running(kit) is not None:
            time.sleep(DYING)
        pid = running(kit)
        if pid is not None:
            return pid
        check_current(kit)
        check_valid(kit)
        _end(_of_kit(kit))  # job processes that outlived a killed parent would answer beside the new ones
        _check_ports_free(kit)
        return _start(kit)


def tasks_of(kit: Path) -> set[str]:
    """The ids of the tasks that processes of this kit work on, from their command lines."""
    lines = [process.info["cmdline"] or [] for process in _of_kit(kit.resolve())]
    return {found for line in lines for word in line for found in TASK_ID.findall(word)}


def settle(kit: str | Path, pid: int, timeout: float = READY_WITHIN) -> None:
    """Wait until a started process has opened its ports; say at once what is wrong if it ended."""
    kit = Path(kit).resolve()
    until = time.monotonic() + timeout
    while closed := closed_ports(kit, pid):
        if running(kit) != pid:
            said = _last_words(kit)
            raise RunError(
                kit, f"its process ended as soon as it was started{said}; see {kit / CONSOLE_FILE}"
            )
        if time.monotonic() > until:
            what = f"port {closed[0]}" if closed[0] else "a port for its tasks"
            problem = f"its process has not opened {what} within {timeout:.0f} s; see {kit / 'log.txt'}"
            raise RunError(kit, problem)
        time.sleep(0.2)


def closed_ports(kit: Path, pid: int) -> list[int]:
    """The ports on which a kit's process ought to listen and does not.

    A site's process listens only for its own tasks, on any port of this machine: that one is shown as 0.
    """
    import psutil

    try:
        found = psutil.Process(pid).net_connections("tcp")
    except psutil.AccessDenied:
        return []  # nobody may look here, so nobody can say that one is closed
    except psutil.Error:
        found = []
    listening = {connection.laddr.port for connection in found if connection.status == psutil.CONN_LISTEN}
    if kind(kit) == "site":
        return [] if listening else [0]
    return [port for _, port in _ports(kit) if port not in listening]


def down(kit: str | Path) -> bool:
    """Stop the process of a kit and its jobs; whether there was anything to stop."""
    kit = Path(kit).resolve()
    with _locked(kit):
        pid = running(kit)
        # The parent first: it would start its jobs again.
        found = _end([process for process in _of_kit(kit) if process.pid == pid])
        found = _end(_of_kit(kit)) or found
        (kit / PROCESS_FILE).unlink(missing_ok=True)
    return found


def running(kit: str | Path) -> int | None:
    """The process id of a kit's process, if it runs: a file left by a dead one does not count."""
    kit = Path(kit)
    kind(kit)
    try:
        noted = json.loads((kit / PROCESS_FILE).read_text())
    except (OSError, ValueError):
        return None
    if not isinstance(noted, dict) or not runs(noted):
        return None
    pid = int(noted["pid"])
    # Earlier versions noted when the process started by the wall clock, which may have been set since.
    return pid if "ticks" in noted or pid in [process.pid for process in _of_kit(kit.resolve())] else None


def jobs_of(kit: str | Path) -> list[int]:
    """The process ids of the jobs that run for a kit."""
    kit = Path(kit).resolve()
    parent = running(kit)
    return [process.pid for process in _of_kit(kit) if process.pid != parent]


def _start(kit: Path) -> int:
    what = kind(kit)
    name = ["uid=" + _site_name(kit), f"heart_beat_interval={HEARTBEAT}"] if what == "site" else []
    settings = ["secure_train=true", *name, f"org={_organisation(kit)}", "config_folder=config"]
    program = ["-u", "-m", PROGRAM[what], "-m", str(kit), "-s", CONFIG[what], "--set", *settings]
    try:
        (kit / "transfer").mkdir(exist_ok=True)
        with _private(kit / CONSOLE_FILE) as console:
            process = subprocess.Popen(
                [sys.executable, *program],
                cwd=kit,
                env=_environment(kit),
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C in the terminal that started it is not meant for it
                umask=0o077,
            )
        process.returncode = 0  # it is meant to outlive us: Python shall not complain that it still runs
        noted = json.dumps(identity(process.pid) or {})  # nothing to find again if it has ended already
        with _private(kit / PROCESS_FILE) as file:
            os.truncate(file, 0)
            os.write(file, f"{noted}\n".encode())
    except OSError as error:
        raise StorageError(kit, error) from error
    return process.pid


def _ports(kit: Path) -> list[tuple[str, int]]:
    """Where the server of a kit listens: for sites, and for its operator."""
    server = json.loads((kit / "startup" / CONFIG["server"]).read_text())["servers"][0]
    host, _, port = str(server["service"]["target"]).rpartition(":")
    local = host == "localhost" or host.startswith("127.")
    operator = (str(server.get("admin_host", "127.0.0.1")), int(server["admin_port"]))
    return [("127.0.0.1" if local else "0.0.0.0", int(port)), operator]


def _check_ports_free(kit: Path) -> None:
    """Refuse ports that another program has; those of a server that was just killed are free in a moment."""
    until = time.monotonic() + GRACE
    for host, port in _ports(kit) if kind(kit) == "server" else []:
        while (problem := _cannot_listen(host, port)) and time.monotonic() < until:
            time.sleep(0.1)
        if problem:
            raise RunError(kit, f"port {port} cannot be opened ({problem}); is another program using it?")


def _cannot_listen(host: str, port: int) -> str:
    with socket.socket() as attempt:
        attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the engine does
        try:
            attempt.bind((host, port))
            attempt.listen(1)
        except OSError as error:
            return error.strerror or str(error)
    return ""


def _last_words(kit: Path) -> str:
    """The last line that a process wrote to its console."""
    try:
        lines = (kit / CONSOLE_FILE).read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        return ""
    said = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f" ({said[:200]})" if said else ""


def _environment(kit: Path) -> dict[str, str]:
    """Ours, and what the engine reads from there; a job in the engine's own folder is gone with /tmp."""
    places = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(
            os.path.abspath(place) for place in places if place
        ),  # it works elsewhere
        "NVFL_JOB_STORE_ROOT": str(kit / "jobs"),
        "NVFLARE_CLIENT_OUTCOME_WAIT_TIMEOUT": "10",
        "PYTHONUNBUFFERED": "1",
    }


def _of_kit(kit: Path) -> list[Any]:
    """Every process of the engine that works in this kit, by its command line."""
    import psutil

    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = process.info["cmdline"] or []
        if any(word.startswith(ENGINE) for word in line) and str(kit) in line:
            found.append(process)
    return found


def _end(processes: list[Any]) -> bool:
    """Ask them to end, wait a little, end them; a stopped child of ours is not left a zombie."""
    import psutil

    for process in processes:
        _quietly(process.terminate)
    _, stubborn = psutil.wait_procs(processes, timeout=GRACE)
    for process in stubborn:
        _quietly(process.kill)
    psutil.wait_procs(stubborn, timeout=GRACE)
    return bool(processes)


def _quietly(action: Any) -> None:
    import psutil

    try:
        action()
    except psutil.NoSuchProcess:
        return


def _site_name(kit: Path) -> str:
    """The name in the engine's own file: a person may edit site.toml, but the certificate has this one."""
    config = json.loads((kit / "startup" / CONFIG["site"]).read_text())
    return str(config["client"]["fqsn"])


def _organisation(kit: Path) -> str:
    """As the kit's certificate has it."""
    from cryptography.x509.oid import NameOID

    file = kit / "startup" / ("server.crt" if kind(kit) == "server" else "client.crt")
    names = read_certificate(file).subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    return str(names[0].value) if names else ""


@contextmanager
def _private(path: Path) -> Iterator[int]:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        yield handle
    finally:
        os.close(handle)


@contextmanager
def _locked(kit: Path) -> Iterator[None]:
    """One start or stop of a kit at a time."""
    kind(kit)
    handle = os.open(kit / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        until = time.monotonic() + 30
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise RunError(kit, "another command is starting or stopping it") from None
                time.sleep(0.1)
        yield
    finally:
        os.close(handle)
