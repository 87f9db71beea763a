"""A confined process is refused by the operating system what it succeeds in otherwise.

Every attempt of `attempts` is made twice by real processes, without confinement and with it.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import re
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from cnfgnn.federation.engine.confine import (
    LISTABLE,
    WRITABLE_DEVICES,
    Confinement,
    Limits,
    available,
    confine,
    landlock,
    python_paths,
    seccomp,
    system_calls,
    usable_by,
)
from cnfgnn.federation.kits.engine_files import open_to_engine
from tests.federation.engine import attempts

SOURCE = Path(__file__).parents[3] / "src"
ABI = landlock.abi()
MACHINE = system_calls.this_machine()
IS_ROOT = os.geteuid() == 0
REFUSED = {"EPERM", "EACCES"}

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux confines processes like this")

# From which version of Landlock on an attempt is refused; the others are up to the filter.
LANDLOCK = {
    "read_a_file": 1,
    "read_a_file_through_a_link_that_was_there": 1,
    "list_a_folder": 1,
    "write_a_file": 1,
    "make_a_file": 1,
    "delete_a_file": 1,
    "move_a_file_away": 1,
    "write_a_readable_file": 1,
    "execute_what_was_written": 1,
    "leave_a_link_behind": 1,
    "open_a_block_device": 1,
    "open_the_kernels_messages": 1,
    "read_an_environment": 1,
    "read_a_command_line": 1,
    "open_a_memory": 1,
    "signal_a_process": 6,
    "connect_to_another_port": 4,
    "listen_on_another_port": 4,
}
# Not every machine or user can do these, confined or not.
UNCERTAIN = {
    "change_an_attribute_of_a_file",
    "set_the_flags_of_a_file",
    "open_a_block_device",
    "open_the_kernels_messages",
    "open_a_memory",
    "read_a_memory",
    "trace_a_process",
    "connect_with_the_first_message",
    "connect_by_several_paths",
    "make_an_sctp_socket",
    "make_a_raw_socket",
    "make_a_user_namespace",
    "start_a_process_in_a_namespace",
    "store_a_key",
    "make_shared_memory",
}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def block_device() -> str:
    devices = [str(path) for path in Path("/dev").glob("*") if stat.S_ISBLK(path.lstat().st_mode)]
    return min(devices, default="")


@contextmanager
def targets(folder: Path) -> Iterator[dict[str, Any]]:
    """What attempts aim at: files, a process and sockets that live as long as this."""
    private, workspace, readable = folder / "private", folder / "work", folder / "readable"
    for place in (private, workspace, readable):
        place.mkdir(parents=True)
    for name in ("secret", "deleted", "moved", "emptied"):
        (private / name).write_text("secret")
    for name in ("readable", "needed"):
        (readable / name).write_text("needed")
    (workspace / "link").symlink_to(private / "secret")
    shutil.copy("/bin/true", workspace / "true")
    abstract = f"confine-{os.getpid()}-{folder.name}"
    with ExitStack() as stack:
        port, other = (stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2))
        unix, datagrams, unnamed = (
            stack.enter_context(socket.socket(socket.AF_UNIX, kind))
            for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_STREAM)
        )
        unix.bind(str(folder / "s"))
        datagrams.bind(str(folder / "d"))
        unnamed.bind(f"\0{abstract}")
        unix.listen()
        unnamed.listen()
        victim = stack.enter_context(subprocess.Popen(["/bin/sleep", "600"], env={"SECRET": "secret"}))
        stack.callback(victim.kill)
        yield {
            "folder": str(private),
            "secret": str(private / "secret"),
            "workspace": str(workspace),
            "executable": str(workspace / "true"),
            "readable": str(readable / "readable"),
            "needed": str(readable / "needed"),
            "block_device": block_device(),
            "victim": victim.pid,
            "port": port.getsockname()[1],
            "other_port": other.getsockname()[1],
            "own_port": free_port(),
            "unix_socket": str(folder / "s"),
            "datagram_socket": str(folder / "d"),
            "abstract_socket": abstract,
            "clone": number("clone"),
            "add_key": number("add_key"),
        }


def number(name: str) -> int:
    known = system_calls.DENIED | system_calls.JUDGED
    found = known[name][system_calls.MACHINES.index(MACHINE)] if MACHINE else None
    return -1 if found is None else found


def limits_for(to: dict[str, Any], **changes: Any) -> Limits:
    limits = Limits(
        readable=(*python_paths(), str(Path(to["readable"]).parent)),
        writable=(to["workspace"], *WRITABLE_DEVICES),
        listable=LISTABLE,
        connect_ports=(to["port"],),
        listen_ports=(to["own_port"],),
    )
    return dataclasses.replace(limits, **changes)


def tried(to: dict[str, Any], limits: Limits | None, *names: str, times: int = 1) -> dict[str, Any]:
    """What came of attempts in another process: see `attempts.main`."""
    asked = {"targets": to, "limits": limits and dataclasses.asdict(limits), "names": names, "times": times}
    return answer([sys.executable, "-I", "-S", attempts.__file__, str(SOURCE)], asked)


def answer(command: list[str], asked: dict[str, Any]) -> dict[str, Any]:
    done = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.fixture(scope="module")
def short_folder() -> Iterator[Path]:
    """A folder for Unix sockets, whose paths have at most 108 bytes; other users may enter it."""
    with tempfile.TemporaryDirectory(prefix="confine") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture(scope="module")
def free(short_folder: Path) -> dict[str, Any]:
    with targets(short_folder / "free") as to:
        return tried(to, None)["outcomes"]


@pytest.fixture(scope="module")
def confined(short_folder: Path) -> dict[str, Any]:
    with targets(short_folder / "confined") as to:
        return tried(to, limits_for(to))


def needs_landlock(version: int) -> None:
    if version > ABI:
        pytest.skip(f"needs Landlock's version {version}; this kernel has {ABI}")


def needs_filter() -> None:
    if not MACHINE:
        pytest.skip("this machine's system calls are not known")


# ---- what is refused, and what is not ------------------------------------------------------------------


@pytest.mark.parametrize("name", attempts.FORBIDDEN)
def test_a_confined_process_is_refused(name: str, free: dict[str, Any], confined: dict[str, Any]) -> None:
    if name in LANDLOCK:
        needs_landlock(LANDLOCK[name])
    else:
        needs_filter()
    if free[name] != "done" and name in UNCERTAIN:
        pytest.skip(f"fails here without confinement, too: {free[name]}")
    assert free[name] == "done", "a test of the test: without confinement it works"
    assert confined["outcomes"][name] in REFUSED


@pytest.mark.parametrize("name", attempts.NEEDED)
def test_an_honest_process_works(name: str, free: dict[str, Any], confined: dict[str, Any]) -> None:
    assert free[name] == "done"
    if name == "move_files_in_its_workspace" and ABI == 1:
        pytest.skip("Landlock's first version allows no file to change its folder")
    assert confined["outcomes"][name] == "done"


def test_what_holds_is_what_was_announced(confined: dict[str, Any], short_folder: Path) -> None:
    holds = Confinement.from_dict(confined["confinement"])
    assert holds == Confinement(ABI, holds.user, False, True, True, bool(MACHINE))
    assert available(Limits(python_paths(), ())) == holds
    assert Confinement.from_dict(json.loads(json.dumps(dataclasses.asdict(holds)))) == holds
    assert holds.closed == (ABI > 0 and bool(MACHINE))


def test_confined_twice(short_folder: Path) -> None:
    with targets(short_folder / "twice") as to:
        found = tried(to, limits_for(to), "read_a_file", "start_a_program", times=2)["outcomes"]
    assert found["start_a_program"] == "done"
    assert found["read_a_file"] in REFUSED or ABI == 0


CONFINED = """
import dataclasses, json, os, sys

