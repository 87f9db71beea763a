"""What finished tasks leave is removed, but nothing of a task that is not over."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cnfgnn.errors import ConfigError
from cnfgnn.federation import kits
from cnfgnn.federation.project import KEEP_TASKS, read_project
from cnfgnn.federation.retention import tidy
from tests.commands import said
from tests.federation.parties import write_project


@pytest.fixture
def made(tmp_path: Path) -> dict[str, Path]:
    return kits.make_kits(read_project(write_project(tmp_path)), tmp_path / "kits")


def task(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012x}"


def leave(folder: Path, age: int, size: int = 100) -> Path:
    (folder / "app").mkdir(parents=True)
    (folder / "log.txt").write_bytes(b"x" * size)
    os.utime(folder, (1e9 - age, 1e9 - age))
    return folder


def test_a_site_keeps_the_latest_tasks_and_those_it_takes_part_in(made: dict[str, Path]) -> None:
    kit = made["north"]
    folders = [leave(kit / task(number), age=number) for number in range(KEEP_TASKS + 3)]
    (kit / "rejoin").mkdir()
    (kit / "rejoin" / f"{folders[-1].name}.json").write_text("{}")
    others = {path.name for path in kit.iterdir()} - {path.name for path in folders}
    done = tidy(kit)
    assert (done.tasks, done.bytes) == (2, 200)
    assert [folder.exists() for folder in folders] == [True] * KEEP_TASKS + [False] * 2 + [True]
    toml = kit / "local" / "site.toml"
    toml.write_text(toml.read_text() + "keep_tasks = 3\n")
    assert tidy(kit).tasks == KEEP_TASKS - 3
    assert "removed what 3 tasks left" in said("federation", "clean", kit, "--keep", 0)
    assert {path.name for path in kit.iterdir()} == others | {folders[-1].name}
    toml.write_text(toml.read_text().replace("keep_tasks = 3", "keep_tasks = 0"))
    with pytest.raises(ConfigError, match="keep_tasks"):
        kits.read_site(kit)


def test_a_server_keeps_what_is_not_over(made: dict[str, Path]) -> None:
    kit = made["server"]
    states = ["FINISHED:COMPLETED", "RUNNING", "SUBMITTED", "FINISHED:ABORTED", "FINISHED:COMPLETED"]
    for number, state in enumerate(states):
        folder = leave(kit / "jobs" / task(number), age=number)
        (folder / "meta").write_text(json.dumps({"status": state, "submit_time": float(number)}))
    leave(kit / "jobs" / task(7), age=0)  # just being written
    leave(kit / task(1), age=0)
    leave(kit / task(9), age=0)  # of a server that was killed in the midst of a task
    working = subprocess.Popen(  # as the engine names a task's process
        [sys.executable, "-c", "input()", "nvflare.private.fed.app.x", str(kit.resolve()), "-n", task(9)],
        stdin=subprocess.PIPE,
    )
    try:
        assert tidy(kit, 1).tasks == 2
        left = {path.name for path in (kit / "jobs").iterdir()}
        assert left == {task(number) for number in (1, 2, 4, 7)}
        assert (kit / task(9)).exists()
    finally:
        working.kill()
        working.wait()
        assert working.stdin is not None
        working.stdin.close()
    tidy(kit, 1)
    assert not (kit / task(9)).exists()
    assert (kit / task(1)).exists()
    assert not list(kit.glob(".gone-*"))
