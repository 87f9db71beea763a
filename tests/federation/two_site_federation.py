"""A small federation of real processes for tests: two sites and a server on free ports of this machine."""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cnfgnn.errors import RunError
from cnfgnn.federation.engine.carry import jobs
from cnfgnn.federation.example import free_ports
from cnfgnn.federation.kits import processes
from cnfgnn.federation.operator.make_kits import make_kits
from cnfgnn.federation.project import Project, read_project
from tests.waiting import wait_for

ROOT = Path(__file__).parents[2]
CONTROLLER, EXECUTOR = "tests.federation.echo_job.EchoController", "tests.federation.echo_job.EchoExecutor"
REQUESTING, FORGING = (
    "tests.federation.forged_requests.RequestingController",
    "tests.federation.forged_requests.ForgingExecutor",
)


def write_project(folder: Path, **changes: object) -> Path:
    """Write a project file with two sites and three sensors; `changes` replace lines by their key."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = "".join(f"s{i},34.{i},-118.{i}\n" for i in range(4))
    (folder / "sensors.csv").write_text("id,latitude,longitude\n" + rows)
    port, admin_port = free_ports(2)
    lines = {
        "name": '"city"',
        "min_sites": 1,
        "[server]": None,
        "host": '"127.0.0.1"',
        "port": port,
        "admin_port": admin_port,
        "[graph]": None,
        "sensors": '"sensors.csv"',
        "[sites.north]": None,
        "sensors ": '["s0"]',
        "readings": '"/data/north"',
        "[sites.south]": None,
        " sensors": '["s2", "s1"]',
    }
    text = "\n".join(key if value is None else f"{key} = {value}" for key, value in (lines | changes).items())
    (folder / "PROJECT.toml").write_text(text)
    return folder / "PROJECT.toml"


@contextmanager
def federation(folder: Path, *names: str) -> Iterator[tuple[Project, dict[str, Path]]]:
    """The project and its kits, with the server and the sites `names` running."""
    # sites import the tests' classes
    if str(ROOT) not in os.environ.get("PYTHONPATH", "").split(os.pathsep):
        os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    project = read_project(write_project(folder))
    made = make_kits(project, folder / "kits", [CONTROLLER, EXECUTOR, REQUESTING, FORGING])
    try:
        for name in ("server", *names):
            processes.up(made[name])
        wait_for(lambda: connected(made["server"]) == set(names), f"{names} are connected")
        yield project, made
    finally:
        for kit in made.values():
            processes.down(kit)
        gc.collect()  # the sockets of the engine's sessions, while their warnings are ignored


def have_processes_run(code: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the processes that start from now on run this code first; it is written into a new folder."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{os.environ['PYTHONPATH']}")


def connected(server: Path) -> set[str]:
    try:
        with jobs.connect(server, timeout=30) as session:
            return {site.name for site in session.connected()}
    except RunError:
        return set()


class Echo:
    """A job that runs until it is told to stop, and the latest answers of its sites."""

    def __init__(self, session: jobs.Session, folder: Path, sites: list[str]) -> None:
        folder.mkdir(exist_ok=True)
        self.log = folder / "echo.jsonl"
        args = {"log": str(self.log), "sites": sites}
        self.session = session
        self.id = session.submit(jobs.job_folder(folder / "job", "echo", CONTROLLER, args, EXECUTOR, {}))

    def answers(self) -> dict[str, Any]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return dict(json.loads(lines[-1])) if lines else {}

    def pid(self, site: str, other_than: int | None = None) -> int:
        """The process that answers for a site; waits until there is one."""

        def found() -> int | None:
            answer = self.answers().get(site)
            return answer if isinstance(answer, int) and answer != other_than else None

        return int(wait_for(found, f"{site} answers"))

    def stop(self) -> None:
        self.log.with_suffix(".stop").touch()
