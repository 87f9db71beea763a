"""Another user, no capabilities, and no way to get any back."""

from __future__ import annotations

import ctypes
import os
import pwd
from contextlib import suppress

from cnfgnn.federation.engine.confine.kernel import call, prctl

PR_CAPBSET_DROP, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 24, 47, 4
PR_SET_NO_NEW_PRIVS = 38
CAPABILITIES_IN_64_BITS = 0x20080522  # the version of the structures below


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int32))


class _Sets(ctypes.Structure):
    """Effective, permitted and inheritable capabilities: first the lower 32 of each, then the upper 32."""

    _fields_ = (("words", ctypes.c_uint32 * 6),)


def become(user: str) -> None:
    """Run as this user from now on, in its group alone.

    Raises:
        LookupError: There is no such user.
        PermissionError: Only root can become another user.
    """
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        raise LookupError(f"there is no user {user!r} on this machine") from None
    if os.getresuid() == (entry.pw_uid,) * 3:
        return
    try:
        os.setgroups([])
        os.setresgid(*[entry.pw_gid] * 3)
        os.setresuid(*[entry.pw_uid] * 3)
    except PermissionError:
        raise PermissionError(f"user {user_name()} cannot become user {user}: only root can") from None


def user_name() -> str:
    """The name of the user that this process runs as, or its number if it has none."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def close_bounding_set() -> None:
    """See that no program gets capabilities because root starts it; needs a capability itself."""
    for capability in range(64):
        with suppress(OSError):  # EINVAL: there is none; EPERM: `forbid_new_privileges` does the same
            prctl(PR_CAPBSET_DROP, capability)


def drop_capabilities() -> bool:
    """Give up all capabilities; returns whether that was possible."""
    with suppress(OSError):
        prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    return _done("capset", _Header(CAPABILITIES_IN_64_BITS, 0), _Sets())


def forbid_new_privileges() -> bool:
    """See that no program gets privileges because of its file's mode; returns whether that was possible."""
    return _done("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def _done(function: str, *arguments: object) -> bool:
    try:
        return call(function, *arguments) == 0
    except OSError:
        return False
