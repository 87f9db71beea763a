"""The process behind a kit: started, found again and stopped, with every job process it has."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cnfgnn.errors import RunError, StorageError
from cnfgnn.federation.identity import identity, runs
from cnfgnn.federation.kits import kind

ENGINE = "nvflare.private.fed.app."
PROGRAM = {"server": f"{ENGINE}server.server_train", "site": f"{ENGINE}client.client_train"}
CONFIG = {"server": "fed_server.json", "site": "fed_client.json"}
PROCESS_FILE = "process.json"
CONSOLE_FILE = "console.txt"
HEARTBEAT = 4  # seconds between a site's signs of life, an even number because the engine counts in twos
GRACE = 5.0
DYING = 0.3  # seconds in which a process that was just killed is still listed


def up(kit: str | Path) -> int:
    """Start the process of a kit, unless it runs; the process goes on when its caller ends."""
    kit = Path(kit).resolve()
    with _locked(kit):
        if running(kit) is not None:
            time.sleep(DYING)
        pid = running(kit)
        if pid is not None:
            return pid
        _end(_of_kit(kit))  # job processes that outlived a killed parent would answer beside the new ones
        return _start(kit)


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
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    file = kit / "startup" / ("server.crt" if kind(kit) == "server" else "client.crt")
    try:
        subject = x509.load_pem_x509_certificate(file.read_bytes()).subject
    except (OSError, ValueError) as error:
        raise RunError(kit, f"its certificate {file.name} cannot be read") from error
    names = subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
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
