"""Which processes are admitted in a site's name: one at a time, and none with a revoked certificate."""

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
from nvflare.fuel.f3.sfm.constants import HandshakeKeys, Types

from cnfgnn.errors import RunError
from cnfgnn.federation.engine import provisioning
from cnfgnn.federation.engine.carry import jobs
from cnfgnn.federation.engine.guard import handshake
from cnfgnn.federation.engine.guard.admission import COPIED_KIT, REVOKED
from cnfgnn.federation.engine.guard.handshake import connection_problem
from cnfgnn.federation.kits import processes
from cnfgnn.federation.kits.engine_files import ENGINE_FOLDER
from cnfgnn.federation.operator import tasks as task_client
from cnfgnn.federation.operator.make_kits import make_kits
from cnfgnn.federation.operator.status import engine_process
from cnfgnn.federation.project import KEEP_TASKS, Project
from cnfgnn.federation.server.process_status import read_server_status
from cnfgnn.files import read_json_or_empty
from tests.commands import said
from tests.federation.running_federation import ENGINE_WARNINGS
from tests.federation.site_processes import engine_of
from tests.federation.two_site_federation import Echo, connected, federation
from tests.waiting import wait_for

pytestmark = [pytest.mark.slow, *ENGINE_WARNINGS]

Kits = Mapping[str, Path]


ASKED_EVERY = 0.3  # seconds between questions to the server, each on a connection of its own


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Project, Kits]]:
    """A server and the site north; each test leaves north connected."""
    with federation(tmp_path_factory.mktemp("admission"), "north") as parties:
        yield parties


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy server may take longer for an answer than a person would wait."""
    monkeypatch.setattr(handshake, "ANSWERS_WITHIN", 60.0)


@pytest.fixture
def copied(running: tuple[Project, Kits], tmp_path: Path) -> Iterator[Path]:
    """A copy of north's kit, without the files that its process wrote."""
    left_out = shutil.ignore_patterns(
        "process.json", "supervisor.json", "engine", "socket", "*.txt*", ".lock"
    )
    copy = Path(shutil.copytree(running[1]["north"], tmp_path / "copy", ignore=left_out))
    yield copy
    processes.down(copy)


def hears(kit: Path, other_than: str = "") -> bool:
    """Whether the server receives heartbeats from the process of this kit."""
    process = engine_process(kit)
    time.sleep(ASKED_EVERY)
    try:
        return process != other_than and handshake.ask_server(kit, process).connection["heard"] is not None
    except RunError:  # a busy server may take too long for one answer; callers ask again
        return False


def recorded(kit: Path, part: str) -> Callable[[], bool]:
    return lambda: part in read_json_or_empty(kit / "engine" / "connection.json").get("problem", "")


def refusals(server: Path) -> dict[str, Any]:
    """What the server says of refused connections of north: nothing until it has written its status."""
    return read_server_status(server).get("sites", {}).get("north", {}).get("refused") or {}


def log(kit: Path) -> str:
    return (kit / "log.txt").read_text()


