"""Folders that tests in several processes share, because filling them takes long."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest


def made_once(place: pytest.TempPathFactory, name: str, fill: Callable[[Path], None]) -> Path:
    """A folder that the first test process to need it fills; others wait for it. Tests must not change it."""
    base = place.getbasetemp()
    # With pytest-xdist, each process has a folder of its own in the one that all share.
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    folder.mkdir(exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / ".filled").exists():
            fill(folder)
            (folder / ".filled").touch()
    return folder
