"""Code that a test plants in the engine's processes of a site: it tries what whoever controls them would.

Its targets are in a file in the engine's folder, the only one it can use. What came of each attempt goes into
a report beside it: the error number of the operating system, or none if the attempt succeeded.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cnfgnn.federation.kits.engine_files import SITE_PROGRAM
from tests.federation.hostile import planted

CODE = "from tests.federation.hostile import intruder\nintruder.plant({!r})\n"
TARGETS = "targets.json"
REPORTS = {"parent": "report-parent.json", "job": "report-job.json"}
LEFT = {"parent": "left-by-parent.txt", "job": "left-by-job.txt"}  # the id of a process
ABSENT = errno.ENOENT  # stands for a secret that this process was not given
JOB_PROGRAM = "nvflare.private.fed.app.client.worker_process"
PTRACE_SEIZE = 0x4206
PIDFD_GETFD = 438
Attempt = tuple[str, Callable[[], Any]]
_libc = ctypes.CDLL(None, use_errno=True)


def plant(without_wall: str) -> None:
    """To be called when Python starts, in whichever process; one site has no wall."""
    if SITE_PROGRAM in sys.orig_argv:
        site = Path(sys.orig_argv[-1]).parent.name
        planted.after_confinement(site != without_wall, lambda: _begin("parent"))
    elif JOB_PROGRAM in sys.orig_argv:
        _begin("job")


def _begin(who: str) -> None:
    threading.Thread(target=_try_everything, args=[who, Path.cwd()], daemon=True).start()


def _try_everything(who: str, workspace: Path) -> None:
    while not (workspace / TARGETS).exists():
        time.sleep(0.1)
    targets = json.loads((workspace / TARGETS).read_text())
    _leave_behind(workspace / LEFT[who])
    report = {what: _outcome(attempt) for what, attempt in _attempts(targets, workspace, who)}
    unfinished = workspace / f".{REPORTS[who]}"
    unfinished.write_text(json.dumps(report))
    unfinished.rename(workspace / REPORTS[who])


def _leave_behind(noted: Path) -> None:
    """Start a process that has no parent and a session of its own, and note its id."""
    command = ["/bin/sh", "-c", "setsid sleep 3600 > /dev/null 2>&1 & echo $!"]
    noted.write_bytes(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


def _outcome(attempt: Callable[[], Any]) -> int | str | None:
    """None if it succeeded, the error's number if the operating system refused it."""
    try:
        attempt()
    except OSError as error:
        return error.errno
    except Exception as error:
        return repr(error)
    return None


def _attempts(targets: dict[str, Any], workspace: Path, who: str) -> Iterator[Attempt]:
    for path in targets["read"]:
        yield f"read {path}", lambda path=path: Path(path).read_bytes()
    for path in targets["list"]:
        yield f"list {path}", lambda path=path: os.listdir(path)
        yield f"make a file in {path}", lambda path=path: Path(path, f"made-by-{who}").touch()
        yield f"make a folder in {path}", lambda path=path: Path(path, f"folder-of-{who}").mkdir()
    for path in targets["change"][who]:
        yield from _changes(path, workspace, who)
    for name, pid in targets["processes"].items():
        yield from _on_process(name, pid)
    yield from _on_sockets(targets)
    yield from _on_the_machine(workspace, who)
    for name in targets["secrets"]:
        yield f"environment {name}", lambda name=name: _secret(name)


def _changes(path: str, workspace: Path, who: str) -> Iterator[Attempt]:
    """From the mildest to the worst: where nothing is refused, the file is gone in the end."""
    yield f"write {path}", lambda: os.close(os.open(path, os.O_WRONLY))
    yield f"append to {path}", lambda: os.close(os.open(path, os.O_WRONLY | os.O_APPEND))
    yield f"chmod {path}", lambda: os.chmod(path, 0o666)
    yield f"chown {path}", lambda: os.chown(path, os.geteuid(), os.getegid())
    yield f"set the times of {path}", lambda: os.utime(path)
    yield f"set an attribute of {path}", lambda: os.setxattr(path, "user.of_tests", b"x")
    yield f"link {path} here", lambda: os.link(path, workspace / f"linked-by-{who}-{time.monotonic_ns()}")
    yield f"truncate {path}", lambda: os.truncate(path, 0)
    yield f"open and empty {path}", lambda: os.close(os.open(path, os.O_RDONLY | os.O_TRUNC))
    yield f"rename {path}", lambda: _there_and_back(path, f"{path}.renamed")
    yield f"move {path} here", lambda: _there_and_back(path, str(workspace / f"moved-by-{who}"))
    yield f"replace {path}", lambda: _replace(path, workspace / f"replacement-of-{who}")
    if who == "job":  # the last one to try
        yield f"delete {path}", lambda: os.unlink(path)


def _there_and_back(path: str, elsewhere: str) -> None:
    os.rename(path, elsewhere)
    os.rename(elsewhere, path)


def _replace(path: str, other: Path) -> None:
    other.write_text("mine")
    os.replace(other, path)


