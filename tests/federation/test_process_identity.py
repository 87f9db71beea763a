"""A process is known again after the clock was set, and not mistaken for another one with its id."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from cnfgnn.federation import kits, processes
from cnfgnn.federation.process_identity import identity, runs
from cnfgnn.federation.project import read_project
from cnfgnn.federation.status import Status
from cnfgnn.federation.task_client import at_work
from tests.federation.parties import awaited, write_project


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def set_clock_forward(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """As Linux tells it: the time of the boot, from which the start of a process is worked out, moves too."""
    linux = pytest.importorskip("psutil._pslinux")
    shown = linux.boot_time()
    monkeypatch.setattr(linux, "boot_time", lambda: shown + seconds)


def test_a_process_is_itself_whatever_the_clock_shows(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    noted, started = identity(sleeper.pid), psutil.Process(sleeper.pid).create_time()
    assert noted is not None
    set_clock_forward(monkeypatch, 2.0)
    assert psutil.Process(sleeper.pid).create_time() == pytest.approx(started + 2.0)
    assert runs(json.loads(json.dumps(noted)))


def test_another_process_or_boot_is_another(sleeper: subprocess.Popen[bytes]) -> None:
    noted = identity(sleeper.pid)
    assert noted is not None
    assert not runs({**noted, "ticks": noted["ticks"] - 1})
    assert not runs({**noted, "boot": "of yesterday"})
    assert runs({"pid": sleeper.pid})  # as earlier versions noted it
    for nonsense in ({}, {"pid": "x"}, {"pid": None}, {"pid": True}, {"pid": -1}):
        assert not runs(nonsense)
    sleeper.kill()
    awaited(lambda: not runs(noted), "a process that ended and was not waited for does not run")
    sleeper.wait()
    assert not runs(noted)
    assert identity(sleeper.pid) is None


def test_a_task_is_at_work_while_the_process_that_wrote_its_status_runs(tmp_path: Path) -> None:
    Status(tmp_path, "token").end("running")
    status = json.loads((tmp_path / "status.json").read_text())
    assert at_work(status)
    assert not at_work({**status, "state": "finished"})
    reused = {**status["process"], "ticks": status["process"]["ticks"] + 1}
    assert not at_work({**status, "process": reused})
    assert at_work({"state": "running", "pid": os.getpid()})  # as earlier versions wrote it


@pytest.mark.slow
def test_a_running_site_is_left_alone_after_the_clock_was_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit = kits.make_kits(read_project(write_project(tmp_path)), tmp_path / "kits")["north"]
    pid = processes.up(kit)
    try:
        set_clock_forward(monkeypatch, 2.0)
        assert processes.running(kit) == pid
        assert processes.up(kit) == pid

        # noted by an earlier version, before the clock was set
        (kit / "process.json").write_text(json.dumps({"pid": pid, "started": 1.0}))
        assert processes.running(kit) == pid
        assert processes.up(kit) == pid
        assert psutil.Process(pid).is_running()
    finally:
        assert processes.down(kit)
    assert processes.running(kit) is None
