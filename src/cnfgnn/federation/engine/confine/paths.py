"""What Python and the libraries of the system need to read, and whether a user can."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from cnfgnn.federation.engine.confine.privileges import user_name

PACKAGE = Path(__file__).resolve().parents[3]
PROGRAMS = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/nix/store")
# Not the whole folder: it has the passwords of users and the keys of services.
SETTINGS = (
    *("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/ld.so.preload"),
    *("/etc/localtime", "/etc/timezone", "/etc/locale.alias", "/etc/mime.types", "/etc/os-release"),
    *("/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/etc/hosts", "/etc/host.conf", "/etc/gai.conf"),
    *("/etc/services", "/etc/protocols", "/etc/resolv.conf"),
    # Programs that manage the network replace resolv.conf: the rule for a file would be lost with it.
    *("/run/systemd/resolve", "/run/NetworkManager/resolv.conf", "/run/resolvconf"),
    *("/etc/ssl/certs", "/etc/ssl/openssl.cnf", "/etc/ca-certificates", "/usr/share/ca-certificates"),
    *("/etc/pki/tls/certs", "/etc/pki/tls/openssl.cnf", "/etc/pki/ca-trust/extracted"),
    "/etc/crypto-policies",
)
DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
PROCESSORS = ("/sys/devices/system/cpu",)  # how many there are

WRITABLE_DEVICES = ("/dev/null",)
LISTABLE = ("/proc",)  # the engine's task process lists it to see whether its parent still runs


def python_paths() -> tuple[str, ...]:
    """The files and folders that this Python, its packages and the libraries of the system are read from.

    Another Python is asked where it looks for modules. This one may have been told to look in the working
    folder, too, as it is by `-m`, and there may be anything.
    """
    found = [*PROGRAMS, *SETTINGS, *DEVICES, *PROCESSORS]
    found += [sys.prefix, sys.base_prefix, sys.exec_prefix, str(PACKAGE), *_module_places()]
    existing = [os.path.abspath(place) for place in found if place and os.path.exists(place)]
    return tuple(dict.fromkeys(existing))


def _module_places() -> list[str]:
    ask = [sys.executable, "-P", "-c", "import json, sys; print(json.dumps(sys.path))"]
    answer = subprocess.run(ask, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL)
    return [str(place) for place in json.loads(answer.stdout)]


def problem_with(readable: Sequence[str], writable: Sequence[str]) -> str:
    """Why this process cannot use these paths, in one sentence; empty if it can."""
    uses = (("read", os.R_OK, [*readable, *writable]), ("write to", os.W_OK, writable))
    for use, right, paths in uses:
        for path in paths:
            if not os.access(path, right | (os.X_OK if os.path.isdir(path) else 0)):
                return f"user {user_name()} cannot {use} {path} ({_obstacle(path)})"
    return ""


def _obstacle(path: str) -> str:
    """The first folder on the way to a path that cannot be entered; otherwise it is the path itself."""
    for folder in reversed(Path(os.path.realpath(path)).parents):
        if not os.access(folder, os.X_OK):
            return f"it cannot enter {folder}"
    return os.strerror(errno.EACCES)
