"""Nothing waits for ever: deadlines by measured pace, and sites of which nothing is heard."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cnfgnn.algorithm.messages.calls import Call
from cnfgnn.algorithm.messages.shapes import Sizes
from cnfgnn.data.dataset import Dataset
from cnfgnn.transports.remote import endpoint
from cnfgnn.transports.remote import link as link_module
from cnfgnn.transports.remote.deadlines import FIRST_OTHER, FIRST_WORK, LEAST, SLACK, Pace, work_of
from cnfgnn.transports.remote.link import Late, Link, silence
from cnfgnn.transports.remote.messages import PIECE, Unreachable, pack, unpack
from tests.conftest import server, small
from tests.transports.remote.test_transport import Wires, _until, federated

KNOWN = Sizes(2, True, client_batch=10, server_batch=8, windows={"train": 100, "validation": 20, "test": 40})
UPDATE = Call("update", {"r_g": 1, "r_c": 2, "step": 0})
PART = Call("update", {"r_g": 1, "r_c": 2, "step": 0, "first": 5, "until": 10})
SCORE = Call("score", {"split": "test"})
SAVE = Call("save", {"tag": "a", "keep": ""})


# ---- deadlines --------------------------------------------------------------------------------------------


def test_the_first_request_of_a_kind_is_given_long() -> None:
    its = Pace()
    assert its.deadline(work_of([UPDATE], KNOWN)) == LEAST + FIRST_WORK
    assert its.deadline(work_of([SAVE], KNOWN)) == LEAST + FIRST_OTHER
    assert its.deadline(work_of([UPDATE, SAVE], KNOWN)) == LEAST + FIRST_WORK + FIRST_OTHER


def test_later_ones_by_what_as_much_work_took_and_never_less_than_the_floor() -> None:
    its = Pace()
    its.learn(work_of([UPDATE, SCORE], KNOWN), {"update": 40.0, "score": 0.4})  # 20 minibatches, 40 windows
    assert its.deadline(work_of([UPDATE], KNOWN)) == pytest.approx(LEAST + SLACK * 40)
    assert its.deadline(work_of([PART], KNOWN)) == pytest.approx(LEAST + SLACK * 10)
    assert its.deadline(work_of([Call("score", {"split": "validation"})], KNOWN)) == pytest.approx(
        LEAST + SLACK * 0.2
    )
    its.learn(work_of([SAVE], KNOWN), {"save": 0.0})
    assert its.deadline(work_of([SAVE], KNOWN)) == LEAST


def test_a_site_of_which_nothing_is_known_has_a_deadline_too() -> None:
    draw = {"r_g": 1, "epoch": 0, "number": 0}
    calls = [
        UPDATE,
        SCORE,
        Call("backward", {**draw, "step": 0, "learn": False}),
        Call("encode", {"split": "train"}),
    ]
    assert Pace().deadline(work_of(calls, Sizes(2))) == LEAST + 4 * FIRST_WORK


def test_one_slow_moment_is_forgotten_in_time() -> None:
    its = Pace()
    its.learn(work_of([SAVE], KNOWN), {"save": 100.0})
    slow = its.deadline(work_of([SAVE], KNOWN))
    for _ in range(30):
        its.learn(work_of([SAVE], KNOWN), {"save": 0.1})
    assert its.deadline(work_of([SAVE], KNOWN)) < LEAST + 1 < slow


def test_a_site_that_was_late_is_given_twice_as_long() -> None:
    its = Pace()
    its.learn(work_of([UPDATE], KNOWN), {"update": 40.0})
    its.missed(work_of([UPDATE], KNOWN))
    its.missed(work_of([UPDATE], KNOWN))
    assert its.deadline(work_of([UPDATE], KNOWN)) == pytest.approx(LEAST + 4 * SLACK * 40)
    its.learn(work_of([UPDATE], KNOWN), {"update": 60.0})
    assert its.deadline(work_of([UPDATE], KNOWN)) == pytest.approx(LEAST + SLACK * 60)


@pytest.mark.parametrize(
    "said",
    [None, 3, {"update": "long"}, {"update": -1.0}, {"update": float("nan")}, {"update": 10**400}],
)
def test_what_a_site_says_of_its_times_cannot_lengthen_its_deadlines(said: object) -> None:
    class Lying:
        def ask(self, site: str, request: bytes, timeout: float) -> bytes:
            return pack("done", b"", size=0, seconds=1.0, verbs=said)

    link = Link("west", Lying(), "session")
    link.carry(b"", 10)
    assert dict(link.verbs) == {}


def test_times_are_at_most_those_that_the_server_waited() -> None:
    class Boasting:
        def ask(self, site: str, request: bytes, timeout: float) -> bytes:
            return pack("done", b"", size=0, seconds=1.0, verbs={"update": 1e9})

    link = Link("west", Boasting(), "session")
    link.carry(b"", 10)
    assert link.verbs["update"] < 60


# ---- silence ----------------------------------------------------------------------------------------------


class Silent:
    """A site that was stopped: nothing comes, for as long as one waits."""

    def __init__(self) -> None:
        self.waited = 0.0

    def ask(self, site: str, request: bytes, timeout: float) -> bytes:
        self.waited += timeout
        time.sleep(timeout)
        raise Unreachable("timeout")


def test_a_site_of_which_nothing_is_heard_is_given_up_after_a_bounded_time() -> None:
    assert silence(PIECE) == silence(1 << 14) == 20.0
    assert silence(4 * PIECE) > 20.0
    channel = Silent()
    link = Link("west", channel, "session", answer_within=0.05, silent_for=0.3)
    with pytest.raises(Unreachable):
        link.carry(b"x" * 1000, most=PIECE)  # which alone takes 8 s on the slowest line
    assert 0 < channel.waited < 0.41  # a last try takes a tenth of a second at least
    assert link.silent == 0.0


def test_a_site_whose_hello_comes_is_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer is under way on a slow line."""
    answer = iter([Unreachable("timeout")] * 3)
    now = [0.0]
    monkeypatch.setattr(link_module, "time", SimpleNamespace(monotonic=lambda: now[0]))

    class Slow:
        def ask(self, site: str, request: bytes, timeout: float) -> bytes:
            if unpack(request).kind == "hello":
                return pack("hello")
            link.hello()
            now[0] += 0.4  # as if that took so long
            for problem in answer:
                raise problem
            return pack("done", b"", size=0, seconds=0.0)

    link = Link("west", Slow(), "session", silent_for=1.0)
    assert link.carry(b"", 10) == b""


