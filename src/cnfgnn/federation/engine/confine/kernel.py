"""Calls of the Linux kernel for which Python has no functions."""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from typing import Any

_libc = ctypes.CDLL(None, use_errno=True)


def call(function: str, *arguments: Any) -> int:
    """The result of a function of the C library, such as `syscall`; its arguments are whole numbers, ctypes
    structures and None."""
    if sys.platform != "linux":  # elsewhere the same numbers stand for other calls
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    called = getattr(_libc, function)
    called.restype = ctypes.c_long
    result = int(called(*map(_as_argument, arguments)))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def prctl(option: int, *arguments: Any) -> int:
    """Ask or tell the kernel something about this thread."""
    return call("prctl", option, *arguments, *[0] * (4 - len(arguments)))


def _as_argument(value: Any) -> Any:
    """A number as the 64 bits that the kernel reads: ctypes would pass on the lower 32 alone."""
    if isinstance(value, int):
        return ctypes.c_long(value)
    return value if value is None else ctypes.byref(value)
