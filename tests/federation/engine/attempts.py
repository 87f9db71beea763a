"""What a hostile program tries, and what an honest one needs: each in a process of its own.

Run as a program, it confines itself if it is told to, tries what is asked for, and prints what came of each
attempt: "done", or the name of the error. Only the standard library, because it also runs as another user.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import resource
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

FORBIDDEN: dict[str, Callable[..., Any]] = {}
NEEDED: dict[str, Callable[..., Any]] = {}
LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWUSER, MSG_FASTOPEN, IPPROTO_MPTCP, IPPROTO_SCTP = 0x10000000, 0x20000000, 262, 132
TIMEOUT = 240  # seconds after which an attempt that hangs is ended


def forbidden(attempt: Callable[..., Any]) -> Callable[..., Any]:
    FORBIDDEN[attempt.__name__] = attempt
    return attempt


def needed(attempt: Callable[..., Any]) -> Callable[..., Any]:
    NEEDED[attempt.__name__] = attempt
    return attempt


def checked(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


# ---- files ---------------------------------------------------------------------------------------------


@forbidden
def read_a_file(to: Any) -> None:
    assert Path(to.secret).read_text() == "secret"


@forbidden
def read_a_file_through_a_link_that_was_there(to: Any) -> None:
    assert Path(to.workspace, "link").read_text() == "secret"


@forbidden
def list_a_folder(to: Any) -> None:
    os.listdir(to.folder)


@forbidden
def write_a_file(to: Any) -> None:
    open(to.secret, "a").close()


@forbidden
def make_a_file(to: Any) -> None:
    open(f"{to.folder}/new", "w").close()


@forbidden
def delete_a_file(to: Any) -> None:
    os.unlink(f"{to.folder}/deleted")


@forbidden
def move_a_file_away(to: Any) -> None:
    os.rename(f"{to.folder}/moved", f"{to.workspace}/moved")


@forbidden
def empty_a_file(to: Any) -> None:
    os.truncate(f"{to.folder}/emptied", 0)


@forbidden
def empty_a_readable_file_as_it_is_opened(to: Any) -> None:
    os.close(os.open(to.readable, os.O_RDONLY | os.O_TRUNC))


@forbidden
def write_a_readable_file(to: Any) -> None:
    open(to.readable, "a").close()


@forbidden
def open_a_file_to_control_it(to: Any) -> None:
    os.close(os.open(to.secret, 3))


@forbidden
def execute_what_was_written(to: Any) -> None:
    checked(LIBC.execv(to.executable.encode(), (ctypes.c_char_p * 2)(b"true", None)))


@forbidden
def leave_a_link_behind(to: Any) -> None:
    os.symlink(to.secret, f"{to.workspace}/planted")


@forbidden
def leave_a_second_name_behind(to: Any) -> None:
    os.link(to.executable, f"{to.workspace}/second")


@forbidden
def leave_a_pipe_behind(to: Any) -> None:
    os.mkfifo(f"{to.workspace}/pipe")


@forbidden
def change_the_mode_of_a_file(to: Any) -> None:
    os.chmod(to.secret, 0o777)


@forbidden
def change_the_mode_of_an_open_file(to: Any) -> None:
    with open(to.readable) as file:
        os.fchmod(file.fileno(), 0o777)


@forbidden
def change_the_owner_of_a_file(to: Any) -> None:
    os.chown(to.secret, os.getuid(), os.getgid())


@forbidden
def change_the_times_of_a_file(to: Any) -> None:
    os.utime(to.secret)


@forbidden
def change_an_attribute_of_a_file(to: Any) -> None:
    os.setxattr(to.secret, "user.attribute", b"value")


@forbidden
def watch_a_folder(to: Any) -> None:
    watcher = checked(LIBC.inotify_init1(0))
    checked(LIBC.inotify_add_watch(watcher, to.folder.encode(), 0xFFF))


@forbidden
def open_a_block_device(to: Any) -> None:
    os.close(os.open(to.block_device or "/dev/none", os.O_RDONLY))


@forbidden
def open_the_kernels_messages(to: Any) -> None:
    os.close(os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK))


# ---- other processes -----------------------------------------------------------------------------------


@forbidden
def read_an_environment(to: Any) -> None:
    assert b"SECRET=secret" in Path(f"/proc/{to.victim}/environ").read_bytes()


@forbidden
def read_a_command_line(to: Any) -> None:
    assert Path(f"/proc/{to.victim}/cmdline").read_bytes()


@forbidden
def open_a_memory(to: Any) -> None:
    open(f"/proc/{to.victim}/mem", "rb").close()


@forbidden
def read_a_memory(to: Any) -> None:
    class Part(ctypes.Structure):
        _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))

    nothing = Part(None, 0)
    checked(LIBC.process_vm_readv(to.victim, ctypes.byref(nothing), 1, ctypes.byref(nothing), 1, 0))


@forbidden
def trace_a_process(to: Any) -> None:
    seize = 0x4206
    checked(LIBC.ptrace(ctypes.c_long(seize), ctypes.c_long(to.victim), None, None))


@forbidden
def signal_a_process(to: Any) -> None:
    os.kill(to.victim, signal.SIGWINCH)  # ignored; SIGCONT is allowed to other users in a session


@forbidden
def limit_a_process(to: Any) -> None:
    resource.prlimit(to.victim, resource.RLIMIT_CORE, (0, 0))


@forbidden
def slow_a_process_down(to: Any) -> None:
    os.setpriority(os.PRIO_PROCESS, to.victim, 1)


@forbidden
def bind_a_process_to_processors(to: Any) -> None:
    os.sched_setaffinity(to.victim, os.sched_getaffinity(0))


@forbidden
def make_shared_memory(to: Any) -> None:
    memory = checked(LIBC.shmget(0, 4096, 0o600 | 0o1000))
    LIBC.shmctl(memory, 0, None)  # remove it


# ---- sockets -------------------------------------------------------------------------------------------


@forbidden
def connect_to_another_port(to: Any) -> None:
    socket.create_connection(("127.0.0.1", to.other_port), timeout=TIMEOUT).close()


@forbidden
def connect_with_the_first_message(to: Any) -> None:
    with socket.socket() as sock:
        sock.sendto(b"hello", MSG_FASTOPEN, ("127.0.0.1", to.other_port))


@forbidden
def connect_by_several_paths(to: Any) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, IPPROTO_MPTCP) as sock:
        sock.connect(("127.0.0.1", to.other_port))


@forbidden
def make_an_sctp_socket(to: Any) -> None:
    socket.socket(socket.AF_INET, socket.SOCK_STREAM, IPPROTO_SCTP).close()


@forbidden
def listen_on_another_port(to: Any) -> None:
    socket.create_server(("127.0.0.1", 0)).close()


@forbidden
def connect_to_a_unix_socket(to: Any) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(to.unix_socket)


@forbidden
def connect_to_an_abstract_socket(to: Any) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(f"\0{to.abstract_socket}")


@forbidden
def point_a_pair_of_sockets_elsewhere(to: Any) -> None:
    one, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    one.sendto(b"hello", to.datagram_socket)


@forbidden
def make_a_raw_socket(to: Any) -> None:
    socket.socket(socket.AF_INET, socket.SOCK_RAW, 1).close()


@forbidden
def ask_the_kernel_about_the_network(to: Any) -> None:
    socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0).close()


# ---- the kernel ----------------------------------------------------------------------------------------


@forbidden
def make_a_user_namespace(to: Any) -> None:
    checked(LIBC.unshare(CLONE_NEWUSER))


@forbidden
def start_a_process_in_a_namespace(to: Any) -> None:
    started = checked(LIBC.syscall(ctypes.c_long(to.clone), ctypes.c_long(CLONE_NEWUSER | 17), None, None))
    if started == 0:
        os._exit(0)
    os.waitpid(started, 0)


@forbidden
def store_a_key(to: Any) -> None:
    checked(LIBC.syscall(ctypes.c_long(to.add_key), b"user", b"name", b"value", ctypes.c_long(5), -2))


@forbidden
def set_the_flags_of_a_file(to: Any) -> None:
    with open(to.readable) as file:
        flags = bytearray(8)
        fcntl.ioctl(file, 0x80086601, flags)
        fcntl.ioctl(file, 0x40086602, bytes(flags))


# ---- what an honest program needs ----------------------------------------------------------------------


@needed
def resolve_a_name(to: Any) -> None:
    assert socket.getaddrinfo("localhost", 80, type=socket.SOCK_STREAM)


@needed
def start_a_program(to: Any) -> None:
    import subprocess

    command = [sys.executable, "-I", "-S", "-c", "print(1)"]
    assert subprocess.run(command, capture_output=True, check=True).stdout == b"1\n"
    assert subprocess.run(["/bin/sh", "-c", "exit 3"], stdin=subprocess.DEVNULL).returncode == 3


@needed
def spawn_and_end_a_program(to: Any) -> None:
    arguments = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"]
    started = os.posix_spawn(sys.executable, arguments, {}, setsid=True)
    os.killpg(os.getpgid(started), signal.SIGKILL)
    assert os.waitpid(started, 0)[1] == signal.SIGKILL


@needed
def see_whether_a_process_runs(to: Any) -> None:
    assert str(os.getpid()) in os.listdir("/proc")


@needed
def make_a_tls_context(to: Any) -> None:
    import ssl

    ssl.create_default_context()


@needed
def start_threads(to: Any) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(int, "1234")) == 10


@needed
def run_an_event_loop(to: Any) -> None:
    import asyncio

    asyncio.run(asyncio.sleep(0))


@needed
def write_its_workspace(to: Any) -> None:
    import tempfile

    with tempfile.TemporaryDirectory(dir=to.workspace) as folder:
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            file.write(b"content")
        with open(f"{folder}/aside", "w") as file:
            os.fsync(file.fileno())
        os.rename(f"{folder}/aside", f"{folder}/final")
        with open(f"{folder}/final", "w") as file:  # empties it
            os.ftruncate(file.fileno(), 10)
        os.mkdir(f"{folder}/below")
        os.unlink(f"{folder}/final")


@needed
def move_files_in_its_workspace(to: Any) -> None:
    os.makedirs(f"{to.workspace}/one")
    open(f"{to.workspace}/one/file", "w").close()
    os.rename(f"{to.workspace}/one/file", f"{to.workspace}/file")


@needed
def read_what_is_readable(to: Any) -> None:
    assert Path(to.needed).read_text() == "needed"


@needed
def use_devices(to: Any) -> None:
    with open("/dev/null", "w") as null, open("/dev/urandom", "rb", buffering=0) as random:
        null.write("nothing")
        assert len(random.read(8)) == 8


@needed
def connect_and_listen_on_its_ports(to: Any) -> None:
    socket.create_connection(("127.0.0.1", to.port), timeout=TIMEOUT).close()
    socket.create_server(("127.0.0.1", to.own_port)).close()


@needed
def use_an_open_unix_socket(to: Any) -> None:
    one, other = socket.socketpair()
    one.sendall(b"hello")
    assert other.recv(9) == b"hello"


@needed
def set_its_own_limits(to: Any) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.sched_setaffinity(0, os.sched_getaffinity(0))


# ---- the program ---------------------------------------------------------------------------------------


class Targets:
    def __init__(self, values: dict[str, Any]) -> None:
        self.__dict__ = values


def outcome(attempt: Callable[..., Any], to: Targets) -> str:
    """What came of an attempt in a process of its own."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(TIMEOUT)
            attempt(to)
            said = "done"
        except OSError as error:
            said = errno.errorcode.get(error.errno or 0, str(error))
        except BaseException:
            said = traceback.format_exc()
        os.write(writing, said.encode()[:4000])
        os._exit(0)
    os.close(writing)
    with open(reading, encoding="utf-8") as file:
        said = file.read()
    status = os.waitpid(child, 0)[1]
    # it says nothing if it has become another program
    return said or ("done" if status == 0 else f"ended with {status}")


def main(root: str) -> None:
    sys.path.insert(0, root)
    from cnfgnn.federation.engine.confine import Limits, confine

    asked = json.load(sys.stdin)
    answer: dict[str, Any] = {}
    for _ in range(asked.get("times", 1) if asked["limits"] else 0):
        answer["confinement"] = asdict(confine(Limits(**asked["limits"])))
    every = FORBIDDEN | NEEDED
    answer["outcomes"] = {
        name: outcome(every[name], Targets(asked["targets"])) for name in asked["names"] or every
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main(sys.argv[1])