sys.path.insert(0, sys.argv[1])
from cnfgnn.federation.engine.confine import Limits, confine

held = confine(Limits(**json.loads(sys.argv[2])))
if sys.argv[3]:
    os.write(int(sys.argv[3]), json.dumps(dataclasses.asdict(held)).encode())
os.execv(sys.argv[4], sys.argv[4:])
"""


def confined_command(limits: Limits, command: Sequence[str], report: int | None = None) -> list[str]:
    """A command that confines itself, writes down what holds, and becomes another one in the same process."""
    to = "" if report is None else str(report)
    return [
        sys.executable,
        "-I",
        "-S",
        "-c",
        CONFINED,
        str(SOURCE),
        json.dumps(dataclasses.asdict(limits)),
        to,
        *command,
    ]


def test_programs_that_it_starts_are_confined(short_folder: Path) -> None:
    """A program that takes its place, and one that it starts in turn; both see what holds."""
    needs_landlock(1)
    read = "import sys; print(open(sys.argv[1]).read())"
    start = f"[sys.executable, '-c', {read!r}, sys.argv[1]]"
    again = f"import subprocess, sys; subprocess.run({start}, check=True)"
    with targets(short_folder / "started") as to:
        for code in (read, again):
            command = [sys.executable, "-c", code, to["secret"]]
            free = subprocess.run(command, capture_output=True, text=True)
            reading, writing = os.pipe()
            with open(reading) as report:
                told = confined_command(limits_for(to), command, report=writing)
                done = subprocess.run(told, capture_output=True, text=True, pass_fds=[writing])
                os.close(writing)
                assert Confinement.from_dict(json.loads(report.read())).landlock == ABI
            assert free.stdout == "secret\n"
            assert done.returncode == 1
            assert "PermissionError" in done.stderr
            assert done.stdout == ""


def test_root_without_capabilities_starts_programs_without_them(short_folder: Path) -> None:
    show = [sys.executable, "-c", "print(open('/proc/self/status').read())"]
    limits = Limits((*python_paths(), "/proc"), ())
    status = subprocess.run(confined_command(limits, show), capture_output=True, text=True, check=True).stdout
    sets = dict(re.findall(r"(Cap\w+|NoNewPrivs|Seccomp):\s*(\w+)", status))
    assert {int(sets[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {0}
    assert sets["NoNewPrivs"] == "1"
    if IS_ROOT:
        assert int(sets["CapBnd"], 16) == 0


# ---- the filter ----------------------------------------------------------------------------------------


def test_the_kernel_refuses_every_denied_call() -> None:
    """Made with useless arguments, so that each would fail in another way without the filter."""
    needs_filter()
    code = """
