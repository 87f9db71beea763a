"""The files of finished tasks are removed; those of running tasks are kept."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cnfgnn.errors import ConfigError
from cnfgnn.federation.kits import processes
from cnfgnn.federation.kits.retention import remove_old_tasks
from cnfgnn.federation.operator.make_kits import make_kits
from cnfgnn.federation.project import KEEP_TASKS, read_project
from cnfgnn.federation.site.settings import read_site
from tests.commands import said
from tests.federation.known_keys import known_keys
from tests.federation.two_site_federation import write_project


@pytest.fixture
def made(tmp_path: Path) -> dict[str, Path]:
    with known_keys():
        return make_kits(read_project(write_project(tmp_path)), tmp_path / "kits")


def task(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012x}"


def write_task(folder: Path, age: int, size: int = 100) -> Path:
    (folder / "app").mkdir(parents=True)
    (folder / "log.txt").write_bytes(b"x" * size)
    os.utime(folder, (1e9 - age, 1e9 - age))
    return folder


def write_log(file: Path, age: int) -> Path:
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(b"x" * 10)
    os.utime(file, (1e9 - age, 1e9 - age))
    return file


@contextmanager
def running_job(folder: Path) -> Iterator[None]:
    """A process of the engine that works on a task, as far as its command line tells."""
    line = ["nvflare.private.fed.app.client.worker_process", str(folder.parent), folder.name]
    process = subprocess.Popen([sys.executable, "-c", "input()", *line], stdin=subprocess.PIPE)
    try:
        yield
    finally:
        process.communicate(b"\n")


def test_a_site_keeps_the_latest_tasks_and_those_it_takes_part_in(made: dict[str, Path]) -> None:
    kit = made["north"]
    folders = [write_task(kit / "engine" / task(number), age=number) for number in range(KEEP_TASKS + 3)]
    logs = [write_log(kit / "tasks" / f"{task(number)}.txt", number) for number in range(KEEP_TASKS + 3)]
    others = {path.name for path in kit.iterdir()}
    with running_job(folders[-1]):
        done = remove_old_tasks(kit, KEEP_TASKS)
    assert (done.tasks, done.bytes) == (2, 220)
    for kept in (folders, logs):
        assert [path.exists() for path in kept] == [True] * KEEP_TASKS + [False] * 2 + [True]
    toml = kit / "local" / "site.toml"
    toml.write_text(toml.read_text() + "keep_tasks = 3\n")
    assert f"removed the files of {KEEP_TASKS - 2} tasks" in said("federation", "clean", kit)
    assert "removed the files of 3 tasks" in said("federation", "clean", kit, "--keep", 0)
    assert {path.name for path in kit.iterdir()} == others
    assert not any(path.exists() for path in (*folders, *logs))
    toml.write_text(toml.read_text().replace("keep_tasks = 3", "keep_tasks = 0"))
    with pytest.raises(ConfigError, match="keep_tasks"):
        read_site(kit)


def test_a_server_keeps_tasks_that_have_not_finished(made: dict[str, Path]) -> None:
    kit = made["server"]
    states = ["FINISHED:COMPLETED", "RUNNING", "SUBMITTED", "FINISHED:ABORTED", "FINISHED:COMPLETED"]
    for number, state in enumerate(states):
        folder = write_task(kit / "jobs" / task(number), age=number)
        (folder / "meta").write_text(json.dumps({"status": state, "submit_time": float(number)}))
    write_task(kit / "jobs" / task(7), age=0)  # being written
    write_task(kit / task(1), age=0)
    write_task(kit / task(9), age=0)  # of a server that was killed during a task
    working = subprocess.Popen(  # with a command line like the engine's
        [sys.executable, "-c", "input()", "nvflare.private.fed.app.x", str(kit.resolve()), "-n", task(9)],
        stdin=subprocess.PIPE,
    )
    try:
        assert remove_old_tasks(kit, 1).tasks == 2
        left = {path.name for path in (kit / "jobs").iterdir()}
        assert left == {task(number) for number in (1, 2, 4, 7)}
        assert (kit / task(9)).exists()
    finally:
        working.kill()
        working.wait()
        assert working.stdin is not None
        working.stdin.close()
    remove_old_tasks(kit, 1)
    assert not (kit / task(9)).exists()
    assert (kit / task(1)).exists()
    assert not list(kit.glob(".gone-*"))


def test_the_end_of_a_long_console_stays_and_its_writers_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "CONSOLE_BYTES", 1000)
    console = tmp_path / processes.CONSOLE_FILE
    processes.trim_console(tmp_path)
    assert not console.exists()  # in the foreground there is none
    with processes.open_private(console) as handle:
        for number in range(200):
            os.write(handle, b"line %03d\n" % number)
            processes.trim_console(tmp_path)
            assert console.stat().st_size <= 1000
        lines = console.read_text().splitlines()
    assert lines == [f"line {number:03d}" for number in range(200 - len(lines), 200)]
    assert len(lines) > 50
    console.unlink()
    console.symlink_to(tmp_path / "other")
    (tmp_path / "other").write_bytes(b"x" * 2000)
    processes.trim_console(tmp_path)
    assert (tmp_path / "other").stat().st_size == 2000
