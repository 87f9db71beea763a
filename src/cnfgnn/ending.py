"""A process that a plan of runs has started ends with the plan; quick to import, as it comes first."""

from __future__ import annotations

import ctypes
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