import ctypes, json, sys
sys.path.insert(0, sys.argv[1])
from cnfgnn.federation.engine.confine import Limits, confine
libc = ctypes.CDLL(None, use_errno=True)
found = {}
confine(Limits((), ()))
for name, number in json.loads(sys.argv[2]).items():
    result = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(-1)] * 6)
    found[name] = [result, ctypes.get_errno()]
print(json.dumps(found))
"""
    numbers = {name: number(name) for name in system_calls.DENIED if number(name) >= 0}
    numbers |= {"clone3": number("clone3"), "of a later kernel": system_calls.HIGHEST + 1, "x32": 0x40000000}
    command = [sys.executable, "-I", "-S", "-c", code, str(SOURCE), json.dumps(numbers)]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    missing = {"clone3", "of a later kernel", "x32"}
    assert found == {name: [-1, errno.ENOSYS if name in missing else errno.EPERM] for name in numbers}


def decided(machine: str, name: str, *arguments: int, truncation: bool = False) -> str:
    """What the filter for a machine says of a call, by the rules of the kernel's interpreter."""
    called = (system_calls.DENIED | system_calls.JUDGED)[name][system_calls.MACHINES.index(machine)]
    assert called is not None
    data = {seccomp.NUMBER: called, seccomp.MACHINE: seccomp.AUDIT_NUMBER[machine]}
    data |= {seccomp.ARGUMENTS + 8 * i: value & 0xFFFFFFFF for i, value in enumerate(arguments)}
    return verdict(seccomp.program(machine, truncation), data)


