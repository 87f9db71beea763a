"""The engine's process at a site: what it is given, and how it is started, admitted and ended.

It is not trusted. It gets its files and settings when it connects, an environment without the owner's
secrets, a folder of its own that is emptied at each start, and connections to the site for its jobs.
"""

from __future__ import annotations

import json
import logging
import os
import pwd
import secrets
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from cnfgnn.errors import ConfigError, StorageError
from cnfgnn.federation.frames import Frames, short_name
from cnfgnn.federation.kits.engine_files import (
    ENGINE_FOLDER,
    KEPT,
    SITE_PROGRAM,
    engine_environment,
    with_port,
)
from cnfgnn.federation.kits.ports import server_port
from cnfgnn.federation.kits.processes import CONSOLE_FILE, end_processes, engine_settings, open_private
from cnfgnn.federation.kits.retention import DELETED_PREFIX
from cnfgnn.files import make_folder

SOCKET = "socket/site.sock"  # in the kit; its folder is what an engine in a container of its own shares
CONNECTION_CONFIG = "local/comm_config.json"
ENGINE_FILES = ("resources.json", "authorization.json", "comm_config.json", "log_config.json")
KEPT_BYTES = 1 << 20  # of each
STRAYS_END_WITHIN = 5.0  # seconds for processes that the engine has started to be killed
READ_WITHIN = 20  # seconds for a job of the engine to read what it is sent
_CREDENTIALS, _SECONDS = struct.Struct("3i"), struct.Struct("ll")

log = logging.getLogger(__name__)


class EngineProcess:
    """The parent process of a site's engine, while it runs.

    user  whom the engine becomes if the site runs as root, or who runs it elsewhere
    """

    def __init__(self, kit: Path, user: str) -> None:
        self.kit, self.user = kit, user
        self.process: subprocess.Popen[bytes] | None = None
        self.known_as = ""  # how the server tells this engine from one with a copy of the kit

    def start(self) -> None:
        """Start the process; it connects by itself."""
        try:
            folder = new_workspace(self.kit)
        except OSError as error:
            raise StorageError(self.kit / ENGINE_FOLDER, error) from error
        if os.geteuid() == 0:
            let_others_pass(self.kit)
        try:
            with open_private(self.kit / CONSOLE_FILE) as console:
                self.process = subprocess.Popen(
                    [sys.executable, "-u", "-m", SITE_PROGRAM, str(self.kit / SOCKET), str(folder)],
                    cwd=folder,
                    env=engine_environment(folder),
                    stdin=subprocess.DEVNULL,
                    stdout=console,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    umask=0o077,
                )
        except OSError as error:
            raise StorageError(self.kit, error) from error

    def settings(self) -> dict[str, Any]:
        """What the process gets to know: certificate and key of the site, and the engine's configuration."""
        port, self.known_as = _free_port(), secrets.token_hex(8)
        files = {f"startup/{file.name}": file.read_text() for file in (self.kit / "startup").iterdir()}
        files |= {f"local/{name}": (self.kit / "local" / name).read_text() for name in ENGINE_FILES}
        files[CONNECTION_CONFIG] = json.dumps(with_port(json.loads(files[CONNECTION_CONFIG]), port))
        return {
            "files": files,
            "set": engine_settings(self.kit),
            "server_port": server_port(self.kit),
            "own_port": port,
            "known_as": self.known_as,
            "user": self.user,
        }

    def is_it(self, connection: socket.socket) -> bool:
        """Whether this connection comes from the process that was started here."""
        pid, _, _ = _peer(connection)
        return self.process is not None and pid == self.process.pid

    def end(self, others: set[int]) -> None:
        """End the process, and whatever it has started: what has lost its parent has become our child, as the
        site's other processes are."""
        process, self.process = self.process, None
        if process is None:
            return
        if process.poll() is None:
            end_processes([process.pid])
        with suppress(subprocess.TimeoutExpired):
            process.wait(5.0)
        until = time.monotonic() + STRAYS_END_WITHIN
        while (strays := _descendants(others)) and time.monotonic() < until:
            for stray in strays:
                with suppress(psutil.Error):
                    stray.kill()
            psutil.wait_procs(strays, timeout=0.1)  # those that were forked meanwhile are the next ones


