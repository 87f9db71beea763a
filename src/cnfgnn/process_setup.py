"""Process-wide settings that cannot be undone: for our own processes only (command line, server, site).

This module imports little, because the command line imports it first.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import os
import signal
import threading
import time

# Options of Linux's prctl: the signal that a process gets when its parent dies, and who gets its children.
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
NICER = 10  # how much lower the priority of a process is that makes way for others, as in nice(1)
PARENT = "CNFGNN_PARENT"  # environment variable with the process id of the plan that started this process


def end_with_parent() -> None:
    """In a process that a plan has started, ask for SIGTERM when the plan's process dies, even by kill -9.

    Otherwise this process would keep its run locked, and the plan could not be resumed.
    """
    parent = os.environ.pop(PARENT, None)
    if parent is None:
        return
    _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if str(os.getppid()) != parent:  # the parent died before the request
        raise KeyboardInterrupt


def adopt_orphans() -> None:
    """Become the parent of every process that descends from this one and loses its own parent."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value)


@functools.cache
def keep_freed_memory() -> bool:
    """Make glibc reuse the memory of freed tensors; returns whether that is possible.

    By default glibc maps every tensor above 32 MiB from the kernel and returns it afterwards. The kernel then
    zeroes and faults in its pages each time, which takes longer than the arithmetic on them
    (docs/performance.md). What is kept is never given back, so this is for trainings, and not for processes
    that handle little at a time for weeks (docs/federation-live.md). Other C libraries have no such switch,
    and nothing changes there. Because it cannot be undone, `cnfgnn.fit` does not call this.
    """
    trim_threshold, top_pad, mmap_max = -1, -2, -4  # parameters of mallopt(3)
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    settings = ((mmap_max, 0), (trim_threshold, 2**31 - 1), (top_pad, 64 << 20))
    return all(mallopt(setting, value) == 1 for setting, value in settings)


def collect_garbage_regularly(every: float = 10.0) -> None:
    """Free objects that refer to each other every few seconds, in a process that runs for weeks.

    The engine leaves a cycle with a buffer of 1 MiB behind for each of its own messages, of which there is
    about one a second. Python would look for it among the youngest objects after some twenty messages, and
    among the older ones hardly ever: only once a quarter as many as the 260,000 objects of PyTorch and the
    engine have been added. Those are set aside here, so that a search takes no time.
    """
    gc.collect()
    gc.freeze()

    def collect() -> None:
        while True:
            time.sleep(every)
            gc.collect()

    threading.Thread(target=collect, name="garbage", daemon=True).start()


def make_way() -> None:
    """Compute with one thread and at a low priority from now on: a live service runs beside this process."""
    import torch

    os.nice(NICER)
    torch.set_num_threads(1)
