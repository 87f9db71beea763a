"""What a process sets for good, which only a process of our own may: the command line, a server, a site.

Quick to import, because the command line does it first.
"""

from __future__ import annotations

import ctypes
import functools
import os
import signal

PR_SET_PDEATHSIG = 1  # of Linux's prctl: the signal that a process gets when its parent dies
PARENT = "CNFGNN_PARENT"  # tells a process of a plan who started it


def end_with_parent() -> None:
    """In a process that a plan has started: receive SIGTERM when the plan's process dies, even by kill -9.

    Otherwise this process would keep its run locked, and the plan could not be continued.
    """
    parent = os.environ.pop(PARENT, None)
    if parent is None:
        return
    if (prctl := getattr(ctypes.CDLL(None), "prctl", None)) is not None:  # on Linux
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if str(os.getppid()) != parent:  # it was gone before we could ask
        raise KeyboardInterrupt


@functools.cache
def keep_freed_memory() -> bool:
    """Have glibc keep the memory of freed tensors for the next ones; whether it could.

    By default every tensor above 32 MiB is mapped from the kernel and given back: its pages are zeroed and
    faulted in anew each time, which takes longer than the arithmetic on them (docs/performance.md). Another C
    library has no such switch, and nothing changes. As it cannot be undone, `cnfgnn.fit` does not do it.
    """
    trim_threshold, top_pad, mmap_max = -1, -2, -4  # of mallopt(3)
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    settings = ((mmap_max, 0), (trim_threshold, 2**31 - 1), (top_pad, 64 << 20))
    return all(mallopt(setting, value) == 1 for setting, value in settings)
