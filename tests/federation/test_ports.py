"""Which ports a server's process listens on."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import psutil
import pytest

from cnfgnn.federation.kits import ports


@pytest.mark.parametrize("error", [KeyError("00000000:00000000"), RuntimeError("malformed line")])
def test_a_table_that_changes_while_it_is_read_is_read_again(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """The kernel's table may hold parts of two lines then, which psutil does not expect."""
    whole, failures = psutil.Process.net_connections, [error, error]

    def torn(self: psutil.Process, kind: str) -> object:
        if failures:
            raise failures.pop()
        return whole(self, kind)

    monkeypatch.setattr(psutil.Process, "net_connections", torn)
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        places = [("127.0.0.1", one.getsockname()[1]) for one in (listening, bound)]
        monkeypatch.setattr(ports, "_server_addresses", lambda kit: places)
        assert ports.closed_ports(Path(), os.getpid()) == [places[1][1]]
        failures += [error] * ports.TRIES
        assert ports.closed_ports(Path(), os.getpid()) == []