def verdict(program: seccomp.Block, data: dict[int, int]) -> str:
    at = value = 0
    while True:
        code, if_true, if_false, k = program[at]
        at += 1
        if code == seccomp.RETURN:
            names = {"allow": seccomp.ALLOW, "deny": seccomp.DENY, "absent": seccomp.NOT_THERE}
            return next((n for n, block in names.items() if block[0][3] == k), "kill")
        if code == seccomp.LOAD:
            value = data[k]
        elif code == seccomp.AND:
            value &= k
        else:
            holds = value == k if code == seccomp.IF_EQUAL else value > k
            at += if_true if holds else if_false


@pytest.mark.parametrize("machine", system_calls.MACHINES)
def test_the_filter_decides_by_arguments(machine: str) -> None:
    def say(name: str, *arguments: int) -> str:
        return decided(machine, name, *arguments)

    stream, datagram, raw, close_on_exec = 1, 2, 3, 0o2000000
    assert say("socket", socket.AF_INET, stream | close_on_exec, 0) == "allow"
    assert say("socket", socket.AF_INET6, datagram, 17) == "allow"
    assert say("socket", socket.AF_INET, stream, 262) == "deny"
    assert say("socket", socket.AF_INET, raw, 1) == "deny"
    assert say("socket", socket.AF_UNIX, stream, 0) == "deny"
    assert say("socket", 16, raw, 0) == "deny"
    assert say("socketpair", socket.AF_UNIX, stream | close_on_exec, 0) == "allow"
    assert say("socketpair", socket.AF_UNIX, datagram, 0) == "deny"
    assert say("clone", 0x3D0F00) == "allow"  # a thread
    assert say("clone", 0x10000000 | 17) == "deny"
    assert say("clone3", 0) == "absent"
    assert say("prlimit64", 0) == "allow"
    assert say("prlimit64", 1) == "deny"
    assert say("setpriority", 0, 0) == "allow"
    assert say("setpriority", 2, 0) == "deny"  # of all processes of a user
    assert say("ioctl", 0, 0x5401) == "allow"
    assert say("ioctl", 0, 0x5412) == "deny"
    assert say("sendto", 3, 0, 0, 0x4000) == "allow"
    assert say("sendto", 3, 0, 0, 0x20004000) == "deny"
    assert say("sendmsg", 3, 0, 0x20000000) == "deny"
    assert say("openat", 0, 0, os.O_RDONLY | os.O_CLOEXEC) == "allow"
    assert say("openat", 0, 0, 3) == "deny"
    assert say("setsockopt", 3, 6, 1) == "allow"
    assert say("setsockopt", 3, 6, 31) == "deny"


@pytest.mark.parametrize("machine", system_calls.MACHINES)
def test_the_filter_helps_an_early_landlock(machine: str) -> None:
    empty = os.O_RDONLY | os.O_TRUNC
    assert decided(machine, "openat", 0, 0, empty) == "allow"
    assert decided(machine, "openat", 0, 0, empty, truncation=True) == "deny"
    assert decided(machine, "openat", 0, 0, os.O_WRONLY | os.O_TRUNC, truncation=True) == "allow"
    assert decided(machine, "truncate", truncation=True) == "deny"
    assert decided(machine, "truncate") == "allow"


@pytest.mark.parametrize("machine", system_calls.MACHINES)
def test_the_filter_knows_every_call_of_a_machine(machine: str) -> None:
    column = system_calls.MACHINES.index(machine)
    numbers = [
        n[column] for n in (system_calls.DENIED | system_calls.JUDGED).values() if n[column] is not None
    ]
    assert len(set(numbers)) == len(numbers)
    for name, pair in system_calls.DENIED.items():
        if pair[column] is not None:
            assert decided(machine, name) == "deny"
    program, of_machine = seccomp.program(machine, False), {seccomp.MACHINE: seccomp.AUDIT_NUMBER[machine]}
    assert verdict(program, {seccomp.NUMBER: 0, **of_machine}) == "allow"
    assert verdict(program, {seccomp.NUMBER: 0, seccomp.MACHINE: 0x40000003}) == "kill"
    assert max(max(if_true, if_false) for _, if_true, if_false, _ in program) < 256


