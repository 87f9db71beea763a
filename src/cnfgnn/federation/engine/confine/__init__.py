"""Confining the federated engine's processes by the operating system, before they run a line of the engine.

Only the standard library, because it runs first in a process. Landlock says which files and TCP ports are
left (`landlock`), a filter says which system calls (`seccomp`), and whoever starts as root becomes another
user without capabilities (`privileges`). Each covers what the others leave open. What remains:

- The kernel tells everybody whether a file exists, its size and its times. Another user helps, if the folder
  is closed to it.
- Datagrams (UDP) go to every host and port, because names are resolved by them.
- TCP rules name ports, not hosts; a process can also listen on a port that the kernel chooses.
- How much memory, processor time and space on the disk it uses.
"""

from cnfgnn.federation.engine.confine.confining import available, confine, usable_by
from cnfgnn.federation.engine.confine.limits import Confinement, Limits
from cnfgnn.federation.engine.confine.paths import LISTABLE, WRITABLE_DEVICES, python_paths

__all__ = [
    "LISTABLE",
    "WRITABLE_DEVICES",
    "Confinement",
    "Limits",
    "available",
    "confine",
    "python_paths",
    "usable_by",
]
