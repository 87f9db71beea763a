"""A site that asks how the server sees it gets an answer, also if the server's kit does not list it."""

from __future__ import annotations

from typing import Any

from nvflare.fuel.f3.sfm.constants import HandshakeKeys, Types

from cnfgnn.federation.engine.guard import handshake
from cnfgnn.federation.engine.guard.admission import SiteConnections


class Asking:
    """A connection whose other end has a certificate of this name."""

    def __init__(self, name: str) -> None:
        self.name, self.sent, self.closed = name, b"", False
        self.conn = self.sock = self

    def getpeercert(self) -> dict[str, Any]:
        return {"subject": ((("commonName", self.name),),)}

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
