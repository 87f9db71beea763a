"""Many sites at once: nobody waits for the others' turn, and one that is stuck costs its deadline at most."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from cnfgnn.algorithm.messages.calls import Call, sites_with
from cnfgnn.algorithm.messages.shapes import Sizes
from cnfgnn.transports.remote.codec import Answer, decode_calls, encode_answers
from cnfgnn.transports.remote.conversations import Callers, Conversation, Sent, hold_all
from cnfgnn.transports.remote.endpoint import Terms
from cnfgnn.transports.remote.link import Link
from cnfgnn.transports.remote.messages import Unreachable, pack, unpack
from cnfgnn.transports.remote.transport import RemoteTransport, Site, needs_hello
from tests.transports.remote.test_transport import _until

MANY = 60
WEIGHTS = Call("weights")
PULL = {"anchor.w": torch.arange(12.0).view(6, 2), "weight": torch.arange(6.0)}


class Sites:
    """Sites that answer at once: the weights of a node are its row. `held` is called before an answer."""

    def __init__(self, groups: Sequence[Sequence[int]]) -> None:
        self.groups = {f"site-{k}": list(rows) for k, rows in enumerate(groups)}
        self.held: Callable[[str], None] = lambda site: None
        self.bend: dict[str, Callable[[dict[str, Tensor]], Mapping[str, Tensor]]] = {}
        self.heard: dict[str, list[Call]] = {}
        self.greeted: list[str] = []

    def ask(self, site: str, request: bytes, timeout: float) -> bytes:
        note = unpack(request)
        if note.kind == "hello":
            self.greeted.append(site)
            return pack("hello")
        self.held(site)
        calls = self.heard[site] = decode_calls(bytes(note.payload))
        rows = torch.tensor(self.groups[site], dtype=torch.float32)
        own = self.bend.get(site, lambda same: same)({"w": torch.stack([rows, -rows], dim=1)})
        answers = [Answer(call.verb, None, own if call.verb == "weights" else {}) for call in calls]
        message = encode_answers(answers)
        return pack("done", message, size=len(message), seconds=0.0, verbs={})

    @contextmanager
    def transport(self, silent_for: float = 20.0) -> Iterator[RemoteTransport]:
        parties = [
            Site(
                name,
                torch.tensor(rows),
                Link(name, self, "session", silent_for=silent_for),
                Sizes(len(rows), True, model={"w": (2,)}),
            )
            for name, rows in self.groups.items()
        ]
        transport = RemoteTransport(parties, Terms(0, 300, 100, "fp32", "run"))
        transport.setting_up = False
        try:
            yield transport
        finally:
            transport.close()


def one_each(count: int = MANY) -> Sites:
    return Sites([[k] for k in range(count)])


# ---- in parallel ------------------------------------------------------------------------------------------


def test_all_sites_are_asked_before_any_of_them_has_answered() -> None:
    sites = one_each()
    all_asked = threading.Barrier(MANY)
    sites.held = lambda site: bool(all_asked.wait(240)) or None  # breaks if they are asked one by one
    with sites.transport() as transport:
        payload = transport.exchange([WEIGHTS], torch.arange(MANY))
    assert payload.present.all()
    assert payload.replies[0]["w"][:, 0].tolist() == list(range(MANY))


def test_hellos_are_sent_to_all_sites_at_once() -> None:
    sites = one_each(8)
    all_greeted = threading.Barrier(8)
    with sites.transport() as transport, ThreadPoolExecutor(8) as pool:
        transport._closed.set()
        ask = sites.ask

        def together(site: str, request: bytes, timeout: float) -> bytes:
            all_greeted.wait(240)
            return ask(site, request, timeout)

        sites.ask = together  # type: ignore[method-assign]
        assert len(list(pool.map(lambda site: site.link.hello(), transport.parties))) == 8


def test_a_stuck_site_costs_the_others_its_deadline_once_and_no_more() -> None:
    sites, waited = one_each(), [0.0]
    ask = sites.ask

    def stuck(site: str, request: bytes, timeout: float) -> bytes:
        if site != "site-7":
            return ask(site, request, timeout)
        waited[0] += timeout if unpack(request).kind != "hello" else 0.0
        time.sleep(timeout)
        raise Unreachable("nothing comes")

    sites.ask = stuck  # type: ignore[method-assign]
    with sites.transport(silent_for=0.4) as transport:
        payload = transport.exchange([WEIGHTS], torch.arange(MANY))
        assert payload.present.tolist() == [k != 7 for k in range(MANY)]
        assert 0 < waited[0] < 0.6  # a last try takes a tenth of a second at least
        once = waited[0]
        for _ in range(3):
            assert int(transport.exchange([WEIGHTS], torch.arange(MANY)).present.sum()) == MANY - 1
        assert waited[0] == once  # nobody waits for it again
        transport.parties[
            7
        ].present = True  # as if it were asked: the hellos of the others do not wait for it
        others = {f"site-{k}" for k in range(MANY) if k != 7}
        for site in transport.parties:
            site.present = False  # a hello each second
        _until(lambda: others <= set(sites.greeted))


def test_a_site_that_answers_requests_is_greeted_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cnfgnn.transports.remote.transport.PROBED_EVERY", 3600.0)  # no hello meanwhile
    with one_each(1).transport() as transport:
        (site,), now = transport.parties, time.monotonic()
        transport.exchange([WEIGHTS], torch.arange(1))
        assert not needs_hello(site, since=5.0)
        assert needs_hello(site, since=11.0)
        site.link._heard = now - 3601.0
        assert needs_hello(site, since=1.0)
        site.link._heard, site.present = time.monotonic(), False
        assert needs_hello(site, since=1.0)


# ---- rows -------------------------------------------------------------------------------------------------


def test_every_site_gets_the_rows_of_its_nodes_in_its_order() -> None:
    sites = Sites([[4, 0], [1, 2], [5], [3]])
    call = Call("pull", {}, PULL)
    with sites.transport() as transport:
        payload = transport.exchange([call, WEIGHTS], torch.arange(6))
        assert payload.replies[0] == {}
        assert payload.replies[1]["w"].tolist() == [[k, -k] for k in range(6)]
        for name, rows in sites.groups.items():
            assert sites.heard[name][0].tensors["weight"].tolist() == rows
            assert torch.equal(sites.heard[name][0].tensors["anchor.w"], PULL["anchor.w"][rows])
        some = transport.exchange([WEIGHTS], torch.tensor([3, 2, 1]))
        assert some.replies[0]["w"][:, 0].tolist() == [3, 2, 1]


def test_arrays_without_elements_have_rows_too() -> None:
    sites = Sites([[1, 0], [2]])
    sites.bend = dict.fromkeys(sites.groups, lambda theta: {"w": theta["w"][:, :0]})
    with sites.transport() as transport:
        for site in transport.parties:
            site.known = Sizes(len(site.rows), True, model={"w": (0,)})
        payload = transport.exchange([WEIGHTS], torch.arange(3))
    assert payload.present.all()
    assert payload.replies[0]["w"].shape == (3, 0)


def test_a_site_may_compute_in_another_precision() -> None:
    sites = one_each(3)
    sites.bend["site-1"] = lambda theta: {"w": theta["w"].double()}
    with sites.transport() as transport:
        payload = transport.exchange([WEIGHTS], torch.arange(3))
    assert payload.present.all()
    assert payload.replies[0]["w"].tolist() == [[0, 0], [1, -1], [2, -2]]


@pytest.mark.parametrize(
    ("bent", "said"),
    [
        (lambda theta: {"w": theta["w"] * torch.nan}, "finite"),
        (lambda theta: {"w": theta["w"] + 1e30}, "times as large"),
        (lambda theta: {"w": theta["w"][:, :1]}, "shape"),
        (lambda theta: {"v": theta["w"]}, "this verb does not have"),
    ],
)
def test_an_impossible_answer_among_many_is_refused_alone(
    bent: Callable[[dict[str, Tensor]], Mapping[str, Tensor]], said: str
) -> None:
    sites = one_each()
    sites.bend["site-5"] = bent
    with sites.transport() as transport:
        payload = transport.exchange([WEIGHTS], torch.arange(MANY))
        assert payload.present.tolist() == [k != 5 for k in range(MANY)]
        assert payload.replies[0]["w"][5].tolist() == [0, 0]
        assert said in transport.parties[5].problem
        assert [site.refused for site in transport.parties] == [int(k == 5) for k in range(MANY)]
        assert not transport.parties[5].known.prepared


def test_what_follows_an_array_must_be_zeros() -> None:
    sites = Sites([[0], [1]])
    sites.bend["site-0"] = sites.bend["site-1"] = lambda theta: {"w": theta["w"].bfloat16()}
    with sites.transport() as transport:
        for site in transport.parties:
            site.known = Sizes(1, True, wire="bf16", model={"w": (2,)})
        ask = sites.ask
        sites.ask = (  # type: ignore[method-assign]
            lambda site, *more: ask(site, *more)[:-1] + (b"\1" if site == "site-1" else b"\0")
        )
        transport._closed.set()
        payload = transport.exchange([WEIGHTS], torch.arange(2))
        assert payload.present.tolist() == [True, False]
        assert "padding" in transport.parties[1].problem


def test_sites_are_counted_by_their_rows() -> None:
    sites = [torch.tensor([4, 0]), torch.tensor([1, 2]), torch.tensor([3])]
    assert sites_with(torch.arange(5), sites) == 3
    assert sites_with(torch.tensor([0, 4]), sites) == 1
    assert sites_with(torch.tensor([0, 3]), sites) == 2
    assert sites_with(torch.tensor([], dtype=torch.long), sites) == 0
    assert sites_with(torch.tensor([], dtype=torch.long), sites[:1]) == 0


# ---- conversations ----------------------------------------------------------------------------------------


def test_if_one_conversation_fails_the_others_end() -> None:
    ended = []

    def talk(site: str) -> Conversation[str]:
        try:
            answer = bytes((yield Sent(channel, site, b"", 60.0)))
            if answer == b"bad":
                raise ValueError(answer)
            yield Sent(channel, site, b"again", 60.0)
            raise AssertionError("it was closed before")
        finally:
            ended.append(site)

    first = threading.Event()

    class Channel:
        def ask(self, site: str, request: bytes, timeout: float) -> bytes:
            if request == b"again":
                first.wait(240)  # until the test is over
            return b"bad" if site == "b" else b"good"

    channel, callers = Channel(), Callers(3)
    with pytest.raises(ValueError, match="bad"):
        hold_all([talk("a"), talk("b"), talk("c")], callers)
    assert sorted(ended) == ["a", "b", "c"]
    first.set()
    callers.close()