def test_a_site_at_work_is_late_after_its_deadline() -> None:
    class Working:
        def ask(self, site: str, request: bytes, timeout: float) -> bytes:
            time.sleep(0.01)
            return pack("working")

    with pytest.raises(Late, match="working for more than 0 s"):
        Link("west", Working(), "session").carry(b"", 10, deadline=0.1)


# ---- both ends --------------------------------------------------------------------------------------------


def blocked_disk(wires: Wires) -> threading.Event:
    """The second site saves nothing until this is set."""
    clients: Any = wires.owner(1).nodes
    save, disk = clients.save, threading.Event()

    def blocked(**more: Any) -> None:
        disk.wait()
        save(**more)

    clients.save = blocked
    return disk


@pytest.mark.slow
def test_a_site_that_is_at_work_for_ever_is_left_out_named_and_caught_up_later(
    data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "REPORTS_WORKING_AFTER", 0.02)
    wires = Wires(data, small("at-fedavg"))
    transport = wires.transport()
    strategy, site = server(federated(wires, transport)), transport.parties[1]
    strategy.round(1)
    strategy.score("validation")
    disk = blocked_disk(wires)
    with monkeypatch.context() as hurried:
        hurried.setattr(site.pace, "deadline", lambda work: 0.3)
        strategy.save("round-00001", ())
    assert strategy.nodes.up.tolist() == [True, False, False, True, True, True]
    assert site.problem.startswith("is late with 'save'")
    assert site.reachable
    _until(lambda: site.busy)
    asked = wires.asked
    strategy.round(2)  # and nobody waits for it again
    assert strategy.nodes.up.tolist() == [True, False, False, True, True, True]
    assert wires.asked > asked
    disk.set()
    _until(lambda: not site.busy)
    strategy.round(3)
    assert strategy.nodes.up.all()
    assert not site.late
    assert torch.isfinite(strategy.score("validation").of_copy).all()


def test_where_a_late_site_is_needed_training_pauses_until_it_is_done(
    data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "REPORTS_WORKING_AFTER", 0.02)
    wires = Wires(data, small("gru-fedavg"))
    transport = wires.transport(min_sites=3)
    strategy, site = server(federated(wires, transport)), transport.parties[1]
    disk = blocked_disk(wires)
    monkeypatch.setattr(site.pace, "deadline", lambda work: 1800.0 if site.late else 0.3)
    paused: list[bool] = []
    transport.changed = lambda: paused.append(transport.waiting)
    worker = threading.Thread(target=strategy.save, args=("round-00001", ()))
    worker.start()
    _until(lambda: transport.waiting and site.late)
    assert not site.usable
    asked = transport.exchanges
    _until(lambda: paused.count(True) > 0)
    assert transport.exchanges == asked  # it is not asked again and again
    disk.set()
    worker.join(240)
    assert strategy.nodes.up.all()
    assert paused.count(True) == 1


def test_what_a_site_keeps_the_others_waiting_for_can_be_seen(
    data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cnfgnn.transports.remote.transport.SHOWN_AFTER", 0.05)
    monkeypatch.setattr(endpoint, "REPORTS_WORKING_AFTER", 0.02)
    wires = Wires(data, small("gru-fedavg"))
    transport = wires.transport()
    shown, disk = threading.Event(), threading.Event()
    strategy, site = server(federated(wires, transport)), transport.parties[1]
    clients: Any = wires.owner(1).nodes
    clients.save = lambda **more: disk.wait()
    transport.changed = shown.set
    worker = threading.Thread(target=strategy.save, args=("round-00001", ()))
    worker.start()
    _until(lambda: site.holding_up.startswith("working for"))
    shown.clear()
    assert shown.wait(240), "the status is not told"
    disk.set()
    worker.join(240)
    assert site.holding_up == ""


def test_a_silent_site_does_not_delay_what_is_known_of_the_others(data: Dataset) -> None:
    wires = Wires(data, small("gru-fedavg"))
    ask, speaks = wires.ask, threading.Event()

    def held(site: str, request: bytes, timeout: float) -> bytes:
        if site == "site-0" and unpack(request).kind == "hello":
            speaks.wait()
        return ask(site, request, timeout)

    wires.ask = held  # type: ignore[method-assign]
    transport = wires.transport()
    try:
        _until(lambda: all(site.latency is not None for site in transport.parties[1:]))
        assert transport.parties[0].latency is None
    finally:
        speaks.set()
        transport.close()
