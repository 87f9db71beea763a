"""Memory of the processes of a task: what the engine leaves behind for each of its messages is freed soon."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.commands import ENVIRONMENT

PROGRAM = """
import gc
import weakref
from collections import deque

import cnfgnn.federation.flare.controller  # as in the process of a task
from nvflare.fuel.f3.streaming.blob_streamer import BlobStream
from nvflare.fuel.f3.streaming.byte_streamer import TxTask
from cnfgnn.process_setup import collect_garbage_early

MESSAGES = 300


def most_alive():
    under_way, alive, most = deque(maxlen=2), weakref.WeakSet(), 0
    for _ in range(MESSAGES):
        sent = TxTask(None, 1024, "channel", "topic", "site", {}, BlobStream(b"text", {}), None, False, False)
        alive.add(sent)
        under_way.append(sent)
        gc.collect(1)  # messages that are under way grow old: only a search among all objects finds them
        [[] for _ in range(1000)]  # Python decides here whether to search
        most = max(most, len(alive))
    return most


print(most_alive())
collect_garbage_early()
print(most_alive())
"""


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
    usually, early = map(int, told.stdout.split())
    assert usually > 200  # otherwise the engine has no cycles any more, and nothing needs to be set aside
    assert early < 40
