"""A process is recognised after the clock was set, and not confused with another one of the same id."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from psutil import _pslinux

from cnfgnn.federation.kits import processes
from cnfgnn.federation.kits.process_identity import identity, is_running
from cnfgnn.federation.operator.make_kits import make_kits
from cnfgnn.federation.project import read_project
from cnfgnn.federation.server.status import StatusFile, is_active
from tests.federation.two_site_federation import write_project
from tests.waiting import wait_for


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def set_clock_forward(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """The boot time, from which the start of a process is derived, moves too."""
    shown = _pslinux.boot_time()
    monkeypatch.setattr(_pslinux, "boot_time", lambda: shown + seconds)


def test_a_process_is_recognised_whatever_the_clock_shows(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    noted, started = identity(sleeper.pid), psutil.Process(sleeper.pid).create_time()
    assert noted is not None
    set_clock_forward(monkeypatch, 2.0)
    assert psutil.Process(sleeper.pid).create_time() == pytest.approx(started + 2.0)
    assert is_running(json.loads(json.dumps(noted)))


def test_another_process_or_boot_is_not_the_same(sleeper: subprocess.Popen[bytes]) -> None:
    noted = identity(sleeper.pid)
    assert noted is not None
    assert not is_running({**noted, "ticks": noted["ticks"] - 1})
    assert not is_running({**noted, "boot": "of yesterday"})
    assert not is_running({"pid": sleeper.pid})
    for nonsense in ({}, {"pid": "x"}, {"pid": None}, {"pid": True}, {"pid": -1}):
        assert not is_running(nonsense)
    sleeper.kill()
    wait_for(lambda: not is_running(noted), "a zombie does not count as running")
    sleeper.wait()
    assert not is_running(noted)
    assert identity(sleeper.pid) is None


def test_a_task_is_active_while_the_process_that_wrote_its_status_runs(tmp_path: Path) -> None:
    StatusFile(tmp_path, "token").end("running")
    status = json.loads((tmp_path / "status.json").read_text())
    assert is_active(status)
    assert not is_active({**status, "state": "finished"})
    reused = {**status["process"], "ticks": status["process"]["ticks"] + 1}
    assert not is_active({**status, "process": reused})


@pytest.mark.slow
def test_a_running_site_is_left_alone_after_the_clock_was_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit = make_kits(read_project(write_project(tmp_path)), tmp_path / "kits")["north"]
    pid = processes.up(kit)
    try:
        set_clock_forward(monkeypatch, 2.0)
        assert processes.running(kit) == pid
        assert processes.up(kit) == pid
        assert psutil.Process(pid).is_running()
    finally:
        assert processes.down(kit)
    assert processes.running(kit) is None


def test_a_process_of_another_user_that_looks_like_a_kits_is_not_taken_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = [sys.executable, "-c", "input()", processes.SUPERVISOR, str(tmp_path)]
    with subprocess.Popen(line, stdin=subprocess.PIPE) as alike:
        own = os.geteuid()
        for user, found in ((own, [alike.pid]), (own + 1, []), (0, [alike.pid])):
            monkeypatch.setattr(os, "geteuid", lambda user=user: user)
            assert [each.pid for each in processes._processes_of(tmp_path)] == found
        alike.kill()
