"""TLS connections of the engine, which one thread reads while others write."""

from __future__ import annotations

import os
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from nvflare.fuel.f3.drivers import tcp_driver
from nvflare.fuel.f3.drivers.driver_params import DriverParams
from nvflare.fuel.f3.drivers.socket_conn import SocketConnection
from nvflare.fuel.f3.sfm.prefix import PREFIX_LEN, Prefix

from cnfgnn.federation.engine.carry import jobs
from cnfgnn.federation.engine.guard.admission import AdmissionControl
from cnfgnn.federation.engine.guard.connection_monitor import ConnectionMonitor
from cnfgnn.federation.engine.repairs import shared_sockets
from cnfgnn.federation.engine.repairs.shared_sockets import SharedSocket
from cnfgnn.federation.kits import processes
from tests.federation.running_federation import ENGINE_WARNINGS
from tests.federation.socket_chatter import certificate
from tests.federation.two_site_federation import Echo, connected, federation, have_processes_run
from tests.waiting import wait_for

pytestmark = ENGINE_WARNINGS

FRAMES = 100
Pair = tuple[SharedSocket, SharedSocket]


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """What the server and a site make their sockets with."""
    file = str(certificate(tmp_path_factory.mktemp("certificate")))
    AdmissionControl()
    params = {DriverParams.SCHEME.value: "stcp", DriverParams.SECURE.value: True}
    params |= dict.fromkeys([DriverParams.CA_CERT.value, DriverParams.CLIENT_CERT.value], file)
    params |= dict.fromkeys([DriverParams.SERVER_CERT.value, DriverParams.SERVER_KEY.value], file)
    params |= {DriverParams.CLIENT_KEY.value: file}
    at_server, at_site = (tcp_driver.get_ssl_context(params, ssl_server=serves) for serves in (True, False))
    return at_server, at_site


def connection(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> Pair:
    at_server, at_site = contexts
    accepted: list[ssl.SSLSocket] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def accept() -> None:
            accepted.append(at_server.wrap_socket(listening.accept()[0], server_side=True))

        thread = threading.Thread(target=accept)
        thread.start()
        site = at_site.wrap_socket(socket.create_connection(listening.getsockname()))
        thread.join()
    assert isinstance(site, SharedSocket)
    assert isinstance(accepted[0], SharedSocket)
    return accepted[0], site


@pytest.fixture
def pair(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> Iterator[Pair]:
    one, other = connection(contexts)
    with closing(one), closing(other):
        yield one, other


class End:
    """An end of a connection of the engine, which reads in one thread and writes in another."""

    def __init__(self, end: SharedSocket) -> None:
        self.connection, self.received = SocketConnection(end, None, secure=True), 0
        self.connection.process_frame = self._count
        self.threads = [threading.Thread(target=run) for run in (self.connection.read_loop, self._send)]

    def _count(self, frame: object) -> None:
        self.received += 1

    def _send(self) -> None:
        frame = bytearray(PREFIX_LEN + 300)
        Prefix(length=len(frame), type=1).to_buffer(frame, 0)
        for _ in range(FRAMES):
            self.connection.send_frame(frame)


def test_nothing_is_lost_while_both_ends_read_and_write(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    for _ in range(10):  # with sockets of Python's own, hardly any connection outlives its first moments
        ends = [End(end) for end in connection(contexts)]
        threads = [thread for end in ends for thread in end.threads]
        for thread in threads:
            thread.start()
        wait_for(lambda ends=ends: all(end.received == FRAMES for end in ends), "all frames arrive")
        for end in ends:
            end.connection.close()
        for thread in threads:
            thread.join()
        assert [end.received for end in ends] == [FRAMES, FRAMES]


def test_a_thread_that_reads_ends_when_either_end_is_closed(pair: Pair) -> None:
    read: list[int] = []

    def read_from(end: SharedSocket) -> None:
        try:
            read.append(end.recv_into(bytearray(8)))
        except ConnectionResetError:  # the other end was closed with something left to read
            read.append(0)

    threads = [threading.Thread(target=read_from, args=[end]) for end in pair]
    for thread in threads:
        thread.start()
    pair[0].shutdown(socket.SHUT_RDWR)
    for thread in threads:
        thread.join()
    assert read == [0, 0]
    pair[0].close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        pair[0].recv_into(bytearray(8))


def test_a_thread_that_reads_sees_that_the_socket_was_closed_without_a_word(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_sockets, "LOOKS_AGAIN", 0.05)
    problems: list[OSError] = []

    def read() -> None:
        try:
            pair[0].recv_into(bytearray(8))
        except OSError as problem:
            problems.append(problem)

    thread = threading.Thread(target=read)
    thread.start()
    pair[0].close()
    thread.join()
    assert len(problems) == 1


def test_nobody_waits_forever_for_an_end_that_does_not_read(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_sockets, "SENT_WITHIN", 0.2)

    def send_until_full() -> None:
        while True:
            pair[0].send(bytes(1 << 14))

    with pytest.raises(TimeoutError, match="has read nothing"):
        send_until_full()


def test_large_messages_arrive_whole(pair: Pair) -> None:
    sent, received = os.urandom(3_000_000), bytearray()

    def send() -> None:
        left = memoryview(sent)
        while left:
            left = left[pair[0].send(left) :]

    thread = threading.Thread(target=send)
    thread.start()
    buffer = bytearray(1 << 16)
    while len(received) < len(sent):
        received += buffer[: pair[1].recv_into(buffer)]
    thread.join()
    assert received == sent


def test_sites_share_their_sockets_too(monkeypatch: pytest.MonkeyPatch, installed: list[str]) -> None:
    monkeypatch.setattr(tcp_driver, "get_ssl_context", shared_sockets._context_of_engine)
    ConnectionMonitor()
    assert tcp_driver.get_ssl_context is shared_sockets._context_with_shared_sockets


RECORDS_SOCKETS = """
import ssl, sys

wrap = ssl.SSLContext.wrap_socket

def recorded(self, *args, **named):
    made = wrap(self, *args, **named)
    caller = sys._getframe(1).f_code.co_filename
    with open("sockets.txt", "a") as file:  # in the kit, and at a site in the engine's folder
        file.write(f"{' '.join(sys.orig_argv)}\\t{caller}\\t{type(made).__name__}\\n")
    return made

ssl.SSLContext.wrap_socket = recorded
"""


@pytest.mark.slow
def test_every_connection_of_the_engines_processes_is_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with federation(tmp_path / "project") as (_, made):
        processes.down(made["server"])
        have_processes_run(RECORDS_SOCKETS, tmp_path / "records", monkeypatch)
        for name in ("server", "north"):
            processes.up(made[name])
        wait_for(lambda: connected(made["server"]) == {"north"}, "north is connected")
        with jobs.connect(made["server"]) as session:
            Echo(session, tmp_path, ["north"]).pid("north")
    places = (made["server"], made["north"] / "engine")
    recorded = "".join((place / "sockets.txt").read_text() for place in places)
    lines = [line.split("\t") for line in recorded.splitlines()]
    of_engine = [
        (command, kind) for command, caller, kind in lines if "tcp_driver" in caller or "ssl.py" in caller
    ]
    assert {kind for _, kind in of_engine} == {"SharedSocket"}
    for program in ("server_train", "engine.client", "runner_process", "worker_process"):
        assert any(program in command for command, _ in of_engine), program
