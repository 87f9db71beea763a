"""A site logs in to its server, however long that takes."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from nvflare.apis.fl_exception import FLCommunicationError

from cnfgnn.federation.engine.guard.connection_monitor import LOGIN_UNANSWERED, ConnectionMonitor
from cnfgnn.federation.kits import processes
from tests.federation.running_federation import ENGINE_WARNINGS
from tests.federation.two_site_federation import connected, federation, have_processes_run
from tests.waiting import wait_for

pytestmark = ENGINE_WARNINGS


class BeganAgain(Exception):
    """In place of the end of this process."""


@pytest.fixture
def monitor(monkeypatch: pytest.MonkeyPatch, installed: list[str]) -> ConnectionMonitor:
    def end(code: int) -> None:
        assert code == LOGIN_UNANSWERED  # and the supervisor starts it again
        raise BeganAgain

    monkeypatch.setattr(os, "_exit", end)
    return ConnectionMonitor()


def logging_in(monitor: ConnectionMonitor, outcome: Exception | str) -> Any:
    """What comes of a login with this outcome."""

    def client_registration(*asked: str) -> str:
        assert asked == ("north", "city", "context")
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    communicator = SimpleNamespace(client_registration=client_registration)
    monitor._log_in_again(communicator)
    return communicator.client_registration("north", "city", "context")


def test_a_login_without_an_answer_is_tried_again(monitor: ConnectionMonitor) -> None:
    with pytest.raises(BeganAgain):
        logging_in(monitor, FLCommunicationError("failed to challenge server: timeout: "))


def test_a_login_that_is_refused_is_not_tried_again(monitor: ConnectionMonitor) -> None:
    assert logging_in(monitor, "token") == "token"
    for refusal in (
        "expected server identity is 'server' but got 'other'",
        "failed to challenge server: auth_error: ",
    ):
        with pytest.raises(FLCommunicationError, match=refusal):
            logging_in(monitor, FLCommunicationError(refusal))


UNANSWERED_ONCE = """
import os, sys
from pathlib import Path

tried = Path(__file__).with_name("tried")
if "engine.client" in " ".join(sys.orig_argv) and not tried.exists():
    from nvflare.apis.fl_exception import FLCommunicationError
    from nvflare.private.fed.authenticator import Authenticator

    tried.touch()

    def unanswered(self):
        raise FLCommunicationError("failed to challenge server: timeout: ")

    Authenticator._challenge_server = unanswered
"""


@pytest.mark.slow
def test_a_site_whose_first_login_is_not_answered_joins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with federation(tmp_path / "project") as (_, made):
        have_processes_run(UNANSWERED_ONCE, tmp_path / "faults", monkeypatch)
        north = made["north"]
        pid = processes.up(north)
        wait_for(lambda: connected(made["server"]) == {"north"}, "north to log in")
        assert (tmp_path / "faults" / "tried").exists()
        assert "beginning again" in (north / "console.txt").read_text()
        assert processes.running(north) == pid


CONFIGURED_LATE = """

if "server_train" in " ".join(sys.orig_argv):
    import time
    from nvflare.private.fed.server.fed_server import FederatedServer

    set_admin_server = FederatedServer.set_admin_server

    def late(self, admin_server):  # the engine listens by now, and learns of its certificate afterwards
        time.sleep(12.0)  # a site tries at least every ten seconds
        set_admin_server(self, admin_server)

    FederatedServer.set_admin_server = late
"""


@pytest.mark.slow
def test_a_site_that_logs_in_while_the_server_is_being_configured_joins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with federation(tmp_path / "project") as (_, made):
        north, server = made["north"], made["server"]
        processes.down(server)
        have_processes_run(CONFIGURED_LATE, tmp_path / "faults", monkeypatch)
        processes.up(north)
        processes.up(server)
        wait_for(lambda: connected(server) == {"north"}, "north to log in, and the operator to see it")
        assert "Login failed" not in (north / "console.txt").read_text()
        assert "missing __server_config__" not in (server / "log.txt").read_text()
