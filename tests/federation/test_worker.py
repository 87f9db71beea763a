"""A worker answers its supervisor's requests, whatever they are."""

from __future__ import annotations

import gc
import threading
from multiprocessing import Pipe

from cnfgnn.federation.site import worker

gc.unfreeze()  # the module freezes what is loaded, for processes that are forked after it


def test_requests_that_fail_do_not_use_up_a_workers_threads() -> None:
    def answer(request: bytes) -> bytes:
        if bytes(request) == b"bad":
            raise ZeroDivisionError
        return b"answer to " + bytes(request)

    ours, theirs = Pipe()
    closed = threading.Event()
    worker._answer(theirs, answer, closed.set)
    for number in range(3 * worker.AT_A_TIME):
        ours.send_bytes(number.to_bytes(worker.NUMBER, "little") + b"bad")
    ours.send_bytes(b"numbered" + b"good")
    assert ours.poll(30)
    assert ours.recv_bytes() == b"numbered" + b"answer to good"
    ours.close()
    assert closed.wait(30)
    theirs.close()
