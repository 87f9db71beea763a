"""A worker answers its supervisor's requests, whatever they are."""

from __future__ import annotations

import gc
import threading
from multiprocessing import Pipe

from cnfgnn.federation.site import worker
from cnfgnn.federation.site.workers import NUMBER, as_message
from cnfgnn.transports.remote.endpoint import Endpoint

gc.unfreeze()  # the module freezes what is loaded, for processes that are forked after it


def test_requests_that_fail_do_not_use_up_a_workers_threads() -> None:
    class Fails(Endpoint):
        def answer(self, request: bytes | memoryview) -> bytes:
            if bytes(request) == b"bad":
                raise ZeroDivisionError
            return f"{self.no_more_rounds}, answer to ".encode() + bytes(request)

    ours, theirs = Pipe()
    closed = threading.Event()
    worker._answer(theirs, Fails(lambda terms: None, dict), closed.set)  # type: ignore[arg-type,return-value]
    for number in range(3 * worker.AT_A_TIME):
        ours.send_bytes(as_message(number, "", b"bad"))
    ours.send_bytes(as_message(99, "no more today", b"good"))
    assert ours.poll(30)
    assert ours.recv_bytes() == (99).to_bytes(NUMBER, "little") + b"no more today, answer to good"
    ours.close()
    assert closed.wait(30)
    theirs.close()
