"""Who may connect in a site's name, with real processes: one at a time, none with a revoked certificate."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from nvflare.app_common.storages.filesystem_storage import FilesystemStorage

from cnfgnn.errors import RunError
from cnfgnn.federation import kits, processes, task_client
from cnfgnn.federation.flare import handshake, jobs, provisioning
from cnfgnn.federation.flare.admission import COPY, IS_REVOKED, read_server_status
from cnfgnn.federation.project import KEEP_TASKS, Project
from cnfgnn.federation.site_status import noted_process, read_site_status, standing_problem
from tests.commands import said
from tests.federation.parties import Echo, awaited, connected, federation

pytestmark = [
    pytest.mark.slow,
    # The engine leaves the sockets of a session to the garbage collector.
    pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

Kits = Mapping[str, Path]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Project, Kits]]:
    """A server and the site north; each test leaves north connected."""
    with federation(tmp_path_factory.mktemp("doors"), "north") as parties:
        yield parties


@pytest.fixture
def copied(running: tuple[Project, Kits], tmp_path: Path) -> Iterator[Path]:
    """A copy of north's kit, as a thief or a careless owner makes it, without what its process wrote."""
    left_out = shutil.ignore_patterns("process.json", "site-status.json", "*.txt*", "rejoin", ".lock")
    copy = Path(shutil.copytree(running[1]["north"], tmp_path / "copy", ignore=left_out))
    yield copy
    processes.down(copy)


def hears(kit: Path, other_than: str = "") -> bool:
    """Whether the server hears the process of this very kit, or one that was started after another."""
    process = noted_process(kit)
    return process != other_than and handshake.ask(kit, process).standing["heard"] is not None


def noted(kit: Path, part: str) -> Callable[[], bool]:
    return lambda: part in (read_site_status(kit).get("server") or {}).get("problem", "")


def refusals(server: Path) -> dict[str, Any]:
    return read_server_status(server)["sites"]["north"].get("refused") or {}


def log(kit: Path) -> str:
    return (kit / "log.txt").read_text()


