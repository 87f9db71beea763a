"""A filter for system calls: what Landlock and missing capabilities still leave open.

A denied call fails with EPERM, as if the user had no right to it. Whatever a filter can see are numbers: it
cannot look at a path or an address, so files and ports are up to Landlock.
"""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Mapping

from cnfgnn.federation.engine.confine.kernel import prctl
from cnfgnn.federation.engine.confine.system_calls import DENIED, HIGHEST, JUDGED, MACHINES, this_machine

Instruction = tuple[int, int, int, int]  # code, steps to jump if true, if false, number
Block = list[Instruction]  # ends the filter on every path through it

LOAD, AND, RETURN, IF_EQUAL, IF_GREATER = 0x20, 0x54, 0x06, 0x15, 0x25
NUMBER, MACHINE, ARGUMENTS = 0, 4, 16  # where they are; an argument has 8 bytes, the lower 4 first
AUDIT_NUMBER = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
PR_SET_SECCOMP, FILTER_MODE = 22, 2

ALLOW: Block = [(RETURN, 0, 0, 0x7FFF0000)]
KILL: Block = [(RETURN, 0, 0, 0x80000000)]
DENY: Block = [(RETURN, 0, 0, 0x00050000 | errno.EPERM)]
NOT_THERE: Block = [(RETURN, 0, 0, 0x00050000 | errno.ENOSYS)]  # so that a C library uses an older call

AF_UNIX, AF_INET, AF_INET6 = 1, 2, 10
STREAM, DATAGRAM, SOCKET_TYPE = 1, 2, 0xF
TCP, UDP = 6, 17
TCP_ULP = 31
MSG_FASTOPEN = 0x20000000
# CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
NAMESPACES = 0x20000 | 0x2000000 | 0x4000000 | 0x8000000 | 0x10000000 | 0x20000000 | 0x40000000
# TIOCSTI and TIOCLINUX type into a terminal; FS_IOC_SETFLAGS and FS_IOC_FSSETXATTR set attributes of files
DENIED_CONTROLS = (0x5412, 0x541C, 0x40086602, 0x401C5820)
O_ACCMODE, O_TRUNC = 0x3, 0x200


def install(truncation: bool) -> bool:
    """Filter the system calls of this thread and of all that it starts; return whether this was possible.

    With `truncation`, no file can be emptied that cannot be written: early versions of Landlock allow it.
    """
    machine = this_machine()
    if not machine:
        return False
    lines = program(machine, truncation)
    code = (_Instruction * len(lines))(*[_Instruction(*line) for line in lines])
    try:
        return prctl(PR_SET_SECCOMP, FILTER_MODE, _Program(len(lines), code)) == 0
    except OSError:
        return False


def program(machine: str, truncation: bool) -> Block:
    """The filter for a machine. Programs for another one, such as 32-bit programs, are killed."""
    verdicts = _by_arguments(truncation) | dict.fromkeys(DENIED, DENY)
    numbered: dict[int, Block] = {}
    for name, verdict in verdicts.items():
        number = (DENIED | JUDGED)[name][MACHINES.index(machine)]
        if number is not None:
            numbered[number] = verdict
    of_machine = [(LOAD, 0, 0, MACHINE), (IF_EQUAL, len(KILL), 0, AUDIT_NUMBER[machine]), *KILL]
    known = [(LOAD, 0, 0, NUMBER), (IF_GREATER, 0, len(NOT_THERE), HIGHEST), *NOT_THERE]
    return [*of_machine, *known, *_cases(numbered, ALLOW)]


def _by_arguments(truncation: bool) -> dict[str, Block]:
    """Calls that depend on their arguments."""
    kind = {
        STREAM: _argument(2, {0: ALLOW, TCP: ALLOW}, DENY),  # Landlock does not govern SCTP, multipath TCP
        DATAGRAM: _argument(2, {0: ALLOW, UDP: ALLOW}, DENY),
    }
    internet = _argument(1, kind, DENY, SOCKET_TYPE)
    itself = _argument(0, {0: ALLOW}, DENY)
    connected = _argument(3, {0: ALLOW}, DENY, MSG_FASTOPEN)  # the flag connects without asking Landlock
    return {
        "socket": _argument(0, {AF_INET: internet, AF_INET6: internet}, DENY),
        # A pair of streams reaches nobody else; a datagram socket could be pointed at any address.
        "socketpair": _argument(0, {AF_UNIX: _argument(1, {STREAM: ALLOW}, DENY, SOCKET_TYPE)}, DENY),
        "sendto": connected,
        "sendmmsg": connected,
        "sendmsg": _argument(2, {0: ALLOW}, DENY, MSG_FASTOPEN),
        # makes a TCP socket one of another kind, which Landlock would not govern
        "setsockopt": _argument(1, {TCP: _argument(2, {TCP_ULP: DENY}, ALLOW)}, ALLOW),
        "clone": _argument(0, {0: ALLOW}, DENY, NAMESPACES),
        "clone3": NOT_THERE,  # its flags are behind a pointer, and so are those of openat2
        "open": _opening(1, truncation),
        "openat": _opening(2, truncation),
        "openat2": NOT_THERE,
        "truncate": DENY if truncation else ALLOW,
        "ioctl": _argument(1, dict.fromkeys(DENIED_CONTROLS, DENY), ALLOW),
        **dict.fromkeys(("prlimit64", "sched_setaffinity", "sched_setattr"), itself),
        **dict.fromkeys(("sched_setparam", "sched_setscheduler"), itself),
        "setpriority": _argument(0, {0: _argument(1, {0: ALLOW}, DENY)}, DENY),
        "ioprio_set": _argument(0, {1: _argument(1, {0: ALLOW}, DENY)}, DENY),
    }


def _opening(flags: int, truncation: bool) -> Block:
    """Opening a file, whose flags are this argument.

    Landlock always allows the mode 3, neither to read nor to write but to control a device. Without its help
    a file that may only be read can be emptied, too.
    """
    denied = [O_ACCMODE, O_ACCMODE | O_TRUNC] + [O_TRUNC] * truncation
    return _argument(flags, dict.fromkeys(denied, DENY), ALLOW, O_ACCMODE | O_TRUNC)


def _argument(position: int, cases: Mapping[int, Block], otherwise: Block, mask: int = 0) -> Block:
    """Decide by the lower 32 bits of an argument, or by those of them that are in the mask."""
    masked = [(AND, 0, 0, mask)] if mask else []
    return [(LOAD, 0, 0, ARGUMENTS + 8 * position), *masked, *_cases(cases, otherwise)]


def _cases(cases: Mapping[int, Block], otherwise: Block) -> Block:
    block: Block = []
    for value, then in cases.items():
        block += [(IF_EQUAL, 0, len(then), value), *then]
    return block + otherwise


class _Instruction(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_uint16),
        ("if_true", ctypes.c_uint8),
        ("if_false", ctypes.c_uint8),
        ("number", ctypes.c_uint32),
    )


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.POINTER(_Instruction)))
