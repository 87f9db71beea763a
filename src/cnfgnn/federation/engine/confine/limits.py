"""What a confined process may still do, and what holds on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from cnfgnn.federation.engine.confine.landlock import GOVERNS_PORTS, GOVERNS_SIGNALS, GOVERNS_TRUNCATION


@dataclass(frozen=True)
class Limits:
    """What a confined process may still do. Folders stand for all that is below them."""

    readable: tuple[str, ...]  # files and folders, to read and to execute
    writable: tuple[str, ...]  # folders, and single files such as /dev/null; nothing in them is executed
    listable: tuple[str, ...] = ()  # folders whose names may be listed, without reading what is in them
    connect_ports: tuple[int, ...] = ()  # of TCP, on every host
    listen_ports: tuple[int, ...] = ()  # of TCP, on every address of this machine
    user: str | None = None  # whom to become, which only root can; None: nobody else


@dataclass(frozen=True)
class Confinement:
    """What confines a process, as the operating system tells."""

    landlock: int  # what the kernel knows of it (its ABI); 0: nothing
    user: str
    other_user: bool  # than the one who started it
    capabilities_dropped: bool
    no_new_privileges: bool
    seccomp: bool

    @property
    def closed(self) -> bool:
        """Whether files outside the limits are out of reach."""
        return self.landlock > 0 and self.seccomp and self.capabilities_dropped and self.no_new_privileges

    def gaps(self) -> list[str]:
        """What is missing, and what it would allow: a sentence each."""
        version, user = f"Landlock's version {self.landlock}", f"user {self.user}"
        since = (GOVERNS_TRUNCATION, GOVERNS_PORTS, GOVERNS_SIGNALS)
        truncation, ports, signals = (0 < self.landlock < first for first in since)
        gaps = {
            "this kernel has no Landlock (Linux 5.13 or newer has it, unless it is switched off): WHOEVER"
            f" read and change every file of {user}, read the memory of its other programs, end them, and"
            " connect to every port": self.landlock == 0,
            f"{version} does not govern how files are emptied (Linux 6.2 does): WHOEVER empty every file of"
            f" {user}": truncation and not self.seccomp,
            f"{version} does not govern ports (Linux 6.7 does): WHOEVER connect to every TCP port and listen"
            " on every free one": ports,
            f"{version} does not govern signals (Linux 6.12 does): WHOEVER end every other program of"
            f" {user}": signals,
            "system calls are not filtered: WHOEVER connect to Unix sockets of other programs, change the"
            f" modes and times of {user}'s files, pass by the limits for ports, and try every call of the"
            " kernel": not self.seccomp,
            "it has capabilities of root: WHOEVER do what root can": not self.capabilities_dropped,
            "it can gain privileges: WHOEVER use programs such as sudo": not self.no_new_privileges,
            f"it runs as {user}, as the site does: WHOEVER ask for the sizes and times of this user's"
            " files": not self.other_user,
        }
        who = "whoever controls the engine can"
        return [gap.replace("WHOEVER", who) for gap, is_open in gaps.items() if is_open]

    def summary(self) -> str:
        """One line that names what confines the process."""
        by = [f"Landlock (ABI {self.landlock})"] if self.landlock else []
        by += ["seccomp"] if self.seccomp else []
        by += [f"user {self.user}"] if self.other_user else []
        return f"confined by {', '.join(by)}" if by else f"not confined: it can do what user {self.user} can"

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Confinement:
        return cls(**{field.name: values[field.name] for field in fields(cls)})


def confinement_lines(recorded: Mapping[str, Any]) -> list[str]:
    """How the engine of a site is confined, as its supervisor has recorded it, and what it could still do."""
    if not recorded:
        return []
    found, problem = Confinement.from_dict(recorded), recorded.get("user_problem")
    return [found.summary(), *([str(problem)] if problem else []), *recorded["open"], *found.gaps()]
