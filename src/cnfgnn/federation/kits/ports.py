"""The TCP ports of a kit's process: whether they are free before it starts, and open once it has."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any

from cnfgnn.errors import RunError
from cnfgnn.federation.kits.engine_files import read_startup
from cnfgnn.federation.kits.kit import role

RELEASED_WITHIN = 5.0  # seconds until the ports of a server that was just killed are free again
TORN = (KeyError, RuntimeError)  # of psutil, if connections come and go while it reads the kernel's table
TRIES = 5


def closed_ports(kit: Path, pid: int) -> list[int]:
    """The ports that a server's process should listen on and does not; none if that cannot be known."""
    listening = _listening(pid)
    if listening is None:
        return []
    return [port for _, port in _server_addresses(kit) if port not in listening]


def _listening(pid: int) -> set[int] | None:
    """The ports that a process listens on; None if that cannot be known."""
    import psutil

    for _ in range(TRIES):
        try:
            ends = psutil.Process(pid).net_connections("tcp")
        except psutil.AccessDenied:
            return None
        except psutil.Error:
            return set()
        except TORN:
            continue
        return {end.laddr.port for end in ends if end.status == psutil.CONN_LISTEN}
    return None


def check_ports_free(kit: Path) -> None:
    """Refuse to start a server whose ports are in use; wait a little for one that was just killed."""
    if role(kit) != "server":
        return
    deadline = time.monotonic() + RELEASED_WITHIN
    for host, port in _server_addresses(kit):
        while (problem := _listen_problem(host, port)) and time.monotonic() < deadline:
            time.sleep(0.1)
        if problem:
            raise RunError(
                kit,
                f"port {port} cannot be opened ({problem}): stop the program that uses it, or change the port"
                " in PROJECT.toml and make new kits",
            )


def server_port(kit: Path) -> int:
    """The port of the server that a site's engine connects to."""

    def find(config: Any) -> int:
        return int(str(config["servers"][0]["service"]["target"]).rpartition(":")[2])

    return read_startup(kit, "fed_client.json", find)


def _server_addresses(kit: Path) -> list[tuple[str, int]]:
    """Where the server of a kit listens: first for sites, then for its operator."""

    def find(config: Any) -> list[tuple[str, int]]:
        server = config["servers"][0]
        host, _, port = str(server["service"]["target"]).rpartition(":")
        is_local = host == "localhost" or host.startswith("127.")
        for_sites = ("127.0.0.1" if is_local else "0.0.0.0", int(port))
        for_operator = (str(dict(server).get("admin_host", "127.0.0.1")), int(server["admin_port"]))
        return [for_sites, for_operator]

    return read_startup(kit, "fed_server.json", find)


def _listen_problem(host: str, port: int) -> str:
    """Why nothing can listen there; empty if it can."""
    try:
        socket.create_server((host, port)).close()  # reuses the address, as the engine does
    except OSError as error:
        return error.strerror or str(error)
    return ""