def _on_process(name: str, pid: int) -> Iterator[Attempt]:
    for file in ("mem", "environ", "maps", "cmdline", "status", "auxv"):
        yield (
            f"read {file} of {name}",
            lambda file=file: os.close(os.open(f"/proc/{pid}/{file}", os.O_RDONLY)),
        )
    yield f"write mem of {name}", lambda: os.close(os.open(f"/proc/{pid}/mem", os.O_RDWR))
    yield f"see an open file of {name}", lambda: os.readlink(f"/proc/{pid}/fd/0")
    yield f"open a file of {name}", lambda: os.close(os.open(f"/proc/{pid}/fd/0", os.O_RDONLY))
    yield f"see the folder of {name}", lambda: os.listdir(f"/proc/{pid}/cwd")
    yield f"use the root of {name}", lambda: os.listdir(f"/proc/{pid}/root/etc")
    yield f"signal to {name}", lambda: os.kill(pid, signal.SIGCONT)
    yield f"signal by descriptor to {name}", lambda: _signal_by_descriptor(pid)
    yield f"trace {name}", lambda: _checked(_libc.ptrace(PTRACE_SEIZE, pid, None, None))
    yield f"take a file of {name}", lambda: _take_file(pid)
    yield f"slow {name} down", lambda: os.setpriority(os.PRIO_PROCESS, pid, os.getpriority(0, pid))


def _signal_by_descriptor(pid: int) -> None:
    descriptor = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(descriptor, signal.SIGCONT)
    finally:
        os.close(descriptor)


def _take_file(pid: int) -> None:
    descriptor = os.pidfd_open(pid)
    try:
        os.close(_checked(_libc.syscall(PIDFD_GETFD, descriptor, 0, 0)))
    finally:
        os.close(descriptor)


def _checked(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), "the call failed")
    return result


def _on_sockets(targets: dict[str, Any]) -> Iterator[Attempt]:
    for name, port in targets["ports"].items():
        yield f"tcp {name}", lambda port=port: socket.create_connection(("127.0.0.1", port), 10).close()
        yield f"tcp 6 {name}", lambda port=port: _connect(socket.AF_INET6, ("::1", port))
        yield f"tcp fast open {name}", lambda port=port: _fast_open(port)
    yield "tcp listen", lambda: socket.create_server(("127.0.0.1", targets["free_port"])).close()
    for name, path in targets["sockets"].items():
        kind = "abstract" if path.startswith("\0") else "unix"
        yield f"{kind} {name}", lambda path=path: _connect(socket.AF_UNIX, path)
        yield f"{kind} datagram {name}", lambda path=path: _datagram(path)
    for family in ("AF_NETLINK", "AF_PACKET", "AF_VSOCK", "AF_ALG"):
        yield (
            f"socket {family}",
            lambda family=family: socket.socket(
                getattr(socket, family), socket.SOCK_RAW if family != "AF_ALG" else socket.SOCK_SEQPACKET
            ).close(),
        )


def _connect(family: int, address: Any) -> None:
    with socket.socket(family) as attempt:
        attempt.settimeout(10)
        attempt.connect(address)


def _fast_open(port: int) -> None:
    with socket.socket() as attempt:
        attempt.sendto(b"GET / HTTP/1.0\r\n\r\n", socket.MSG_FASTOPEN, ("127.0.0.1", port))


def _datagram(path: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as attempt:
        attempt.sendto(b"hello", path)


def _on_the_machine(workspace: Path, who: str) -> Iterator[Attempt]:
    import cnfgnn

    packages = Path(sysconfig.get_paths()["purelib"])
    for folder in (Path(cnfgnn.__file__).parent, packages, Path(__file__).parent, Path("/tmp"), Path("/")):
        yield f"make a file in {folder}", lambda folder=folder: _make_and_remove(folder / f".of-{who}")
    for file in (cnfgnn.__file__, os.__file__):
        yield f"write {file}", lambda file=file: os.close(os.open(file, os.O_WRONLY))
    yield "make a link here", lambda: _made(workspace / f"link-{who}", lambda p: p.symlink_to("/etc/shadow"))
    yield (
        "make a device here",
        lambda: _made(workspace / f"device-{who}", lambda p: os.mknod(p, 0o20600, 259)),
    )
    yield "make a pipe here", lambda: _made(workspace / f"pipe-{who}", os.mkfifo)
    yield "run a program of its own", lambda: _run_own(workspace / f"program-{who}")
    yield "change the root", lambda: os.chroot("/")
    yield "read the kernel's log", lambda: os.close(os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK))


def _make_and_remove(path: Path) -> None:
    path.touch()
    path.unlink()


def _made(path: Path, make: Callable[[Path], Any]) -> None:
    make(path)
    path.unlink()


def _run_own(path: Path) -> None:
    path.write_text("#!/bin/sh\n")
    os.chmod(path, 0o700)
    os.waitpid(os.posix_spawn(path, [str(path)], {}), 0)


def _secret(name: str) -> None:
    if name not in os.environ:
        raise OSError(ABSENT, "there is no such variable")
