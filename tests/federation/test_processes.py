"""Real processes on this machine: jobs that come back by themselves, and parties that are not let in."""

from __future__ import annotations

import json
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
from cnfgnn.federation import jobs, kits, processes
from cnfgnn.federation.project import read_project
from tests.federation.parties import Echo, awaited, connected, federation, write_project

pytestmark = [
    # The engine leaves the sockets of a session to the garbage collector.
    pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def test_killed_jobs_and_killed_sites_rejoin_the_running_job(tmp_path: Path) -> None:
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
        awaited(lambda: not isinstance(echo.answers()["south"], int), "the server notices that south is away")
        assert processes.running(made["south"]) is None
        assert processes.up(made["south"]) == processes.running(made["south"])
        south = echo.pid("south", other_than=south)

        # Of a parent alone: its job goes on, until `up` replaces both.
        parent = processes.running(made["north"])
        assert parent is not None
        os.kill(parent, signal.SIGKILL)
        processes.up(made["north"])
        echo.pid("north", other_than=again)

        assert session.state(echo.id) == "RUNNING"
        echo.stop()
        awaited(lambda: session.state(echo.id) == "FINISHED:COMPLETED", "the job ends")
        for name in ("north", "south"):
            awaited(lambda name=name: processes.jobs_of(made[name]) == [], f"{name}'s job process ends")
            assert list((made[name] / "rejoin").iterdir()) == []


def test_a_stopped_site_leaves_no_process_and_an_aborted_job_does_not_come_back(tmp_path: Path) -> None:
    with federation(tmp_path, "north", "south") as (_, made), jobs.connect(made["server"]) as session:
        echo = Echo(session, tmp_path, ["north", "south"])
        echo.pid("north"), echo.pid("south")
        assert processes.down(made["south"])
        assert not processes.down(made["south"])
        assert processes.running(made["south"]) is None
        assert processes.jobs_of(made["south"]) == []
        session.abort(echo.id)
        awaited(lambda: session.state(echo.id).startswith("FINISHED"), "the job is aborted")
        awaited(lambda: processes.jobs_of(made["north"]) == [], "north's job process ends")
        assert list((made["north"] / "rejoin").iterdir()) == []

        # South was away when the job ended: it starts it again and is told at once that it is over.
        processes.up(made["south"])
        awaited(lambda: "south" in connected(made["server"]), "south is back")
        awaited(lambda: list((made["south"] / "rejoin").iterdir()) == [], "south forgets the job")
        with pytest.raises(ConfigError, match="there is no such job"):
            session.state("0bd6bd6e-0000-0000-0000-000000000000")


def test_strangers_are_refused(tmp_path: Path) -> None:
    with federation(tmp_path, "north") as (project, made):
        elsewhere = kits.make_kits(project, tmp_path / "other authority")
        renamed = shutil.copytree(made["north"], tmp_path / "north as south")
        config = renamed / "startup" / "fed_client.json"
        config.write_text(config.read_text().replace('"fqsn": "north"', '"fqsn": "south"'))
        (renamed / "process.json").unlink()
        try:
            processes.up(elsewhere["south"])
            processes.up(renamed)
            awaited(lambda: "TLSV1_ALERT_UNKNOWN_CA" in said(elsewhere["south"]), "another authority is refused")
            awaited(lambda: "south" in said(made["server"]), "a false name is refused")
            refused_without_certificate(project.server.port)
            assert connected(made["server"]) == {"north"}
        finally:
            processes.down(elsewhere["south"])
            processes.down(renamed)


def said(kit: Path) -> str:
    files = [file for file in (kit / "log.txt", kit / "console.txt") if file.exists()]
    return "".join(file.read_text() for file in files)


def refused_without_certificate(port: int) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection(("127.0.0.1", port), timeout=10) as plain,
        pytest.raises(ssl.SSLError, match="CERTIFICATE_REQUIRED"),
        context.wrap_socket(plain) as secure,
    ):
        secure.send(b"hello")
        while secure.recv(100):
            pass