def test_a_site_learns_the_servers_clock_and_whether_its_heartbeats_arrive(
    running: tuple[Project, Kits], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, made = running
    wait_for(lambda: hears(made["north"]), "the server hears north")
    assert "received a heartbeat" in said("federation", "status", made["north"])
    answer = handshake.ask_server(made["south"])
    assert abs(answer.clock_ahead) < 60
    assert connection_problem(answer) == ""
    now = time.time
    monkeypatch.setattr(handshake.time, "time", lambda: now() - 900)
    problem = connection_problem(handshake.ask_server(made["south"]))
    assert "900 s behind the server's, and 300 s are allowed" in problem


def test_a_silent_connection_does_not_block_others(running: tuple[Project, Kits]) -> None:
    project, made = running
    with socket.create_connection(("127.0.0.1", project.server.port)):
        assert handshake.ask_server(made["south"]).server == "127.0.0.1"


def send_first(project: Project, kit: Path, kind: int, name: str) -> None:
    """Begin a connection with this frame, in this name; returns once the server has closed it."""
    context = handshake._tls_context(kit / "startup")
    content = {HandshakeKeys.ENDPOINT_NAME: name, HandshakeKeys.TIMESTAMP: time.time()}
    with (
        socket.create_connection(("127.0.0.1", project.server.port), timeout=60) as plain,
        context.wrap_socket(plain) as secure,
    ):
        secure.sendall(handshake.encode_frame(kind, content))
        while secure.recv(4096):
            pass


def test_who_begins_with_an_answer_is_refused(running: tuple[Project, Kits]) -> None:
    """The engine admits whoever sends READY as it admits who was asked: no check of the kit would be made."""
    project, made = running
    send_first(project, made["south"], Types.READY, "south")
    refused = (
        "refused a connection in the name of site south from 127.0.0.1: a process with the same certificate"
    )
    assert refused in log(made["server"])
    told = handshake.ask_server(made["south"]).connection
    assert "another process tried to connect with a copy of this kit" in handshake.copied_kit_warning(told)


def test_a_blank_does_not_make_a_name_another_one(running: tuple[Project, Kits]) -> None:
    """The engine removes blanks and would put the connection in the place of the site's own."""
    project, made = running
    wait_for(lambda: hears(made["north"]), "the server hears north")
    for name, claimed in ((" north", " north"), ("north\n", "'north\\n'")):
        send_first(project, made["north"], Types.HELLO, name)
        assert f"refused north: it claims to be {claimed}" in log(made["server"])
    wait_for(lambda: hears(made["north"]), "the server still hears north")


@pytest.mark.chaos
def test_a_copied_kit_is_refused_while_its_site_runs_and_all_parties_are_told(
    running: tuple[Project, Kits], copied: Path, tmp_path: Path
) -> None:
    _, made = running
    north = made["north"]
    wait_for(lambda: hears(north), "the server hears north")
    with jobs.connect(made["server"]) as session:
        echo = Echo(session, tmp_path, ["north"])
        answering = echo.pid("north")
        processes.up(copied)
        wait_for(recorded(copied, "the server refuses this kit"), "the copy's owner is told")
        wait_for(recorded(north, "tried to connect with a copy of this kit"), "north's owner is told", 150)
        wait_for(lambda: refusals(made["server"]).get("reason") == COPIED_KIT, "the operator is told")
        wait_for(lambda: hears(north), "the server still hears north")
        assert echo.pid("north") == answering
        assert processes.jobs_of(copied) == []
        echo.stop()
        wait_for(lambda: session.state(echo.id) == "FINISHED:COMPLETED", "the job ends")
    assert "the server refuses this kit" in log(copied / "engine")
    assert "the server refuses this kit" in (copied / "console.txt").read_text()
    assert "with a copy of this kit" in log(north / "engine")
    assert "refused a connection in the name of site north" in log(made["server"])
    assert "a connection in its name was refused" in said("federation", "status", made["server"])
    assert "problem: the server refuses this kit" in said("federation", "status", copied)
    assert "problem: another process tried to connect" in said("federation", "status", north)
    assert "Traceback" not in log(copied)


@pytest.mark.chaos
def test_a_killed_site_reconnects_at_once_and_an_unresponsive_one_is_replaced(
    running: tuple[Project, Kits], copied: Path
) -> None:
    _, made = running
    north, refused_before = made["north"], refusals(made["server"]).get("count", 0)
    for _ in range(2):
        parent, before = processes.running(north), engine_process(north)
        assert parent is not None
        os.kill(parent, signal.SIGKILL)
        wait_for(lambda: processes.running(north) is None, "north is dead")
        processes.up(north)
        wait_for(lambda before=before: hears(north, other_than=before), "north is heard again")
    assert refusals(made["server"]).get("count", 0) == refused_before

    # As after a power cut: the connection looks open, nobody answers, and the machine starts again.
    frozen = engine_of(north)
    assert frozen is not None
    os.kill(frozen, signal.SIGSTOP)
    try:
        processes.up(copied)
        wait_for(lambda: hears(copied), "the process that answers is admitted")
    finally:
        os.kill(frozen, signal.SIGCONT)
    processes.down(copied)
    wait_for(lambda: hears(north), "north is heard again")


def test_a_revoked_kit_is_disconnected_and_a_new_one_for_that_site_is_admitted(
    running: tuple[Project, Kits], tmp_path: Path
) -> None:
    project, made = running
    north, server = made["north"], made["server"]
    wait_for(lambda: hears(north), "the server hears north")
    assert "1 certificate revoked" in said("federation", "revoke", server, "north")
    wait_for(lambda: connected(server) == set(), "north's connection ends")
    wait_for(recorded(north, "revoked this kit's certificate"), "north's owner is told", 150)
    for _ in range(5):  # each time: what asks is not closed with what is refused
        assert "problem: the server's operator has revoked" in said("federation", "status", north)
    wait_for(lambda: refusals(server).get("reason") == REVOKED, "the operator is told")
    assert "\n    its certificate is revoked\n" in said("federation", "status", server)

    authority = server.parent / "authority"
    new = make_kits(project, tmp_path / "new", authority=authority, only="north")["north"]
    processes.down(north)
    shutil.rmtree(north / "startup")
    shutil.copytree(new / "startup", north / "startup")
    processes.up(north)
    wait_for(lambda: connected(server) == {"north"}, "the new certificate is admitted")
    assert "\n    its certificate is revoked\n" not in said("federation", "status", server)


def test_the_operator_sees_connections_with_an_expired_certificate(
    running: tuple[Project, Kits], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, made = running
    monkeypatch.setattr(provisioning, "PARTY_DAYS", 1 / 86400)
    authority = made["server"].parent / "authority"
    kit = make_kits(project, tmp_path / "late", authority=authority, only="south")["south"]

    def is_refused() -> bool:
        try:
            handshake.ask_server(kit)
        except RunError:
            return True
        return False

    wait_for(is_refused, "the certificate has expired")
    strangers = wait_for(lambda: read_server_status(made["server"])["strangers"], "the operator is told")
    assert (strangers["address"], strangers["reason"]) == ("127.0.0.1", "certificate has expired")
    assert "certificate has expired" in said("federation", "status", made["server"])


@pytest.mark.chaos
def test_old_tasks_are_removed_and_the_scheduler_survives_it(
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
    wait_for(lambda: connected(server) == {"north"}, "north is back")
    assert len(list((server / "jobs").iterdir())) == KEEP_TASKS
    assert not (server / "jobs" / "00000000-0000-4000-8000-000000000004").exists()

    with jobs.connect(server) as session:
        first = Echo(session, tmp_path / "first", ["north"])
        first.pid("north")
        assert "removed the files of 20 tasks" in said("federation", "clean", server, "--keep", 0)
        assert [path.name for path in (server / "jobs").iterdir()] == [first.id]
        said("federation", "clean", north, "--keep", 0)
        assert (north / ENGINE_FOLDER / first.id).is_dir()
        first.stop()
        wait_for(lambda: session.state(first.id) == "FINISHED:COMPLETED", "the running task is not removed")
        wait_for(lambda: not processes.jobs_of(north), "north has finished the task")
        said("federation", "clean", north, "--keep", 0)
        assert not (north / ENGINE_FOLDER / first.id).exists()

        shutil.rmtree(server / "jobs")  # as somebody who runs out of disk space might
        second = Echo(session, tmp_path / "second", ["north"])
        second.pid("north")
        second.stop()
        wait_for(lambda: session.state(second.id) == "FINISHED:COMPLETED", "the scheduler still works")
    wait_for(lambda: read_server_status(server)["scheduler"], "the status says so")


def test_a_server_that_no_longer_starts_tasks_is_reported(running: tuple[Project, Kits]) -> None:
    """The status that the server's process wrote about its scheduler counts while that process runs."""
    _, made = running
    server = made["server"]
    assert "scheduler" not in said("federation", "status", server)
    pid = processes.running(server)
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)  # it must not overwrite the status meanwhile
    try:
        file = server / "server-status.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "scheduler": False}))
        with pytest.raises(Exception, match="scheduler has ended"):
            task_client.check_server_ready(server)
    finally:
        os.kill(pid, signal.SIGCONT)
