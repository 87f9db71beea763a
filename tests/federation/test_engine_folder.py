"""What an engine leaves behind keeps no later one from starting, and misleads nobody."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from cnfgnn.federation.engine.confine.limits import confinement_lines
from cnfgnn.federation.frames import Frames
from cnfgnn.federation.kits.processes import CONSOLE_FILE, LAST_OF_CONSOLE, _last_console_line
from cnfgnn.federation.kits.refusals import MOST_SHOWN, REFUSED, read_refusals
from cnfgnn.federation.project import SiteEngine, SitePlan
from cnfgnn.federation.site import engine_process, supervisor
from cnfgnn.federation.site.engine_process import KEPT_BYTES, hand_over, let_others_pass, new_workspace
from cnfgnn.federation.site.supervisor import _checked
from cnfgnn.federation.site.workers import CHANGED, ENDING, Worker, Workers
from cnfgnn.federation.site_task import SiteTask
from tests.shared_folders import make_too_deep
from tests.waiting import wait_for


def test_a_workspace_is_new_whatever_the_engine_before_has_left(tmp_path: Path) -> None:
    first = new_workspace(tmp_path)
    secret = tmp_path / "site.toml"
    secret.write_text("secret")
    (first / "log.txt").write_bytes(b"x" * KEPT_BYTES + b"last")
    (first / "refused.json").symlink_to(secret)
    (first / "closed").mkdir(0o000)
    make_too_deep(first)
    before = first.stat().st_ino
    second = new_workspace(tmp_path)
    assert second.stat().st_ino != before
    assert {path.name for path in second.iterdir()} == {"log.txt"}
    kept = (second / "log.txt").read_bytes()
    assert len(kept) == KEPT_BYTES
    assert kept.endswith(b"last")
    assert secret.read_text() == "secret"
    second.rename(tmp_path / "aside")
    (tmp_path / "engine").symlink_to(tmp_path / "elsewhere")
    assert not new_workspace(tmp_path).is_symlink()
    wait_for(lambda: not any("removal" in thread.name for thread in threading.enumerate()), "removals end")
    subprocess.run(["rm", "-rf", *tmp_path.glob(".gone-*")], check=True)  # Python cannot


def test_refusals_that_the_engine_made_up_can_be_shown(tmp_path: Path) -> None:
    ours = {"time": 1.0, "who": "server", "what": "a\x1b[31m command"}
    made_up = [{**ours, "time": time} for time in (1e300, float("nan"), -1, "now", None)]
    (tmp_path / REFUSED).write_text(json.dumps({"refused": [*made_up, {}, 1, *[ours] * 500]}))
    shown = read_refusals(tmp_path)
    assert len(shown) == MOST_SHOWN
    assert all("\x1b" not in one["what"] for one in shown)


def test_the_end_of_a_large_console_is_read(tmp_path: Path) -> None:
    with (tmp_path / CONSOLE_FILE).open("wb") as console:
        console.truncate(1 << 40)  # the engine may make it seem as large as it likes
        console.seek(0, os.SEEK_END)
        console.write(b"\nthe last line\n")
    assert "the last line" in _last_console_line(tmp_path)
    assert LAST_OF_CONSOLE < 1 << 20


def test_a_task_is_not_served_under_another_description() -> None:
    worker = object.__new__(Worker)
    worker.task = SiteTask("1", "train", "one", "cnfgnn")
    assert worker.serves(SiteTask("1", "train", "one", "cnfgnn"))
    assert not worker.serves(SiteTask("1", "evaluate", "one", "cnfgnn"))
    assert not worker.serves(SiteTask("1", "train", "one", "sl"))


def test_a_report_of_confinement_has_its_fields_and_nothing_else() -> None:
    report = {"landlock": 7, "user": "no\nbody", "other_user": True, "capabilities_dropped": True}
    report |= {"no_new_privileges": True, "seccomp": True, "more": "x" * 1000}
    assert _checked(report)["user"] == "no body"
    assert "more" not in _checked(report)
    for damaged in ({}, {**report, "landlock": "7"}, {**report, "seccomp": 1}):
        try:
            _checked(damaged)
        except EOFError:
            continue
        raise AssertionError(damaged)


def test_another_user_passes_through_a_kit_and_reads_nothing_in_it(tmp_path: Path) -> None:
    kit, outside = tmp_path / "kit", tmp_path / "outside.csv"
    for folder in (kit, kit / "engine", kit / "data"):
        folder.mkdir(mode=0o755)
    for file in (kit / "readings.csv", outside):
        file.write_text("secret")
        file.chmod(0o644)
    (kit / "linked.csv").symlink_to(outside)

    def modes() -> list[int]:
        return [path.stat().st_mode & 0o777 for path in (kit, kit / "data", kit / "readings.csv", outside)]

    let_others_pass(kit)
    assert modes() == [0o755, 0o755, 0o644, 0o644]  # its owner has opened it
    kit.chmod(0o700)
    let_others_pass(kit)
    assert modes() == [0o711, 0o700, 0o600, 0o644]
    (kit / "later.csv").write_text("secret")
    let_others_pass(kit)
    assert (kit / "later.csv").stat().st_mode & 0o077 == 0


ENDS_AN_ENGINE = """
import os, subprocess, sys, time
from pathlib import Path
import psutil
from cnfgnn.federation.site.engine_process import EngineProcess
from cnfgnn.process_setup import adopt_orphans

