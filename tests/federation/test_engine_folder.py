"""What an engine leaves behind keeps no later one from starting, and misleads nobody."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from pathlib import Path

from cnfgnn.federation.kits.processes import CONSOLE_FILE, LAST_OF_CONSOLE, _last_console_line
from cnfgnn.federation.kits.refusals import MOST_SHOWN, REFUSED, read_refusals
from cnfgnn.federation.site.engine_process import KEPT_BYTES, new_workspace
from cnfgnn.federation.site.supervisor import _checked
from cnfgnn.federation.site.workers import Worker
from cnfgnn.federation.site_task import SiteTask
from tests.waiting import wait_for


def test_a_workspace_is_new_whatever_the_engine_before_has_left(tmp_path: Path) -> None:
    first = new_workspace(tmp_path)
    secret = tmp_path / "site.toml"
    secret.write_text("secret")
    (first / "log.txt").write_bytes(b"x" * KEPT_BYTES + b"last")
    (first / "refused.json").symlink_to(secret)
    (first / "closed").mkdir(0o000)
    here = os.open(first, os.O_RDONLY)
    for _ in range(1500):  # deeper than can be removed
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
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
