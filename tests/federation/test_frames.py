"""Messages between a site and its engine are bounded, whatever either end says."""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from cnfgnn.federation.frames import LARGEST, LARGEST_SETTINGS, Frames
from cnfgnn.federation.restarts import LONGEST_PAUSE, STABLE_UPTIME, Pauses
from cnfgnn.federation.site_task import SiteTask

TASK = {"id": "00000000-0000-4000-8000-000000000001", "do": "train", "run": "one", "method": "cnfgnn"}


@pytest.fixture
def ends() -> Iterator[tuple[Frames, Frames]]:
    one, other = socket.socketpair()
    with one, other:
        yield Frames(one), Frames(other)


def test_messages_arrive_as_they_were_sent(ends: tuple[Frames, Frames]) -> None:
    large = os.urandom(3_000_000)
    sending = threading.Thread(target=lambda: [ends[0].send(7, b""), ends[0].send(8, large)])
    sending.start()
    assert ends[1].receive() == (7, b"")
    assert ends[1].receive() == (8, large)
    sending.join()
    ends[0].send_json({"a": [1]})
    assert ends[1].receive_json() == {"a": [1]}


@pytest.mark.parametrize("length", [LARGEST + 1, 2**32 - 1])
def test_an_announced_size_is_not_believed(ends: tuple[Frames, Frames], length: int) -> None:
    ends[0].connection.sendall(struct.pack("<QI", 1, length))
    with pytest.raises(EOFError, match="too large"):
        ends[1].receive()
    with pytest.raises(ValueError, match="too large"):
        ends[0].send(1, bytearray(LARGEST + 1))


@pytest.mark.parametrize("content", [b"[]", b"{", b"\xff", b"[" * 100_000])
def test_what_is_said_first_is_a_json_object(ends: tuple[Frames, Frames], content: bytes) -> None:
    ends[0].send(0, content)
    with pytest.raises(EOFError):
        ends[1].receive_json()


def test_settings_are_bounded_and_an_end_is_noticed(ends: tuple[Frames, Frames]) -> None:
    ends[0].connection.sendall(struct.pack("<QI", 0, LARGEST_SETTINGS + 1))
    with pytest.raises(EOFError, match="too large"):
        ends[1].receive_json()
    ends[0].connection.sendall(struct.pack("<QI", 0, 10) + b"half")
    ends[0].close()
    with pytest.raises(EOFError, match="closed"):
        ends[1].receive()


def test_a_task_is_described_by_names_and_numbers() -> None:
    task = SiteTask.of(TASK)
    assert (task.do, task.run, task.method, task.rounds) == ("train", "one", "cnfgnn", 0)
    assert SiteTask.of(task.fields()) == task


@pytest.mark.parametrize(
    "change",
    [
        {"id": "../../states"},
        {"id": None},
        {"do": "shell"},
        {"do": ["train"]},
        {"run": "a/b"},
        {"run": "x" * 101},
        {"method": 1},
        {"rounds": -1},
        {"rounds": True},
        {"live": []},
        {"live": {"deadline": {"a": 1}}},
        {"states": {"kept": [["a"]]}},
        {"states": "all"},
    ],
)
def test_whatever_else_the_engine_says_is_no_task(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="not the description of a task"):
        SiteTask.of(TASK | change)


def test_pauses_grow_while_a_process_keeps_ending() -> None:
    pauses = Pauses()
    found = [pauses.after(1.0) for _ in range(8)]
    assert found[:4] == [0.0, 1.0, 2.0, 4.0]
    assert found[-1] == LONGEST_PAUSE
    assert pauses.after(STABLE_UPTIME + 1) == 0.0