def new_workspace(kit: Path) -> Path:
    """A new folder for the engine, with the logs of the one before.

    Whatever else the engine has left there is not used, however hard it is to remove, and what outlived the
    engine has no right to the new one.
    """
    folder = kit / ENGINE_FOLDER
    kept = {name: _end_of(folder / name) for name in KEPT}
    if folder.is_symlink() or folder.exists():
        gone = kit / f"{DELETED_PREFIX}{ENGINE_FOLDER}-{time.time_ns()}"
        folder.rename(gone)
        threading.Thread(target=_remove, args=[gone], name="removal", daemon=True).start()
    folder.mkdir(0o700)
    for name, content in kept.items():
        if content:
            (folder / name).write_bytes(content)
    return folder


def _end_of(file: Path) -> bytes:
    """The last part of a file that the engine has written; empty if it is no ordinary file."""
    try:
        handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as content:
            about = os.fstat(handle)
            if not stat.S_ISREG(about.st_mode) or about.st_nlink > 1:
                return b""
            content.seek(max(0, about.st_size - KEPT_BYTES))
            return content.read(KEPT_BYTES)
    except OSError:
        return b""


def _remove(folder: Path) -> None:
    try:
        shutil.rmtree(folder)
    except Exception as error:  # the engine may have made it deeper than can be removed
        log.warning("%s could not be removed: %s", folder, type(error).__name__)


def _descendants(others: set[int]) -> list[psutil.Process]:
    """All processes below this one, without those others and what is below them."""
    found = [child for child in psutil.Process().children() if child.pid not in others]
    for child in list(found):
        with suppress(psutil.Error):
            found += child.children(recursive=True)
    return found


def let_others_pass(kit: Path) -> None:
    """Let other users through the kit's folder to the one that they may use.

    Nobody else could reach its files until now, whatever their modes say: that must remain so. A kit that its
    owner has opened to others stays as it is.
    """
    if kit.stat().st_mode & stat.S_IROTH:
        return
    for entry in os.scandir(kit):
        if entry.name not in (ENGINE_FOLDER, Path(SOCKET).parent.name) and not entry.is_symlink():
            with suppress(FileNotFoundError):
                mode = stat.S_IMODE(entry.stat(follow_symlinks=False).st_mode)
                os.chmod(entry.path, mode & 0o700)
    kit.chmod(0o711)


def user_of(connection: socket.socket) -> int:
    """As whom the process at the other end runs."""
    return _peer(connection)[1]


def is_user(connection: socket.socket, user: str) -> bool:
    """Whether the process at the other end runs as this user."""
    try:
        return user_of(connection) == (int(user) if user.isdigit() else pwd.getpwnam(user).pw_uid)
    except KeyError:
        raise ConfigError("engine.user", f"this machine has no user {user!r}") from None


def _peer(connection: socket.socket) -> tuple[int, int, int]:
    """Process, user and group at the other end, as the kernel recorded them."""
    known = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, gid = _CREDENTIALS.unpack(known)
    return pid, uid, gid


def listen(kit: Path, for_others: bool) -> socket.socket:
    """Open the site's socket for its engine; with `for_others`, processes of other users may connect, and
    those who are not the engine's are sent away."""
    path = kit / SOCKET
    make_folder(path.parent).chmod(0o711 if for_others else 0o700)
    if for_others:
        let_others_pass(kit)
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    try:
        with short_name(path) as name:
            listener.bind(name)
        path.chmod(0o666 if for_others else 0o600)
        listener.listen(4)
    except OSError as error:
        listener.close()
        raise StorageError(path, error) from error
    return listener


def hand_over(frames: Frames) -> socket.socket:
    """Give the engine's parent process a connection for one of its jobs; returns the site's end of it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _SECONDS.pack(READ_WITHIN, 0))
    with theirs:
        socket.send_fds(frames.connection, [b"c"], [theirs.fileno()])
    return ours


def _free_port() -> int:
    """A port for the engine's own processes to find each other; if another program takes it meanwhile, the
    engine ends and is started again with another one."""
    with socket.socket() as attempt:
        attempt.bind(("127.0.0.1", 0))
        return int(attempt.getsockname()[1])


def describe_end(code: int | None) -> str:
    """How a process ended, in words."""
    if code is not None and code < 0:
        with suppress(ValueError):
            return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"
