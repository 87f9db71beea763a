"""Calls of the Linux kernel for which Python has no functions."""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from typing import Any

PR_GET_SECCOMP, PR_SET_SECCOMP = 21, 22
PR_CAPBSET_READ, PR_CAPBSET_DROP = 23, 24
PR_SET_NO_NEW_PRIVS, PR_GET_NO_NEW_PRIVS = 38, 39
PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 47, 4

_libc = ctypes.CDLL(None, use_errno=True)


def system_call(number: int, *arguments: Any) -> int:
    """The result of a system call; its arguments are whole numbers, ctypes structures and None."""
    return _checked("syscall", number, *arguments)


def prctl(option: int, *arguments: Any) -> int:
    """Ask or tell the kernel something about this thread."""
    return _checked("prctl", option, *arguments, *[0] * (4 - len(arguments)))


def capabilities(action: str, *structures: Any) -> None:
    """`capget` or `capset`, which the C library has on every machine."""
    _checked(action, *structures)


def _checked(function: str, *arguments: Any) -> int:
    if sys.platform != "linux":  # elsewhere the same numbers stand for other calls
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    call = getattr(_libc, function)
    call.restype = ctypes.c_long
    result = int(call(*[_as_argument(argument) for argument in arguments]))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def _as_argument(value: Any) -> Any:
    """A number as the 64 bits that the kernel reads: ctypes would pass on the lower 32 alone."""
    if isinstance(value, int):
        return ctypes.c_long(value)
    return value if value is None else ctypes.byref(value)
