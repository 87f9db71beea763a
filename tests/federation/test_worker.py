"""A worker answers its supervisor's requests, whatever they are."""

from __future__ import annotations

import itertools
import threading
from multiprocessing import Pipe

from cnfgnn.federation.site import worker
from cnfgnn.federation.site.permissions import RoundsLeft
from cnfgnn.federation.site.workers import ANSWER, Worker, as_message, parts_of
from cnfgnn.transports.remote.endpoint import Endpoint


def test_requests_that_fail_do_not_use_up_a_workers_threads() -> None:
    class Fails(Endpoint):
        def answer(self, request: bytes | memoryview) -> bytes:
            if bytes(request) == b"bad":
                raise ZeroDivisionError
            return f"{self.most_rounds} {self.no_more_rounds}, answer to ".encode() + bytes(request)

    ours, theirs = Pipe()
    closed = threading.Event()
    worker._answer(theirs, Fails(lambda terms: None, dict), closed.set)  # type: ignore[arg-type,return-value]
    for number in range(3 * worker.AT_A_TIME):
        ours.send_bytes(as_message(number, 0, "", b"bad"))
    ours.send_bytes(as_message(99, 3, "no more today", b"good"))
    assert ours.poll(30)
    assert ours.recv_bytes() == ANSWER.pack(99, 0) + b"3 no more today, answer to good"
    ours.close()
    assert closed.wait(30)
    theirs.close()


def test_requests_that_wait_in_a_row_do_not_begin_more_rounds_than_one_that_is_answered() -> None:
    """Each says how many rounds the worker may have begun in all, however many of them are on their way."""
    ours, theirs = Pipe()
    asking = object.__new__(Worker)
    asking._ended, asking._ready, asking._sending = threading.Event(), threading.Event(), threading.Lock()
    asking._ready.set()
    asking._numbers, asking._waiting, asking._connection, asking._rounds = itertools.count(1), {}, ours, 0
    used = [0]

    def begun(answer: bytes, rounds: int) -> None:
        used[0] += rounds

    def limits(requests: int) -> set[int]:
        for _ in range(requests):
            assert asking.ask(b"request", lambda: RoundsLeft(3 - used[0], "enough"), begun)
        return {parts_of(theirs.recv_bytes())[1] for _ in range(requests)}

    assert limits(5) == {3}
    for number, total in ((1, 1), (2, 2), (77, 3)):  # nobody waits for the last one
        theirs.send_bytes(ANSWER.pack(number, total) + b"working")
    theirs.send_bytes(ANSWER.pack(3, 3) + b"working")
    theirs.close()
    asking._receive(ours)
    assert used == [3]
    ours, theirs = Pipe()
    asking._connection = ours
    assert limits(2) == {3}
    ours.close()
    theirs.close()
