"""Landlock: which files a process may still open, and which TCP ports it may use.

Needs no privileges, and holds for every process that is started from then on. A number says what a kernel
knows of it, its ABI: 1 is Linux 5.13, 2 is 5.19, 3 is 6.2, 4 is 6.7, 5 is 6.10, 6 is 6.12. Rights that the
kernel does not know yet are left out.
"""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Iterable

from cnfgnn.federation.engine.confine.kernel import call

# The same numbers on every machine.
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
ASK_FOR_VERSION = 1
PATH_BENEATH, NET_PORT = 1, 2

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
REMOVE_DIR, REMOVE_FILE = 1 << 4, 1 << 5
MAKE_DIR, MAKE_REG = 1 << 7, 1 << 8
REFER, TRUNCATE, IOCTL_DEV, RESOLVE_UNIX = 1 << 13, 1 << 14, 1 << 15, 1 << 16
OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE  # the kernel refuses rules for files with others
SINCE = ((1, (1 << 13) - 1), (2, REFER), (3, TRUNCATE), (5, IOCTL_DEV), (9, RESOLVE_UNIX))
BIND_TCP, CONNECT_TCP = 1 << 0, 1 << 1
ABSTRACT_SOCKETS_AND_SIGNALS = 3
GOVERNS_TRUNCATION, GOVERNS_PORTS, GOVERNS_SIGNALS = 3, 4, 6  # from these ABIs on

READ = EXECUTE | READ_FILE | READ_DIR
# Nothing in a folder that the confined process writes is executed, and it makes no links, devices, pipes or
# sockets there: whoever opens what it left behind gets a plain file.
WRITE = READ_FILE | READ_DIR | WRITE_FILE | TRUNCATE | MAKE_DIR | MAKE_REG | REMOVE_DIR | REMOVE_FILE | REFER


class _Ruleset(ctypes.Structure):
    _fields_ = tuple((governed, ctypes.c_uint64) for governed in ("files", "net", "scoped"))


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


class _NetPort(ctypes.Structure):
    _fields_ = (("allowed_access", ctypes.c_uint64), ("port", ctypes.c_uint64))


def abi() -> int:
    """What this kernel knows of Landlock; 0 if it has none, or has it switched off."""
    try:
        return call("syscall", CREATE_RULESET, None, 0, ASK_FOR_VERSION)
    except OSError:
        return 0


class Rules:
    """What stays allowed. Made while the process can still open every path, applied by `restrict`."""

    def __init__(self) -> None:
        version = abi()
        self.rights = sum(rights for since, rights in SINCE if since <= version)
        self.governs_ports = version >= GOVERNS_PORTS
        scoped = ABSTRACT_SOCKETS_AND_SIGNALS if version >= GOVERNS_SIGNALS else 0
        governed = _Ruleset(self.rights, self.governs_ports * (BIND_TCP | CONNECT_TCP), scoped)
        # A kernel that knows fewer fields accepts the others as long as they are zero.
        self.file = call("syscall", CREATE_RULESET, governed, ctypes.sizeof(governed), 0)

    def allow(self, paths: Iterable[str], rights: int) -> None:
        """Allow these rights to files, and to folders with all that is below them; skip what is not there.

        What the user cannot reach is out of reach afterwards, too.
        """
        for path in paths:
            try:
                file = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except (FileNotFoundError, NotADirectoryError, PermissionError):
                continue
            try:
                of_path = rights if stat.S_ISDIR(os.fstat(file).st_mode) else rights & OF_FILES
                allowed = _PathBeneath(of_path & self.rights, file)
                if allowed.allowed_access:
                    call("syscall", ADD_RULE, self.file, PATH_BENEATH, allowed, 0)
            finally:
                os.close(file)

    def allow_ports(self, ports: Iterable[int], right: int) -> None:
        if self.governs_ports:
            for port in ports:
                call("syscall", ADD_RULE, self.file, NET_PORT, _NetPort(right, port), 0)

    def restrict(self) -> None:
        """Forbid this thread, and all that it starts, everything else."""
        call("syscall", RESTRICT_SELF, self.file, 0)
        os.close(self.file)
