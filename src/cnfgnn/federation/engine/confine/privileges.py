"""Another user, no capabilities, and no way to get any back."""

from __future__ import annotations

import ctypes
import os
import pwd
from contextlib import suppress

from cnfgnn.federation.engine.confine.kernel import (
    PR_CAP_AMBIENT,
    PR_CAP_AMBIENT_CLEAR_ALL,
    PR_CAPBSET_DROP,
    PR_CAPBSET_READ,
    PR_GET_NO_NEW_PRIVS,
    PR_SET_NO_NEW_PRIVS,
    capabilities,
    prctl,
)

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
    with suppress(OSError):  # EINVAL: there are no more; EPERM: `no_new_privileges` does the same
        for capability in range(64):
            if prctl(PR_CAPBSET_READ, capability):
                prctl(PR_CAPBSET_DROP, capability)


def drop_capabilities() -> None:
    with suppress(OSError):
        prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    with suppress(OSError):
        capabilities("capset", _Header(CAPABILITIES_IN_64_BITS, 0), _Sets())


def has_capabilities() -> bool:
    found = _Sets()
    try:
        capabilities("capget", _Header(CAPABILITIES_IN_64_BITS, 0), found)
    except OSError:
        return os.geteuid() == 0
    return any(found.words)


def forbid_new_privileges() -> None:
    with suppress(OSError):
        prctl(PR_SET_NO_NEW_PRIVS, 1)


def gains_no_privileges() -> bool:
    try:
        return prctl(PR_GET_NO_NEW_PRIVS) == 1
    except OSError:
        return False