adopt_orphans()
other = subprocess.Popen(["sleep", "600"])
engine = EngineProcess(Path(), "nobody")
forks = '''
import os, time
if os.fork():
    time.sleep(600)
os.setsid()
while True:
    time.sleep(0.5)
    if os.fork():
        os._exit(0)
'''
engine.process = subprocess.Popen([sys.executable, "-c", forks])
while len(psutil.Process().children()) < 3:
    time.sleep(0.01)
engine.end({other.pid})
print([child.pid for child in psutil.Process().children()] == [other.pid])
other.kill()
"""


def test_what_the_engine_has_started_ends_with_it_although_it_forks_again_and_again() -> None:
    done = subprocess.run([sys.executable, "-c", ENDS_AN_ENGINE], capture_output=True, text=True, timeout=120)
    assert done.stdout == "True\n", done.stderr


def test_a_job_that_does_not_read_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_process, "READ_WITHIN", 1)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        job = Frames(hand_over(Frames(ours)))
        _, handles, _, _ = socket.recv_fds(theirs, 1, 1)
        with pytest.raises(OSError):  # noqa: PT011
            job.send(1, bytes(1 << 22))
        os.close(handles[0])
        job.close()


def test_a_live_task_with_other_terms_waits_until_the_one_before_has_ended() -> None:
    """Other tasks do not: the lock is free meanwhile."""
    one = SiteTask("1", "live", "one", live={"levels": []})
    running = object.__new__(Worker)
    running.task, running._ended, ends = one, threading.Event(), threading.Event()
    running._process, running._thread = None, threading.Thread(target=ends.wait)
    running._thread.start()
    workers = object.__new__(Workers)
    workers.running, workers._lock = {"live": running}, threading.Lock()
    assert workers.of(SiteTask("1", "live", "two")) == CHANGED
    assert workers.of(SiteTask("2", "live", "two", live={"levels": ["80"]})) == ENDING
    assert running.over
    ends.set()
    running._thread.join()


def test_the_owner_hears_which_readings_are_open_to_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as those below a folder that Python looks for modules in."""
    monkeypatch.setattr(
        supervisor, "read_site", lambda kit: SitePlan("north", ("a",), "../data/readings.csv")
    )
    kit = tmp_path / "kit"
    (kit / "local").mkdir(parents=True)
    site = supervisor.Supervisor(kit)
    opened = site._opened({"reaches": ["/usr", str(tmp_path / "data"), str(kit / "engine")]})
    folder, readings = tmp_path / "data" / "cnfgnn-private", kit / ".." / "data" / "readings.csv"
    assert [sentence.partition(" is open")[0] for sentence in opened] == [str(folder), str(readings)]
    holds = {"landlock": 7, "user": "me", "other_user": True, "capabilities_dropped": True}
    site.confinement = {**holds, "no_new_privileges": True, "seccomp": True, "open": opened}
    assert confinement_lines(site.confinement) == ["confined by Landlock (ABI 7), seccomp, user me", *opened]
    assert site._unconfined() == ""
    site.plan = replace(site.plan, engine=SiteEngine(confined="required"))
    assert str(readings) in site._unconfined()
    site.account.close()
