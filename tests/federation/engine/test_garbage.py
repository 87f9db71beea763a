"""Memory of the processes of a task: what the engine leaves behind for each of its messages is freed soon."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import ENVIRONMENT

PROGRAM = """
import gc
import time
import weakref

import cnfgnn.federation.engine.carry.controller  # as in the process of a task
from nvflare.fuel.f3.streaming.blob_streamer import BlobStream
from nvflare.fuel.f3.streaming.byte_streamer import TxTask
from cnfgnn.process_setup import collect_garbage_regularly

alive = weakref.WeakSet()
for _ in range(300):
    sent = TxTask(None, 1024, "channel", "topic", "site", {}, BlobStream(b"text", {}), None, False, False)
    alive.add(sent)
    gc.collect(1)  # a message that is under way grows old: only a search among all objects finds it
    [[] for _ in range(1000)]  # Python decides here whether to search
del sent
print(len(alive))
collect_garbage_regularly(every=0.05)
assert gc.get_freeze_count() > 100_000
alive.add(TxTask(None, 1024, "channel", "topic", "site", {}, BlobStream(b"text", {}), None, False, False))
deadline = time.monotonic() + 60
while len(alive) and time.monotonic() < deadline:
    time.sleep(0.01)
print(len(alive))
"""


@pytest.mark.slow
def test_messages_of_the_engine_are_freed_soon(tmp_path: Path) -> None:
    """Each has a buffer of 1 MiB: hundreds of them were kept."""
    told = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        cwd=tmp_path,  # the engine searches the folder for its settings
        check=True,
    )
    usually, regularly = map(int, told.stdout.split())
    assert usually > 200  # otherwise the engine has no cycles any more, and this is not needed
    assert regularly == 0
