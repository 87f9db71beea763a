"""Real processes on this machine: jobs restart and rejoin, and unauthorised parties are refused."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from cnfgnn.errors import ConfigError, RunError
from cnfgnn.federation.engine.carry import jobs
from cnfgnn.federation.kits import processes
from cnfgnn.federation.kits.engine_files import ENGINE_FOLDER
from cnfgnn.federation.operator.make_kits import make_kits
from tests.federation.running_federation import ENGINE_WARNINGS
from tests.federation.site_processes import engine_of
from tests.federation.two_site_federation import CONTROLLER, Echo, connected, federation
from tests.waiting import wait_for

pytestmark = ENGINE_WARNINGS


@pytest.mark.chaos
def test_killed_jobs_and_killed_sites_rejoin_a_running_job(tmp_path: Path) -> None:
    with federation(tmp_path, "north", "south") as (_, made), jobs.connect(made["server"]) as session:
        echo = Echo(session, tmp_path, ["north", "south"])
        north, south = echo.pid("north"), echo.pid("south")
        assert processes.jobs_of(made["north"]) == [north]
        assert session.running_jobs() == [echo.id]

        os.kill(north, signal.SIGKILL)
        again = echo.pid("north", other_than=north)
        assert echo.answers()["south"] == south

        parent = processes.running(made["south"])
        assert parent is not None
        for pid in (parent, south):
            os.kill(pid, signal.SIGKILL)
        wait_for(
            lambda: not isinstance(echo.answers()["south"], int), "the server notices that south is gone"
        )
        assert processes.running(made["south"]) is None
        assert processes.up(made["south"]) == processes.running(made["south"])
        south = echo.pid("south", other_than=south)

        # Only the supervisor is killed: the engine ends with it.
        parent = processes.running(made["north"])
        assert parent is not None
        os.kill(parent, signal.SIGKILL)
        wait_for(lambda: processes.running(made["north"]) is None, "north's supervisor is gone")
        processes.up(made["north"])
        again = echo.pid("north", other_than=again)

        # Only the engine's parent is killed: the supervisor starts it again.
        engine = engine_of(made["north"])
        assert engine is not None
        os.kill(engine, signal.SIGKILL)
        echo.pid("north", other_than=again)

        assert session.state(echo.id) == "RUNNING"
        echo.stop()
        wait_for(lambda: session.state(echo.id) == "FINISHED:COMPLETED", "the job ends")
        for name in ("north", "south"):
            wait_for(lambda name=name: processes.jobs_of(made[name]) == [], f"{name}'s job process ends")


@pytest.mark.slow
def test_a_stopped_site_leaves_no_process_and_an_aborted_job_does_not_restart(tmp_path: Path) -> None:
    with federation(tmp_path, "north", "south") as (_, made), jobs.connect(made["server"]) as session:
        echo = Echo(session, tmp_path, ["north", "south"])
        echo.pid("north"), echo.pid("south")
        assert processes.down(made["south"])
        assert not processes.down(made["south"])
        assert processes.running(made["south"]) is None
        assert processes.jobs_of(made["south"]) == []
        session.abort(echo.id)
        wait_for(lambda: session.state(echo.id).startswith("FINISHED"), "the job is aborted")
        wait_for(lambda: processes.jobs_of(made["north"]) == [], "north's job process ends")

        # South was stopped when the job ended: it is not asked to begin with it again.
        processes.up(made["south"])
        wait_for(lambda: "south" in connected(made["server"]), "south is back")
        assert processes.jobs_of(made["south"]) == []
        with pytest.raises(ConfigError, match="the server has no such job"):
            session.state("0bd6bd6e-0000-0000-0000-000000000000")


@pytest.mark.chaos
def test_a_site_that_connects_late_gets_the_running_job(tmp_path: Path) -> None:
    with federation(tmp_path, "north") as (_, made), jobs.connect(made["server"]) as session:
        echo = Echo(session, tmp_path, ["north", "south"])
        north = echo.pid("north")
        assert not isinstance(echo.answers()["south"], int)
        processes.up(made["south"])
        south = echo.pid("south")

        parent = processes.running(made["south"])
        assert parent is not None
        for pid in (parent, south):
            os.kill(pid, signal.SIGKILL)
        wait_for(lambda: processes.running(made["south"]) is None, "south is gone")
        processes.up(made["south"])
        echo.pid("south", other_than=south)
        assert echo.pid("north") == north
        echo.stop()
        wait_for(lambda: session.state(echo.id) == "FINISHED:COMPLETED", "the job ends")
        wait_for(lambda: processes.jobs_of(made["south"]) == [], "south's job process ends")


@pytest.mark.chaos
def test_sites_accept_a_new_job_after_the_server_or_its_job_was_killed(tmp_path: Path) -> None:
    with federation(tmp_path, "north") as (_, made):
        with jobs.connect(made["server"]) as session:
            first = Echo(session, tmp_path / "first", ["north"])
            was = first.pid("north")
            [job] = processes.jobs_of(made["server"])
            os.kill(job, signal.SIGKILL)
            wait_for(lambda: session.state(first.id).startswith("FINISHED"), "the server notices")
            assert session.state(first.id) != "FINISHED:COMPLETED"
            second = Echo(session, tmp_path / "second", ["north"])
            was = second.pid("north", other_than=was)

        parent = processes.running(made["server"])
        assert parent is not None
        for pid in (parent, *processes.jobs_of(made["server"])):
            os.kill(pid, signal.SIGKILL)
        wait_for(lambda: processes.running(made["server"]) is None, "the server is gone")
        processes.up(made["server"])
        wait_for(lambda: connected(made["server"]) == {"north"}, "north registers again by itself")
        with jobs.connect(made["server"]) as session:
            assert session.running_jobs() == []
            third = Echo(session, tmp_path / "third", ["north"])
            assert third.pid("north") != was
            wait_for(lambda: len(processes.jobs_of(made["north"])) == 1, "the previous job has ended")


@pytest.mark.slow
def test_parties_without_a_valid_certificate_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with federation(tmp_path, "north") as (project, made):
        port = project.server.port
        refused(port, "CERTIFICATE_REQUIRED")
        stranger = make_kits(project, tmp_path / "other authority")["south"]
        refused(port, "UNKNOWN_CA", stranger / "startup")

        running = shutil.ignore_patterns("socket", "engine", "process.json", "supervisor.json")
        renamed = shutil.copytree(made["north"], tmp_path / "north as south", ignore=running)
        config = renamed / "startup" / "fed_client.json"
        config.write_text(config.read_text().replace('"fqsn": "north"', '"fqsn": "south"'))
        with pytest.raises(
            RunError, match="this certificate is of 'north', and the kit is that of site south"
        ):
            processes.up(renamed)
        monkeypatch.setattr(processes, "check_valid", lambda kit: [])  # as somebody would who means it
        try:
            processes.up(renamed)
            processes.up(stranger)
            problem = "refused north: it claims to be south"
            wait_for(lambda: problem in logged(made["server"]), "a false name is refused")
            wait_for(lambda: "CERTIFICATE_VERIFY_FAILED" in logged(stranger), "another authority is refused")
            assert connected(made["server"]) == {"north"}
        finally:
            processes.down(renamed)
            processes.down(stranger)


@pytest.mark.slow
def test_jobs_with_code_or_foreign_classes_are_refused(tmp_path: Path) -> None:
    with federation(tmp_path, "north") as (_, made), jobs.connect(made["server"]) as session:
        trace = tmp_path / "ran"
        with_code = jobs.job_folder(tmp_path / "code", "code", "evil.Controller", {}, "evil.Executor", {})
        (with_code / "app" / "custom").mkdir()
        (with_code / "app" / "custom" / "evil.py").write_text(f"open({str(trace)!r}, 'w')")
        job = session.submit(with_code)
        wait_for(lambda: session.state(job).startswith("FINISHED"), "code is refused")
        wait_for(lambda: "BYOC not permitted" in logged(made["server"]), "the server's log says why")

        args = {"log": str(tmp_path / "log"), "sites": ["north"]}
        foreign = jobs.job_folder(
            tmp_path / "foreign", "foreign", CONTROLLER, args, "tests.federation.echo_job.Unlisted", {}
        )
        job = session.submit(foreign)
        file, problem = made["north"] / ENGINE_FOLDER / job / "log.txt", "is not in allow_list"
        wait_for(lambda: file.exists() and problem in file.read_text(), "a class that is not ours is refused")
        ended = "site north has ended its part of a task"  # and only its own
        wait_for(lambda: ended in logged(made["server"]), "the server's log says so")
        assert session.state(job) == "RUNNING"
        (tmp_path / "log.stop").touch()
        wait_for(lambda: session.state(job).startswith("FINISHED"), "the job ends")
        assert not trace.exists()


@pytest.mark.parametrize(
    "module",
    [
        "carry.launcher",
        "carry.late_joiners",
        "carry.job_store",
        "guard.admission",
        "guard.connection_monitor",
        "guard.message_guard",
    ],
)
def test_parent_processes_do_not_load_pytorch(module: str) -> None:
    program = f"import cnfgnn.federation.engine.{module}, sys; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def logged(kit: Path) -> str:
    places = (kit / "log.txt", kit / "console.txt", kit / ENGINE_FOLDER / "log.txt")
    files = [file for file in places if file.exists()]
    return "".join(file.read_text() for file in files)


def refused(port: int, alert: str, certificates: Path | None = None) -> None:
    """Connect with TLS as a site does, but verify nothing: the server must be the one that refuses."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if certificates is not None:
        context.load_cert_chain(certificates / "client.crt", certificates / "client.key")
    with (
        socket.create_connection(("127.0.0.1", port), timeout=10) as plain,
        pytest.raises(ssl.SSLError) as caught,
    ):
        read_all(context, plain)
    assert alert in str(caught.value)


def read_all(context: ssl.SSLContext, plain: socket.socket) -> None:
    """Only read: data that arrives after the refusal could hide the alert."""
    with context.wrap_socket(plain) as secure:
        while secure.recv(100):
            pass