def test_a_site_learns_the_servers_clock_and_whether_it_is_heard(
    running: tuple[Project, Kits], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, made = running
    awaited(lambda: hears(made["north"]), "the server hears north")
    assert "heard this site" in said("federation", "status", made["north"])
    answer = handshake.ask(made["south"])
    assert abs(answer.ahead) < 60
    assert standing_problem(answer) == ""
    now = time.time
    monkeypatch.setattr(handshake.time, "time", lambda: now() - 900)
    problem = standing_problem(handshake.ask(made["south"]))
    assert "900 s behind the server's, and 300 s are allowed" in problem


def test_a_connection_that_stays_silent_keeps_nobody_out(running: tuple[Project, Kits]) -> None:
    project, made = running
    with socket.create_connection(("127.0.0.1", project.server.port)):
        assert handshake.ask(made["south"]).server == "127.0.0.1"


def test_a_copied_kit_is_refused_while_its_site_lives_and_everybody_is_told(
    running: tuple[Project, Kits], copied: Path, tmp_path: Path
) -> None:
    _, made = running
    north = made["north"]
    awaited(lambda: hears(north), "the server hears north")
    with jobs.connect(made["server"]) as session:
        echo = Echo(session, tmp_path, ["north"])
        answering = echo.pid("north")
        processes.up(copied)
        awaited(noted(copied, "the server refuses this kit"), "the copy's owner is told")
        awaited(noted(north, "tried to connect with a copy of this kit"), "north's owner is told", 150)
        awaited(lambda: refusals(made["server"]).get("reason") == COPY, "the operator is told")
        assert hears(north)
        assert echo.pid("north") == answering
        assert processes.jobs_of(copied) == []
        echo.stop()
        awaited(lambda: session.state(echo.id) == "FINISHED:COMPLETED", "the job ends")
    assert "the server refuses this kit" in log(copied)
    assert "the server refuses this kit" in (copied / "console.txt").read_text()
    assert "with a copy of this kit" in log(north)
    assert "refused a connection as site north" in log(made["server"])
    assert "a connection in its name was refused" in said("federation", "status", made["server"])
    assert "problem: the server refuses this kit" in said("federation", "status", copied)
    assert "problem: another process tried to connect" in said("federation", "status", north)
    assert "Traceback" not in log(copied)


def test_a_killed_site_is_back_at_once_and_one_that_vanished_is_replaced(
    running: tuple[Project, Kits], copied: Path
) -> None:
    _, made = running
    north, refused_before = made["north"], refusals(made["server"]).get("count", 0)
    for _ in range(2):
        parent, before = processes.running(north), noted_process(north)
        assert parent is not None
        os.kill(parent, signal.SIGKILL)
        awaited(lambda: processes.running(north) is None, "north is dead")
        processes.up(north)
        awaited(lambda before=before: hears(north, other_than=before), "north is heard again")
    assert refusals(made["server"]).get("count", 0) == refused_before

    # As after a power cut: the connection is open, nobody answers on it, and the machine starts again.
    vanished = processes.running(north)
    assert vanished is not None
    os.kill(vanished, signal.SIGSTOP)
    try:
        processes.up(copied)
        awaited(lambda: hears(copied), "the one that answers is let in")
    finally:
        os.kill(vanished, signal.SIGCONT)
    processes.down(copied)
    awaited(lambda: hears(north), "north is heard again")


def test_a_revoked_kit_is_dropped_and_a_new_one_for_that_site_is_let_in(
    running: tuple[Project, Kits], tmp_path: Path
) -> None:
    project, made = running
    north, server = made["north"], made["server"]
    awaited(lambda: hears(north), "the server hears north")
    assert "1 certificate revoked" in said("federation", "revoke", server, "north")
    awaited(lambda: connected(server) == set(), "north's connection ends")
    awaited(noted(north, "revoked this kit's certificate"), "north's owner is told", 150)
    assert "problem: the server's operator has revoked" in said("federation", "status", north)
    awaited(lambda: refusals(server).get("reason") == IS_REVOKED, "and the operator")
    assert "\n    its certificate is revoked\n" in said("federation", "status", server)

    authority = server.parent / "authority"
    new = kits.make_kits(project, tmp_path / "new", authority=authority, only="north")["north"]
    processes.down(north)
    shutil.rmtree(north / "startup")
    shutil.copytree(new / "startup", north / "startup")
    processes.up(north)
    awaited(lambda: connected(server) == {"north"}, "the new certificate is let in")
    assert "\n    its certificate is revoked\n" not in said("federation", "status", server)


def test_the_operator_sees_that_somebody_comes_with_an_expired_certificate(
    running: tuple[Project, Kits], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, made = running
    monkeypatch.setattr(provisioning, "PARTY_DAYS", 1 / 86400)
    authority = made["server"].parent / "authority"
    kit = kits.make_kits(project, tmp_path / "late", authority=authority, only="south")["south"]

    def is_refused() -> bool:
        try:
            handshake.ask(kit)
        except RunError:
            return True
        return False

    awaited(is_refused, "the certificate has expired")
    strangers = awaited(lambda: read_server_status(made["server"])["strangers"], "the operator is told")
    assert (strangers["address"], strangers["reason"]) == ("127.0.0.1", "certificate has expired")
    assert "certificate has expired" in said("federation", "status", made["server"])


def test_old_tasks_are_removed_and_the_scheduler_outlives_their_removal(
    running: tuple[Project, Kits], tmp_path: Path
) -> None:
    _, made = running
    server, north = made["server"], made["north"]
    processes.down(server)
    store = FilesystemStorage()
    for number in range(KEEP_TASKS + 5):
        name = f"00000000-0000-4000-8000-{number:012x}"
        meta = {"status": "FINISHED:COMPLETED", "submit_time": float(number), "job_id": name}
        store.create_object(str(server / "jobs" / name), b"data", meta)
    processes.up(server)
    awaited(lambda: connected(server) == {"north"}, "north is back")
    assert len(list((server / "jobs").iterdir())) == KEEP_TASKS
    assert not (server / "jobs" / "00000000-0000-4000-8000-000000000004").exists()

    with jobs.connect(server) as session:
        first = Echo(session, tmp_path / "first", ["north"])
        first.pid("north")
        assert "removed what 20 tasks left" in said("federation", "clean", server, "--keep", 0)
        assert [path.name for path in (server / "jobs").iterdir()] == [first.id]
        said("federation", "clean", north, "--keep", 0)
        assert (north / first.id).is_dir()
        first.stop()
        awaited(lambda: session.state(first.id) == "FINISHED:COMPLETED", "the task that ran was left alone")
        awaited(lambda: not list((north / "rejoin").iterdir()), "north is done with it")
        said("federation", "clean", north, "--keep", 0)
        assert not (north / first.id).exists()

        shutil.rmtree(server / "jobs")  # as somebody short of space does
        second = Echo(session, tmp_path / "second", ["north"])
        second.pid("north")
        second.stop()
        awaited(lambda: session.state(second.id) == "FINISHED:COMPLETED", "the scheduler lives")
    awaited(lambda: read_server_status(server)["scheduler"], "and the status says so")


def test_a_server_that_starts_no_tasks_is_said_to(running: tuple[Project, Kits]) -> None:
    """The operator is told what the server's process wrote about its scheduler, while that process runs."""
    _, made = running
    server = made["server"]
    assert "scheduler" not in said("federation", "status", server)
    pid = processes.running(server)
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)  # it must not write a better word meanwhile
    try:
        file = server / "server-status.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "scheduler": False}))
        with pytest.raises(Exception, match="scheduler has ended"):
            task_client.check_up(server)
    finally:
        os.kill(pid, signal.SIGCONT)