def test_numbers_are_those_of_the_systems_headers() -> None:
    headers = {"x86_64": "asm/unistd_64.h", "aarch64": "asm-generic/unistd.h"}
    places = [Path("/usr/include"), *Path("/usr/include").glob("*-linux-gnu")]
    files = [place / headers.get(MACHINE, "-") for place in places]
    text = "".join(file.read_text() for file in files if file.exists())
    listed = {name: int(n) for name, n in re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", text)}
    if not listed:
        pytest.skip("the headers of the kernel are not installed")
    ours = {name: number(name) for name in system_calls.DENIED | system_calls.JUDGED if number(name) >= 0}
    assert {name: n for name, n in ours.items() if name in listed} == {
        name: n for name, n in listed.items() if name in ours
    }
    assert len(set(ours) & set(listed)) > 60


# ---- users ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def open_python(short_folder: Path) -> Path:
    """A Python, and in the folder `package` this package, that every user can read."""
    if not IS_ROOT:
        pytest.skip("only root can become another user")
    package = short_folder / "package"
    place = package / "cnfgnn" / "federation" / "engine"
    place.mkdir(parents=True)
    for folder in (place, place.parent, place.parent.parent):
        (folder / "__init__.py").touch()
    shutil.copytree(SOURCE / "cnfgnn/federation/engine/confine", place / "confine")
    shutil.copy(attempts.__file__, package / "attempts.py")
    for path in [package, *package.rglob("*")]:
        path.chmod(0o755)
    for python in (sys.executable, "/usr/bin/python3"):
        code = ["-I", "-S", "-c", "import ctypes, ssl, sys; assert sys.version_info >= (3, 11)"]
        nobody = {"user": "nobody", "group": os.stat("/").st_gid, "extra_groups": []}
        try:
            if subprocess.run([python, *code], **nobody, capture_output=True).returncode == 0:
                return Path(python)
        except OSError:
            continue
    pytest.skip("user nobody can read no Python here")


def test_root_becomes_another_user(open_python: Path, short_folder: Path) -> None:
    """A folder that is open to everybody in its limits stays closed by its mode."""
    with targets(short_folder / "user") as to:
        os.chown(to["workspace"], 65534, -1)
        os.chmod(Path(to["readable"]).parent, 0o700)
        limits = limits_for(
            to, readable=("/usr", "/lib", "/lib64", "/bin", "/etc", to["readable"]), user="nobody"
        )
        limits = dataclasses.replace(limits, readable=(*limits.readable, str(short_folder)))
        names = ["read_what_is_readable", "write_its_workspace", "read_an_environment", "signal_a_process"]
        asked = {"targets": to, "limits": dataclasses.asdict(limits), "names": names}
        package = short_folder / "package"
        found = answer([str(open_python), "-I", "-S", str(package / "attempts.py"), str(package)], asked)
    holds = Confinement.from_dict(found["confinement"])
    assert holds == Confinement(ABI, "nobody", True, True, True, bool(MACHINE))
    assert found["outcomes"]["write_its_workspace"] == "done"
    for name in ("read_what_is_readable", "read_an_environment", "signal_a_process"):
        assert found["outcomes"][name] in REFUSED


def test_what_another_user_can_use(open_python: Path, tmp_path: Path, short_folder: Path) -> None:
    closed = short_folder / "closed"
    (closed / "below").mkdir(parents=True)
    closed.chmod(0o700)
    assert usable_by("nobody", ["/usr", "/etc/hosts", "/not/there"], ["/tmp", "/dev/null"]) == ""
    assert usable_by("nobody", ["/usr", str(closed / "below")]) == (
        f"user nobody cannot read {closed / 'below'} (it cannot enter {closed})"
    )
    assert usable_by("nobody", [str(closed)]).startswith(f"user nobody cannot read {closed} (")
    assert usable_by("nobody", ["/usr"], ["/usr"]).startswith("user nobody cannot write to /usr (")


def test_users_that_are_not_there() -> None:
    sentence = "there is no user 'nobody-of-this-name' on this machine"
    assert usable_by("nobody-of-this-name", []) == sentence
    with pytest.raises(OSError, match=sentence):
        available(Limits((), (), user="nobody-of-this-name"))


def test_only_root_becomes_another_user() -> None:
    """Root without the capability to do so is an example that is at hand everywhere."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from cnfgnn.federation.engine.confine import *;"
        "confine(Limits(('/',), ())); confine(Limits((), (), user=sys.argv[2]))"
    )
    other = "nobody" if IS_ROOT else "root"
    done = subprocess.run(
        [sys.executable, "-I", "-c", code, str(SOURCE), other], capture_output=True, text=True
    )
    assert f"cannot become user {other}: only root can" in done.stderr


# ---- limits and sentences ------------------------------------------------------------------------------


def test_a_process_with_threads_is_not_confined() -> None:
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    try:
        with pytest.raises(RuntimeError, match="before it starts threads"):
            confine(Limits((), ()))
    finally:
        ended.set()
        thread.join()


def test_python_starts_within_its_paths() -> None:
    loads = [sys.executable, "-P", "-c", "import ctypes, ssl"]
    for limits, starts in (
        (Limits(python_paths(), WRITABLE_DEVICES), True),
        (Limits(("/etc/hosts",), ()), False),
    ):
        done = subprocess.run(confined_command(limits, loads), capture_output=True)
        assert (done.returncode == 0) == starts or ABI == 0


def test_python_paths_leave_out_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = tmp_path / "named"
    named.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", str(tmp_path), *sys.path])
    monkeypatch.setenv("PYTHONPATH", f"{SOURCE}{os.pathsep}{named}")
    found = python_paths()
    assert str(tmp_path) not in found
    assert {str(named), str(SOURCE / "cnfgnn"), "/usr", sys.prefix} <= set(found)
    assert not {"/", "/etc", "/proc", "/sys", "/dev", "/home", "/tmp", str(Path.home())} & set(found)
    assert all(Path(path).exists() for path in found)


def test_what_the_limits_would_give_away(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    reaches = [str(tmp_path / "link"), str(tmp_path / "work")]
    secret = tmp_path / "real" / "readings.csv"
    assert open_to_engine(reaches, [tmp_path, tmp_path / "work-of-others", "/data"]) == []
    assert open_to_engine(reaches, [secret, tmp_path / "work"]) == [
        f"{secret} is open to the engine, which may open all of {tmp_path / 'real'}: move it",
        f"{tmp_path / 'work'} is open to the engine, which may open all of {tmp_path / 'work'}: move it",
    ]


FULL = Confinement(7, "nobody", True, True, True, True)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, []),
        ({"landlock": 0}, ["no Landlock"]),
        ({"landlock": 1}, ["ports", "signals"]),
        ({"landlock": 2, "seccomp": False}, ["emptied", "ports", "signals", "Unix sockets"]),
        ({"landlock": 4}, ["signals"]),
        ({"landlock": 6, "seccomp": False}, ["Unix sockets"]),
        ({"other_user": False, "user": "root"}, ["as the site does"]),
        ({"capabilities_dropped": False, "no_new_privileges": False}, ["capabilities", "sudo"]),
    ],
)
def test_gaps_say_what_they_allow(changes: dict[str, Any], words: list[str]) -> None:
    gaps = dataclasses.replace(FULL, **changes).gaps()
    assert len(gaps) == len(words)
    for gap, word in zip(gaps, words, strict=True):
        assert word in gap
        assert "whoever controls the engine can " in gap
        assert "WHOEVER" not in gap


def test_one_line_says_what_confines() -> None:
    assert FULL.summary() == "confined by Landlock (ABI 7), seccomp, user nobody"
    bare = Confinement(0, "anna", False, True, True, False)
    assert bare.summary() == "not confined: it can do what user anna can"
    assert not bare.closed
