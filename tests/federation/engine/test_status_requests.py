"""A site that asks how the server sees it gets an answer, also if the server's kit does not list it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from nvflare.fuel.f3.sfm.constants import HandshakeKeys, Types

from cnfgnn.federation.engine.guard import admission, handshake
from cnfgnn.federation.engine.guard.admission import SiteConnections
from cnfgnn.federation.kits.certificates import Revoked


class Asking:
    """A connection whose other end has a certificate of this name."""

    def __init__(self, name: str) -> None:
        self.name, self.sent, self.closed = name, b"", False
        self.conn = self.sock = self
        self.sfm_endpoint: object = None  # until the engine has admitted it

    def get_name(self) -> str:
        return self.name

    def get_conn_properties(self) -> dict[str, str]:
        return {}

    def getpeercert(self) -> dict[str, Any]:
        subject, begins = ((("commonName", self.name),),), "Nov 18 00:00:00 2026 GMT"
        return {"subject": subject, "serialNumber": "1", "notBefore": begins}

    def send_frame(self, frame: bytes) -> None:
        self.sent = frame

    def close(self) -> None:
        self.closed = True


def asked(certificate: str, name: str, **more: str) -> tuple[Asking, list[str]]:
    """What a server that knows site north does with the first frame of a connection."""
    connections, connection = object.__new__(SiteConnections), Asking(certificate)
    connections.names = {"north"}
    admitted: list[str] = []
    frame = handshake.encode_frame(Types.HELLO, {HandshakeKeys.ENDPOINT_NAME: name, **more})
    connections.decide(connection, frame, lambda: admitted.append(name))
    return connection, admitted


def test_a_site_that_the_server_does_not_know_is_told_so_and_nothing_else() -> None:
    connection, admitted = asked("south", "south.status-1", **{handshake.STATUS_REQUEST: ""})
    assert not admitted
    assert connection.closed
    status = handshake.decode_frame(connection.sent)[handshake.CONNECTION_STATUS]
    assert status.keys() == {"version", "unknown"}
    answer = handshake.ServerAnswer("server", "host:8002", 0.0, handshake.checked_status(status))
    assert "the server's kit does not list this site" in handshake.connection_problem(answer)


def test_what_is_no_question_is_left_to_the_engine() -> None:
    connection, admitted = asked("operator@federation.cnfgnn", "operator")
    assert (connection.sent, admitted) == (b"", ["operator"])


def test_a_revoked_site_has_time_to_ask_why_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    connections, asks, works = object.__new__(SiteConnections), Asking("north"), Asking("north")
    works.sfm_endpoint = object()
    connections.names, connections.revoked = {"north"}, Revoked({"1": "north"}, {})
    connections._may_ask = {}
    clients = SimpleNamespace(get_clients=dict)
    connections.server = SimpleNamespace(client_manager=clients)
    connections.connections = SimpleNamespace(sfm_conns={"a": asks, "b": works})
    refused: list[Asking] = []
    monkeypatch.setattr(connections, "_refuse", lambda connection, site, reason: refused.append(connection))
    connections._close_revoked()
    assert refused == [works]
    now = admission.time.monotonic()
    monkeypatch.setattr(admission.time, "monotonic", lambda: now + 1.1 * admission.ASKS_WITHIN)
    connections._close_revoked()
    assert refused == [works, asks, works]


@pytest.mark.parametrize(
    ("certificate", "serials", "told"),
    [
        ("north", {}, ("north", "a process with the same certificate began with an answer")),
        ("north", {"1": "north"}, ("north", admission.REVOKED)),  # nobody has copied the kit that replaced it
        ("operator@federation.cnfgnn", {}, ("", "it began with an answer")),
    ],
)
def test_who_begins_with_an_answer_is_recorded_for_whom_it_concerns(
    monkeypatch: pytest.MonkeyPatch, certificate: str, serials: dict[str, str], told: tuple[str, str]
) -> None:
    connections, connection = object.__new__(SiteConnections), Asking(certificate)
    connections.names, connections.revoked = {"north"}, Revoked(serials, {})
    refused: list[tuple[str, str]] = []
    monkeypatch.setattr(connections, "_warn", lambda *_: None)
    connections.status = SimpleNamespace(
        record_refusal=lambda site, _, reason: refused.append((site, reason)),
        record_stranger=lambda _, reason: refused.append(("", reason)),
    )
    connections._refuse_ready(connection)
    assert (refused, connection.closed) == ([told], True)
