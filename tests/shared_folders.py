"""Folders that several tests need: some that take long to fill, and one that nobody can remove."""

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


def make_too_deep(folder: Path) -> None:
    """Make folders within folders in this one, more than can be removed."""
    here = os.open(folder, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
